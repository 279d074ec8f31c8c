"""All hops of a minibatch in one call: equal to the twin's bit for bit, with either map, in any thread; no crash."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import twin
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import ID_DTYPES, Graph, csc_graphs, fanouts, graph_of, int64s, random_graph, rng_seeds, seeds_in, star

from datapipes import _core

HASHED, DIRECT = 0, 2**20  # values of direct_limit: up to so many nodes the map is direct


@dataclass(frozen=True)
class Request:
    """One call. Fanouts are in hop order, hop 0 first."""

    graph: Graph
    seeds: np.ndarray
    fanouts: tuple[int, ...]
    replace: bool = False
    frontier: str = "all"
    edge_ids: np.ndarray | None = None
    rng_seed: int = 0

    @property
    def keys(self) -> list[int]:
        return [twin.hop_key(self.rng_seed, 0, 0, 1, hop, 0) for hop in range(len(self.fanouts))]


def topology_of(indptr, indices, edge_ids=None) -> _core.Topology:
    """A graph without types: one type, one relation."""
    return _core.Topology([("", len(indptr) - 1)], [(0, 0, indptr, indices, edge_ids, "")])


def sample_neighbors(request: Request, *, direct_limit: int = DIRECT, want_edge_ids: bool = True):
    """Return nodes, compacted seeds and the block of each hop."""
    (nodes,), (compacted_seeds,), hops, *_ = _core.sample_neighbors(
        topology_of(*request.graph, request.edge_ids),
        [(0, int64s(request.seeds))],
        sampled=[0],
        fanouts=[[fanout] for fanout in request.fanouts],
        keys=[[key] for key in request.keys],
        replace=request.replace,
        only_new=request.frontier == "new",
        want_edge_ids=want_edge_ids,
        direct_limit=direct_limit,
    )
    return nodes, compacted_seeds, [block for (block,) in hops]


def as_lists(found):
    """A result of the core in the twin's types."""
    nodes, compacted_seeds, hops = found
    hops = [twin.Hop(*(array.tolist() for array in hop[:3]), hop[3]) for hop in hops]
    return twin.Neighborhood(nodes.tolist(), compacted_seeds.tolist(), hops)


def expected_of(request: Request) -> twin.Neighborhood:
    return twin.sample_neighbors(
        *request.graph,
        request.edge_ids,
        request.seeds,
        fanouts=request.fanouts,
        keys=request.keys,
        replace=request.replace,
        frontier=request.frontier,
    )


@st.composite
def requests(draw) -> Request:
    graph = draw(csc_graphs())
    num_hops = draw(st.integers(1, 3))
    own_ids = draw(st.booleans())
    return Request(
        graph=graph,
        seeds=draw(seeds_in(graph)),
        fanouts=tuple(draw(fanouts) for _ in range(num_hops)),
        replace=draw(st.booleans()),
        frontier=draw(st.sampled_from(["all", "new"])),
        edge_ids=np.random.default_rng(graph.num_edges).permutation(graph.num_edges) if own_ids else None,
        rng_seed=draw(rng_seeds),
    )


@examples(600)
@given(requests())
def test_a_minibatch_equals_the_twin_on_either_map(request):
    expected = expected_of(request)
    assert as_lists(sample_neighbors(request, direct_limit=DIRECT)) == expected
    assert as_lists(sample_neighbors(request, direct_limit=HASHED)) == expected


@pytest.mark.parametrize("dtype", ID_DTYPES)
@pytest.mark.parametrize("degree", [1_500, 5_000])
@pytest.mark.parametrize("fanout", [513, 700, 1_400, 4_999])
def test_the_minibatch_of_a_hub_equals_the_twin(degree, fanout, dtype):
    request = Request(star(degree, dtype), int64s([0]), (fanout, -1))
    assert as_lists(sample_neighbors(request)) == expected_of(request)


