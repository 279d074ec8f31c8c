"""Part.of_stores: the part that two stores in memory hold, whatever their order; and what is refused."""

import copy

import pytest
import torch
from local_stores import book_of, partitioned, plain_graph, typed_graph

from datapipes.distributed import LocalFeatureStore, LocalGraphStore, Part

NUM_NODES, NUM_EDGES = 20, 90


def edges(seed=0):
    made = torch.Generator().manual_seed(seed)
    return torch.randint(NUM_NODES, (2, NUM_EDGES), generator=made)


def stores(rank=0, *, order=None, ids=True, seed=0):
    """The stores of the nodes of a parity, with edges and features in an order."""
    columns, owner = edges(seed), torch.arange(NUM_NODES) % 2
    nodes = (owner == rank).nonzero().flatten()
    own = (owner[columns[1]] == rank).nonzero().flatten()
    if order is not None:
        made = torch.Generator().manual_seed(order)
        nodes = nodes[torch.randperm(len(nodes), generator=made)]
        own = own[torch.randperm(len(own), generator=made)]
    x = torch.arange(NUM_NODES * 3.0).view(NUM_NODES, 3)
    attr = torch.arange(NUM_EDGES * 2.0).view(NUM_EDGES, 2)
    features = LocalFeatureStore.from_data(nodes, x=x[nodes], edge_id=own, edge_attr=attr[own])
    graph = LocalGraphStore.from_data(own if ids else None, columns[:, own], NUM_NODES)
    graph.node_pb, graph.edge_pb, graph.partition_idx, graph.num_partitions = owner, owner[columns[1]], rank, 2
    return graph, features


def content(part):
    """What a part holds, to compare."""
    relation = part.relation()
    arrays = [
        part.node_ids(),
        relation.indptr,
        relation.indices,
        relation.edge_ids,
        relation.edge_attributes["edge_attr"],
    ]
    return [each.tolist() for each in (*arrays, part.node_attributes_of()["x"])]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_part_has_the_rows_of_its_nodes_by_edge_id(rank):
    part = Part.of_stores(*stores(rank, order=3))
    columns = edges()
    assert (part.part, part.num_parts, part.num_nodes_of()) == (rank, 2, NUM_NODES)
    assert part.node_ids().tolist() == list(range(rank, NUM_NODES, 2))
    relation = part.relation()
    for row, node in enumerate(part.node_ids().tolist()):
        ids = relation.edge_ids[relation.indptr[row] : relation.indptr[row + 1]]
        assert ids.tolist() == (columns[1] == node).nonzero().flatten().tolist()
    assert torch.equal(relation.indices, columns[0, relation.edge_ids])
    assert torch.equal(relation.edge_attributes["edge_attr"][:, 0], 2.0 * relation.edge_ids)
    assert torch.equal(part.node_attributes_of()["x"][:, 0], 3.0 * part.node_ids())


def test_the_order_of_the_stores_does_not_count():
    one, other = (Part.of_stores(*stores(order=order)) for order in (None, 5))
    assert content(one) == content(other)
    assert (one.fingerprint, one.content_id) == (other.fingerprint, other.content_id)


def test_what_has_the_order_of_a_part_is_not_copied():
    graph, features = stores()
    part = Part.of_stores(graph, features)
    row, _ = graph.get_edge_index(None, "coo")
    assert part.relation().indices.data_ptr() == row.data_ptr()
    assert part.node_attributes_of()["x"].data_ptr() == features.get_tensor(None, "x").data_ptr()


def test_edges_of_other_parts_are_left_out_and_edges_without_ids_numbered():
    columns, owner = edges(), torch.arange(NUM_NODES) % 2
    told = []
    for _ in range(2):  # as each part hears of the other
        parts = []
        for rank in range(2):
            graph = LocalGraphStore.from_data(None, columns, NUM_NODES)
            graph.node_pb, graph.partition_idx, graph.num_partitions = owner, rank, 2
            features = LocalFeatureStore.from_data(torch.arange(NUM_NODES), x=torch.ones(NUM_NODES, 1))

            def tell(value):
                told[:] = [each for each in told if each["part"] != value["part"]] + [value]
                return [*told]

            parts.append(Part.of_stores(graph, features, tell=tell))
    assert [part.num_edges_of() for part in parts] == [NUM_EDGES] * 2
    assert sorted(torch.cat([part.relation().edge_ids for part in parts]).tolist()) == [*range(NUM_EDGES)]
    assert parts[0].fingerprint == parts[1].fingerprint
    for part in parts:
        owners = part.book.get_partition_ids_from_eids(part.relation().edge_ids)
        assert bool((owners == part.part).all())


