"""Folders that GraphBolt 2.1.0 preprocesses and reads in an interpreter of its own, beside what is read of them here.

DATAPIPES_GRAPHBOLT_PYTHON names the interpreter: it has dgl 2.1.0, torch 2.2.1, torchdata 0.7.1 and numpy below 2.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from ondisk_folders import EDGES, FOLLOW, LIKE, NODES, Folder, heterogeneous, homogeneous

from datapipes.datasets import OnDiskDataset
from datapipes.datasets.ondisk_graph import FOLDER

PYTHON = os.environ.get("DATAPIPES_GRAPHBOLT_PYTHON")
SCRIPT = Path(__file__).parents[1] / "support" / "graphbolt_ondisk.py"
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(PYTHON is None, reason="DATAPIPES_GRAPHBOLT_PYTHON names no interpreter with GraphBolt 2.1.0"),
]
OWN_IDS = "_ORIGINAL_EDGE_ID"


def graphbolt(*jobs):
    """Let GraphBolt read folders; return what it read of each, and what it printed. A job is (folder, own ids)."""
    files = [root.with_name(f"{root.name}.pt") for root, _ in jobs]
    given = [(str(root), own_ids, str(file)) for (root, own_ids), file in zip(jobs, files, strict=True)]
    done = subprocess.run(
        [PYTHON, "-I", SCRIPT],
        input=json.dumps(given),
        env={**os.environ, "DGLBACKEND": "pytorch"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [torch.load(file) for file in files], done.stdout


def weighted(root, edges="edges.npy", order=None):
    """The folder without types, with attributes; `order` says in which order its edges stand."""
    made = homogeneous(
        root,
        edges,
        "  feature_data:\n    - {domain: edge, name: w, format: numpy, path: w.npy}\n"
        "    - {domain: node, name: t, format: torch, path: t.pt}",
    )
    made.add("w.npy", made.floats(EDGES))
    made.add("t.pt", np.arange(NODES) * 3)
    if order is not None:
        pairs = made.arrays["edges"]
        made.arrays["edges"] = pairs[order(pairs)]
        made.add(edges, made.arrays["edges"].T)
    return made


COUNTS = {"user": NODES, "item": NODES - 4, "shop": 3}
RELATIONS = ("user:like:item", "item:in:shop", "shop:next:shop")


def links(root):
    """Three relations, one of parallel edges alone and one without edges; attributes; items of all names."""
    made = Folder(root, 2)
    liked = np.stack([made.ids(EDGES), made.random.integers(0, COUNTS["item"], EDGES)])
    edges = (liked, np.tile(np.array([[7], [1]], np.int32), 5), np.empty((2, 0), np.int64))
    text = ["graph:", "  nodes:", *(f"    - {{type: {of}, num: {count}}}" for of, count in COUNTS.items()), "  edges:"]
    for number, (of, each) in enumerate(zip(RELATIONS, edges, strict=True)):
        text.append(f"    - {{type: '{of}', {made.add(f'edges{number}.npy', each)}}}")
    text.append("  feature_data:")
    for number, (of, each) in enumerate(zip(RELATIONS, edges, strict=True)):
        said = made.add(f"w{number}.npy", made.floats(each.shape[1], 2))
        text.append(f"    - {{domain: edge, type: '{of}', name: w, {said}}}")
    for of, count in COUNTS.items():
        text.append(f"    - {{domain: node, type: {of}, name: t, {made.add(f't-{of}.pt', made.floats(count))}}}")
    text.append("feature_data:")
    for of, suffix in (("shop", "npy"), ("item", "pt")):
        said = made.add(f"one-{of}.{suffix}", made.floats(COUNTS[of]))
        text.append(f"  - {{domain: node, type: {of}, name: one, {said}}}")
    text += ["tasks:", "  - name: links", "    weight: [1, 2]"]
    pairs, others = liked.T[:6], made.random.integers(0, COUNTS["item"], (2, 6, 2))
    for name, arrays in (
        ("train", {"seeds": pairs, "labels": made.floats(6), "stars": made.floats(6, 2)}),
        ("test", {"node_pairs": pairs, "negative_srcs": others[0], "negative_dsts": others[1]}),
    ):
        data = ", ".join(f"{{name: {key}, {made.add(f'{name}-{key}.npy', rows)}}}" for key, rows in arrays.items())
        text += [f"    {name}_set:", f"      - {{type: '{RELATIONS[0]}', data: [{data}]}}"]
    made.yaml("\n".join(text))
    return made


SOURCES = {
    "csv": homogeneous,
    "numpy": weighted,
    "sorted": lambda root: weighted(root, order=lambda pairs: np.argsort(pairs[:, 1], kind="stable")),
    "types": heterogeneous,
    "links": links,
}


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """{(name, own ids): (a folder that GraphBolt has preprocessed, the arrays of its files, what it read)}."""
    root = tmp_path_factory.mktemp("read")
    made = {name: write(root / name) for name, write in SOURCES.items()}
    jobs = {}
    for name in made:
        for own_ids in (False, True):
            jobs[name, own_ids] = Path(shutil.copytree(root / name, root / f"{name}-{own_ids}"))
    found, _ = graphbolt(*((folder, own_ids) for (_, own_ids), folder in jobs.items()))
    return {key: (jobs[key], made[key[0]].arrays, each) for key, each in zip(jobs, found, strict=True)}


def relations_of(theirs):
    """Return {edge type or None: (its edges in the order of the graph, indptr, indices)} of GraphBolt's fused graph."""
    indptr, indices = theirs["indptr"].long(), theirs["indices"].long()
    if theirs["edge_types"] is None:
        return {None: (slice(None), indptr, indices)}
    ends = torch.arange(len(indptr) - 1).repeat_interleave(indptr.diff())
    starts, found = theirs["node_type_offset"].tolist(), {}
    for name, number in theirs["edge_types"].items():
        source, relation, destination = name.split(":")
        mask = theirs["type_per_edge"] == number
        first, number = (starts[theirs["node_types"][of]] for of in (source, destination))
        counts = torch.bincount(ends[mask] - number, minlength=theirs["num_nodes"][destination])
        own = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        found[source, relation, destination] = mask, own, indices[mask] - first
    return found


