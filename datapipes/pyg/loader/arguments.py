"""Check a loader's arguments, which PyG itself hardly does, and convert them to what PyG's constructors take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import check_bool, check_choice, check_edge_index, check_ids, check_int, shown, tensor_of
from datapipes.base.types import ends_of, known_edge_type, known_node_type, of_type, type_in, unknown_type
from datapipes.features.feature_store import FeatureStore, feature_text
from datapipes.graph.convert import columns_of
from datapipes.graph.graph import Graph
from datapipes.pyg.graph_of import refuse_other_data
from datapipes.pyg.loader.view import refuse_sampler_of_one_type
from datapipes.pyg.sampler import NeighborSampler
from datapipes.pyg.seeds_of_types import SeedsOfTypes
from datapipes.pyg.torch_geometric_names import (
    Data,
    GraphStore,
    HeteroData,
    NegativeSampling,
    NodeSamplerInput,
    get_input_nodes,
    num_nodes_in_stores,
)

_OF_SAMPLERS = (
    *("num_neighbors", "replace", "subgraph_type", "disjoint", "temporal_strategy", "weight_attr", "is_sorted"),
    *("directed", "time_window"),
)  # arguments of loaders, beside time_attr


_OF_BATCHES = {
    *("n_id", "e_id", "batch", "num_nodes", "num_sampled_nodes", "num_sampled_edges", "edge_index", "adj_t"),
    *("input_id", "batch_size", "seed_time", "edge_label_index", "edge_label", "edge_label_time"),
    *("src_index", "dst_pos_index", "dst_neg_index"),
}


def node_seeds(where: str, data: Any, sampler: Any, input_nodes: Any, input_id: Any) -> dict[str, Any]:
    """Check the seeds. Return {"input_nodes": ids or mask, with types (type, ids or mask); "input_id": tensor or None}.

    If `input_nodes` is None, or a type alone, the seeds are all nodes.

    Raises:
        TypeError, ValueError: `input_nodes` are no seeds of this data.
    """
    node_type, ids = typed_nodes(where, input_nodes, types_of(where, data)[0])
    count = _num_nodes(data, sampler, node_type)
    if ids is not None:
        ids = ids_or_mask(where, ids, count)
    elif count is not None:
        ids = torch.arange(count)
    else:
        raise ValueError(f"{where}: the number of nodes{of_type(node_type)} is not known. Set num_nodes, or pass ids.")
    numbers = values_of_seeds(where, input_id=input_id)
    num_seeds = int(ids.sum()) if ids.dtype == torch.bool else len(ids)
    if numbers["input_id"] is not None and len(numbers["input_id"]) != num_seeds:
        raise ValueError(
            f"{where}: input_id has {len(numbers['input_id'])} values for {num_seeds} seeds. Give one for each."
        )
    return {"input_nodes": ids if node_type is None else (node_type, ids), **numbers}


def node_seeds_by_type(where: str, data: Any, sampler: Any, seeds: Any, input_id: Any, input_time: Any) -> SeedsOfTypes:
    """Check `seeds`, {node type: ids, a mask, or None for all nodes}, and return them with their input_id and times.

    Raises:
        TypeError, ValueError: `seeds` are no seeds of this data, or the sampler takes seeds of a single type only.
    """
    refuse_sampler_of_one_type(where, sampler)
    if not seeds:
        raise ValueError(f"{where}: input_nodes is an empty dict; it must name one node type or more. Add one.")
    for name, values in (("input_id", input_id), ("input_time", input_time)):
        is_by_type = isinstance(values, Mapping) and values.keys() == seeds.keys()
        if values is not None and (not is_by_type or any(of_type is None for of_type in values.values())):
            raise TypeError(
                f"{where}: {name} must be a dict with the types of input_nodes, {shown([*seeds])}, got "
                f"{shown(values)}. Give a value for each seed of each type."
            )
    by_type = {}
    for node_type, ids in seeds.items():
        places = None if input_id is None else input_id[node_type]
        times = values_of_seeds(where, input_time=None if input_time is None else input_time[node_type])["input_time"]
        arguments = node_seeds(where, data, sampler, (node_type, ids), places)
        _, nodes, places = get_input_nodes(data, **arguments)
        by_type[node_type] = NodeSamplerInput(places, nodes, times, node_type)
    return SeedsOfTypes(by_type)


def typed_nodes(where: str, seeds: Any, node_types: list[str] | None) -> tuple[str | None, Any]:
    """Split `input_nodes` into (node type, ids or a mask). The type is None without types, the ids for all nodes."""
    if node_types is None:
        if isinstance(seeds, str):
            raise TypeError(f"{where}: input_nodes is {shown(seeds)}, but the data has no types. Pass ids, or a mask.")
        return None, seeds
    node_type, ids = seeds if isinstance(seeds, (list, tuple)) and len(seeds) == 2 else (seeds, None)
    if not isinstance(node_type, str) or isinstance(ids, str):
        raise TypeError(
            f"{where}: input_nodes must be a type, or a pair of a type and ids, since the data has types, got "
            f"{shown(seeds)}. Name one of {node_types}."
        )
    return known_node_type(f"{where}, input_nodes", node_type, node_types), ids


def ids_or_mask(where: str, seeds: Any, count: int | None, name: str = "input_nodes") -> Tensor:
    """Check a loader's seeds, the argument `name`; return them as int32 or int64 ids, or as a mask of all `count` nodes
    of the graph.
    """
    ids = tensor_of(where, name, seeds)
    if ids.dtype != torch.bool:
        return check_ids(where, name, ids)
    if not isinstance(seeds, Tensor):
        raise TypeError(
            f"{where}: {name} is a mask that is a {type(seeds).__name__}, which PyG would read as the ids 0 and "
            "1. Pass torch.as_tensor(mask)."
        )
    if ids.ndim != 1 or (count is not None and len(ids) != count):
        raise ValueError(
            f"{where}: {name} is a mask of shape {list(ids.shape)}; needed is shape "
            f"{'[n]' if count is None else [count]}, an entry for each node of the whole graph. Pass one, or ids."
        )
    return ids


def link_seeds(where: str, data: Any, links: Any) -> Any:
    """Check `edge_label_index`, and return it as [2, n] for a Data, else as (edge type or None, [2, n]).

    For an edge type alone, the ends are those of all its edges.

    Raises:
        TypeError, ValueError: `links` are no seeds of this data.
    """
    node_types, edge_types = types_of(where, data)
    is_pair = isinstance(links, (list, tuple)) and len(links) == 2
    if isinstance(data, Data):
        return _checked(where, data, None, links)
    if node_types is None:
        return None, _checked(where, data, None, links[1] if is_pair and links[0] is None else links)
    edge_type, ends = links if is_pair and not _are_names(links) else (links, None)
    if not isinstance(edge_type, str) and not (_are_names(edge_type) and len(edge_type) in (2, 3)):
        raise TypeError(
            f"{where}: edge_label_index must be a type, or a pair of a type and ids, since the data has types, got "
            f"{shown(links)}. Name one of {edge_types}."
        )
    name = f"{where}, edge_label_index"
    if not isinstance(edge_type, str):
        for end in (edge_type[0], edge_type[-1]):
            known_node_type(name, end, node_types)
        alike = [triple for triple in edge_types if (triple[0], triple[2]) == tuple(edge_type)]
        edge_type = alike[0] if len(alike) == 1 else tuple(edge_type)
        if len(edge_type) == 2 and ends is None:
            raise unknown_type(name, "edge type", edge_type, edge_types)
        if len(edge_type) == 2:
            edge_type = edge_type[0], "to", edge_type[1]  # links of a type that the data does not have
    if ends is None or isinstance(edge_type, str):
        edge_type = known_edge_type(name, edge_type, edge_types)
    return edge_type, _checked(where, data, edge_type, ends)


def _are_names(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)


def _checked(where: str, data: Any, edge_type: Any, ends: Any) -> Any:
    """Check the ends of links of a type, and return them as [2, n]. If `ends` is None, return all edges of the type."""
    if ends is not None:
        return check_edge_index(where, f"edge_label_index{of_type(edge_type)}", ends)
    ends = _ends_in(data, edge_type)
    return ends if isinstance(ends, Tensor) else columns_of(where, ends, of_type(edge_type))


def _ends_in(data: Any, edge_type: Any) -> Any:
    """Return all edges of the type in the data, [2, num_edges]."""
    if isinstance(data, (Data, HeteroData)):
        return (data if edge_type is None else data[edge_type]).edge_index
    graph: GraphStore = data[1]
    if edge_type is None:
        return torch.stack(graph.coo()[:2])
    rows, columns, _ = graph.coo([edge_type])
    return torch.stack((rows[edge_type], columns[edge_type]))


def types_of(where: str, data: Any) -> tuple[list[str] | None, list[Any]]:
    """Return (node types, edge types) of a loader's data; (None, []) if the data has no types."""
    refuse_other_data(where, data)
    if isinstance(data, Data):
        return None, []
    if isinstance(data, HeteroData):
        return data.node_types, data.edge_types
    features, graph = data
    edge_types = list(dict.fromkeys(attr.edge_type for attr in graph.get_all_edge_attrs()))
    if edge_types == [None]:
        return None, []
    named = [attr.group_name for attr in features.get_all_tensor_attrs() if isinstance(attr.group_name, str)]
    ends: list[Any] = [end for edge_type in edge_types for end in ends_of(edge_type)]
    return list(dict.fromkeys([*named, *ends])), edge_types


