"""`datapipes status`: a table of all servers, and exit code 1 where one is not as it should be."""

import json
import socket

import pytest
from command_files import done, run
from plain_clients import in_parts, plain_graph

from datapipes.distributed import PartitionServer, connect


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    folder = tmp_path_factory.mktemp("status")
    return [in_parts(folder / str(seed), plain_graph(rng_seed=seed)) for seed in range(2)]


def namebook(folder, addresses) -> str:
    path = folder / "namebook.json"
    path.write_text(json.dumps(addresses))
    return str(path)


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_servers_that_answer_are_a_table(roots, tmp_path, capsys):
    with PartitionServer(roots[0], 0) as one, PartitionServer(roots[0], 1) as other:
        path = namebook(tmp_path, {"0": one.address, "1": other.address})
        found = done(capsys, "status", path)
        head, *rows = found.out.splitlines()
        assert head.split()[:4] == ["server", "address", "status", "requests"]
        assert [row.split()[:3] for row in rows] == [["0", one.address, "serving"], ["1", other.address, "serving"]]
        told = run(capsys, "status", path, "--json").json
        assert told["agree"]
        assert [server["status"] for server in told["servers"]] == ["serving", "serving"]
        assert told["servers"][1]["statistics"]["requests"]["health"]["results"]["ok"] > 0


def test_a_server_that_does_not_answer_fails_and_the_others_are_shown(roots, tmp_path, capsys):
    gone = free_address()
    with PartitionServer(roots[0], 1) as server:
        path = namebook(tmp_path, {"0": gone, "1": server.address})
        found = run(capsys, "status", path, "--timeout", 0.3)
        assert found.code == 1
        assert f"server 0: server 0 at {gone}: no answer within 0.3 s" in found.out
        assert [row.split()[2] for row in found.out.splitlines()[1:3]] == ["no", "serving"]
        told = run(capsys, "status", path, "--timeout", 0.3, "--json")
        assert told.code == 1
        assert [server["status"] for server in told.json["servers"]] == ["no answer", "serving"]
        assert told.json["servers"][0]["error"]["type"] == "ServerUnavailable"


def test_servers_of_two_partitions_disagree(roots, tmp_path, capsys):
    with PartitionServer(roots[0], 0) as one, PartitionServer(roots[1], 1) as other:
        found = run(capsys, "status", namebook(tmp_path, {"0": one.address, "1": other.address}))
    assert found.code == 1
    assert found.out.endswith("the servers have different partitions, or different attributes on one partition\n")


def test_wrong_usage_asks_nobody(command_refuses, tmp_path):
    command_refuses(2, "status", namebook(tmp_path, {}))
    book = namebook(tmp_path, {"0": "127.0.0.1:7000"})
    command_refuses(2, "status", book, "--tls-cert", "c.pem")
    command_refuses(2, "status", book, "--timeout", 0)


def test_a_client_may_know_some_of_the_servers(roots):
    with PartitionServer(roots[0], 1) as server, connect({1: server.address}) as client:
        assert client.health(1) == {"status": "serving", "part": 1}
        assert client.addresses == {1: server.address}
        with pytest.raises(ValueError, match=r"server 0 is not in the namebook; there are \[1\]"):
            client.health(0)
