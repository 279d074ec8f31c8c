"""The times of in-edges beside a plain loop, what is kept of them, and what is refused."""

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
import strategies
import torch
from hypothesis import given
from hypothesis import strategies as st

import datapipes as dp
from datapipes import _core
from datapipes.base import sizes
from datapipes.graph.choice import Chosen
from datapipes.partition.native.part_arrays import PartRelation
from datapipes.processes.mappings import mapping_of
from datapipes.processes.sharing import pack
from datapipes.sampling.temporal_neighbor_sampler import ByTime

WRITES, CITES, HOSTS = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("venue", "hosts", "paper")


def times(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def timed_graph(num_nodes=50, num_edges=400, dtype=torch.int64) -> dp.CSCGraph:
    indptr, indices = strategies.random_graph(num_nodes, num_edges, rng_seed=3)
    rng = np.random.default_rng(4)
    return dp.CSCGraph(
        indptr,
        indices,
        node_attributes={"since": rng.integers(-9, 9, num_nodes), "wide": np.zeros((num_nodes, 2), dtype=np.int64)},
        edge_attributes={"at": rng.integers(-9, 9, len(indices)), "weight": rng.random(len(indices))},
    ).with_index_dtype(dtype)


def typed_graph() -> dp.HeteroCSCGraph:
    edges = {WRITES: [[0, 1, 2], [0, 0, 1]], CITES: [[1, 2, 0], [0, 0, 2]], HOSTS: [[0, 0], [0, 1]]}
    return dp.HeteroCSCGraph.from_edge_index(
        {of: torch.tensor(each) for of, each in edges.items()},
        {"author": 3, "paper": 3, "venue": 1},
        node_attributes={"paper": {"since": times([5, 1, 3])}},
        edge_attributes={WRITES: {"at": times([7, 8, 9])}, CITES: {"at": times([0, 9, 2])}},
    )


def found(graph, of=None, edges="at", nodes="since") -> Chosen:
    return graph.choose("here", ByTime(edges, nodes), [of])[of]


class Times(NamedTuple):
    """What the kernel takes, as tensors."""

    latest: torch.Tensor
    earliest: torch.Tensor | None
    sorted_rows: torch.Tensor
    coarse: tuple | None


def times_of(chosen: Chosen) -> Times:
    latest, earliest, sorted_rows, coarse = chosen.argument()[0]
    arrays = [None if each is None else torch.from_numpy(each) for each in (latest, earliest, sorted_rows)]
    return Times(*arrays, None if coarse is None else (coarse[0].tolist(), *coarse[1:]))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("edges", "nodes"), [("at", None), (None, "since"), ("at", "since")])
def test_the_times_are_the_larger_and_the_smaller_of_those_that_an_in_edge_has(dtype, edges, nodes):
    graph = timed_graph(dtype=dtype)
    given = [graph.edge_attributes["at"]] * (edges is not None)
    given += [graph.node_attributes["since"][graph.indices.long()]] * (nodes is not None)
    both = torch.stack(given)
    expected = both.amax(0), both.amin(0)
    ours = times_of(found(graph, edges=edges, nodes=nodes))
    assert torch.equal(ours.latest, expected[0])
    assert (ours.earliest is None) == (len(given) == 1)
    if ours.earliest is not None:
        assert torch.equal(ours.earliest, expected[1])
    for v in range(graph.num_nodes):
        row = slice(graph.indptr[v], graph.indptr[v + 1])
        is_sorted = all(part[row].tolist() == sorted(part[row].tolist()) for part in expected)
        assert ours.sorted_rows[v] == is_sorted


@given(strategies.csc_graphs(), st.data())
def test_any_times_and_any_threads_give_the_larger_and_the_smaller_and_the_sorted_rows(graph, data):
    any_time = st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1])
    of_nodes = np.array([data.draw(any_time) for _ in range(graph.num_nodes)], dtype=np.int64)
    of_edges = np.array([data.draw(any_time) for _ in range(graph.num_edges)], dtype=np.int64)
    pairs = [(int(of_nodes[u]), int(t)) for u, t in zip(graph.indices, of_edges, strict=True)]
    latest, earliest = ([limit(pair) for pair in pairs] for limit in (max, min))
    timed = dp.CSCGraph(*graph, node_attributes={"since": of_nodes}, edge_attributes={"at": of_edges})
    ours = times_of(found(timed))
    assert (ours.latest.tolist(), ours.earliest.tolist()) == (latest, earliest)
    results = []
    for threads in (1, 3):
        sources, rows = np.zeros(graph.num_edges, dtype=np.int64), np.zeros(graph.num_nodes, dtype=np.uint8)
        _core.fill_source_times(graph.indices, of_nodes, sources, num_threads=threads)
        _core.find_sorted_rows(graph.indptr, np.array(latest, dtype=np.int64), rows, num_threads=threads)
        results.append((sources.tolist(), rows.tolist()))
    assert results[0] == results[1]
    assert results[0][0] == [pair[0] for pair in pairs]


