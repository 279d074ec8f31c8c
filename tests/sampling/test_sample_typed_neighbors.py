"""All hops and edge types of a minibatch in one call: equal to the twin's bit for bit, with either map, any threads."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
import twin
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import (
    TypedGraph,
    csc_graphs,
    fanouts,
    int64s,
    random_graph,
    rng_seeds,
    typed_graphs,
    typed_seeds,
)

from datapipes import _core

HASHED, DIRECT = 0, 2**20  # values of direct_limit: up to so many nodes the map is direct


class Request(NamedTuple):
    """One call. Fanouts are in hop order, hop 0 first; seeds by node type, or pairs by edge type."""

    graph: TypedGraph
    seeds: Mapping[Any, Any]
    fanouts: list[dict[tuple[str, str, str], int]]
    replace: bool = False
    frontier: str = "all"
    rng_seed: int = 0

    def key_of(self, hop: int, ordinal: int) -> int:
        return twin.hop_key(self.rng_seed, 0, 0, 1, hop, ordinal)


def topology_of(graph: TypedGraph) -> _core.Topology:
    names = sorted(graph.num_nodes)
    relations = [
        (names.index(of[0]), names.index(of[2]), *graph.relations[of], ":".join(of)) for of in sorted(graph.relations)
    ]
    return _core.Topology([(name, graph.num_nodes[name]) for name in names], relations)


def ids_by_type(request: Request) -> dict[str, list[int]]:
    """The ids in the seeds, in the order in which section 4.1 numbers them."""
    found: dict[str, list[int]] = {}
    for of in sorted(request.seeds):
        for item in request.seeds[of]:
            for node_type, v in [(of, item)] if isinstance(of, str) else [(of[0], item[0]), (of[2], item[1])]:
                found.setdefault(node_type, []).append(v)
    return found


def sample(request: Request, *, direct_limit: int = DIRECT, num_threads: int = 1) -> twin.TypedNeighborhood:
    """The result of the core in the twin's types; the compacted seeds are those of `ids_by_type`."""
    names, edge_types = sorted(request.graph.num_nodes), sorted(request.graph.relations)
    sampled = [i for i, of in enumerate(edge_types) if any(fanout.get(of, 0) != 0 for fanout in request.fanouts)]
    seeds = ids_by_type(request)
    nodes, local, hops, *_ = _core.sample_neighbors(
        topology_of(request.graph),
        [(names.index(name), int64s(ids)) for name, ids in seeds.items()],
        sampled=sampled,
        fanouts=[[fanout.get(edge_types[i], 0) for i in sampled] for fanout in request.fanouts],
        keys=[[request.key_of(hop, i) for i in sampled] for hop in range(len(request.fanouts))],
        replace=request.replace,
        only_new=request.frontier == "new",
        want_edge_ids=True,
        direct_limit=direct_limit,
        num_threads=num_threads,
    )
    blocks = [
        {
            edge_types[i]: twin.Hop(*(part.tolist() for part in block[:3]), block[3])
            for i, block in zip(sampled, hop, strict=True)
        }
        for hop in hops
    ]
    found = {name: ids.tolist() for name, ids in zip(names, nodes, strict=True)}
    return twin.TypedNeighborhood(found, {name: ids.tolist() for name, ids in zip(seeds, local, strict=True)}, blocks)


def expected_of(request: Request) -> twin.TypedNeighborhood:
    found = twin.sample_typed_neighbors(
        sorted(request.graph.num_nodes),
        request.graph.relations,
        request.seeds,
        fanouts=request.fanouts,
        key_of=request.key_of,
        replace=request.replace,
        frontier=request.frontier,
    )
    compacted: dict[str, list[int]] = {}
    for of in sorted(request.seeds):
        for item in found.compacted_seeds[of]:
            for node_type, i in [(of, item)] if isinstance(of, str) else [(of[0], item[0]), (of[2], item[1])]:
                compacted.setdefault(node_type, []).append(i)
    return found._replace(compacted_seeds=compacted)


@st.composite
def requests(draw) -> Request:
    graph = draw(typed_graphs())
    hop = st.dictionaries(st.sampled_from(sorted(graph.relations)), fanouts)
    return Request(
        graph=graph,
        seeds=draw(typed_seeds(graph)),
        fanouts=draw(st.lists(hop, min_size=1, max_size=3)),
        replace=draw(st.booleans()),
        frontier=draw(st.sampled_from(["all", "new"])),
        rng_seed=draw(rng_seeds),
    )