def type_of(name):
    return tuple(name.split(":")) if name is not None and ":" in name else name


@pytest.mark.parametrize("own_ids", [False, True])
@pytest.mark.parametrize("name", SOURCES)
def test_the_graph_is_that_of_graphbolt_edge_for_edge(read, name, own_ids):
    folder, _, theirs = read[name, own_ids]
    graph = OnDiskDataset(folder, own_ids).load().graph
    relations = relations_of(theirs)
    assert {*graph.edge_types} == {*relations} if None not in relations else graph.num_nodes == theirs["num_nodes"]
    for of, (mask, indptr, indices) in relations.items():
        relation = graph.relation(of)
        assert relation.indices.dtype == theirs["indices"].dtype == torch.int32
        assert torch.equal(relation.indptr.long(), indptr)
        assert torch.equal(relation.indices.long(), indices)
        assert (relation.edge_ids is not None) == (OWN_IDS in theirs["edge_attributes"]) == own_ids
        if own_ids:
            assert torch.equal(relation.edge_ids.long(), theirs["edge_attributes"][OWN_IDS][mask].long())


@pytest.mark.parametrize("own_ids", [False, True])
@pytest.mark.parametrize("name", SOURCES)
def test_features_have_the_values_that_graphbolt_gives(read, name, own_ids):
    folder, _, theirs = read[name, own_ids]
    data, of_file = OnDiskDataset(folder, own_ids).load(), OnDiskDataset(folder, True).load().features
    assert {key[2] for key in theirs["features"]} == {key[2] for key in of_file}
    for (domain, kind, each), rows in theirs["features"].items():
        ours = of_file[domain, type_of(kind), each]
        got = ours.read(torch.arange(ours.count))
        assert torch.equal(got if got.ndim > 1 else got[:, None], rows)  # GraphBolt's has a second dimension
    # Without ids GraphBolt's minibatches have no edge features. Ours have those that its have with ids.
    given = [rows is not None for *_, features in theirs["hop"].values() for rows in features.values()]
    assert given == [own_ids] * len(given)
    for kind, (sources, destinations, features) in read[name, True][2]["hop"].items():
        relation = data.graph.relation(type_of(kind))
        ends = torch.arange(len(relation.indptr) - 1).repeat_interleave(relation.indptr.diff().long())
        ids = relation.edge_ids if own_ids else torch.arange(relation.num_edges)
        for each, rows in features.items():
            found = data.features["edge", type_of(kind), each].read(ids)
            ours = zip(relation.indices.tolist(), ends.tolist(), found.tolist(), strict=True)
            assert sorted(ours) == sorted(zip(sources.tolist(), destinations.tolist(), rows.tolist(), strict=True))


