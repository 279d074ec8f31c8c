"""Resolver: where the servers of each part are, asked anew after a connection fails; Replicas: what it answers."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from datapipes.base.checks import shown
from datapipes.base.errors import text_of
from datapipes.distributed.address import Address, parse_address

__all__ = ["Resolver"]

_EVERY_S = 0.25


class Replicas(tuple[Address, ...]):
    """Where the servers of one part are, any of which answers alike; at least one."""

    __slots__ = ()

    def is_heard(self, timeout: float) -> bool:
        """Return whether something listens at one of them; see Address."""
        return any(address.is_heard(timeout) for address in self)

    def plain(self) -> Any:
        """Return it as a namebook has it: "host:port", or a list of these."""
        return str(self[0]) if len(self) == 1 else [str(address) for address in self]

    def __str__(self) -> str:
        return " or ".join(map(str, self))


class Resolver(ABC):
    """Tells where servers are. Make a subclass for what starts your servers, and pass it where a namebook is wanted.

    It goes to worker processes by pickle, and any thread may ask it.
    """

    @abstractmethod
    def addresses(self, part: int) -> Sequence[str]:
        """Return "host:port" of each server that has a part now, in any order; nothing if there is none yet.

        It is asked when clients connect, as often as it takes, and again when no server can be reached. It should
        answer within a second, and may raise; then the servers that are known are asked again.
        """


# {number: "host:port", or a list of these}, the path of a JSON file of this form, "torchrun", or a resolver
Namebook = Mapping[int, "str | Sequence[str]"] | str | Path | Resolver


def replicas_of(where: str, part: str, value: Any, named: str) -> Replicas:
    """Return the addresses that a user names for one part: "host:port", or a list of these.

    Args:
        part: for messages; "part 3".
        named: who names them.
    Raises:
        TypeError: It has another form.
        ValueError: An address is none, or none that a client finds, or stands there twice; or there is none.
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
    """Return where the servers of `parts` are; wait until each has one, `timeout` seconds at most.

    Raises:
        TimeoutError: A part had none; the message names it.
        TypeError, ValueError: What the resolver told is no address.
    """
    ends, addresses = time.monotonic() + timeout, {}
    for part in parts:
        while (replicas := _told_by(where, resolver, part, ends)) is None:
            time.sleep(_EVERY_S)
        addresses[part] = replicas
    return addresses


def _told_by(where: str, resolver: Resolver, part: int, ends: float) -> Replicas | None:
    addresses: Any = ()
    why = "it has none"
    try:
        addresses = resolver.addresses(part)
    except Exception as error:
        why = f"{type(error).__name__}: {text_of(error)}"
        failure: Exception | None = error
    else:
        failure = None
    if addresses:
        return replicas_of(where, f"part {part}", addresses, f"{where}: {shown(resolver)}")
    if time.monotonic() + _EVERY_S < ends:
        return None
    raise TimeoutError(
        f"{where}: {shown(resolver)} told no address of part {part} in time ({why}). Look whether its server runs."
    ) from failure
