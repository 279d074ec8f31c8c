"""PygFolder: what was written is read; every other file is refused by name, and runs nothing."""

import json
import os
import pickle
import shutil
from collections import defaultdict

import pytest
import torch
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from partitions import books, graphs, parts_of, slow_positions, source_of
from pyg_layout import BOOK, renamed, same, small, typed, written

from datapipes.base.types import ends_of
from datapipes.distributed import LocalFeatureStore, PartitionBook
from datapipes.partition.pyg import torch_file as pyg_checks
from datapipes.partition.pyg.pyg_read import PygFolder
from datapipes.partition.pyg.torch_file import load_plain


@examples(40)
@given(st.data())
def test_what_was_written_is_read(tmp_path_factory, data):
    graph = renamed(data.draw(graphs()))
    book = data.draw(books(graph))
    root = written(tmp_path_factory.mktemp("pyg"), source_of(graph), book)
    found = PygFolder(root)
    assert found.meta.num_parts == found.book.num_parts == book.num_parts
    assert (found.meta.node_types, found.meta.edge_types) == (graph.node_types, graph.edge_types)
    for node_type in graph.node_types:
        assert found.book.nodes(node_type).dense().tolist() == parts_of(book, node_type)
    for part in range(book.num_parts):
        edges, nodes, features = found.edges(part), found.node_features(part), found.edge_features(part)
        assert set(edges) == set(graph.edge_types)
        for edge_type, each in edges.items():
            relation, (src, dst) = graph.relation(edge_type), ends_of(edge_type)
            places = torch.tensor(slow_positions(graph, book, edge_type, part), dtype=torch.int64)
            ids = places if relation.edge_ids is None else relation.edge_ids[places]
            assert same(each.edge_id, ids)
            assert same(each.row, relation.indices[places].long())
            assert same(each.col, torch.searchsorted(relation.indptr, places, right=True) - 1)
            assert each.size == (graph.num_nodes_of(src), graph.num_nodes_of(dst))
            if len(places) > 0:
                assert same(features[edge_type].ids, ids)
                assert features[edge_type].of_ids.keys() == relation.edge_attributes.keys()
                values = relation.edge_attributes
                assert all(same(rows, values[name][places]) for name, rows in features[edge_type].of_ids.items())
        for node_type, each in nodes.items():
            own = torch.tensor([i for i, owner in enumerate(parts_of(book, node_type)) if owner == part]).long()
            values = graph.node_attributes_of(node_type)
            assert same(each.ids, own)
            assert each.of_ids.keys() == values.keys()
            assert all(same(rows, values[name][own]) for name, rows in each.of_ids.items())


@pytest.fixture
def root(tmp_path):
    """A partition of a small graph."""
    graph = small(node_attributes={"x": torch.rand(6, 2)}, edge_attributes={"edge_attr": torch.rand(30, 1)})
    return written(tmp_path, source_of(graph), BOOK)


TYPES = ("b", "r", "a")


@pytest.fixture
def typed_root(tmp_path):
    """A partition of a small graph with types, and features of all."""
    x = {"a": {"x": torch.rand(2, 2)}, "b": {"x": torch.rand(2, 2)}}
    graph = typed(TYPES, ("a", "s", "a"), node_attributes=x, edge_attributes={TYPES: {"w": torch.rand(2)}})
    return written(tmp_path, source_of(graph), PartitionBook(2, {"a": torch.arange(2), "b": torch.arange(2)}))


def read_all(root):
    """Read every file of part 1."""
    found = PygFolder(root)
    return found.edges(1), found.node_features(1), found.edge_features(1)


def test_a_folder_may_lack_the_underscore(root):
    expected = PygFolder(root).edges(0)[None].edge_id
    (root / "part_0").rename(root / "part0")
    assert torch.equal(PygFolder(root).edges(0)[None].edge_id, expected)


def change(path, **changes):
    """Change some entries of the dict in a file; an entry None goes."""
    held = {**torch.load(path, weights_only=True), **changes}
    torch.save({key: value for key, value in held.items() if value is not None}, path)


