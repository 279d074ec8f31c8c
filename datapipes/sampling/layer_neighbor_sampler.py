"""LayerNeighborSampler: LABOR-0, neighbor sampling in which the nodes of a hop agree on what they pick.

Every source gets a random number, and a node takes the in-edges of the sources with the smallest numbers. The class
ByNumber is this rule; docs/semantics.md, section 3.2, fixes the draws. The number of a source depends on a key and its
id alone, so all parts agree on the number. Each node picks uniformly, or by the weights of its in-edges (kept as sums,
those of ByWeight), but nodes with a common source tend to pick that source together, so a minibatch has fewer input
nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from datapipes import _core
from datapipes.base.checks import check_bool, check_int, shown
from datapipes.base.records import OMITTED, Count, Form, list_of, whole
from datapipes.base.rng import RngKey
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.graph.choice import Choice
from datapipes.graph.graph import Graph
from datapipes.sampling.choice_sampler import ChoiceSampler
from datapipes.sampling.fanouts import Fanout
from datapipes.sampling.neighbor_sampler import ByWeight

__all__ = ["LayerNeighborSampler"]

_MAX_DEPENDENCY = 2**31 - 1

KeyPairs = tuple[tuple[int, int], ...]  # for each edge type: (key of the next generation, key of minibatch 0)


@dataclass(frozen=True)
class ByNumber(Choice):
    """Draw the in-edges whose sources have the smallest random numbers, or by weight those with the smallest keys.

    Attributes:
        layer_dependency, batch_dependency, prob_name: see LayerNeighborSampler.
    """

    layer_dependency: bool = False
    batch_dependency: int = 1
    prob_name: str | None = None

    @property
    def reads(self) -> ByWeight | None:
        return None if self.prob_name is None else ByWeight(self.prob_name)

    def keyed(
        self, rng: RngKey, num_hops: int, edge_numbers: Sequence[int], source_numbers: Sequence[int]
    ) -> tuple[list[list[int]], Choice]:
        generation, place = divmod(rng.index, self.batch_dependency)

        def keys(generation: int) -> list[list[int]]:
            shared = replace(rng, index=generation)
            hops = [0] * num_hops if self.layer_dependency else range(num_hops)
            return [[shared.hop_key(hop, number) for number in source_numbers] for hop in hops]

        pairs: tuple[KeyPairs, ...] = ()
        if self.batch_dependency > 1:
            both = zip(keys(generation + 1), keys(0), strict=True)
            pairs = tuple(tuple(zip(*hop, strict=True)) for hop in both)
        return keys(generation), Numbered(self.batch_dependency, self.batch_dependency - place, pairs, self.prob_name)

    def fingerprint(self, digests: Mapping[Any, list[str] | None]) -> dict[str, Any]:
        weights = {} if self.reads is None else self.reads.fingerprint(digests)
        return {"layer_dependency": self.layer_dependency, "batch_dependency": self.batch_dependency, **weights}


def _read_keys(name: str, value: Any) -> tuple[KeyPairs, ...]:
    """Read the keys of one hop from `value`, a JSON list with a pair of keys for each edge type. Return a tuple with
    that hop; () if the list is empty.

    Args:
        name: the name of `value` in errors.
    Raises:
        ValueError: `value` is no list of pairs of keys.
    """
    pairs = [list_of(f"an entry of {name}", pair, 2) for pair in list_of(name, value)]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"{name} is {shown(value)}, it must have two keys for each draw")
    checked = [(_KEY.read("a key", one), _KEY.read("a key", other)) for one, other in pairs]
    return (tuple(checked),) if checked else ()


_KEY = whole(0, 2**64 - 1)
_KEYS = Form(_read_keys, lambda keys: [[*pair] for hop in keys for pair in hop])


@dataclass(frozen=True)
class Numbered(Choice):
    """The form of ByNumber for one minibatch, which a request to another part contains.

    Every source keeps its random number for `dependency` minibatches, but not all change it at the same minibatch. Each
    source has a fixed random offset in [0, dependency). In minibatch i of a generation (i from 0; a generation is
    `dependency` successive minibatches), the sources with offset >= dependency - i (`until_next`) already use their
    number of the next generation; the others use that of the present one.

    Attributes:
        dependency: for how many minibatches a source keeps its random number.
        until_next: sources with offset >= until_next have their number of the next generation.
        keys: for each hop and edge type, the key of the next generation, and the key that decides the offset of a
            source; empty if the dependency is 1. (The key of the present generation is sent with each draw.)
        prob_name: the edge attribute with the weights; None without weights.
    """

    dependency: Annotated[int, whole(1, _MAX_DEPENDENCY)] = 1
    until_next: Count = 1
    keys: Annotated[tuple[KeyPairs, ...], _KEYS] = ()
    prob_name: Annotated[str | None, OMITTED] = None

    by: ClassVar[str] = "number"

    @property
    def reads(self) -> ByWeight | None:
        return None if self.prob_name is None else ByWeight(self.prob_name)

    def kernel(self, arguments: list[Any]) -> _core.Layers:
        next_keys, offset_keys = ([[pair[i] for pair in hop] for hop in self.keys] for i in range(2))
        return _core.Layers(
            dependency=self.dependency,
            until_next=self.until_next,
            next_keys=next_keys,
            offset_keys=offset_keys,
            weights=[] if self.prob_name is None else arguments,
        )

    def refuse_contradictions(self) -> None:
        if self.dependency == 1 and self.keys:
            raise ValueError("keys has entries, but dependency is 1, for which keys must be empty")
        whole(1, self.dependency).read("until_next", self.until_next)

    def refuse_request(self, num_draws: int, *, replace: bool, has_streams: bool) -> None:
        num_keys = sum(map(len, self.keys))
        if self.dependency > 1 and num_keys != num_draws:
            raise ValueError(f"keys has {num_keys} entries, for {num_draws} draws")
        if replace or has_streams:
            raise ValueError("in-edges of the smallest numbers are drawn without replacement and have no streams")

    def at(self, hop: int, places: Sequence[int]) -> Numbered:
        return replace(self, keys=(tuple(self.keys[hop][place] for place in places),) if self.keys else ())


@register_stage("sample_layer_neighbor")
class LayerNeighborSampler(ChoiceSampler):
    """Sample the in-neighborhood of the seeds by LABOR-0; sets `blocks`, `input_nodes` and `compacted_seeds`.

    Each source node has a random number, and a node picks the in-edges whose sources have the smallest numbers. So
    nodes with a common source tend to pick it together, and minibatches are smaller. A node has as many picks as with
    `sample_neighbor`, each in-edge with the same probability as there; but parallel edges share a number, and
    the first of them, or the heaviest, is picked before the others. The sampler reads all in-edges of a node with
    more in-edges than the fanout. It never draws with replacement.

    Args:
        graph: the CSCGraph, HeteroCSCGraph or DistGraph to sample from. If the graph has types, the seeds have types
            too (HeteroItemSet).
        fanouts: in-edges drawn per node, as for sample_neighbor.
        prob_name: name of an edge attribute: weights or a mask, as for sample_neighbor. An in-edge then has the key
            e / weight, where e is an exponential number that grows with the number of its source, and a node takes the
            in-edges with the smallest keys. None: no weights.
        layer_dependency: True: a source has the same random number in all hops, so hops share more nodes. False: it has
            another number in each hop.
        batch_dependency: for how many minibatches a source keeps its random number, 1 to 2**31 - 1. 1: a source has
            another number in each minibatch. Larger: from one minibatch to the next, 1 / `batch_dependency` of the
            sources get a new number, so minibatches share nodes, and a cache of features is hit more often. Minibatches
            are counted over all ranks, so successive minibatches of a rank are `world_size` apart.
        return_edge_ids: fill `edge_ids` of the blocks, which edge features need.
        frontier: "all" or "new", as for sample_neighbor.
        subgraph_type, reverse_etypes_mapping: as for sample_neighbor.
        concurrency: over a DistGraph, minibatches in flight at once, by default 8. Each takes the memory of its own
            result, whatever the size of the graph. Not allowed for a graph in memory.
    Raises:
        TypeError, ValueError: An argument is not allowed.
        IndexError: While running, a seed is not a node of the graph.
        MemoryError: While running, a hop needs more memory than is left; the message names hop, fanout and bytes.
    Source: LABOR-0 with a fixed number of picks (Balin and Catalyurek, Layer-Neighbor Sampling, NeurIPS 2023).
    """

    _fingerprinted = ("frontier",)

    def __init__(
        self,
        source: Stage,
        graph: Graph,
        fanouts: Sequence[Fanout],
        *,
        prob_name: str | None = None,
        layer_dependency: bool = False,
        batch_dependency: int = 1,
        return_edge_ids: bool = False,
        frontier: str = "all",
        subgraph_type: str = "directional",
        reverse_etypes_mapping: Mapping[Any, Any] | None = None,
        concurrency: int | None = None,
    ) -> None:
        self.prob_name = prob_name
        self.layer_dependency = check_bool(self.name, "layer_dependency", layer_dependency)
        self.batch_dependency = check_int(self.name, "batch_dependency", batch_dependency, 1, _MAX_DEPENDENCY)
        super().__init__(
            source,
            graph,
            fanouts,
            ByNumber(self.layer_dependency, self.batch_dependency, prob_name),
            return_edge_ids=return_edge_ids,
            frontier=frontier,
            subgraph_type=subgraph_type,
            reverse_etypes_mapping=reverse_etypes_mapping,
            concurrency=concurrency,
        )

    def _describe_choice(self) -> dict[str, Any]:
        batches = self.batch_dependency if self.batch_dependency > 1 else None
        dependencies = {"layer_dependency": self.layer_dependency or None, "batch_dependency": batches}
        return {"prob_name": self.prob_name, **dependencies}
