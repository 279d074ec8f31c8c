"""A server in this process: its answers, its refusals, and how it starts and stops."""

import os
import re
import signal
import socket
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow.flight as flight
import pytest
import torch
from channels import num_descriptors
from pipelines import wait_until
from plain_clients import RELATIONS, PlainClient, greeted, in_parts, plain_graph
from wire_messages import plain

from datapipes.distributed import Part, PartitionServer, ServerLimits, TLSConfig
from datapipes.distributed.partition_facts import PartitionFacts
from datapipes.distributed.requests.draw import Draw, DrawRequest
from datapipes.distributed.requests.rows import Rows, RowsRequest
from datapipes.distributed.server import guards, partition_server, service
from datapipes.distributed.server.guards import own_memory
from datapipes.distributed.wire import arrow_reading
from datapipes.distributed.wire.arrow_message import Message, to_bytes
from datapipes.distributed.wire.envelope import Meant, request_header
from datapipes.distributed.wire.refusals import AnswerTooLarge, BadRequest, OtherPartition, Unavailable

BOUND_S = 20.0


@pytest.fixture(scope="module")
def served(root):
    with greeted(root) as (server, client):
        yield server, client


def own(root, count: int = 10) -> torch.Tensor:
    return Part.open(root, 1).node_ids()[:count]


def draw_of(ids: torch.Tensor, fanout: int = 3, **arguments) -> DrawRequest:
    return DrawRequest({None: ids}, (Draw(None, fanout, 7),), **arguments)


# --- what it answers


def test_the_handshake_tells_the_facts(served, root):
    assert PlainClient(served[0].address).hello() == (1, PartitionFacts.of(Part.open(root, 1)))


@pytest.mark.parametrize("edge_ids", [False, True])
@pytest.mark.parametrize(("fanout", "replace"), [(3, False), (3, True), (-1, False), (1000, False)])
def test_a_hop_has_the_bits_of_the_part(served, root, fanout, replace, edge_ids):
    part = Part.open(root, 1)
    request = draw_of(part.node_ids().flip(0), fanout, replace=replace, edge_ids=edge_ids)
    assert plain(served[1].answer(request)) == plain(request.answered_by(part))


def test_rows_of_every_dtype_and_labels_come_in_one_request(served, root):
    part, ids = Part.open(root, 1), own(root).flip(0).int()
    names = tuple(part.node_attributes_of())
    assert "y" in names
    edges = part.relation().edge_ids[:5]
    request = RowsRequest((Rows("node", None, names, ids), Rows("edge", None, ("x", "mask"), edges)))
    found = served[1].answer(request)
    assert len(found) == len(names) + 2
    assert plain(found) == plain(request.answered_by(part))


def test_a_graph_with_types_is_answered_for_all_edge_types_at_once(typed_root, refuses):
    part = Part.open(typed_root, 0)
    ids = {kind: part.node_ids(kind) for kind in part.node_types}
    request = DrawRequest(ids, tuple(Draw(key, 4, number) for number, key in enumerate(RELATIONS)), edge_ids=True)
    rows = RowsRequest((Rows("node", "paper", ("x",), ids["paper"]), Rows("node", "author", ("mask",), ids["author"])))
    with greeted(typed_root, 0) as (_, client):
        assert plain(client.answer(request)) == plain(request.answered_by(part))
        assert plain(client.answer(rows)) == plain(rows.answered_by(part))
        refuses(ValueError, client.answer, DrawRequest(ids, (Draw(("author", "writes", "author"), 4, 0),)))
        refuses(ValueError, client.answer, RowsRequest((Rows("node", "nobody", ("x",), ids["paper"]),)))


def test_empty_requests_have_empty_answers(served):
    nothing = torch.empty(0, dtype=torch.int64)
    for request in (draw_of(nothing), DrawRequest({}, ())):
        assert [values.tolist() for values in served[1].answer(request)[:2]] == [[0], []]
    assert served[1].answer(RowsRequest(())) == []
    assert served[1].answer(RowsRequest((Rows("node", None, ("x",), nothing),)))[0].shape == (0, 3)


def test_health_and_statistics(root):
    with PartitionServer(root, 1) as server, PlainClient(server.address) as client:
        assert client.say("health")["status"] == "serving"
        client.hello()
        client.answer(draw_of(own(root)))
        with pytest.raises(KeyError):
            client.answer(RowsRequest((Rows("node", None, ("nothing",), own(root)),)))
        numbers = client.say("statistics")["statistics"]
        assert {kind: each["results"] for kind, each in numbers["requests"].items()} == {
            "draw": {"ok": 1},
            "health": {"ok": 1},
            "hello": {"ok": 1},
            "rows": {"error": 1},
        }
        assert numbers["requests"]["draw"]["sent_bytes"] > 0
        assert (numbers["waiting"], numbers["working"], numbers["bytes_in_flight"]) == (0, 0, 0)
        assert server.statistics()["requests"]["statistics"]["results"] == {"ok": 1}


