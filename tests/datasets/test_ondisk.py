"""GraphBolt's folders: what OnDiskDataset makes of metadata.yaml and the files that it names."""

import contextlib
import copy
import errno
import fcntl
import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from amounts import examples, ranked
from hypothesis import given
from hypothesis import strategies as st
from ondisk_folders import EDGES, FOLLOW, LIKE, NODES, Folder, heterogeneous, homogeneous

import datapipes as dp
from datapipes.datasets import BuiltinDataset, DatasetFormatError, OnDiskDataset, ondisk_graph
from datapipes.datasets.ondisk_graph import FOLDER, SOURCES
from datapipes.datasets.ondisk_yaml import Description, read_yaml


def graph_of_edges(pairs, **options):
    return dp.CSCGraph.from_edge_index(torch.from_numpy(np.ascontiguousarray(pairs.T)), NODES, **options)


def arrays_of(graph, of=None):
    relation = graph.relation(of)
    return relation.indptr.tolist(), relation.indices.tolist()


def ids_shown(data, of=None):
    """Return the edges that a hop of all nodes shows, as (source, destination, id), and the rows of its features."""
    pipe = dp.ItemSampler(data.all_nodes_set, batch_size=2 * NODES).sample_neighbor(
        data.graph, [-1], return_edge_ids=True
    )
    names = data.feature.names("edge", of)
    pipe = pipe.fetch_feature(data.feature, edge_feature_keys=names if of is None else {of: names})
    (minibatch,) = list(dp.DataLoader(pipe))
    block = minibatch.blocks[0]
    ids = block.edge_ids if of is None else block.edge_ids[of]
    return ids, minibatch.edge_features[0]


@pytest.mark.parametrize("edges", ["edges.csv", "edges.npy"])
def test_the_folder_without_types(tmp_path, edges):
    made = homogeneous(tmp_path / "a", edges)
    data = OnDiskDataset(made.root).load()
    assert (data.name, data.task, data.num_classes) == ("homogeneous", "node_classification", 5)
    assert data.graph.index_dtype == torch.int32
    assert arrays_of(data.graph) == arrays_of(graph_of_edges(made.arrays["edges"]))
    assert data.feature is data.features
    for name, file in (("feat_0", "node-feat_0.npy"), ("feat_1", "node-feat_1.pt"), ("disk", "node-disk.npy")):
        rows = data.feature["node", None, name].read(torch.arange(NODES))
        assert np.array_equal(rows.numpy(), made.arrays[file])
    assert isinstance(data.feature["node", None, "disk"], dp.DiskFeature)
    assert data.metadata["node", None, "disk"] == {"unit": "metre"}
    assert len(data.all_nodes_set) == NODES
    assert data.train_set is data.tasks[0].train_set
    found = data.train_set[:]
    assert np.array_equal(found[0].numpy(), made.arrays["-node_classification-train-ids.npy"])
    assert np.array_equal(found[1].numpy(), made.arrays["-node_classification-train-labels.pt"])
    assert data.tasks[1].metadata == {"name": "link_prediction", "num_classes": 5}
    assert OnDiskDataset(made.root / "metadata.yaml").load().name == "homogeneous"


@pytest.mark.parametrize("own_ids", [False, True])
def test_edge_features_stay_with_their_edges_whatever_ids_are_shown(tmp_path, own_ids):
    made = homogeneous(tmp_path / "a")
    data = OnDiskDataset(made.root, own_ids).load()
    of_file = graph_of_edges(made.arrays["edges"]).edge_ids
    ids, features = ids_shown(data)
    assert ids.tolist() == (of_file.tolist() if own_ids else list(range(EDGES)))
    for name, file in (("feat_0", "edge-feat_0.npy"), ("feat_1", "edge-feat_1.pt"), ("disk", "edge-disk.npy")):
        assert np.array_equal(features[name].numpy(), made.arrays[file][of_file.numpy()])
    with pytest.raises(IndexError):
        data.feature["edge", None, "feat_0"].read(torch.tensor([EDGES]))


