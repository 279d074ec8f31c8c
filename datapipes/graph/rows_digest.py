"""A digest of the values that a sampler reads of each edge (weights, times) or of each node, row by row.

Which bits it has is stated in csrc/graph/rows_digest.h. It is a sum over rows in any order, so that the digests of the
parts of a graph add up to that of the whole graph: a state can be saved on one machine and resumed over parts.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from datapipes import _core
from datapipes.base.checks import dtype_name
from datapipes.base.threads import num_threads
from datapipes.graph.npy import to_numpy


def rows_digest(values: Tensor, indptr: Tensor | None = None, *, node_ids: Tensor | None = None) -> str:
    """Return the digest "DTYPE:HEX" of values of 1, 2, 4 or 8 bytes each; their bits count. O(number of values).

    Args:
        values: [num_edges] in the order of the rows; or, without `indptr`, [num_nodes].
        indptr: int64 [num_rows + 1], where the values of each row begin.
        node_ids: int64 [num_rows], the node of each row; by default its number. A part gives those of its own nodes.
    """
    high, low = _core.rows_digest(
        None if indptr is None else indptr.numpy(),
        to_numpy(values),
        node_ids=None if node_ids is None else node_ids.numpy(),
        num_threads=num_threads(),
    )
    return _text(dtype_name(values.dtype), high * 2**64 + low)


def sum_of_digests(digests: Iterable[str]) -> str:
    """Return the digest of the whole, given those of its parts; they are of one dtype, and there is at least one."""
    pairs = [digest.split(":") for digest in digests]
    names = {name for name, _ in pairs}
    if len(names) != 1:
        raise ValueError(
            f"rows_digest: the parts hold values of the dtypes {sorted(names)}; all must hold one. Partition the graph "
            "again."
        )
    return _text(names.pop(), sum(int(number, 16) for _, number in pairs))


def _text(dtype: str, number: int) -> str:
    return f"{dtype}:{number % 2**128:032x}"
