"""What a report counts, against a count edge by edge; its text and its JSON form."""

import dataclasses
import json

import pytest
import torch
from hetero_graphs import CITES, WRITES, library
from hypothesis import given
from hypothesis import strategies as st
from partitions import books, graphs, parts_of
from pipelines import graph_of

import datapipes as dp
from datapipes.base.checks import one_line
from datapipes.base.types import ends_of
from datapipes.distributed import PartitionBook, PartitionReport
from datapipes.partition.part_to_write import part_of_graph, remote_sources
from datapipes.partition.partition_report import MOST_MATRIX_PARTS, measure, refuse_contradictions
from datapipes.partition.row_chunks import PartRows
from datapipes.partition.source import Source


def nothing(text: str, done: int, total: int) -> None:
    """A Progress that says nothing."""


def with_training(graph, training=None) -> Source:
    return Source(graph, training or {}, graph.node_types, graph.edge_types, ("test_set, 2 links",))


def report_of(parts: list[int], num_parts: int, columns: list[list[int]], training=None) -> PartitionReport:
    training = None if training is None else {None: torch.tensor(training).bool()}
    return measure(
        with_training(graph_of(columns), training), PartitionBook(num_parts, torch.tensor(parts).long()), nothing
    )


@given(st.data())
def test_counts_equal_those_of_one_edge_at_a_time(data):
    graph = data.draw(graphs())
    book = data.draw(books(graph))
    kinds = data.draw(st.lists(st.sampled_from(graph.node_types), unique=True)) if graph.node_types else []
    masks = {kind: torch.arange(graph.num_nodes_of(kind)) % 3 == 0 for kind in kinds}
    report = measure(with_training(graph, masks), book, nothing)
    k = book.num_parts
    owner = {kind: parts_of(book, kind) for kind in graph.node_types}
    matrix = [[0] * k for _ in range(k)]
    for edge_type in graph.edge_types:
        (src, dst), relation, cut = ends_of(edge_type), graph.relation(edge_type), 0
        for node, part in enumerate(owner[dst]):
            for source in relation.indices[relation.indptr[node] : relation.indptr[node + 1]].tolist():
                matrix[part][owner[src][source]] += 1
                cut += part != owner[src][source]
        assert report.edges_by_type[edge_type] == (int(relation.indices.shape[0]), cut)
    assert report.edge_matrix == tuple(map(tuple, matrix))
    assert report.edges == tuple(map(sum, matrix))
    assert report.cut_edges == sum(map(sum, matrix)) - sum(matrix[i][i] for i in range(k))
    for kind in graph.node_types:
        assert report.nodes_by_type[kind] == tuple(owner[kind].count(part) for part in range(k))
    trained = [0] * k
    for kind, mask in masks.items():
        for part, is_trained in zip(owner[kind], mask.tolist(), strict=True):
            trained[part] += is_trained
    assert report.training_nodes == (tuple(trained) if kinds else None)
    remote = [remote_sources(part_of_graph(graph, book, part)) for part in range(k)]
    assert report.halo_nodes == tuple(sum(len(ids) for ids, _ in each.values()) for each in remote)
    assert PartitionReport.from_json(json.loads(json.dumps(report.to_json()))) == report
    refuse_contradictions("here", report)
    assert str(report)


def test_a_report_in_words_and_numbers():
    report = report_of([0, 0, 0, 1], 2, [[1, 3], [0, 2, 3], [3, 3, 2], [0]], [1, 1, 0, 1])
    assert report.edge_matrix == ((4, 4), (1, 0))
    assert (report.nodes, report.edges, report.halo_nodes, report.training_nodes) == ((3, 1), (8, 1), (1, 1), (2, 1))
    assert (report.cut_edges, report.cut_share) == (5, 5 / 9)
    assert report.balance == pytest.approx({"nodes": 1.5, "edges": 16 / 9, "training_nodes": 4 / 3})
    full = dataclasses.replace(report, method="metis", seconds={"assign": 1.5, "write": 0.25}, memory_bytes=3 * 2**20)
    assert str(full).splitlines() == [
        "2 parts by metis: 5 of 9 edges are cut (55.6 %)",
        "part  nodes  training nodes  edges  halo nodes",
        "0         3               2      8           1",
        "1         1               1      1           1",
        "largest part / mean: nodes 1.500, edges 1.778, training nodes 1.333",
        "seconds: assign 1.50, write 0.25; 1.75 in all",
        "memory: 3.0 MiB at most",
        "not in the parts: test_set, 2 links",
    ]
    assert PartitionReport.from_json(full.to_json()) == full
    assert full.to_json()["cut_edges"] == 5


