"""Read the embedded data set, the graph of Debian's packages; it needs no download.

Two files beside this module were made by one run of tools/make_debian_packages.py. That script defines nodes, edges,
words, classes and split. It also lists the fields of a package that were left out because they reveal its archive
section, which is its label. `debian_packages.npz` has the packages and their dependencies. It is read as a
`RawDataset`, and the caller chooses the direction of the edges. `debian_relations.npz` adds all other relations; both
files together are a heterogeneous graph of the same packages.

Invariant: equal calls return equal, new arrays; packages, words, labels and split are the same in both graphs. A
direction outside `DIRECTIONS` raises ValueError. `DatasetFormatError` is raised if a file is damaged or has another
format, if the two files are of different runs, or if the packages of one source package are in two parts of the split.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files

import numpy as np

from datapipes.base.checks import shown
from datapipes.base.types import EdgeType, NodeType
from datapipes.datasets.npz import NpzArrays
from datapipes.datasets.raw import DatasetFormatError, RawDataset, checked_labels, csr_ids, dense_rows, simple_edges
from datapipes.datasets.raw_hetero import RawHeteroDataset, labelled_items, with_inverses

DIRECTIONS = ("both", "depends", "reverse")
FILE = "debian_packages.npz"
DEPENDS, REVERSE = 1, 2  # bits of the edge feature "direction"

_PACKAGES_FORMAT = "datapipes debian packages 1"
REMEDY = "Make it again with tools/make_debian_packages.py."


def read_debian_packages(direction: str = "both") -> RawDataset:
    """Read the embedded graph of Debian's packages.

    The task is to predict the archive section of a package, such as libs.

    Args:
        direction: The sources of a package's in-edges: "depends", the packages it depends on; "reverse", the packages
            that depend on it; "both", the union of the two.
    Returns:
        Edges are sorted by (destination, source), without repeats and self loops. The node feature "feat" is
        uint8[num_nodes, num_words], 1 for each word of the description, about 140 MB. The node feature "words" is
        int16[num_nodes, max_words], the ids of these words in ascending order, padded with num_words, as for an
        embedding with padding_idx=num_words.

        The edge feature "direction" is uint8[num_edges]: its bit of value 1 is set if the destination depends on the
        source, the bit of value 2 if the source depends on the destination. Labels are sections. The split is fixed;
        all packages that are built from one source package are in the same part.
    Raises:
        ValueError: The direction is unknown.
        DatasetFormatError: The embedded file is damaged; the package should be installed again.
    """
    if direction not in DIRECTIONS:
        raise ValueError(
            f"read_debian_packages: direction is {shown(direction)}, must be one of {DIRECTIONS}. Pass one of these."
        )
    return read_packages(files(__package__).joinpath(FILE).read_bytes(), direction)


def arrays_of(file: str, content: bytes, expected_format: str) -> NpzArrays:
    """Return the arrays in `content`, the bytes of an embedded file. Its array "format" must be `expected_format`."""
    arrays = NpzArrays(file, content)
    if arrays.get("format").tobytes() != np.array(expected_format).tobytes():
        raise DatasetFormatError.of(file, "a file of another format", repr(expected_format), REMEDY)
    return arrays


def read_packages(content: bytes, direction: str) -> RawDataset:
    """Return the data set in `content`, the bytes of the file. For `direction` see `read_debian_packages`."""
    arrays = arrays_of(FILE, content, _PACKAGES_FORMAT)
    class_names = arrays.texts("class_names")
    labels, _ = checked_labels(FILE, arrays.get("label"), len(class_names))
    num_nodes = len(labels)
    packages, dependencies = read_rows(arrays, "depends", num_nodes, num_nodes)
    described, words = read_rows(arrays, "word", num_nodes, num_words := len(arrays.texts("vocabulary")))
    part = arrays.ids("split", (num_nodes,), 3)
    forward, backward = (dependencies, packages), (packages, dependencies)
    chosen = {"depends": [forward], "reverse": [backward], "both": [forward, backward]}[direction]
    sources, destinations = (np.concatenate(ends) for ends in zip(*chosen, strict=True))
    edge_index = simple_edges(sources, destinations, num_nodes)
    of_forward, of_backward = (_contains(edge_index, ends, num_nodes) for ends in (forward, backward))
    ones = np.ones(len(words), dtype=np.uint8)
    return RawDataset(
        name="debian-packages",
        num_nodes=num_nodes,
        edge_index=edge_index,
        node_features={
            "feat": dense_rows(FILE, described, words, ones, (num_nodes, num_words), np.uint8),
            "words": _padded(described, words, num_nodes, num_words),
        },
        labels=labels,
        class_names=class_names,
        split=(np.flatnonzero(part == 0), np.flatnonzero(part == 1), np.flatnonzero(part == 2)),
        edge_features={"direction": (DEPENDS * of_forward + REVERSE * of_backward).astype(np.uint8)},
    )


def _contains(edge_index: np.ndarray, ends: tuple[np.ndarray, np.ndarray], num_nodes: int) -> np.ndarray:
    """Return bool[num_edges]: which edges of `edge_index` are among the pairs `ends`, (sources, destinations)."""
    return np.isin(edge_index[1] * num_nodes + edge_index[0], ends[1] * num_nodes + ends[0])


def read_rows(arrays: NpzArrays, prefix: str, num_rows: int, num_columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (row, column) of each entry of a sparse matrix, int64[n] each.

    The matrix is in the arrays PREFIX_degree and PREFIX_ids. Columns must rise within each row.
    """
    degree = arrays.ids(f"{prefix}_degree", (num_rows,), num_columns + 1)
    columns = arrays.ids(f"{prefix}_ids", (None,), num_columns)
    rows = csr_ids(arrays.file, prefix, np.cumsum(np.r_[0, degree]), columns, (num_rows, num_columns))
    if ((np.diff(rows) == 0) & (np.diff(columns) <= 0)).any():
        fault = f"ids in '{prefix}_ids' out of order"
        raise DatasetFormatError.of(arrays.file, fault, "ids that rise in each row")
    return rows, columns