def test_a_partition_of_one_part_is_served_whole_and_of_several_one_must_be_named(root, tmp_path, refuses):
    graph = plain_graph()
    with PartitionServer(in_parts(tmp_path / "whole", graph, 1)) as server, PlainClient(server.address) as client:
        assert client.hello()[1].num_parts == 1
        assert client.answer(draw_of(torch.arange(60), -1)).indptr.tolist() == graph.relation(None).indptr.tolist()
    refuses(ValueError, PartitionServer(root).start)


# --- what it refuses


def test_what_the_part_does_not_have_is_refused_with_its_reason(served, root, refuses):
    ids = own(root)
    for error, request in (
        (IndexError, draw_of(ids + 1)),
        (IndexError, draw_of(ids + 100)),
        (IndexError, draw_of(-ids - 1)),
        (IndexError, draw_of(ids - 2**62, -1)),
        (IndexError, RowsRequest((Rows("node", None, ("x",), ids + 1),))),
        (KeyError, RowsRequest((Rows("node", None, ("x", "lost"), ids),))),
        (ValueError, RowsRequest((Rows("node", "paper", ("x",), ids),))),
        (IndexError, RowsRequest((Rows("edge", None, ("x",), ids + 10_000),))),
    ):
        refuses(error, served[1].answer, request)


def test_another_part_partition_or_content_is_refused_and_both_are_named(served, root):
    here = served[1].meant
    other = in_parts(root.parent / "other", plain_graph(rng_seed=5))
    theirs = Part.open(other, 1)
    for name, value in (("part", 0), ("partition_id", theirs.partition_id), ("content_id", theirs.content_id)):
        client = PlainClient(served[0].address, here._replace(**{name: value}))
        for kind in ("hello", "draw", "rows", "health", "statistics"):
            text = f"server of part 1: this server has the {name} {getattr(here, name)!r}, the client means {value!r}"
            with pytest.raises(OtherPartition, match=re.escape(text)):
                client.say(kind)


def test_what_is_no_request_is_refused(served, refuses):
    client = served[1]
    for name in ("protocol", "stream"):
        refuses(OtherPartition, client.ask, Message({**request_header("hello", Meant()), name: 99}, {}))
    refuses(BadRequest, client.say, "exec")
    for ticket in (b"", b"x", b"\x80\x05K\x01.", bytes(1000)):
        with pytest.raises(BadRequest, match="server of part 1: found no valid Arrow stream"):  # Arrow says why
            client.ask_bytes(ticket)
    with greeted(served[0].root, max_request_bytes=2000) as (_, other), pytest.raises(BadRequest, match="at most 2000"):
        other.answer(draw_of(own(served[0].root).repeat(30)))


def test_an_answer_that_would_be_too_large_is_not_made(root, monkeypatch, refuses):
    ids = own(root, 20)
    with greeted(root, max_answer_bytes=1000, max_bytes_in_flight=4000) as (server, client):
        assert len(client.answer(draw_of(ids, 3)).indptr) == len(ids) + 1
        monkeypatch.setattr(DrawRequest, "answered_by", lambda *_, **__: pytest.fail("drawn"))
        monkeypatch.setattr(RowsRequest, "answered_by", lambda *_, **__: pytest.fail("read"))
        for request in (
            draw_of(ids, -1, edge_ids=True),  # 8 * 21 bytes, and 16 for each edge
            draw_of(ids, 2**61, edge_ids=True),  # so many too
            draw_of(ids, 10**9, replace=True),  # 8 * 21 + 8 * 20 * 10**9 bytes
            RowsRequest((Rows("node", None, ("x", "y"), ids.repeat(100)),)),  # 2000 * (6 + 8)
        ):
            refuses(AnswerTooLarge, client.answer, request)
        counts = {kind: each["results"] for kind, each in server.statistics()["requests"].items()}
        assert (counts["draw"]["too_large"], counts["rows"]["too_large"]) == (3, 1)


def test_a_large_fanout_of_few_edges_is_answered(root):
    with greeted(root, max_answer_bytes=10_000, max_bytes_in_flight=40_000) as (_, client):
        request = draw_of(own(root), 2**61)
        assert torch.equal(client.answer(request).neighbors, request.answered_by(Part.open(root, 1)).neighbors)


