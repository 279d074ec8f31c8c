"""TFRecords at URIs: what is loaded is that of the same files on this machine; what goes wrong is said by name."""

import socket

import pytest
import torch
from amounts import ranked
from pipelines import refused
from record_files import before_parsing, edge_info, edges, node_info, nodes, write_file, write_files
from remote_files import place_of

import datapipes as dp
from datapipes.datasets import (
    DatasetFormatError,
    LoadedGraphTensors,
    SerializedGraphMetadata,
    SerializedTFRecordInfo,
    TFDatasetOptions,
    TFRecordDataLoader,
    TFRecordLoadError,
    load_torch_tensors_from_tf_record,
    write_tf_records,
)
from datapipes.datasets.tfrecord import children
from datapipes.datasets.tfrecord.entity_task import EntityTask

WHERE = "load_as_torch_tensors: node: "
FILE = "data-00001-of-00003.tfrecord"


@pytest.fixture(params=["memory", "http"])
def place(request, tmp_path):
    with place_of(request.param, tmp_path / "served") as given:
        yield given


@pytest.fixture
def http(tmp_path):
    with place_of("http", tmp_path / "served") as given:
        yield given


def load(info, rank=0, world_size=1, **options):
    return TFRecordDataLoader(rank, world_size).load_as_torch_tensors(info, TFDatasetOptions(**options))


def written(tmp_path, name="n", count=12, **how):
    """Return a folder of three files of nodes."""
    (tmp_path / name).mkdir()
    write_files(tmp_path / name, nodes(count), [4, 4, count - 8], **how)
    return tmp_path / name


# --- the same tensors, the same minibatches


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("packed", [[], [0, 2]])
def test_the_tensors_are_those_of_local_files(tmp_path, place, packed, num_threads):
    folder = written(tmp_path, packed=packed)
    uri = place.copy(folder)
    place.put("n/deeper/data-00009-of-00003.tfrecord", b"no records")
    for changes in ({}, {"feature_spec": None}):
        for rank, world_size in ((0, 1), (1, 2), (3, 4)):
            options = {"use_interleave": False, "num_parallel_file_reads": num_threads}
            found = load(node_info(uri, **changes), rank, world_size, **options)
            expected = load(node_info(folder, **changes), rank, world_size)
            for name in ("ids", "features", "labels"):
                assert torch.equal(getattr(found, name), getattr(expected, name)), name


def test_a_file_is_fetched_in_blocks(tmp_path, place, monkeypatch):
    monkeypatch.setattr("datapipes.ingest.remote._BLOCK_BYTES", 1000)
    folder = written(tmp_path, count=500)
    assert torch.equal(load(node_info(place.copy(folder))).features, load(node_info(folder)).features)
    if place.server:
        ranges = [asked for *_, asked in place.server.asked if asked]
        assert len(ranges) > 5


def test_edges_and_an_address_as_an_object(tmp_path, place):
    (tmp_path / "e").mkdir()
    write_files(tmp_path / "e", edges(9), [4, 5])
    uri = type("Uri", (), {"uri": place.copy(tmp_path / "e").rstrip("/")})()
    assert torch.equal(load(edge_info(uri)).ids, load(edge_info(tmp_path / "e")).ids)


def infos(root):
    """Return what `write_graph` has written to a folder, or to a URI."""
    return (
        SerializedTFRecordInfo(f"{root}/nodes", ["x"], None, 3, "id", ["label"]),
        SerializedTFRecordInfo(f"{root}/edges", [], None, 0, ("src", "dst")),
    )


def graph_of(root):
    """Return the data set of the nodes and edges at a root, each loaded by itself."""
    of_nodes, of_edges = map(load, infos(root))
    tensors = of_nodes.ids, of_nodes.features, of_nodes.labels, of_edges.ids
    return LoadedGraphTensors(*tensors, None, None, None).to_dataset()


