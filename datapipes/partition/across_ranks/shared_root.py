"""One folder for the ranks of a machine, or of a disk that they share: it appears whole or not at all.

Ranks that see the same folder elect the lowest of them, which makes and renames it (base/folder.py). Where each
machine has a disk of its own, each gets a folder with the parts of its ranks.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from datapipes.base.folder import new_beside, new_folder, room_told
from datapipes.partition.across_ranks.exchange import Exchange
from datapipes.partition.layouts import PARTITION


class SharedRoot(NamedTuple):
    """The hidden folder that is to become the root.

    Attributes:
        folder: where this rank writes its part.
        leaders: of each rank the one that makes its folder.
    """

    folder: Path
    leaders: list[int]


@contextmanager
def shared_root(ranks: Exchange, path: Path, num_bytes: Callable[[list[int]], int]) -> Iterator[SharedRoot]:
    """Give the ranks their folder; when the block ends without an error on its leader, it becomes `path`.

    The caller sees to it that all ranks have written before the leader leaves the block.

    Args:
        path: as `check_root` returns it.
        num_bytes: about what the given ranks will write.
    Raises:
        FileNotFoundError: This rank does not see the folder that its leader has made.
        Others: those of `new_folder`, on the leader.
    """
    leaders = _leaders(ranks, path)
    mine, hidden = leaders[ranks.rank], new_beside(path)
    members = [rank for rank, leader in enumerate(leaders) if leader == mine]
    is_leader = mine == ranks.rank
    with (
        new_folder(ranks.where, path, num_bytes(members), replaced=PARTITION)
        if is_leader
        else nullcontext(hidden) as folder
    ):
        if is_leader:
            _clear_marks(path)
        try:
            with room_told(ranks.where, path):
                ranks.vote()
                if not folder.is_dir():
                    raise FileNotFoundError(
                        f"{ranks.where}: {folder}, which rank {mine} has made, is not there for rank {ranks.rank}. "
                        "Choose a folder on a disk that shows all ranks the same, or one on each machine."
                    )
                yield SharedRoot(folder, leaders)
        except FileNotFoundError:
            ranks.look()  # a leader that failed has removed it
            raise
        except BaseException as error:
            ranks.tell_failure(error)  # before the folder goes, which another rank might notice first
            raise


def _leaders(ranks: Exchange, path: Path) -> list[int]:
    """Return of each rank the lowest one that sees the same place. Each rank puts a mark there, and looks for others.

    A mark is a new name each time, so no disk remembers that it was missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    mark = path.parent / f"{_mark(path)}{secrets.token_hex(8)}"
    try:
        mark.touch()
        names = ranks.gather(mark.name)
        seen = (rank for rank, each in enumerate(names) if (path.parent / each).exists())
        return ranks.gather(next(seen, ranks.rank))  # after it nobody looks any more
    finally:
        mark.unlink(missing_ok=True)


def _clear_marks(path: Path) -> None:
    """Remove what ranks have left that were killed while they elected a leader. The holder of the lock does it."""
    for each in path.parent.iterdir():
        if each.name.startswith(_mark(path)):
            each.unlink(missing_ok=True)


def _mark(path: Path) -> str:
    return f".{path.name}.datapipes-rank-"
