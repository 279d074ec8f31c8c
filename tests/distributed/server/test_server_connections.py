"""The ends of connections are found by the names that gRPC gives them."""

import contextlib
import os
import socket

import pytest
from channels import descriptors_from_now

from datapipes.distributed.server.tcp_connections import TcpConnections


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "mapped"])
def test_only_the_named_connection_is_ended(host):
    family = socket.AF_INET if host == "127.0.0.1" else socket.AF_INET6
    dual = host == "mapped"  # a socket for both versions, as gRPC makes them
    try:
        listens = socket.create_server(("::" if dual else host, 0), family=family, dualstack_ipv6=dual)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with contextlib.ExitStack() as stack:
        stack.enter_context(listens)
        to = ("127.0.0.1" if dual else host, listens.getsockname()[1])
        one, other = (stack.enter_context(socket.create_connection(to, timeout=20)) for _ in range(2))
        accepted, kept = (stack.enter_context(listens.accept()[0]) for _ in range(2))
        port = one.getsockname()[1]
        name = f"ipv6:%5B::1%5D:{port}" if host == "::1" else f"ipv4:127.0.0.1:{port}"
        connections = stack.enter_context(contextlib.closing(TcpConnections()))
        opened = descriptors_from_now()
        assert connections.end({name, "ipv4:127.0.0.1:1"}) == 1
        assert opened() == 0
        assert accepted.recv(1) == one.recv(1) == b""
        other.sendall(b"x")
        assert kept.recv(1) == b"x"
        assert connections.end(set()) == 0
        assert connections.end_all(1) == 0
        assert connections.end_all(to[1]) == 2
        assert kept.recv(1) == other.recv(1) == b""


def test_what_is_no_connection_is_passed_over():
    one, other = socket.socketpair()
    with one, other, socket.socket(), open(os.devnull, "rb"), contextlib.closing(TcpConnections()) as connections:
        opened = descriptors_from_now()
        assert connections.end({"ipv4:127.0.0.1:1"}) == 0
        assert opened() == 0