@pytest.mark.parametrize("frontier", ["all", "new"])
@pytest.mark.parametrize("with_replacement", [False, True])
def test_a_minibatch_of_many_nodes_equals_the_twin(with_replacement, frontier):
    graph = random_graph(2_000, 20_000, rng_seed=6, dtype=np.int32)
    seeds = np.random.default_rng(7).integers(0, 2_000, 60)
    request = Request(graph, seeds, (5, 4, 3), with_replacement, frontier, np.arange(20_000)[::-1].copy())
    expected = expected_of(request)
    for direct_limit in (HASHED, DIRECT):
        assert as_lists(sample_neighbors(request, direct_limit=direct_limit)) == expected


@examples(100)
@given(requests(), st.booleans())
def test_the_arrays_have_the_dtypes_and_sizes_of_the_page(request, want_edge_ids):
    nodes, compacted_seeds, hops = sample_neighbors(request, want_edge_ids=want_edge_ids)
    id_dtype = request.graph.indices.dtype
    assert nodes.dtype == compacted_seeds.dtype == id_dtype
    assert np.array_equal(nodes[compacted_seeds], request.seeds)
    assert len(set(nodes.tolist())) == len(nodes)
    num_dst = len(set(request.seeds.tolist()))
    assert len(hops) == len(request.fanouts)
    for indptr, indices, edge_ids, num_src in hops:
        assert indptr.dtype == np.int64
        assert indices.dtype == id_dtype
        assert len(indptr) == num_dst + 1
        assert len(indices) == indptr[-1]
        assert num_src == max([num_dst, *(indices + 1)])
        if want_edge_ids:
            assert edge_ids.dtype == np.int64
            assert len(edge_ids) == len(indices)
        else:
            assert edge_ids is None
        num_dst = num_src
    assert num_dst == len(nodes)


@examples(50)
@given(csc_graphs(min_nodes=1), st.data())
def test_full_fanouts_find_what_a_breadth_first_search_finds(graph, data):
    request = Request(graph, data.draw(seeds_in(graph)), (-1,) * graph.num_nodes)
    reached = set(request.seeds.tolist())
    for _ in range(graph.num_nodes):
        reached |= {int(u) for v in reached for u in graph.indices[graph.indptr[v] : graph.indptr[v + 1]]}
    for frontier in ("all", "new"):
        nodes, _, _ = sample_neighbors(replace(request, frontier=frontier))
        assert set(nodes.tolist()) == reached


def test_a_node_found_earlier_is_drawn_again_only_in_frontier_all():
    request = Request(graph_of([[1], [2], [0]]), int64s([0]), (-1, -1))
    for frontier, indptrs in [("all", [[0, 1], [0, 1, 2]]), ("new", [[0, 1], [0, 0, 1]])]:
        found = as_lists(sample_neighbors(replace(request, frontier=frontier)))
        assert [hop.indptr for hop in found.hops] == indptrs


def test_each_hop_has_its_own_key():
    request = Request(graph_of([list(range(50))] * 50), int64s([0]), (5, 5))
    _, _, ((_, _, first, _), (_, _, second, _)) = sample_neighbors(request)
    assert not np.array_equal(first, second[:5])  # node 0 is drawn in both hops


@pytest.mark.parametrize("direct_limit", [HASHED, DIRECT])
def test_a_call_remembers_nothing_of_the_calls_before(direct_limit):
    small = Request(graph_of([[1], [0, 2], []]), int64s([1, 0]), (2, 2))
    large = Request(random_graph(3_000, 9_000, rng_seed=8), int64s([5, 0, 1]), (4, 4, 4))
    wrong = replace(large, seeds=int64s([2, 1, 3_000]))
    corrupt = replace(small, graph=Graph(small.graph.indptr, int64s([1, 0, 9])))
    expected = [expected_of(small), expected_of(large)]
    for _ in range(3):
        found = [as_lists(sample_neighbors(request, direct_limit=direct_limit)) for request in (small, large)]
        assert found == expected
        with pytest.raises(IndexError):
            sample_neighbors(wrong, direct_limit=direct_limit)
        with pytest.raises(ValueError, match="indices"):
            sample_neighbors(corrupt, direct_limit=direct_limit)


