"""The nodes of other parts that a part's edges point to, against a count edge by edge."""

import torch
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from partitions import books, graphs, slow_remote
from pipelines import graph_of

from datapipes.distributed import PartitionBook
from datapipes.partition.part_to_write import by_count, part_of_graph, remote_sources


@examples(50)
@given(st.data())
def test_remote_sources_equal_the_slow_count(data):
    graph = data.draw(graphs())
    book = data.draw(books(graph))
    for part in range(book.num_parts):
        found = remote_sources(part_of_graph(graph, book, part))
        assert {(ids.dtype, counts.dtype) for ids, counts in found.values()} <= {(torch.int64, torch.int64)}
        slow = slow_remote(graph, book, part)
        assert {
            kind: list(zip(ids.tolist(), counts.tolist(), strict=True)) for kind, (ids, counts) in found.items()
        } == slow


def test_frequent_nodes_come_first_and_equal_counts_by_id():
    graph = graph_of([[4, 3, 5, 3, 0], [4, 2, 5], [], [], [], []])
    book = PartitionBook(2, torch.tensor([0, 0, 1, 1, 1, 1]))
    ids, counts = remote_sources(part_of_graph(graph, book, 0))[None]
    assert (ids.tolist(), counts.tolist()) == ([3, 4, 5, 2], [2, 2, 2, 1])
    assert [each.numel() for each in remote_sources(part_of_graph(graph, book, 1))[None]] == [0, 0]


def test_a_corrupt_graph_and_another_book_are_refused(refuses):
    graph = graph_of([[1], [0, 1], []])

    def count(num_nodes):
        remote_sources(part_of_graph(graph, PartitionBook(1, torch.zeros(num_nodes, dtype=torch.int64)), 0))

    refuses(ValueError, count, 2)
    graph.indices[1] = 3
    refuses(ValueError, count, 3)
    graph.indices[1], graph.indptr[1] = 0, 4
    refuses(ValueError, count, 3)


@given(st.lists(st.integers(0, 3), max_size=8))
def test_counts_too_large_for_one_key_give_the_same_order(counts):
    plain = by_count(torch.tensor(counts, dtype=torch.int64))
    packed = by_count(torch.tensor(counts, dtype=torch.int32))
    assert [each.tolist() for each in packed] == [each.tolist() for each in plain]
    assert [each.dtype for each in packed] == [torch.int64, torch.int64]
