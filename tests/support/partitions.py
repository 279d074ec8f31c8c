"""Partitions of the tests: graphs with everything, seeds in them, any assignment to parts, and slow equivalents."""

from collections import Counter
from pathlib import Path

import torch
from channels import num_descriptors
from hetero_graphs import many_relations, typed_edges
from hypothesis import strategies as st
from strategies import csc_graphs

import datapipes as dp
from datapipes.base.codec import digest_message
from datapipes.base.types import ends_of
from datapipes.distributed import Part, PartitionBook
from datapipes.graph.graph import Graph
from datapipes.partition.book import RangeMap
from datapipes.partition.native.native_write import write_native
from datapipes.partition.source import Source
from datapipes.processes.copies import bits
from datapipes.processes.sharing import Packed

TIME = "time"


def source_of(graph: dp.CSCGraph | dp.HeteroCSCGraph) -> Source:
    """A Source without training nodes, its types in the graph's order."""
    return Source(graph, {}, graph.node_types, graph.edge_types)


def attributes_of(count: int, rng_seed: int) -> dict[str, torch.Tensor]:
    """Attributes of several dtypes and widths for `count` rows."""
    made = torch.Generator().manual_seed(rng_seed)
    wide = torch.randn(count, 6, generator=made)
    return {
        "x": wide[:, :3].bfloat16(),
        "x/y ../größe": torch.complex(wide[:, 1], wide[:, 0]),
        "mask": wide[:, 0] > 0,
        "": torch.zeros(count, 0),
        "across": wide.t().contiguous().t().double(),  # the values of a row are not adjacent
        TIME: torch.randint(100, (count,), generator=made),
    }


@st.composite
def graphs(draw) -> Graph:
    """Any graph with or without types, int32 or int64: self-loops, parallel edges, empty types, edge ids of its own."""
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    own_ids, rng_seed = draw(st.booleans()), draw(st.integers(0, 1000))
    if draw(st.booleans()):
        indptr, indices = draw(csc_graphs())
        count = len(indices)
        return dp.CSCGraph(
            indptr,
            indices,
            node_attributes=attributes_of(len(indptr) - 1, rng_seed),
            edge_attributes=attributes_of(count, rng_seed + 1),
            edge_ids=torch.randperm(count, generator=torch.Generator().manual_seed(rng_seed)) if own_ids else None,
        )
    edges = draw(typed_edges())
    made = dp.HeteroCSCGraph.from_edge_index(edges.edge_index(dtype), edges.num_nodes)
    relations = {key: made.relation(key) for key in made.edge_types}
    return dp.HeteroCSCGraph(
        {key: (each.indptr, each.indices) for key, each in relations.items()},
        made.num_nodes,
        node_attributes={kind: attributes_of(count, rng_seed) for kind, count in made.num_nodes.items()},
        edge_attributes={key: attributes_of(each.num_edges, rng_seed + 1) for key, each in relations.items()},
        edge_ids={key: each.edge_ids for key, each in relations.items()} if own_ids else None,
    )


@st.composite
def books(draw, graph: Graph, most_parts: int = 8) -> PartitionBook:
    """Any assignment to 1 to 8 parts, dense or by ranges, some of them empty."""
    num_parts = draw(st.integers(1, most_parts))
    nodes = {}
    for node_type in graph.node_types:
        count = graph.num_nodes_of(node_type)
        if draw(st.booleans()):
            nodes[node_type] = torch.tensor(
                draw(st.lists(st.integers(0, num_parts - 1), min_size=count, max_size=count)), dtype=torch.int64
            )
        else:
            cuts = draw(st.lists(st.integers(0, count), min_size=num_parts - 1, max_size=num_parts - 1))
            nodes[node_type] = RangeMap(torch.tensor([0, *sorted(cuts), count]))
    return PartitionBook(num_parts, nodes)


def fanouts_of(graph: Graph) -> st.SearchStrategy[list]:
    """One to three hops, a number for each edge type; some edge type is drawn from."""
    number = st.integers(-1, 3)
    if not graph.is_heterogeneous:
        return st.lists(number, min_size=1, max_size=3)
    hop = st.fixed_dictionaries(dict.fromkeys(graph.edge_types, number))
    return st.lists(hop, min_size=1, max_size=3).filter(lambda hops: any(any(hop.values()) for hop in hops))


