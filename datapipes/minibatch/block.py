"""One hop of a minibatch: a Block over local ids, and a SampledSubgraph with the original ids beside it.

All hops of a minibatch share one array of node ids: the sources of a hop are its first `num_src` entries, the
destinations the first `num_dst`. In a heterogeneous graph there is one such array for each node type, and a hop has a
Block for each edge type. So both classes are views.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.cached import cached_property
from datapipes.base.checks import check_index_tensor, check_pairs

__all__ = ["CSC", "Block", "SampledSubgraph"]

TensorMap = Callable[[Tensor], Tensor]
_M = TypeVar("_M", bound="Movable")


class Movable:
    """Base of objects that consist of tensors, all of which can be moved to a device."""

    __slots__ = ("__weakref__",)  # a dataclass with slots has `weakref_slot` only from Python 3.11 on

    @abstractmethod
    def map_tensors(self: _M, fn: TensorMap) -> _M:
        """Return a copy with `fn` applied to each tensor."""

    def to(self: _M, device: torch.device | str, non_blocking: bool = False) -> _M:
        """Return a copy on `device`; tensors that are there already are shared.

        Raises:
            TypeError: `device` is a dtype or a tensor; ids keep their dtype.
            ValueError: `device` is a CUDA device, and torch has none here; or a tensor has no values.
        """
        where = f"{type(self).__name__}.to"
        if isinstance(device, (torch.dtype, Tensor)):  # Tensor.to takes these too, and would make floats of ids
            kind = "a tensor" if isinstance(device, Tensor) else f"the dtype {device}"
            raise TypeError(
                f"{where}: device must be a device such as 'cpu' or 'cuda:0', got {kind}; ids and counts must keep "
                "their dtype. Convert the features alone: minibatch.replace(node_features={name: rows.to(dtype) for "
                "name, rows in minibatch.node_features.items()})."
            )
        try:
            return self.map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))
        except NotImplementedError as error:
            raise ValueError(
                f"{where}: found a tensor without values, such as one on the device 'meta' ({error}). Give it values "
                "in the stage that makes it."
            ) from error
        except (AssertionError, RuntimeError) as error:
            if not str(device).startswith("cuda") or torch.cuda.is_available():
                raise
            raise ValueError(
                f"{where}: device is {str(device)!r}, but this machine offers no CUDA device to torch "
                f"{torch.__version__}; allowed here: 'cpu'. Use .to('cpu'), or install a CUDA build of torch."
            ) from error


class CSC(NamedTuple):
    """In-edges by destination: column `i` has the in-edges `indices[indptr[i]:indptr[i + 1]]`."""

    indptr: Tensor
    indices: Tensor


@dataclass(frozen=True, eq=False)
class Block(Movable):
    """The bipartite graph of one hop over local ids; the destinations are the first `num_dst` of its sources.

    In a heterogeneous graph a hop has a Block for each edge type (src, rel, dst): its sources are the first `num_src`
    nodes of type src, its destinations the first `num_dst` nodes of type dst.

    Attributes:
        indptr: int64 [num_dst + 1].
        indices: ids [num_edges], each the local id of a source, in [0, num_src).
        num_src: number of source nodes; with types all nodes of type src that were found up to this hop.
        edge_ids: int64 [num_edges] or None; ids of the edges in the whole graph.
    """

    indptr: Tensor
    indices: Tensor
    num_src: int
    edge_ids: Tensor | None = None

    @property
    def num_dst(self) -> int:
        """Number of destination nodes."""
        return int(self.indptr.shape[0]) - 1

    @property
    def num_edges(self) -> int:
        """Number of sampled edges."""
        return int(self.indices.shape[0])

    @cached_property
    def edge_index(self) -> Tensor:
        """int64 [2, num_edges], made at the first read: row 0 has the local id of the source of each edge, row 1 of the
        destination.
        """
        return edges_of([self], with_ids=False)[0]

    def to_sparse(self) -> Tensor:
        """Return the hop as a sparse CSR tensor of float32 ones, [num_dst, num_src]: `block.to_sparse() @ x` sums
        over in-edges.
        """
        return csr_tensor(self.indptr, self.indices, None, self.num_src)

    def map_tensors(self, fn: TensorMap) -> Block:
        """Return a Block with `fn` applied to each tensor."""
        edge_ids = None if self.edge_ids is None else fn(self.edge_ids)
        return Block(fn(self.indptr), fn(self.indices), self.num_src, edge_ids)

    def __repr__(self) -> str:
        edge_ids = ", edge_ids" if self.edge_ids is not None else ""
        return f"Block(num_src={self.num_src}, num_dst={self.num_dst}, num_edges={self.num_edges}{edge_ids})"


def csr_tensor(indptr: Tensor, indices: Tensor, values: Tensor | None, num_columns: int) -> Tensor:
    """Return a sparse CSR tensor of these entries, which are not checked. If `values` is None, all are float32 ones."""
    if values is None:
        values = torch.ones(indices.shape[0], device=indices.device)
    size = (int(indptr.shape[0]) - 1, num_columns)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(indptr, indices.long(), values, size=size, check_invariants=False)


def edges_of(hops: Sequence[Block], *, with_ids: bool = True) -> tuple[Tensor, Tensor | None]:
    """Return (edges, ids) of all hops together. `edges` is int64 [2, E], as `Block.edge_index`; `ids` is int64 [E].

    The destinations of a hop are also destinations of the next hop. So only the in-edges of the new destinations are
    taken from the next hop. `ids` is None if a hop has no edge ids.

    Args:
        hops: the blocks, from the seeds outwards.
        with_ids: False returns None in place of `ids`.
    Raises:
        ValueError: The indptr of a block in host memory does not ascend within its edges.
    """
    edge_ids = [hop.edge_ids for hop in hops if hop.edge_ids is not None] if with_ids else []
    has_ids = len(edge_ids) == len(hops)
    if any(tensor.device.type != "cpu" for hop in hops for tensor in (hop.indptr, hop.indices)):
        return _edges_on_a_device(hops, has_ids)
    as_id = Tensor.int if all(hop.indices.dtype == torch.int32 for hop in hops) else Tensor.long
    edges, ids = _core.csc_to_coo(
        [(hop.indptr.long().contiguous().numpy(), as_id(hop.indices).contiguous().numpy()) for hop in hops],
        [ids.long().contiguous().numpy() for ids in edge_ids] if has_ids else [],
    )
    return torch.from_numpy(edges), torch.from_numpy(ids) if has_ids else None


def _edges_on_a_device(hops: Sequence[Block], has_ids: bool) -> tuple[Tensor, Tensor | None]:
    edges, ids, first = [], [], 0
    for hop in hops:
        begin = int(hop.indptr[first])
        destinations = torch.arange(first, hop.num_dst, device=hop.indptr.device)
        degrees, count = hop.indptr[first:].diff(), hop.num_edges - begin
        columns = torch.repeat_interleave(destinations, degrees, output_size=count)
        edges.append(torch.stack((hop.indices[begin:].long(), columns)))
        ids += [hop.edge_ids[begin:]] if has_ids and hop.edge_ids is not None else []
        first = hop.num_dst
    return torch.cat(edges, dim=1), torch.cat(ids) if has_ids else None


@dataclass(frozen=True, eq=False, repr=False)
class SampledSubgraph:
    """One hop, or one edge type of a hop: the edges over local ids, and the original ids. Nothing is copied from the
    minibatch.

    Attributes:
        block: the edges over local ids.
        node_ids: `input_nodes`; with types, the `input_nodes` of the source type.
        dst_node_ids: the `input_nodes` of the destination type. None: the same as `node_ids`.
    """

    block: Block
    node_ids: Tensor
    dst_node_ids: Tensor | None = None

    @property
    def sampled_csc(self) -> CSC:
        """The hop's edges over local ids, by destination."""
        return CSC(self.block.indptr, self.block.indices)

    @property
    def original_row_node_ids(self) -> Tensor:
        """Ids [num_src] of the sources in the whole graph."""
        return self.node_ids[: self.block.num_src]

    @property
    def original_column_node_ids(self) -> Tensor:
        """Ids [num_dst] of the destinations in the whole graph."""
        return (self.node_ids if self.dst_node_ids is None else self.dst_node_ids)[: self.block.num_dst]

    @property
    def original_edge_ids(self) -> Tensor | None:
        """int64 [num_edges] ids of the edges in the whole graph; None if the sampler does not return them."""
        return self.block.edge_ids

    def exclude_edges(self, edges: Tensor) -> SampledSubgraph:
        """Return the subgraph without the edges between some pairs of nodes; the nodes stay.

        Args:
            edges: int32 or int64 [n, 2], the pairs: ids of source and destination in the whole graph (with types, of
                this edge type). Every sampled edge of a pair is taken out; pairs that are no edges are allowed.
        Raises:
            TypeError, ValueError: `edges` are no pairs of ids, or the subgraph is not in host memory.
        """
        return self._without(excluded_pairs(check_pairs("exclude_edges", "edges", edges)))

    def _without(self, excluded: _core.ExcludedEdges) -> SampledSubgraph:
        """Return the subgraph without the excluded edges. If it has no such edge, return this same object."""
        block = self.block
        if block.indices.device.type != "cpu":
            raise ValueError(
                f"exclude_edges: the blocks must be in host memory, found them on {block.indices.device}. Put copy_to "
                "behind the exclusion."
            )

        def checked(name: str, ids: Tensor) -> Tensor:
            return check_index_tensor("exclude_edges", f"{name} of a block", ids.contiguous())

        local = checked("indices", block.indices)
        sources = checked("nodes", self.original_row_node_ids)
        destinations = checked("nodes", self.original_column_node_ids)
        if not local.dtype == sources.dtype == destinations.dtype:  # a user's sampler made them
            local, sources, destinations = local.long(), sources.long(), destinations.long()
        left = excluded.without(
            checked("indptr", block.indptr).long().numpy(),
            local.numpy(),
            None if block.edge_ids is None else checked("edge_ids", block.edge_ids).long().numpy(),
            sources.numpy(),
            destinations.numpy(),
        )
        if left is None:
            return self
        indptr, kept, ids = left
        indices = torch.from_numpy(kept).to(block.indices.dtype)
        edge_ids = None if ids is None else torch.from_numpy(ids)
        return replace(self, block=Block(torch.from_numpy(indptr), indices, block.num_src, edge_ids))

    def __repr__(self) -> str:
        return f"SampledSubgraph({self.block!r})"


def excluded_pairs(pairs: Tensor) -> _core.ExcludedEdges:
    """Return the edges to exclude as an object of the C++ core.

    Args:
        pairs: [n, 2], original ids of source and destination.
    """
    sources, destinations = pairs.t().long().contiguous()
    return _core.ExcludedEdges(sources.numpy(), destinations.numpy())
