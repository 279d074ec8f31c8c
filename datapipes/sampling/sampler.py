"""Sampler: what all samplers share. A sampler of a user's own derives from it and needs nothing private.

It checks graph, fanouts and seeds under the stage's own name, numbers the nodes that are found, assembles the Blocks,
and tells the stages after it what a minibatch will hold, through its attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import INDEX_DTYPES, check_bool, check_int, dtype_name, how_to_get_ids, shown
from datapipes.base.rng import RngKey
from datapipes.chain.stage import MiniBatchTransformer, Stage
from datapipes.chain.stage_base import Fingerprint
from datapipes.graph import CSCGraph
from datapipes.minibatch import Block, MiniBatch

__all__ = ["Picks", "Sampled", "Sampler"]

MAX_HOPS = 256


class Picks(NamedTuple):
    """The in-edges that a hop draws.

    Attributes:
        indptr: int64 [num_nodes + 1]; node i of the hop has the picks `positions[indptr[i]:indptr[i + 1]]`.
        positions: int64 [num_picks], places in `graph.indices`.
    """

    indptr: Tensor
    positions: Tensor


class Sampled(NamedTuple):
    """A sampled neighborhood over local ids.

    Attributes:
        nodes: ids [num_nodes], distinct, by first occurrence; the seeds come first.
        local_seeds: ids [num_seeds], the place of each seed in `nodes`.
        hops: one Block a hop, from the seeds outwards.
    """

    nodes: Tensor
    local_seeds: Tensor
    hops: list[Block]


class Sampler(MiniBatchTransformer):
    """Base of the stages that sample the neighborhood of the seeds; they set `blocks`, `input_nodes` and
    `compacted_seeds`.

    A subclass defines `draw`, which chooses the in-edges of one hop, or `sample`, which does all hops at once. It must
    depend on its arguments alone: random choices come from the key.

    Attributes:
        graph: the graph that is sampled.
        fanouts: in-edges drawn per node, one entry a hop; the last entry is the hop next to the seeds.
        return_edge_ids: whether the blocks hold edge ids, which edge features need.
        node_types, edge_types: the types that a minibatch holds; (None,) for a graph without types.
    """

    node_types: tuple[Any, ...] = (None,)
    edge_types: tuple[Any, ...] = (None,)

    def __init__(
        self, source: Stage, graph: CSCGraph, fanouts: Sequence[int], *, return_edge_ids: bool = False
    ) -> None:
        super().__init__(source)
        if type(self).draw is Sampler.draw and type(self).sample is Sampler.sample:
            raise TypeError(
                f"{self.name}: found neither a draw nor a sample method; one is needed. Define draw(nodes, hop, rng)."
            )
        if not isinstance(graph, CSCGraph):
            raise TypeError(
                f"{self.name}: graph must be a CSCGraph, got {type(graph).__name__}. Convert it, see CSCGraph.from_*."
            )
        _refuse_fetch_before(self.name, source)
        self.graph = graph
        self.fanouts = check_fanouts(self.name, fanouts)
        self.return_edge_ids = check_bool(self.name, "return_edge_ids", return_edge_ids)

    @property
    def num_hops(self) -> int:
        """Number of hops."""
        return len(self.fanouts)

    def draw(self, nodes: Tensor, hop: int, rng: RngKey) -> Picks:
        """Return the in-edges of `nodes` that hop number `hop` keeps.

        Args:
            nodes: ids [num_nodes], all nodes found so far, distinct; in the order of their local ids.
            hop: 0 is next to the seeds; its fanout is `self.fanouts[-1 - hop]`.
            rng: the stage's random key at this minibatch; `rng.hop_key(hop)` is a key of this hop alone.
        """
        raise TypeError(f"{self.name}: has no draw method of its own. Define draw(nodes, hop, rng).")

    def sample(self, seeds: Tensor, rng: RngKey) -> Sampled:
        """Return the neighborhood of `seeds`, ids [num_seeds], repeats allowed; by default hop by hop, by `draw`.

        Raises:
            IndexError: A seed is not a node of the graph.
            TypeError, ValueError: `draw` returned something other than in-edges of the nodes.
        """
        outside = seeds[(seeds < 0) | (seeds >= self.graph.num_nodes)]  # before an int32 graph narrows them
        if outside.numel() > 0:
            raise IndexError(
                f"{self.name}: seeds must be in [0, {self.graph.num_nodes}), the nodes of the graph, got "
                f"{int(outside[0])}. Take the seeds from the same graph."
            )
        nodes, local_seeds = self._number(seeds.to(self.graph.indices.dtype))
        hops = []
        for hop in range(self.num_hops):
            indptr, positions = self._checked(nodes, self.draw(nodes, hop, rng))
            nodes, local = self._number(torch.cat((nodes, self.graph.indices[positions])))
            edge_ids = None
            if self.return_edge_ids:
                edge_ids = positions if self.graph.edge_ids is None else self.graph.edge_ids[positions]
            hops.append(Block(indptr, local[local.shape[0] - positions.shape[0] :], nodes.shape[0], edge_ids))
        return Sampled(nodes, local_seeds, hops)

    def transform(self, minibatch: MiniBatch) -> MiniBatch:
        seeds = check_seeds(self.name, minibatch.seeds)
        for field in ("node_features", "edge_features"):
            if getattr(minibatch, field):
                raise ValueError(_rows_left_behind(self.name, f"{field} {sorted(_names(getattr(minibatch, field)))}"))
        nodes, local_seeds, hops = self.sample(seeds.view(-1), self.rng_of(minibatch))
        if seeds.ndim > 1:
            local_seeds = local_seeds.view(seeds.shape)
        return minibatch.replace(input_nodes=nodes, compacted_seeds=local_seeds, blocks=hops[::-1])

    def fingerprint(self) -> Fingerprint:
        return {
            "fanouts": self.fanouts,
            "return_edge_ids": self.return_edge_ids,
            "num_nodes": self.graph.num_nodes,
            "num_edges": self.graph.num_edges,
            "graph_digest": self.graph.digest(),
        }

    def describe(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"fanouts": self.fanouts, "graph": self.graph}
        return {**shown, "return_edge_ids": True} if self.return_edge_ids else shown

    def _checked(self, nodes: Tensor, picks: Any) -> Picks:
        """Return the picks of a hop; raise TypeError or ValueError if they are not in-edges of `nodes`."""
        if not isinstance(picks, tuple) or len(picks) != 2 or not all(isinstance(part, Tensor) for part in picks):
            raise TypeError(f"{self.name}: draw must return Picks, got {type(picks).__name__}. Return Picks(...).")
        indptr, positions = picks
        dtypes = [dtype_name(part.dtype) for part in picks]
        if dtypes != ["int64", "int64"] or [indptr.ndim, positions.ndim] != [1, 1]:
            shapes = [list(part.shape) for part in picks]
            raise ValueError(
                f"{self.name}: draw returned tensors of {dtypes} {shapes}; both must be int64 of 1 dimension. Convert "
                "them."
            )
        counts = indptr.diff()
        ends = (int(indptr[0]), int(indptr[-1])) if indptr.numel() > 0 else None
        if indptr.shape[0] != nodes.shape[0] + 1 or ends != (0, positions.shape[0]) or bool((counts < 0).any()):
            raise ValueError(
                f"{self.name}: draw returned an indptr of length {indptr.shape[0]} with ends {ends} for "
                f"{nodes.shape[0]} nodes and {positions.shape[0]} positions; it must have one entry more than there "
                "are nodes and rise from 0 to the number of positions. Build it by a cumulative sum."
            )
        drawn_for = torch.repeat_interleave(nodes.long(), counts)
        first, last = self.graph.indptr[drawn_for], self.graph.indptr[drawn_for + 1]
        wrong = ((positions < first) | (positions >= last)).nonzero()
        if wrong.numel() > 0:
            at = int(wrong[0])
            raise ValueError(
                f"{self.name}: draw returned position {int(positions[at])} for node {int(drawn_for[at])}, whose "
                f"in-edges are at [{int(first[at])}, {int(last[at])}). Add graph.indptr[node] to the chosen places."
            )
        return Picks(indptr, positions)

    def _number(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distinct ids by first occurrence, and the place of each of `ids` among them."""
        unique, local = _core.compact(ids.numpy(), num_nodes=self.graph.num_nodes)
        return torch.from_numpy(unique), torch.from_numpy(local)