def test_a_request_with_a_large_header_is_refused_before_it_is_parsed(served, monkeypatch):
    monkeypatch.setattr(arrow_reading, "parse_strict", lambda *_, **__: pytest.fail("parsed"))
    message = Message({"x": "[]," * 100_000}, {})
    with pytest.raises(BadRequest, match=r"found a header of \d+ bytes; at most 262144 are allowed"):
        served[1].ask(message)


def test_no_more_requests_are_read_at_once_than_worked_on(root, monkeypatch):
    reading, most, begun, real = [0], [0], threading.Event(), service.from_bytes

    def counted(*arguments):
        reading[0] += 1
        most[0] = max(most[0], reading[0])
        begun.wait(0.02)  # the others may come meanwhile
        reading[0] -= 1
        return real(*arguments)

    monkeypatch.setattr(service, "from_bytes", counted)
    with PartitionServer(root, 1, limits=ServerLimits(concurrency=1)) as server, ThreadPoolExecutor(6) as threads:
        ticket = to_bytes("client", Message(request_header("health", Meant()), {}))
        answers = [threads.submit(server._service.answer, "client", ticket, lambda: False) for _ in range(6)]
        assert all(each.result(BOUND_S) for each in answers)
    assert most == [1]


def test_other_methods_of_flight_are_refused(served):
    client = served[1].client
    descriptor = flight.FlightDescriptor.for_path("x")
    for call in (
        lambda: list(client.list_flights()),
        lambda: list(client.list_actions()),
        lambda: list(client.do_action("x")),
        lambda: client.get_flight_info(descriptor),
        lambda: client.get_schema(descriptor),
    ):
        with pytest.raises(NotImplementedError):
            call()
    served[1].say("health")


# --- where it listens


def test_an_address_in_use_is_told(root, served):
    with pytest.raises(OSError, match=f"cannot listen on {served[0].address}: Address already in use"):
        PartitionServer(root, 0, served[0].address).start()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"cannot listen on {address} for metrics: Address already in use"):
            PartitionServer(root, 0, metrics=address).start()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_a_host_that_is_not_this_machine_is_told(root, host):
    before = threading.active_count()
    with pytest.raises(OSError, match=f"cannot listen on {host}:0: "):
        PartitionServer(root, 0, f"{host}:0", insecure=True).start()
    assert threading.active_count() <= before


def test_what_a_partition_server_refuses_before_anything_starts(root, refuses):
    for error, options in (
        (ValueError, {"part": -1}),
        (TypeError, {"part": True}),
        (ValueError, {"address": "127.0.0.1"}),
        (TypeError, {"address": 7000}),
        (ValueError, {"address": "0.0.0.0:7000"}),
        (TypeError, {"tls": "cert.pem"}),
        (TypeError, {"insecure": 1}),
        (TypeError, {"limits": {"concurrency": 1}}),
        (ValueError, {"metrics": "nine"}),
    ):
        refuses(error, PartitionServer, root, **{"part": 0, **options})
    PartitionServer(root, 0, "0.0.0.0:7000", insecure=True)
    PartitionServer(root, 0, "0.0.0.0:7000", tls=TLSConfig("cert", "key", "ca"))


def test_what_limits_refuse(refuses):
    for limits in (
        {"concurrency": 0},
        {"num_threads": 0},
        {"max_waiting": 0},
        {"max_answer_bytes": "lots"},
        {"max_bytes_in_flight": "1GB", "max_answer_bytes": "512MB"},
        {"stall_s": 0},
        {"max_memory": "none"},
        {"max_workers": -1},
    ):
        refuses(ValueError, ServerLimits, **limits)


def test_limits_that_numpy_gives_are_ints():
    limits = ServerLimits(num_threads=np.int64(2), concurrency=np.int32(3), max_workers=np.int64(1))
    assert [type(number) for number in (limits.num_threads, limits.concurrency, limits.max_workers)] == [int] * 3


def test_a_part_that_is_not_there_is_told(root, tmp_path, refuses):
    refuses(FileNotFoundError, PartitionServer(tmp_path / "nothing", 0).start)
    refuses(ValueError, PartitionServer(root, 2).start)
    lost = in_parts(tmp_path / "lost", plain_graph())
    (lost / "part_1").rename(tmp_path / "elsewhere")
    refuses(FileNotFoundError, PartitionServer(lost, 1).start)
    with PartitionServer(lost, 0):
        pass


def test_without_pyarrow_the_extra_is_named(root, monkeypatch, refuses):
    monkeypatch.setitem(sys.modules, "pyarrow.flight", None)
    refuses(ImportError, PartitionServer, root, 0)


