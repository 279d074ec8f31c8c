"""The part of each edge id: that of its destination."""

import torch
from hetero_graphs import typed_edges
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import datapipes as dp
from datapipes.distributed import PartitionBook
from datapipes.partition import book as book_module
from datapipes.partition.book import with_edge_map, wrong_edge_ids


@given(typed_edges(), st.integers(1, 8), st.randoms(use_true_random=False), st.booleans())
def test_an_edge_belongs_to_the_part_of_its_destination(edges, num_parts, random, in_order):
    graph = dp.HeteroCSCGraph.from_edge_index(edges.edge_index(), edges.num_nodes)
    if not in_order:  # ids of their own: positions in the CSC
        relations = {key: (graph.relation(key).indptr, graph.relation(key).indices) for key in graph.edge_types}
        graph = dp.HeteroCSCGraph(relations, edges.num_nodes)
    parts = {
        key: torch.tensor([random.randrange(num_parts) for _ in range(n)], dtype=torch.long)
        for key, n in edges.num_nodes.items()
    }
    book = with_edge_map(PartitionBook(num_parts, parts), graph)
    for key in graph.edge_types:
        relation = graph.relation(key)
        for node in range(edges.num_nodes[key[2]]):
            for place in range(int(relation.indptr[node]), int(relation.indptr[node + 1])):
                edge_id = place if relation.edge_ids is None else int(relation.edge_ids[place])
                assert book.get_partition_ids_from_eids(torch.tensor([edge_id]), key).tolist() == [parts[key[2]][node]]


def test_nodes_are_read_in_pieces(monkeypatch):
    graph = dp.CSCGraph(torch.tensor([0, 2, 2, 5]), torch.tensor([0, 1, 2, 0, 1]), edge_ids=torch.arange(5).flip(0))
    book = PartitionBook(3, torch.tensor([2, 0, 1]))
    whole = with_edge_map(book, graph).edges().dense()
    monkeypatch.setattr(book_module, "ROWS", 1)
    assert with_edge_map(book, graph).edges().dense().tolist() == whole.tolist() == [1, 1, 1, 2, 2]


def test_edge_ids_that_are_not_each_once_are_refused(refuses):
    for ids in ([0, 0], [0, 2], [-1, 0]):
        graph = dp.CSCGraph(torch.tensor([0, 2]), torch.tensor([0, 0]), edge_ids=torch.tensor(ids))
        refuses(ValueError, with_edge_map, PartitionBook(1, torch.tensor([0])), graph)


class Made(TorchDispatchMode):
    """Notes the bytes of each memory that an operation makes."""

    def __init__(self):
        super().__init__()
        self.sizes = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for each in found if isinstance(found, tuple | list) else (found,):
            if isinstance(each, torch.Tensor):
                memory = each.untyped_storage()
                self.sizes[memory._cdata] = (memory.nbytes(), memory)  # kept, so that no other takes its place
        return found


def test_edge_ids_are_checked_in_pieces(monkeypatch):
    count = 1000
    monkeypatch.setattr(book_module, "IDS", 10, raising=False)
    ids = torch.arange(count).flip(0)
    graph = dp.CSCGraph(torch.tensor([0, count]), torch.zeros(count).long(), edge_ids=ids)
    with Made() as made:
        assert wrong_edge_ids(graph.relation(None), None) is None
    sizes = sorted((size for size, memory in made.sizes.values() if size != 8 * count), reverse=True)
    assert sizes[0] == count  # a byte for each edge, once
    assert sizes[1] <= 8 * 10
    for place, wrong, found in (
        (995, 2000, "the id 2000"),
        (995, -3, "the id -3"),
        (995, 7, "an id that is there twice"),
    ):
        ids[place] = wrong
        said = wrong_edge_ids(graph.relation(None), None)
        assert said == f"found {found} among the edge ids; an edge map needs each of 0 to {count - 1} once"