@pytest.mark.parametrize("on", ["nodes", "edges", "edges in the group of the nodes"])
def test_rows_are_in_the_order_of_times(on):
    graph, features = stores(order=4)
    made = torch.Generator().manual_seed(1)
    time = torch.randint(5, (NUM_NODES if on == "nodes" else NUM_EDGES,), generator=made)
    if on == "nodes":
        features.put_tensor(time, None, "time")
    elif on == "edges":
        features.put_tensor(time[features.get_global_id((None, None))], (None, None), "time")
    else:
        features.put_tensor(time[graph.get_edge_id(None, "coo")], None, "when")
    part = Part.of_stores(graph, features, time_attr="when" if on.endswith("the nodes") else "time")
    relation = part.relation()
    of_each = time[relation.indices] if on == "nodes" else time[relation.edge_ids]
    rows = torch.repeat_interleave(relation.indptr.diff())
    keys = list(zip(rows.tolist(), of_each.tolist(), relation.edge_ids.tolist(), strict=True))
    assert keys == sorted(keys)
    if on == "nodes":
        assert part.node_time_attr == "time"
        assert torch.equal(relation.source_times, of_each)
        assert part.earliest_nodes[None].node == int((time == time.min()).nonzero()[0])


def test_a_part_of_a_native_folder_is_kept(tmp_path):
    graph = plain_graph()
    partitioned(tmp_path, graph, book_of(graph), ["native"])
    pair = LocalGraphStore.from_partition(tmp_path, 1), LocalFeatureStore.from_partition(tmp_path, 1)
    part = Part.of_stores(*pair)
    assert part is pair[0].part
    pair[1].put_tensor(torch.ones(6, 1), None, "more")
    changed = Part.of_stores(*pair)
    assert changed is not part
    assert {*changed.node_attributes_of()} == {*part.node_attributes_of(), "more"}
    assert torch.equal(changed.relation().edge_ids.sort().values, part.relation().edge_ids.sort().values)


def test_types_and_a_type_without_nodes_here(tmp_path):
    graph = typed_graph()
    for layout in ("pyg", "native"):
        (tmp_path / layout).mkdir()
        partitioned(tmp_path / layout, graph, book_of(graph), [layout])
    for number in range(2):
        pair = (each.from_partition(tmp_path / "pyg", number) for each in (LocalGraphStore, LocalFeatureStore))
        part, native = Part.of_stores(*pair), Part.open(tmp_path / "native", number)
        for of in graph.node_types:
            assert torch.equal(part.node_ids(of), native.node_ids(of))
            if len(part.node_ids(of)) == 0:  # only another part knows which attributes there are
                continue
            for name, values in native.node_attributes_of(of).items():
                assert torch.equal(part.node_attributes_of(of)[name], values)
        for of in graph.edge_types:
            one, other = part.relation(of), native.relation(of)
            assert torch.equal(one.indptr, other.indptr)
            order = [torch.argsort(each.edge_ids) for each in (one, other)]
            for name in ("edge_ids", "indices"):
                found, expected = (getattr(each, name)[at] for each, at in zip((one, other), order, strict=True))
                assert torch.equal(found, expected)


def test_stores_that_do_not_fit_are_refused(refuses):
    def refused(change, error=ValueError, **options):
        graph, features = stores()
        change(graph, features)
        refuses(error, Part.of_stores, graph, features, **options)

    refused(lambda g, f: g.remove_edge_id(None, "coo"))
    refused(lambda g, f: f.remove_global_id((None, None)))
    refused(lambda g, f: f.put_global_id(torch.arange(100, 110), None))
    refused(lambda g, f: f.put_tensor(torch.ones(7), None, "z"))
    refused(lambda g, f: setattr(g, "node_pb", torch.zeros(5, dtype=torch.int64)), IndexError)
    refused(lambda g, f: setattr(g, "edge_pb", torch.zeros(5, dtype=torch.int64)))
    refused(lambda g, f: (setattr(g, "node_pb", None), setattr(f, "node_feat_pb", None)))
    refused(lambda g, f: g.remove_edge_index(None, "coo"))
    refused(lambda g, f: setattr(g, "partition_idx", 2))
    refused(lambda g, f: None, time_attr="when")
    refused(lambda g, f: f.put_tensor(torch.zeros(10), None, "time"), time_attr="time")

    def twice(graph, features):
        ids = graph.get_edge_id(None, "coo").clone()
        ids[1] = ids[0]
        graph.put_edge_id(ids, None, "coo")
        features.put_global_id(ids, (None, None))

    refused(twice)


def test_parts_of_different_partitions_are_refused(refuses):
    def telling(*others):
        return lambda value: [value, *others]

    told = []
    Part.of_stores(*stores(1), tell=lambda value: told.append(value) or [value])
    Part.of_stores(*stores(0), tell=telling(*told))
    same = told[0]["same"]
    for change in ({"part": 0}, {"same": {**same, "num_partitions": 3}}, {"same": {**same, "node_pb": "x"}}):
        refuses(ValueError, Part.of_stores, *stores(0), tell=telling({**told[0], **change}))
    other = copy.deepcopy(told[0])
    other["attributes"][0][4] = [7]
    refuses(ValueError, Part.of_stores, *stores(0), tell=telling(other))
    other["attributes"][0][2] = "more"
    refuses(ValueError, Part.of_stores, *stores(0), tell=telling(other))
