"""Read a data set of the Open Graph Benchmark from its extracted folder of CSV files: raw/ and split/.

Without types, raw/ has edge.csv.gz (rows "source,destination"), num-node-list.csv.gz and num-edge-list.csv.gz, and
perhaps node-feat, edge-feat, node_NAME, edge_NAME and node-label, all .csv.gz. With types it has triplet-type-list and
num-node-dict, and folders relations/SRC___REL___DST, node-feat/TYPE and node-label/TYPE with such files. A folder
split/NAME has train, valid and test: .csv.gz with ids of nodes, with types in a folder for each type, or edges that
torch saved. ogb_graph.py reads the graph, ogb_nodes.py, ogb_links.py and ogb_triples.py read the items. What OGB keeps
in its package, and not in the files, comes from ogb_settings.py.

Refused with `DatasetFormatError`: files that are truncated, corrupt or hostile, that do not fit each other or the
settings, and folders with several graphs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from datapipes.datasets.ogb_graph import Rows, check_name, read_plain, read_types
from datapipes.datasets.ogb_links import read_link_split
from datapipes.datasets.ogb_nodes import read_node_split
from datapipes.datasets.ogb_settings import MASTER, settings_of
from datapipes.datasets.ogb_triples import read_triple_split
from datapipes.datasets.raw import DatasetFormatError
from datapipes.datasets.raw_hetero import RawHeteroDataset, RawItems, inverse_of, with_inverses


def is_ogb(folder: Path) -> bool:
    """Return whether the folder is one of OGB."""
    return (folder / "raw").is_dir() and (folder / "split").is_dir()


def read_ogb(folder: Path, *, inverse_relations: bool | None = None) -> RawHeteroDataset:
    """Read a data set in OGB's layout.

    Args:
        folder: Holds raw/ and split/, and perhaps OGB's master.csv.
        inverse_relations: Add the inverse of each edge, or, with types, of each relation; None for what the settings
            say.
    Returns:
        The feature "feat" of node-feat and edge-feat, and NAME of node_NAME and edge_NAME: int64 if all numbers of the
        file are whole, else float32, [n, width] as in the file. Without types, edge i of the file is edge i, or with
        inverse edges edge 2i, and 2i + 1 is its inverse, as OGB numbers them. Items are in the order of the files;
        labels of one column are int64 [n], of more columns int64 [n, k]. Links have labels 1 and 0 in validation and
        test, and none in train; with types they are by edge type.
    Raises:
        FileNotFoundError: A file is missing.
        DatasetFormatError: A file is broken or hostile, or the files do not fit each other.
    """
    settings = settings_of(folder)
    raw = folder / "raw"
    is_hetero = (raw / "triplet-type-list.csv.gz").exists()
    if settings.is_hetero is not None and settings.is_hetero != is_hetero:
        found = f"'is hetero' {settings.is_hetero}"
        raise DatasetFormatError.of(MASTER, found, f"{is_hetero}, as the files in {raw} are")
    inverse = settings.add_inverse_edge if inverse_relations is None else inverse_relations
    num_nodes, edges, node_features, edge_features = (read_types if is_hetero else read_plain)(raw, settings)
    split_folder = _split_folder(folder / "split", settings.split)
    has_labels = (raw / ("nodetype-has-label.csv.gz" if is_hetero else "node-label.csv.gz")).exists()
    if has_labels:
        split, num_classes = read_node_split(raw, split_folder, num_nodes, settings.num_classes)
    else:
        split, num_classes = _read_links(split_folder, edges, edge_features, num_nodes), 0
    if inverse:
        edges, edge_features = _inverted(edges, edge_features)
    return RawHeteroDataset(
        name=settings.name,
        num_nodes=num_nodes,
        edges=edges,
        node_features=node_features,
        edge_features=edge_features,
        task="node_classification" if has_labels else "link_prediction",
        split=(split[0], split[1], split[2]),
        class_names=tuple(map(str, range(num_classes))),
    )


def _read_links(
    folder: Path, edges: dict[Any, np.ndarray], edge_features: Rows, num_nodes: dict[Any, int]
) -> tuple[dict[Any, RawItems], ...]:
    if None in edges:
        parts = read_link_split(folder, np.ascontiguousarray(edges[None].T), num_nodes[None])
        return tuple({None: part} for part in parts)
    return tuple(read_triple_split(folder, list(edges), edge_features, num_nodes))


def _split_folder(folder: Path, name: str | None) -> Path:
    """Return the folder with the files of the split: the one of that name, the only one, or `folder` itself."""
    if name is not None:
        check_name(MASTER, name)
        if (folder / name).is_dir():
            return folder / name
    inside = sorted(path for path in folder.iterdir() if path.is_dir())
    files = [path for path in folder.iterdir() if path.is_file()]
    if files and not inside:
        return folder
    if len(inside) != 1 or name is not None:
        wanted = "one folder" if name is None else f"the folder {name!r}"
        raise DatasetFormatError.of(str(folder), f"the folders {[path.name for path in inside]}", wanted)
    return inside[0]


def _inverted(edges: dict[Any, np.ndarray], features: Rows) -> tuple[dict[Any, np.ndarray], Rows]:
    """Add the inverse of each edge; without types it follows its edge."""
    if None not in edges:
        both = with_inverses(edges)
        return both, {**features, **{(inverse_of(of_type), name): rows for (of_type, name), rows in features.items()}}
    ends = edges[None]
    doubled = np.stack([ends, ends[::-1]], axis=2).reshape(2, -1)
    return {None: doubled}, {key: np.repeat(rows, 2, axis=0) for key, rows in features.items()}
