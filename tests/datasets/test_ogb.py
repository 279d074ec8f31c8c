"""Reading OGB's folders: nodes and links, with types and without, made here in OGB's layout; ogbl-ddi; broken files."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from published import published
from scripts import run_script

import datapipes as dp
from datapipes.datasets import ogb_graph
from datapipes.datasets.ogb import is_ogb, read_ogb
from datapipes.datasets.ogb_graph import PUBLISHED, settings_of
from datapipes.datasets.pickled_arrays import read_saved
from datapipes.datasets.raw import DatasetFormatError
from datapipes.datasets.raw_hetero import RawHeteroDataset, inverse_of

EDGES = {"raw/edge": "0,1\n1,2\n3,0\n", "raw/num-node-list": "4\n", "raw/num-edge-list": "3\n"}
NODES = {
    **EDGES,
    "raw/node-feat": "1.5,2\n0,0\n-1,3\n2,2\n",
    "raw/node_year": "2001\n2002\n2003\n2004\n",
    "raw/edge-feat": "1\n2\n3\n",
    "raw/edge_weight": "0.5\n1\n2\n",
    "raw/node-label": "2\n0\n1\nnan\n",
    "split/time/train": "0\n",
    "split/time/valid": "2\n",
    "split/time/test": "1\n",
}
TYPES = {
    "raw/num-node-dict": "author,paper,venue\n2,3,1\n",
    "raw/triplet-type-list": "author,writes,paper\npaper,cites,paper\npaper,in,venue\n",
    "raw/nodetype-has-label": "author,paper,venue\nFalse,True,False\n",
    "raw/relations/author___writes___paper/edge": "0,2\n1,0\n",
    "raw/relations/author___writes___paper/num-edge-list": "2\n",
    "raw/relations/author___writes___paper/edge_reltype": "4\n4\n",
    "raw/relations/paper___cites___paper/edge": "0,1\n",
    "raw/relations/paper___cites___paper/num-edge-list": "1\n",
    "raw/relations/paper___in___venue/edge": "",
    "raw/relations/paper___in___venue/num-edge-list": "0\n",
    "raw/node-feat/paper/node-feat": "1,2\n3,4\n5.5,6\n",
    "raw/node-feat/paper/node_year": "2001\n2002\n2003\n",
    "raw/node-label/paper/node-label": "1\n0\n1\n",
    "split/time/nodetype-has-split": "author,paper,venue\nFalse,True,False\n",
    "split/time/paper/train": "2\n0\n",
    "split/time/paper/valid": "1\n",
    "split/time/paper/test": "",
}
MASTER = """\
,ogbn-other,ogbn-tiny
num classes,2,5
task type,multiclass classification,multiclass classification
add_inverse_edge,False,True
split,time,time
additional node files,None,node_year
additional edge files,None,None
is hetero,False,False
binary,False,False
"""
PAIRS = {
    "valid_edge": np.array([[0, 2]], dtype=np.int16),
    "valid_edge_neg": np.array([[1, 3], [2, 3]], dtype=np.int16),
    "test_edge": np.array([[1, 3]], dtype=np.int16),
    "test_edge_neg": np.array([[0, 2]], dtype=np.int16),
}


def written(folder: Path, files: Mapping[str, str | None], **others: str | None) -> Path:
    for name, content in {**files, **others}.items():
        if content is None:
            continue
        is_csv = name.startswith(("raw/", "split/"))
        path = folder / (f"{name}.csv.gz" if is_csv else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content.encode()) if is_csv else content.encode())
    return folder


def npz_of(folder: Path, arrays: Mapping[str, np.ndarray], name: str = "split/target.npz") -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    np.savez(folder / name, **arrays)


def items_of(raw: RawHeteroDataset, of_type: str | None = None) -> list[tuple[list, list | None]]:
    parts = [part[of_type] for part in raw.split]
    return [(part.seeds.tolist(), None if part.labels is None else part.labels.tolist()) for part in parts]


# Nodes without types.


def test_a_node_folder_gives_edges_features_labels_and_the_split(tmp_path):
    folder = written(tmp_path / "tiny", NODES)
    assert is_ogb(folder)
    raw = read_ogb(folder)
    assert raw.name == "tiny"
    assert raw.edges[None].T.tolist() == [[0, 1], [1, 2], [3, 0]]
    assert raw.node_features[None, "feat"].dtype == np.float32
    assert raw.node_features[None, "feat"].tolist() == [[1.5, 2], [0, 0], [-1, 3], [2, 2]]
    assert raw.node_features[None, "year"].dtype == np.int64
    assert raw.node_features[None, "year"].ravel().tolist() == [2001, 2002, 2003, 2004]
    assert raw.edge_features[None, "feat"].ravel().tolist() == [1, 2, 3]
    assert raw.edge_features[None, "weight"].ravel().tolist() == [0.5, 1, 2]
    assert items_of(raw) == [([0], [2]), ([2], [1]), ([1], [0])]
    assert raw.class_names == ("0", "1", "2")


def test_the_inverse_of_edge_i_is_edge_2i_plus_1_with_its_features(tmp_path):
    raw = read_ogb(written(tmp_path, NODES), inverse_relations=True)
    assert raw.edges[None].T.tolist() == [[0, 1], [1, 0], [1, 2], [2, 1], [3, 0], [0, 3]]
    assert raw.edge_features[None, "feat"].ravel().tolist() == [1, 1, 2, 2, 3, 3]


def test_labels_of_several_tasks_have_a_column_each(tmp_path):
    raw = read_ogb(written(tmp_path, NODES, **{"raw/node-label": "1,0\n0,0\n1,1\n0,1\n"}))
    assert items_of(raw) == [([0], [[1, 0]]), ([2], [[1, 1]]), ([1], [[0, 0]])]
    assert raw.class_names == ("0", "1")


# Settings.


def test_the_settings_of_master_csv_count(tmp_path):
    folder = written(tmp_path / "ogbn_tiny", NODES, **{"master.csv": MASTER})
    raw = read_ogb(folder)
    assert raw.name == "ogbn-tiny"
    assert raw.edges[None].shape == (2, 6)
    assert len(raw.class_names) == 5
    assert set(raw.node_features) == {(None, "feat"), (None, "year")}
    assert set(raw.edge_features) == {(None, "feat")}  # no additional edge files, says the table
    assert read_ogb(folder, inverse_relations=False).edges[None].shape == (2, 3)


@pytest.mark.parametrize(
    ("folder", "note", "expected"),
    [
        ("ogbn_arxiv", None, "ogbn-arxiv"),
        ("proteins", None, "ogbn-proteins"),
        ("ppassoc", None, "ogbl-ppa"),
        ("mine", "# Release note for ogbl-ddi\n", "ogbl-ddi"),
    ],
)
def test_the_published_settings_are_found_by_folder_or_release_note(tmp_path, folder, note, expected):
    (tmp_path / folder).mkdir()
    if note is not None:
        (tmp_path / folder / "RELEASE_v1.txt").write_text(note)
    assert settings_of(tmp_path / folder) is PUBLISHED[expected]


@pytest.mark.parametrize("file", ["raw/edge", "raw/num-node-list", "raw/node_year", "split/time/valid"])
def test_a_missing_file_is_named(tmp_path, file):
    with pytest.raises(FileNotFoundError, match=file.rpartition("/")[2]):
        read_ogb(written(tmp_path / "ogbn_tiny", NODES, **{"master.csv": MASTER, file: None}))


# With types.


def test_a_folder_with_types(tmp_path):
    raw = read_ogb(written(tmp_path, TYPES))
    assert raw.num_nodes == {"author": 2, "paper": 3, "venue": 1}
    assert {kind: ends.T.tolist() for kind, ends in raw.edges.items()} == {
        ("author", "writes", "paper"): [[0, 2], [1, 0]],
        ("paper", "cites", "paper"): [[0, 1]],
        ("paper", "in", "venue"): [],
    }
    assert raw.node_features["paper", "feat"].tolist() == [[1, 2], [3, 4], [5.5, 6]]
    assert raw.node_features["paper", "year"].ravel().tolist() == [2001, 2002, 2003]
    assert raw.edge_features[("author", "writes", "paper"), "reltype"].ravel().tolist() == [4, 4]
    assert items_of(raw, "paper") == [([2, 0], [1, 1]), ([1], [0]), ([], [])]


def test_inverse_relations_carry_the_features_of_their_edges(tmp_path):
    raw = read_ogb(written(tmp_path, TYPES), inverse_relations=True)
    for edge_type in list(raw.edges)[:3]:
        assert np.array_equal(raw.edges[inverse_of(edge_type)], raw.edges[edge_type][::-1])
    assert raw.edge_features[("paper", "rev_writes", "author"), "reltype"].ravel().tolist() == [4, 4]


# What is refused in files of nodes.

SETTINGS = {  # rows of master.csv, and what may not stand there
    "add_inverse_edge,False,True": ["add_inverse_edge,False,yes"],
    "is hetero,False,False": ["is hetero,False,True"],
    "binary,False,False": ["binary,False,True"],
    "task type,multiclass classification,multiclass": ["task type,a,graph"],
    "num classes,2,5": ["num classes,2,-1", "num classes,2,99999999", "num classes,2", "split,2,5"],
    "node_year": ["../node_year"],
    "split,time,time": ["split,time,../split"],
    ",ogbn-other,ogbn-tiny": [",ogbn-other,ogbn-small"],
}
BROKEN_NODES = {
    "raw/edge": ["0,4\n1,2\n3,0\n", "-1,0\n1,2\n3,0\n", "0,1\n"],
    "raw/num-node-list": ["4\n4\n", "99999999999\n"],
    "raw/num-edge-list": ["-3\n"],
    "raw/node-feat": ["1\n2\n3\n", "1\n2\n3\n1e39\n"],
    "raw/node-label": ["0\n0.5\n1\n1\n", "0\n-2\n1\n1\n", "0\n1e18\n1\n1\n"],
    "split/time/train": ["4\n", "3\n", "0\n0\n"],
    "split/time/test": ["0\n"],
}
BROKEN_TYPES = {
    "raw/triplet-type-list": [
        "author,writes,book\n",
        "author,writes\n",
        2 * "paper,cites,paper\n",
        "paper,../../x,paper\n",
    ],
    "raw/num-node-dict": [
        "author,../paper\n2,3\n",
        "author,paper\n2,3\n2,3\n",
        "author,author\n2,3\n",
        "author,paper,venue\n2,-3,1\n",
    ],
    "raw/relations/paper___cites___paper/edge": ["0,3\n"],
    "raw/node-label/paper/node-label": ["1\n0\n"],
    "raw/nodetype-has-label": ["author,paper\nFalse,maybe\n"],
    "split/time/nodetype-has-split": ["author,paper\nTrue,True\n"],
    "split/time/paper/train": ["3\n"],
}


def test_what_read_ogb_refuses(tmp_path, refuses):
    for old, lines in SETTINGS.items():
        for line in lines:
            master = MASTER.replace(old, line)
            refuses(DatasetFormatError, read_ogb, written(tmp_path / "ogbn_tiny", NODES, **{"master.csv": master}))
    for name, files, broken in (("nodes", NODES, BROKEN_NODES), ("types", TYPES, BROKEN_TYPES)):
        for file, contents in broken.items():
            for content in contents:
                refuses(DatasetFormatError, read_ogb, written(tmp_path / name, files, **{file: content}))
    refuses(DatasetFormatError, read_ogb, written(tmp_path / "proteins", NODES))
    for line in ("author,pa\rper\n2,3\n", f"author,{'p' * 140_000}\n2,3\n"):
        with pytest.raises(DatasetFormatError, match=r"found line 1, .* that is no row.*; expected "):
            read_ogb(written(tmp_path / "types", TYPES, **{"raw/num-node-dict": line}))


def test_a_file_of_names_is_not_read_beyond_its_limits(tmp_path, monkeypatch, refuses):
    files = {**TYPES, "raw/triplet-type-list": "".join(f"paper,r{i},paper\n" for i in range(9))}
    folder = written(tmp_path / "many", files)
    monkeypatch.setattr(ogb_graph, "MAX_TYPES", 3)
    taken = []
    plain = ogb_graph.text_lines
    monkeypatch.setattr(ogb_graph, "text_lines", lambda *each: (taken.append(line) or line for line in plain(*each)))
    refuses(DatasetFormatError, read_ogb, folder)
    assert len(taken) == 2 + 4  # the rows of num-node-dict, then the relations up to the first too many
    monkeypatch.setattr(ogb_graph, "MAX_NAMES_BYTES", 100)
    for name in ("num-node-dict", "triplet-type-list", "relations/paper___cites___paper/num-edge-list"):
        refuses(DatasetFormatError, read_ogb, written(tmp_path / Path(name).name, TYPES, **{f"raw/{name}": "\n" * 101}))


# Links.


def write_saved(path: Path, content: object, how: str) -> None:
    """Write what torch.save writes, now or before 1.6."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path, _use_new_zipfile_serialization=how == "zip")


