"""Read the embedded graph of Debian's packages with all of its relations: a heterogeneous graph without a download.

The file `debian_relations.npz` beside this module has what the heterogeneous graph adds to `debian_packages.npz`. Both
were made by one run of tools/make_debian_packages.py, which defines the relations, and says what was left out because
it names the section.

Invariant: equal calls return equal, new arrays; packages, words, labels and split are those of debian.py. Refused with
`DatasetFormatError`: damaged or foreign files in the place of the embedded ones, two files of different runs, and a
source whose packages are in two parts of the split.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files

import numpy as np

from datapipes.base.types import EdgeType, NodeType
from datapipes.datasets.debian import FILE, REMEDY, arrays_of, read_packages, read_rows
from datapipes.datasets.raw import DatasetFormatError, RawDataset
from datapipes.datasets.raw_hetero import RawHeteroDataset, labelled_items, with_inverses

RELATIONS_FILE = "debian_relations.npz"
RELATIONS = (  # of a package, to packages and to virtual names
    *("depends", "pre_depends", "recommends", "suggests", "enhances"),
    *("breaks", "conflicts", "replaces", "provides"),
)

_FORMAT = "datapipes debian relations 1"


def read_debian_relations() -> RawHeteroDataset:
    """Read the embedded graph of Debian's packages with all of its relations; the task is that of the packages.

    Returns:
        Nodes: "package"; "source", the source packages; "virtual", the names that have no package of their own, that a
        package provides, and that at least two packages name. The last two have no features.

        Edges, each with its inverse under the name "rev_" + relation, in the same order: for each of `RELATIONS`
        ("package", relation, "package") and ("package", relation, "virtual"), from the package whose stanza says it to
        the one it names; ("package", "built_from", "source"), one edge for each package; ("package", "built_using",
        "source"), sources whose code went into it. Forward edges are sorted by (destination, source), without
        repeats; depends includes pre_depends and has the edges of the homogeneous graph.

        Words and split are those of `read_debian_packages`, for "package". Packages without a section are in no part.
    Raises:
        DatasetFormatError: An embedded file is damaged; the package should be installed again.
    """
    folder = files(__package__)
    content = folder.joinpath(FILE).read_bytes()
    packages = read_packages(content, "reverse")  # its edges go from a package to those it depends on
    num_packages = packages.num_nodes
    arrays = arrays_of(RELATIONS_FILE, folder.joinpath(RELATIONS_FILE).read_bytes(), _FORMAT)
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    if arrays.get("packages_digest").tobytes() != np.array(digest).tobytes():
        raise DatasetFormatError.of(RELATIONS_FILE, f"relations of another {FILE}", "files made together", REMEDY)
    source = arrays.ids("source", (num_packages,), num_packages)
    num_sources = _count_named(source, "source")
    _, provided = read_rows(arrays, "provides_virtual", num_packages, arrays.get("provides_virtual_ids").size)
    num_nodes: dict[NodeType | None, int] = {
        "package": num_packages,
        "source": num_sources,
        "virtual": _count_named(provided, "provides_virtual_ids"),
    }
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
    """Return how many nodes `ids` name; every one from 0 to the highest must be named."""
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
    """Return the packages of each part that have a label; all packages of one source must be in one part."""
    parts = packages.split or ()
    sources_of = np.concatenate([np.unique(source[ids]) for ids in parts])
    distinct, times = np.unique(sources_of, return_counts=True)
    if (times > 1).any():
        found = f"packages of source {distinct[times > 1][0]} in two parts of the split"
        raise DatasetFormatError.of(RELATIONS_FILE, found, "each source in one part", REMEDY)
    return [ids[packages.labels[ids] >= 0] for ids in parts]