def test_edges_that_are_not_sorted_are_sorted(root):
    path = root / "part_1" / "graph.pt"
    edges = torch.load(path, weights_only=True)
    change(path, **{name: edges[name].flip(0) for name in ("row", "col", "edge_id")})
    with pytest.raises(
        ValueError, match=r"graph.pt: the destinations do not ascend; META.json says that they are sorted"
    ):
        read_all(root)
    meta = json.loads((root / "META.json").read_text())
    for older in ({**meta, "is_sorted": False}, {name: meta[name] for name in meta if name != "is_sorted"}):
        (root / "META.json").write_text(json.dumps(older))
        found = PygFolder(root).edges(1)[None]
        order = torch.argsort(edges["col"].flip(0), stable=True)
        assert torch.equal(found.edge_id, edges["edge_id"].flip(0)[order])
        assert torch.equal(found.col, edges["col"])


# --- hostile and broken files

FILES = ["node_map.pt", "edge_map.pt", "part_1/graph.pt", "part_1/node_feats.pt", "part_1/edge_feats.pt"]


class RunsCode:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", FILES)
def test_code_in_a_file_is_refused_and_not_run(refuses, root, tmp_path, name):
    trap = tmp_path / "trap"
    for code in (RunsCode(trap), defaultdict(dict, global_id=RunsCode(trap))):
        torch.save(code, root / name)
        refuses(ValueError, read_all, root)
        assert not trap.exists()
    (root / name).write_bytes(pickle.dumps(RunsCode(trap)))
    refuses(ValueError, read_all, root)
    assert not trap.exists()


def test_what_torch_allows_is_neither_asked_nor_changed(root, monkeypatch):
    """What torch allows is one list for the whole process, in the hands of PyG, of users and of other threads."""
    held = defaultdict(dict)
    held.update(global_id=torch.arange(2))
    path = root / "held.pt"
    allowed = [each for each in dir(torch.serialization) if "safe_globals" in each]
    assert {"add_safe_globals", "clear_safe_globals", "get_safe_globals"} <= {*allowed}
    for protocol in (2, 4):  # the names of dict in Python 2 and 3
        torch.save(held, path, pickle_protocol=protocol)
        with monkeypatch.context() as patch:
            for each in allowed:
                patch.setattr(torch.serialization, each, lambda *_: pytest.fail("asked"))
            patch.setattr(torch, "load", lambda *_, **__: pytest.fail("asked"))
            assert load_plain(path)["global_id"].tolist() == [0, 1]


@pytest.mark.parametrize("allow", [[], [defaultdict, dict], [RunsCode, os.mkdir]])
def test_what_others_allow_is_refused_all_the_same(root, allow):
    before = torch.serialization.get_safe_globals()
    torch.serialization.add_safe_globals(allow)
    try:
        torch.save({"a": RunsCode(root / "trap")}, root / "held.pt")
        with pytest.raises(ValueError, match="something else"):
            load_plain(root / "held.pt")
        assert not (root / "trap").exists()
        assert set(torch.serialization.get_safe_globals()) == {*before, *allow}
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals([*before])


@pytest.mark.parametrize("name", FILES)
def test_missing_truncated_and_overwritten_files_are_named(root, name):
    path = root / name
    content = path.read_bytes()
    for cut in (0, 1, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:cut])
        with pytest.raises(ValueError, match=f"{name} cannot be read as a file of torch.save.*truncated or corrupt"):
            read_all(root)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{name} does not exist"):
        read_all(root)
    os.mkfifo(path)
    with pytest.raises(ValueError, match=f"{name} is a FIFO; a regular file is needed"):
        read_all(root)
    path.unlink()
    path.mkdir()
    with pytest.raises(ValueError, match=f"{name} is a folder"):
        read_all(root)


