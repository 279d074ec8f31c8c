"""What flows between stages: MiniBatch, its Blocks (one hop each) and SampledSubgraphs (the same hops with original
ids).

A stage returns a new minibatch and leaves the one it was given. All hops share one array of node ids: the sources of
a hop are its first `num_src` entries, the destinations the first `num_dst`, so a Block and its SampledSubgraph are
views.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from datapipes.base.codec import Message, digest_message, join_key, split_key
from datapipes.base.rng import RngKey

if TYPE_CHECKING:
    import torch_geometric.data

_Map = Callable[[Tensor], Tensor]
_PLAIN_FIELDS = ("seeds", "labels", "indexes", "compacted_seeds", "input_nodes", "timestamps", "batch")


class CSC(NamedTuple):
    """In-edges by destination: those of column `i` are `indices[indptr[i]:indptr[i + 1]]`."""

    indptr: Tensor
    indices: Tensor


@dataclass(frozen=True, eq=False)
class Block:
    """The bipartite graph of one hop over local ids; the destinations are the first `num_dst` of its sources.

    Attributes:
        indptr: int64 [num_dst + 1].
        indices: ids [num_edges], each the local id of a source, in [0, num_src).
        num_src: number of source nodes.
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
        """int64 [2, num_edges], row 0 the source and row 1 the destination of each edge, as local ids; made when
        first asked for.
        """
        destinations = torch.arange(self.num_dst, device=self.indptr.device)
        columns = torch.repeat_interleave(destinations, self.indptr.diff(), output_size=self.num_edges)
        return torch.stack((self.indices.long(), columns))

    def to_sparse(self) -> Tensor:
        """Return the hop as a sparse CSR tensor of float32 ones, [num_dst, num_src]: `block.to_sparse() @ x` sums
        over in-edges.
        """
        ones = torch.ones(self.num_edges, device=self.indices.device)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
            return torch.sparse_csr_tensor(
                self.indptr, self.indices.long(), ones, size=(self.num_dst, self.num_src), check_invariants=False
            )

    def map_tensors(self, fn: _Map) -> Block:
        """Return a Block with `fn` applied to each tensor."""
        edge_ids = None if self.edge_ids is None else fn(self.edge_ids)
        return Block(fn(self.indptr), fn(self.indices), self.num_src, edge_ids)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Block:
        """Return the Block on `device`."""
        return self.map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def __repr__(self) -> str:
        edge_ids = ", edge_ids" if self.edge_ids is not None else ""
        return f"Block(num_src={self.num_src}, num_dst={self.num_dst}, num_edges={self.num_edges}{edge_ids})"


@dataclass(frozen=True, eq=False, repr=False)
class SampledSubgraph:
    """One hop with the original ids next to the compacted edges; views of a Block and the minibatch's `input_nodes`."""

    block: Block
    node_ids: Tensor

    @property
    def sampled_csc(self) -> CSC:
        """The hop's edges over local ids."""
        return CSC(self.block.indptr, self.block.indices)

    @property
    def original_row_node_ids(self) -> Tensor:
        """Ids [num_src] of the sources in the whole graph."""
        return self.node_ids[: self.block.num_src]

    @property
    def original_column_node_ids(self) -> Tensor:
        """Ids [num_dst] of the destinations in the whole graph."""
        return self.node_ids[: self.block.num_dst]

    @property
    def original_edge_ids(self) -> Tensor | None:
        """int64 [num_edges] ids of the edges in the whole graph, or None when they were not asked for."""
        return self.block.edge_ids

    def __repr__(self) -> str:
        return f"SampledSubgraph({self.block!r})"


