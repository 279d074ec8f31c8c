"""PartitionBook: the parts of nodes and edges, on disk and in other processes."""

import copy
import pickle

import pytest
import torch
from amounts import examples
from channels import Child
from hetero_graphs import many_relations
from hypothesis import given
from hypothesis import strategies as st
from partitions import books, graphs, parts_of, write

import datapipes as dp
from datapipes.distributed import LocalGraphStore, PartitionBook, open_book
from datapipes.partition.book import IdMap, RangeMap
from datapipes.partition.native.native_book import partition_id_of
from datapipes.processes import mappings
from datapipes.processes.sharing import pack


def maps_of(book: PartitionBook, edge_types=()) -> list[IdMap]:
    edges = [book.edges(key) for key in edge_types] if book.has_edges else []
    return [*(book.nodes(kind) for kind in book.node_types), *edges]


def with_edges(book: PartitionBook, graph) -> PartitionBook:
    """The same book with a map of as many edge ids as there are edges."""
    edges = {key: torch.arange(graph.relation(key).indices.shape[0]) % book.num_parts for key in graph.edge_types}
    return PartitionBook(book.num_parts, {kind: book.nodes(kind) for kind in book.node_types}, edges)


# --- the two forms of a map


@examples(40)
@given(st.data())
def test_dense_maps_and_ranges_that_say_the_same_answer_the_same(data):
    num_parts = data.draw(st.integers(1, 5))
    cuts = sorted(data.draw(st.lists(st.integers(0, 9), min_size=num_parts - 1, max_size=num_parts - 1)))
    ranges = RangeMap(torch.tensor([0, *cuts, 9]))
    dense = IdMap(ranges.dense(), num_parts)
    assert ranges.dense().dtype == torch.uint8
    ids = torch.arange(9)
    assert ranges.part_of(ids).tolist() == dense.part_of(ids).tolist() == ranges.dense().tolist()
    for part in range(num_parts):
        assert ranges.ids_of(part).tolist() == dense.ids_of(part).tolist()
        assert ranges.count_of(part) == dense.count_of(part) == len(dense.ids_of(part))
    books = [PartitionBook(num_parts, each) for each in (ranges, dense)]
    assert len({partition_id_of("fingerprint", book) for book in books}) == 1


@pytest.mark.parametrize("num_parts", [3, 300])
@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int16, torch.int32]
)
def test_parts_may_be_integers_of_any_dtype(dtype, num_parts):
    parts = torch.tensor([0, 2, 1, 2])
    book = PartitionBook(num_parts, parts.to(dtype), parts.to(dtype))
    for found in (book.nodes(), book.edges()):
        assert found.dense().tolist() == parts.tolist()
        assert found.stored().dtype == (torch.uint8 if num_parts == 3 else torch.int16)
    with pytest.raises(ValueError, match=r"found the part 2; parts must be in \[0, 2\)"):
        PartitionBook(2, parts.to(dtype))


def test_parts_above_the_largest_int64_are_refused():
    parts = torch.tensor([0, -1]).view(torch.uint64)
    for make in (lambda: PartitionBook(2, parts), lambda: setattr(LocalGraphStore(), "node_pb", parts)):
        with pytest.raises(ValueError, match=f"found the part {2**64 - 1}"):
            make()


@examples(50)
@given(st.data())
def test_the_id_of_a_partition_tells_graphs_numbers_and_maps_apart(data):
    owners = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))
    other = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))
    one = partition_id_of("a", PartitionBook(3, torch.tensor(owners)))
    assert (one == partition_id_of("a", PartitionBook(3, torch.tensor(other)))) == (owners == other)
    assert one != partition_id_of("b", PartitionBook(3, torch.tensor(owners)))
    assert one != partition_id_of("a", PartitionBook(4, torch.tensor(owners)))
    assert one != partition_id_of("a", PartitionBook(3, {"n": torch.tensor(owners)}))


