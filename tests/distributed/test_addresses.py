"""Addresses of servers: what is one, and what only looks like it."""

import pytest

from datapipes.distributed.addresses import Address, parse_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:1", "localhost", 1),
        ("10.0.0.5:65535", "10.0.0.5", 65535),
        ("node-3.cluster_a.example.org:7000", "node-3.cluster_a.example.org", 7000),
        ("[::1]:7000", "::1", 7000),
        ("[2001:db8:0:0::5]:7000", "2001:db8::5", 7000),
    ],
)
def test_an_address_is_a_host_and_a_port(text, host, port):
    address = parse_address("here", "part 0", text)
    assert address == Address(host, port)
    assert parse_address("here", "part 0", str(address)) == address
    assert address.uri(tls=True) == f"grpc+tls://{address}"
    assert address.uri(tls=False) == f"grpc+tcp://{address}"


def test_what_an_address_refuses(refuses):
    for text in (
        "",
        "node",
        ":7000",
        "node:",
        "node:0",
        "node:65536",
        "node:" + "9" * 5000,
        "node:-1",
        "node:٣",
        "node:7000 ",
        "http://node:7000",
        "2001:db8::5:7000",
        "[node]:7000",
        "[10.0.0.5]:7000",
        "[fe80::1%eth0]:7000",
        "300.0.0.1:7000",
        "10.0.0:7000",
        "a b:7000",
        "-node:7000",
        "node..org:7000",
        "x" * 300 + ":7000",
    ):
        refuses(ValueError, parse_address, "here", "part 0", text)
    refuses(TypeError, parse_address, "here", "part 0", 7000)


def test_a_server_may_leave_the_port_to_the_system():
    assert parse_address("here", "address", "127.0.0.1:0", lowest_port=0).port == 0


@pytest.mark.parametrize(
    ("host", "loopback", "any_address"),
    [
        ("localhost", True, False),
        ("127.3.2.1", True, False),
        ("::1", True, False),
        ("10.0.0.5", False, False),
        ("node", False, False),
        ("0.0.0.0", False, True),
        ("::", False, True),
    ],
)
def test_who_can_reach_an_address(host, loopback, any_address):
    address = Address(host, 1)
    assert (address.is_loopback, address.is_any) == (loopback, any_address)
