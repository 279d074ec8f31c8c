"""Sampler: the base of all samplers. Your own sampler derives from it and needs nothing private.

It checks graph, fanouts and seeds under the stage's own name, gives local ids to the found nodes, and makes the Blocks.
Its attributes tell later stages what a minibatch will contain.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.array_digest import Hashed
from datapipes.base.checks import check_bool, check_within, dtype_name
from datapipes.base.rng import RngKey
from datapipes.base.types import ends_of, of_type
from datapipes.chain.stage import MiniBatchTransformer, SeedStage, Stage
from datapipes.chain.stage_base import Fingerprint, StageBase
from datapipes.chain.stage_graph import StageGraph
from datapipes.graph.graph import Graph
from datapipes.graph.hops import Sampled
from datapipes.minibatch import Block, MiniBatch
from datapipes.sampling.fanouts import Fanout, check_fanouts, fingerprint_of_hops, sampled_edge_types, shortened
from datapipes.sampling.seed_ids import check_seed_types, plain_seeds, seed_ids, warn_of_empty_blocks
from datapipes.seeds import ItemSampler

__all__ = ["Picks", "Sampled", "Sampler"]

_S = TypeVar("_S", bound=Stage)


class Picks(NamedTuple):
    """The in-edges that a hop draws from one edge type.

    Attributes:
        indptr: int64 [num_nodes + 1]; node i of the hop has the picks `positions[indptr[i]:indptr[i + 1]]`.
        positions: int64 [num_picks], positions in `graph.indices`, or `graph.relation(edge_type).indices`.
    """

    indptr: Tensor
    positions: Tensor


class Sampler(MiniBatchTransformer):
    """Base of the stages that sample the neighborhood of the seeds; they set `blocks`, `input_nodes` and
    `compacted_seeds`.

    A subclass defines `draw`, which chooses the in-edges of one hop, or `sample`, which does all hops at once. Both
    must depend on their arguments alone: random choices come from `rng`.

    Attributes:
        graph: the sampled graph.
        fanouts: in-edges drawn per node, one entry a hop; the last entry is the hop next to the seeds. With types:
            {edge type: number} for each hop.
        return_edge_ids: whether the blocks hold edge ids, which edge features need.
        node_types: the node types of a minibatch: all types of the graph; (None,) without types.
        edge_types: the edge types of a minibatch: the types with a fanout other than 0 in some hop, in sorted order;
            (None,) without types.
    """

    _does = "sampling"
    _samples_parts: bool = False  # whether the sampler can sample a graph in parts (DistGraph) too
    _least_hops: int = 1

    def __init__(
        self, source: Stage, graph: Graph, fanouts: Sequence[Fanout], *, return_edge_ids: bool = False
    ) -> None:
        super().__init__(source)
        if type(self).draw is Sampler.draw and type(self).sample is Sampler.sample:
            raise TypeError(
                f"{self.name}: found neither a draw nor a sample method; one is needed. Define draw(nodes, hop, rng)."
            )
        if not isinstance(graph, Graph):
            raise TypeError(
                f"{self.name}: graph must be a CSCGraph, a HeteroCSCGraph or a DistGraph, got {type(graph).__name__}. "
                f"{_remedy(graph)}"
            )
        if graph._in_parts and not self._samples_parts:
            raise TypeError(
                f"{self.name}: graph must be a CSCGraph or HeteroCSCGraph, which has all rows, got "
                f"{type(graph).__name__}, whose rows are in parts; its draw and sample methods read rows. Sample it by "
                "sample_neighbor, or by another sampler of datapipes."
            )
        if graph.is_heterogeneous and not self._knows_types():
            raise TypeError(
                f"{self.name}: its draw(nodes, hop, rng) knows no edge types, which this graph has. Define draw(nodes, "
                "hop, rng, edge_type=None), or sample a CSCGraph."
            )
        refuse_padding_before(self.name, source)
        fetched = fetched_before(source)
        if fetched:
            stage = next(iter(fetched.values()))
            raise ValueError(rows_left_behind(self.name, f"{' and '.join(stage._fills)} of {stage!r} before it"))
        items = items_before(source)
        if items is not None:
            check_seed_types(self.name, getattr(items, "types", None), graph)
        self.graph = graph
        self.fanouts = check_fanouts(self.name, fanouts, graph, self._least_hops)
        self.return_edge_ids = check_bool(self.name, "return_edge_ids", return_edge_ids)
        self._has_types, self._negative_end = graph.is_heterogeneous, negative_end_before(self.name, source)
        self.node_types: tuple[Any, ...] = graph.node_types
        self.edge_types: tuple[Any, ...] = sampled_edge_types(self.fanouts, graph)
        types = [key for key, items in items_at_start(source).items() if len(items) > 0]
        warn_of_empty_blocks(self.name, graph, types, self.edge_types)

    @property
    def num_hops(self) -> int:
        """Number of hops."""
        return len(self.fanouts)

    def draw(self, nodes: Tensor, hop: int, rng: RngKey) -> Picks:
        """Return the in-edges of `nodes` that one hop draws.

        A sampler that defines `draw(nodes, hop, rng, edge_type=None)` can sample graphs with types too. `draw` is then
        called for each of `self.edge_types`, and returns in-edges of `self.graph.relation(edge_type)`.

        Args:
            nodes: ids [num_nodes], all nodes found so far, distinct, in the order of their local ids. With types: the
                nodes of the destination type found before the hop.
            hop: index of the hop, 0 next to the seeds; its fanout is `self.fanouts[-1 - hop]`.
            rng: the stage's random key at this minibatch; `rng.generator(hop)` is a torch.Generator for this hop
                alone, `rng.generator(hop, i)` for this hop and the edge type `graph.edge_types[i]`.
        """
        raise TypeError(f"{self.name}: has no draw method of its own. Define draw(nodes, hop, rng).")

    def sample(self, seeds: Any, rng: RngKey) -> Sampled:
        """Return the neighborhood of `seeds`; by default, call `draw` hop by hop.

        Args:
            seeds: ids [num_seeds], repeats allowed; with types {node type: ids}.
            rng: the stage's random key at this minibatch.
        Raises:
            IndexError: A seed is not a node of the graph.
            TypeError, ValueError: `draw` returned something other than in-edges of the nodes.
        """
        graph = self.graph
        # numbering.number(ids) returns local ids; numbering.nodes() the distinct ids, in order of first occurrence.
        numbering = _core.NumberingInt32 if graph.index_dtype == torch.int32 else _core.NumberingInt64
        numberings: dict[Any, Any] = {kind: numbering(graph.num_nodes_of(kind)) for kind in graph.node_types}
        typed = seeds if isinstance(seeds, Mapping) else {None: seeds}
        local_seeds = {kind: self._numbered_seeds(numberings[kind], kind, ids) for kind, ids in typed.items()}
        hops, nodes = [], _nodes(numberings)
        for hop in range(self.num_hops):
            drawn = [(edge_type, self._hop(nodes, numberings, hop, rng, edge_type)) for edge_type in self.edge_types]
            nodes = _nodes(numberings)
            sizes = {edge_type: len(nodes[ends_of(edge_type)[0]]) for edge_type in self.edge_types}
            hops.append({kind: Block(indptr, local, sizes[kind], ids) for kind, (indptr, local, ids) in drawn})
        if graph.is_heterogeneous:
            return Sampled(nodes, local_seeds, hops)
        return Sampled(nodes[None], local_seeds[None], [blocks[None] for blocks in hops])

    def transform(self, minibatch: MiniBatch) -> MiniBatch:
        ids, restored = self.seeds_of(minibatch)
        return self.filled(minibatch, restored(self.sample(ids, self.rng_of(minibatch))))

    def seeds_of(self, minibatch: MiniBatch) -> tuple[Any, Callable[[Sampled], Sampled]]:
        """Return (ids, restored) for the seeds of a minibatch, after checking the seeds.

        `ids` are the seeds as `sample` takes them. `restored` is a function that brings the `local_seeds` of a sampled
        result into the shape of the minibatch's seeds.
        """
        for field in ("node_features", "edge_features"):
            if getattr(minibatch, field):
                raise ValueError(rows_left_behind(self.name, f"{field} {sorted(names_of(getattr(minibatch, field)))}"))
        refuse_padding(self.name, minibatch)
        return self._checked_seeds(minibatch.seeds)

    def _checked_seeds(self, seeds: Any) -> tuple[Any, Callable[[Sampled], Sampled]]:
        """Return (ids, restored) as `seeds_of` does, for seeds [n] or [n, k]; with types {node or edge type: ids}."""
        if self._has_types:
            by_type = seed_ids(self.name, seeds, self.graph, self._negative_end)
            return by_type.ids, lambda sampled: sampled._replace(local_seeds=by_type.restore(sampled.local_seeds))
        ids = plain_seeds(self.name, seeds)
        if ids.ndim == 1:
            return ids, lambda sampled: sampled
        return ids.view(-1), lambda sampled: sampled._replace(local_seeds=sampled.local_seeds.view(ids.shape))

    def filled(self, minibatch: MiniBatch, sampled: Sampled) -> MiniBatch:
        """Return the minibatch with `blocks`, `input_nodes` and the other fields that `sampled` fills."""
        nodes, seeds, blocks = sampled.nodes, sampled.local_seeds, sampled.hops[::-1]
        # The former `batch` belongs to the former nodes. A sampler of trees sets a new one.
        return minibatch.replace(input_nodes=nodes, compacted_seeds=seeds, blocks=blocks, batch=None)

    def fingerprint(self) -> Fingerprint:
        return fingerprint_of_hops(self.graph, self.fanouts, self.return_edge_ids)

    @property
    def _hashed_inputs(self) -> tuple[Hashed, ...]:
        return (self.graph,) if isinstance(self.graph, Hashed) else ()  # a graph in parts has the digest of its parts

    def describe(self) -> dict[str, Any]:
        details: dict[str, Any] = {"fanouts": shortened(self.fanouts), "graph": self.graph}
        return {**details, "return_edge_ids": True} if self.return_edge_ids else details

    def _knows_types(self) -> bool:
        """Return whether the sampler can sample a graph with types."""
        if type(self).sample is not Sampler.sample:
            return True
        arguments = inspect.signature(type(self).draw).parameters.values()
        return any(argument.name == "edge_type" or argument.kind is argument.VAR_KEYWORD for argument in arguments)

    def _numbered_seeds(self, numbering: Any, node_type: Any, seeds: Tensor) -> Tensor:
        num_nodes = self.graph.num_nodes_of(node_type)
        name = f"seeds{of_type(node_type)}"  # checked before an int32 graph narrows them
        check_within(self.name, name, seeds, num_nodes, "Take the seeds from the same graph.")
        return torch.from_numpy(numbering.number(seeds.to(self.graph.index_dtype).numpy()))

    def _hop(
        self, nodes: dict[Any, Tensor], numberings: dict[Any, Any], hop: int, rng: RngKey, edge_type: Any
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Draw the in-edges of one hop and one edge type. Return (indptr, local ids of the sources, edge ids or None).

        Args:
            nodes: {node type: nodes found before the hop}.
            numberings: {node type: object that gives local ids to nodes}; new sources get theirs here.
        """
        relation = self.graph.relation(edge_type)
        destinations = nodes[ends_of(edge_type)[1]]
        draw: Any = self.draw
        picked = draw(destinations, hop, rng, **({} if edge_type is None else {"edge_type": edge_type}))
        indptr, positions = self._checked(relation, destinations, picked)
        local = numberings[ends_of(edge_type)[0]].number(relation.indices[positions].numpy())
        edge_ids = None
        if self.return_edge_ids:
            edge_ids = positions if relation.edge_ids is None else relation.edge_ids[positions]
        return indptr, torch.from_numpy(local), edge_ids

    def _checked(self, relation: Any, nodes: Tensor, picks: Any) -> Picks:
        """Return `picks`, what a subclass's `draw` returned for one hop. Raise TypeError or ValueError if they are not
        in-edges of `nodes`.
        """
        if not isinstance(picks, tuple) or len(picks) != 2 or not all(isinstance(part, Tensor) for part in picks):
            raise TypeError(
                f"{self.name}: draw must return Picks of two tensors, got {type(picks).__name__}. Return "
                "Picks(indptr, positions)."
            )
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
        first, last = relation.indptr[drawn_for], relation.indptr[drawn_for + 1]
        wrong = ((positions < first) | (positions >= last)).nonzero()
        if wrong.numel() > 0:
            at = int(wrong[0])
            raise ValueError(
                f"{self.name}: draw returned position {int(positions[at])} for node {int(drawn_for[at])}, whose "
                f"in-edges have positions in [{int(first[at])}, {int(last[at])}). Positions count over all nodes: add "
                "indptr[node] of the graph or relation to the index of an in-edge within its node."
            )
        return Picks(indptr, positions)


