"""DistGraph.connect and connect: from folders and namebooks to servers; what does not fit is refused by name."""

import json
import pickle
import sys

import pytest
import torch
from partitions import source_of
from parts_on_disk import a_graph, batches, over, whole, write
from scripts import run_script
from warm_servers import WarmServer

from datapipes.base.errors import ServerUnavailable
from datapipes.distributed import (
    DistGraph,
    LocalFeatureStore,
    PartitionBook,
    PartitionServer,
    TLSConfig,
    connect,
    connecting,
    open_book,
    publish_address,
)
from datapipes.distributed.wire.refusals import OtherPartition
from datapipes.partition.native.native_write import write_native

WAIT_S = 60.0  # for what comes at once, on a busy machine
FEW = 8  # minibatches of an epoch


@pytest.fixture(scope="module")
def namebook(root):
    with WarmServer(root, 0) as first, WarmServer(root, 1) as second:
        yield {0: first.address, 1: second.address}


@pytest.mark.parametrize("way", ["folder", "book", "local part", "file", "torchrun"])
def test_all_ways_to_connect_give_the_bits_of_the_undivided_graph(
    tmp_path, request, graph, root, namebook, connected, way
):
    given, local_part = namebook, None
    if way == "local part":
        given, local_part = {1: namebook[1]}, 0
    elif way == "file":
        given = tmp_path / "namebook.json"
        given.write_text(json.dumps(namebook))
    elif way == "torchrun":
        request.getfixturevalue("agent")
        for part, address in namebook.items():
            publish_address(part, address)
        given = "torchrun"
    dist_graph = connected(open_book(root) if way == "book" else root, given, local_part=local_part)
    assert dist_graph.digest() == graph.digest()
    expected = whole(graph, FEW)
    assert batches(over(dist_graph), FEW) == expected
    copy = pickle.loads(pickle.dumps(dist_graph))
    assert batches(over(copy), FEW) == expected
    copy.close()


def test_a_book_that_was_made_by_hand_is_compared_with_what_the_server_has(graph, namebook):
    book = PartitionBook(2, torch.arange(graph.num_nodes) % 2)
    DistGraph.connect(book, namebook).close()
    other = PartitionBook(2, (torch.arange(graph.num_nodes) + 1) % 2)
    text = f"part 0 at {namebook[0]}: the server has the partition_id .*the book has"
    with pytest.raises(OtherPartition, match=text):
        DistGraph.connect(other, namebook)


def test_the_client_of_servers_tells_and_fetches(graph, root, namebook):
    with connect(namebook) as client:
        assert client.addresses == namebook
        assert client.facts.fingerprint == graph.digest()
        assert client.health(1) == {"status": "serving", "part": 1}
        assert "requests" in json.dumps(client.statistics(0))
        store = LocalFeatureStore.from_partition(root, 0, client=client)
        ids = torch.tensor([3, 0, 399, 3])
        rows = store.lookup_features(ids, attr_name="x").wait()
        assert torch.equal(rows, graph.node_attributes_of(None)["x"][ids])
        with pytest.raises(KeyError, match=f"server 1 at {namebook[1]}: .*no node feature 'z'"):
            client.fetch(1, ids[:1], is_node_feat=True, input_type=None, attr_name="z").wait()
        with pytest.raises(ValueError, match="the graph has no types, so the node type must be None, got 'paper'"):
            client.fetch(1, ids[:1], is_node_feat=True, input_type="paper", attr_name="x")
        with pytest.raises(ValueError, match="server 7 is not in the namebook"):
            client.health(7)


def test_a_server_that_is_gone_hides_no_part_of_the_others(graph, root, namebook):
    with PartitionServer(root, 0) as server:
        gone = server.address
    with (
        PartitionServer(root, 0) as server,
        connect({0: server.address, 1: gone, 2: namebook[1]}, deadline=1) as client,
    ):
        server.stop(0.0)
        ids = torch.arange(400)[open_book(root).get_partition_ids_from_nids(torch.arange(400)) == 1][:3]
        rows = client.fetch(1, ids, is_node_feat=True, input_type=None, attr_name="x").wait()
        assert torch.equal(rows, graph.node_attributes_of(None)["x"][ids])
        with pytest.raises(ServerUnavailable, match=r"server [01] at"):
            client.fetch(0, ids, is_node_feat=True, input_type=None, attr_name="x")


def test_a_namebook_is_read_once(tmp_path, namebook, monkeypatch):
    path = tmp_path / "namebook.json"
    path.write_text(json.dumps(namebook))
    ask = connecting.ask_facts

    def changes_the_file(*args, **options):
        path.write_text(json.dumps(dict.fromkeys(namebook, "127.0.0.1:1")))
        return ask(*args, **options)

    monkeypatch.setattr(connecting, "ask_facts", changes_the_file)
    with connect(path) as client:
        assert client.addresses == namebook


