"""SparseRows: rows with few values that are not zero. In a minibatch, the rows of a SparseFeature are SparseRows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from datapipes.base.checks import check_within, dtype_name
from datapipes.minibatch.block import Movable, TensorMap, csr_tensor

__all__ = ["SparseRows"]


@dataclass(frozen=True, eq=False)
class SparseRows(Movable):
    """Rows [n, num_columns], given by their entries: row `i` has `values[indptr[i]:indptr[i + 1]]` in the columns
    `indices[indptr[i]:indptr[i + 1]]`, and zeros in the other columns.

    Attributes:
        indptr: int64 [n + 1].
        indices: int32 or int64 [num_entries], each in [0, num_columns).
        num_columns: number of columns, such as the words of a vocabulary.
        values: [num_entries] of any dtype. None: all values are 1.
    """

    indptr: Tensor
    indices: Tensor
    num_columns: int
    values: Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """[n, num_columns], as a dense tensor of these rows would have."""
        return torch.Size((int(self.indptr.shape[0]) - 1, self.num_columns))

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the values; float32 if `values` is None."""
        return torch.float32 if self.values is None else self.values.dtype

    @property
    def device(self) -> torch.device:
        """The device on which the tensors lie."""
        return self.indices.device

    def csr(self) -> Tensor:
        """Return the rows as a sparse CSR tensor [n, num_columns]; `rows.csr() @ weight` is the dense product.

        The entries of a row keep their order. torch expects ascending columns without repeats, and does not check.
        """
        return csr_tensor(self.indptr, self.indices, self.values, self.num_columns)

    def bag(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the arguments of a `torch.nn.EmbeddingBag`, (input, offsets, per_sample_weights), for
        `embedding(*rows.bag())`.

        per_sample_weights are the values. They must have the dtype of the embedding, and its mode must be "sum". If
        they are None, all values are 1, and every mode is allowed.
        """
        return self.indices, self.indptr[:-1], self.values

    def map_tensors(self, fn: TensorMap) -> SparseRows:
        """Return SparseRows with `fn` applied to each tensor."""
        values = None if self.values is None else fn(self.values)
        return SparseRows(fn(self.indptr), fn(self.indices), self.num_columns, values)

    def __getitem__(self, ids: Tensor) -> SparseRows:
        """Return the rows at `ids`, int64 [n] on the same device; any order, repeats allowed."""
        counts = self.indptr.diff()[ids]
        indptr = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
        numbers = torch.arange(int(indptr[-1]), device=ids.device)
        places = torch.repeat_interleave(self.indptr[ids] - indptr[:-1], counts) + numbers
        values = None if self.values is None else self.values[places]
        return SparseRows(indptr, self.indices[places], self.num_columns, values)

    def padded(self, ids: Tensor) -> Tensor:
        """Return the columns of the rows at `ids`, int64 [n], as a tensor [n, entries of the longest of them]. Shorter
        rows end with -1.
        """
        rows = self[ids]
        counts = rows.indptr.diff()
        is_entry = torch.arange(int(counts.max()) if len(counts) else 0) < counts[:, None]
        return rows.indices.new_full(is_entry.shape, -1).masked_scatter_(is_entry, rows.indices)

    def _parts(self) -> dict[str, Tensor]:
        """Return the tensors of these rows by the names that messages use: "indptr", "indices" and so on."""
        parts = {"indptr": self.indptr, "indices": self.indices, "num_columns": torch.tensor(self.num_columns)}
        return parts if self.values is None else {**parts, "values": self.values}

    def __repr__(self) -> str:
        entries = f"{self.indices.shape[0]} entries of {dtype_name(self.dtype)}"
        return f"SparseRows({list(self.shape)}, {entries})"


def check_entries(where: str, indptr: Tensor, indices: Tensor, num_columns: int) -> None:
    """Raise unless `indptr`, int64, and `indices` are rows in CSR form, with columns in [0, num_columns)."""
    num_entries = int(indices.shape[0])
    ends = indptr[[0, -1]].tolist() if indptr.shape[0] > 0 else []
    if ends != [0, num_entries]:
        raise ValueError(
            f"{where}: the first and the last entry of indptr are {ends}; they must be [0, {num_entries}], where "
            f"{num_entries} is the length of indices. Pass the offset of each row, and {num_entries} as the last."
        )
    down = (indptr[1:] < indptr[:-1]).nonzero()[:1].flatten().tolist()
    if down:
        raise ValueError(
            f"{where}: indptr[{down[0] + 1}] is below indptr[{down[0]}]; offsets must not descend. Rebuild them."
        )
    check_within(where, "indices", indices, num_columns, "Correct them, or num_columns.")