@pytest.mark.parametrize("own_ids", ranked([False, True], 1))
def test_the_folder_with_types(tmp_path, own_ids):
    made = heterogeneous(tmp_path / "a")
    data = OnDiskDataset(made.root, own_ids).load()
    for of in (LIKE, FOLLOW):
        pairs = made.arrays[f"{of[1]}-edges.csv"]
        counts = {"user": NODES, "item": NODES}
        expected = dp.HeteroCSCGraph.from_edge_index({of: torch.from_numpy(pairs.T.copy())}, counts)
        assert arrays_of(data.graph, of) == arrays_of(expected, of)
        positions = torch.arange(EDGES)
        shown = expected.relation(of).edge_ids if own_ids else positions
        for name, suffix in (("feat_0", "npy"), ("feat_1", "pt")):
            rows = data.feature["edge", of, name].read(shown)
            values = made.arrays[f"edge-{'-'.join(of)}-{name}.{suffix}"]
            assert np.array_equal(rows.numpy(), values[expected.relation(of).edge_ids.numpy()])
    assert data.train_set.types == ("item", "user")
    assert len(data.all_nodes_set) == 2 * NODES
    links = data.tasks[1]
    assert links.train_set.types == (FOLLOW, LIKE)
    seeds = links.train_set.item_sets[LIKE][:]
    assert np.array_equal(seeds.numpy(), made.arrays["user-like-item-link_prediction-train-pairs.npy"])
    assert sorted(each.metadata["name"] for each in data.tasks) == ["link_prediction", "node_classification"]


def test_negatives_become_seeds_of_the_form_of_the_negative_sampler(tmp_path):
    made = homogeneous(tmp_path / "a")
    pairs, negatives = (made.arrays[f"-link_prediction-test-{name}"] for name in ("pairs.npy", "neg.pt"))
    items = OnDiskDataset(made.root).load("link_prediction").test_set
    seeds, labels, indexes = items[:]
    assert items.names == ("seeds", "labels", "indexes")
    expected = [*map(tuple, pairs), *((pairs[i, 0], end) for i in range(len(pairs)) for end in negatives[i])]
    assert [*map(tuple, seeds.tolist())] == expected
    assert labels.tolist() == [i < len(pairs) for i in range(len(expected))]
    assert indexes.tolist() == [*range(len(pairs)), *(i for i in range(len(pairs)) for _ in range(3))]
    assert OnDiskDataset(made.root).load("link_prediction").task == "link_prediction"


def test_tasks_are_chosen_by_name(tmp_path, refuses):
    made = heterogeneous(tmp_path / "a")
    folder = OnDiskDataset(made.root)
    assert [each.metadata["name"] for each in folder.load(["link_prediction"]).tasks] == ["link_prediction"]
    assert len(folder.load(tasks=[]).train_set) == 0
    refuses(ValueError, folder.load, "links")
    refuses(TypeError, folder.load, 3)


@pytest.mark.parametrize("edges", ranked(["edges.csv", "edges.npy"], 1))
def test_attributes_move_with_their_edges(tmp_path, edges, refuses):
    weights = np.random.default_rng(3).random(EDGES)
    made = homogeneous(
        tmp_path / "a",
        edges,
        "  feature_data:\n    - {domain: edge, name: w, format: numpy, path: w.npy}\n"
        "    - {domain: edge, name: v, format: torch, path: v.pt}\n"
        "    - {domain: node, name: t, format: torch, path: t.pt}",
    )
    made.add("w.npy", weights)
    made.add("v.pt", weights.astype(np.float32))
    made.add("t.pt", np.arange(NODES))
    graph = OnDiskDataset(made.root).load().graph
    order = graph_of_edges(made.arrays["edges"]).edge_ids.numpy()
    assert np.array_equal(graph.edge_attributes["w"].numpy(), weights[order])
    assert np.array_equal(graph.edge_attributes["v"].numpy(), weights[order].astype(np.float32))
    assert graph.node_attributes["t"].tolist() == [*range(NODES)]
    made.add("w.npy", weights[:-1])
    refuses(DatasetFormatError, OnDiskDataset(made.root).load)