def _num_nodes(data: Any, sampler: Any, node_type: Any) -> int | None:
    """Return the number of nodes of a type, from the data or from the sampler's graph; None if unknown."""
    count: int | None = None
    is_data, graph = isinstance(data, (Data, HeteroData)), getattr(sampler, "graph", None)
    if is_data:
        count = (data if node_type is None else data[node_type]).num_nodes
    if count is None and isinstance(graph, Graph):
        count = graph.num_nodes_of(node_type)
    if count is None and not is_data and node_type is not None:
        with suppress(ValueError):  # it cannot be inferred
            count = num_nodes_in_stores(*data, node_type)
    return count


def values_of_seeds(where: str, **values: Any) -> dict[str, Tensor | None]:
    """Convert arguments that have one value for each seed to {argument: tensor}. For None the value stays None."""
    tensors: dict[str, Tensor | None] = {}
    for name, value in values.items():
        rows = None if value is None else tensor_of(where, name, value)
        if rows is not None and rows.ndim == 0:
            raise ValueError(f"{where}: {name} is one number, {shown(rows.item())}. Give a list, one for each seed.")
        tensors[name] = value if isinstance(value, Tensor) else rows
    return tensors


def labels_of_seeds(
    where: str, edge_label: Any, edge_label_time: Any, neg_sampling: Any, neg_sampling_ratio: Any
) -> dict[str, Any]:
    """Check the labels, times and negatives of links; return them as {argument of PyG's constructor: value}."""
    values = values_of_seeds(where, edge_label=edge_label, edge_label_time=edge_label_time)
    label = values["edge_label"]
    if label is not None and label.numel() == 0 and label.ndim == 1:
        values["edge_label"] = None  # PyG takes their minimum, which needs a label
    return {**values, "neg_sampling": negatives_of(where, neg_sampling, neg_sampling_ratio)}


