"""The metrics port: text that Prometheus reads, and the health of the server."""

import contextlib
import re
import socket
import urllib.error
import urllib.request

import pytest
import torch
from pipelines import wait_until
from plain_clients import PlainClient, in_parts, plain_graph

from datapipes.distributed import PartitionServer
from datapipes.distributed.requests.rows import Rows, RowsRequest
from datapipes.distributed.server.metrics_server import MOST_CONNECTIONS

LINE = re.compile(r'([a-z_]+)(\{[a-z_]+="[^"\n]*"(?:,[a-z_]+="[^"\n]*")*\})? (-?[0-9.e+-]+)')


def read(server: PartitionServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{server.metrics_address}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metrics_of(text: str) -> dict[str, float]:
    """{name and labels: value}; every line must be a sample or a comment that begins one."""
    found = {}
    for line in text.splitlines():
        if not line.startswith(("# HELP ", "# TYPE ")):
            sample = LINE.fullmatch(line)
            assert sample, line
            found[f"{sample[1]}{sample[2] or ''}"] = float(sample[3])
    names = set(re.findall(r"# TYPE (\S+) ", text))
    assert {re.sub(r"(_bucket|_sum|_count)?(\{.*)?$", "", name) for name in found} <= names
    return found


@pytest.fixture
def server(tmp_path):
    with PartitionServer(in_parts(tmp_path / "root", plain_graph()), 1, metrics="127.0.0.1:0") as server:
        yield server


def test_the_metrics_count_requests_and_bytes(server):
    with PlainClient(server.address) as client:
        client.hello()
        for _ in range(3):
            client.answer(RowsRequest((Rows("node", None, ("y",), torch.tensor([1, 3])),)))
        with pytest.raises(IndexError):
            client.answer(RowsRequest((Rows("node", None, ("y",), torch.tensor([0])),)))
    code, text = read(server, "/metrics")
    found = metrics_of(text)
    assert code == 200
    assert found['datapipes_requests_total{kind="rows",result="ok"}'] == 3
    assert found['datapipes_requests_total{kind="rows",result="error"}'] == 1
    assert found['datapipes_requests_total{kind="hello",result="ok"}'] == 1
    assert found['datapipes_answer_bytes_total{kind="rows"}'] == 3 * 16
    assert found['datapipes_request_bytes_total{kind="rows"}'] > 4 * 16
    of_rows = 'datapipes_request_seconds_bucket{kind="rows"'
    buckets = [value for name, value in found.items() if name.startswith(of_rows)]
    assert buckets == sorted(buckets)
    assert buckets[-1] == found['datapipes_request_seconds_count{kind="rows"}'] == 4
    assert found['datapipes_request_seconds_sum{kind="rows"}'] >= 0
    assert found["datapipes_requests_waiting"] == found["datapipes_requests_working"] == 0
    assert found["datapipes_stalled_connections_total"] == 0
    assert found["process_resident_memory_bytes"] > 2**20
    assert found["process_open_fds"] > 2
    assert found["process_threads"] > 2
    assert f'part="1",num_parts="2",partition_id="{client.facts.partition_id}"' in text


def test_the_metrics_of_a_server_that_nobody_has_asked(server):
    assert metrics_of(read(server, "/metrics")[1])["datapipes_answer_bytes_in_flight"] == 0


def test_health_and_other_paths(server):
    assert read(server, "/health") == (200, "serving\n")
    assert read(server, "/") == (404, "there are /metrics and /health\n")
    server._service.is_stopping = True
    assert read(server, "/health?probe=1") == (503, "stopping\n")


def test_connections_that_say_nothing_are_few_and_the_rest_is_closed(server):
    host, _, port = server.metrics_address.rpartition(":")
    with contextlib.ExitStack() as stack:
        silent = []
        for number in range(MOST_CONNECTIONS):
            silent.append(stack.enter_context(socket.create_connection((host, int(port)), timeout=5)))
            wait_until(lambda left=MOST_CONNECTIONS - number - 1: server._metrics._server._free._value == left)
        with socket.create_connection((host, int(port)), timeout=5) as further:
            assert further.recv(1) == b""
        for each in silent:
            each.shutdown(socket.SHUT_WR)
        assert [each.recv(1) for each in silent] == [b""] * MOST_CONNECTIONS
    wait_until(lambda: server._metrics._server._free._value == MOST_CONNECTIONS)
    assert read(server, "/health")[0] == 200