def test_two_servers_with_different_content_are_refused_with_both(tmp_path, root, namebook):
    other = write(tmp_path / "other", a_graph(feature_seed=1))
    with WarmServer(other, 1) as server:
        mixed = {0: namebook[0], 1: server.address}
        for connected in (DistGraph.connect(root, mixed).peers, connect(mixed)._peers):
            found = connected.told(1, "health")
            with pytest.raises(
                OtherPartition, match=rf"\w+ 1 at {server.address}: .*content_id '[0-9a-f]*'.*'[0-9a-f]*'"
            ):
                found.result(WAIT_S)
            connected.close()


def test_servers_have_any_numbers_and_several_may_have_one_part(graph, root, namebook):
    ids = torch.arange(0, 400, 2)  # of part 0
    with WarmServer(root, 1) as third, connect({5: namebook[1], 9: third.address, 7: namebook[0]}) as client:
        assert [client.health(rank)["part"] for rank in (5, 7, 9)] == [1, 0, 1]
        rows = client.fetch(0, ids, is_node_feat=True, input_type=None, attr_name="x").wait()
        assert torch.equal(rows, graph.node_attributes_of(None)["x"][ids])
    with connect({5: namebook[1]}) as client, pytest.raises(ValueError, match="no server in the namebook has part 0"):
        client.fetch(0, ids, is_node_feat=True, input_type=None, attr_name="x")


def test_what_connecting_refuses_before_anything_is_asked(root, refuses):
    near = {0: "127.0.0.1:1", 1: "127.0.0.1:2"}
    for namebook in (
        {0: "127.0.0.1:1"},
        {**near, 2: "127.0.0.1:3"},
        {0: "127.0.0.1:1", 1: "node"},
        {0: "127.0.0.1:1", 1: "node:7"},
    ):
        refuses(ValueError, DistGraph.connect, root, namebook)
    for error, options in (
        (ValueError, {"local_part": 2}),
        (ValueError, {"mmap": False}),
        (TypeError, {"mmap": 0, "local_part": 0}),
        (ValueError, {"deadline": 0}),
        (ValueError, {"deadline": None}),
        (TypeError, {"tls": "cert"}),
        (ValueError, {"tls": TLSConfig("a", "b", "c"), "insecure": True}),
    ):
        refuses(error, DistGraph.connect, root, near, **options)
    refuses(TypeError, DistGraph.connect, None, near)
    refuses(FileNotFoundError, DistGraph.connect, "/nowhere", near)
    refuses(ValueError, DistGraph.connect, open_book(root), {1: "127.0.0.1:1"}, local_part=0)
    refuses(ValueError, connect, {})


def test_a_partition_of_one_part_needs_no_server(tmp_path, graph):
    root = tmp_path / "root"
    root.mkdir()
    book = PartitionBook(1, torch.zeros(graph.num_nodes, dtype=torch.int64))
    write_native(root, source_of(graph), book, node_time_attr=None, about={}, progress=lambda *_: None)
    assert batches(over(DistGraph.connect(root, {}, local_part=0)), FEW) == whole(graph, FEW)


def test_without_pyarrow_connecting_names_the_extra(monkeypatch, root, refuses):
    for name in [name for name in sys.modules if name.split(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, name, None)
    namebook = {0: "127.0.0.1:1", 1: "127.0.0.1:2"}
    refuses(ImportError, connect, namebook)
    refuses(ImportError, DistGraph.connect, root, namebook)
    refuses(ImportError, DistGraph.connect, root, namebook, local_part=0)


FORK = """
import ctypes, os, sys
sys.path[:] = PATHS
import datapipes as dp
from datapipes.distributed import DistGraph, connect
from datapipes.distributed.requests.rows import RowsRequest
from parts_on_disk import over

def in_child(ask):
    child = os.fork()
    if child == 0:
        try:
            ask()
            os.write(1, b"not refused\\n")
        except RuntimeError as error:
            assert "was forked later" in str(error) and "forkserver" in str(error), error
            os.write(1, b"refused\\n")
        except BaseException as error:
            os.write(1, repr(error).encode())
        ctypes.pythonapi.Py_Exit(0)  # ends as a script does, not as a child of multiprocessing
    assert os.waitpid(child, 0)[1] == 0

def ask():
    graph.peers.ask(1, RowsRequest(())).result()

graph = DistGraph.connect(ROOT, NAMEBOOK, local_part=0)
in_child(ask)             # nothing was connected: the child connects for itself
ask()
in_child(ask)
in_child(lambda: connect(NAMEBOOK))
try:
    iter(dp.DataLoader(over(graph), 1, multiprocessing_context="fork"))
except RuntimeError as error:
    assert "is connected to servers" in str(error), error
    os.write(1, b"refused\\n")
ask()                     # the parent goes on
graph.close()
in_child(ask)
os.write(1, b"end\\n")
"""


def test_a_fork_after_connecting_is_refused_and_never_hangs(root, namebook):
    script = FORK.replace("ROOT", repr(str(root))).replace("NAMEBOOK", repr(namebook)).replace("PATHS", repr(sys.path))
    ended = run_script(script)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.split("\n") == ["not refused", "refused", "refused", "refused", "refused", "end", ""]
