"""The guards of a server: where descriptors are short, where a guard itself fails, under clients that say nothing."""

import contextlib
import errno
import logging
import os
import resource
import socket
import threading

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from pipelines import wait_until
from plain_clients import PlainClient
from scripts import run_script
from warm_servers import WarmServer

from datapipes.cli.main import main
from datapipes.distributed import PartitionServer
from datapipes.distributed.server import guards, metrics_server
from datapipes.distributed.server.guards import Guard, Strangers
from datapipes.distributed.server.tcp_connections import TcpConnections

BOUND_S = 20.0


def outcomes(*given):
    """A look that raises or returns one after another, then tells that it was called once more."""
    left, called = [*given], threading.Event()

    def look() -> float:
        if not left:
            called.set()
            return 60.0
        outcome = left.pop(0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return look, called


def test_a_guard_goes_on_without_descriptors_and_says_so_once(monkeypatch, caplog):
    monkeypatch.setattr("datapipes.distributed.server.guards._RETRY_S", 0.0)
    none = OSError(errno.EMFILE, "Too many open files")
    look, called = outcomes(none, none, MemoryError(), 0.0, none, 0.0)
    with caplog.at_level(logging.ERROR, "datapipes"):
        guard = Guard("server of part 0", "watch", look, lambda error: None)
        assert called.wait(BOUND_S)
        guard.close()
    texts = [record.getMessage() for record in caplog.records]
    emfile = "server of part 0: the watch has met OSError: [Errno 24] Too many open files; it goes on"
    assert texts == [emfile, "server of part 0: the watch has met MemoryError: ; it goes on", emfile]


def test_a_guard_that_dies_ends_the_server_with_the_reason(root, monkeypatch):
    def look(self):
        raise KeyError("lost")

    monkeypatch.setattr(guards.Strangers, "look", look)
    server = PartitionServer(root, 1)
    server.start()
    wait_until(lambda: server.failure is not None and server.address is None, "the server goes on without its guard")
    assert repr(server.failure) == "KeyError('lost')"
    assert server.stop()


WITHOUT_DESCRIPTORS = """
import contextlib, os, resource, socket
from datapipes.distributed.server.tcp_connections import TcpConnections
from datapipes.distributed.server.guards import MemoryWatch, Strangers
from datapipes.distributed.server.statistics import Statistics

with socket.create_server(("127.0.0.1", 0)) as listens:
    port = listens.getsockname()[1]
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    accepted = [listens.accept()[0] for _ in clients]
    connections = TcpConnections()
    watch = MemoryWatch(port, 1, Statistics(), connections)
    strangers = Strangers("server", port, connections)
    strangers.note_request("ipv4:127.0.0.1:%d" % clients[0].getsockname()[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    try:
        while True:
            os.open(os.devnull, os.O_RDONLY)
    except OSError as error:
        print(error.strerror)
    print(len(connections.to(port)), strangers.look())
    print(connections.end({"ipv4:127.0.0.1:%d" % clients[2].getsockname()[1]}), clients[2].recv(1))
    print(watch.look())  # the memory is above the bound: all connections end
    print([client.recv(1) for client in clients])
"""


def test_without_a_free_descriptor_the_guards_see_and_end_connections():
    code, out, _ = run_script(WITHOUT_DESCRIPTORS)
    assert (code, out) == (0, "Too many open files\n3 0.25\n1 b''\n5.0\n[b'', b'', b'']\n")


@contextlib.contextmanager
def strangers_to(count: int):
    """Connections to a listening socket that say nothing: (port, this end of them, TcpConnections)."""
    with contextlib.ExitStack() as stack:
        listens = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=count))
        port = listens.getsockname()[1]
        ends = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(count)]
        for _ in range(count):
            stack.enter_context(listens.accept()[0])
        yield port, ends, stack.enter_context(contextlib.closing(TcpConnections()))


def is_open(end: socket.socket) -> bool:
    end.setblocking(False)
    try:
        return end.recv(1) != b""
    except BlockingIOError:
        return True


def name_of(end: socket.socket) -> str:
    return f"ipv4:127.0.0.1:{end.getsockname()[1]}"


def test_of_connections_without_a_request_only_so_many_are_kept(monkeypatch, caplog):
    monkeypatch.setattr(guards, "_SHARE", 2**40)
    with strangers_to(guards._FEWEST + 5) as (port, ends, connections):
        watch = Strangers("server", port, connections)
        for end in ends[:3]:
            watch.note_request(name_of(end))
        watch.look()
        assert sum(map(is_open, ends)) == guards._FEWEST + 3
        assert all(map(is_open, ends[:3]))
        watch.look()
    assert [record.getMessage() for record in caplog.records] == [
        f"server: {len(ends) - 3} connections have sent no request yet, at most {guards._FEWEST} are kept; keep "
        f"strangers from port {port} by a firewall"
    ]


def test_a_connection_that_stays_silent_is_ended_unless_a_request_has_come_from_it(monkeypatch):
    with strangers_to(2) as (port, ends, connections):
        watch = Strangers("server", port, connections)
        watch.note_request(name_of(ends[1]))
        watch.look()
        assert all(map(is_open, ends))
        monkeypatch.setattr(guards, "_SILENT_S", 0.0)
        watch.look()
        assert [*map(is_open, ends)] == [False, True]


def num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_idle_streams_of_clients_keep_no_thread(root):
    schema, descriptor = pa.schema([("x", pa.int64())]), flight.FlightDescriptor.for_path("x")
    with PartitionServer(root, 1) as server, PlainClient(server.address) as client:
        client.hello()
        before, kept = num_threads(), []
        for _ in range(100):
            with contextlib.suppress(flight.FlightUnauthorizedError):  # it comes at once, or when something is sent
                kept.append(client.client.do_put(descriptor, schema))
                kept.append(client.client.do_exchange(descriptor))
        assert len(kept) > 0
        wait_until(lambda: num_threads() < before + 50, "the streams keep their threads")
        client.hello()
        with pytest.raises(flight.FlightUnauthorizedError, match="has no DO_EXCHANGE; requests come by DoGet"):
            client.client.do_exchange(descriptor)[1].read_all()
        for writer, _ in kept:
            with contextlib.suppress(flight.FlightError, OSError):
                writer.close()


def test_more_silent_connections_than_descriptors_keep_no_client_out(root):
    with WarmServer(root, 1) as server, contextlib.ExitStack() as stack:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (96, 96))
        host, _, port = server.address.rpartition(":")
        for _ in range(150):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=BOUND_S))
        with PlainClient(server.address) as client:
            client.hello()
        assert server.stop() == 0


def test_a_pending_connection_to_the_metrics_port_without_descriptors_is_not_tried_at_once_again(monkeypatch):
    waits = []
    monkeypatch.setattr(metrics_server.time, "sleep", waits.append)

    class Exhausted:
        def accept(self):
            raise OSError(errno.EMFILE, "Too many open files")

    server = metrics_server._Server.__new__(metrics_server._Server)
    server.socket = Exhausted()
    with pytest.raises(OSError, match="Too many"):
        server.get_request()
    assert waits == [metrics_server._RETRY_S]
    assert guards.own_memory() > 0


def test_the_command_ends_with_the_reason_when_a_guard_has_died(root, monkeypatch, capsys):
    def look(self):
        raise KeyError("lost")

    monkeypatch.setattr(guards.Strangers, "look", look)
    assert main(["serve", str(root), "--part", "1"]) == 1
    assert (
        "datapipes serve: a thread of the server has died: KeyError('lost'). Start the server again."
        in capsys.readouterr().err
    )