def test_more_than_256_parts_take_two_bytes(tmp_path):
    graph = many_relations(1, 10, num_nodes=400)
    owners = torch.arange(400) % 300
    root = write(tmp_path / "root", graph, PartitionBook(300, {"a": owners, "b": RangeMap(torch.arange(301) * 4 // 3)}))
    found = open_book(root)
    assert found.nodes("a").stored().dtype == torch.int16
    assert found.get_partition_ids_from_nids(torch.arange(400), "a").tolist() == owners.tolist()


# --- on disk


@examples(40)
@given(st.data(), st.booleans(), st.booleans())
def test_any_book_comes_back_mapped_as_it_was(tmp_path_factory, data, has_edges, verify):
    graph = data.draw(graphs())
    book = data.draw(books(graph, most_parts=3))
    book = with_edges(book, graph) if has_edges else book
    root = write(tmp_path_factory.mktemp("book") / "root", graph, book)
    found = open_book(root, verify=verify)
    assert repr(found) == repr(book)
    assert found.has_edges == has_edges
    assert found.partition_id == partition_id_of(graph.digest(), book)
    for ours, theirs in zip(maps_of(found, graph.edge_types), maps_of(book, graph.edge_types), strict=True):
        assert type(ours) is type(theirs)
        assert (ours.num_ids, ours.num_parts) == (theirs.num_ids, theirs.num_parts)
        assert ours.stored().dtype == theirs.stored().dtype
        assert ours.stored().tolist() == theirs.stored().tolist()
        if ours.stored().numel():
            _, mapping = mappings.mapping_of(ours.stored())
            assert mapping.file.path == str(root / "book" / "arrays.npy")
    for kind in graph.node_types:
        assert found.get_partition_ids_from_nids(torch.arange(graph.num_nodes_of(kind)), kind).tolist() == parts_of(
            book, kind
        )


def test_without_an_edge_map_the_option_is_named(refuses, tmp_path):
    graph = many_relations(1, 10, num_nodes=20)
    nodes = {kind: torch.zeros(20).long() for kind in graph.node_types}
    found = open_book(write(tmp_path / "root", graph, PartitionBook(1, nodes)))
    refuses(ValueError, found.get_partition_ids_from_eids, torch.tensor([0]), graph.edge_types[0])
    refuses(ValueError, PartitionBook(2, torch.tensor([0, 1])).get_partition_ids_from_eids, torch.tensor([0]))


# --- other processes


def answers(packed, ids: torch.Tensor, kinds: list[str]) -> list[list[int]]:
    """Runs in a child."""
    book = packed.unpack()
    return [book.get_partition_ids_from_nids(ids, kind).tolist() for kind in kinds]


@pytest.mark.parametrize("saved", [False, True], ids=["made", "opened"])
def test_many_maps_reach_a_process_in_one_memory(tmp_path, saved):
    kinds = [f"type {number:03}" for number in range(100)]
    owners = {kind: (torch.arange(20_000) + number) % 3 for number, kind in enumerate(kinds)}
    book = PartitionBook(3, owners)
    if saved:
        graph = dp.HeteroCSCGraph({}, dict.fromkeys(kinds, 20_000))
        book = open_book(write(tmp_path / "root", graph, book))
    packed = pack(book)
    assert len(packed.data) < 64 * 2**10
    assert len(packed.memories) == (0 if saved else 1)
    with Child(answers, packed, torch.tensor([0, 1, 5]), kinds[:2], method="forkserver") as child:
        assert child.result() == [[0, 1, 2], [1, 2, 0]]


def test_a_book_of_any_kind_arrives_by_handle_by_pickle_and_by_copy():
    nodes = {"a": torch.tensor([0, 1, 1]), "b": RangeMap(torch.tensor([0, 2, 5]))}
    edges = {("a", "r", "b"): torch.tensor([0, 1, 0])}
    book = PartitionBook(2, nodes, edges)
    for got in (pack(book).unpack(), pickle.loads(pickle.dumps(book)), copy.copy(book), copy.deepcopy(book)):
        assert repr(got) == repr(book)
        assert got.get_partition_ids_from_nids(torch.arange(5), "b").tolist() == [0, 0, 1, 1, 1]
        assert got.get_partition_ids_from_eids(torch.arange(3), "a:r:b").tolist() == [0, 1, 0]
        assert got.nodes("a").dense().tolist() == [0, 1, 1]
        assert got.partition_id is None