@pytest.mark.parametrize("num_workers", ranked([0, 1], 1))
def test_items_and_features_that_stay_on_disk(tmp_path, num_workers):
    made = Folder(tmp_path / "a")
    said = [made.add("e.npy", made.ids(2, EDGES)), made.add("s.npy", np.arange(9)), made.add("s.pt", np.arange(9))]
    rows = made.add("x.pt", made.floats(NODES, 3))
    made.yaml(
        f"graph: {{nodes: [{{num: {NODES}}}], edges: [{{{said[0]}}}]}}\n"
        f"feature_data: [{{domain: node, name: x, {rows}, in_memory: false}}]\n"
        f"tasks: [{{train_set: [{{type: null, data: [{{name: seeds, {said[1]}, in_memory: false}}]}}],\n"
        f"         test_set: [{{data: [{{name: seeds, {said[2]}, in_memory: false}}]}}]}}]\n"
    )
    data = OnDiskDataset(made.root, auto_cast_to_optimal_dtype=False).load()
    assert data.name == "a"
    assert data.task == "all_nodes"
    assert data.train_set[:].tolist() == data.test_set[:].tolist() == [*range(9)]
    assert len(data.validation_set) == 0
    copied = pickle.loads(pickle.dumps(data.features))
    assert np.array_equal(copied["node", None, "x"].read(torch.arange(NODES)).numpy(), made.arrays["x.pt"])
    pipe = dp.ItemSampler(data.train_set, 4).sample_neighbor(data.graph, [2]).fetch_feature(data.features, ["x"])
    with dp.DataLoader(pipe, num_workers=num_workers) as loader:
        for minibatch in loader:
            expected = made.arrays["x.pt"][minibatch.input_nodes.numpy()]
            assert np.array_equal(minibatch.node_features["x"].numpy(), expected)


# --- freshness


def stamp(folder):
    found = os.stat(folder.joinpath(*FOLDER, "arrays.npy"))
    return found.st_ino, found.st_mtime_ns


def touch(path, seconds=5):
    found = path.stat()
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns + seconds * 10**9))


def test_a_graph_is_built_anew_only_if_its_files_hold_something_else(tmp_path):
    made = homogeneous(tmp_path / "a", "edges.npy")
    OnDiskDataset(made.root).load()
    first = stamp(made.root)
    OnDiskDataset(made.root, True).load()  # the same graph
    touch(made.root / "edges.npy")
    OnDiskDataset(made.root).load()
    noted = (made.root.joinpath(*FOLDER) / SOURCES).read_text()
    assert str((made.root / "edges.npy").stat().st_mtime_ns) in noted
    np.save(made.root / "node-disk.npy", made.floats(NODES, 2))  # no part of the graph
    OnDiskDataset(made.root, verify=True).load()
    made.root.rename(tmp_path / "b")
    root = tmp_path / "b"
    OnDiskDataset(root).load()
    assert stamp(root) == first
    OnDiskDataset(root, force_preprocess=True).load()
    assert stamp(root) != first
    other = np.roll(made.arrays["edges.npy"], 1, axis=1)
    np.save(root / "edges.npy", other)
    touch(root / "edges.npy", 9)
    assert arrays_of(OnDiskDataset(root, force_preprocess=False).load().graph) != arrays_of(graph_of_edges(other.T))
    assert arrays_of(OnDiskDataset(root).load().graph) == arrays_of(graph_of_edges(other.T))


def test_the_dtype_flag_and_the_yaml_count(tmp_path, refuses):
    made = homogeneous(tmp_path / "a")
    assert OnDiskDataset(made.root).load().graph.index_dtype == torch.int32
    wide = OnDiskDataset(made.root, auto_cast_to_optimal_dtype=False, force_preprocess=False).load()
    assert wide.graph.index_dtype == torch.int64
    text = (made.root / "metadata.yaml").read_text()
    made.yaml(text.replace(f"num: {NODES}", f"num: {NODES + 1}").replace("feature_data:", "feature_data: []\nignored:"))
    refuses(DatasetFormatError, OnDiskDataset(made.root).load)
    made.yaml(text.split("feature_data:")[0].replace(f"num: {NODES}", f"num: {NODES + 1}"))
    assert OnDiskDataset(made.root).load().graph.num_nodes == NODES + 1


