"""Part: what it holds, the rows of its nodes, draws with the bits of the whole graph, and how it reaches workers."""

import copy
import pickle
import re

import pytest
import torch
from amounts import examples, ranked
from channels import Child, descriptors_from_now
from hetero_graphs import AGAIN, CITES, WRITES, full_library, library
from hypothesis import given
from hypothesis import strategies as st
from partitions import (
    TIME,
    big_partition,
    books,
    content_of,
    expect_same_values,
    graphs,
    read_whole,
    slow_positions,
    slow_remote,
    write,
)
from pipelines import graph_of
from strategies import rng_seeds

import datapipes as dp
from datapipes import _core
from datapipes.base.codec import digest_message
from datapipes.base.types import ends_of
from datapipes.distributed import Part, PartitionBook, open_book
from datapipes.distributed.requests.draw import Draw, DrawRequest
from datapipes.processes.sharing import pack


def opened(tmp_path_factory, graph, book, **arguments) -> list[Part]:
    """The parts of a partition, from disk."""
    root = write(tmp_path_factory.mktemp("partition") / "root", graph, book, **arguments)
    found = open_book(root)
    return [Part.open(root, part, book=found) for part in range(book.num_parts)]


@pytest.fixture
def root(tmp_path):
    """A partition of the library: papers 1 and 3, author 1 are in part 1, all else in part 0."""
    nodes = {"paper": torch.tensor([0, 1, 0, 1]), "author": torch.tensor([0, 1, 0]), "venue": torch.tensor([0])}
    return write(tmp_path / "root", full_library(), PartitionBook(2, nodes))


@pytest.fixture
def plain(tmp_path):
    """Part 1 of a graph without types: nodes 1, 3 and 4 of 5."""
    graph = graph_of([[1], [0, 2, 0], [], [4, 2], [2]])
    return Part.open(write(tmp_path / "plain", graph, PartitionBook(2, torch.tensor([0, 1, 0, 1, 1]))), 1)


# --- what it holds


@examples(30)
@given(st.data())
def test_a_part_holds_its_rows_their_attributes_and_times_and_the_hot_nodes(tmp_path_factory, data):
    graph = data.draw(graphs())
    book = data.draw(books(graph, most_parts=3))
    for number, part in enumerate(opened(tmp_path_factory, graph, book, node_time_attr=TIME)):
        assert (part.part, part.num_parts, part.fingerprint) == (number, book.num_parts, graph.digest())
        assert (part.node_types, part.edge_types, part.node_time_attr) == (graph.node_types, graph.edge_types, TIME)
        for node_type in graph.node_types:
            ids = book.nodes(node_type).ids_of(number)
            assert part.num_nodes_of(node_type) == graph.num_nodes_of(node_type)
            assert part.node_ids(node_type).tolist() == ids.tolist()
            expected = {name: values[ids] for name, values in graph.node_attributes_of(node_type).items()}
            expect_same_values(part.node_attributes_of(node_type), expected)
        for key in graph.edge_types:
            relation, whole = part.relation(key), graph.relation(key)
            assert part.num_edges_of(key) == graph.num_edges_of(key)
            places = slow_positions(graph, book, key, number)
            assert relation.indices.dtype == whole.indices.dtype == part.index_dtype
            assert relation.indices.tolist() == whole.indices[places].tolist()
            ids = torch.tensor(places) if whole.edge_ids is None else whole.edge_ids[places]
            assert relation.edge_ids.tolist() == ids.tolist()
            expect_same_values(
                relation.edge_attributes, {name: values[places] for name, values in whole.edge_attributes.items()}
            )
            times = graph.node_attributes_of(ends_of(key)[0])[TIME]
            assert relation.source_times.tolist() == times[whole.indices[places].long()].tolist()
        slow = slow_remote(graph, book, number)
        for node_type in graph.node_types:
            ids, counts = part.hot_nodes(node_type)
            assert list(zip(ids.tolist(), counts.tolist(), strict=True)) == slow.get(node_type, [])


