"""Features of padding: ids of -1, which `pad` adds to a minibatch, have rows of zeros.

No feature knows of padding, so this holds for every kind of feature, a user's too; and any other wrong id is still an
error. Most features are asked for the real ids alone, and rows of zeros are added. That copies all rows, so a tensor
in memory, or one that a GPU reads, is asked for its first row too, in the place of padding, which is then set to zeros.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datapipes.base.rows import bits_of
from datapipes.features.feature_store import FeatureRequest, FeatureStore
from datapipes.features.tensor_feature import TensorFeature
from datapipes.minibatch import SparseRows
from datapipes.minibatch.padding import NO_ID


def ids_to_read(store: FeatureStore, request: FeatureRequest) -> Tensor:
    """Return the ids for which `store` is asked, given a request whose ids have padding."""
    ids = request[3]
    return ids.masked_fill(ids == NO_ID, 0) if _is_written_over(store, request) else ids[ids != NO_ID]


def with_padding(store: FeatureStore, requests: list[FeatureRequest], all_rows: list[Any]) -> list[Any]:
    """Return the rows for all `requests`, whose ids have padding, given the rows at the ids of `ids_to_read`."""
    return [_with_zeros(store, request, rows) for request, rows in zip(requests, all_rows, strict=True)]


def _with_zeros(store: FeatureStore, request: FeatureRequest, rows: Any) -> Any:
    ids = request[3]
    is_padding = ids == NO_ID
    if isinstance(rows, SparseRows):
        counts = rows.indptr.new_zeros(ids.shape[0])
        counts[~is_padding] = rows.indptr.diff()
        indptr = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
        return SparseRows(indptr, rows.indices, rows.num_columns, rows.values)
    if not _is_written_over(store, request):
        filled = rows.new_zeros((ids.shape[0], *rows.shape[1:]))
        bits_of(filled)[~is_padding] = bits_of(rows)
        return filled
    if rows.device.type == "cpu":
        bits_of(rows)[is_padding] = 0
    else:  # a mask as an index would wait for the device
        bits_of(rows).masked_fill_(is_padding.view(-1, *[1] * (rows.ndim - 1)), 0)
    return rows


def _is_written_over(store: FeatureStore, request: FeatureRequest) -> bool:
    """Return whether padding is read as row 0, and then set to zeros: the rows are new memory, and row 0 exists. What a
    user's store or feature returns may not be written.
    """
    domain, type_, name, ids = request
    feature, kind = store[domain, type_, name], type(store)
    is_own_store = kind.read_many is FeatureStore.read_many and kind.read is FeatureStore.read
    reads_memory = (is_own_store and type(feature) is TensorFeature) or ids.device.type != "cpu"
    return reads_memory and feature.count > 0