@pytest.mark.parametrize("spread", [1, 100, 2**16, 2**40, 2**63 - 1], ids=str)
def test_coarse_times_never_descend_as_times_grow(spread):
    rng = np.random.default_rng(5)
    at = rng.integers(-spread, spread, 100_000, endpoint=True)
    at[:4] = [-(2**63), 2**63 - 1, 0, 1]
    made = []
    for threads in (1, 3):
        coarse = np.zeros(len(at) + _core.COARSE_PADDING, dtype=np.int16)
        made.append((_core.fill_coarse_times(at, coarse, num_threads=threads), coarse.tolist()))
    assert made[0] == made[1]
    ascending = coarse[np.argsort(at, kind="stable")]
    assert (np.diff(ascending.astype(int)) >= 0).all()
    assert len(np.unique(ascending)) > min(spread, 2**14)  # most times differ by them


def test_a_graph_whose_rows_are_sorted_has_no_coarse_times():
    graph = timed_graph(200, 20_000)
    assert times_of(found(graph, nodes=None)).coarse is not None
    assert times_of(found(graph)).coarse is not None
    for v in range(graph.num_nodes):
        row = slice(graph.indptr[v], graph.indptr[v + 1])
        graph.edge_attributes["at"][row] = graph.edge_attributes["at"][row].sort().values
    assert times_of(found(graph, nodes=None)).coarse is None


def test_an_edge_type_has_the_times_of_its_edges_and_of_its_source_type_if_there_are_some():
    graph = typed_graph()
    made = graph.choose("here", ByTime("at", "since"), graph.edge_types)
    assert list(made) == [WRITES, CITES, HOSTS]
    assert (made[HOSTS].argument(), made[HOSTS].digests()) == ((None, None), None)
    ours = {of: times_of(each) for of, each in made.items() if of != HOSTS}
    assert ours[WRITES].latest.tolist() == [7, 8, 9]  # authors have no time
    assert ours[WRITES].earliest is None
    assert ours[CITES].latest.tolist() == [1, 9, 5]
    assert ours[CITES].earliest.tolist() == [0, 3, 2]


def test_times_are_made_once_and_again_when_the_attribute_is_another_one():
    graph = timed_graph(2000, 20_000)
    first = found(graph)
    assert found(graph) is first
    assert times_of(found(graph, nodes=None)).latest.data_ptr() == graph.edge_attributes["at"].data_ptr()
    assert mapping_of(first.made[3]) is not None  # workers map it
    graph.edge_attributes["at"] = graph.edge_attributes["at"] + 1
    assert found(graph) is not first
    before = found(graph)
    graph.edge_attributes["at"][7] += 40
    assert found(graph) is not before
    other = dp.CSCGraph(graph.indptr, graph.indices, edge_attributes=dict(graph.edge_attributes))
    anew = times_of(found(other, nodes=None))
    assert times_of(found(graph, nodes=None)).sorted_rows.tolist() == anew.sorted_rows.tolist()


@pytest.mark.parametrize(("edges", "nodes"), [("at", None), (None, "since"), ("at", "since")])
def test_workers_get_the_times_with_their_graph(monkeypatch, edges, nodes):
    graph = timed_graph(2000, 20_000)
    first = found(graph, edges=edges, nodes=nodes)
    there = pack(graph).unpack()
    monkeypatch.setattr(ByTime, "make", None)  # nothing is made anew
    chosen = found(there, edges=edges, nodes=nodes)
    ours, theirs = times_of(chosen), times_of(first)
    assert torch.equal(ours.latest, theirs.latest)
    assert torch.equal(ours.sorted_rows, theirs.sorted_rows)
    assert ours.coarse == theirs.coarse
    assert (ours.earliest is None) == (theirs.earliest is None)
    assert found(there, edges=edges, nodes=nodes) is chosen
    assert (ours.latest.data_ptr() == there.edge_attributes["at"].data_ptr()) == (nodes is None)
    assert all(mapping_of(each) is not None for each in [chosen.made[1], *chosen.made[3:]])
    assert chosen.digests() == first.digests()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda graph: pickle.loads(pickle.dumps(graph))])
