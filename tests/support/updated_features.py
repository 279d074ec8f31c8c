"""Features that tests update, in every form; their caches; and the plain twin of a stored value."""

import errno

import numpy as np
import pytest
import torch

import datapipes as dp
from datapipes import _core

COUNT, MOST = 30, 50.0
STORED = [None, "float16", "bfloat16", "int8"]
KINDS = ["tensor", "npy", "npy direct", "rows", "rows direct"]
FORMS = [
    *(("tensor", None), ("tensor", "int8"), ("rows direct", "int8"), ("npy", None), ("npy direct", None)),
    *(("rows", "float16"), ("rows", "bfloat16"), ("rows", None), ("rows", "int8"), ("rows direct", None)),
    *(("rows direct", "float16"), ("tensor", "float16"), ("tensor", "bfloat16")),
]
POLICIES = [None, "sieve", "lru", "static"]
EVERYTHING = torch.arange(COUNT)


def values_of(count, shape, seed, most=MOST):
    return (torch.rand((count, *shape), generator=torch.Generator().manual_seed(seed)) * 2 - 1) * most


def first_rows(shape):
    """Rows whose largest magnitude is MOST in each column, so that the scale of int8 is known."""
    rows = values_of(COUNT, shape, 0)
    rows[0] = MOST
    return rows


def as_stored(values, stored_as):
    """The plain twin of a stored value."""
    if stored_as == "int8":
        scale = torch.tensor(MOST) / 127
        return ((values / scale).round() + 0.0) * scale  # int8 has no -0
    return values if stored_as is None else values.to(getattr(torch, stored_as)).float()


def made(kind, folder, rows, stored_as=None):
    if kind == "tensor":
        return dp.TensorFeature(rows.clone(), stored_as=stored_as)
    form, _, direct = kind.partition(" ")
    path = folder / f"x.{form}"
    if form == "npy":
        assert stored_as is None
        np.save(path, rows.numpy())
    else:
        dp.DiskFeature.write(path, rows, stored_as=stored_as)
    try:
        return dp.DiskFeature(path, direct=bool(direct))
    except OSError as error:
        if direct and error.errno == errno.EINVAL:
            pytest.skip("this disk cannot be read past the page cache")
        raise


def cached(feature, policy, slots=8, **options):
    row_bytes = torch.Size(feature.shape).numel() * feature._stored_dtype.itemsize
    counts = torch.arange(feature.count) % 3 if policy == "static" else None
    of_slots, of_ids = _core.RowCache.bytes_of_slot(row_bytes), _core.RowCache.bytes_of_id(policy)
    return dp.CPUCachedFeature(feature, slots * of_slots + feature.count * of_ids, policy, counts=counts, **options)


def same_bits(one, other):
    """Whether tensors on any devices have equal dtypes, shapes and bits."""
    one, other = one.cpu().contiguous(), other.cpu().contiguous()
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return one.numel() == 0 or torch.equal(one.view(torch.uint8), other.view(torch.uint8))