def test_a_changed_byte_is_refused_or_stays_a_partition(root):
    """A byte anywhere in a file: an error that names the file, or what the maps allow."""
    path = root / "part_1" / "graph.pt"
    content = path.read_bytes()
    made = torch.Generator().manual_seed(5)
    for at in torch.randint(len(content), (150,), generator=made).tolist():
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x41]) + content[at + 1 :])
        try:
            edges = read_all(root)[0][None]
        except ValueError as error:
            said = str(error)
            assert str(path) in said
        else:
            assert edges.row.shape == edges.col.shape == edges.edge_id.shape == (20,)


IDS = torch.arange(20)


def test_content_that_does_not_fit_is_refused_by_name(refuses, root):
    for file, changes in (
        ("graph.pt", {"row": None}),
        ("graph.pt", {"more": IDS}),
        ("graph.pt", {"row": IDS.int()}),
        ("graph.pt", {"row": IDS[:, None]}),
        ("graph.pt", {"row": [1, 2]}),
        ("graph.pt", {"row": IDS.to_sparse()}),
        ("graph.pt", {"row": IDS[:-1]}),
        ("graph.pt", {"row": IDS.clamp(max=6)}),
        ("graph.pt", {"row": IDS.clamp(max=5) - 1}),
        ("graph.pt", {"col": IDS}),
        ("graph.pt", {"col": IDS.clamp(max=5)}),
        ("graph.pt", {"edge_id": IDS + 30}),
        ("graph.pt", {"edge_id": IDS}),
        ("graph.pt", {"size": (6, 7)}),
        ("graph.pt", {"size": 6}),
        ("node_feats.pt", {"global_id": None}),
        ("node_feats.pt", {"global_id": torch.tensor([1, 4, 4])}),
        ("node_feats.pt", {"global_id": torch.tensor([1, 4])}),
        ("node_feats.pt", {"feats": {"x": torch.rand(2, 2)}}),
        ("node_feats.pt", {"feats": {"x": "text"}}),
        ("node_feats.pt", {"feats": {3: IDS[:3]}}),
        ("node_feats.pt", {"feats": [IDS]}),
        ("node_feats.pt", {"time": IDS[:5]}),
        ("edge_feats.pt", {"global_id": IDS}),
        ("edge_feats.pt", {"edge_time": IDS[:5]}),
        ("graph.pt", {"size": (6, 6, 6)}),
        ("graph.pt", {"size": [[6], 6]}),
        ("graph.pt", {"size": (IDS, 6)}),
        ("graph.pt", {"size": {"a": [1]}}),
        ("node_feats.pt", {"feats": {"x": IDS[:3].byte().view(torch.bits8)}}),
        ("node_feats.pt", {"feats": {("x", ("y",)): IDS[:3]}}),
        ("node_feats.pt", {"feats": {"time": IDS[:3]}, "time": IDS[:6]}),
        ("edge_feats.pt", {"feats": {"edge_time": IDS}, "edge_time": IDS}),
        ("edge_feats.pt", {"feats": {"edge_attr": torch.tensor(1)}}),
    ):
        path = root / "part_1" / file
        whole = path.read_bytes()
        change(path, **changes)
        refuses(ValueError, read_all, root)
        path.write_bytes(whole)
    for file, changes in (
        ("graph.pt", {"row": IDS.clone()[:1].expand(10**12)}),
        ("node_feats.pt", {"feats": {"x": torch.rand(1).expand(3, 10**9)}}),
    ):
        path = root / "part_1" / file
        whole = path.read_bytes()
        change(path, **changes)
        with pytest.raises(ValueError, match=f"{file} cannot be read .*found a tensor of shape .* bytes"):
            read_all(root)
        path.write_bytes(whole)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("file", "where", "said"),
    [
        ("graph.pt", ("row",), "row"),
        ("node_feats.pt", ("feats", "x"), r"feats\['x'\]"),
        ("../node_map.pt", (), "node_map"),
    ],
)
def test_nested_tensors_are_refused(root, file, where, said):
    value = torch.nested.nested_tensor([torch.arange(2), torch.arange(3)])
    for name in reversed(where):
        value = {name: value}
    path = root / "part_1" / file
    if where:
        change(path, **value)
    else:
        torch.save(value, path)
    with pytest.raises(ValueError, match=rf"{path.name}: {said} is a nested tensor; a dense tensor in host memory is"):
        read_all(root)


