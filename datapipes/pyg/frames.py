"""TensorFrames for the encoders of PyTorch Frame, from the features of a data set of tables and of its minibatches.

Numbers, booleans, categories, lists and rows that a function made become columns; times and the masks NAME_missing do
not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.errors import not_installed
from datapipes.datasets import Dataset
from datapipes.minibatch import MiniBatch

__all__ = ["column_stats", "tensor_frames"]


def tensor_frames(data: Dataset, minibatch: MiniBatch) -> dict[Any, Any]:
    """Return {node type: torch_frame.TensorFrame} of the node features that a minibatch has.

    A type without such features is left out. Where the feature NAME_missing was fetched too, missing numbers and lists
    are NaN, and missing booleans -1, as missing categories always are; booleans are categories. Columns are in the
    order in which they were fetched.

    Args:
        data: the data set of `datasets.from_tables` whose features the minibatch has.
    Raises:
        ModuleNotFoundError: pytorch_frame is not installed.
        ValueError: The minibatch has no node features by type.
    """
    frame = _torch_frame("tensor_frames")
    features = minibatch.node_features
    if not features or not all(isinstance(key, tuple) for key in features):
        raise ValueError(
            f"tensor_frames: the node features are {shown(features and [*features])}; they must be by type. Chain "
            "fetch_feature with {type: names}."
        )
    columns: dict[Any, dict[Any, dict[str, Tensor]]] = {}
    for (kind, name), rows in features.items():
        column = _column_of(data, kind, name, rows.dtype, rows.shape[1:], frame)
        if column is None:
            continue
        rows = rows.long() if column == frame.categorical else rows.float()
        missing = features.get((kind, f"{name}_missing"))
        if missing is not None and missing.dtype == torch.bool:
            rows = rows.masked_fill(
                missing.view(-1, *[1] * (rows.ndim - 1)), -1 if column == frame.categorical else torch.nan
            )
        columns.setdefault(kind, {}).setdefault(column, {})[name] = rows if column == frame.embedding else rows[:, None]
    return {
        kind: frame.TensorFrame(
            {column: _joined(frame, column, [*by_name.values()]) for column, by_name in by_column.items()},
            {column: [*by_name] for column, by_name in by_column.items()},
        )
        for kind, by_column in columns.items()
    }


def column_stats(data: Dataset) -> dict[Any, dict[str, dict[Any, Any]]]:
    """Return {node type: {column: {torch_frame.data.StatType: value}}}, as the encoders of PyTorch Frame take them.

    Means and deviations are those of the rows of training; categories have a count of 0, since none was taken.
    """
    frame = _torch_frame("column_stats")
    stat = frame.data.StatType
    stats: dict[Any, dict[str, dict[Any, Any]]] = {}
    for (domain, kind, name), feature in data.features.items():
        facts: Mapping[str, Any] = data.metadata.get((domain, kind, name), {})
        column = None if domain == "edge" else _column_of(data, kind, name, feature.dtype, feature.shape, frame)
        if column is None:
            continue
        if column == frame.numerical:
            values: dict[Any, Any] = {stat.MEAN: facts["mean"], stat.STD: facts["std"]}
        elif column == frame.embedding:
            values = {stat.EMB_DIM: feature.shape[0]}
        else:
            names = [*facts.get("categories", (False, True))]
            values = {stat.COUNT: (names, [0] * len(names))}
        stats.setdefault(kind, {})[name] = values
    return stats


def _torch_frame(who: str) -> Any:
    try:
        import torch_frame.data
    except ImportError as error:
        raise not_installed("pytorch_frame", "frame", who) from error
    return torch_frame


def _column_of(data: Dataset, kind: Any, name: str, dtype: torch.dtype, shape: Any, frame: Any) -> Any:
    """Return the stype of a node feature with this dtype and row shape; None if it becomes no column."""
    facts = data.metadata.get(("node", kind, name), {})
    is_mask = name.endswith("_missing") and ("node", kind, name.removesuffix("_missing")) in data.features
    if "categories" in facts or (dtype == torch.bool and not is_mask):
        return frame.categorical if len(shape) == 0 else None
    if len(shape) == 1 and (dtype.is_floating_point or "mean" in facts):  # a list, or what a function made
        return frame.embedding
    return frame.numerical if len(shape) == 0 and "mean" in facts else None


def _joined(frame: Any, column: Any, rows: list[Tensor]) -> Any:
    """Return the rows of the columns of one stype as the feature of a TensorFrame."""
    if column == frame.categorical:
        return torch.cat(rows, 1)
    if column == frame.numerical:
        return torch.cat(rows, 1)
    widths = torch.tensor([0, *(of_column.shape[1] for of_column in rows)])
    values = torch.cat(rows, 1)
    return frame.data.MultiEmbeddingTensor(len(values), len(rows), values, widths.cumsum(0))