@st.composite
def item_sets_of(draw, graph: Graph) -> dp.ItemSet | dp.HeteroItemSet:
    """Seeds of each node type that has nodes."""
    sets = {}
    for of in graph.node_types:
        if graph.num_nodes_of(of) > 0:
            ids = draw(st.lists(st.integers(0, graph.num_nodes_of(of) - 1), min_size=1, max_size=9))
            sets[of] = dp.ItemSet(torch.tensor(ids))
    return dp.HeteroItemSet(sets) if graph.is_heterogeneous else sets[None]


def parts_of(book: PartitionBook, node_type: str | None) -> list[int]:
    """The part of each node, one by one."""
    found = book.nodes(node_type)
    return [int(found.part_of(torch.tensor([node]))) for node in range(found.num_ids)]


def slow_positions(graph: Graph, book: PartitionBook, edge_type, part: int) -> list[int]:
    """The positions of a part's edges in the whole relation: node by node, edge by edge."""
    indptr = graph.relation(edge_type).indptr.tolist()
    owner = parts_of(book, ends_of(edge_type)[1])
    return [place for node, own in enumerate(owner) if own == part for place in range(indptr[node], indptr[node + 1])]


def slow_remote(graph: Graph, book: PartitionBook, part: int) -> dict:
    """{source type: [(node of another part, edges of the part that come from it)]}, the most frequent first."""
    counts = {ends_of(edge_type)[0]: Counter() for edge_type in graph.edge_types}
    for edge_type in graph.edge_types:
        src = ends_of(edge_type)[0]
        owner, indices = parts_of(book, src), graph.relation(edge_type).indices.tolist()
        for place in slow_positions(graph, book, edge_type, part):
            if owner[indices[place]] != part:
                counts[src][indices[place]] += 1
    return {src: sorted(found.items(), key=lambda each: (-each[1], each[0])) for src, found in counts.items()}


def write(folder, graph: Graph, book: PartitionBook, **arguments):
    """Write the native layout into the new folder `folder`; return the folder."""
    folder.mkdir(parents=True)
    arguments = {"node_time_attr": None, "about": {}, "progress": lambda *_: None, **arguments}
    write_native(folder, source_of(graph), book, **arguments)
    return folder


def reassembled(root) -> dp.CSCGraph | dp.HeteroCSCGraph:
    """The graph that the parts in `root` make up; every edge has its id. Looks at the parts only, not at the book."""
    first = Part.open(root, 0)
    parts = [first, *(Part.open(root, part) for part in range(1, first.num_parts))]
    nodes = {kind: joined_nodes(parts, kind) for kind in first.node_types}
    relations = {key: joined_relation(parts, key) for key in first.edge_types}
    if first.node_types == (None,):
        indptr, indices, edge_ids, edges = relations[None]
        return dp.CSCGraph(indptr, indices, edge_ids=edge_ids, node_attributes=nodes[None], edge_attributes=edges)
    return dp.HeteroCSCGraph(
        {key: each[:2] for key, each in relations.items()},
        {kind: first.num_nodes_of(kind) for kind in first.node_types},
        node_attributes=nodes,
        edge_ids={key: each[2] for key, each in relations.items()},
        edge_attributes={key: each[3] for key, each in relations.items()},
    )


def joined_nodes(parts: list[Part], kind: str | None) -> dict[str, torch.Tensor]:
    ids = torch.cat([part.node_ids(kind) for part in parts])
    assert ids.sort().values.tolist() == list(range(parts[0].num_nodes_of(kind))), "a node in no part, or in two"
    attributes = [part.node_attributes_of(kind) for part in parts]
    assert len({tuple(sorted(each)) for each in attributes}) == 1
    return {name: torch.cat([each[name] for each in attributes])[ids.argsort()] for name in attributes[0]}