def test_links_of_an_npz_file_have_the_edges_of_the_graph_for_training(tmp_path):
    folder = written(tmp_path / "ddi", EDGES)
    npz_of(folder, {**PAIRS, "valid_other": np.array([[0, 1]])})  # a key of no meaning here
    raw = read_ogb(folder)
    assert raw.task == "link_prediction"
    assert raw.edges[None].shape == (2, 6)  # ogbl-ddi adds inverse edges
    assert items_of(raw) == [
        ([[0, 1], [1, 2], [3, 0]], None),
        ([[0, 2], [1, 3], [2, 3]], [1, 0, 0]),
        ([[1, 3], [0, 2]], [1, 0]),
    ]


@pytest.mark.parametrize(("how", "kind"), [("zip", "numpy"), ("legacy", "numpy"), ("zip", "tensor")])
def test_links_that_torch_saved(tmp_path, how, kind):
    folder = written(tmp_path, EDGES)
    tables = {
        "train": {"edge": np.array([[0, 1], [1, 2]]), "year": np.array([2001, 2005])},
        "valid": {"edge": PAIRS["valid_edge"], "edge_neg": PAIRS["valid_edge_neg"]},
        "test": {"edge": PAIRS["test_edge"], "edge_neg": PAIRS["test_edge_neg"]},
    }
    for part, table in tables.items():
        saved = {key: torch.from_numpy(rows) if kind == "tensor" else rows for key, rows in table.items()}
        write_saved(folder / f"split/target/{part}.pt", saved, how)
    raw = read_ogb(folder)
    assert items_of(raw)[1:] == [([[0, 2], [1, 3], [2, 3]], [1, 0, 0]), ([[1, 3], [0, 2]], [1, 0])]
    assert raw.split[0][None].seeds.tolist() == [[0, 1], [1, 2]]
    assert raw.split[0][None].timestamps.tolist() == [2001, 2005]


