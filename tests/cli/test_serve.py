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


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--part", 0, "--address", "0.0.0.0:0"], 2, "is not of this machine alone, and there is no TLS"),
        (["--part", 0, "--address", "nowhere"], 2, "address is 'nowhere', which has no port"),
        (["--part", 0, "--tls-cert", "cert.pem"], 2, "--tls-key is missing"),
        (["--part", 0, "--metrics-port", "x"], 2, "--metrics-port is '127.0.0.1:x'"),
        (["--part", 0, "--concurrency", 0], 2, ": --concurrency must be 1 or more"),
        (["--part", 0, "--max-answer", "1GB"], 2, "--max-in-flight must be at least 4 times --max-answer (1073741824)"),
        (["--part", -1], 2, ": --part must be 0 or more"),
        (["--part", 0, "--tls-cert", "c", "--tls-key", "k", "--tls-ca", "a", "--insecure"], 2, "Leave --insecure out."),
        ([], 1, "has 2 parts; a server has one of them. Pass --part, in [0, 2)."),
        (["--part", 0, "--address", "x"], 2, ": --address is 'x', which has no port"),
        (["--part", 0, "--address", "0.0.0.0:0"], 2, "Pass --tls-cert, --tls-key and --tls-ca; or --insecure, in a"),
        (["--part", 2], 1, ": --part must be in [0, 1], got 2"),
        (
            ["--part", 0, "--tls-cert", "/no/c", "--tls-key", "k", "--tls-ca", "a"],
            1,
            "--tls-cert cannot",
        ),
        (
            ["--part", 0, "--address", "no-such-host.invalid:0", "--insecure"],
            1,
            "cannot listen on no-such-host",
        ),
    ],
)
def test_errors_are_one_line(capsys, root, arguments, code, text):
    found = run(capsys, "serve", root, *arguments)
    assert (found.code, found.out) == (code, "")
    assert text in found.err
    assert found.err.count("\n") == 1
    assert found.err.startswith("datapipes serve: ")


def test_an_address_in_use_and_a_folder_without_a_partition_are_told(capsys, root, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        found = run(capsys, "serve", root, "--part", 0, "--address", address)
    assert (found.code, found.out) == (1, "")
    assert f"cannot listen on {address}: Address already in use" in found.err
    found = run(capsys, "serve", tmp_path, "--part", 0)
    assert (found.code, found.out) == (1, "")
    assert str(tmp_path) in found.err


def test_without_pyarrow_the_extra_is_named(capsys, root, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.flight", None)
    found = run(capsys, "serve", root, "--part", 0)
    assert (found.code, found.out) == (1, "")
    assert "pip install pyarrow (in the extra [distributed] of" in found.err