def test_training_nodes_have_a_balance_where_there_are_some():
    uneven = report_of([0, 0, 0, 1], 2, [[], [], [], []], [0, 0, 0, 1])
    assert uneven.balance == pytest.approx({"nodes": 1.5, "edges": 1.0, "training_nodes": 2.0})
    for without in ([0] * 4, None):
        alone = report_of([0, 0, 0, 1], 2, [[], [], [], []], without)
        assert alone.balance == {"nodes": 1.5, "edges": 1.0}
        assert alone.training_nodes == (None if without is None else (0, 0))


def test_parts_without_training_nodes_are_named():
    report = report_of([0, 1, 1, 3], 4, [[], [], [], []], [0, 1, 0, 0])
    assert report.parts_without_training_nodes == (0, 2, 3)
    assert report.to_json()["parts_without_training_nodes"] == [0, 2, 3]
    lines = str(report).splitlines()
    assert lines[lines.index("parts without training nodes: 0, 2, 3") - 1].startswith("largest part / mean: ")
    assert PartitionReport.from_json(report.to_json()) == report
    most = report_of([39], 40, [[]], [1])
    assert f"parts without training nodes: {', '.join(map(str, range(32)))} and 7 more\n" in f"{most}\n"
    for training in ([1, 0, 0, 1], [0, 0, 0, 0], None):  # each part has some, or no node is one, or nobody knows
        other = report_of([0, 0, 1, 1], 2, [[], [], [], []], training)
        assert (other.parts_without_training_nodes, other.to_json()["parts_without_training_nodes"]) == ((), [])
        assert "without training nodes" not in str(other)


def test_types_have_rows_of_their_own():
    parts = {"author": [0, 1, 0], "paper": [0, 0, 1, 1], "venue": [1]}
    book = PartitionBook(2, {kind: torch.tensor(each) for kind, each in parts.items()})
    report = measure(with_training(library()), book, nothing)
    assert report.nodes_by_type == {"author": (2, 1), "paper": (2, 2), "venue": (0, 1)}
    assert (report.edges_by_type[WRITES], report.edges_by_type[CITES]) == ((5, 4), (3, 2))
    text = str(report)
    assert "node type  nodes  most  least\nauthor         3     2      1\n" in text
    assert "author:writes:paper           5    4\n" in text


def test_many_parts_have_no_matrix_and_a_short_table():
    num_parts = MOST_MATRIX_PARTS + 1
    report = report_of([num_parts - 1, 0, 1], num_parts, [[1, 1, 2], [0], []])
    assert report.edge_matrix is None
    assert (report.cut_edges, report.edges[-1], report.edges[0], sum(report.halo_nodes)) == (4, 3, 1, 3)
    assert f"... and {num_parts - 32} more" in str(report)
    assert len(str(report).splitlines()) == 37
    assert PartitionReport.from_json(report.to_json()) == report


def test_a_graph_without_nodes_and_a_graph_without_types_of_edges():
    empty = report_of([], 2, [])
    assert (empty.nodes, empty.cut_share) == ((0, 0), 0.0)
    assert empty.balance == {"nodes": 1.0, "edges": 1.0}
    lonely = dp.HeteroCSCGraph({}, {"a": 2})
    report = measure(with_training(lonely), PartitionBook(2, {"a": torch.tensor([0, 1])}), nothing)
    assert (report.nodes, report.edges, report.halo_nodes) == ((1, 1), (0, 0), (0, 0))
    assert str(measure(with_training(dp.HeteroCSCGraph({}, {})), PartitionBook(2, {}), nothing))


