"""The input of the commands: a folder that `graph.save` wrote, or the files of a data set."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from datapipes import datasets
from datapipes.cli.command import WrongUsage
from datapipes.datasets import Dataset
from datapipes.datasets.ondisk_graph import AnyGraph
from datapipes.datasets.opening import UnknownFormat
from datapipes.graph.saved import is_saved_graph, open_graph
from datapipes.partition.layouts import layout_of


def add_input(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    """Add the argument `name` for the input, and the options of data sets, to a parser."""
    parser.add_argument(name, metavar=name.upper(), help=text)
    add = parser.add_argument_group("options of data sets, see datapipes.datasets.open").add_argument
    add("--split", type=int, metavar="N", help="number of the split in the files")
    add("--normalize-features", action="store_true", help="divide each row of a bag of words by its sum")
    add("--largest-component", action="store_true", help="keep the largest connected component only")
    inverse = "add the inverse of each relation; default: as the format has it"
    add("--inverse-relations", action=argparse.BooleanOptionalAction, help=inverse)
    add("--columns", metavar="NAMES", help="columns of a list of edges in text, such as src,dst,time")


def open_dataset(path: Path, arguments: argparse.Namespace, *, also: str = "") -> Dataset:
    """Return the data set at `path`, opened with the options that were given.

    Args:
        also: other inputs that the command reads, for the error message.
    Raises:
        WrongUsage: `path` is a partition, or is in one.
        ValueError: No file at `path` has a known format.
        The other errors of `datasets.open`.
    """
    try:
        return datasets.open(path, **_options(arguments))
    except UnknownFormat as error:
        _refuse_partition(path)
        raise ValueError(f"{error} Also read: {also}." if also else str(error)) from error


def open_input(path: Path, arguments: argparse.Namespace) -> AnyGraph | Dataset:
    """Open `path`, and return the saved graph or the data set there."""
    if not is_saved_graph(path):
        return open_dataset(path, arguments, also="a folder that graph.save wrote")
    refuse_options(path, "a saved graph", arguments)
    return open_graph(path)


def _refuse_partition(path: Path) -> None:
    """Raise WrongUsage if `path` is a partition, or a folder in one."""
    folder = path.resolve()
    if layout_of(folder):
        raise WrongUsage(
            f"{path} is a partition already. Give its source instead: a folder that graph.save wrote, or a data set."
        )
    if folder.parent != folder and layout_of(folder.parent):
        folder_text = "the folder of a part" if re.fullmatch("part_?[0-9]+", folder.name) else "a folder"
        raise WrongUsage(
            f"{path} is {folder_text} of the partition {folder.parent}; alone it is no input. Run `datapipes inspect "
            f"{folder.parent}` to describe the partition. Other commands need the graph or data set it was made from."
        )


def refuse_options(path: Path, content: str, arguments: argparse.Namespace) -> None:
    """Raise WrongUsage if an option of data sets was given, although `path` is none: it holds `content`."""
    if options := _options(arguments):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in options)
        raise WrongUsage(f"{names}: only for data sets; {path} holds {content}. Leave out {names}.")


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return {argument of `datasets.open`: value} of the options of data sets that were given."""
    options = {
        "split": arguments.split,
        "normalize_features": arguments.normalize_features or None,
        "largest_component": arguments.largest_component or None,
        "inverse_relations": arguments.inverse_relations,
        "columns": arguments.columns and tuple(arguments.columns.split(",")),
    }
    return {name: value for name, value in options.items() if value is not None}