def write_graph(folder, place):
    """Write a graph to a folder, and a copy of it to a place."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(40, 3, generator=generator)
    write_tf_records(folder / "nodes", {"id": torch.arange(40), "x": x, "label": torch.arange(40) % 5}, 3)
    ends = {name: torch.randint(40, (200,), generator=generator) for name in ("src", "dst")}
    write_tf_records(folder / "edges", ends, 2, compress=True)
    for name in ("nodes", "edges"):
        place.copy(folder / name)


def chain_of(data):
    chain = dp.ItemSampler(data.train_set, 8, shuffle=True, seed=0).sample_neighbor(data.graph, [3, 2])
    return chain.fetch_feature(data.features, node_feature_keys=["feat"])


def digests(loader):
    return [minibatch.digest() for minibatch in loader]


@pytest.mark.parametrize("place", ranked(["memory", "http"], 1), indirect=True)
def test_the_minibatches_are_those_of_local_files_also_resumed_and_by_workers(tmp_path, place):
    write_graph(tmp_path, place)
    expected = digests(dp.DataLoader(chain_of(graph_of(tmp_path))))
    assert len(expected) == 5
    with dp.DataLoader(chain_of(graph_of(place.uri)), num_workers=2 if place.server else 0) as loader:
        left = iter(loader)
        assert [next(left).digest() for _ in range(2)] == expected[:2]
        state = loader.state_dict()
    resumed = dp.DataLoader(chain_of(graph_of(place.uri)))
    resumed.load_state_dict(state)
    assert digests(resumed) == expected[2:]


def load_in_processes(root):
    return load_torch_tensors_from_tf_record(TFRecordDataLoader(0, 1), SerializedGraphMetadata(*infos(root)), True)


def test_the_processes_of_a_graph_load_uris(tmp_path, http):
    write_graph(tmp_path, http)
    loaded, expected = load_in_processes(http.uri).to_dataset(), graph_of(tmp_path)
    assert digests(dp.DataLoader(chain_of(loaded))) == digests(dp.DataLoader(chain_of(expected)))


@pytest.mark.full
def test_a_process_names_the_uri_that_is_broken(tmp_path, http):
    write_graph(tmp_path, http)
    http.put("edges/data-00001-of-00002.tfrecord.gz", b"no gzip")
    with pytest.raises(TFRecordLoadError, match=rf"{http.uri}/edges/data-00001-of-00002.tfrecord.gz, record 0, which"):
        load_in_processes(http.uri)


def test_threads_are_shared_by_the_sizes_that_a_store_tells(tmp_path, place, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    tasks = []
    for name, sizes in (("n", [100] * 6), ("e", [150, 150]), ("p", [100])):
        for number, size in enumerate(sizes):
            place.put(f"{name}/{number}-of-{len(sizes)}.tfrecord", bytes(size))
        tasks.append(EntityTask(name, {None: node_info(f"{place.uri}/{name}")}, TFDatasetOptions(), None, 0))
    assert children.thread_shares(tasks) == [5, 3, 1]


# --- files that are cut, changed or gone


def changed(place, how):
    """Change the second file of three: write it anew, cut it, or remove it."""
    place.remove(f"n/{FILE}")
    content = how()
    if content is not None:
        place.put(f"n/{FILE}", content)


def test_a_file_that_was_cut_is_named_with_its_record(tmp_path, place):
    folder = written(tmp_path)
    uri = place.copy(folder)
    changed(place, lambda: (folder / FILE).read_bytes()[:-5])
    with refused(DatasetFormatError, stage=WHERE, found="the file ends inside it", allowed=f"{uri}{FILE}, record 3, "):
        load(node_info(uri))


CHANGES = {
    "other": (lambda folder: write_file(folder, 1, 3, nodes(12)[8:]).read_bytes(), DatasetFormatError, "was changed"),
    "cut": (lambda folder: (folder / FILE).read_bytes()[:-5], DatasetFormatError, "was changed while it was read"),
    "fewer records": (lambda folder: write_file(folder, 1, 3, nodes(3)).read_bytes(), DatasetFormatError, "was chang"),
    "gone": (lambda folder: None, FileNotFoundError, "cannot be read .nothing is there"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_changes_between_counting_and_reading(tmp_path, place, monkeypatch, name):
    folder = written(tmp_path)
    uri, (how, kind, found) = place.copy(folder), CHANGES[name]
    before_parsing(monkeypatch, lambda: changed(place, lambda: how(folder)))
    with refused(kind, stage=WHERE, found=found, allowed=f"{uri}{FILE}"):
        load(node_info(uri))


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_changes_while_it_is_read(tmp_path, http, monkeypatch, name):
    monkeypatch.setattr("datapipes.ingest.remote._BLOCK_BYTES", 100)
    monkeypatch.setattr("datapipes.datasets.tfrecord.reading._FIRST_BYTES", 100)
    folder = written(tmp_path)
    uri, (how, kind, found), left = http.copy(folder), CHANGES[name], iter([True, False])

    def before(method, path):
        if method == "GET" and path.endswith(FILE) and next(left, None) is False:
            changed(http, lambda: how(folder))

    http.server.before = before
    with refused(kind, stage=WHERE, found=found, allowed=f"{uri}{FILE}"):
        load(node_info(uri))
    assert next(left, None) is None


def test_without_versions_the_size_tells_a_change(tmp_path, http, monkeypatch):
    http.server.tells_versions = False
    folder = written(tmp_path)
    uri = http.copy(folder)
    assert torch.equal(load(node_info(uri)).ids, load(node_info(folder)).ids)
    before_parsing(monkeypatch, lambda: changed(http, lambda: write_file(folder, 1, 3, nodes(3)).read_bytes()))
    with refused(DatasetFormatError, stage=WHERE, found="bytes .no version., and has", allowed="stay as it is"):
        load(node_info(uri))


# --- addresses that give no files


@pytest.mark.parametrize(
    ("status", "kind", "found"),
    [(403, PermissionError, "403.*log in"), (404, FileNotFoundError, "nothing is there"), (500, OSError, "500")],
)
def test_a_server_that_refuses(tmp_path, http, status, kind, found):
    uri = http.copy(written(tmp_path))
    http.server.before = lambda method, path: status if path.endswith(FILE) else None
    with refused(kind, stage=WHERE, found=found, allowed=f"{uri}{FILE}", remedy="Check it"):
        load(node_info(uri))
    http.server.before = lambda method, path: status
    with refused(kind, stage=WHERE, found=found, allowed="address cannot be read", remedy="Check it"):
        load(node_info(uri))


def test_a_server_that_is_not_there_and_one_that_does_not_answer(http, monkeypatch):
    aiohttp, config = pytest.importorskip("aiohttp"), pytest.importorskip("fsspec.config")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{closed.getsockname()[1]}/n"
        with refused(ConnectionRefusedError, stage=WHERE, found="check that the server runs", allowed=uri):
            load(node_info(uri))
        monkeypatch.setitem(config.conf, "http", {"client_kwargs": {"timeout": aiohttp.ClientTimeout(total=0.1)}})
        closed.listen()
        with refused(TimeoutError, stage=WHERE, found="no answer came in time", allowed=uri):
            load(node_info(uri))


def test_a_uri_without_files_to_load(tmp_path, refuses):
    with place_of("memory", tmp_path) as place:
        place.put("n/x.parquet", b"")
        refuses(FileNotFoundError, load, node_info("memory://of-a-test/none"))
        refuses(FileNotFoundError, load, node_info("memory://of-a-test/n"))
        with refused(ValueError, stage=WHERE, found="got 'foo'", allowed="must be one that fsspec knows"):
            load(node_info("foo://bucket/n"))


def test_a_missing_package_is_named(monkeypatch, refuses):
    registry = pytest.importorskip("fsspec.registry")
    missing = {"class": "no_such_package.Files", "err": "Please install no_such_package"}
    monkeypatch.setitem(registry.known_implementations, "nowhere", missing)
    refuses(ModuleNotFoundError, load, node_info("nowhere://x"))
    tasks = [EntityTask("node", {None: node_info("nowhere://x")}, TFDatasetOptions(), None, 0)] * 2
    assert len({*children.thread_shares(tasks)}) == 1  # the process that loads will say it
