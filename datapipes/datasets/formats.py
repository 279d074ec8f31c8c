"""The formats of data sets: how each is recognised by the names of its files, what reads it, which arguments it takes.

Invariant: what an argument asks for is done by the reader, or refused here; it is never ignored.
"""

from __future__ import annotations

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
from datapipes.datasets.raw import RawDataset
from datapipes.datasets.raw_hetero import RawHeteroDataset
from datapipes.datasets.rdf import is_rdf, read_rdf

SPLIT, INVERSE, NORMALIZE = "split", "inverse_relations", "normalize_features"
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
    Format("edge list", "one .txt, .txt.gz, .csv or .csv.gz (a temporal edge list)", edge_list_in, read_edge_list),
)


class UnknownFormat(ValueError):
    """No file at the path is of a known format."""


def read_files(where: Path, arguments: dict[str, Any]) -> RawDataset | RawHeteroDataset | Dataset:
    """Return the data set at `where`, or its arrays; the arguments are those of `datasets.open`, by name."""
    if not where.exists():
        raise FileNotFoundError(f"datasets.open: {where} does not exist; a folder or a file is needed. Check the path.")
    others = None if where.is_dir() else _NPZ  # a file of another name is taken for one
    found = next((each for each in FORMATS if each.recognise(where)), others)
    if found is None:
        *first, last = (each.files for each in FORMATS)
        raise UnknownFormat(
            f"datasets.open: {where} holds none of these: {', '.join(first)}, or {last}. Check the path, or name the "
            "file itself."
        )
    for name in (INVERSE, SPLIT, NORMALIZE, LARGEST):
        if name not in found.takes:
            _refuse(where, name, arguments[name])
    return found.read(where, **{name: arguments[name] for name in found.takes if name != LARGEST})


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
        }[name]
        raise ValueError(f"datasets.open: {name}={value} is for {kind}. Leave it out.")