def test_times_are_there_only_if_they_were_asked_for_and_the_source_type_has_them(tmp_path, root):
    assert Part.open(root, 0).relation(WRITES).source_times is None
    graph = library(node_attributes={"author": {"born": torch.tensor([1.5, 2.5, 3.5])}})
    book = PartitionBook(1, {kind: torch.zeros(count).long() for kind, count in graph.num_nodes.items()})
    part = Part.open(write(tmp_path / "timed", graph, book, node_time_attr="born"), 0)
    assert part.relation(WRITES).source_times.tolist() == [1.5, 2.5, 3.5, 3.5, 1.5]
    assert part.relation(AGAIN).source_times.dtype == torch.float32
    assert part.relation(CITES).source_times is None


def test_what_it_is_stands_in_its_repr(root, plain):
    part = Part.open(root, 1)
    assert re.fullmatch(
        r"Part\(1 of 2, 3 nodes, 3 edges, 3 node types, 4 edge types, of [0-9a-f]{16}\)",
        repr(part),
    )
    assert re.fullmatch(r"Part\(1 of 2, 3 nodes, 6 edges, of [0-9a-f]{16}\)", repr(plain))


def test_types_that_are_not_there_are_refused(refuses, root, plain):
    part = Part.open(root, 0)
    refuses(ValueError, part.node_ids, "papers")
    refuses(ValueError, part.relation, "a:b:c")
    refuses(TypeError, part.hot_nodes)
    refuses(ValueError, plain.node_attributes_of, "paper")
    refuses(ValueError, plain.draw, torch.tensor([1]), fanout=1, key=0, edge_type="a:b:c")


# --- rows and draws


@examples(60)
@given(st.data(), rng_seeds, st.sampled_from([-1, 0, 1, 2, 5, 70]), st.booleans(), st.sampled_from([1, 3]))
def test_draws_over_a_part_have_the_bits_of_the_whole_graph(tmp_path_factory, data, key, fanout, replace, num_threads):
    graph = data.draw(graphs())
    book = data.draw(books(graph, most_parts=3))
    for part in opened(tmp_path_factory, graph, book):
        for edge_type in graph.edge_types:
            src, dst = ends_of(edge_type)
            own = part.node_ids(dst)
            more = data.draw(st.lists(st.sampled_from(own.tolist()), max_size=6)) if own.numel() else []
            ids = torch.tensor([*own.tolist(), *more], dtype=data.draw(st.sampled_from([torch.int32, torch.int64])))
            whole = graph.relation(edge_type)
            indptr, neighbors, positions = _core.sample_hop(
                whole.indptr.numpy(),
                whole.indices.numpy(),
                ids.long().numpy(),
                fanout=fanout,
                replace=replace,
                key=key,
                num_sources=graph.num_nodes_of(src),
            )
            places = torch.from_numpy(positions)
            expected = {
                "indptr": torch.from_numpy(indptr),
                "neighbors": torch.from_numpy(neighbors),
                "edge_ids": places if whole.edge_ids is None else whole.edge_ids[places],
            }
            arguments = {"fanout": fanout, "key": key, "replace": replace, "edge_type": edge_type}
            got = part.draw(ids, num_threads=num_threads, **arguments)
            expect_same_values(dict(zip(expected, got, strict=True)), expected)
            *without, no_ids = part.draw(ids, edge_ids=False, num_threads=num_threads, **arguments)
            assert no_ids is None
            assert [each.tolist() for each in without] == [each.tolist() for each in got[:2]]


def test_an_edge_type_may_be_given_as_text(root):
    part = Part.open(root, 0)
    one = part.draw(torch.tensor([0, 2]), fanout=1, key=3, edge_type=WRITES)
    other = part.draw(torch.tensor([0, 2]), fanout=1, key=3, edge_type="author:writes:paper")
    assert [each.tolist() for each in one] == [each.tolist() for each in other]


@pytest.mark.parametrize("owners", [[0, 1, 0, 1, 1], [0, 1, 1, 1, 0]], ids=["scattered", "contiguous"])
def test_rows_of_nodes_in_any_order(tmp_path, owners):
    part = Part.open(write(tmp_path / "root", graph_of([[]] * 5), PartitionBook(3, torch.tensor(owners))), 1)
    own = part.node_ids()
    ids = own[torch.tensor([2, 0, 1, 2])]
    assert part.rows_of(ids).tolist() == [2, 0, 1, 2]
    assert part.rows_of(ids.int()).tolist() == [2, 0, 1, 2]
    assert part.rows_of(ids[:0]).tolist() == []


