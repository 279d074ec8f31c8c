"""What a feature spec says of a key: the kind of its values, how many there are, and what stands for a missing key.

A spec value is any object with `shape` and `dtype`, such as `tf.io.FixedLenFeature`; its `default_value` counts if it
has one that is not None. A record holds only lists of int64 and of float32, so these are the dtypes allowed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from datapipes.base.checks import check_int, dtype_name, shown

INT64, FLOAT32 = "int64", "float32"
MOST_VALUES = 2**24  # of a key in a record


@dataclass(frozen=True)
class KeySpec:
    """A key of a record: `kind` is "int64" or "float32", `width` its number of values in each record.

    `default` holds `width` values for records without the key; None if every record must have it.
    """

    key: str
    kind: str
    width: int
    default: tuple[float | int, ...] | None = None


def key_spec(where: str, feature_spec: Mapping[str, Any], key: str) -> KeySpec:
    """Return what a feature spec says of `key`.

    Raises:
        KeyError: The spec does not have the key.
        TypeError, ValueError: Its value has no shape or dtype, or one that is not allowed.
    """
    if key not in feature_spec:
        raise KeyError(
            f"{where}: feature_spec has no key {key!r}; it has {shown(sorted(feature_spec))}. Add the key to the spec, "
            "or drop it from the keys to load."
        )
    where = f"{where}: feature_spec[{key!r}]"
    value = feature_spec[key]
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise TypeError(
            f"{where} must have a shape and a dtype, got {shown(value)}. Give a tf.io.FixedLenFeature, or any object "
            "with both."
        )
    kind, width = _kind(where, value.dtype), _width(where, value.shape)
    return KeySpec(key, kind, width, _default(where, getattr(value, "default_value", None), kind, width))


def _kind(where: str, dtype: Any) -> str:
    if isinstance(dtype, torch.dtype):
        name = dtype_name(dtype)
    elif isinstance(dtype, (type, np.dtype)):
        name = np.dtype(dtype).name
    else:
        name = str(getattr(dtype, "name", dtype))  # of TensorFlow, or a text
    if name not in (INT64, FLOAT32):
        raise ValueError(
            f"{where}: dtype must be int64 or float32, the numbers that a record can hold, got {shown(dtype)}. Name "
            "the one that was written."
        )
    return name


def _width(where: str, shape: Any) -> int:
    if not isinstance(shape, (int, np.integer, Iterable)):
        raise TypeError(
            f"{where}: shape must be () or whole numbers, got {shown(shape)}. Say how many values there are."
        )
    sizes = [shape] if isinstance(shape, (int, np.integer)) else list(shape)
    return check_int(
        where, "number of values", math.prod(check_int(where, "shape", s, 1) for s in sizes), 1, MOST_VALUES
    )


def _default(where: str, value: Any, kind: str, width: int) -> tuple[float | int, ...] | None:
    if value is None:
        return None
    values = np.asarray(value).reshape(-1)
    if values.dtype.kind not in ("iu" if kind == INT64 else "iuf"):
        raise TypeError(f"{where}: default_value must be {kind}, got {shown(value)}. Give numbers of that kind.")
    if len(values) not in (1, width):
        raise ValueError(
            f"{where}: default_value has {len(values)} values; 1 or {width} are needed. Give as many as shape says."
        )
    if kind == FLOAT32 and bool((np.isfinite(values) & (np.abs(values) > np.finfo(np.float32).max)).any()):
        raise ValueError(f"{where}: default_value {shown(value)} is beyond the largest float32. Give a smaller one.")
    found: Sequence[float | int] = values.tolist()
    return tuple(found) * (width if len(found) == 1 else 1)