def negatives_of(where: str, neg_sampling: Any, ratio: Any) -> Any:
    """Return the NegativeSampling for a loader's arguments `neg_sampling` and neg_sampling_ratio; None: no negatives.

    Raises:
        TypeError, ValueError: Both are given, or a value is not allowed.
    """
    if ratio is not None:
        ratio = ratio.item() if getattr(ratio, "ndim", None) == 0 else ratio
        if not isinstance(ratio, (int, float)) or not 0 <= ratio < math.inf:
            raise ValueError(
                f"{where}: neg_sampling_ratio must be a finite number, 0 or more, got {shown(ratio)}. Choose one."
            )
        if ratio != 0 and neg_sampling is not None:
            raise ValueError(
                f"{where}: neg_sampling and neg_sampling_ratio={shown(ratio)} are both given, and PyG takes the second "
                "alone. Pass one of them."
            )
        neg_sampling = ("binary", ratio) if ratio != 0 else neg_sampling
    try:
        negatives = NegativeSampling.cast(neg_sampling)
        if negatives is not None:
            math.ceil(negatives.amount)  # raises for NaN and infinity
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{where}: neg_sampling must be 'binary', 'triplet', or a NegativeSampling, a tuple or a dict of its "
            f"arguments, with an amount above 0; got {shown(neg_sampling)}. Pass one of these. ({error})"
        ) from error
    for end in ("src_weight", "dst_weight"):
        weight = getattr(negatives, end, None)
        if weight is not None and not isinstance(weight, Tensor):
            raise TypeError(
                f"{where}: {end} of the negatives must be a tensor, got {type(weight).__name__}. Convert it."
            )
    return negatives


