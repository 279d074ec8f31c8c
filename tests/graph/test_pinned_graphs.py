"""Graphs whose arrays are page-locked: every array, where it is, for as long as the graph lives."""

import copy
import gc
import pickle
import resource

import pytest
import torch
from fake_registration import registering
from hetero_graphs import full_library, tensors_of
from pipelines import refused, small_graph

import datapipes as dp
from datapipes.device import runtime
from datapipes.processes.sharing import pack


@pytest.fixture
def fake(monkeypatch):
    yield from registering(monkeypatch)


def whole_graph() -> dp.CSCGraph:
    """A graph with edge ids and attributes of nodes and edges."""
    graph = small_graph()
    attributes = {"weight": torch.rand(graph.num_edges)}
    node_attributes = {"emb": torch.rand(graph.num_nodes, 300)}
    return dp.CSCGraph(
        *(graph.indptr, graph.indices),
        edge_ids=graph.edge_ids,
        node_attributes=node_attributes,
        edge_attributes=attributes,
    )


def arrays_of(graph) -> list[torch.Tensor]:
    return [*tensors_of(graph).values()]


# A graph as argument outlives the test.
of_both_kinds = pytest.mark.parametrize("build", [whole_graph, full_library], ids=["CSCGraph", "HeteroCSCGraph"])


@of_both_kinds
def test_every_array_is_locked_in_place_until_it_is_undone(fake, build):
    graph = build()
    assert not graph.is_pinned()
    places = [array.data_ptr() for array in arrays_of(graph)]
    digest = graph.digest()
    assert graph.pin_memory_() is graph
    assert graph.is_pinned()
    assert all(fake.covers(array) for array in arrays_of(graph))
    assert [array.data_ptr() for array in arrays_of(graph)] == places
    calls = len(fake.calls)
    assert graph.pin_memory_() is graph
    assert len(fake.calls) == calls
    assert graph.digest() == digest
    assert graph.unpin_memory_() is graph
    assert not graph.is_pinned()
    assert fake.registered == {}
    graph.unpin_memory_()
    assert graph.pin_memory_().is_pinned()


@of_both_kinds
def test_a_graph_that_is_collected_while_a_gpu_reads_is_unregistered_after_that(fake, build):
    graph = build()
    fake.reads(arrays_of(graph.pin_memory_())[1])
    del graph, fake.calls[:]
    gc.collect()


@of_both_kinds
def test_the_last_of_the_graphs_that_share_arrays_undoes_it(fake, build):
    graph = build().pin_memory_()
    other = graph.with_index_dtype(torch.int32)
    assert not other.is_pinned()
    other.pin_memory_()
    del graph
    gc.collect()
    assert other.is_pinned()
    assert all(fake.covers(array) for array in arrays_of(other))


@of_both_kinds
def test_mapped_arrays_are_locked_for_reading_only(fake, build, tmp_path):
    graph = build()
    graph.save(tmp_path / "graph")
    opened = type(graph).open(tmp_path / "graph").pin_memory_()
    assert all(fake.covers(array) for array in arrays_of(opened))
    assert {read_only for _, read_only in fake.registered.values()} == {True}
    if isinstance(graph, dp.HeteroCSCGraph):
        assert len(fake.registered) == 1  # its arrays lie in one file


@pytest.mark.parametrize(
    "copied",
    [copy.copy, lambda graph: pickle.loads(pickle.dumps(graph)), lambda graph: pack(graph).unpack()],
    ids=["copy", "pickle", "worker"],
)
@of_both_kinds
def test_a_copy_is_not_pinned_and_may_be(fake, build, copied):
    graph = build()
    found = copied(graph.pin_memory_())
    assert not found.is_pinned()
    assert found.digest() == graph.digest()
    assert found.pin_memory_().is_pinned()
    graph.unpin_memory_()
    assert all(fake.covers(array) for array in arrays_of(found))


def test_a_graph_whose_arrays_have_moved_is_pinned_anew(fake):
    graph = whole_graph().pin_memory_()
    graph.node_attributes["emb"].share_memory_()
    assert not graph.is_pinned()
    assert graph.pin_memory_().is_pinned()
    assert fake.covers(graph.node_attributes["emb"])


@of_both_kinds
def test_without_cuda_or_beyond_the_limit_the_error_says_so_and_the_graph_stays(fake, build, monkeypatch):
    graph = build()
    fake.refuse = 2
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1000, 1000))
    stage = f"{type(graph).__name__}.pin_memory_"
    with refused(MemoryError, stage=stage, found=r"\d+ bytes \(error 2\)", allowed="is 1000 bytes.*ulimit -l"):
        graph.pin_memory_()
    assert not graph.is_pinned()
    monkeypatch.setattr(runtime, "_current", runtime.Cuda())
    monkeypatch.setattr(runtime.Cuda, "device_count", lambda self: 0)
    with refused(RuntimeError, stage=stage, found="offers no CUDA device", allowed="leave pin_memory_ out"):
        graph.pin_memory_()
    graph.unpin_memory_()
    assert graph.validate() is graph
