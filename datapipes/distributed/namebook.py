"""Namebooks: where the server of each part is, as the user says it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from datapipes.base.checks import shown
from datapipes.base.strict_json import parse_strict
from datapipes.distributed.address import Address, parse_address
from datapipes.partition.id_maps import MOST_PARTS

TORCHRUN = "torchrun"
_FORMS = '{0: "host:port", 1: ...}, the path of a JSON file of this form, or "torchrun"'


def read_namebook(where: str, namebook: Any) -> dict[int, Address]:
    """Return {part: address} of a mapping or of the path of a JSON file, in the order of the parts.

    The keys of the file are the numbers of parts as text. A list with one address stands for that address.

    Raises:
        TypeError: It has another form.
        ValueError: A part or an address is not valid, a server stands there twice, or the file is no JSON object.
        OSError: The file cannot be read.
    """
    if isinstance(namebook, (str, os.PathLike)):
        return _checked(where, _of_file(where, Path(namebook)), f"{where}: the namebook {namebook}")
    if not isinstance(namebook, Mapping):
        raise TypeError(f"{where}: namebook must be {_FORMS}; got {shown(namebook)} ({type(namebook).__name__}).")
    return _checked(where, namebook, f"{where}: the namebook")


def check_complete(
    where: str, book: Mapping[int, Address], num_parts: int, local_part: int | None = None
) -> dict[int, Address]:
    """Return the addresses of all parts but the local one.

    Raises:
        ValueError: A part has no address, or there is no such part; the message names them.
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
    return {part: book[part] for part in range(num_parts) if part != local_part}


def _of_file(where: str, path: Path) -> Mapping[Any, Any]:
    try:
        value = parse_strict(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{where}: there is no namebook {path}. A namebook is {_FORMS}; the path is of such a file."
        ) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f'{where}: the namebook {path} is not valid JSON ({shown(str(error))}). Write {{"0": "host:port", ...}}.'
        ) from error
    if not isinstance(value, dict):
        raise ValueError(
            f'{where}: the namebook {path} must be a JSON object, got {shown(value)}. Write {{"0": "host:port", ...}}.'
        )
    return {int(key) if key.isascii() and key.isdigit() and len(key) < 10 else key: each for key, each in value.items()}


def _checked(where: str, given: Mapping[Any, Any], named: str) -> dict[int, Address]:
    book: dict[int, Address] = {}
    for part, value in given.items():
        if isinstance(part, bool) or not isinstance(part, int) or not 0 <= part < MOST_PARTS:
            raise ValueError(f"{named} has the key {shown(part)}; keys are the numbers of parts, 0, 1, ... Use these.")
        book[part] = _address(where, part, value, named)
    parts: dict[Address, int] = {}
    for part, address in sorted(book.items()):
        if address in parts:
            raise ValueError(
                f"{named} has {address} for part {parts[address]} and for part {part}; a server has one part. Start "
                "one for each, and name its address."
            )
        parts[address] = part
    return dict(sorted(book.items()))


def _address(where: str, part: int, value: Any, named: str) -> Address:
    if isinstance(value, (list, tuple)) and not isinstance(value, Address):
        if len(value) != 1:
            raise ValueError(
                f"{named} has {len(value)} addresses for part {part}: several replicas of a part are not supported "
                "yet. Give one."
            )
        value = value[0]
    address = parse_address(where, f"the address of part {part}", value)
    if address.is_any:
        raise ValueError(
            f"{named} has {address} for part {part}; a server listens there, but no client finds it there. Give the "
            "name or the address of its machine."
        )
    return address


def _listed(parts: Collection[int], most: int = 8) -> str:
    first = ", ".join(str(part) for part in [*parts][:most])
    return first if len(parts) <= most else f"{first} and {len(parts) - most} more"
