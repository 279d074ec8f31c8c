"""Load one entity of a graph: its nodes, its edges, its positive or its negative labels.

The types of the entity are loaded one after another. This runs in a process of its own (children.py).

Edge weights are read as labels. So weights are in a tensor of their own, and features need not be copied to leave the
weights out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from datapipes.base.errors import add_note
from datapipes.base.log import logger
from datapipes.base.types import type_text
from datapipes.datasets.tfrecord.data_loader import TFDatasetOptions
from datapipes.datasets.tfrecord.info import SerializedTFRecordInfo
from datapipes.processes.ranks import RankError

__all__ = ["TFRecordLoadError"]

WHERE = "load_torch_tensors_from_tf_record"


class TFRecordLoadError(RankError):
    """A graph was not loaded from its TFRecords. The processes that loaded it have ended, and their memory is free.

    The message includes `failures`, with the tracebacks.

    Attributes:
        failures: {entity: text} for each of "node", "edge", "positive_label" and "negative_label" that failed by
            itself. The text has the traceback of its process, or the signal that killed it.
        failed_ranks: {rank: text that says how it failed}, if this rank stopped because other ranks failed.
    """

    def __init__(
        self, message: str, failures: Mapping[str, str] | None = None, failed_ranks: Mapping[int, str] | None = None
    ) -> None:
        super().__init__(message, failed_ranks)
        self.failures: dict[str, str] = dict(failures or {})
        self.args = message, self.failures, self.failed_ranks  # pickling passes these to the constructor

    @classmethod
    def of_entities(cls, rank: int, failures: Mapping[str, str], stopped: list[str]) -> TFRecordLoadError:
        """Return the error for the entities that failed, {entity: text}. `stopped` names those that were ended then."""
        also = f" It has stopped the others: {', '.join(stopped)}." if stopped else ""
        texts = [f"{entity}: {text}" for entity, text in failures.items()]
        head = f"{WHERE}: rank {rank} could not load {', '.join(failures)}.{also} Correct what the texts below name."
        return cls("\n\n".join([head, *texts]), failures)


Loaded = dict[str, dict[Any, Tensor]]  # {"ids", "features", "labels" or "weights": {type or None: tensor}}


@dataclass(frozen=True)
class EntityTask:
    """What a process needs to know to load one entity of a graph.

    Attributes:
        entity: "node", "edge", "positive_label" or "negative_label".
        infos: {type: info}; the type is None in a graph without types.
        options: how the files are read.
        loader: a TFRecordDataLoader, or another object with the method `load_as_torch_tensors`.
        rank: the rank of this process, for the log.
        weight_keys: {edge type: key of its weights}, for types with weights.
    """

    entity: str
    infos: Mapping[Any, SerializedTFRecordInfo]
    options: TFDatasetOptions
    loader: Any
    rank: int
    weight_keys: Mapping[Any, str] = field(default_factory=dict)


def load_entity(task: EntityTask, begins: Callable[[str], None]) -> Loaded:
    """Load the nodes or the edges of `task`, one type after another, and return {field: {type: tensor}}.

    The fields are "ids", "features", "labels" and "weights". Types that do not have a field are left out of it.

    Args:
        begins: called before each type with a text that names the type and its folder.
    """
    loaded: Loaded = {"ids": {}, "features": {}, "labels": {}, "weights": {}}
    for kind, info in task.infos.items():
        place = f"{place_text(task.entity, kind)} from {info.folder}"
        begins(place)
        began = time.monotonic()
        weight_key = task.weight_keys.get(kind)
        try:
            result = task.loader.load_as_torch_tensors(_info_to_load(task.entity, info, weight_key), task.options)
        except ValueError as error:
            if weight_key is not None and info.feature_spec is None:
                add_note(
                    error,
                    f"The weight {weight_key!r} was taken for one value of a record. So {info.feature_dim - 1} of the "
                    f"{info.feature_dim} columns of feature_dim are left for the other feature keys.",
                )
            raise
        ids, features = result
        tensors = {"ids": ids, "features": features, "labels": getattr(result, "labels", None)}
        if weight_key is not None:
            tensors["weights"] = weights_of(weight_key, tensors.pop("labels"))
        for name, tensor in tensors.items():
            if tensor is not None:
                loaded[name][kind] = tensor
        shapes = ", ".join(f"{name} {list(rows.shape)}" for name, rows in tensors.items() if rows is not None)
        seconds = time.monotonic() - began
        logger.info("%s: rank %d loaded %s: %s in %.2f s", WHERE, task.rank, place, shapes, seconds)
    return loaded


def place_text(entity: str, kind: Any) -> str:
    """Return how messages name the type `kind` of an entity: "edge user:buys:item", or "edge" without types."""
    return entity if kind is None else f"{entity} {type_text(kind)}"


def _info_to_load(entity: str, info: SerializedTFRecordInfo, weight_key: str | None) -> SerializedTFRecordInfo:
    if entity.endswith("label") and info.feature_keys:
        return replace(info, feature_keys=(), feature_dim=0)  # a label is a pair of nodes without features
    if weight_key is None:
        return info
    rest = tuple(key for key in info.feature_keys if key != weight_key)
    return replace(info, feature_keys=rest, feature_dim=info.feature_dim - 1, label_keys=(weight_key,))


def weights_of(key: str, column: Tensor | None) -> Tensor:
    """Return `column` [E, 1], the values of a weight, as float32 [E]. A float32 column is not copied.

    Raises:
        ValueError: There is not one number for each edge, or a number does not fit float32.
    """
    if column is None or column.ndim != 2 or column.shape[1] != 1:
        form = "none" if column is None else f"shape {list(column.shape)}"
        raise ValueError(
            f"{WHERE}: the weight {key!r} must be one number for each edge, found {form}. Name a feature of one value "
            "in weight_edge_feat_name."
        )
    weights = column.view(-1).to(torch.float32)
    if not column.is_floating_point() and not torch.equal(weights.to(column.dtype), column.view(-1)):
        raise ValueError(
            f"{WHERE}: the weight {key!r} has whole numbers that float32 cannot hold; they must be within 2**24 of 0. "
            "Write it as float32."
        )
    return weights