def refuse_wrong_sampler(where: str, name: str, method: str, sampler: Any) -> None:
    """Raise TypeError if `sampler` has no method `method`, or is a class instead of its object."""
    if isinstance(sampler, type) or not callable(getattr(sampler, method, None)):
        raise TypeError(f"{where}: {name} must be a BaseSampler, with {method}, got {shown(sampler)}. Make one.")


def refuse_wrong_class(where: str, data: Any, custom_cls: Any) -> None:
    """Raise TypeError if `custom_cls` cannot be the class of batches. It is used only if `data` is a pair of stores."""
    if custom_cls is not None and not callable(custom_cls):
        raise TypeError(f"{where}: custom_cls must be a class or None, got {shown(custom_cls)}. Pass a class.")
    if custom_cls is None or isinstance(data, (Data, HeteroData)):
        return
    needed = Data if types_of(where, data)[0] is None else HeteroData
    if not isinstance(custom_cls, type) or not issubclass(custom_cls, needed):
        raise TypeError(
            f"{where}: custom_cls must be a subclass of {needed.__name__} for this data, got {shown(custom_cls)}. Pass "
            "one."
        )


def feature_store(where: str, features: Any) -> FeatureStore:
    """Return the argument `features` of a loader as a FeatureStore. A key "x" stands for ("node", None, "x").

    Raises:
        TypeError, ValueError: A value is no feature, or a key is not allowed.
    """
    if features is None or isinstance(features, FeatureStore):
        return FeatureStore({}) if features is None else features
    if not isinstance(features, Mapping):
        raise TypeError(
            f"{where}: features must be a dict, or a dp.FeatureStore, got {shown(features)}. Pass {{name: feature}}, "
            "with types {(domain, type, name): feature}; domain is 'node' or 'edge'."
        )
    return FeatureStore({("node", None, key) if isinstance(key, str) else key: features[key] for key in features})


def refuse_wrong_features(where: str, data: Any, sampler: Any, store: FeatureStore) -> None:
    """Raise an error if a feature has an unknown type, a name that is in use, or a wrong number of rows."""
    node_types, edge_types = types_of(where, data)
    for key, feature in store.items():
        domain, group, name = key
        types = [None] if node_types is None else node_types if domain == "node" else edge_types
        type_in(f"{where}: {feature_text(*key)}", domain, group, types)
        if name in _OF_BATCHES:
            raise ValueError(f"{where}: {feature_text(*key)} has a name that each batch has. Give it another name.")
        if isinstance(data, (Data, HeteroData)):
            of_group = data if group is None else data[group]
            if name in of_group:
                raise ValueError(
                    f"{where}: {feature_text(*key)} is an attribute of the data too. Delete it there, and set "
                    "num_nodes, or give the feature another name."
                )
            count = _num_nodes(data, sampler, group) if domain == "node" else of_group.num_edges
            if count is not None and feature.count != count:
                raise ValueError(
                    f"{where}: {feature_text(*key)} has {feature.count} rows for {count} {domain}s; one for each is "
                    f"needed. Pass a feature with a row for each{', or set num_nodes' if domain == 'node' else ''}."
                )