def _padded(rows: np.ndarray, columns: np.ndarray, num_rows: int, padding: int) -> np.ndarray:
    """Return the columns of the entries of each row as int16[num_rows, longest row], padded with `padding`.

    `rows` and `columns` are int64[n], the position of each entry of a sparse matrix; rows ascend.
    """
    if padding > np.iinfo(np.int16).max:
        raise DatasetFormatError.of(FILE, f"{padding} words", "at most 32767, to fit an int16")
    degree = np.bincount(rows, minlength=num_rows)
    starts = np.cumsum(degree) - degree
    padded = np.full((num_rows, int(degree.max(initial=0))), padding, dtype=np.int16)
    padded[rows, np.arange(len(rows)) - starts[rows]] = columns
    return padded


RELATIONS_FILE = "debian_relations.npz"
RELATIONS = (  # each leads from a package to packages and to virtual names
    *("depends", "pre_depends", "recommends", "suggests", "enhances"),
    *("breaks", "conflicts", "replaces", "provides"),
)

_RELATIONS_FORMAT = "datapipes debian relations 1"


def read_debian_relations() -> RawHeteroDataset:
    """Read the embedded graph of Debian's packages with all relations, and the same task as `read_debian_packages`.

    Returns:
        Nodes: "package"; "source", the source packages; "virtual", names that are no package. Some package provides
        such a name, and at least two packages refer to it. Sources and virtual names have no features.

        Edges: each of `RELATIONS` has the types ("package", relation, "package") and ("package", relation, "virtual"),
        from a package to each package or name that it lists under this relation. ("package", "built_from", "source")
        has one edge for each package. ("package", "built_using", "source") leads to sources whose code is in the
        package. Each edge type has an inverse, "rev_" + relation, with the edges in the same order. Forward edges are
        sorted by (destination, source), without repeats; depends includes pre_depends and has the edges of the
        homogeneous graph.

        Words and split of "package" are as in `read_debian_packages`. Packages without a section are in no part of the
        split.
    Raises:
        DatasetFormatError: An embedded file is damaged; the package should be installed again.
    """
    folder = files(__package__)
    content = folder.joinpath(FILE).read_bytes()
    packages = read_packages(content, "reverse")  # edges go from a package to its dependencies
    num_packages = packages.num_nodes
    arrays = arrays_of(RELATIONS_FILE, folder.joinpath(RELATIONS_FILE).read_bytes(), _RELATIONS_FORMAT)
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    if arrays.get("packages_digest").tobytes() != np.array(digest).tobytes():
        raise DatasetFormatError.of(RELATIONS_FILE, f"relations of another {FILE}", "files made together", REMEDY)
    source = arrays.ids("source", (num_packages,), num_packages)
    num_sources = _count_named(source, "source")
    _, provided = read_rows(arrays, "provides_virtual", num_packages, arrays.get("provides_virtual_ids").size)
    num_virtual = _count_named(provided, "provides_virtual_ids")
    num_nodes: dict[NodeType | None, int] = {"package": num_packages, "source": num_sources, "virtual": num_virtual}
    edges: dict[EdgeType | None, np.ndarray] = {
        ("package", "built_from", "source"): _sorted_edges(np.arange(num_packages), source)
    }
    for relation in RELATIONS:
        for other in ("package", "virtual"):
            if (relation, other) == ("depends", "package"):
                edges["package", relation, other] = packages.edge_index
            else:
                ends = read_rows(arrays, f"{relation}_{other}", num_packages, num_nodes[other])
                edges["package", relation, other] = _sorted_edges(*ends)
    ends = read_rows(arrays, "built_using", num_packages, num_sources)
    edges["package", "built_using", "source"] = _sorted_edges(*ends)
    return RawHeteroDataset(
        name=packages.name,
        num_nodes=num_nodes,
        edges=with_inverses(edges),
        node_features={("package", name): rows for name, rows in packages.node_features.items()},
        edge_features={},
        task="node_classification",
        split=labelled_items("package", packages.labels, _parts_of_sources(packages, source)),
        class_names=packages.class_names,
    )


