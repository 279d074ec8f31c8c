"""Which values can be times."""

from __future__ import annotations

import torch
from torch import Tensor

TIMES = "integers or floats"
_DTYPES = {
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
}


def are_times(values: Tensor) -> bool:
    """Return whether values are `TIMES`, [n]; floats of less than 16 bits cannot be compared, so they are none."""
    return values.ndim == 1 and values.dtype in _DTYPES
