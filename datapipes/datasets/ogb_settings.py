"""What OGB's package knows about a data set beyond its files: the settings of its master.csv.

They come from, in this order:

1. a file master.csv in the folder of the data set, in OGB's layout: a column for each data set, a row for each setting;
2. `PUBLISHED`, the settings of OGB's own data sets, by the name of the folder or in its release note;
3. the folder alone: the graph has types if the files name some, the split is the only one, edges stay as they are.

Refused with `DatasetFormatError`: a master.csv that is broken, contradicts the files, or asks for what is not read here
(binary files, other tasks than classification of nodes and prediction of links).
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

from datapipes.base.checks import shown
from datapipes.datasets.raw import MAX_CLASSES, DatasetFormatError, content_of

MASTER = "master.csv"
PARTS = ("train", "valid", "test")  # of a split, as the files are named
MAX_BYTES = 2**20  # of master.csv and of a release note


@dataclass(frozen=True)
class OgbSettings:
    """The settings of one data set.

    Args:
        name: The name of the data set.
        add_inverse_edge: The files hold each undirected edge once; the graph has both directions.
        split: The name of the split, a folder in split/; None if nothing names one.
        num_classes: None if nothing says how many.
        is_hetero: Whether the graph has types; None if nothing says so.
        node_files, edge_files: Further features that must be there, such as node_year; None for those that are there.
    """

    name: str
    add_inverse_edge: bool = False
    split: str | None = None
    num_classes: int | None = None
    is_hetero: bool | None = None
    node_files: tuple[str, ...] | None = None
    edge_files: tuple[str, ...] | None = None


# As published in OGB's two files master.csv; only data sets of which the files are CSV.
PUBLISHED = {
    settings.name: settings
    for settings in (
        OgbSettings("ogbn-proteins", True, "species", 2, False),
        OgbSettings("ogbn-products", True, "sales_ranking", 47, False),
        OgbSettings("ogbn-arxiv", False, "time", 40, False),
        OgbSettings("ogbn-mag", False, "time", 349, True),
        OgbSettings("ogbl-ppa", True, "throughput", None, False),
        OgbSettings("ogbl-collab", True, "time", None, False),
        OgbSettings("ogbl-ddi", True, "target", None, False),
        OgbSettings("ogbl-citation2", False, "time", None, False),
        OgbSettings("ogbl-biokg", False, "random", None, True),
    )
}
_FOLDERS = {"ppassoc": "ogbl-ppa", "citation-v2": "ogbl-citation2"}  # what OGB's archives call these folders
_TASKS = ("multiclass classification", "binary classification", "link prediction", "KG completion")


def settings_of(folder: Path) -> OgbSettings:
    """Return the settings of the data set in `folder`.

    Raises:
        DatasetFormatError: master.csv is broken, or has no column for this data set.
    """
    names = [folder.resolve().name.lower().replace("_", "-"), *_names_in_release_note(folder)]
    if (folder / MASTER).exists():
        return _from_master(folder / MASTER, names)
    for name in names:
        for known in (name, f"ogbn-{name}", f"ogbl-{name}", _FOLDERS.get(name, "")):
            if known in PUBLISHED:
                return PUBLISHED[known]
    return OgbSettings(names[0])


def _names_in_release_note(folder: Path) -> list[str]:
    names = []
    for note in sorted(folder.glob("RELEASE_v*.txt")):
        text = content_of(note, MAX_BYTES).decode("utf-8", "replace")
        names += re.findall(r"\bogb[nl]-[a-z0-9]+\b", text)
    return names


def _from_master(path: Path, names: list[str]) -> OgbSettings:
    try:
        rows = list(csv.reader(content_of(path, MAX_BYTES).decode("utf-8").splitlines(), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DatasetFormatError.of(path.name, f"broken CSV ({str(error)[:200]})", "OGB's master.csv") from error
    if not rows or any(len(row) != len(rows[0]) for row in rows) or len({row[0] for row in rows}) != len(rows):
        raise DatasetFormatError.of(path.name, "rows of several lengths or of one name", "a table, each setting once")
    columns = rows[0][1:]
    known = set(columns)
    chosen = [name for name in names if name in known] or (columns if len(columns) == 1 else [])
    if not chosen:
        remedy = "Name the folder as the data set."
        raise DatasetFormatError.of(path.name, f"the data sets {shown(columns)}", f"one of {shown(names)}", remedy)
    values = {row[0]: row[1 + columns.index(chosen[0])] for row in rows[1:]}
    task = values.get("task type", _TASKS[0])
    if task not in _TASKS:
        raise DatasetFormatError.of(path.name, f"the task type {task[:80]!r}", f"one of {_TASKS}")
    if _flag(path, values, "binary"):
        raise DatasetFormatError.of(path.name, "binary files", "CSV files", "Write them as CSV.")
    classes = values.get("num classes", "")
    if classes and not (classes.isascii() and classes.isdigit() and len(classes) < 8 and int(classes) <= MAX_CLASSES):
        raise DatasetFormatError.of(path.name, f"{classes[:20]!r} classes", f"a number up to {MAX_CLASSES}")
    return OgbSettings(
        name=chosen[0],
        add_inverse_edge=_flag(path, values, "add_inverse_edge") or False,
        split=values.get("split") or None,
        num_classes=int(classes) if classes else None,
        is_hetero=_flag(path, values, "is hetero"),
        node_files=_files(path, values, "additional node files", "node_"),
        edge_files=_files(path, values, "additional edge files", "edge_"),
    )


def _flag(path: Path, values: dict[str, str], key: str) -> bool | None:
    text = values.get(key, "")
    if text not in ("True", "False", ""):
        raise DatasetFormatError.of(path.name, f"{text[:20]!r} for {key!r}", "True or False")
    return {"True": True, "False": False, "": None}[text]


def _files(path: Path, values: dict[str, str], key: str, prefix: str) -> tuple[str, ...] | None:
    text = values.get(key, "")
    if not text:
        return None
    files = () if text == "None" else tuple(text.split(","))
    wrong = [file for file in files if not re.fullmatch(rf"{prefix}\w+", file)]
    if wrong:
        raise DatasetFormatError.of(path.name, f"the file {wrong[0][:80]!r}", f"names that begin with {prefix}")
    return files