def _count_named(ids: np.ndarray, key: str) -> int:
    """Return how many nodes `ids` names: the highest id + 1. `key` is the name of the array, for the error.

    Raises:
        DatasetFormatError: An id from 0 to the highest is missing in `ids`.
    """
    count = int(ids.max(initial=-1)) + 1
    unnamed = np.flatnonzero(np.bincount(ids, minlength=count) == 0)
    if len(unnamed):
        raise DatasetFormatError.of(RELATIONS_FILE, f"no {unnamed[0]} in {key!r}", f"each of 0 to {count - 1}", REMEDY)
    return count


def _sorted_edges(sources: np.ndarray, destinations: np.ndarray) -> np.ndarray:
    """Return edges as int64[2, num_edges], sorted by (destination, source)."""
    order = np.lexsort((sources, destinations))
    return np.stack([sources[order], destinations[order]])


def _parts_of_sources(packages: RawDataset, source: np.ndarray) -> list[np.ndarray]:
    """Return [train, validation, test]: the ids of the labelled packages in each part of the split.

    `source` is int64[num_packages], the source package of each package.

    Raises:
        DatasetFormatError: Packages of one source are in two parts.
    """
    parts = packages.split or ()
    sources_of = np.concatenate([np.unique(source[ids]) for ids in parts])
    distinct, times = np.unique(sources_of, return_counts=True)
    if (times > 1).any():
        fault = f"packages of source {distinct[times > 1][0]} in two parts of the split"
        raise DatasetFormatError.of(RELATIONS_FILE, fault, "each source in one part", REMEDY)
    return [ids[packages.labels[ids] >= 0] for ids in parts]
