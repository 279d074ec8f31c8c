"""Folders of an older version open as they did: a graph, a graph with types, and a partition of each in both layouts.

They lie in tests/corpus/folders/. `python tests/test_old_folders.py` made them, by the version before folders had one
writer; nobody runs it again. What is compared: ids, digests, every array, and the bytes that are written today.
"""

from pathlib import Path

import pytest
import torch
from partitions import expect_same, expect_same_values, reassembled
from pyg_layout import quiet, source_of, written

import datapipes as dp
from datapipes.base.array_digest import array_digest
from datapipes.base.types import ends_of
from datapipes.distributed import Part, PartitionBook
from datapipes.partition.book import with_edge_map
from datapipes.partition.native.native_write import write_native
from datapipes.partition.pyg.pyg_read import PygFolder

FOLDERS = Path(__file__).parent / "corpus" / "folders"
NUM_NODES = {"author": 4, "paper": 7, "venue": 0}
WRITES, CITES, HOSTS = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("venue", "hosts", "paper")

# {folder: digest of the graph, of all its arrays, partition_id, content_id}
IDS: dict[str, tuple[str, str, str, str]] = {
    "plain": (
        "5522953ec02ba51ccba8f497e70b3005",
        "933b1b41f50d1067353ed131b6d22039",
        "16f9f11fe376361e",
        "667817132e166731",
    ),
    "typed": (
        "f3756f468bb2db0baefe7504c7b8cfba",
        "7e27747d79a6b003b10632e0a948ba15",
        "e14f5e03e5a9f6b0",
        "0e1ebb8031380acd",
    ),
}


