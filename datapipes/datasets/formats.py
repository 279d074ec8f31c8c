"""Recognise the files of a data set by their names, and call the reader of their format.

Invariant: what an argument asks for is done by the reader, or refused here; it is never ignored.
"""

from __future__ import annotations

from pathlib import Path

from datapipes.datasets.edge_lists import edge_list_in, read_edge_list
from datapipes.datasets.heco import is_heco, read_heco
from datapipes.datasets.npz import read_npz
from datapipes.datasets.ogb import is_ogb, read_ogb
from datapipes.datasets.planetoid import read_planetoid
from datapipes.datasets.raw import RawDataset
from datapipes.datasets.raw_hetero import RawHeteroDataset
from datapipes.datasets.rdf import is_rdf, read_rdf

_KNOWN = (
    "ind.* files (Planetoid), an .npz, raw/ and split/ (OGB), an .nt or .nt.gz (RDF), pa.txt, ps.txt, p_feat.npz and "
    "labels.npy (ACM), or one .txt, .txt.gz, .csv or .csv.gz (a temporal edge list)"
)


class UnknownFormat(ValueError):
    """No file at the path is of a known format."""


def read_files(
    where: Path, split: int, normalize_features: bool, inverse_relations: bool | None
) -> RawDataset | RawHeteroDataset:
    """Return the arrays of the data set at `where`; the arguments are those of `datasets.open`."""
    if not where.exists():
        raise FileNotFoundError(f"datasets.open: {where} does not exist; a folder or a file is needed. Check the path.")
    found = _read_typed(where, split, normalize_features, inverse_relations)
    if found is not None:
        return found
    edge_list = edge_list_in(where)
    archives = sorted(where.glob("*.npz")) if where.is_dir() else [where] if edge_list is None else []
    is_planetoid = where.is_dir() and any(where.glob("ind.*"))
    if inverse_relations is not None and (is_planetoid or archives or edge_list is not None):
        raise ValueError(
            f"datasets.open: inverse_relations={inverse_relations} is for RDF, ACM and OGB; {where} holds other files. "
            "Leave it out."
        )
    if is_planetoid:
        _refuse_split(where, split)
        return read_planetoid(where, normalize_features=normalize_features)
    if archives:
        return _read_npz(_one_archive(where, archives), split, normalize_features)
    if edge_list is not None:
        _refuse_split(where, split)
        _refuse_normalizing(where, normalize_features)
        return read_edge_list(edge_list)
    raise UnknownFormat(
        f"datasets.open: {where} holds none of these: {_KNOWN}. Check the path, or name the file itself."
    )


def _read_typed(
    where: Path, split: int, normalize_features: bool, inverse_relations: bool | None
) -> RawHeteroDataset | None:
    """Read RDF, ACM and OGB; return None if the files are of another format."""
    if is_heco(where):
        _refuse_normalizing(where, normalize_features)
        return read_heco(where, split, inverse_relations=inverse_relations is not False)
    if is_ogb(where):
        _refuse_split(where, split)
        _refuse_normalizing(where, normalize_features)
        return read_ogb(where, inverse_relations=inverse_relations)
    if is_rdf(where):
        _refuse_split(where, split)
        _refuse_normalizing(where, normalize_features)
        return read_rdf(where, inverse_relations=inverse_relations is not False)
    return None


def _refuse_split(where: Path, split: int) -> None:
    if split != 0:
        raise IndexError(f"datasets.open: {where} holds one split, so split must be 0, got {split}. Leave it out.")


def _refuse_normalizing(where: Path, normalize_features: bool) -> None:
    if normalize_features:
        raise ValueError(
            f"datasets.open: normalize_features=True is for bags of words (gnn-benchmark and Planetoid files); {where} "
            "holds others. Leave it out."
        )


def _one_archive(where: Path, archives: list[Path]) -> Path:
    own = [archive for archive in archives if archive.stem == where.name]
    if len(archives) != 1 and len(own) != 1:
        raise ValueError(
            f"datasets.open: {where} holds {[archive.name for archive in archives]} and no ind.* files; Planetoid "
            "files or one .npz are needed. Name the .npz itself."
        )
    return (own or archives)[0]


def _read_npz(path: Path, split: int, normalize_features: bool) -> RawDataset:
    raw = read_npz(path, normalize_features=normalize_features)
    if raw.split is not None and split != 0:
        raw = read_npz(path, split, normalize_features=normalize_features)
    return raw
