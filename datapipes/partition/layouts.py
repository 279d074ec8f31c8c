"""Which layouts a folder of a partition holds."""

from __future__ import annotations

from pathlib import Path

from datapipes.partition.pyg.pyg_names import META

MANIFEST = "partition.json"  # here and not beside its reader, which asks for the layouts
_HEADERS = {"native": MANIFEST, "pyg": META}


def layout_of(root: str | Path) -> set[str]:
    """Return what is there of {"native", "pyg"}; nothing if `root` is no folder, or holds something else.

    A layout is there if its header is. Whether its files are whole, is seen when they are opened.
    """
    return {name for name, header in _HEADERS.items() if (Path(root) / header).is_file()}