@pytest.mark.parametrize("direct_limit", [HASHED, DIRECT])
def test_threads_at_work_together_give_what_each_gives_alone(direct_limit):
    graphs = [random_graph(nodes, 8 * nodes, rng_seed=nodes) for nodes in (500, 5_000)]
    requests = [
        Request(graphs[i % 2], np.arange(i, i + 200), (6, 5), rng_seed=i, frontier=("all", "new")[i % 3 == 0])
        for i in range(40)
    ]
    sample = partial(sample_neighbors, direct_limit=direct_limit)
    alone = [as_lists(sample(request)) for request in requests]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(sample, requests * 2))
    assert [as_lists(found) for found in together] == alone * 2


@pytest.mark.parametrize("graph", [graph_of([]), star(3)])
@pytest.mark.parametrize("fanout", [-1, 0, 5])
def test_no_seeds_give_empty_outputs(graph, fanout):
    found = as_lists(sample_neighbors(Request(graph, int64s(), (fanout, fanout))))
    assert found == twin.Neighborhood([], [], [twin.Hop([0], [], [], 0)] * 2)


def test_no_hops_leave_the_seeds():
    found = as_lists(sample_neighbors(Request(star(3), int64s([2, 0, 2]), ())))
    assert found == twin.Neighborhood([2, 0], [0, 1, 0], [])


CORRUPT = [  # with the seeds that meet what is wrong
    ([0, 1, 3, 2], [1, 0, 2], [0, 2]),
    ([0, 1, 2, 4], [1, 2, 0], [0, 2]),
    ([0, 1, -2, 3], [1, 0, 2], [0]),
    ([-1, 1, 2, 3], [1, 0, 2], [0]),
    ([0, 1, 2, 3], [1, 3, 2], [0]),
    ([0, 1, 2, 3], [1, -7, 2], [0]),
]


@pytest.mark.parametrize("direct_limit", [HASHED, DIRECT])
def test_what_seeds_and_graphs_are_refused_where_they_are_met(refuses, direct_limit):
    for dtype in ID_DTYPES:
        for seed in (-1, 4, 2**32, 2**63 - 1, -(2**63)):
            request = Request(star(3, dtype), int64s([0, seed]), (2,))
            refuses(IndexError, sample_neighbors, request, direct_limit=direct_limit)
        refuses(IndexError, sample_neighbors, Request(graph_of([], dtype), int64s([0]), ()), direct_limit=direct_limit)
    for indptr, indices, seeds in CORRUPT:
        request = Request(Graph(int64s(indptr), int64s(indices)), int64s(seeds), (1, 1))
        refuses(ValueError, sample_neighbors, request, direct_limit=direct_limit)


INDPTR, INDICES, SEEDS = int64s([0, 1, 2]), int64s([1, 0]), int64s([0])


@pytest.mark.parametrize(
    "relation",
    [
        (0, 0, int64s(), INDICES, None, ""),
        (0, 0, INDPTR[:2], INDICES, None, ""),
        (0, 0, INDPTR.astype(np.int32), INDICES, None, ""),
        (0, 0, INDPTR.reshape(3, 1), INDICES, None, ""),
        (0, 0, INDPTR, INDICES.astype(np.uint32), None, ""),
        (0, 0, INDPTR, INDICES.reshape(1, 2), None, ""),
        (0, 0, INDPTR, INDICES, int64s([0]), ""),
        (0, 0, INDPTR, INDICES, INDICES.astype(np.int32), ""),
        (0, 0, INDPTR, INDICES, INDICES.reshape(1, 2), ""),
        (0, 1, INDPTR, INDICES, None, ""),
        (-1, 0, INDPTR, INDICES, None, ""),
        (0, 0, INDPTR, INDICES),
    ],
)
def test_a_relation_that_does_not_fit_is_refused(relation):
    topology_of(INDPTR, INDICES)
    with pytest.raises((TypeError, ValueError, IndexError)):
        _core.Topology([("", 2)], [relation])