def test_edges_are_counted_in_pieces(monkeypatch):
    columns, parts = [[1, 2, 2, 0, 1], [0] * 7, [2, 1]], [0, 1, 1]
    whole = report_of(parts, 2, columns)

    def small(*args):
        return PartRows(*args, most_edges=2)

    monkeypatch.setattr("datapipes.partition.partition_report.PartRows", small)
    assert report_of(parts, 2, columns) == whole


def test_progress_is_told_and_ends_with_all(monkeypatch):
    said = []
    source, book = with_training(graph_of([[1], [0, 0], [1]])), PartitionBook(3, torch.tensor([0, 1, 2]))
    measure(source, book, lambda *each: said.append(each))
    assert said == [("count edges", 1, 4), ("count edges", 4, 4)]
    monkeypatch.setattr("datapipes.base.progress._SAID_EVERY_S", -1)
    measure(source, book, lambda *each: said.append(each))
    assert said[2:] == [("count edges", 1, 4), ("count edges", 3, 4), ("count edges", 4, 4)]


def test_a_book_of_another_graph_and_a_corrupt_graph_are_refused(refuses):
    graph = graph_of([[1], [0, 1], []])
    refuses(ValueError, measure, with_training(graph), PartitionBook(1, torch.tensor([0, 0])), nothing)
    graph.indices[1] = 7
    refuses(ValueError, measure, with_training(graph), PartitionBook(1, torch.tensor([0, 0, 0])), nothing)


def test_values_that_are_no_report_are_refused(refuses):
    good = report_of([0, 1], 2, [[1], []]).to_json()
    for name, values in {
        "edges": ([1], [1, -1], "12"),
        "num_parts": (0, "2"),
        "edge_matrix": ([[1, 2]],),
        "nodes_by_type": (3,),
        "edges_by_type": ([[None, 1]],),
        "seconds": ([],),
        "memory_bytes": (-1,),
        "training_nodes": ({},),
    }.items():
        for value in values:
            refuses(ValueError, PartitionReport.from_json, {**good, name: value})
        refuses(ValueError, PartitionReport.from_json, {key: good[key] for key in good if key != name})
    refuses(ValueError, PartitionReport.from_json, None)


def test_a_report_that_contradicts_itself_is_refused(refuses):
    good = report_of([0, 1, 1], 2, [[0, 0, 1], [0], []], [1, 1, 0]).to_json()
    assert (good["edge_matrix"], good["halo_nodes"], good["training_nodes"]) == ([[2, 1], [1, 0]], [1, 1], [1, 1])
    refuse_contradictions("here", PartitionReport.from_json(good))
    for change in (
        {"edges": [3, 2]},
        {"edges_by_type": [[None, 4, 5]]},
        {"edges_by_type": [[None, 4, 1]]},
        {"edges": [1, 3]},
        {"edge_matrix": [[1, 2], [1, 0]]},
        {"halo_nodes": [3, 1]},
        {"halo_nodes": [1, 2]},
        {"training_nodes": [2, 1]},
        {"nodes_by_type": [[None, [10**18, 1]]], "training_nodes": [0, 2]},
    ):
        refuses(ValueError, refuse_contradictions, "here", PartitionReport.from_json({**good, **change}))


def test_what_is_none_to_print_is_shown_with_escapes():
    report = dataclasses.replace(report_of([0], 1, [[]]), method="\x1b[31mred\n", seconds={"\t\u202e": 1.0})
    lines = str(report).split("\n")
    assert lines[0] == r"1 parts by \x1b[31mred\n: 0 of 0 edges are cut (0.0 %)"
    assert r"seconds: \t\u202e 1.00; 1.00 in all" in lines
    assert all(line.isprintable() for line in lines)
    assert one_line("größe, 数") == "größe, 数"