@pytest.mark.parametrize("own_ids", [False, True])
@pytest.mark.parametrize("name", ["numpy", "sorted", "links"])
def test_attributes_are_graphbolts_but_moved_with_their_edges(read, name, own_ids):
    folder, arrays, theirs = read[name, own_ids]
    graph = OnDiskDataset(folder, own_ids).load().graph
    order = OnDiskDataset(folder, True).load().graph
    attributes = theirs["edge_attributes"]["w"]
    if name == "links":
        starts = theirs["node_type_offset"]
        for of, number in theirs["node_types"].items():
            rows = theirs["node_attributes"]["t"][starts[number] : starts[number + 1]]
            assert torch.equal(graph.node_attributes_of(of)["t"], rows)
        files = {type_of(of): torch.from_numpy(arrays[f"w{number}.npy"]) for number, of in enumerate(RELATIONS)}
        # GraphBolt's: file behind file, by type, though edges of all types are sorted by destination.
        assert torch.equal(attributes, torch.cat([files[type_of(of)] for of in theirs["edge_types"]]))
    else:
        assert torch.equal(graph.node_attributes["t"], theirs["node_attributes"]["t"])
        files = {None: torch.from_numpy(arrays["w.npy"])}
        assert torch.equal(attributes, files[None])  # GraphBolt's: in the order of the file
        assert torch.equal(graph.edge_attributes["w"], attributes) == (name == "sorted")
    for of, rows in files.items():
        assert torch.equal(graph.relation(of).edge_attributes["w"], rows[order.relation(of).edge_ids.long()])


@pytest.mark.parametrize("name", SOURCES)
def test_items_are_those_of_graphbolt(read, name):
    folder, _, theirs = read[name, True]
    data = OnDiskDataset(folder).load()
    count = theirs["num_nodes"]
    assert len(data.all_nodes_set) == (count if isinstance(count, int) else sum(count.values()))
    assert [each.metadata for each in data.tasks] == [metadata for metadata, _ in theirs["tasks"]]
    for task, (_, sets) in zip(data.tasks, theirs["tasks"], strict=True):
        for ours, part in zip((task.train_set, task.validation_set, task.test_set), sets, strict=True):
            if part is None:  # the YAML has no such set
                assert len(ours) == 0
            for kind, rows in (part or {}).items():
                items = ours if kind is None else ours.item_sets[type_of(kind)]
                found = items[:]
                got = dict(zip(items.names, found if isinstance(found, tuple) else (found,), strict=True))
                seeds = next(rows.pop(each) for each in ("seeds", "seed_nodes", "node_pairs") if each in rows)
                assert seeds.dtype == torch.int32  # GraphBolt casts them with the graph; here they are as in the file
                assert got["seeds"].dtype == torch.int64
                negatives = [rows.pop(f"negative_{end}", None) for end in ("srcs", "dsts")]
                assert torch.equal(got["seeds"][: len(seeds)], seeds.long())
                if any(each is not None for each in negatives):
                    others = got["seeds"][len(seeds) :].reshape(len(seeds), -1, 2)
                    for end, each in enumerate(negatives):
                        expected = seeds[:, [end]].expand(-1, others.shape[1]) if each is None else each
                        assert torch.equal(others[:, :, end], expected.long())
                    assert torch.equal(got.pop("labels"), torch.arange(len(got["seeds"])) < len(seeds))
                    number = torch.arange(len(seeds))
                    rows["indexes"] = torch.cat([number, number.repeat_interleave(others.shape[1])])
                got.pop("seeds")
                assert got.keys() == rows.keys()
                for each, values in rows.items():
                    assert values.dtype == got[each].dtype
                    assert torch.equal(values, got[each])


# --- the two in one folder


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def same_graph(root, theirs):
    graph = OnDiskDataset(root, True, verify=True).load().graph
    for of, (mask, indptr, indices) in relations_of(theirs).items():
        relation = graph.relation(of)
        assert torch.equal(relation.indptr.long(), indptr)
        assert torch.equal(relation.indices.long(), indices)
        assert torch.equal(relation.edge_ids.long(), theirs["edge_attributes"][OWN_IDS][mask].long())


def test_neither_removes_or_changes_what_the_other_has_made(tmp_path):
    first, second = weighted(tmp_path / "first").root, heterogeneous(tmp_path / "second").root
    OnDiskDataset(first).load()
    ours = contents(first.joinpath(*FOLDER))
    graphbolt((second, True))
    theirs = contents(second / "preprocessed")
    same = OnDiskDataset(second).load().graph
    assert contents(second / "preprocessed") == theirs

    (of_first, of_second), said = graphbolt((first, True), (second, True))
    assert said.count("Start to preprocess") == 2  # the second because there are new files in the folder
    assert contents(first.joinpath(*FOLDER)) == ours
    inode = os.stat(first.joinpath(*FOLDER, "arrays.npy")).st_ino
    same_graph(first, of_first)
    same_graph(second, of_second)
    assert os.stat(first.joinpath(*FOLDER, "arrays.npy")).st_ino == inode
    assert same.relation(LIKE).indices.shape == same.relation(FOLLOW).indices.shape

    _, said = graphbolt((first, True), (second, True))
    assert said.count("already preprocessed") == 2
