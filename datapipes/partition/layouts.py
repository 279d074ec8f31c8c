"""layout_of: says which layouts of a partition, native or PyG's, a folder holds."""

from __future__ import annotations

import re
from pathlib import Path

from datapipes.base.folder import Replaceable
from datapipes.partition.pyg.pyg_names import META

MANIFEST = "partition.json"  # defined here, since the module that reads it imports this one
_HEADERS = {"native": MANIFEST, "pyg": META}
_FILES = re.compile(rf"{re.escape(MANIFEST)}|{re.escape(META)}|(node|edge)_map\.pt")
_FOLDERS = {
    re.compile(r"book"): re.compile(r"book\.json|arrays\.npy"),
    re.compile(r"(node|edge)_map"): re.compile(r".+\.pt", re.DOTALL),
    re.compile(r"part_?\d+"): re.compile(r"part\.json|arrays\.npy|(graph|node_feats|edge_feats)\.pt"),
}


def layout_of(root: str | Path) -> set[str]:
    """Return the layouts that the folder `root` holds: a set of "native" and "pyg".

    The set is empty if `root` holds neither, or is no folder. Only the header file of each layout is looked for. Other
    files are checked when they are opened.
    """
    return {name for name, header in _HEADERS.items() if (Path(root) / header).is_file()}


def _not_of_a_partition(root: Path) -> str | None:
    """Return the first entry of the folder `root` that belongs to no partition, as a path within `root`.

    None: every entry may belong to a partition. If `root` has no header file of a partition, its first entry is
    returned. The caller replaces a folder only if it holds nothing but a partition.
    """
    names = sorted(entry.name for entry in root.iterdir())
    if names and not set(names) & {*_HEADERS.values()}:
        return names[0]
    return next((path for name in names for path in _foreign(root / name)), None)


def _foreign(entry: Path) -> list[str]:
    if entry.is_symlink() or not entry.is_dir():
        fits = _FILES.fullmatch(entry.name) is not None and not entry.is_symlink()
        return [] if fits else [entry.name]
    files = next((files for folder, files in _FOLDERS.items() if folder.fullmatch(entry.name)), None)
    if files is None:
        return [entry.name]
    return sorted(
        f"{entry.name}/{file.name}"
        for file in entry.iterdir()
        if files.fullmatch(file.name) is None or file.is_symlink() or file.is_dir()
    )


PARTITION = Replaceable(_not_of_a_partition, (*_HEADERS.values(),))