def test_sources_with_destinations_of_their_own_become_numbered_queries(tmp_path):
    folder = written(tmp_path, EDGES)
    table = {"source_node": np.array([0, 3]), "target_node": np.array([1, 2])}
    write_saved(folder / "split/time/train.pt", table, "zip")
    table["target_node_neg"] = np.array([[2, 3], [0, 1]])
    for part in ("valid", "test"):
        write_saved(folder / f"split/time/{part}.pt", table, "zip")
    train, valid, _ = (part[None] for part in read_ogb(folder).split)
    assert (train.seeds.tolist(), train.labels) == ([[0, 1], [3, 2]], None)
    assert valid.seeds.tolist() == [[0, 1], [0, 2], [0, 3], [3, 2], [3, 0], [3, 1]]
    assert valid.labels.tolist() == [1, 0, 0, 1, 0, 0]
    assert valid.indexes.tolist() == [0, 0, 0, 1, 1, 1]


# Links with types: triples.

GRAPH = {name: content for name, content in TYPES.items() if "label" not in name and not name.startswith("split/")}
GRAPH["raw/relations/paper___cites___paper/edge_reltype"] = "7\n"
WRITES, CITES, IN = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "in", "venue")


def write_triples(folder: Path, **changes: object) -> Path:
    """Write the split of three triples: author 1 writes paper 0, paper 2 cites 1, author 0 writes paper 1."""
    table = {
        "head_type": ["author", "paper", "author"],
        "head": np.array([1, 2, 0]),
        "relation": np.array([4, 7, 4]),
        "tail_type": ["paper", "paper", "paper"],
        "tail": np.array([0, 1, 1]),
    }
    others = {"head_neg": np.array([[0], [0], [1]]), "tail_neg": np.array([[1, 2], [0, 2], [0, 2]])}
    for part in ("train", "valid", "test"):
        whole = {**table, **({} if part == "train" else others), **changes}
        write_saved(folder / f"split/random/{part}.pt", {k: v for k, v in whole.items() if v is not None}, "zip")
    return folder