def joined_relation(parts: list[Part], key) -> tuple:
    num_nodes = parts[0].num_nodes_of(ends_of(key)[1])
    degrees = torch.zeros(num_nodes, dtype=torch.int64)
    for part in parts:
        degrees[part.node_ids(ends_of(key)[1])] += part.relation(key).indptr.diff()
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    rows = [relation_rows(part.relation(key)) for part in parts]
    places = torch.cat(
        [
            torch.arange(int(indptr[node]), int(indptr[node + 1]))
            for part in parts
            for node in part.node_ids(ends_of(key)[1]).tolist()
        ]
        or [torch.zeros(0, dtype=torch.int64)]
    )
    order = places.argsort()
    whole = {name: torch.cat([each[name] for each in rows])[order] for name in rows[0]}
    edges = {name: values for (kind, name), values in whole.items() if kind == "edge"}
    return indptr, whole["", "indices"], whole["", "edge_ids"], edges


def relation_rows(relation) -> dict[tuple[str, str], torch.Tensor]:
    attributes = {("edge", name): values for name, values in relation.edge_attributes.items()}
    return {("", "indices"): relation.indices, ("", "edge_ids"): relation.edge_ids, **attributes}


def expect_same(found: Graph, expected: Graph) -> None:
    """Every bit of two graphs is equal; an edge without an id of its own has its position."""
    assert (found.node_types, found.edge_types, found.num_nodes) == (
        expected.node_types,
        expected.edge_types,
        expected.num_nodes,
    )
    for kind in expected.node_types:
        expect_same_values(found.node_attributes_of(kind), expected.node_attributes_of(kind))
    for key in expected.edge_types:
        ours, theirs = found.relation(key), expected.relation(key)
        ids = torch.arange(theirs.indices.shape[0]) if theirs.edge_ids is None else theirs.edge_ids
        expect_same_values(
            {"indptr": ours.indptr, "indices": ours.indices, "ids": ours.edge_ids},
            {"indptr": theirs.indptr, "indices": theirs.indices, "ids": ids},
        )
        expect_same_values(ours.edge_attributes, theirs.edge_attributes)


def expect_same_values(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert (name, found[name].dtype, found[name].shape) == (name, values.dtype, values.shape)
        assert torch.equal(bits(found[name].contiguous()), bits(values.contiguous())), name


def content_of(part: Part) -> dict[str, torch.Tensor]:
    """All tensors of a part and of its book, by name."""
    found = {f"book.{kind}": part.book.nodes(kind).stored() for kind in part.book.node_types}
    for kind in part.node_types:
        found[f"ids.{kind}"] = part.node_ids(kind)
        found |= {f"hot.{kind}.{number}": each for number, each in enumerate(part.hot_nodes(kind))}
        found |= {f"node.{kind}.{name}": values for name, values in part.node_attributes_of(kind).items()}
    for key in part.edge_types:
        relation = part.relation(key)
        found |= {f"{name}.{key}": getattr(relation, name) for name in ("indptr", "indices", "edge_ids")}
        found |= {f"edge.{key}.{name}": values for name, values in relation.edge_attributes.items()}
    return found


def big_partition(root) -> Part:
    """Part 0 of a graph of 40 relations; some MB, so that a copy would be seen."""
    graph = many_relations(40, 5_000, num_nodes=20_000)
    owners = torch.arange(20_000) % 3 % 2
    return Part.open(write(root, graph, PartitionBook(2, {"a": owners, "b": owners})), 0)


def read_whole(packed: Packed) -> tuple[str, int, int]:
    """Runs in a child: return the digest of a part, the private memory that reading took, and the open files."""
    _ = torch.arange(10).sum()
    before, files = private_bytes(), num_descriptors()
    got = packed.unpack()
    message = content_of(got["part"])
    total = sum(float(values.sum()) for values in message.values())
    more, opened = private_bytes() - before, num_descriptors() - files
    assert total > 0
    assert got["book"].get_partition_ids_from_nids(torch.tensor([1, 2]), "a").tolist() == [1, 0]
    return digest_message(message), more, opened


def private_bytes() -> int:
    """Return the anonymous memory of this process; pages of a file that only it maps are no memory of its own."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))