def refuse_wrong_options(where: str, worker_method: Any, options: Mapping[str, Any]) -> None:
    """Raise an error if an argument for torch's DataLoader has a wrong type; torch checks the values."""
    if options["filter_per_worker"] is not None:
        check_bool(where, "filter_per_worker", options["filter_per_worker"])
    check_choice(where, "worker_method", worker_method, ("process", "thread"))
    if worker_method == "thread" and options.get("multiprocessing_context") is not None:
        raise ValueError(
            f"{where}: multiprocessing_context belongs to processes, but worker_method is 'thread'. Leave one out."
        )
    if "num_workers" in options:
        check_int(where, "num_workers", options["num_workers"], 0)
    kinds: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "timeout": ("a number of seconds", lambda value: isinstance(value, (int, float))),
        "worker_init_fn": ("a function", callable),
        "transform": ("a function", callable),
        "transform_sampler_output": ("a function", callable),
        "generator": ("a torch.Generator", lambda value: isinstance(value, torch.Generator)),
        "sampler": ("an iterable of indices into the seeds", _is_iterable),
        "batch_sampler": ("an iterable of lists of indices into the seeds", _is_iterable),
    }
    for name, (words, allows) in kinds.items():
        value = options.get(name, 0 if name == "timeout" else None)
        if (value is not None or name == "timeout") and not allows(value):
            raise TypeError(f"{where}: {name} must be {words}, got {shown(value)}. Pass one, or leave it out.")


def _is_iterable(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes))


def refuse_time_alone(where: str, input_time: Any, time_attr: str | None, sampler: Any) -> None:
    """Raise ValueError if seeds have times, but neither `time_attr` nor a sampler is given."""
    if input_time is not None and time_attr is None and sampler is None:
        raise ValueError(f"{where}: input_time is given, but time_attr is not; times need both. Pass time_attr.")


def refuse_half_of_times(where: str, edge_label_time: Any, time_attr: str | None) -> None:
    """Raise ValueError if only one of `edge_label_time` and `time_attr` is given."""
    if (edge_label_time is None) != (time_attr is None):
        states = ["not set" if value is None else "set" for value in (edge_label_time, time_attr)]
        raise ValueError(
            f"{where}: 'edge_label_time' is {states[0]} while 'time_attr' is {states[1]}; both are needed to sample by "
            "time. Pass both or neither."
        )


def sampler_of(where: str, sampler: Any, data: Any, time_attr: str | None, options: dict[str, Any]) -> NeighborSampler:
    """Return `sampler`, or for None a new NeighborSampler with arguments from `options`; these are removed there."""
    drawing = {name: options.pop(name) for name in _OF_SAMPLERS}
    if sampler is None:
        return NeighborSampler(data, time_attr=time_attr, **drawing)
    if not isinstance(sampler, NeighborSampler):
        raise TypeError(
            f"{where}: neighbor_sampler must be a datapipes.pyg.sampler.NeighborSampler, got "
            f"{type(sampler).__module__}.{type(sampler).__name__}. Give another sampler to NodeLoader or LinkLoader."
        )
    if drawing["time_window"] is not None:
        raise ValueError(
            f"{where}: time_window is {shown(drawing['time_window'])}, but neighbor_sampler decides what is drawn. "
            "Give the window to that sampler."
        )
    return sampler
