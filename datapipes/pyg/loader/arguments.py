"""What users give a loader, checked, in the form that PyG's constructors take: types, and tensors of ids and values.

PyG's own checks are asserts without words, or none. Seeds become a tensor, with types a pair of a type and a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import check_bool, check_choice, check_edge_index, check_ids, check_int, shown, tensor_of
from datapipes.base.types import known_edge_type, known_node_type, of_type, unknown_type
from datapipes.graph.convert import columns_of
from datapipes.graph.graph import Graph
from datapipes.pyg.graph_of import refuse_other_data
from datapipes.pyg.upstream import Data, GraphStore, HeteroData, NegativeSampling, num_nodes_in_stores


def node_seeds(where: str, data: Any, sampler: Any, given: Any, input_id: Any) -> dict[str, Any]:
    """Return `input_nodes` as ids or a mask, with types as (type, ids or mask), and `input_id`. None: all nodes.

    Raises:
        TypeError, ValueError: They are no seeds of this data.
    """
    node_types, _ = types_of(where, data)
    of, ids = None, given
    if node_types is not None:
        is_pair = isinstance(given, (list, tuple)) and len(given) == 2 and isinstance(given[0], str)
        of, ids = (given, None) if isinstance(given, str) else given if is_pair else (None, None)
        if of is None or isinstance(ids, str):
            raise TypeError(
                f"{where}: input_nodes must be a type, or a pair of a type and ids, since the data has types, got "
                f"{shown(given)}. Name one of {node_types}; a loader has seeds of one type."
            )
        known_node_type(f"{where}, input_nodes", of, node_types)
    elif isinstance(ids, str):
        raise TypeError(f"{where}: input_nodes is {shown(ids)}, but the data has no types. Pass ids, or a mask.")
    count = _num_nodes(data, sampler, of)
    if ids is None:
        if count is None:
            raise ValueError(f"{where}: the number of nodes{of_type(of)} is not known. Set num_nodes, or pass ids.")
        ids = torch.arange(count)
    else:
        ids = _ids_or_mask(where, ids, count)
    numbers = values_of_seeds(where, input_id=input_id)
    num_seeds = int(ids.sum()) if ids.dtype == torch.bool else len(ids)
    for values in numbers.values():
        if values is not None and len(values) != num_seeds:
            raise ValueError(f"{where}: input_id has {len(values)} values for {num_seeds} seeds. Give one for each.")
    return {"input_nodes": ids if of is None else (of, ids), **numbers}


def _ids_or_mask(where: str, given: Any, count: int | None) -> Tensor:
    seeds = tensor_of(where, "input_nodes", given)
    if seeds.dtype != torch.bool:
        return check_ids(where, "input_nodes", seeds)
    if not isinstance(given, Tensor):
        raise TypeError(
            f"{where}: input_nodes is a mask that is a {type(given).__name__}, which PyG would read as the ids 0 and "
            "1. Pass torch.as_tensor(mask)."
        )
    if seeds.ndim != 1 or (count is not None and len(seeds) != count):
        raise ValueError(
            f"{where}: input_nodes is a mask of shape {list(seeds.shape)}, but there are {count} nodes, which need "
            f"[{count}]. Take the mask of the same data."
        )
    return seeds


def link_seeds(where: str, data: Any, given: Any) -> Any:
    """Return `edge_label_index`, with types as (edge type, ids); an edge type alone stands for its edges.

    Raises:
        TypeError, ValueError: They are no seeds of this data.
    """
    node_types, edge_types = types_of(where, data)
    if isinstance(data, Data):
        return _checked(where, data, None, given)
    if node_types is None:
        ends = given[1] if isinstance(given, (list, tuple)) and len(given) == 2 and given[0] is None else given
        return None, _checked(where, data, None, ends)
    of, ends = given, None
    if isinstance(given, (list, tuple)) and len(given) == 2 and not all(isinstance(each, str) for each in given):
        of, ends = given
    is_type = isinstance(of, str) or (
        isinstance(of, (list, tuple)) and len(of) in (2, 3) and all(isinstance(each, str) for each in of)
    )
    if not is_type:
        raise TypeError(
            f"{where}: edge_label_index must be a type, or a pair of a type and ids, since the data has types, got "
            f"{shown(given)}. Name one of {edge_types}."
        )
    name = f"{where}, edge_label_index"
    if not isinstance(of, str):
        for end in (of[0], of[-1]):
            known_node_type(name, end, node_types)
        alike = [each for each in edge_types if (each[0], each[2]) == tuple(of)]
        of = alike[0] if len(alike) == 1 else tuple(of)
        if len(of) == 2 and ends is None:
            raise unknown_type(name, "edge type", of, edge_types)
        of = of if len(of) == 3 else (of[0], "to", of[1])  # of links that the data has not
    if ends is None or isinstance(of, str):
        of = known_edge_type(name, of, edge_types)
    return of, _checked(where, data, of, ends)


def _checked(where: str, data: Any, of: Any, ends: Any) -> Any:
    """Return links [2, n], or where None is given the edges of the type, as they are if they are a tensor."""
    if ends is not None:
        return check_edge_index(where, f"edge_label_index{of_type(of)}", ends)
    ends = _ends_in(data, of)
    return ends if isinstance(ends, Tensor) else columns_of(where, ends, of_type(of))


def _ends_in(data: Any, of: Any) -> Any:
    """Return the edges of a type, [2, num_edges]."""
    if isinstance(data, (Data, HeteroData)):
        return (data if of is None else data[of]).edge_index
    graph: GraphStore = data[1]
    if of is None:
        return torch.stack(graph.coo()[:2])
    rows, columns, _ = graph.coo([of])
    return torch.stack((rows[of], columns[of]))


def types_of(where: str, data: Any) -> tuple[list[str] | None, list[Any]]:
    """Return the node types of what PyG's loaders take, None if it has no types; and the edge types."""
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
    return list(dict.fromkeys([*named, *(end for of in edge_types for end in (of[0], of[2]))])), edge_types


