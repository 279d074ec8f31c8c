"""Addresses of servers: "host:port", where a server listens or a client finds it."""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Any, NamedTuple

from datapipes.base.checks import shown

MOST_PORT = 65535
_NAME = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?"
)
_NUMERIC = re.compile(r"(.*\.)?[0-9]+\.?")  # no name of a host ends with a number


class Address(NamedTuple):
    """Where a server is.

    Attributes:
        host: a name, or an IPv4 or IPv6 address without brackets.
        port: 0 where the system is to choose one.
    """

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host == "localhost" or ((ip := _ip(self.host)) is not None and ip.is_loopback)

    @property
    def is_any(self) -> bool:
        """Whether it stands for all addresses of a machine, such as 0.0.0.0: a server listens there, none is there."""
        return (ip := _ip(self.host)) is not None and ip.is_unspecified

    def is_heard(self, timeout: float) -> bool:
        """Return whether something listens there; what does not answer within `timeout` seconds may.

        A name that no machine has is not heard.
        """
        try:
            socket.create_connection(self, timeout).close()
        except (ConnectionRefusedError, socket.gaierror):
            return False
        except OSError:
            return True
        return True

    def uri(self, *, tls: bool) -> str:
        """Return it as Arrow Flight wants it."""
        return f"grpc+{'tls' if tls else 'tcp'}://{self}"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(where: str, name: str, value: Any, *, lowest_port: int = 1) -> Address:
    """Return the address that a text "host:port" says.

    Args:
        name: what it is the address of, for messages.
        lowest_port: 0 if the system may choose the port.
    Raises:
        TypeError: It is no text.
        ValueError: It is no address; the message says what is wrong.
    """
    if isinstance(value, Address):
        return value
    if not isinstance(value, str):
        raise TypeError(f'{where}: {name} must be a text "host:port", got {shown(value)} ({type(value).__name__}).')
    host, colon, port = value.rpartition(":")
    if not colon:
        raise _wrong(where, name, value, "has no port")
    if not (port.isascii() and port.isdigit() and lowest_port <= int(port[:6]) <= MOST_PORT):
        raise _wrong(where, name, value, f"has the port {shown(port)}, which is not in [{lowest_port}, {MOST_PORT}]")
    if host.startswith("[") and host.endswith("]"):
        if "%" in host or (ip := _ip(host[1:-1])) is None or ip.version != 6:
            raise _wrong(where, name, value, "has in brackets what is no IPv6 address")
        return Address(ip.compressed, int(port))
    if ":" in host:
        raise _wrong(where, name, value, "has more than one colon; an IPv6 address stands in brackets")
    if (_NUMERIC.fullmatch(host) and _ip(host) is None) or not _NAME.fullmatch(host):
        raise _wrong(where, name, value, "has no valid host")
    return Address(host, int(port))


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _wrong(where: str, name: str, value: str, why: str) -> ValueError:
    return ValueError(f'{where}: {name} is {shown(value)}, which {why}. Write "host:port", such as "10.0.0.5:7000".')
