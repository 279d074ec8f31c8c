"""The many tensors of an object go to workers in one shared memory: those of a graph of 150 relations."""

import gc
import io
import multiprocessing
import os
import pickle
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from channels import BOUND_S, Child, descriptors_from_now, num_descriptors
from hetero_graphs import expect_equal, full_library, many_relations, tensors_of
from pipelines import graph_of

import datapipes as dp
from datapipes.processes import sharing
from datapipes.processes.sharing import Packed, Together, pack

RELATIONS = 150


def private_bytes() -> int:
    """Return how many bytes only this process has mapped."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))


def read_all(packed: Packed, connection: Connection) -> tuple[str, int, int]:
    """Runs in a child: return the digest, the private memory that reading all tensors took, and the open files."""
    _ = torch.arange(10).sum()
    gc.freeze()  # a collection would copy the pages of what the fork server has loaded
    files = num_descriptors()
    first = packed.unpack()
    sum(int(tensor.sum()) for tensor in tensors_of(first).values())
    opened, before = num_descriptors() - files, private_bytes()  # what is run for the first time takes memory too
    graph = packed.unpack()
    total = sum(int(tensor.sum()) for tensor in tensors_of(graph).values())
    more = private_bytes() - before
    connection.send("read")
    assert connection.poll(BOUND_S)  # until the other child has read too
    return f"{graph.digest()} {total}", more, opened


@pytest.mark.parametrize("saved", [False, True], ids=["made", "opened"])
def test_two_processes_share_the_arrays_of_150_relations(saved, tmp_path):
    graph = many_relations(RELATIONS, 2_000)  # 600 arrays, each of them small enough to travel by value
    if saved:
        graph.save(tmp_path / "graph")
        graph = dp.HeteroCSCGraph.open(tmp_path / "graph").validate()
    size = sum(tensor.nbytes for tensor in tensors_of(graph).values())
    assert max(tensor.nbytes for tensor in tensors_of(graph).values()) <= sharing.SMALL
    total = sum(int(tensor.sum()) for tensor in tensors_of(graph).values())
    packed = pack(graph)
    assert len(packed.data) < 64 * 2**10
    assert len(packed.memories) == (0 if saved else 1)
    pipes = [multiprocessing.Pipe() for _ in range(2)]
    children = [Child(read_all, packed, there, method="forkserver") for _, there in pipes]
    with children[0], children[1]:
        for here, _ in pipes:
            assert here.poll(BOUND_S)
        for here, _ in pipes:
            here.send("all have read")
        found = [child.result() for child in children]
    for digest, more, opened in found:
        assert digest == f"{graph.digest()} {total}"
        assert more < size / 4
        assert opened <= 1


def test_every_form_of_tensor_arrives():
    graph = full_library()
    expect_equal(pack(graph).unpack(), graph)  # all of it is small, and travels by value
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "SMALL", 0)
        packed = pack(graph)
        assert len(packed.memories) == 1
        expect_equal(packed.unpack(), graph)
        expect_equal(pack(packed.unpack()).unpack(), graph)
        assert pack(packed.unpack()).memories == packed.memories


def test_a_large_graph_travels_without_its_values_and_a_tensor_of_it_needs_no_second_copy():
    graph = many_relations(RELATIONS, 5_000)
    size = sum(tensor.nbytes for tensor in tensors_of(graph).values())
    large = [place for place, tensor in tensors_of(graph).items() if tensor.nbytes > sharing.SMALL]
    packed = pack({"graph": graph, "tensors": [tensors_of(graph)[place] for place in large]})
    (memory,) = packed.memories
    assert size <= len(memory) < 1.01 * size
    assert pack(graph).memories == packed.memories
    assert pack(graph.relation("a:r7:b").indices.numpy()).memories == packed.memories
    got = packed.unpack()
    found = tensors_of(got["graph"])
    assert [tensor.data_ptr() for tensor in got["tensors"]] == [found[place].data_ptr() for place in large]


def test_tensors_packed_before_by_themselves_are_found_again():
    graph = many_relations(3, 20_000)
    first = pack(graph.relation("a:r1:b").indices)
    packed = pack(graph)
    assert packed.memories.count(first.memories[0]) == 1
    assert len(packed.memories) == 2
    expect_equal(packed.unpack(), graph)


def test_however_many_copies_there_are_already_a_graph_takes_few_descriptors(monkeypatch):
    monkeypatch.setattr(sharing, "MOST_MEMORIES", 4)
    graph = many_relations(6, 20_000)
    kept = [pack(tensor) for tensor in tensors_of(graph).values()]
    packed = pack(graph)
    assert len(packed.memories) == 1
    expect_equal(packed.unpack(), graph)
    assert len(kept) == 24
    full = pack([torch.arange(20_000) + number for number in range(5)] + [many_relations(2, 20_000)])
    assert len(full.memories) == 4
    expect_equal(full.unpack()[-1], many_relations(2, 20_000))


def test_a_tensor_that_was_changed_in_between_is_copied_anew_and_the_others_are_not():
    graph = many_relations(20, 5_000)
    first = pack(graph)
    graph.relation("a:r3:b").indices[0] += 1
    second = pack(graph)
    assert len(second.memories) == 2
    assert first.memories[0] in second.memories
    assert torch.equal(second.unpack().relation("a:r3:b").indices, graph.relation("a:r3:b").indices)
    assert not torch.equal(first.unpack().relation("a:r3:b").indices, graph.relation("a:r3:b").indices)


def test_a_view_that_was_unpacked_is_pickled_without_its_neighbors():
    graph = pack(many_relations(20, 5_000)).unpack()
    indices = graph.relation("a:r3:b").indices
    data = io.BytesIO()
    torch.save(indices, data)
    assert len(data.getvalue()) < 2 * indices.nbytes
    assert len(pickle.dumps(indices)) < 2 * indices.nbytes


def test_no_descriptor_is_left_and_the_copy_ends_with_its_last_user():
    graph = many_relations(20, 5_000)
    pack(graph).unpack()
    opened = descriptors_from_now()
    packed = pack(graph)
    assert opened() == 1
    got = packed.unpack()
    assert opened() == 1
    del packed, got
    assert opened() == 0


def test_what_is_no_simple_tensor_travels_in_its_own_way():
    tensors = [torch.nn.Parameter(torch.ones(3)), torch.eye(3).to_sparse_coo(), torch.ones(30_000, requires_grad=True)]
    for given in (
        tensors,
        [*tensors, torch.arange(30_000), torch.empty(0, 3), torch.ones(3, dtype=torch.cfloat).conj()],
    ):
        for got in (pack(Together(given)).unpack(), pickle.loads(pickle.dumps(Together(given)))):
            assert [type(each) for each in got] == [type(each) for each in given]
            assert [each.requires_grad for each in got] == [each.requires_grad for each in given]
            assert all(torch.equal(a.to_dense(), b.to_dense()) for a, b in zip(got, given, strict=True))


def test_a_graph_without_types_travels_as_before():
    columns = [[u % 7 for u in range(v % 5)] for v in range(10_000)]
    graph = graph_of(columns)
    packed = pack(graph)
    assert [len(memory) for memory in packed.memories] == [graph.indptr.nbytes, graph.indices.nbytes]
    assert packed.unpack().digest() == graph.digest()
    assert os.stat(f"/proc/self/fd/{packed.memories[0].descriptor}").st_size >= graph.indptr.nbytes