def test_a_same_size_and_time_is_found_by_verify(tmp_path):
    made = homogeneous(tmp_path / "a", "edges.npy")
    OnDiskDataset(made.root).load()
    status = (made.root / "edges.npy").stat()
    other = np.roll(made.arrays["edges.npy"], 1, axis=1)
    np.save(made.root / "edges.npy", other)
    os.utime(made.root / "edges.npy", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert arrays_of(OnDiskDataset(made.root).load().graph) != arrays_of(graph_of_edges(other.T))
    assert arrays_of(OnDiskDataset(made.root, verify=True).load().graph) == arrays_of(graph_of_edges(other.T))


def test_a_graph_whose_build_was_cut_off_is_no_graph(tmp_path, monkeypatch):
    made = homogeneous(tmp_path / "a")
    OnDiskDataset(made.root).load()
    place = made.root.joinpath(*FOLDER)
    (place / SOURCES).unlink()  # as a kill between the graph and this file leaves it
    assert arrays_of(OnDiskDataset(made.root).load().graph) == arrays_of(graph_of_edges(made.arrays["edges"]))
    with (place / "arrays.npy").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(DatasetFormatError, match="built anew if it is removed"):
        OnDiskDataset(made.root).load()
    OnDiskDataset(made.root, force_preprocess=True).load().graph.validate()
    monkeypatch.setattr(
        "datapipes.datasets.ondisk_graph.write_text", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left"))
    )
    with pytest.raises(OSError, match="no room to write"):
        OnDiskDataset(made.root, force_preprocess=True).load()
    assert not (place / SOURCES).exists()
    (place / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"mine\.txt"):
        OnDiskDataset(made.root).load()


def test_ranks_that_load_at_once_build_the_graph_once(tmp_path, monkeypatch):
    made = homogeneous(tmp_path / "a")
    built = []
    monkeypatch.setattr(ondisk_graph, "build", lambda *given, of=ondisk_graph.build: (built.append(1), of(*given)))
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(lambda _: OnDiskDataset(made.root).load().graph.num_edges, range(4)))
    assert (loaded, built) == ([EDGES] * 4, [1])


def test_a_folder_that_cannot_be_written_to_is_read(tmp_path, monkeypatch):
    made = homogeneous(tmp_path / "a")

    def read_only(path, *given, of=os.open, **options):
        if str(path).endswith("datapipes.lock"):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return of(path, *given, **options)

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: None)
    with pytest.raises(OSError, match="cannot be made: Read-only file system"):
        OnDiskDataset(made.root).load()
    monkeypatch.undo()
    OnDiskDataset(made.root).load()
    monkeypatch.setattr(os, "open", read_only)
    assert OnDiskDataset(made.root).load().graph.num_edges == EDGES


# --- bad input

GOOD = {
    "graph": "{nodes: [{num: 30}], edges: [{format: csv, path: edges.csv}]}",
    "feature_data": "[{domain: node, name: x, format: numpy, path: x.npy}]",
    "tasks": "[{name: a, train_set: [{data: [{name: seeds, format: numpy, path: s.npy}]}]}]",
}
GRAPHS = [
    "[]",
    "{nodes: [{num: 30}]}",
    "{nodes: [{num: -1}], edges: [{format: csv, path: edges.csv}]}",
    "{nodes: [{num: 30, x: 1}], edges: [{format: csv, path: edges.csv}]}",
    "{nodes: [{num: 30}], edges: [{format: xml, path: edges.csv}]}",
    "{nodes: [{num: 30}], edges: [{format: numpy, path: edges.csv}]}",
    "{nodes: [{num: 30, type: a}], edges: [{format: csv, path: edges.csv}]}",
    "{nodes: [{num: 1}, {num: 2}], edges: [{format: csv, path: edges.csv}]}",
    "{nodes: [{num: 30, type: a}], edges: [{type: 'a:r:b', format: csv, path: edges.csv}]}",
    "{nodes: [{num: 30}], edges: [{format: csv, path: ../edges.csv}]}",
    "{nodes: [{num: 30}], edges: [{format: csv, path: /etc/passwd}]}",
    "{nodes: [{num: 30}], edges: [{format: csv, path: a/../../e.csv}]}",
]
FEATURES = [
    "[{domain: graph, name: x, format: numpy, path: x.npy}]",
    "[{domain: node, type: a, name: x, format: numpy, path: x.npy}]",
    "[{domain: edge, name: x, format: numpy, path: x.npy}]",
    "[{domain: node, name: x, format: torch, path: dict.pt}]",
    "[{domain: node, name: x, format: numpy, path: holes.npy}]",
    "[{domain: node, name: x, format: torch, path: code.pt}]",
    "&a [*a]",
]
TASKS = [
    "[{train_set: [{data: [{name: labels, format: numpy, path: s.npy}]}]}]",
    "[{train_set: [{data: [{name: seeds, format: numpy, path: nan.npy}]}]}]",
    "[{num_classes: 999999999, train_set: []}]",
    "[{train_set: [{data: [{name: input_nodes, format: numpy, path: s.npy}]}]}]",
]
SAID_BY_OTHERS = {  # what numpy, torch, pyyaml and Python say
    "[{domain: node, name: x, format: torch, path: x.npy}]": "torch saved",
    "[{domain: node, name: x, format: numpy, path: cut.npy}]": "may be truncated",
    "[{domain: node, name: x, format: numpy, in_memory: false, path: cut.npy}]": "truncated",
    "[{domain: node, name: x, format: torch, path: cut.pt}]": "broken",
    "[{domain: node, name: x, format: torch, path: huge.pt}]": r"\[30, 1099511627776\], .*contiguous",
    "[{domain: node, name: x, format: numpy, path: below.npy}]": r"shape \[-1, -60\]",
    "!!python/object/apply:os.getcwd []": "no plain YAML",
    "[" * 1000: "nested too deep",
    "{": "no plain YAML",
}


