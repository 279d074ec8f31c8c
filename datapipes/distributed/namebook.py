"""Namebooks tell the addresses of the servers of each part. The user gives them, or servers publish them in the store
of torchrun.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from datapipes.base.checks import check_bool, check_int, shown
from datapipes.base.files import read_regular
from datapipes.base.strict_json import parse_strict
from datapipes.distributed.addresses import Address, Replicas, Resolver, ask_resolver, parse_address, replicas_of
from datapipes.partition.book import MOST_PARTS

__all__ = ["publish_address"]

_TORCHRUN = "torchrun"
_FILE_FORMS = '{0: "host:port", 1: ...}, or the path of a JSON file of this form'
_FORMS = '{0: "host:port", 1: ["host:port", ...]}, the path of a JSON file of this form, "torchrun", or a Resolver'
_PUBLISH = "publish_address"
_KEY = "datapipes/address/{}/{}"  # part, replica
_MOST_BYTES = 2**24  # of a namebook's file: some 400,000 parts
_STORE_S = 30.0  # for one question to the store
_VARIABLES = ("MASTER_ADDR", "MASTER_PORT")


def is_asked_again(namebook: Any) -> bool:
    """Return True if the addresses in `namebook` may change: if it is a Resolver or "torchrun"."""
    return isinstance(namebook, Resolver) or (isinstance(namebook, str) and namebook == _TORCHRUN)


def addresses_in(where: str, namebook: Any, parts: Iterable[int], timeout: float) -> dict[int, Replicas]:
    """Look up the addresses in a namebook of any kind, and return {part: its Replicas}.

    A dict or file gives all its addresses. A Resolver or "torchrun" is asked for `parts` only, until each of these has
    an address; this may take `timeout` seconds in all.
    """
    if not is_asked_again(namebook):
        return read_namebook(where, namebook)
    return ask_resolver(where, Published(where) if isinstance(namebook, str) else namebook, parts, timeout)


def read_namebook(where: str, namebook: Any, kind: str = "part") -> dict[int, Replicas]:
    """Read and check a namebook that is a mapping, or the path of a JSON file. Return {part: its Replicas}, sorted by
    part.

    The keys in the file are part ids as text. A value is one address, or a list of addresses of servers of this part.

    Args:
        kind: what a key identifies, for error messages: "part" or "receiver".

    Raises:
        TypeError: The namebook is neither a mapping nor a path.
        ValueError: A part or an address is not valid, a server is listed twice, or the file is no JSON object.
        OSError: The file cannot be read.
    """
    forms = _FORMS if kind == "part" else _FILE_FORMS
    if isinstance(namebook, (str, os.PathLike)):
        return _checked(where, _of_file(where, Path(namebook), forms), f"{where}: the namebook {namebook}", kind)
    if not isinstance(namebook, Mapping):
        raise TypeError(f"{where}: namebook must be {forms}; got {shown(namebook)} ({type(namebook).__name__}).")
    return _checked(where, namebook, f"{where}: the namebook", kind)


def check_complete(
    where: str, book: Mapping[int, Replicas], num_parts: int, local_part: int | None = None
) -> dict[int, Replicas]:
    """Check that `book` has addresses of all parts but `local_part`; return {part: its Replicas} of these parts.

    Raises:
        ValueError: A part has no address, or `book` has a part that the partition lacks; the message names the parts.
    """
    unknown = sorted(part for part in book if part >= num_parts)
    if unknown:
        raise ValueError(
            f"{where}: the namebook names part {_listed(unknown)}; the partition has the parts 0 to {num_parts - 1}. "
            "Name only these."
        )
    missing = [part for part in range(num_parts) if part not in book and part != local_part]
    if missing:
        here = "" if local_part is None else f" (part {local_part} is in this process, it needs none)"
        raise ValueError(
            f"{where}: the namebook has no address of part {_listed(missing)}; the partition has the parts 0 to "
            f"{num_parts - 1}{here}. Add the address of each."
        )
    return {part: book[part] for part in range(num_parts) if part in book and part != local_part}


def _of_file(where: str, path: Path, forms: str) -> Mapping[Any, Any]:
    try:
        content = read_regular(path, _MOST_BYTES)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{where}: there is no namebook {path}. A namebook is {forms}. Check the path."
        ) from None
    except ValueError as error:
        raise ValueError(f"{where}: the namebook cannot be read: {error}") from error
    try:
        value = parse_strict(content.decode("utf-8"))
    except ValueError as error:
        raise ValueError(
            f'{where}: the namebook {path} is not valid JSON ({shown(str(error))}). Write {{"0": "host:port", ...}}.'
        ) from error
    if not isinstance(value, dict):
        raise ValueError(
            f'{where}: the namebook {path} must be a JSON object, got {shown(value)}. Write {{"0": "host:port", ...}}.'
        )
    numbers = {key: int(key) if key.isascii() and key.isdigit() and len(key) < 10 else key for key in value}
    return {numbers[key]: addresses for key, addresses in value.items()}


def _checked(where: str, namebook: Mapping[Any, Any], named: str, kind: str) -> dict[int, Replicas]:
    book: dict[int, Replicas] = {}
    for part, value in namebook.items():
        if isinstance(part, bool) or not isinstance(part, int) or not 0 <= part < MOST_PARTS:
            raise ValueError(
                f"{named} has the key {shown(part)}; each key must be the number of one {kind}, an integer in "
                f"[0, {MOST_PARTS}). Replace this key."
            )
        book[part] = replicas_of(where, f"{kind} {part}", value, named)
    parts: dict[Address, int] = {}
    for part, replicas in sorted(book.items()):
        for address in replicas:
            if address in parts:
                raise ValueError(
                    f"{named} has the address {address} for {kind} {parts[address]} and for {kind} {part}; two {kind}s "
                    "cannot have the same address. Start one of the two at another address, and write that address "
                    "for it."
                )
            parts[address] = part
    return dict(sorted(book.items()))


def _listed(parts: Collection[int], most: int = 8) -> str:
    first = ", ".join(str(part) for part in [*parts][:most])
    return first if len(parts) <= most else f"{first} and {len(parts) - most} more"


def publish_address(part: int, address: str, store: Any = None, *, replica: int = 0, moved: bool = False) -> None:
    """Publish the address of a part's server for all clients with the namebook "torchrun".

    Any process that reaches the store may call this, also repeatedly; for example the rank on the server's machine.

    Args:
        part: id of the part.
        address: "host:port", at which the ranks of all machines reach the server; `PartitionServer.start` returns it.
        store: a store of torch.distributed; by default the store of the process group, or if there is none, the store
            of torchrun.
        replica: index of the server among the servers of the part: 0, 1, ... Clients do not see a replica after a gap.
        moved: True if the server was started again at another address. The new address replaces the old one.
    Raises:
        ValueError: `address` is invalid, or another one was published for the part and `moved` is False.
        RuntimeError: There is no store.
    """
    check_int(_PUBLISH, "part", part, 0, MOST_PARTS - 1)
    check_int(_PUBLISH, "replica", replica, 0, MOST_PARTS - 1)
    parsed = parse_address(_PUBLISH, "address", address)
    if parsed.is_any:
        raise ValueError(
            f"{_PUBLISH}: {parsed} stands for all addresses of a machine; no client finds the server there. Publish "
            "the name or the address of its machine."
        )
    known_store, key = _store_of(_PUBLISH, store), _KEY.format(part, replica)
    if check_bool(_PUBLISH, "moved", moved):
        known_store.set(key, str(parsed))
        return
    published = known_store.compare_set(key, "", str(parsed))
    if published != str(parsed).encode():
        raise ValueError(
            f"{_PUBLISH}: two servers publish part {part}: one at {published.decode(errors='replace')}, now one at "
            f"{parsed}. If the server has moved, pass moved=True; if the part has several servers, number them by "
            "replica=."
        )


class Published(Resolver):
    """Resolver for the namebook "torchrun": looks up what `publish_address` has written to a store of
    torch.distributed.

    Raises:
        RuntimeError: There is no store.
    """

    def __init__(self, where: str, store: Any = None) -> None:
        self._store = _store_of(where, store)

    def addresses(self, part: int) -> list[str]:
        texts = list[str]()
        while len(texts) < MOST_PARTS and self._store.check([key := _KEY.format(part, len(texts))]):
            texts.append(self._store.get(key).decode())
        if not texts:
            raise LookupError("no server of the part was published by datapipes.distributed.publish_address")
        return texts

    def __repr__(self) -> str:
        return "the store of torchrun"


def _store_of(where: str, store: Any) -> Any:
    if store is not None:
        return store
    import torch.distributed as dist

    if not dist.is_available():
        raise RuntimeError(f"{where}: this torch has no torch.distributed. Pass a namebook of addresses.")
    if dist.is_initialized():
        return dist.distributed_c10d._get_default_store()
    return _store_of_torchrun(where, dist)


def _store_of_torchrun(where: str, dist: Any) -> Any:
    missing = [name for name in _VARIABLES if not os.environ.get(name)]
    if missing:
        raise RuntimeError(
            f'{where}: the namebook "torchrun" needs a store: there is no process group, and {missing[0]} is not set. '
            "Start with torchrun, or call torch.distributed.init_process_group, or pass a namebook of addresses."
        )
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        raise RuntimeError(
            f"{where}: here rank 0 hosts the store, from init_process_group on. Call "
            "torch.distributed.init_process_group first."
        )
    host, port = (os.environ[name] for name in _VARIABLES)
    check_int(where, "MASTER_PORT", int(port) if port.isdigit() else -1, 1, 65535)
    timeout = datetime.timedelta(seconds=_STORE_S)
    store = dist.TCPStore(host, int(port), None, False, timeout=timeout, wait_for_workers=False)
    # After torchrun has restarted the ranks, clients do not see addresses that were published before.
    return dist.PrefixStore(f"datapipes/attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