def _refuse_fetch_before(where: str, source: Stage) -> None:
    """Raise ValueError if features fetched upstream certainly reach the sampler that is built over `source`."""
    sources = [source]
    while sources:
        stage = sources.pop()
        if stage.fills:
            raise ValueError(_rows_left_behind(where, f"{' and '.join(stage.fills)} of {stage!r} before it"))
        if not stage.draws and len(stage.sources) == 1:  # any other stage may take the features out again
            sources.append(stage.source)


def _rows_left_behind(where: str, found: str) -> str:
    return (
        f"{where}: found {found}; their rows belong to the nodes before sampling, not to input_nodes. Fetch features "
        "after the sampler; values of the seeds themselves go into labels, indexes or timestamps."
    )


def _names(features: dict[str, Tensor] | list[dict[str, Tensor]]) -> set[str]:
    return {name for each in ([features] if isinstance(features, dict) else features) for name in each}


def check_fanouts(where: str, fanouts: Any) -> list[int]:
    """Return `fanouts` as a list of at least one int, each -1 or more."""
    if isinstance(fanouts, Tensor):
        fanouts = fanouts.tolist()
    if isinstance(fanouts, (str, bytes)) or not isinstance(fanouts, Sequence):
        raise TypeError(
            f"{where}: fanouts must be a sequence of ints, one for each hop, got {shown(fanouts)}. Pass a list such as "
            "[10, 5]."
        )
    if not 1 <= len(fanouts) <= MAX_HOPS:
        raise ValueError(
            f"{where}: fanouts has {len(fanouts)} entries, allowed are 1 to {MAX_HOPS}, one for each hop. Add or drop "
            "some."
        )
    return [check_int(where, f"fanouts[{i}]", fanout, -1) for i, fanout in enumerate(fanouts)]


