"""The rows of a part in pieces of any size, against a walk edge by edge."""

import pytest
import torch
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from partitions import attributes_of, books, graphs, parts_of, slow_positions
from pipelines import graph_of

from datapipes.base.types import ends_of
from datapipes.partition import row_chunks
from datapipes.partition.row_chunks import PartRows, rows_at, rows_of_nodes


def joined(pieces, dtype=torch.int64) -> torch.Tensor:
    return torch.cat([torch.zeros(0, dtype=dtype), *pieces])


@examples(25)
@given(st.data(), st.sampled_from([1, 2, 7, 1000]))
def test_pieces_of_any_size_make_up_the_rows_of_a_part(data, most):
    graph = data.draw(graphs())
    book = data.draw(books(graph, most_parts=3))
    for edge_type in graph.edge_types:
        src, dst = ends_of(edge_type)
        relation, owner = graph.relation(edge_type), parts_of(book, dst)
        for part in range(book.num_parts):
            ids = book.nodes(dst).ids_of(part)
            assert ids.tolist() == [node for node, own in enumerate(owner) if own == part]
            rows = PartRows(graph, edge_type, ids, most_edges=most)
            places = slow_positions(graph, book, edge_type, part)
            assert all(0 < piece.shape[0] <= most for piece in rows.positions())
            assert joined(rows.positions()).tolist() == places
            assert rows.num_edges == len(places)
            degrees = relation.indptr.diff()[ids]
            assert joined(rows.indptr()).tolist() == [0, *degrees.cumsum(0).tolist()]
            assert joined(rows.destinations()).tolist() == torch.repeat_interleave(ids, degrees).tolist()
            indices = joined(rows.indices(), relation.indices.dtype)
            assert (indices.dtype, indices.tolist()) == (relation.indices.dtype, relation.indices[places].tolist())
            edge_ids = places if relation.edge_ids is None else relation.edge_ids[places].tolist()
            assert joined(rows.edge_ids()).tolist() == edge_ids
            for values in relation.edge_attributes.values():
                expect_rows(rows.of_edges(values), values, places)
            for values in graph.node_attributes_of(src).values():
                expect_rows(rows.of_sources(values), values, indices.tolist())
            for values in graph.node_attributes_of(dst).values():
                expect_rows(rows_of_nodes(values, ids), values, ids.tolist())


def expect_rows(pieces, values: torch.Tensor, places: list[int]) -> None:
    got = torch.cat([values[:0], *pieces])
    assert got.dtype == values.dtype
    assert torch.equal(got, values[places])


@pytest.mark.parametrize("most_bytes", [1, 40])
def test_pieces_of_values_stay_below_a_size(monkeypatch, most_bytes):
    monkeypatch.setattr(row_chunks, "MOST_BYTES", most_bytes)
    places = [torch.tensor([3, 4, 9]), torch.tensor([0, 8])]
    for values in attributes_of(10, 1).values():
        pieces = list(rows_at(values, places))
        assert all(piece.shape[0] == 1 or piece.nbytes <= most_bytes for piece in pieces)
        assert all(piece.is_contiguous() for piece in pieces)
        expect_rows(pieces, values, [3, 4, 9, 0, 8])


@pytest.mark.parametrize("name", ["uint16", "float8_e4m3fn", "int8", "float64", "complex128"])
@pytest.mark.parametrize("across", [False, True])
def test_rows_of_any_dtype_are_taken_bit_by_bit(name, across):
    dtype = getattr(torch, name)
    values = torch.arange(10 * 2 * dtype.itemsize).to(torch.uint8).view(dtype).view(10, 2)
    values = values.t().contiguous().t() if across and name not in ("uint16", "float8_e4m3fn") else values
    (got,) = rows_at(values, [torch.tensor([1, 7])])
    expected = values.contiguous().view(torch.uint8)[[1, 7]]
    assert got.dtype == dtype
    assert torch.equal(got.view(torch.uint8), expected)


def test_values_that_are_conjugated_or_negated_lazily_are_resolved():
    values = torch.complex(torch.arange(4.0), torch.arange(4.0))
    (got,) = rows_at(values.conj(), [torch.tensor([1, 3])])
    assert torch.equal(got, torch.tensor([1 - 1j, 3 - 3j]))
    (got,) = rows_at(values.conj().imag, [torch.tensor([1, 3])])
    assert torch.equal(got, torch.tensor([-1.0, -3.0]))


def test_a_negative_edge_id_is_refused(refuses):
    graph = graph_of([[0, 0], [0]], edge_ids=torch.tensor([5, -1, 2]))
    refuses(ValueError, list, PartRows(graph, None, torch.tensor([0, 1])).edge_ids())
    assert joined(PartRows(graph, None, torch.tensor([1])).edge_ids()).tolist() == [2]
