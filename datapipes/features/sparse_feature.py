"""SparseFeature: rows with few values that are not zero, such as bags of words, stored by their entries.

The entries of a row are laid out as the in-edges of a node in CSC, so the kernel that draws all in-edges of nodes also
reads the rows of a minibatch.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import as_tensor, check_index_tensor, check_int, check_within, shown
from datapipes.base.rows import byte_rows, take_rows
from datapipes.base.threads import num_threads
from datapipes.features.feature import Feature
from datapipes.minibatch import SparseRows
from datapipes.minibatch.sparse_rows import check_entries

__all__ = ["SparseFeature"]

_WHERE = "SparseFeature"


class SparseFeature(Feature):
    """Rows [count, num_columns] in CSR form, in tensors or arrays in host memory.

    The arrays are viewed, so they may be memory-mapped. A minibatch has the rows as SparseRows, which give a sparse CSR
    tensor by `rows.csr()`, or the arguments of `torch.nn.EmbeddingBag` by `rows.bag()`. Their bytes grow with their
    entries: workers, servers and copies carry no zeros.

    Args:
        indptr: int64 [count + 1]; the entries of row `i` are `indptr[i]:indptr[i + 1]`. int32 is copied to int64.
        indices: int32 or int64 [num_entries], the column of each entry. Minibatches keep this dtype.
        values: [num_entries] of any dtype; None: all are 1, and nothing is stored for them.
        num_columns: number of columns.
    Raises:
        TypeError: An argument has another dtype.
        ValueError: indptr does not begin at 0, descends, or does not end at the number of entries; or there is not one
            value for each entry.
        IndexError: A column is not in [0, num_columns).
    Cost: indptr and indices are read once.

    Attributes:
        rows: all rows, as SparseRows.
    """

    def __init__(
        self,
        indptr: Tensor | NDArray[Any],
        indices: Tensor | NDArray[Any],
        values: Tensor | NDArray[Any] | None = None,
        *,
        num_columns: int,
    ) -> None:
        offsets = check_index_tensor(_WHERE, "indptr", indptr).long()
        columns = check_index_tensor(_WHERE, "indices", indices)
        check_int(_WHERE, "num_columns", num_columns, 0)
        check_entries(_WHERE, offsets, columns, num_columns)
        entries = None if values is None else as_tensor(_WHERE, "values", values)
        if entries is not None:
            if entries.shape != columns.shape or entries.device.type != "cpu":
                raise ValueError(
                    f"{_WHERE}: values has shape {list(entries.shape)} on {entries.device}; it must have shape "
                    f"{list(columns.shape)}, as indices have, in host memory. Pass the values of the same matrix."
                )
            entries = entries.resolve_conj().resolve_neg().contiguous()
        self.rows = SparseRows(offsets, columns, int(num_columns), entries)

    @classmethod
    def from_scipy(cls, matrix: Any) -> SparseFeature:
        """Return a SparseFeature with the rows of a scipy sparse matrix. Repeated entries are added up, and columns
        ascend in each row.

        Raises:
            TypeError: `matrix` is no scipy sparse matrix.
        """
        if not hasattr(matrix, "tocsr") or len(matrix.shape) != 2:
            raise TypeError(
                f"{_WHERE}.from_scipy: matrix must be a scipy sparse matrix, got {shown(matrix)}. Pass one."
            )
        rows = matrix.tocsr()
        if not rows.has_canonical_format:
            rows = rows.copy()
            rows.sum_duplicates()
        return cls(rows.indptr, rows.indices, rows.data, num_columns=rows.shape[1])

    @classmethod
    def from_tensor(cls, tensor: Tensor) -> SparseFeature:
        """Return a SparseFeature with the rows of a sparse CSR tensor [count, num_columns] in host memory. The tensor
        is viewed, not copied.

        Raises:
            TypeError: `tensor` is no sparse CSR tensor of 2 dimensions.
        """
        if not isinstance(tensor, Tensor) or tensor.layout is not torch.sparse_csr or tensor.ndim != 2:
            form = f"layout {tensor.layout}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(
                f"{_WHERE}.from_tensor: tensor must be a sparse CSR tensor of 2 dimensions, got {form}. Call "
                ".to_sparse_csr()."
            )
        return cls(tensor.crow_indices(), tensor.col_indices(), tensor.values(), num_columns=tensor.shape[1])

    def read(self, ids: Tensor) -> SparseRows:  # type: ignore[override]  # sparse rows are no tensor, and fit no `out`
        """Return the rows at `ids`, int32 or int64 [n] in host memory, repeats allowed.

        The bits are the same for any number of threads.

        Raises:
            IndexError: An id is not in [0, count).
            MemoryError: There is no room for the rows.
            ValueError: An array was overwritten, and now holds columns or offsets outside the feature.
        """
        wanted = check_index_tensor(_WHERE, "ids", ids).long()
        rows, threads = self.rows, num_threads()
        try:
            indptr, indices, places = _core.sample_hop(
                rows.indptr.numpy(),
                rows.indices.numpy(),
                wanted.numpy(),
                fanout=-1,
                replace=False,
                key=0,
                num_sources=rows.num_columns,
                want_places=rows.values is not None,
                num_threads=threads,
            )
        except IndexError:
            remedy = "Check the ids against the number of rows of the feature."
            check_within(_WHERE, "id", wanted, self.count, remedy)
            raise
        except MemoryError as error:
            raise MemoryError(
                f"{_WHERE}: the entries of {len(wanted)} rows do not fit into memory. Make minibatches smaller."
            ) from error
        except ValueError as error:
            raise ValueError(
                f"{_WHERE}: indptr or indices were changed after the feature was built, and are out of range now. "
                "Leave them unchanged, or build the feature anew."
            ) from error
        values = rows.values
        if values is not None:
            values = take_rows(values, byte_rows(values), torch.from_numpy(places), threads)
        return SparseRows(torch.from_numpy(indptr), torch.from_numpy(indices), rows.num_columns, values)

    def bytes_for(self, ids: Tensor) -> int:
        """Return the bytes of the SparseRows at `ids`: those of indptr, int64 [n + 1], and of the entries."""
        inside = ids[(ids >= 0) & (ids < self.count)].long()
        entries = int((self.rows.indptr[inside + 1] - self.rows.indptr[inside]).sum())
        of_value = 0 if self.rows.values is None else self.rows.values.itemsize
        return 8 * (int(ids.shape[0]) + 1) + entries * (self.rows.indices.itemsize + of_value)

    @property
    def count(self) -> int:
        return self.rows.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows.num_columns,)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the values; float32 if the feature was built without values."""
        return self.rows.dtype

    def __repr__(self) -> str:
        return f"SparseFeature({self.rows!r})"
