"""load_torch_tensors_from_tf_record: loads the entities of a graph in parallel, with torch.distributed or without."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from datapipes.base.checks import check_bool, check_int, shown
from datapipes.base.log import logger
from datapipes.base.types import EdgeType, check_edge_type, type_text
from datapipes.datasets.tfrecord.children import load_all
from datapipes.datasets.tfrecord.data_loader import TFDatasetOptions, TFRecordDataLoader, files_of
from datapipes.datasets.tfrecord.entity_task import WHERE, EntityTask, Loaded, TFRecordLoadError, place_text
from datapipes.datasets.tfrecord.info import SerializedGraphMetadata, SerializedTFRecordInfo
from datapipes.datasets.tfrecord.loaded import DEFAULT_HOMOGENEOUS_EDGE_TYPE, LoadedGraphTensors
from datapipes.datasets.tfrecord.spec import key_spec
from datapipes.processes.ranks import Ranks

__all__ = ["load_torch_tensors_from_tf_record"]

_DEFAULT_OPTIONS = TFDatasetOptions()
_ENTITIES = ("edge", "node", "positive_label", "negative_label")  # in the order in which they are loaded one by one
_FIELDS = {
    ("node", "ids"): "node_ids",
    ("node", "features"): "node_features",
    ("node", "labels"): "node_labels",
    ("edge", "ids"): "edge_index",
    ("edge", "features"): "edge_features",
    ("edge", "weights"): "edge_weights",
    ("positive_label", "ids"): "positive_label",
    ("negative_label", "ids"): "negative_label",
}


def load_torch_tensors_from_tf_record(
    tf_record_dataloader: Any,
    serialized_graph_metadata: SerializedGraphMetadata,
    should_load_tensors_in_parallel: bool,
    rank: int = 0,
    node_tf_dataset_options: TFDatasetOptions = _DEFAULT_OPTIONS,
    edge_tf_dataset_options: TFDatasetOptions = _DEFAULT_OPTIONS,
    weight_edge_feat_name: str | Mapping[EdgeType, str] | None = None,
    *,
    rank_timeout_s: float = 60.0,
) -> LoadedGraphTensors:
    """Load the tensors of a graph from TFRecords, each entity in a process of its own.

    The processes are started by a fork server, so they inherit nothing from this process. They read straight into
    memory that this process then maps too, a memfd for each tensor: no tensor exists twice. The memory passes to
    further processes without a copy, as with `share_memory`, and is freed with the last tensor in it. A script that
    calls this needs `if __name__ == "__main__":`, since the processes are not forked.

    If torch.distributed is initialised, all ranks must call this. They return together, or all of them raise.

    Args:
        tf_record_dataloader: a TFRecordDataLoader, or any object with the method `load_as_torch_tensors` that can be
            pickled.
        serialized_graph_metadata: where the records of each entity lie.
        should_load_tensors_in_parallel: True: all entities are loaded at once, and share the threads of torch in
            proportion to the bytes of their files. False: edges, nodes, positive and negative labels are loaded one
            after another, each with all threads.
        rank: the rank of this process, for log and errors. If torch.distributed has several ranks, `rank` is ignored.
        node_tf_dataset_options: how the records of nodes are read.
        edge_tf_dataset_options: how the records of edges and of labels are read.
        weight_edge_feat_name: a feature key with one value in each record. It becomes `edge_weights`, and is left out
            of `edge_features`. For several edge types: {edge type: key}.
        rank_timeout_s: a rank counts as failed after this many seconds without a heartbeat. All ranks must also call
            this within this time. A rank that is starting its fork server, before its first load, learns of a failure
            some seconds later.
    Returns:
        The tensors of this rank's share of the files; see LoadedGraphTensors. Features of labels are not read.
    Raises:
        TFRecordLoadError: Entities or other ranks have failed. The message names each entity, with the traceback of its
            process, or the signal that killed it. All processes have ended, and their memory is free.
        TypeError, ValueError, KeyError: An argument is not allowed; or two ranks load the same share, or ranks load
            different files.
        RuntimeError: This process may not start others, or a child could not import the main module.
        OSError: Too few file descriptors are left. A tensor takes two.
    """
    loaded: dict[str, Loaded] = {}
    began = time.monotonic()
    try:
        texts: Any = {"failed": "failed to load", "absent": "has not begun this load"}
        with Ranks(WHERE, rank_timeout_s, **texts, error=TFRecordLoadError) as ranks:
            check_int(WHERE, "rank", rank, 0)
            rank = ranks.rank if ranks.size > 1 else rank
            check_bool(WHERE, "should_load_tensors_in_parallel", should_load_tensors_in_parallel)
            if not isinstance(serialized_graph_metadata, SerializedGraphMetadata):
                raise TypeError(
                    f"{WHERE}: serialized_graph_metadata must be a SerializedGraphMetadata, got "
                    f"{shown(serialized_graph_metadata)}. Make one."
                )
            _check_reading(tf_record_dataloader, node_tf_dataset_options, edge_tf_dataset_options)
            weight_keys = _weight_keys(serialized_graph_metadata, weight_edge_feat_name)
            tasks = []
            for entity in _ENTITIES:
                infos = _by_type(getattr(serialized_graph_metadata, f"{entity}_entity_info"))
                for kind, info in infos.items() if entity != "node" else ():
                    if info.label_keys:
                        raise ValueError(
                            f"{WHERE}: {place_text(entity, kind)} has label_keys {list(info.label_keys)}; only nodes "
                            "have labels. Load them as features, with feature_keys."
                        )
                options = node_tf_dataset_options if entity == "node" else edge_tf_dataset_options
                keys = weight_keys if entity == "edge" else {}
                if infos:
                    tasks.append(EntityTask(entity, infos, options, tf_record_dataloader, rank, keys))
            begun = [task.entity for task in tasks]
            left = ", ".join(f"no {entity}" for entity in _ENTITIES if entity not in begun)
            logger.info("%s: rank %d begins: %s", WHERE, rank, ", ".join([*begun, left] if left else begun))
            loaded = load_all(tasks, in_parallel=should_load_tensors_in_parallel, go_on=ranks.go_on)
            _refuse_other_shares(ranks, tf_record_dataloader, tasks)  # last: no rank waits before it loads
    except BaseException:
        loaded.clear()  # or the traceback, which refers to this frame, would keep the memory
        raise
    graph = _graph_of(loaded)
    graph._rank = int(getattr(tf_record_dataloader, "rank", ranks.rank))
    graph._num_ranks = int(getattr(tf_record_dataloader, "world_size", ranks.size))
    num_bytes = sum(tensor.nbytes for tensor in graph.tensors())
    logger.info("%s: rank %d has all, %d bytes, in %.2f s", WHERE, rank, num_bytes, time.monotonic() - began)
    return graph


def _refuse_other_shares(ranks: Ranks, loader: Any, tasks: Sequence[EntityTask]) -> None:
    """Raise ValueError unless the ranks load different shares of the same files.

    Not checked: ranks that all load all files (world_size 1), and loaders of other classes than TFRecordDataLoader.
    Names of files are compared, but not folders, which may differ between machines.
    """
    shares = loader if isinstance(loader, TFRecordDataLoader) else TFRecordDataLoader(0, 1)
    if ranks.agreed(shares.world_size, partial(_same, "another world_size")) == 1 or ranks.size == 1:
        return
    ranks.agreed(shares.rank, _distinct)
    names = [
        (task.entity, str(kind), [file.name for file in files_of(WHERE, info)])
        for task in tasks
        for kind, info in task.infos.items()
    ]
    digest = hashlib.blake2b(json.dumps(names).encode(), digest_size=8).digest()
    ranks.agreed(int.from_bytes(digest, "big"), partial(_same, "other files"))


def _same(difference: str, numbers: list[int]) -> int:
    for rank, number in enumerate(numbers):
        if number != numbers[0]:
            raise ValueError(
                f"{WHERE}: rank {rank} has {difference} than rank 0; all ranks must load shares of one set of files. "
                "Give them the same metadata, and loaders that differ in rank only."
            )
    return numbers[0]


def _distinct(numbers: list[int]) -> int:
    for rank, number in enumerate(numbers):
        if (first := numbers.index(number)) < rank:
            raise ValueError(
                f"{WHERE}: ranks {first} and {rank} both load the share {number}, so another share is missing. Give "
                "each rank a loader of its own number: TFRecordDataLoader(rank, world_size)."
            )
    return 0


def _check_reading(loader: Any, *all_options: Any) -> None:
    if not callable(getattr(loader, "load_as_torch_tensors", None)):
        raise TypeError(
            f"{WHERE}: tf_record_dataloader must be a TFRecordDataLoader, or have its method load_as_torch_tensors, "
            f"got {shown(loader)}. Make one."
        )
    for name, options in zip(("node", "edge"), all_options, strict=True):
        if not isinstance(options, TFDatasetOptions):
            raise TypeError(
                f"{WHERE}: {name}_tf_dataset_options must be TFDatasetOptions, got {shown(options)}. Make them."
            )


def _by_type(infos: Any) -> dict[Any, SerializedTFRecordInfo]:
    return {} if infos is None else dict(infos) if isinstance(infos, Mapping) else {None: infos}


def _weight_keys(metadata: SerializedGraphMetadata, weights: Any) -> dict[Any, str]:
    """Return {edge type or None: feature key of its weights} from `weights`, which is a key, {edge type: key} or None.

    None gives {}. Keys and edge types are checked against `metadata`.
    """
    infos = _by_type(metadata.edge_entity_info)
    if weights is None:
        return {}
    if isinstance(weights, str):
        if len(infos) > 1:
            raise ValueError(
                f"{WHERE}: weight_edge_feat_name is {weights!r}, and there are {len(infos)} edge types; one key does "
                "not say which of them have it. Give a dict {edge type: key}."
            )
        keys: dict[Any, Any] = dict.fromkeys(infos, weights)
    elif isinstance(weights, Mapping):
        keys = {check_edge_type(f"{WHERE}, weight_edge_feat_name", kind): key for kind, key in weights.items()}
        if None in infos and DEFAULT_HOMOGENEOUS_EDGE_TYPE in keys:
            keys[None] = keys.pop(DEFAULT_HOMOGENEOUS_EDGE_TYPE)
    else:
        raise TypeError(
            f"{WHERE}: weight_edge_feat_name must be a str, a dict {{edge type: str}} or None, got {shown(weights)}. "
            "Name a feature key."
        )
    for kind, key in keys.items():
        if kind not in infos and None in infos:
            raise ValueError(
                f"{WHERE}: weight_edge_feat_name names the edge type {type_text(kind)}, and the graph has no types. "
                "Give the key alone, as a str."
            )
        if kind not in infos:
            raise ValueError(
                f"{WHERE}: weight_edge_feat_name names the edge type {type_text(kind)}; edge_entity_info has "
                f"{shown([type_text(edge_type) for edge_type in infos])}. Name one of these."
            )
        _check_weight(place_text("edge", kind), infos[kind], key)
    return keys


def _check_weight(place: str, info: SerializedTFRecordInfo, key: Any) -> None:
    if key not in info.feature_keys:
        raise ValueError(
            f"{WHERE}: weight_edge_feat_name of {place} is {shown(key)}; its feature_keys are "
            f"{shown(list(info.feature_keys))}. Name one of these, or add the key and count it in feature_dim."
        )
    if info.feature_spec is not None and (width := key_spec(WHERE, info.feature_spec, key).width) != 1:
        raise ValueError(
            f"{WHERE}: the weight {key!r} of {place} has {width} values in a record; one is needed. Name another key."
        )


def _graph_of(loaded: Mapping[str, Loaded]) -> LoadedGraphTensors:
    fields: dict[str, Any] = dict.fromkeys(_FIELDS.values())
    for (entity, name), field in _FIELDS.items():
        by_type = loaded.get(entity, {}).get(name, {})
        fields[field] = by_type.get(None, by_type or None)
    return LoadedGraphTensors(**fields)