@pytest.mark.parametrize("graph", [timed_graph(), typed_graph()], ids=["plain", "types"])
def test_a_copy_of_a_graph_makes_its_own_times(copied, graph):
    of = CITES if graph.is_heterogeneous else None
    found(graph, of)
    other = copied(graph)
    attributes = other.relation(of).edge_attributes
    attributes["at"] = -attributes["at"] + 100
    ours = found(other, of)
    assert int(times_of(ours).latest.min()) > 80
    assert ours is not found(graph, of)


def test_the_digest_of_a_graph_is_the_sum_over_its_parts():
    graph = timed_graph()
    whole = times_of(found(graph))
    sums = [0, 0]
    for ids in (np.arange(0, 50, 2), np.arange(1, 50, 2)):
        rows = [np.arange(*graph.indptr[v : v + 2].tolist()) for v in ids]
        offsets = np.cumsum([0, *map(len, rows)])
        for number, part in enumerate((whole.latest, whole.earliest)):
            high, low = _core.rows_digest(offsets, part.numpy()[np.concatenate(rows)], node_ids=ids)
            sums[number] = (sums[number] + (high << 64) + low) % 2**128
    assert found(graph).digests() == [f"int64:{each:032x}" for each in sums]
    assert len(found(graph, nodes=None).digests()) == 1


def test_what_attributes_are_refused_as_times(refuses):
    graph = timed_graph()
    refuses(ValueError, found, graph, edges="when")
    refuses(ValueError, found, graph, nodes="when")
    refuses(ValueError, found, graph, nodes="wide")
    refuses(ValueError, found, typed_graph(), HOSTS, nodes=None)
    refuses(ValueError, found, typed_graph(), WRITES)
    at = graph.edge_attributes["at"]
    for wrong in (at.int(), at.double(), at > 0):
        graph.edge_attributes["at"] = wrong
        refuses(TypeError, found, graph)
    for wrong in (at[:-1], at.view(-1, 1), at.repeat(2)[::2]):
        graph.edge_attributes["at"] = wrong
        refuses(ValueError, found, graph)
    for edges in (None, "at"):  # a part has stored times in another dtype
        topology = (torch.tensor(ids) for ids in ([0], [0, 2], [0, 1], [0, 1]))
        stored = PartRelation(*topology, {"at": times([1, 2])}, torch.tensor([1.5, 2]))
        refuses(TypeError, ByTime(edges, "since").make, "here", None, stored)
    corrupt = dp.CSCGraph(torch.tensor([0, 2, 1, 2]), torch.tensor([1, 7]), node_attributes={"since": times([1, 2, 3])})
    refuses(ValueError, found, corrupt, edges=None)
    corrupt.indices[1] = 0
    refuses(ValueError, found, corrupt, edges=None)


def test_what_is_made_is_given_while_something_else_is_made():
    graph = timed_graph()
    first, entered, go_on = found(graph, nodes=None), threading.Event(), threading.Event()

    class Slow(ByTime):
        def make(self, *args):
            entered.set()
            assert go_on.wait(60)
            return super().make(*args)

        @property
        def reads(self):
            return self

    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(graph.choose, "here", Slow("at", "since"), [None])
        assert entered.wait(60)
        assert found(graph, nodes=None) is first
        go_on.set()
        assert slow.result(60)


def test_coarse_times_that_do_not_fit_are_refused_and_sorted_rows_need_none(refuses, monkeypatch):
    monkeypatch.setattr(sizes, "UNCHECKED_BYTES", 0)
    monkeypatch.setattr(_core, "memory_left", lambda: (100, "the test"))
    graph = timed_graph(200, 20_000)
    refuses(MemoryError, found, graph, nodes=None)
    graph.edge_attributes["at"] = torch.arange(graph.num_edges)
    assert times_of(found(graph, nodes=None)).coarse is None
