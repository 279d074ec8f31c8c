"""Addresses of servers, "host:port". Replicas are the addresses of the servers of one part. A Resolver, which the user
writes, looks up addresses; clients ask the Resolver again if they can reach no server of a part.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from datapipes.base.checks import shown
from datapipes.base.errors import text_of

__all__ = ["Resolver"]

MOST_PORT = 65535
_NAME = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?"
)
_NUMERIC = re.compile(r"(.*\.)?[0-9]+\.?")  # no host name ends with a number


class Address(NamedTuple):
    """The address of a server.

    Attributes:
        host: a name, or an IPv4 or IPv6 address without brackets.
        port: 0 lets the system choose the port.
    """

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return self.host == "localhost" or ((ip := _ip(self.host)) is not None and ip.is_loopback)

    @property
    def is_any(self) -> bool:
        """Whether this is a wildcard such as 0.0.0.0: a server can listen on a wildcard, but a client cannot connect to
        it.
        """
        return (ip := _ip(self.host)) is not None and ip.is_unspecified

    def is_heard(self, timeout: float) -> bool:
        """Try to connect to the address. Return False if the connection is refused, or the host name is unknown.
        Otherwise return True, also if no answer comes within `timeout` seconds.
        """
        try:
            socket.create_connection(self, timeout).close()
        except (ConnectionRefusedError, socket.gaierror):
            return False
        except OSError:
            return True
        return True

    def uri(self, *, tls: bool) -> str:
        """Return the address as a URI for Arrow Flight: "grpc+tls://host:port" with `tls`, else
        "grpc+tcp://host:port".
        """
        return f"grpc+{'tls' if tls else 'tcp'}://{self}"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(where: str, name: str, value: Any, *, lowest_port: int = 1) -> Address:
    """Parse `value`, a text "host:port", and return the Address. If `value` is an Address, return it unchanged.

    Args:
        where: the caller, for error messages.
        name: what error messages call the value.
        lowest_port: the smallest port that is allowed: 1, or 0 if the system may choose the port.
    Raises:
        TypeError: `value` is no text.
        ValueError: `value` is no address; the message says why.
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
            raise _wrong(where, name, value, "has no IPv6 address in its brackets")
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


# --- several servers of one part

_EVERY_S = 0.25


class Replicas(tuple[Address, ...]):
    """A tuple of the addresses of the servers of one part: at least one. All these servers give the same answers."""

    __slots__ = ()

    def is_heard(self, timeout: float) -> bool:
        """Return True if a server seems to listen at any of the addresses, see Address.is_heard."""
        return any(address.is_heard(timeout) for address in self)

    def plain(self) -> Any:
        """Return the addresses as a user writes them in a namebook: one address as a text "host:port", several as a
        list of texts.
        """
        return str(self[0]) if len(self) == 1 else [str(address) for address in self]

    def __str__(self) -> str:
        return " or ".join(map(str, self))


class Resolver(ABC):
    """Looks up where servers are. Write a subclass for the program that starts your servers; pass it as the namebook.

    A Resolver is pickled into worker processes, and any thread may call its methods.
    """

    @abstractmethod
    def addresses(self, part: int) -> Sequence[str]:
        """Return "host:port" of each server that serves `part` now, in any order. Return [] if there is no server yet.

        A client that connects calls this until the list has an address. It calls this again when it can reach no server
        of the part. Return within a second. If this method raises an error, clients ask the known servers again.
        """


# {part or rank: "host:port" or a list of such texts}, the path of a JSON file of such a dict, "torchrun", or a Resolver
Namebook = Mapping[int, "str | Sequence[str]"] | str | Path | Resolver


def replicas_of(where: str, part: str, value: Any, named: str) -> Replicas:
    """Turn what a user's namebook has for one part into Replicas. `value` is a text "host:port" or a list of such
    texts.

    Args:
        where: the caller, for error messages.
        part: what error messages call the part, such as "part 3".
        named: what error messages call the namebook.
    Raises:
        TypeError: `value` has another type.
        ValueError: An address is invalid, is a wildcard, or is listed twice; or there is no address.
    """
    listed = value if isinstance(value, (list, tuple)) and not isinstance(value, Address) else [value]
    replicas = Replicas(parse_address(where, f"the address of {part}", address) for address in listed)
    if not replicas:
        raise ValueError(f"{named} has no address for {part}. Give one.")
    for place, address in enumerate(replicas):
        if address.is_any:
            raise ValueError(
                f"{named} has {address} for {part}; a server listens there, but no client finds it there. Give the "
                "name or the address of its machine."
            )
        if address in replicas[:place]:
            raise ValueError(f"{named} has {address} twice for {part}. Give the address of each replica.")
    return replicas


def ask_resolver(where: str, resolver: Resolver, parts: Iterable[int], timeout: float) -> dict[int, Replicas]:
    """Ask `resolver` for the addresses of `parts` until each part has one, and return {part: its Replicas}. All parts
    together may take `timeout` seconds.

    Raises:
        TimeoutError: A part got no address; the message names it.
        TypeError, ValueError: The resolver returned an invalid address.
    """
    ends, addresses = time.monotonic() + timeout, {}
    for part in parts:
        while part not in addresses:
            answer: Any = ()
            failure: Exception | None = None
            try:
                answer = resolver.addresses(part)
            except Exception as error:
                failure = error
            if answer:
                addresses[part] = replicas_of(where, f"part {part}", answer, f"{where}: {shown(resolver)}")
            elif time.monotonic() + _EVERY_S >= ends:
                why = "it has none" if failure is None else f"{type(failure).__name__}: {text_of(failure)}"
                raise TimeoutError(
                    f"{where}: {shown(resolver)} gave no address of part {part} within {timeout:g} s ({why}). Check "
                    "that a server of the part runs, and that its address is made known."
                ) from failure
            else:
                time.sleep(_EVERY_S)
    return addresses