# --- its life


def test_it_starts_stops_and_starts_again_on_the_same_port(root):
    server = PartitionServer(root, 1)
    assert repr(server) == f"PartitionServer({str(root)!r}, part=1, not started)"
    server.stop()
    before, counts = threading.active_count(), []
    for _ in range(4):
        address = server.start()
        assert repr(server) == f"PartitionServer({str(root)!r}, part=1, listens on {address})"
        with pytest.raises(RuntimeError, match=r"it listens on .* already"):
            server.start()
        with PlainClient(address) as client:
            assert client.say("health")["status"] == "serving"
        server.stop()
        server.stop()
        assert server.address is None
        with PlainClient(address) as client, pytest.raises(flight.FlightUnavailableError):
            client.say("health")
        server = PartitionServer(root, 1, address)
        counts.append(num_descriptors())
    with pytest.raises(RuntimeError, match="it is not started"):
        server.statistics()
    assert threading.active_count() <= before
    wait_until(lambda: num_descriptors() <= counts[0], f"descriptors are left: {counts}")


def test_a_forked_child_leaves_the_server_to_its_parent(served):
    server, client = served
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(BOUND_S))  # ends the child if Arrow waits
        stopped, finalizers = server.stop(0.0), weakref.finalize._registry.values()
        os._exit(5 if stopped and not [each for each in finalizers if each.weakref() is server._server] else 6)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    assert client.say("health")["status"] == "serving"