def test_what_a_draw_refuses(refuses, root, plain):
    part = Part.open(root, 0)
    refuses(IndexError, part.draw, torch.tensor([0, 3, 1]), fanout=1, key=0, edge_type=WRITES)  # node 3 is part 1's
    for node in (-1, 5, 2**62):
        refuses(IndexError, plain.rows_of, torch.tensor([1, node]))
    refuses(IndexError, plain.rows_of, torch.tensor([0]))
    refuses(TypeError, plain.rows_of, torch.tensor([1.0]))
    for fanout in (-2, -(2**31)):
        refuses(ValueError, plain.draw, torch.tensor([1]), fanout=fanout, key=0)
    ids, draws = {"paper": torch.tensor([0, 2])}, [(WRITES, 1, 0)]
    for streams in ({}, {"paper": torch.zeros(0).to(torch.uint32)}):
        refuses(ValueError, part.draw_hop, ids, draws, streams=streams)
    refuses(ValueError, part.draw_hop, {}, draws)
    refuses(ValueError, part.draw_hop, ids, [(("paper", "cites", "nobody"), 1, 0)])
    refuses(TypeError, part.draw_hop, ids, [(["author", "writes"], 1, 0)])


def test_a_hop_over_several_edge_types_is_their_draws_one_after_another(root):
    part, own = Part.open(root, 0), {}
    for node_type in part.node_types:
        own[node_type] = part.node_ids(node_type).flip(0)
    draws = [(edge_type, fanout, 7) for edge_type in part.edge_types for fanout in (-1, 1)]
    alone = [part.draw(own[kind[2]], fanout=fanout, key=key, edge_type=kind) for kind, fanout, key in draws]
    indptr, neighbors, edge_ids = part.draw_hop(own, draws)
    assert indptr[0] == 0
    assert torch.equal(indptr.diff(), torch.cat([drawn[0].diff() for drawn in alone]))
    assert torch.equal(neighbors, torch.cat([drawn[1] for drawn in alone]))
    assert torch.equal(edge_ids, torch.cat([drawn[2] for drawn in alone]))
    assert [len(values) for values in part.draw_hop(own, [])] == [1, 0, 0]


def test_a_bound_of_memory_counts_all_edge_types_of_a_hop(root):
    part = Part.open(root, 0)
    ids = {node_type: part.node_ids(node_type) for node_type in part.node_types}
    draws = [(edge_type, -1, 0) for edge_type in part.edge_types]
    most = max(len(part.draw_hop(ids, [draw])[1]) for draw in draws)
    before = _core.limit_hops(most * 16)  # of any draw alone
    try:
        with pytest.raises(MemoryError, match="are allowed here"):
            part.draw_hop(ids, draws)
    finally:
        _core.limit_hops(before)


def test_the_answers_to_pieces_of_a_hop_are_joined_draw_by_draw(root):
    part = Part.open(root, 0)
    ids = {node_type: part.node_ids(node_type) for node_type in part.node_types}
    for draws in (tuple(Draw(edge_type, 2, 5) for edge_type in part.edge_types), ()):
        request = DrawRequest(ids, draws, edge_ids=True)
        pieces = request.cut(1)
        assert len(pieces) > 1
        found = request.joined(pieces, [piece.answered_by(part) for piece in pieces])
        for values, expected in zip(found, request.answered_by(part), strict=True):
            assert torch.equal(values, expected)


def test_a_part_without_nodes_owns_none(refuses, tmp_path):
    part = Part.open(write(tmp_path / "root", graph_of([[0]]), PartitionBook(2, torch.tensor([0]))), 1)
    assert part.rows_of(torch.tensor([], dtype=torch.int64)).tolist() == []
    indptr, neighbors, edge_ids = part.draw(torch.tensor([], dtype=torch.int64), fanout=2, key=1)
    assert (indptr.tolist(), neighbors.tolist(), edge_ids.tolist()) == ([0], [], [])
    refuses(IndexError, part.rows_of, torch.tensor([0]))