def _nodes(numberings: dict[Any, Any]) -> dict[Any, Tensor]:
    """Return {node type: ids of the nodes that were found so far}, in the order of their local ids."""
    return {node_type: torch.from_numpy(numbering.nodes()) for node_type, numbering in numberings.items()}


def _remedy(graph: Any) -> str:
    """Return the sentence of an error that says what to pass instead of `graph`, a value that is no graph."""
    if callable(getattr(graph, "draw", None)):  # a Part, whose module this one may not import
        return "One part does not answer for a chain: pass DistGraph.connect(...), or draw from it by its method draw."
    return "Convert it, see CSCGraph.from_*."


# --- what is certain about the minibatches that reach a stage, for checks when a chain is built
#
# A user's stage may do anything, so nothing is certain behind stages that are not known.


def fetched_before(source: Stage) -> dict[str, Stage]:
    """Return {field: stage that fills it} of the feature fields that are certainly filled behind `source`."""
    sources = [source]
    fetched: dict[str, Stage] = {}
    while sources:
        stage = sources.pop()
        fetched |= dict.fromkeys(stage._fills, stage)
        if not stage.draws and len(stage.sources) == 1:  # any other stage may take the features out again
            sources.append(stage.source)
    return fetched


def items_before(source: Stage) -> Any:
    """Return the item set whose seeds `source` certainly yields; None if that is not known."""
    while not source.draws and len(source.sources) == 1:
        source = source.source
    return source.item_set if isinstance(source, ItemSampler) else None


