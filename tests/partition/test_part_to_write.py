"""A part of a graph as its writers ask for it, against the rows of the whole graph."""

import torch
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from partitions import TIME, books, expect_same_values, graphs, slow_positions

from datapipes.base.types import ends_of
from datapipes.partition.part_to_write import part_of_graph


def values_of(column):
    """All values of a column, of the dtype and shape that it says."""
    found = torch.cat([torch.empty((0, *column.shape[1:]), dtype=column.dtype), *column.pieces()])
    assert (found.dtype, found.shape) == (column.dtype, torch.Size(column.shape))
    return found


@examples(50)
@given(st.data())
def test_the_columns_of_a_part_are_rows_of_the_graph(data):
    graph = data.draw(graphs())
    book = data.draw(books(graph))
    times = {kind: graph.node_attributes_of(kind)[TIME] for kind in graph.node_types[:1]}
    for number in range(book.num_parts):
        part = part_of_graph(graph, book, number, times)
        assert ([*part.nodes], [*part.edges]) == ([*graph.node_types], [*graph.edge_types])
        for kind, nodes in part.nodes.items():
            assert nodes.ids.tolist() == book.nodes(kind).ids_of(number).tolist()
            given_rows = {name: values[nodes.ids] for name, values in graph.node_attributes_of(kind).items()}
            expect_same_values({name: values_of(each) for name, each in nodes.attributes.items()}, given_rows)
        for kind, edges in part.edges.items():
            relation, places = graph.relation(kind), torch.tensor(slow_positions(graph, book, kind, number)).long()
            src, dst = ends_of(kind)
            degrees = relation.indptr.diff()[part.nodes[dst].ids]
            assert values_of(edges.indptr).tolist() == [0, *degrees.cumsum(0).tolist()]
            assert (edges.num_edges, edges.total) == (places.shape[0], relation.indices.shape[0])
            for _ in range(2):  # the pieces are made anew
                assert torch.equal(values_of(edges.indices), relation.indices[places])
            ids = places if relation.edge_ids is None else relation.edge_ids[places]
            assert torch.equal(values_of(edges.edge_ids), ids)
            assert (edges.source_times is None) == (src not in times)
            if edges.source_times is not None:
                assert torch.equal(values_of(edges.source_times), times[src][relation.indices[places].long()])
            given_rows = {name: values[places] for name, values in relation.edge_attributes.items()}
            expect_same_values({name: values_of(each) for name, each in edges.attributes.items()}, given_rows)