# --- opening


def test_what_opening_a_part_refuses(refuses, root, tmp_path):
    for part in (-1, 2):
        refuses(ValueError, Part.open, root, part)
    refuses(TypeError, Part.open, root, "0")
    graph = full_library()
    assert Part.open(root, 0, fingerprint=graph).fingerprint == graph.digest()
    assert Part.open(root, 0, fingerprint=graph.digest()).part == 0
    for other in (library(), library().digest(), "nonsense"):
        refuses(ValueError, Part.open, root, 0, fingerprint=other)
    for no_graph in (17, b"0" * 16, PartitionBook(1, torch.tensor([0]))):
        refuses(TypeError, Part.open, root, 0, fingerprint=no_graph)
    right = {"paper": torch.tensor([0, 1, 0, 1]), "author": torch.tensor([0, 1, 0]), "venue": torch.tensor([0])}
    assert Part.open(root, 0, book=PartitionBook(2, right)).part == 0
    for book in (
        PartitionBook(2, {**right, "venue": torch.tensor([1])}),
        PartitionBook(3, right),
        PartitionBook(2, {"paper": right["paper"]}),
        open_book(write(tmp_path / "other", graph, PartitionBook(2, {**right, "author": torch.tensor([0, 0, 0])}))),
    ):
        refuses(ValueError, Part.open, root, 0, book=book)


def test_a_stage_cannot_sample_from_a_part(refuses, root):
    source = dp.ItemSampler(dp.ItemSet(torch.tensor([0])), batch_size=1)
    refuses(TypeError, source.sample_neighbor, Part.open(root, 0), [1])


def test_one_part_can_lie_alone_beside_book_and_header(root):
    for path in (root / "part_0").iterdir():
        path.unlink()
    (root / "part_0").rmdir()
    assert Part.open(root, 1).node_ids("paper").tolist() == [1, 3]
    with pytest.raises(FileNotFoundError, match=r"part_0/part\.json does not exist"):
        Part.open(root, 0)


def test_a_part_takes_two_descriptors(root):
    opened = descriptors_from_now()
    part = Part.open(root, 0)
    assert opened() <= 2
    assert {values.data_ptr() % 64 for values in part.node_attributes_of("paper").values() if values.numel()} == {0}


def test_a_part_in_memory_keeps_no_file_of_its_own_and_has_the_same_values(root):
    book = open_book(root)
    opened = descriptors_from_now()
    part, mapped = Part.open(root, 0, book=book, mmap=False), Part.open(root, 0, book=book)
    assert opened() == 1  # that of the mapped one
    expect_same_values(content_of(part), content_of(mapped))
    expect_same_values(content_of(pickle.loads(pickle.dumps(part))), content_of(mapped))


# --- other processes


@pytest.mark.parametrize("method", ranked(["forkserver", "spawn"], 1))
def test_a_part_and_its_book_reach_a_process_as_handles(tmp_path, method):
    part = big_partition(tmp_path / "root")
    packed = pack({"part": part, "book": part.book})
    assert packed.memories == []
    assert len(packed.data) < 16 * 2**10
    size = sum(values.nbytes for values in content_of(part).values())
    here = digest_message(content_of(part))  # reads all pages, so that those of the child are shared
    with Child(read_whole, packed, method=method) as child:
        digest, more, opened_files = child.result()
    assert digest == here
    assert more < size / 4
    assert opened_files <= 2


def test_every_tensor_arrives_by_handle_by_pickle_and_by_copy(root):
    part = Part.open(root, 0)
    for got in (
        pack(part).unpack(),
        pickle.loads(pickle.dumps(part)),
        copy.copy(part),
        copy.deepcopy(part),
    ):
        assert repr(got) == repr(part)
        expect_same_values(content_of(got), content_of(part))
        ids = torch.tensor([2, 0])
        drawn = [each.draw(ids, fanout=1, key=5, edge_type=WRITES) for each in (part, got)]
        assert [each.tolist() for each in drawn[0]] == [each.tolist() for each in drawn[1]]
