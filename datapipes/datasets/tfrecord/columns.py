"""The columns of an entity: which values of a record go where, and the tensors that they go to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes import _core
from datapipes.datasets.tfrecord.info import SerializedTFRecordInfo, check_entity_key, check_features
from datapipes.datasets.tfrecord.spec import INT64, KeySpec, key_spec
from datapipes.processes.torch_memory import shared_empty


@dataclass(frozen=True)
class Columns:
    """What is known of each key of an entity, in the order of the info."""

    entities: tuple[KeySpec, ...]  # one for nodes, two for edges
    features: tuple[KeySpec, ...]
    labels: tuple[KeySpec, ...]
    feature_dtype: torch.dtype

    def parser(self) -> _core.ExampleParser:
        """Return the parser of these columns."""
        return _core.ExampleParser([(each.key.encode(), each.kind, each.width, each.default) for each in self._all])

    def tensors(self, num_records: int, where: str) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return ids, features and labels for so many records, in shared memory; features and labels may be None.

        Raises:
            MemoryError: Too little memory is left; the message begins with `where`.
        """
        ids_shape = (num_records,) if len(self.entities) == 1 else (len(self.entities), num_records)
        ids = shared_empty(ids_shape, torch.int64, where)
        features = _table(num_records, self.features, self.feature_dtype, where)
        whole = all(each.kind == INT64 for each in self.labels)
        labels = _table(num_records, self.labels, torch.int64 if whole else torch.float32, where)
        return ids, features, labels

    def targets(self, ids: Tensor, features: Tensor | None, labels: Tensor | None) -> list[NDArray[Any]]:
        """Return the arrays that the parser writes to, one for each column, which view the tensors."""
        arrays: list[NDArray[Any]] = [row.unsqueeze(1).numpy() for row in ids.view(len(self.entities), -1)]
        for table, keys in ((features, self.features), (labels, self.labels)):
            if table is not None:
                arrays += [part.numpy() for part in torch.split(table, [each.width for each in keys], dim=1)]
        return arrays

    @property
    def _all(self) -> list[KeySpec]:
        return [*self.entities, *self.features, *self.labels]


def columns_of_spec(where: str, info: SerializedTFRecordInfo) -> Columns:
    """Return the columns of an info that has a spec; an entity key that is not in it has one int64."""
    spec = info.feature_spec
    assert spec is not None
    given = [key_spec(where, spec, key) if key in spec else KeySpec(key, INT64, 1) for key in info.entity_keys]
    named = [key_spec(where, spec, key) for key in (*info.feature_keys, *info.label_keys)]
    return columns_of(where, info, [*given, *named])


def columns_of(where: str, info: SerializedTFRecordInfo, keys: Sequence[KeySpec]) -> Columns:
    """Return the columns of an info; `keys` are those of the entity, then of features, then of labels.

    Raises:
        ValueError: They are not what the info needs.
    """
    num_entities, num_features = len(info.entity_keys), len(info.feature_keys)
    entities, rest = keys[:num_entities], keys[num_entities:]
    for each in entities:
        check_entity_key(where, each)
    check_features(where, rest[:num_features], info.feature_dim, info.feature_dtype)
    return Columns(tuple(entities), tuple(rest[:num_features]), tuple(rest[num_features:]), info.feature_dtype)


def columns_without_records(info: SerializedTFRecordInfo) -> Columns:
    """Return the columns of an info without a spec, if no file has a record: features together have their dim."""
    features = (KeySpec("", INT64, info.feature_dim),) if info.feature_keys else ()
    one = [KeySpec(key, INT64, 1) for key in (*info.entity_keys, *info.label_keys)]
    count = len(info.entity_keys)
    return Columns(tuple(one[:count]), features, tuple(one[count:]), info.feature_dtype)


def _table(num_records: int, keys: tuple[KeySpec, ...], dtype: torch.dtype, where: str) -> Tensor | None:
    if not keys:
        return None
    return shared_empty((num_records, sum(each.width for each in keys)), dtype, where)