SHARED = ["x"]
for _ in range(19):
    SHARED = [SHARED, SHARED]


@pytest.mark.parametrize("changes", [{"size": SHARED}, {"size": [6, {"a": SHARED}]}, {"row": SHARED}, {3: SHARED}])
def test_values_that_are_long_to_write_out_are_named_by_kind(root, monkeypatch, changes):
    path = root / "part_1" / "graph.pt"
    torch.save({**torch.load(path, weights_only=True), **changes}, path)
    shown_ones = []
    monkeypatch.setattr(pyg_checks, "shown", lambda value: shown_ones.append(value) or repr(value)[:50])
    with pytest.raises(ValueError, match=r"graph\.pt: .*Write the partition"):
        read_all(root)
    assert all(isinstance(each, int) for each in shown_ones)


def test_conjugated_features_of_a_file_are_looked_up(root):
    x, n = torch.rand(3, 2, dtype=torch.complex64), torch.rand(3, dtype=torch.complex64).conj().imag
    change(root / "part_1" / "node_feats.pt", feats={"x": x.conj(), "n": n})
    store = LocalFeatureStore.from_partition(root, 1)
    assert store.lookup_features(torch.tensor([5, 1])).wait().tolist() == x.conj()[[2, 0]].tolist()
    assert store.lookup_features(torch.tensor([4]), attr_name="n").wait().tolist() == n[1:2].tolist()


def test_files_that_are_no_dict_are_refused(refuses, root):
    for file in ("graph.pt", "node_feats.pt", "edge_feats.pt"):
        path = root / "part_1" / file
        whole = path.read_bytes()
        for no_dict in ([1], torch.arange(3), None, "text"):
            torch.save(no_dict, path)
            refuses(ValueError, read_all, root)
        path.write_bytes(whole)
    for node_map in ({}, torch.tensor([0, 1, 2, 0, 0, 0])):
        torch.save(node_map, root / "node_map.pt")
        refuses(ValueError, read_all, root)


def test_types_that_meta_does_not_name_are_refused(refuses, typed_root):
    read_all(typed_root)
    edges, nodes = (typed_root / "part_1" / name for name in ("graph.pt", "node_feats.pt"))
    of_edges, of_nodes = (torch.load(path, weights_only=True) for path in (edges, nodes))
    for path, held in (
        (edges, {**of_edges, ("a", "r", "b"): of_edges[TYPES]}),
        (edges, {TYPES: of_edges[TYPES]}),
        (nodes, {"b": of_nodes["b"]}),
        (nodes, {**of_nodes, "b": {**of_nodes["b"], "id": torch.tensor([0])}}),
    ):
        whole = path.read_bytes()
        torch.save(held, path)
        refuses(ValueError, read_all, typed_root)
        path.write_bytes(whole)


def test_a_meta_that_cannot_be_is_refused(refuses, typed_root):
    path = typed_root / "META.json"
    meta = json.loads(path.read_text())
    for name, value in (
        ("num_parts", 0),
        ("num_parts", "2"),
        ("num_parts", 10**9),
        ("is_hetero", 1),
        ("node_types", None),
        ("node_types", ["a", "a", "b"]),
        ("node_types", ["a", "../../b"]),
        ("node_types", ["a"]),
        ("edge_types", [["a", "b"]]),
        ("node_offset", [0, 7]),
    ):
        path.write_text(json.dumps({**meta, name: value}))
        refuses(ValueError, PygFolder, typed_root)


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 10**5, '"\\ud800', "null", '{"num_parts": ' + "9" * 5000 + "}"])
def test_a_meta_that_is_no_json_is_refused(root, text):
    (root / "META.json").write_text(text)
    with pytest.raises(ValueError, match=r"META.json is not a valid META.json"):
        PygFolder(root)