def test_triples_become_links_by_edge_type(tmp_path):
    raw = read_ogb(write_triples(written(tmp_path, GRAPH)))
    assert raw.task == "link_prediction"
    train, valid, test = raw.split
    assert {kind: items.seeds.tolist() for kind, items in train.items()} == {
        WRITES: [[1, 0], [0, 1]],
        CITES: [[2, 1]],
        IN: [],
    }
    assert all(items.labels is None for items in train.values())
    # Each triple twice: its tail against tail_neg, its head against head_neg.
    assert valid[CITES].seeds.tolist() == [[2, 1], [2, 0], [2, 2], [2, 1], [0, 1]]
    assert valid[CITES].labels.tolist() == [1, 0, 0, 1, 0]
    assert valid[CITES].indexes.tolist() == [0, 0, 0, 1, 1]
    assert test[WRITES].seeds.tolist() == [
        *([1, 0], [1, 1], [1, 2]),
        *([1, 0], [0, 0]),
        *([0, 1], [0, 0], [0, 2]),
        *([0, 1], [1, 1]),
    ]
    assert test[WRITES].indexes.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert len(test[IN].seeds) == len(test[IN].labels) == 0


def test_what_read_ogb_refuses_of_links(tmp_path, refuses):
    folder = written(tmp_path / "links", EDGES)
    for valid_edge in (np.array([[0, 4]]), np.array([[0, -1]]), np.array([0, 1]), np.array([[0.0, 1.0]])):
        npz_of(folder, {**PAIRS, "valid_edge": valid_edge})
        refuses(DatasetFormatError, read_ogb, folder)
    for part in ("train", "valid", "test"):
        write_saved(folder / f"split/{part}.pt", {"head": np.zeros(1), "tail": np.zeros(1)}, "zip")
    refuses(DatasetFormatError, read_ogb, folder)
    folder = written(tmp_path / "triples", GRAPH)
    for changes in (
        {"relation": np.array([4, 7, 5])},
        {"head_type": ["author", "paper", "venue"]},
        {"head": np.array([2, 2, 0])},
        {"tail": np.array([0, 1, 3])},
        {"tail": np.array([0, 1])},
        {"tail_type": ["paper"]},
        {"tail_type": np.zeros(3)},
        {"relation": ["a", "b", "c"]},
        {"head_type": None},
        {"head_neg": np.array([[0], [0], [2]])},
        {"tail_neg": None},
    ):
        refuses(DatasetFormatError, read_ogb, write_triples(folder, **changes))
    name = "raw/relations/author___writes___paper/edge_reltype"
    refuses(DatasetFormatError, read_ogb, write_triples(written(tmp_path / "two", GRAPH, **{name: "4\n5\n"})))


