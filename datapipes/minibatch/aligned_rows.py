"""Comparing rows with what they stand for, and the errors about those that do not fit."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from datapipes.minibatch.block import Block


class Named(Protocol):
    """What can be named in an error: a stage, which makes its name when it is asked for it."""

    @property
    def name(self) -> str: ...


def compare(stage: Named, path: tuple[Any, ...], rows: Any, count: int, of: str) -> None:
    """Refuse `rows` of another length; `path` leads to it: a field, and keys in it."""
    if not isinstance(rows, Tensor):
        raise no_tensor(stage, path, rows)
    if length_of(rows) != count:
        raise misaligned(stage, path, rows, f"{count} {of}")


def length_of(rows: Tensor) -> int:
    """Return the number of rows; -1 if it is no list of rows at all."""
    shape = rows.shape
    return shape[0] if shape else -1


def misaligned(stage: Named, path: tuple[Any, ...], found: object, expected: str) -> ValueError:
    """Return the error for rows that are not as many as what they belong to."""
    shown = list(found.shape) if isinstance(found, Tensor) else found
    return ValueError(
        f"{stage.name}: returned a minibatch whose {name_of(path)} ({shown}) and {expected} do not belong "
        "together; they must have one row for each. Change both in the same replace(), or set the one that no longer "
        "fits to None."
    )


def name_of(path: tuple[Any, ...]) -> str:
    """Return a path as it is written in Python: labels['paper']."""
    return str(path[0]) + "".join(f"[{key!r}]" for key in path[1:])


def no_tensor(stage: Named, path: tuple[Any, ...], found: object) -> TypeError:
    """Return the error for rows that are no tensor."""
    return TypeError(
        f"{stage.name}: returned a minibatch whose {name_of(path)} is a {type(found).__name__}; a tensor is needed. "
        "Convert it: torch.as_tensor(...)."
    )


def check_is(stage: Named, path: tuple[Any, ...], found: object, wanted: type) -> None:
    """Refuse a Block where a dict by type belongs, or the other way round; such a minibatch mixes both forms."""
    if not isinstance(found, wanted):
        needed = {Block: "a Block", dict: "a dict by type"}[wanted]
        raise TypeError(
            f"{stage.name}: returned a minibatch whose {name_of(path)} is a {type(found).__name__}; {needed} is "
            "needed, since a minibatch has types in all of its fields or in none. Give all fields the same form."
        )