def test_a_missing_and_a_long_meta_are_refused(refuses, root):
    (root / "META.json").write_bytes(b" " * (2**21 + 1))
    for folder in (root / "nowhere", root):
        refuses(FileNotFoundError if folder != root else ValueError, PygFolder, folder)


def test_missing_parts_and_parts_of_another_partition_are_refused(root, tmp_path_factory):
    found = PygFolder(root)
    for wrong in (-1, 2):
        with pytest.raises(ValueError, match=rf"part must be .*, got {wrong}"):
            found.edges(wrong)
    other = written(tmp_path_factory.mktemp("other"), source_of(small()), PartitionBook(2, torch.arange(6) % 2))
    shutil.rmtree(root / "part_1")
    with pytest.raises(
        FileNotFoundError, match=r"part_1 does not exist, and neither does part1; META.json says 2 parts"
    ):
        found.edges(1)
    shutil.copytree(other / "part_1", root / "part_1")
    for read in (found.edges, found.node_features):
        with pytest.raises(ValueError, match=r"part_1/\w+.pt: .*are not those of part 1|of other parts"):
            read(1)
    shutil.rmtree(root / "part_1")
    shutil.copytree(root / "part_0", root / "part_1")
    for read in (found.edges, found.node_features, found.edge_features):
        with pytest.raises(ValueError, match=r"are not those of part 1|nodes of part 1: this may be another part's"):
            read(1)


def test_tensors_are_mapped_and_shared_with_no_file(root):
    path = root / "part_1" / "node_feats.pt"
    before = path.read_bytes()
    found = PygFolder(root).node_features(1)[None]
    found.of_ids["x"].zero_()
    assert path.read_bytes() == before


@pytest.mark.parametrize("replaced", ["META.json", "node_map.pt", "edge_map.pt", "graph.pt", "edge_feats.pt"])
@pytest.mark.parametrize("removed", [False, True])
def test_a_partition_that_is_replaced_while_it_is_read_is_refused(tmp_path, monkeypatch, replaced, removed):
    root, other = tmp_path / "root", tmp_path / "other"
    for folder, value in ((root, 1.0), (other, 2.0)):  # the maps are the same, so only the values tell them apart
        graph = small(node_attributes={"x": torch.full((6,), value)}, edge_attributes={"w": torch.full((30,), value)})
        folder.mkdir()
        written(folder, source_of(graph), BOOK)
    system_open = os.open

    def replace_after(path, *args, **kwargs):
        descriptor = system_open(path, *args, **kwargs)
        if other.exists() and str(path).endswith(replaced):
            root.rename(tmp_path / "older")
            other.rename(root)
            if removed:
                shutil.rmtree(tmp_path / "older")
        return descriptor

    monkeypatch.setattr(os, "open", replace_after)
    with pytest.raises(FileNotFoundError, match=r"has taken the place of .*root while its files were .*Open it again"):
        read_all(root)
    assert read_all(root)[2][None].of_ids["w"].unique().tolist() == [2.0]


def test_features_of_a_partition_that_took_the_place_of_the_one_that_was_opened_are_refused(root):
    found = PygFolder(root)
    root.rename(root.parent / "older")
    with pytest.raises(FileNotFoundError, match="another folder has taken the place of"):
        found.edges(1)
    shutil.copytree(root.parent / "older", root)
    for read in (found.edges, found.node_features, found.edge_features):
        with pytest.raises(FileNotFoundError, match="another folder has taken the place of"):
            read(1)


def test_a_file_that_is_another_one_when_it_is_loaded_is_refused(root, monkeypatch):
    path = root / "part_1" / "node_feats.pt"
    other = root / "other.pt"
    shutil.copy(path, other)

    system_open = os.open

    def open_and_replace(opened, *args, **kwargs):
        descriptor = system_open(opened, *args, **kwargs)
        if other.exists():
            other.rename(path)
        return descriptor

    monkeypatch.setattr(os, "open", open_and_replace)
    with pytest.raises(ValueError, match=r"node_feats\.pt changed while it was read; it must stay as it is"):
        load_plain(path)
