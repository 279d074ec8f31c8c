"""`datapipes serve`: the line that says ready, signals, exit codes, and errors in one line."""

import os
import re
import signal
import socket
import sys
import urllib.request

import pytest
import torch
from command_files import run
from partition_servers import END_S, namebook_of, servers_of
from plain_clients import PlainClient, in_parts, plain_graph

from datapipes.distributed.requests.rows import Rows, RowsRequest


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return in_parts(tmp_path_factory.mktemp("served") / "root", plain_graph())


def labels_of(address: str, part: int) -> list[int]:
    ids = torch.tensor([part, part + 2])
    with PlainClient(address) as client:
        assert client.hello()[0] == part
        return client.answer(RowsRequest((Rows("node", None, ("y",), ids),)))[0].tolist()


def test_servers_of_all_parts_answer_come_back_and_end(root):
    labels = plain_graph().node_attributes["y"]
    expected = [labels[[part, part + 2]].tolist() for part in range(2)]
    with servers_of(root, 2, "--metrics-port", 0) as servers:
        assert [labels_of(each.address, each.part) for each in servers] == expected
        metrics = re.search(r"http://127\.0\.0\.1:\d+/metrics", servers[0].log)[0]
        with urllib.request.urlopen(metrics, timeout=20) as answer:
            assert b'datapipes_requests_total{kind="rows",result="ok"} 1' in answer.read()
        before = namebook_of(servers)
        servers[1].restart()  # after SIGKILL, on the same port
        assert namebook_of(servers) == before
        assert labels_of(before[1], 1) == expected[1]
        servers[0].process.stdout.close()  # nobody reads its output any more
        assert labels_of(before[0], 0) == expected[0]
        # SIGTERM, SIGINT: it ends with 0, and writes nothing more.
        assert servers[0].stop() == 0
        assert "server of part 0 has stopped" in servers[0].log
        os.kill(servers[1].pid, signal.SIGINT)
        assert servers[1].process.wait(END_S) == 0
        assert servers[1].process.stdout.read() == b""


def test_what_serve_refuses(capsys, command_refuses, root, monkeypatch, tmp_path):
    command_refuses(1, "serve", root)
    command_refuses(2, "serve", root, "--part", -1)
    command_refuses(1, "serve", root, "--part", 2)
    for options in (
        ("--address", "0.0.0.0:0"),
        ("--address", "nowhere"),
        ("--tls-cert", "cert.pem"),
        ("--metrics-port", "x"),
        ("--concurrency", 0),
        ("--max-answer", "1GB"),
        ("--tls-cert", "c", "--tls-key", "k", "--tls-ca", "a", "--insecure"),
    ):
        command_refuses(2, "serve", root, "--part", 0, *options)
    command_refuses(1, "serve", root, "--part", 0, "--tls-cert", "/no/c", "--tls-key", "k", "--tls-ca", "a")
    command_refuses(1, "serve", tmp_path, "--part", 0)
    nowhere = run(capsys, "serve", root, "--part", 0, "--address", "no-such-host.invalid:0", "--insecure")
    assert (nowhere.code, nowhere.out) == (1, "")
    assert "PartitionServer: cannot listen on no-such-host" in nowhere.err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run(capsys, "serve", root, "--part", 0, "--address", address)
    assert (result.code, result.out) == (1, "")
    assert f"cannot listen on {address}: Address already in use" in result.err
    monkeypatch.setitem(sys.modules, "pyarrow.flight", None)
    command_refuses(1, "serve", root, "--part", 0)
