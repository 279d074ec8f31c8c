"""The native layout: what the parts make up is the whole graph, bit for bit; a damaged file is named, never opened."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from partitions import books, expect_same, graphs, parts_of, reassembled, write

from datapipes.base.types import ends_of
from datapipes.distributed import Part, open_book


def new_folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("partition") / "root"


# --- what was written comes back


@settings(max_examples=60)
@given(st.data())
def test_the_parts_of_any_assignment_make_up_the_whole_graph(tmp_path_factory, data):
    graph = data.draw(graphs())
    book = data.draw(books(graph))
    root = write(new_folder(tmp_path_factory), graph, book)
    expect_same(reassembled(root), graph)
    opened = open_book(root)
    for part in range(book.num_parts):
        found = Part.open(root, part, book=opened, fingerprint=graph)
        for key in graph.edge_types:
            owner = parts_of(book, ends_of(key)[1])
            degrees = graph.relation(key).indptr.diff().tolist()
            own = [node for node, each in enumerate(owner) if each == part]
            assert found.node_ids(ends_of(key)[1]).tolist() == own
            assert found.relation(key).indptr.diff().tolist() == [degrees[node] for node in own]
