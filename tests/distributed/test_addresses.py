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


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no port"),
        ("node", "has no port"),
        (":7000", "no valid host"),
        ("node:", "the port ''"),
        ("node:0", "not in \\[1, 65535\\]"),
        ("node:65536", "not in \\[1, 65535\\]"),
        ("node:" + "9" * 5000, "not in \\[1, 65535\\]"),
        ("node:-1", "the port '-1'"),
        ("node:+7", "the port '\\+7'"),
        ("node:٣", "the port"),
        ("node:7000 ", "the port"),
        ("http://node:7000", "more than one colon"),
        ("2001:db8::5:7000", "an IPv6 address stands in brackets"),
        ("[node]:7000", "no IPv6 address"),
        ("[10.0.0.5]:7000", "no IPv6 address"),
        ("[fe80::1%eth0]:7000", "no IPv6 address"),
        ("300.0.0.1:7000", "no valid host"),
        ("10.0.0:7000", "no valid host"),
        ("a b:7000", "no valid host"),
        ("-node:7000", "no valid host"),
        ("node..org:7000", "no valid host"),
        ("x" * 300 + ":7000", "no valid host"),
    ],
)
def test_what_is_no_address_is_refused_with_the_reason(text, why):
    with pytest.raises(ValueError, match=f'here: part 0 is .*{why}.*Write "host:port"'):
        parse_address("here", "part 0", text)


def test_what_is_no_text_is_refused():
    with pytest.raises(TypeError, match=r"part 0 must be a text \"host:port\", got 7000 \(int\)"):
        parse_address("here", "part 0", 7000)


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