class Code:
    def __reduce__(self):
        return print, ("code of a file runs",)


def yaml_of(texts):
    return "\n".join(f"{key}: {value}" for key, value in texts.items())


def small(root):
    made = Folder(root)
    made.add("edges.csv", made.ids(EDGES, 2))
    made.add("x.npy", made.floats(NODES, 2))
    made.add("x.pt", made.floats(NODES, 2))
    made.add("s.npy", np.arange(5))
    made.add("nan.npy", np.array([0, np.nan]))
    (root / "cut.npy").write_bytes((root / "x.npy").read_bytes()[:-4])
    (root / "cut.pt").write_bytes((root / "x.pt").read_bytes()[:-40])
    torch.save({"x": torch.ones(3)}, root / "dict.pt")
    torch.save(torch.ones(1).expand(NODES, 2**40), root / "huge.pt")
    for name, shape, size in (("holes", (2**38,), 2**40), ("below", (-1, -60), 240)):
        with (root / f"{name}.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
            file.truncate(file.tell() + size)
    torch.save(Code(), root / "code.pt")
    made.yaml(yaml_of(GOOD))
    return made


def test_a_wrong_yaml_or_file_is_refused_by_a_typed_error(tmp_path, capfd, refuses):
    made = small(tmp_path / "a")
    texts = [("graph", GRAPHS), ("more", ["1"]), ("feature_data", FEATURES), ("tasks", TASKS)]
    for key, values in (*texts, ("graph_topology", ["{type: FusedCSCSamplingGraph, path: x.pt}"])):
        for value in values:
            made.yaml(yaml_of({**GOOD, key: value}))
            refuses(DatasetFormatError, OnDiskDataset(made.root).load)
    for value, pattern in SAID_BY_OTHERS.items():
        made.yaml(yaml_of({**GOOD, "feature_data": value}))
        with pytest.raises(DatasetFormatError, match=pattern):
            OnDiskDataset(made.root).load()
    assert "code of a file runs" not in capfd.readouterr().out


JUNK = [None, True, 0, -1, 2**70, 1.5, "", "x", "a:b:c", "../x", [], {}, [{}], {"type": "a"}, [[]], {"num": 1}]


def places_in(value, at=()):
    """Return the path of each value within a tree."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, each in inner for place in places_in(each, (*at, key)))]


@given(st.data())
@examples(200, deadline=None)
def test_a_yaml_of_junk_is_read_or_refused(tmp_path_factory, data):
    root = tmp_path_factory.mktemp("junk")
    tree = {key: yaml.safe_load(value) for key, value in GOOD.items()}
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from([each for each in places_in(tree) if each]))
        inner = tree
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = copy.deepcopy(data.draw(st.sampled_from(JUNK)))
        if isinstance(inner, dict) and data.draw(st.booleans()):
            inner[data.draw(st.sampled_from(["type", "extra", "metadata"]))] = copy.deepcopy(
                data.draw(st.sampled_from(JUNK))
            )
    (root / "metadata.yaml").write_text(yaml.safe_dump(tree))
    with contextlib.suppress(DatasetFormatError):
        assert isinstance(read_yaml(root), Description)


def test_edges_that_are_none(tmp_path, refuses):
    made = small(tmp_path / "a")
    for last_row in ("2,", "2,nan", "2,3.5", "2,x", "2,30", "-2,3"):
        (made.root / "edges.csv").write_text(f"0,1\n{last_row}\n")
        refuses(DatasetFormatError, OnDiskDataset(made.root).load)
    (made.root / "edges.csv").write_text("0,0,1\n1,2,3\n")
    refuses(DatasetFormatError, OnDiskDataset(made.root).load)
    (made.root / "edges.csv").write_text("0,1\n2,3,4\n")
    with pytest.raises(DatasetFormatError, match="columns"):
        OnDiskDataset(made.root).load()
    assert not (made.root.joinpath(*FOLDER) / "graph.json").exists()


@pytest.mark.parametrize("rows", ["", "src,dst\n", "\n"])
def test_a_table_without_edges_is_a_graph_without_edges(tmp_path, rows):
    made = small(tmp_path / "a")
    (made.root / "edges.csv").write_text(rows)
    data = OnDiskDataset(made.root).load()
    assert (data.graph.num_nodes, data.graph.num_edges) == (NODES, 0)


# --- seeds


def with_seeds(root, of="", **arrays):
    """Write a folder whose task has these arrays; types are user, of NODES, and item, of 7."""
    made = Folder(root)
    data = [f"{{name: {name}, {made.add(f'{name}.npy', np.array(values))}}}" for name, values in arrays.items()]
    kind = f"type: '{of}', " if of else ""
    nodes = f"[{{type: user, num: {NODES}}}, {{type: item, num: 7}}]" if of else f"[{{num: {NODES}}}]"
    relation = "type: 'user:like:item', " if of else ""
    made.yaml(
        f"graph: {{nodes: {nodes}, edges: [{{{relation}{made.add('e.npy', np.array([[0, 1], [2, 3]]))}}}]}}\n"
        f"tasks: [{{train_set: [{{{kind}data: [{', '.join(data)}]}}]}}]\n"
    )
    return OnDiskDataset(root).load().train_set


EDGE = "user:like:item"


def test_seeds_that_are_no_nodes_are_found_when_the_folder_is_opened(tmp_path, refuses):
    for of, arrays in (
        ("", {"seeds": [0, 30]}),
        ("", {"seeds": [[0, 3], [-1, 2]]}),
        ("item", {"seeds": [0, 7]}),
        (EDGE, {"seeds": [[7, 0], [0, 7]]}),
        (EDGE, {"seeds": [[30, 0]]}),
        (EDGE, {"seeds": [[29, 6, 7]]}),
        (EDGE, {"seeds": [[29, 6]], "negative_dsts": [[6, 8]]}),
        (EDGE, {"seeds": [0, 1]}),
        ("item", {"seeds": [[0, 1]]}),
        ("", {"seeds": [True] * 31}),
    ):
        refuses(DatasetFormatError, with_seeds, tmp_path / "a", of, **arrays)


@pytest.mark.parametrize(
    ("of", "arrays", "shape"),
    [
        ("", {"seeds": [], "labels": []}, ()),
        ("", {"seeds": np.zeros((0, 2))}, (2,)),
        ("item", {"seeds": []}, ()),
        (EDGE, {"seeds": []}, (2,)),
        (EDGE, {"seeds": [], "negative_dsts": np.zeros((0, 3))}, (2,)),
        (EDGE, {"seeds": [], "negative_srcs": [], "negative_dsts": []}, (2,)),
    ],
)
def test_an_empty_set_is_an_item_set_without_items_whatever_its_dtype(tmp_path, of, arrays, shape):
    items = with_seeds(tmp_path / "a", of, **arrays)
    assert len(items) == 0
    of_type = getattr(items, "item_sets", {None: items})[tuple(of.split(":")) if ":" in of else of or None]
    assert of_type.seeds_shape == shape


def test_what_is_not_there(tmp_path, monkeypatch, refuses):
    refuses(FileNotFoundError, OnDiskDataset(tmp_path).load)
    made = small(tmp_path / "a")
    edges = (made.root / "edges.csv").rename(made.root / "elsewhere.csv")
    with pytest.raises(FileNotFoundError, match=r"edges\.csv"):
        OnDiskDataset(made.root).load()
    edges.rename(made.root / "edges.csv")
    refuses(FileNotFoundError, BuiltinDataset, "ogbn-mag", tmp_path)
    refuses(ValueError, BuiltinDataset, "a", tmp_path)
    refuses(TypeError, OnDiskDataset, made.root, "yes")
    for folder in ("ogbn-mag-seeds", "cora"):
        small(tmp_path / folder)
        assert BuiltinDataset(folder.removesuffix("-seeds"), tmp_path).path == tmp_path / folder
    monkeypatch.setitem(sys.modules, "yaml", None)
    refuses(ModuleNotFoundError, OnDiskDataset(made.root).load)


def test_a_process_that_builds_is_waited_for_with_a_bound(tmp_path, monkeypatch, refuses):
    made = small(tmp_path / "a")
    place = made.root / ondisk_graph.FOLDER[0]
    place.mkdir(exist_ok=True)
    monkeypatch.setattr(ondisk_graph, "_MOST_WAIT_S", 0)
    with (place / "datapipes.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        refuses(TimeoutError, OnDiskDataset(made.root).load)
    assert OnDiskDataset(made.root).load().graph.num_nodes > 0