def items_at_start(source: Stage) -> dict[Any, Any]:
    """Return {type or None: ItemSet}: the item sets from which a chain gets its seeds. {}: not known, since the chain
    has a user's stage or function.
    """
    start = line_before(source)[-1]
    if not isinstance(start, ItemSampler) or not all_known(source):
        return {}
    item_sets: dict[Any, Any] = getattr(start.item_set, "item_sets", {None: start.item_set})
    return item_sets


def line_before(source: Stage) -> list[Stage]:
    """Return `source` and the stages before it, nearest first. The last one is the start of the chain, or a join of
    several sources.
    """
    line = [source]
    while len(line[-1].sources) == 1:
        line.append(line[-1].source)
    return line


def all_known(source: StageBase) -> bool:
    """Return whether `source` and all stages before it are this package's classes, without a user's function."""
    stages = list(StageGraph(source))
    return all(
        type(stage).__module__.startswith("datapipes.")
        and (stage.sources or isinstance(stage, SeedStage))  # the minibatches of a FromNode are not known
        and getattr(stage, "fn", None) is None
        and type(stage) is not MiniBatchTransformer
        for stage in stages
    )


def negative_end_before(where: str, source: Stage) -> str:
    """Return "src" or "dst": the end to which columns 2 and up of seeds [n, k] belong.

    An earlier NegativeSampler sets it. Without one it is "dst".

    Raises:
        ValueError: The NegativeSamplers of joined chains differ.
    """
    stages: StageGraph[Stage] = StageGraph(source)
    ends = sorted({end for stage in stages if (end := getattr(stage, "negative_end", None)) is not None})
    if len(ends) > 1:
        raise ValueError(
            f"{where}: found negatives for the source and negatives for the destination in the chains that are joined "
            "before it; rows [n, k] have one of the two. Sample the neighborhood of each before the join."
        )
    return ends[0] if ends else "dst"