@dataclass(slots=True, eq=False)
class MiniBatch:
    """One minibatch on its way through the stages; a field is None until a stage fills it.

    Attributes:
        seeds: ids [n], or [n, 2] pairs, or [n, k]: what the minibatch is built for.
        labels: [n, ...], aligned with the seeds.
        indexes: int64 [n], the query a seed belongs to.
        compacted_seeds: the seeds as local ids, in the shape of `seeds`.
        input_nodes: ids [num_nodes], distinct, in the order of the local ids; the seeds come first.
        blocks: one Block a hop; `blocks[0]` is the input layer, `blocks[-1]` ends at the seeds.
        node_features: {name: [num_nodes, ...]}, rows aligned with `input_nodes`.
        edge_features: one {name: [num_edges, ...]} for each of `blocks`, rows aligned with its edges.
        timestamps: [n], the time of each seed.
        batch: [num_nodes], the seed whose tree a node belongs to (disjoint sampling).
        epoch, index: the position of this minibatch; with the seed they decide all its content.
        rng: random key of the stage that is looking at it; set by the runtime, not part of the message.
    """

    seeds: Tensor | None = None
    labels: Tensor | None = None
    indexes: Tensor | None = None
    compacted_seeds: Tensor | None = None
    input_nodes: Tensor | None = None
    blocks: list[Block] | None = None
    node_features: dict[str, Tensor] | None = None
    edge_features: list[dict[str, Tensor]] | None = None
    timestamps: Tensor | None = None
    batch: Tensor | None = None
    epoch: int = 0
    index: int = 0
    rng: RngKey | None = None

    @property
    def num_layers(self) -> int:
        """Number of hops."""
        return len(self.blocks or ())

    @property
    def sampled_subgraphs(self) -> list[SampledSubgraph] | None:
        """One SampledSubgraph for each of `blocks`, or None before sampling."""
        if self.blocks is None or self.input_nodes is None:
            return None
        return [SampledSubgraph(block, self.input_nodes) for block in self.blocks]

    def replace(self, **changes: Any) -> MiniBatch:
        """Return a minibatch with some fields changed; this one stays as it is."""
        for name in self.__dataclass_fields__:
            if name not in changes:
                changes[name] = getattr(self, name)
        return type(self)(**changes)  # what dataclasses.replace does, in a fifth of its time

    def map_tensors(self, fn: _Map) -> MiniBatch:
        """Return a minibatch with `fn` applied to each tensor."""
        changes: dict[str, Any] = {}
        for name in _PLAIN_FIELDS:
            value = getattr(self, name)
            if value is not None:
                changes[name] = fn(value)
        if self.blocks is not None:
            changes["blocks"] = [block.map_tensors(fn) for block in self.blocks]
        if self.node_features is not None:
            changes["node_features"] = {name: fn(value) for name, value in self.node_features.items()}
        if self.edge_features is not None:
            changes["edge_features"] = [
                {name: fn(value) for name, value in features.items()} for features in self.edge_features
            ]
        return self.replace(**changes)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> MiniBatch:
        """Return the minibatch on `device`; tensors that are there already are shared."""
        return self.map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> MiniBatch:
        """Return the minibatch in page-locked memory, from which copies to a GPU run on their own. Needs CUDA."""
        return self.map_tensors(lambda tensor: tensor.pin_memory())

    def to_message(self) -> Message:
        """Return all fields as a flat `dict[str, Tensor]`; the keys are listed in docs/semantics.md, section 5.
        Copies nothing.
        """
        message: Message = {"epoch": torch.tensor(self.epoch), "index": torch.tensor(self.index)}
        for name in _PLAIN_FIELDS:
            value = getattr(self, name)
            if value is not None:
                message[name] = value
        for hop, block in enumerate(reversed(self.blocks or ())):
            message[f"hop{hop}.indptr"] = block.indptr
            message[f"hop{hop}.indices"] = block.indices
            message[f"hop{hop}.num_src"] = torch.tensor(block.num_src)
            if block.edge_ids is not None:
                message[f"hop{hop}.edge_ids"] = block.edge_ids
        for name, value in (self.node_features or {}).items():
            message[join_key("node_features", name)] = value
        for hop, features in enumerate(reversed(self.edge_features or ())):
            for name, value in features.items():
                message[join_key(f"hop{hop}", "edge_features", name)] = value
        return message

    @classmethod
    def from_message(cls, message: Mapping[str, Tensor]) -> MiniBatch:
        """Return the minibatch that `to_message` flattened; its tensors are those of the message.

        Raises:
            ValueError: A key is not one of the grammar, or a hop lacks a part; the message names it.
        """
        fields: dict[str, Any] = {}
        hops: dict[int, dict[str, Tensor]] = {}
        edge_features: dict[int, dict[str, Tensor]] = {}
        node_features: dict[str, Tensor] = {}
        for key, value in message.items():
            if not isinstance(value, Tensor):
                raise TypeError(
                    f"MiniBatch.from_message: {key!r} must be a tensor, got {type(value).__name__}. Send what "
                    "to_message() made."
                )
            match split_key(key):
                case [("epoch" | "index") as name]:
                    fields[name] = _number(key, value)
                case [name] if name in _PLAIN_FIELDS:
                    fields[name] = value
                case ["node_features", name]:
                    node_features[name] = value
                case [hop, "edge_features", name] if _hop_number(hop) is not None:
                    edge_features.setdefault(int(hop[3:]), {})[name] = value
                case [hop, ("indptr" | "indices" | "num_src" | "edge_ids") as part] if _hop_number(hop) is not None:
                    hops.setdefault(int(hop[3:]), {})[part] = value
                case _:
                    raise ValueError(
                        f"MiniBatch.from_message: key {key!r} is not one of a minibatch. Allowed: "
                        f"{', '.join(_PLAIN_FIELDS)}, epoch, index, node_features.NAME, hop0.indptr ... Send only "
                        "what to_message() made."
                    )
        lost = [name for name in ("epoch", "index") if name not in fields]
        lost += [f"hop{hop}.indptr" for hop in edge_features if hop not in hops]
        if lost:
            raise ValueError(
                f"MiniBatch.from_message: found {sorted(message)}, which lacks {lost}; a minibatch has them. Send all "
                "that to_message() made."
            )
        if hops:
            fields["blocks"] = [_block_from(hops, hop) for hop in reversed(range(len(hops)))]
        if node_features:
            fields["node_features"] = node_features
        if edge_features:
            fields["edge_features"] = [edge_features.get(hop, {}) for hop in reversed(range(len(hops)))]
        return cls(**fields)

    def digest(self) -> str:
        """Return 32 hexadecimal digits that name all of the content, features included: equal digests, equal bits."""
        return digest_message(self.to_message())

    def to_pyg(self) -> torch_geometric.data.Data:
        """Return a PyG `Data` with `num_sampled_nodes` and `num_sampled_edges`; needs torch_geometric. See
        pyg_data.py.
        """
        from datapipes.minibatch.pyg_data import minibatch_to_pyg

        return minibatch_to_pyg(self)

    def __repr__(self) -> str:
        shown = [f"epoch={self.epoch}, index={self.index}"]
        for name in _PLAIN_FIELDS:
            value = getattr(self, name)
            if value is not None:
                shown.append(f"{name}={list(value.shape)}")
        if self.blocks is not None:
            shown.append(f"blocks={self.blocks}")
        if self.node_features is not None:
            shown.append(f"node_features={ {name: list(value.shape) for name, value in self.node_features.items()} }")
        if self.edge_features is not None:
            shown.append(f"edge_features={[sorted(features) for features in self.edge_features]}")
        return f"MiniBatch({', '.join(shown)})"


def _hop_number(part: str) -> int | None:
    digits = part.removeprefix("hop")
    written = digits.isascii() and digits.isdigit() and len(digits) < 4 and (digits == "0" or digits[0] != "0")
    return int(digits) if part.startswith("hop") and written else None


def _number(key: str, value: Tensor) -> int:
    if value.numel() != 1 or value.is_floating_point() or value.is_complex():
        raise ValueError(
            f"MiniBatch.from_message: {key!r} must be one integer, got shape {list(value.shape)} of {value.dtype}. "
            "Send what to_message() made."
        )
    return int(value)


def _block_from(hops: dict[int, dict[str, Tensor]], hop: int) -> Block:
    parts = hops.get(hop, {})
    missing = [name for name in ("indptr", "indices", "num_src") if name not in parts]
    if missing:
        raise ValueError(
            f"MiniBatch.from_message: hop {hop} of {len(hops)} lacks {missing}. Send each hop whole, numbered from 0 "
            "at the seeds."
        )
    return Block(
        parts["indptr"], parts["indices"], _number(f"hop{hop}.num_src", parts["num_src"]), parts.get("edge_ids")
    )
