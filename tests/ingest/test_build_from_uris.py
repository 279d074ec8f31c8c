"""CSCGraph.build of tables at URIs: the graph of the same files on this machine, to the byte."""

import gzip

import numpy as np
import pytest
from killed_builds import files_of, kill_a_build
from pipelines import refused
from remote_files import place_of

import datapipes as dp
from datapipes.ingest import build, remote

pytest.importorskip("pyarrow", reason="tables need pyarrow")
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
SMALL = 3000  # bytes of memory, in which the edges of tests do not fit


@pytest.fixture(params=["memory", "http"])
def place(request, tmp_path):
    with place_of(request.param, tmp_path / "served") as given:
        yield given


def edges_of(count, seed=0):
    return np.random.default_rng(seed).integers(0, 40, (2, count))


def parquet(path, edges):
    import pyarrow
    import pyarrow.parquet

    columns = {"dst": edges[1], "src": edges[0], "weight": np.arange(edges.shape[1]) / 3}
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=17)


def csv(path, edges):
    rows = [f"{src},{dst},{number / 3}" for number, (src, dst) in enumerate(edges.T.tolist())]
    text = "\n".join(["src,dst,weight", *rows, ""]).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


WRITERS = {"parquet": parquet, "csv": csv, "csv.gz": csv}


