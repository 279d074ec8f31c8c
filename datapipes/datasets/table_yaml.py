"""Read a YAML with the arguments of `from_tables`, so that commands take tables too; paths are relative to the file."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from datapipes.base.checks import shown
from datapipes.datasets.dataset import Dataset
from datapipes.datasets.from_tables import from_tables
from datapipes.datasets.ondisk_yaml import YAML, parse_yaml, without_nulls
from datapipes.datasets.raw import DatasetFormatError, content_of, format_errors
from datapipes.datasets.relbench import MANIFEST
from datapipes.ingest.remote import is_uri

_MOST_BYTES = 2**20
_ARGUMENTS = [name for name in inspect.signature(from_tables).parameters if name != "folder"]


def is_table_yaml(path: Path) -> bool:
    """Return whether a path is a YAML of tables, by its name."""
    return path.suffix in (".yaml", ".yml") and path.name not in (YAML, MANIFEST) and path.is_file()


def read_table_yaml(path: Path, folder: Path | None = None) -> Dataset:
    """Return the Dataset of a YAML that has the arguments of `from_tables`; see there for `folder`.

    Raises:
        DatasetFormatError: The file is no YAML, or has another key than these arguments.
        The errors of from_tables.
    """
    with format_errors(path.name):
        text = content_of(path, _MOST_BYTES)
    with format_errors(path.name, "Correct the file."):
        content = without_nulls(parse_yaml(text))
        if not isinstance(content, dict) or not {"tables"} <= content.keys() <= {*_ARGUMENTS}:
            found = [*content] if isinstance(content, dict) else content
            raise DatasetFormatError.of(
                path.name, shown(found), f"'tables', and any of {_ARGUMENTS[1:]}", "Correct it."
            )
    tables = content.pop("tables")
    if isinstance(tables, dict):
        tables = {name: _beside(path, table) for name, table in tables.items()}
    else:
        tables = _beside(path, tables)
    if isinstance(content.get("split"), list):
        content["split"] = tuple(content["split"])
    return from_tables(tables, **{"name": path.stem, **content}, folder=folder)


def _beside(path: Path, table: Any) -> Any:
    return str(path.parent / table) if isinstance(table, str) and not is_uri(table) else table