def _num_nodes(data: Any, sampler: Any, of: Any) -> int | None:
    """Return the number of nodes of a type, None if nothing tells it."""
    found = None
    is_data, graph = isinstance(data, (Data, HeteroData)), getattr(sampler, "graph", None)
    if is_data:
        found = (data if of is None else data[of]).num_nodes
    if found is None and isinstance(graph, Graph):
        found = graph.num_nodes_of(of)
    if found is None and not is_data and of is not None:
        with suppress(ValueError):  # it cannot be inferred
            found = num_nodes_in_stores(*data, of)
    return found


def values_of_seeds(where: str, **given: Any) -> dict[str, Tensor | None]:
    """Return what belongs to the seeds, by its argument, as tensors with a row for each; None stays None."""
    found: dict[str, Tensor | None] = {}
    for name, values in given.items():
        rows = None if values is None else tensor_of(where, name, values)
        if rows is not None and rows.ndim == 0:
            raise ValueError(f"{where}: {name} is one number, {shown(rows.item())}. Give a list, one for each seed.")
        found[name] = values if isinstance(values, Tensor) else rows
    return found


def labels_of_seeds(
    where: str, edge_label: Any, edge_label_time: Any, neg_sampling: Any, neg_sampling_ratio: Any
) -> dict[str, Any]:
    """Return the labels and times of links, and their negatives, by the argument of PyG's constructor."""
    found = values_of_seeds(where, edge_label=edge_label, edge_label_time=edge_label_time)
    label = found["edge_label"]
    if label is not None and label.numel() == 0 and label.ndim == 1:
        found["edge_label"] = None  # PyG looks for the smallest label
    return {**found, "neg_sampling": negatives_of(where, neg_sampling, neg_sampling_ratio)}


def negatives_of(where: str, neg_sampling: Any, ratio: Any) -> Any:
    """Return the NegativeSampling of the two arguments, or None.

    Raises:
        TypeError, ValueError: Both are given, or one is not allowed.
    """
    if ratio is not None:
        ratio = ratio.item() if getattr(ratio, "ndim", None) == 0 else ratio
        if not isinstance(ratio, (int, float)) or not 0 <= ratio < math.inf:
            raise ValueError(
                f"{where}: neg_sampling_ratio must be a number, 0 or more, got {shown(ratio)}. Choose one."
            )
        if ratio != 0 and neg_sampling is not None:
            raise ValueError(
                f"{where}: neg_sampling and neg_sampling_ratio={shown(ratio)} are both given, and PyG takes the second "
                "alone. Pass one of them."
            )
        neg_sampling = ("binary", ratio) if ratio != 0 else neg_sampling
    try:
        found = NegativeSampling.cast(neg_sampling)
        if found is not None:
            math.ceil(found.amount)  # raises for NaN and infinity
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"{where}: neg_sampling must be 'binary', 'triplet', or a NegativeSampling, a tuple or a dict of its "
            f"arguments, with an amount above 0; got {shown(neg_sampling)}. Pass one of these. ({error})"
        ) from error
    for end in ("src_weight", "dst_weight"):
        weight = None if found is None else getattr(found, end)
        if weight is not None and not isinstance(weight, Tensor):
            raise TypeError(
                f"{where}: {end} of the negatives must be a tensor, got {type(weight).__name__}. Convert it."
            )
    return found


def refuse_wrong_sampler(where: str, name: str, method: str, sampler: Any) -> None:
    """Refuse what has not the method that draws, such as a class in place of its object."""
    if isinstance(sampler, type) or not callable(getattr(sampler, method, None)):
        raise TypeError(f"{where}: {name} must be a BaseSampler, with {method}, got {shown(sampler)}. Make one.")


def refuse_wrong_class(where: str, data: Any, custom_cls: Any) -> None:
    """Refuse a class that no batch of a pair of stores can be made of; the other data has a class of its own."""
    refuse_no_functions(where, custom_cls=custom_cls)
    if custom_cls is None or isinstance(data, (Data, HeteroData)):
        return
    needed = Data if types_of(where, data)[0] is None else HeteroData
    if not isinstance(custom_cls, type) or not issubclass(custom_cls, needed):
        raise TypeError(
            f"{where}: custom_cls must be a subclass of {needed.__name__} for this data, got {shown(custom_cls)}. Pass "
            "one."
        )


def refuse_no_functions(where: str, **given: Any) -> None:
    """Refuse what cannot be called; None is allowed."""
    for name, function in given.items():
        if function is not None and not callable(function):
            raise TypeError(f"{where}: {name} must be a function or None, got {shown(function)}. Pass a function.")


def refuse_wrong_options(where: str, filter_per_worker: Any, worker_method: Any, options: Mapping[str, Any]) -> None:
    """Refuse arguments of torch's DataLoader of another type; their values torch checks."""
    if filter_per_worker is not None:
        check_bool(where, "filter_per_worker", filter_per_worker)
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
        "generator": ("a torch.Generator", lambda value: isinstance(value, torch.Generator)),
        "sampler": ("an iterable of places in the seeds", _is_iterable),
        "batch_sampler": ("an iterable of lists of places in the seeds", _is_iterable),
    }
    for name, (what, allows) in kinds.items():
        value = options.get(name, 0 if name == "timeout" else None)
        if (value is not None or name == "timeout") and not allows(value):
            raise TypeError(f"{where}: {name} must be {what}, got {shown(value)}. Pass one, or leave it out.")


def _is_iterable(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes))