def columns_of(num_src: int, num_dst: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return edges by destination: node v has v % 4 in-edges, one of which may be there twice."""
    columns = [[(step * v + place // 2) % num_src for place in range(v % 4 if num_src else 0)] for v in range(num_dst)]
    indptr = torch.tensor([0, *map(len, columns)]).cumsum(0)
    return indptr, torch.tensor([u for column in columns for u in column], dtype=torch.int64)


def rows(count: int) -> dict[str, torch.Tensor]:
    """Attributes of several dtypes and widths, one of them without values."""
    numbers = torch.arange(count)
    return {
        "x": (numbers.view(-1, 1) + torch.tensor([0.5, -1.0, 2.0])).bfloat16(),
        "weight": (numbers % 3).double() / 2,
        "mask": numbers % 2 == 0,
        "größe/../y": torch.zeros(count, 0),
    }


def plain() -> dp.CSCGraph:
    indptr, indices = columns_of(9, 9, 5)
    count = len(indices)
    return dp.CSCGraph(
        indptr,
        indices,
        node_attributes=rows(9),
        edge_attributes=rows(count),
        edge_ids=torch.arange(count).flip(0),
    )


def typed() -> dp.HeteroCSCGraph:
    relations = {
        (src, rel, dst): columns_of(NUM_NODES[src], NUM_NODES[dst], 3) for src, rel, dst in (WRITES, CITES, HOSTS)
    }
    relations = {key: (indptr, indices.int()) for key, (indptr, indices) in relations.items()}
    return dp.HeteroCSCGraph(
        relations,
        NUM_NODES,
        node_attributes={"paper": rows(7), "venue": rows(0)},
        edge_attributes={CITES: rows(len(relations[CITES][1])), HOSTS: {"weight": torch.empty(0)}},
        edge_ids={WRITES: torch.arange(len(relations[WRITES][1])).flip(0)},
    )


GRAPHS = {"plain": plain, "typed": typed}


def write_parts(root: Path, graph: dp.CSCGraph | dp.HeteroCSCGraph, layouts: tuple[str, ...]) -> None:
    """Write a partition into two parts, nodes by turns."""
    nodes = {kind: torch.arange(graph.num_nodes_of(kind)) % 2 for kind in graph.node_types}
    book = with_edge_map(PartitionBook(2, nodes), graph)
    root.mkdir(parents=True)
    if "native" in layouts:
        write_native(root, source_of(graph), book, node_time_attr=None, about={"by": "hand"}, progress=quiet)
    if "pyg" in layouts:
        written(root, source_of(graph), book)


def ids_of(name: str) -> tuple[str, str, str, str]:
    """Return the ids that the folders of a graph have, as they are opened."""
    graph = type(GRAPHS[name]()).open(FOLDERS / name)
    part = Part.open(FOLDERS / f"{name}-parts", 1, fingerprint=graph)
    return graph.digest(), joint_digest(graph), part.partition_id, part.content_id


def joint_digest(graph: dp.CSCGraph | dp.HeteroCSCGraph) -> str:
    digests = [array_digest(values) for _, values, _ in graph._named_arrays()]
    return array_digest(torch.tensor([int(digest[:15], 16) for digest in digests]))


def files_in(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", GRAPHS)
def test_ids_and_digests_are_those_of_that_time(name):
    assert ids_of(name) == IDS[name]


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_has_the_arrays_that_were_written(name, mmap):
    expected = GRAPHS[name]()
    found = type(expected).open(FOLDERS / name, mmap, verify=True)
    assert (found.digest(), joint_digest(found)) == (expected.digest(), joint_digest(expected)) == IDS[name][:2]
    for kind in expected.node_types:
        expect_same_values(found.node_attributes_of(kind), expected.node_attributes_of(kind))
    for key in expected.edge_types:
        ours, theirs = found.relation(key), expected.relation(key)
        assert (ours.edge_ids is None) == (theirs.edge_ids is None)
        expect_same_values(ours.edge_attributes, theirs.edge_attributes)
    assert [name for name, *_ in found._named_arrays()] == [name for name, *_ in expected._named_arrays()]
    for (_, ours, _), (_, theirs, _) in zip(found._named_arrays(), expected._named_arrays(), strict=True):
        expect_same_values({"": ours}, {"": theirs})


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_written_today_has_the_same_bytes(name, tmp_path):
    GRAPHS[name]().save(tmp_path / name)
    assert files_in(tmp_path / name) == files_in(FOLDERS / name)
    write_parts(tmp_path / f"{name}-parts", GRAPHS[name](), ("native",))
    native = files_in(tmp_path / f"{name}-parts")
    assert {"partition.json", "part_0/part.json", "part_1/arrays.npy", "book/book.json"} <= native.keys()
    assert native == {path: content for path, content in files_in(FOLDERS / f"{name}-parts").items() if path in native}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_parts_of_the_native_layout_make_up_the_graph(name):
    expect_same(reassembled(FOLDERS / f"{name}-parts"), GRAPHS[name]())


@pytest.mark.parametrize("name", GRAPHS)
def test_the_parts_of_the_layout_of_pyg_make_up_the_graph(name):
    graph, folder = GRAPHS[name](), PygFolder(FOLDERS / f"{name}-parts")
    assert folder.book.num_parts == 2
    for key in graph.edge_types:
        relation = graph.relation(key)
        found = [part[key] for part in (folder.edges(0), folder.edges(1)) if key in part]
        columns = [(each.row, each.col, each.edge_id) for each in found]
        destinations = torch.repeat_interleave(torch.arange(len(relation.indptr) - 1), relation.indptr.diff())
        ids = torch.arange(relation.indices.shape[0]) if relation.edge_ids is None else relation.edge_ids
        expected = (relation.indices.long(), destinations, ids)
        assert sorted(edge for each in columns for edge in zip(*(values.tolist() for values in each), strict=True)) == (
            sorted(zip(*(values.tolist() for values in expected), strict=True))
        )
        assert all(each.size == tuple(map(graph.num_nodes_of, ends_of(key))) for each in found)
        expect_same_features([folder.edge_features(part) for part in (0, 1)], key, relation.edge_attributes, ids)
    for kind in graph.node_types:
        ids = torch.arange(graph.num_nodes_of(kind))
        expect_same_features([folder.node_features(part) for part in (0, 1)], kind, graph.node_attributes_of(kind), ids)


def expect_same_features(parts: list, of, attributes: dict[str, torch.Tensor], ids: torch.Tensor) -> None:
    """The rows of all parts are those of the graph, whose ids are `ids`; no rows, no features."""
    found = [part[of] for part in parts if of in part]
    if not attributes or not len(ids):
        return
    order = torch.cat([each.ids for each in found]).argsort()
    together = {name: torch.cat([each.of_ids[name] for each in found])[order] for name in found[0].of_ids}
    expect_same_values(together, {name: values[ids.argsort()] for name, values in attributes.items()})


if __name__ == "__main__":
    for name, make in GRAPHS.items():
        make().save(FOLDERS / name)
        write_parts(FOLDERS / f"{name}-parts", make(), ("native", "pyg"))
        print(f"{name!r}: {ids_of(name)!r},")
