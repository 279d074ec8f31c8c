"""The files of an entity: those in its folder whose name matches, by name, and the share of a rank.

Every rank sees the same files in the same order, so the shares are disjoint and together all files.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

from datapipes.base.checks import shown
from datapipes.datasets.tfrecord.info import SerializedTFRecordInfo

_MOST_NAMES = 5  # of other files, in a message
_T = TypeVar("_T")


def files_of(where: str, info: SerializedTFRecordInfo) -> list[Path]:
    """Return the files of an entity, sorted by name.

    Args:
        where: begins the messages.
    Raises:
        FileNotFoundError: There is no such folder, or no file in it matches the pattern.
        OSError: The folder cannot be read.
    """
    folder, pattern = Path(info.folder), re.compile(info.tfrecord_uri_pattern)
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise type(error)(
            f"{where}: the folder {folder} cannot be read ({error.strerror}); a folder of TFRecord files is needed. "
            "Check tfrecord_uri_prefix."
        ) from error
    matching = [folder / name for name in names if pattern.match(name)]
    if not matching:
        found = f"it holds {len(names)} others, such as {shown(names[:_MOST_NAMES])}" if names else "it is empty"
        raise FileNotFoundError(
            f"{where}: no file in {folder} matches the pattern {pattern.pattern!r}; {found}. Check tfrecord_uri_prefix "
            "and tfrecord_uri_pattern."
        )
    return matching


def share_of_rank(files: list[_T], rank: int, world_size: int) -> list[_T]:
    """Return the files of a rank: neighbors in the list; shares differ by at most one, the first ranks have more."""
    size, more = divmod(len(files), world_size)
    begin = rank * size + min(rank, more)
    return files[begin : begin + size + (rank < more)]