def written(tmp_path, suffix, count=300, parts=3):
    """Return a folder of files of edges, and other files that do not count."""
    folder = tmp_path / "e"
    folder.mkdir()
    (folder / "_SUCCESS").touch()
    for part in range(parts):
        WRITERS[suffix](folder / f"{part}.{suffix}", edges_of(count // parts, part))
    return folder


def built(edges, folder, **options):
    """Build, and return the bytes of what was written."""
    options = {"edge_attributes": {"w": "weight"}, "edge_ids": True, "max_memory": SMALL, **options}
    dp.CSCGraph.build(edges, folder, 40, **options)
    return files_of(folder)


# --- the same graph


@pytest.mark.parametrize("suffix", WRITERS)
def test_the_folder_is_that_of_local_files(tmp_path, place, suffix):
    folder = written(tmp_path, suffix)
    uri = place.copy(folder)
    place.put("e/deeper/9.csv", b"not among them")
    assert built(uri, tmp_path / "there") == built(folder, tmp_path / "here")
    assert built(f"{uri}1.{suffix}", tmp_path / "one") == built(folder / f"1.{suffix}", tmp_path / "one here")


def test_a_graph_with_types(tmp_path, place):
    folder = written(tmp_path, "csv")
    uri, counts = place.copy(folder), {"a": 40, "b": 40}
    for name, root in (("there", uri.rstrip("/")), ("here", folder)):
        dp.HeteroCSCGraph.build(
            {"a:to:b": f"{root}/0.csv", "b:of:a": f"{root}/1.csv"},
            tmp_path / name,
            counts,
            edge_attributes={"b:of:a": {"w": "weight"}},
        )
    here, there = (dp.HeteroCSCGraph.open(tmp_path / name).digest() for name in ("here", "there"))
    assert here == there


def test_a_uri_of_this_machine_is_its_path(tmp_path):
    folder = written(tmp_path, "csv")
    assert built(folder.as_uri(), tmp_path / "by uri") == built(folder, tmp_path / "by path")
    np.save(tmp_path / "e.npy", edges_of(9))
    assert built((tmp_path / "e.npy").as_uri(), tmp_path / "g", edge_attributes={})


# --- a build that was killed


@pytest.mark.parametrize("has_versions", [True, False])
@pytest.mark.parametrize("has_changed", [True, False])
def test_a_killed_build_goes_on_with_the_same_files_only(tmp_path, monkeypatch, read, has_versions, has_changed):
    if not has_versions:
        monkeypatch.setattr(remote, "_VERSIONS", ())
    folder = written(tmp_path, "csv", count=300, parts=1)
    with place_of("memory", tmp_path) as place:
        uri = place.copy(folder)
        kill_a_build(lambda: built(uri, tmp_path / "g"), 2)
        assert (tmp_path / ".g.datapipes-new" / "state.json").exists()
        if has_changed:
            csv(folder / "0.csv", edges_of(300, 1))
            place.copy(folder)
        if has_changed and not has_versions:
            with refused(ValueError, stage="^CSCGraph.build", found="not the edges", allowed="has read"):
                built(uri, tmp_path / "g")
        found = built(uri, tmp_path / "g")
        assert (sum(read) < 300) is (not has_changed)
    assert found == built(folder, tmp_path / "here")


# --- files that are cut, changed or gone, and addresses of others


def broken(content):
    return content[: len(content) // 2]


@pytest.mark.parametrize("suffix", ["parquet", "csv.gz"])
def test_a_file_that_was_cut(tmp_path, place, suffix):
    folder = written(tmp_path, suffix)
    uri = place.copy(folder)
    for number in (0, 2):  # the first tells the columns
        place.copy(folder)
        place.put(f"e/{number}.{suffix}", broken((folder / f"{number}.{suffix}").read_bytes()))
        with refused(
            (ValueError, OSError), stage="CSCGraph.build: ", found=uri, allowed="no whole table|cannot be read"
        ):
            built(uri, tmp_path / "g")
        assert not (tmp_path / "g").exists()


CHANGES = {
    "other": (lambda content: content + content, ValueError, "was changed while it was read"),
    "cut": (broken, ValueError, "was changed while it was read"),
    "gone": (lambda content: None, FileNotFoundError, "nothing is there"),
}


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_changes_while_it_is_read(tmp_path, place, monkeypatch, name, suffix, number):
    folder = written(tmp_path, suffix)
    uri, (change, kind, found), save = place.copy(folder), CHANGES[name], build._State.save
    content = (folder / f"{number}.{suffix}").read_bytes()

    def changed(self, *arguments):
        if not left:
            left.append(True)
            place.remove(f"e/{number}.{suffix}")
            if (other := change(content)) is not None:
                place.put(f"e/{number}.{suffix}", other)
        return save(self, *arguments)

    left = []
    monkeypatch.setattr(build._State, "save", changed)
    with refused(kind, stage="CSCGraph.build: ", found=found, allowed=f"{uri}{number}.{suffix}"):
        built(uri, tmp_path / "g")
    assert left
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_server_that_fails_while_a_file_is_read(tmp_path, suffix):
    with place_of("http", tmp_path / "served") as place:
        uri = place.copy(written(tmp_path, suffix))
        place.server.before = lambda method, path: 500 if method == "GET" and path.endswith(f"1.{suffix}") else None
        with refused(OSError, stage="CSCGraph.build: ", found="ClientResponseError: 500", allowed=f"{uri}1.{suffix}"):
            built(uri, tmp_path / "g")


def test_addresses_of_no_tables(tmp_path, refuses):
    with place_of("memory", tmp_path) as place:
        place.put("n/e.npy", b"")
        refuses(FileNotFoundError, built, "memory://of-a-test/none", tmp_path / "g")
        for edges in (
            "memory://of-a-test/n/e.npy",
            "memory://of-a-test/n",
            ("memory://of-a-test/n/e.npy",) * 2,
            "simplecache::memory://of-a-test/n",
        ):
            refuses(ValueError, built, edges, tmp_path / "g")
        with pytest.raises(ValueError, match=r"^CSCGraph.build.*got 'foo'"):
            built("foo://x/e.csv", tmp_path / "g")


def test_attributes_and_the_new_folder_are_of_this_machine(tmp_path, refuses):
    edges = edges_of(9)
    for options in ({"edge_attributes": {"w": "gs://b/w.npy"}}, {"node_attributes": {"x": "gs://b/x.npy"}}):
        refuses(ValueError, dp.CSCGraph.build, edges, tmp_path / "g", 40, **options)
    refuses(ValueError, dp.CSCGraph.build, edges, "gs://b/g", 40)


def test_a_missing_package_is_named(tmp_path, monkeypatch, refuses):
    registry = pytest.importorskip("fsspec.registry")
    missing = {"class": "no_such_package.Files", "err": "Please install no_such_package"}
    monkeypatch.setitem(registry.known_implementations, "nowhere", missing)
    refuses(ModuleNotFoundError, built, "nowhere://x/e.csv", tmp_path / "g")
