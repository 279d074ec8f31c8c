"""The chains that read graphs and features now, so that nobody changes these inputs meanwhile."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from datapipes.base.checks import shown
from datapipes.chain.stage_base import StageBase
from datapipes.chain.stage_graph import StageGraph


class InputUse(NamedTuple):
    """A chain whose stages read graphs and features now.

    Attributes:
        last: the last stage of the chain.
        run_by: the words of the error that come before the name of `last`, such as "worker processes have a copy of the
            chain that ends in".
        remedy: the sentence of the error that says what to do.
    """

    last: StageBase
    run_by: str
    remedy: str


class InputUser(Protocol):
    """An object that may read graphs and features now: a running epoch, or workers that have copies of stages."""

    def input_use(self) -> InputUse | None:
        """Return the chain that reads now. None: no chain reads."""


_users: set[weakref.ref[InputUser]] = set()  # its operations are atomic, so threads need no lock


def note_user(user: InputUser) -> None:
    """Register `user`, so that `refuse_while_read` asks `user` what it reads, as long as `user` lives."""
    _users.add(weakref.ref(user, _users.discard))


def refuse_while_read(where: str, inputs: Sequence[object]) -> None:
    """Raise RuntimeError if a chain that runs in this process, or for it in workers, reads one of `inputs`."""
    for user in [reference() for reference in _users.copy()]:
        if user is None or (use := user.input_use()) is None:
            continue
        for stage in StageGraph(use.last):
            for text, read in stage.reads_from.items():
                if any(read is changed for changed in inputs):
                    raise RuntimeError(
                        f"{where}: {use.run_by} {shown(use.last)}, and its stage {stage.name} reads the {text}; "
                        f"no chain may read rows that change. {use.remedy}"
                    )