def test_a_part_has_no_types_without_items(tmp_path):
    """A sampler refuses a type without items, so such a part could not be used."""
    data = dp.datasets.open(write_triples(written(tmp_path, GRAPH)))
    for part in (data.train_set, data.validation_set, data.test_set):
        assert set(part.item_sets) == {WRITES, CITES}
        sampler = dp.ItemSampler(part, batch_size=4).sample_neighbor(data.graph, [2])
        assert sum(len(pairs) for batch in sampler for pairs in batch.seeds.values()) == len(part)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil",)


@pytest.mark.parametrize("how", ["zip", "legacy"])
def test_a_saved_file_that_would_run_code_is_refused_and_runs_none(tmp_path, monkeypatch, refuses, how):
    monkeypatch.chdir(tmp_path)
    write_saved(tmp_path / "a.pt", {"edge": Evil()}, how)
    refuses(DatasetFormatError, read_saved, tmp_path / "a.pt")
    assert not (tmp_path / "evil").exists()


def saved(content: object) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def changed(content: bytes, member: str, old: bytes, new: bytes, compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return the archive, packed anew, with `old`, which is once in the member, as `new`."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as before, zipfile.ZipFile(stream, "w", compression) as after:
        for name in before.namelist():
            inside = before.read(name)
            if name.endswith(member):
                assert inside.count(old) == 1
                inside = inside.replace(old, new)
            after.writestr(name, inside)
    return stream.getvalue()


COUNTED = torch.arange(24).reshape(6, 4)


@pytest.mark.parametrize(
    "tensor",
    [
        COUNTED,
        COUNTED.t(),
        COUNTED[1:5:2, 1:3],
        COUNTED[:, 2],
        torch.arange(3).expand(2, 3),
        torch.zeros(0, 2),
        torch.zeros(2, requires_grad=True),
        *(
            COUNTED.to(getattr(torch, kind))
            for kind in ("bool", "uint8", "int8", "int16", "int32", "float32", "double")
        ),
    ],
)
def test_a_tensor_comes_out_as_torch_loads_it(tmp_path, tensor):
    path = tmp_path / "a.pt"
    path.write_bytes(saved({"edge": tensor}))
    found, expected = read_saved(path)["edge"], torch.load(path, weights_only=True)["edge"].detach().numpy()
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


def test_tensors_of_one_storage_arrays_and_texts_may_be_in_one_dict(tmp_path):
    path = tmp_path / "a.pt"
    path.write_bytes(saved({"a": COUNTED[:2], "b": COUNTED[2:], "c": np.arange(3), "d": ["x", "y"]}))
    table = read_saved(path)
    assert np.array_equal(np.concatenate([table["a"], table["b"]]), COUNTED.numpy())
    assert (table["c"].tolist(), table["d"]) == ([0, 1, 2], ["x", "y"])


NEGATED = torch._neg_view(torch.ones(2, dtype=torch.uint8))
SHAPE = b"K\x00K\x06K\x04\x86"  # the offset, then the shape


def test_a_tensor_beyond_its_storage_is_refused(tmp_path, refuses):
    path, counted = tmp_path / "a.pt", saved({"edge": COUNTED})
    for content, member, old, new in (
        (counted, "data.pkl", SHAPE, b"K\x00K\x07K\x04\x86"),
        (counted, "data.pkl", SHAPE, b"K\x01K\x06K\x04\x86"),
        (counted, "data.pkl", SHAPE, b"K\x00J\xff\xff\xff\xffK\x04\x86"),
        (counted, "data.pkl", SHAPE, b"K\x00K\x06K\x02K\x02\x87"),
        (counted, "data.pkl", SHAPE, b"K\x00(" + b"K\x01" * 65 + b"t"),
        (counted, "data.pkl", b"K\x18", b"K\x19"),
        (counted, "data.pkl", b"LongStorage", b"CharStorage"),
        (counted, "byteorder", b"little", b"middle"),
        (saved({"edge": NEGATED}), "data.pkl", b"ByteStorage", b"BoolStorage"),
    ):
        path.write_bytes(changed(content, member, old, new))
        refuses(DatasetFormatError, read_saved, path)
    many = b"\x8a\x07" + (2**48).to_bytes(7, "little")
    uncountable = changed(counted, "data.pkl", b"K\x04K\x01\x86", b"K\x00K\x00K\x00\x87")
    for content, old, new, pattern in (
        (counted, b"X\x01\x00\x00\x000", b"X\x01\x00\x00\x001", "broken tensors"),
        (uncountable, SHAPE, b"K\x00" + 3 * many + b"\x87", "'edge' of shape .* bytes"),
    ):
        path.write_bytes(changed(content, "data.pkl", old, new))
        with pytest.raises(DatasetFormatError, match=rf"a\.pt: found {pattern}"):
            read_saved(path)


def test_numbers_of_the_other_byte_order_are_read(tmp_path):
    content = changed(saved({"edge": torch.tensor([1])}), "data/0", b"\x01" + bytes(7), bytes(7) + b"\x01")
    (tmp_path / "a.pt").write_bytes(changed(content, "byteorder", b"little", b"big"))
    assert read_saved(tmp_path / "a.pt")["edge"].tolist() == [1]


def test_bytes_that_are_copied_have_one_dtype(tmp_path, refuses):
    """Each copy takes memory, so a small file could take as much as it has names for dtypes."""
    content = saved({"a": torch.arange(4), "b": torch.arange(4).double()})
    content = changed(content, "data.pkl", b"X\x01\x00\x00\x001", b"X\x01\x00\x00\x000")
    (tmp_path / "a.pt").write_bytes(content)
    assert read_saved(tmp_path / "a.pt")["b"].view(np.int64).tolist() == [0, 1, 2, 3]
    (tmp_path / "a.pt").write_bytes(changed(content, "byteorder", b"little", b"big"))
    refuses(DatasetFormatError, read_saved, tmp_path / "a.pt")


READ = """
from pathlib import Path
from datapipes.datasets.raw import DatasetFormatError
from datapipes.datasets.pickled_arrays import read_saved
for path in {paths}:
    try:
        read_saved(Path(path))
    except DatasetFormatError as error:
        print(error)
"""


def test_keys_that_take_for_ever_to_hash_are_never_hashed(tmp_path):
    """Tuples of tuples, each used twice, and ints of one hash; a name of torch makes both look like tensors."""
    rebuild = b"K\x01ctorch._utils\n_rebuild_tensor_v2\ns"
    nested = b")q\x00" + b"".join(b"h%c\x86q%c" % (i, i + 1) for i in range(64)) + b"K\x01s"
    one_hash = b"".join(pickle.dumps(i * (2**61 - 1), 2)[2:-1] + b"K\x01s" for i in range(1, 10_000))
    for name, keys in (("a", nested), ("b", one_hash)):
        with zipfile.ZipFile(tmp_path / f"{name}.pt", "w") as archive:
            archive.writestr("archive/data.pkl", b"\x80\x02}" + rebuild + keys + b".")
            archive.writestr("archive/version", "3\n")
    child = run_script(READ.format(paths=[str(path) for path in sorted(tmp_path.glob("*.pt"))]))
    assert (child.returncode, child.stderr) == (0, "")
    found = child.stdout.splitlines()
    assert [line.partition(" with")[0] for line in found] == ["a.pt: found an object", "b.pt: found an object"]


def test_saved_files_that_are_broken_or_hold_something_else_are_refused(tmp_path, refuses):
    path, zeros = tmp_path / "a.pt", torch.zeros(2)
    for content in (
        changed(saved({"edge": COUNTED}), "byteorder", b"little", b"little", zipfile.ZIP_DEFLATED),
        changed(saved({"edge": zeros}), "byteorder", b"little", b"little").replace(b"data.pkl", b"data.pkx"),
        saved([zeros]),
        saved({"edge": [zeros]}),
        saved({1: zeros}),
        saved({"edge": torch.sparse_coo_tensor([[0]], [1.0], (2,), check_invariants=True)}),
        saved({"edge": "text"}),
    ):
        path.write_bytes(content)
        refuses(DatasetFormatError, read_saved, path)
    for content, pattern in (
        (saved({"edge": zeros})[:200], "a broken archive"),
        (saved({"edge": torch.zeros(1).expand(2**40, 2)}), "'edge' of shape"),
        (b"", "a broken pickle"),
    ):
        path.write_bytes(content)
        with pytest.raises(DatasetFormatError, match=rf"a\.pt: found {pattern}"):
            read_saved(path)


WHOLE = {
    "numpy": saved({"edge": np.arange(6).reshape(3, 2)}),
    "tensor": saved({"edge": torch.arange(6).reshape(3, 2)}),
}


@examples(80)
@given(kind=st.sampled_from(list(WHOLE)), place=st.integers(0, 2**20), value=st.integers(0, 255))
def test_a_changed_byte_is_refused_or_leaves_arrays(tmp_path_factory, kind, place, value):
    content = bytearray(WHOLE[kind])
    content[place % len(content)] = value
    path = tmp_path_factory.mktemp("t") / "a.pt"
    path.write_bytes(content)
    try:
        table = read_saved(path)
    except DatasetFormatError:
        return
    assert all(isinstance(rows, np.ndarray) and rows.nbytes <= len(content) for rows in table.values())


def test_ogbl_ddi_has_the_counts_of_its_readme():
    raw = read_ogb(published("ogbl_ddi"))
    assert raw.name == "ogbl-ddi"
    assert raw.num_nodes == {None: 4267}
    assert raw.edges[None].shape == (2, 2 * 1_067_911)
    train, valid, test = (part[None] for part in raw.split)
    assert (train.seeds.shape, train.labels) == ((1_067_911, 2), None)
    assert np.bincount(valid.labels).tolist() == [101_882, 133_489]
    assert np.bincount(test.labels).tolist() == [95_599, 133_489]
    assert np.array_equal(raw.edges[None][:, ::2].T, train.seeds)