def check_seeds(where: str, seeds: Any) -> Tensor:
    """Return the seeds of a minibatch: int32 or int64, [n] or [n, k], contiguous, in host memory, not empty."""
    if not isinstance(seeds, Tensor):
        raise TypeError(
            f"{where}: seeds must be a tensor, got {type(seeds).__name__}. Name one item 'seeds' in the ItemSet."
        )
    if seeds.dtype not in INDEX_DTYPES:
        raise TypeError(
            f"{where}: seeds must be int32 or int64, got {dtype_name(seeds.dtype)}. {how_to_get_ids(seeds)}"
        )
    if seeds.ndim not in (1, 2):
        raise ValueError(f"{where}: seeds must have shape [n] or [n, k], got {list(seeds.shape)}. Reshape them.")
    if seeds.device.type != "cpu":
        raise ValueError(
            f"{where}: seeds must be in host memory, found them on {seeds.device}. Put copy_to after this stage."
        )
    if not seeds.is_contiguous():
        raise ValueError(f"{where}: seeds are not contiguous (stride {seeds.stride()}). Call .contiguous() on them.")
    if seeds.numel() == 0:
        raise ValueError(
            f"{where}: found no seeds (shape {list(seeds.shape)}); at least 1 is needed. Return None from a transform "
            "to drop a minibatch."
        )
    return seeds