@examples(500)
@given(requests())
def test_a_minibatch_with_types_equals_the_twin_on_either_map(request):
    expected = expected_of(request)
    assert sample(request, direct_limit=DIRECT) == expected
    assert sample(request, direct_limit=HASHED) == expected


@pytest.mark.parametrize("frontier", ["all", "new"])
@pytest.mark.parametrize("with_replacement", [False, True])
def test_a_large_minibatch_with_types_equals_the_twin_for_any_threads(with_replacement, frontier):
    graphs = [random_graph(1_500, 9_000, rng_seed=i, dtype=np.int32) for i in range(4)]
    ends = [("a", "r", "a"), ("a", "s", "b"), ("b", "r", "a"), ("b", "r", "b")]
    relations = {of: (*graph, None) for of, graph in zip(ends, graphs, strict=True)}
    seeds = {"b": np.random.default_rng(1).integers(0, 1_500, 30).tolist(), "a": [7, 7, 0]}
    fanout = {ends[0]: 4, ends[1]: -1, ends[2]: 3, ends[3]: 2}
    request = Request(
        TypedGraph({"b": 1_500, "a": 1_500}, relations), seeds, [fanout, fanout], with_replacement, frontier
    )
    expected = expected_of(request)
    for num_threads in (1, 2, 7):
        assert sample(request, num_threads=num_threads) == expected


def test_what_one_edge_type_finds_is_no_destination_in_the_same_hop():
    graph = TypedGraph(
        {"a": 3, "b": 2},
        {
            ("a", "first", "a"): (int64s([0, 1, 2, 3]), int64s([1, 2, 0]), None),
            ("a", "second", "a"): (int64s([0, 1, 2, 3]), int64s([2, 0, 1]), None),
            ("b", "to", "a"): (int64s([0, 1, 1, 2]), int64s([1, 0]), None),
        },
    )
    everything = dict.fromkeys(graph.relations, -1)
    found = sample(Request(graph, {"a": [0]}, [everything]))
    assert found.nodes == {"a": [0, 1, 2], "b": [1]}
    assert {of: block.indptr for of, block in found.hops[0].items()} == {of: [0, 1] for of in graph.relations}
    assert [block.num_src for block in found.hops[0].values()] == [3, 3, 1]


@pytest.mark.parametrize("direct_limit", [HASHED, DIRECT])
def test_errors_name_the_type_and_leave_nothing_behind(refuses, direct_limit):
    good = TypedGraph({"a": 3, "b": 2}, {("b", "to", "a"): (int64s([0, 1, 1, 2]), int64s([1, 0]), None)})
    corrupt = TypedGraph({"a": 3, "b": 2}, {("b", "to", "a"): (int64s([0, 1, 1, 2]), int64s([1, 2]), None)})
    fanout = [{("b", "to", "a"): -1}]
    expected = expected_of(Request(good, {"a": [2, 0]}, fanout))
    for _ in range(2):
        refuses(ValueError, sample, Request(corrupt, {"a": [2]}, fanout), direct_limit=direct_limit)
        refuses(IndexError, sample, Request(good, {"b": [2]}, fanout), direct_limit=direct_limit)
        assert sample(Request(good, {"a": [2, 0]}, fanout), direct_limit=direct_limit) == expected


@examples(100)
@given(csc_graphs(min_nodes=1), st.data(), fanouts, st.booleans(), rng_seeds)
def test_rows_of_a_part_are_drawn_by_their_node_ids(graph, data, fanout, replace, key):
    """A part that holds some nodes' rows, in any order, gives each node the picks of the whole graph."""
    owned = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), min_size=1, unique=True))
    columns = [graph.indices[graph.indptr[v] : graph.indptr[v + 1]] for v in owned]
    indptr = np.cumsum([0, *map(len, columns)], dtype=np.int64)
    options = {"fanout": fanout, "replace": replace, "key": key}
    part = _core.sample_hop(
        indptr,
        np.concatenate(columns),
        np.arange(len(owned)),
        node_ids=int64s(owned),
        num_sources=graph.num_nodes,
        **options,
    )
    whole = _core.sample_hop(*graph, int64s(owned), **options)
    assert [array.tolist() for array in part[:2]] == [array.tolist() for array in whole[:2]]


def test_what_node_ids_of_rows_are_refused(refuses):
    arrays = (int64s([0, 1]), int64s([0]), int64s([0]))
    options = {"fanout": 1, "replace": False, "key": 0}
    refuses(ValueError, _core.sample_hop, *arrays, **options, node_ids=int64s([0, 1]))
    for num_sources in (-1, 0):
        refuses(ValueError, _core.sample_hop, *arrays, **options, num_sources=num_sources)