def test_relations_of_two_dtypes_are_refused():
    relations = [(0, 0, INDPTR, INDICES.astype(dtype), None, "") for dtype in (np.int32, np.int64)]
    for order in (relations, relations[::-1]):
        with pytest.raises(TypeError, match="all relations need contiguous arrays of one dtype"):
            _core.Topology([("", 2)], order)


def test_arguments_that_do_not_fit_are_refused():
    good = {"graph": topology_of(INDPTR, INDICES), "seeds": [(0, SEEDS)], "sampled": [0]}
    good |= {"fanouts": [[1]], "keys": [[0]], "replace": False, "only_new": False, "want_edge_ids": True}
    _core.sample_neighbors(**good)
    wrong = [
        ("graph", None),
        ("seeds", [(0, SEEDS.astype(np.int32))]),
        ("seeds", [(0, SEEDS.reshape(1, 1))]),
        ("seeds", [(1, SEEDS)]),
        ("seeds", [(-1, SEEDS)]),
        ("sampled", [1]),
        ("sampled", [-1]),
        ("sampled", []),
        ("sampled", [0, 0]),
        ("fanouts", [[1], [1]]),
        ("fanouts", [[1, 1]]),
        ("fanouts", [[1.5]]),
        ("fanouts", [[-2]]),
        ("fanouts", 1),
        ("keys", []),
        ("keys", [[]]),
        ("keys", [[-1]]),
        ("keys", [[2**64]]),
    ]
    for name, value in wrong:
        with pytest.raises((TypeError, ValueError)):
            _core.sample_neighbors(**good | {name: value})


def test_more_picks_than_an_array_can_hold_are_refused():
    graph = graph_of([[0, 1], [1]])
    with pytest.raises((ValueError, MemoryError)):
        _core.sample_hop(*graph, int64s([0, 1, 0, 1]), fanout=2**62, replace=True, key=0)
    with pytest.raises((ValueError, MemoryError)):
        sample_neighbors(Request(graph_of([[0, 1, 2, 3]] * 4), int64s(range(4)), (2**62,), replace=True))


@st.composite
def garbage(draw, dtype) -> np.ndarray:
    """A short array of small and extreme numbers; often only of numbers that occur in a small graph."""
    extremes = [np.iinfo(dtype).min, np.iinfo(np.int32).min, np.iinfo(np.int32).max, np.iinfo(dtype).max]
    number = draw(st.sampled_from([st.integers(0, 6), st.integers(-3, 12) | st.sampled_from(extremes)]))
    return np.array(draw(st.lists(number, max_size=12)), dtype=dtype)


@examples(400)
@given(st.data(), st.sampled_from(ID_DTYPES), st.sampled_from([HASHED, DIRECT]))
def test_any_arrays_at_all_are_sampled_or_refused(data, dtype, direct_limit):
    indptr = data.draw(garbage(np.int64) | garbage(np.int64).map(np.sort))
    indices, seeds = data.draw(garbage(dtype)), data.draw(garbage(np.int64))
    edge_ids = np.arange(len(indices)) if data.draw(st.booleans()) else None
    replacing, only_new = data.draw(st.booleans()), data.draw(st.booleans())
    counts = data.draw(st.lists(st.integers(-1, 5), max_size=3))
    calls = [
        lambda: _core.sample_hop(indptr, indices, seeds, fanout=sum(counts), replace=replacing, key=1),
        lambda: _core.sample_neighbors(
            topology_of(indptr, indices, edge_ids),
            [(0, seeds)],
            sampled=[0],
            fanouts=[[count] for count in counts],
            keys=[[key] for key in range(len(counts))],
            replace=replacing,
            only_new=only_new,
            want_edge_ids=True,
            direct_limit=direct_limit,
        ),
        lambda: _core.compact(indices, num_nodes=len(indptr), direct_limit=direct_limit),
        lambda: _core.coo_to_csc(indices, indices[::-1].copy(), len(indptr)),
        lambda: _core.validate_csc(indptr, indices),
        lambda: _core.gather_rows(np.zeros((len(indptr), 5), dtype=np.uint8), indices),
    ]
    for call in calls:
        with suppress(IndexError, ValueError):
            call()