def test_stopping_answers_what_is_under_way_and_refuses_the_rest(root, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()

    answered_by = RowsRequest.answered_by

    def slow(*args, **options):
        begun.set()
        assert go_on.wait(BOUND_S)
        return answered_by(*args, **options)

    monkeypatch.setattr(RowsRequest, "answered_by", slow)
    request = RowsRequest((Rows("node", None, ("y",), own(root)),))
    server = PartitionServer(root, 1)
    with PlainClient(server.start()) as client, ThreadPoolExecutor(2) as threads:
        client.hello()
        asked = threads.submit(client.answer, request)
        assert begun.wait(BOUND_S)
        serves = server._service
        stopped = threads.submit(server.stop, BOUND_S)
        wait_until(lambda: serves.is_stopping, "it does not stop")
        assert client.say("health")["status"] == "stopping"
        for refused in (lambda: client.answer(draw_of(own(root))), lambda: client.say("hello")):
            with pytest.raises(Unavailable, match="server of part 1: the server stops"):
                refused()
        go_on.set()
        assert torch.equal(asked.result(BOUND_S)[0], request.answered_by(Part.open(root, 1))[0])
        stopped.result(BOUND_S)


@pytest.mark.parametrize(("fanout", "looks"), [(3, 1), (-1, 3)])  # one is drawn at once, the other is counted before
def test_a_draw_that_the_client_gives_up_ends_before_it_is_made_and_before_the_next_count(typed_root, fanout, looks):
    part = Part.open(typed_root, 0)
    ids, asked = {kind: part.node_ids(kind) for kind in part.node_types}, []
    request = DrawRequest(ids, tuple(Draw(key, fanout, 0) for key in RELATIONS))

    def given_up() -> bool:
        asked.append(True)
        return len(asked) > looks

    with PartitionServer(typed_root, 0) as server:
        ticket = to_bytes("client", request.to_message(server._service.meant))
        with pytest.raises(Unavailable, match="the client has given up"):
            server._service.answer("client", ticket, given_up)
        assert len(asked) == looks + 1
        wait_until(lambda: server.statistics()["bytes_in_flight"] == 0, "bytes stay in flight")


def big_rows(root, megabytes: int) -> RowsRequest:
    """Rows of the widest feature, so many MB of them."""
    return RowsRequest((Rows("node", None, ("across",), own(root).repeat(megabytes * 2**20 // 480)),))


def test_a_client_that_does_not_read_loses_its_connection_and_its_bytes_are_free(root):
    with greeted(root, stall_s=0.2) as (server, client):
        stream = client.open(request_bytes(client, big_rows(root, 40)))
        assert server.statistics()["bytes_in_flight"] > 0
        wait_until(lambda: server.statistics()["stalled_connections"] > 0, "the connection is not ended")
        expect_shed(server, stream)


def expect_shed(server: PartitionServer, stream) -> None:
    """A stream that was not read is gone, its bytes are free, and others are served."""
    with pytest.raises(flight.FlightError):
        stream.read_all()
    wait_until(lambda: server.statistics()["bytes_in_flight"] == 0, "bytes stay in flight")
    with PlainClient(server.address) as other:
        assert other.say("health")["status"] == "serving"


def test_above_its_memory_a_server_ends_all_connections_and_goes_on(root, monkeypatch):
    with pytest.raises(ValueError, match=r"max_memory must be at least \d+: memory of the process now"):
        PartitionServer(root, 1, limits=ServerLimits(max_memory="10MB")).start()
    memory = own_memory()
    with greeted(root, max_memory=memory + 2**32) as (server, client):
        stream = client.open(request_bytes(client, big_rows(root, 40)))
        monkeypatch.setattr(guards, "own_memory", lambda *_: memory + 2**33)
        wait_until(lambda: server.statistics()["memory_sheds"] == 1, "the connections are not ended")
        expect_shed(server, stream)


def test_what_is_freed_goes_back_before_connections_end_and_when_nobody_asks(root, monkeypatch):
    memory = own_memory()
    held, backs = [memory + 2**33], []

    def give_back():
        held[0] = memory
        backs.append(memory)

    monkeypatch.setattr(guards, "own_memory", lambda *_: held[0])
    monkeypatch.setattr(guards, "give_back", give_back)
    with (
        PartitionServer(root, 1, limits=ServerLimits(max_memory=memory + 2**32)) as server,
        PlainClient(server.address) as client,
    ):
        wait_until(lambda: len(backs) == 1, "nothing goes back above the bound")
        client.hello()
        wait_until(lambda: len(backs) == 2, "nothing goes back after the request")
        assert client.say("health")["status"] == "serving"
        assert server.statistics()["memory_sheds"] == 0


def test_the_automatic_bound_of_memory_follows_the_limits(root, monkeypatch):
    bounds = []
    monkeypatch.setattr(partition_server, "own_memory", lambda *_: 5)
    real = partition_server.MemoryWatch
    monkeypatch.setattr(partition_server, "MemoryWatch", lambda *given: bounds.append(given[1]) or real(*given))
    with PartitionServer(
        root, 1, limits=ServerLimits(max_memory="auto", max_bytes_in_flight="2GB", max_request_bytes="1GB")
    ):
        assert bounds == [5 + 2 * 2 * 2**30 + 16 * 2**30]
    with PartitionServer(root, 1):
        assert len(bounds) == 1


def test_stopping_does_not_wait_for_a_client_that_does_not_read(root):
    server = PartitionServer(root, 1)
    with PlainClient(server.start()) as client, ThreadPoolExecutor(1) as threads:
        client.hello()
        stream = client.open(request_bytes(client, big_rows(root, 40)))
        threads.submit(server.stop, 0.0).result(BOUND_S)
        with pytest.raises(flight.FlightError):
            stream.read_all()


@pytest.mark.parametrize(
    "said", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)]
)
def test_stopping_does_not_wait_for_a_connection_that_says_nothing_more(root, said):
    server = PartitionServer(root, 1)
    host, _, port = server.start().rpartition(":")
    with ThreadPoolExecutor(1) as threads, socket.create_connection((host, int(port)), timeout=BOUND_S) as silent:
        silent.sendall(said)
        with PlainClient(server.address) as client:
            client.say("health")  # the silent one came before
        threads.submit(server.stop, 0.0).result(BOUND_S)


def test_an_answer_that_the_client_gives_up_is_no_longer_in_flight(root):
    with greeted(root) as (server, client):
        stream = client.open(request_bytes(client, big_rows(root, 40)))
        assert server.statistics()["bytes_in_flight"] > 0
        stream.cancel()
        wait_until(lambda: server.statistics()["bytes_in_flight"] == 0, "bytes stay in flight")


def request_bytes(client: PlainClient, request: RowsRequest) -> bytes:

    return to_bytes("client", request.to_message(client.meant))


def test_many_clients_at_once_get_their_own_answers(root):
    part = Part.open(root, 1)
    requests = [draw_of(part.node_ids()[number:], 2, edge_ids=True) for number in range(12)]
    expected = [plain(request.answered_by(part)) for request in requests]

    def ask(number: int) -> bool:
        places = [(number + i) % 12 for i in range(10)]
        with PlainClient(server.address) as client:
            client.hello()
            return [plain(client.answer(requests[place])) for place in places] == [expected[place] for place in places]

    with PartitionServer(root, 1, limits=ServerLimits(concurrency=2)) as server, ThreadPoolExecutor(8) as threads:
        assert all(threads.map(ask, range(12)))
        numbers = server.statistics()
        assert numbers["requests"]["draw"]["results"] == {"ok": 120}
        wait_until(lambda: server.statistics()["bytes_in_flight"] == 0, "bytes stay in flight")