def nearest_before(source: Stage, cls: type[_S]) -> _S | None:
    """Return the nearest stage of the class `cls` among `source` and the stages before it, back to a join. None: there
    is none.
    """
    return next((stage for stage in line_before(source) if isinstance(stage, cls)), None)


def refuse_taken(where: str, minibatch: MiniBatch, names: Iterable[str]) -> None:
    """Raise ValueError if the minibatch has one of the fields in `extra` that a stage is about to set."""
    for name in names:
        if name in minibatch.extra:
            raise ValueError(
                f"{where}: extra[{name!r}] of minibatch {minibatch.index} exists already. Name yours otherwise."
            )


def rows_left_behind(where: str, features: str) -> str:
    """Return the error text for a sampler that stands behind a stage that fetches features, which is not allowed."""
    return (
        f"{where}: found {features}; their rows belong to the nodes before sampling, not to input_nodes. Fetch "
        "features after the sampler; values of the seeds themselves go into labels, indexes or timestamps."
    )


def refuse_padding(where: str, minibatch: MiniBatch) -> None:
    """Raise ValueError if the minibatch has padding, for a stage that must stand before `pad`."""
    if minibatch.bucket is not None:
        raise ValueError(f"{where}: found a minibatch that is padded. Put pad behind this stage, and pad once.")


def refuse_padding_before(where: str, source: Stage) -> None:
    """Raise ValueError if a stage before the end of a chain adds padding."""
    for stage in line_before(source):
        if stage._pads:
            raise ValueError(f"{where}: found {stage!r} before it. Put pad behind this stage, and pad once.")


def names_of(features: dict[Any, Tensor] | list[dict[Any, Tensor]]) -> Collection[Any]:
    """Return the names of features, given `node_features`, or `edge_features` (a dict for each hop)."""
    return {name for rows in ([features] if isinstance(features, dict) else features) for name in rows}
