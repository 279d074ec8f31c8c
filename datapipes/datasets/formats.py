"""The formats of data sets: how each is recognised by the names of its files, what reads it, which arguments it takes.

Invariant: what an argument asks for is done by the reader, or refused here; it is never ignored.
"""

from __future__ import annotations

import shlex
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datapipes.datasets.dataset import Dataset
from datapipes.datasets.edge_lists import edge_list_in, read_edge_list
from datapipes.datasets.heco import is_heco, read_heco
from datapipes.datasets.npz import npz_in, read_split_of_npz
from datapipes.datasets.ogb import is_ogb, read_ogb
from datapipes.datasets.ondisk import is_ondisk, read_ondisk
from datapipes.datasets.planetoid import is_planetoid, read_planetoid
from datapipes.datasets.raw import DatasetFormatError, RawDataset
from datapipes.datasets.raw_hetero import RawHeteroDataset
from datapipes.datasets.rdf import is_rdf, read_rdf
from datapipes.ingest.edge_chunks import PAIRS
from datapipes.ingest.table_files import TABLES

SPLIT, INVERSE, NORMALIZE, COLUMNS = "split", "inverse_relations", "normalize_features", "columns"
LARGEST = "largest_component"  # of a RawDataset: `datasets.open` cuts it out itself


@dataclass(frozen=True)
class Format:
    """A format.

    Attributes:
        name, files: for messages.
        recognise: whether a path, a folder or a file, is of this format.
        read: gives the arrays, or the whole Dataset; called with the path and the arguments in `takes`, by name.
        takes: the arguments of `datasets.open` that it does not refuse.
    """

    name: str
    files: str
    recognise: Callable[[Path], object]
    read: Callable[..., RawDataset | RawHeteroDataset | Dataset]
    takes: tuple[str, ...] = ()


_NPZ = Format(".npz", "an .npz", npz_in, read_split_of_npz, (SPLIT, NORMALIZE, LARGEST))
FORMATS = (  # the first that recognises a path reads it
    Format("Planetoid", "ind.* files (Planetoid)", is_planetoid, read_planetoid, (NORMALIZE, LARGEST)),
    Format("metadata.yaml", "metadata.yaml (GraphBolt), edges and nodes in tables or .npy", is_ondisk, read_ondisk),
    Format("RDF", "an .nt or .nt.gz (RDF)", is_rdf, read_rdf, (INVERSE,)),
    Format("ACM", "pa.txt, ps.txt, p_feat.npz and labels.npy (ACM)", is_heco, read_heco, (SPLIT, INVERSE)),
    Format("OGB", "raw/ and split/ (OGB)", is_ogb, read_ogb, (INVERSE,)),
    _NPZ,
    Format(
        "edge list", "one .txt, .txt.gz, .csv or .csv.gz (a list of edges)", edge_list_in, read_edge_list, (COLUMNS,)
    ),
)
_LINES = {  # what reads files of other kinds, by their suffixes; {0} is the path
    **dict.fromkeys((".mtx", ".mtx.gz"), "dp.CSCGraph.from_scipy(scipy.io.mmread({0!r}))"),
    **{f".{name}": f"dp.CSCGraph.from_networkx(networkx.read_{name}({{0!r}}))" for name in ("graphml", "gexf", "gml")},
    ".pt": "data = torch.load({0!r}); dp.datasets.Dataset.from_pyg takes PyG's Data",
    **dict.fromkeys((*TABLES, *PAIRS, ".npy"), "datapipes build OUT --edges {1} --nodes NUM_NODES"),
}


class UnknownFormat(DatasetFormatError):
    """No file at the path is of a known format."""


def read_files(where: Path, arguments: dict[str, Any]) -> RawDataset | RawHeteroDataset | Dataset:
    """Return the data set at `where`, or its arrays; the arguments are those of `datasets.open`, by name."""
    if not where.exists():
        raise FileNotFoundError(f"datasets.open: {where} does not exist; a folder or a file is needed. Check the path.")
    found = next((each for each in FORMATS if each.recognise(where)), None)
    if found is None and where.suffix != ".pt" and where.is_file() and zipfile.is_zipfile(where):
        found = _NPZ  # under another name
    if found is None:
        *first, last = (each.files for each in FORMATS)
        what = "holds none" if where.is_dir() else "is none"
        raise UnknownFormat(f"datasets.open: {where} {what} of these: {', '.join(first)}, or {last}. {_remedy(where)}")
    for name in (INVERSE, SPLIT, NORMALIZE, LARGEST, COLUMNS):
        if name not in found.takes:
            _refuse(where, name, arguments[name])
    return found.read(where, **{name: arguments[name] for name in found.takes if name != LARGEST})


def _remedy(where: Path) -> str:
    """Return the line that reads a file of another kind, or the only one in a folder; else what to look at."""
    lines = []
    for file in where.iterdir() if where.is_dir() else [where]:
        suffix = max((each for each in _LINES if file.name.endswith(each)), key=len, default="")
        lines += [_LINES[suffix].format(str(file), shlex.quote(str(file)))] if suffix else []
    if len(lines) == 1:
        return f"Read it by: {lines[0]}."
    return "Name the file itself." if where.is_dir() else "Convert it to one of these."


def _refuse(where: Path, name: str, value: object) -> None:
    """Refuse an argument that is set, for files of a format that does not take it."""
    if name == SPLIT:
        if value != 0:
            raise IndexError(f"datasets.open: {where} holds one split, so split must be 0, got {value}. Leave it out.")
    elif value or (name == INVERSE and value is not None):
        *first, last = (each.name for each in FORMATS if name in each.takes)
        of = f"{', '.join(first)} and {last}"
        kind = {
            INVERSE: f"{of}; {where} holds other files",
            NORMALIZE: f"bags of words (gnn-benchmark and Planetoid files); {where} holds others",
            LARGEST: f"{of} files; {where} holds others",
            COLUMNS: f"a list of edges in text; {where} holds other files",
        }[name]
        raise ValueError(f"datasets.open: {name}={value} is for {kind}. Leave it out.")
