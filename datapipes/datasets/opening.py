"""`debian_packages` and `open`, which users call; and how the arrays of a reader become a Dataset.

`FORMATS` has, for each format, the function that recognises its file names, its reader, and the arguments of `open`
that apply to it. If another argument is set, it is refused here, never ignored.
"""

from __future__ import annotations

import shlex
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from datapipes import _core
from datapipes.base.checks import check_bool, check_int
from datapipes.base.progress import working
from datapipes.base.rng import check_seed
from datapipes.datasets.dataset import Dataset, graph_of_edges, one_set
from datapipes.datasets.debian import read_debian_packages, read_debian_relations
from datapipes.datasets.edge_lists import check_columns, edge_list_in, read_edge_list
from datapipes.datasets.exports import (
    edges_by_columns,
    gephi_files,
    is_graph_export,
    jodie_in,
    matrix_in,
    read_gephi,
    read_graph_export,
    read_jodie,
    read_matrix,
)
from datapipes.datasets.from_tables import from_tables
from datapipes.datasets.heco import is_heco, read_heco
from datapipes.datasets.npz import npz_in, read_npz
from datapipes.datasets.ogb import is_ogb, read_ogb
from datapipes.datasets.ondisk import is_ondisk, read_ondisk
from datapipes.datasets.planetoid import is_planetoid, read_planetoid
from datapipes.datasets.raw import DatasetFormatError, RawDataset, component_of
from datapipes.datasets.raw_hetero import RawHeteroDataset, RawItems
from datapipes.datasets.rdf import is_rdf, read_rdf
from datapipes.datasets.relbench import is_relbench
from datapipes.datasets.table_folder import is_table_folder, read_table_folder
from datapipes.datasets.table_yaml import is_table_yaml, read_table_yaml
from datapipes.features import FeatureStore, TensorFeature
from datapipes.graph import CSCGraph, HeteroCSCGraph
from datapipes.ingest.edge_chunks import PAIRS
from datapipes.ingest.table_files import TABLES
from datapipes.ingest.tables import is_database
from datapipes.seeds import HeteroItemSet, ItemSet

__all__ = ["debian_packages", "open"]


def debian_packages(direction: str = "both", *, heterogeneous: bool = False) -> Dataset:
    """Return the embedded data set: the packages of Debian 12 main and their dependencies.

    The task is to predict the archive section of a package (such as libs, python, science) from the words of its
    one-line description and from its neighbors. All binaries of one source package are in the same part of the split.

    Args:
        direction: the sources of a package's in-edges: "depends" (the packages it depends on), "reverse" (the packages
            that depend on it) or "both". Only for heterogeneous=False.
        heterogeneous: give packages, source packages and virtual names types of their own, and each kind of dependency
            an edge type, such as ("package", "recommends", "package"), with its inverse "rev_recommends". Packages,
            words and split are the same.

    Features: "feat", uint8 [num_nodes, num_words], 1 for each word of the description; "words", int16 [num_nodes,
    max_words], the ids of these words, padded with num_words. With types, nodes of "package" have both features. The
    files were made by tools/make_debian_packages.py.
    """
    if not check_bool("datasets.debian_packages", "heterogeneous", heterogeneous):
        return dataset_of(read_debian_packages(direction))
    if direction != "both":
        raise ValueError(
            f"datasets.debian_packages: direction={direction!r} is for heterogeneous=False; with types each edge type "
            "has its inverse, 'rev_...'. Leave direction out, and give edge types that you do not want a fanout of 0."
        )
    return hetero_dataset_of(read_debian_relations())


def open(
    path: str | Path,
    *,
    split: int = 0,
    normalize_features: bool = False,
    largest_component: bool = False,
    inverse_relations: bool | None = None,
    columns: Sequence[str] | Mapping[str, str] | None = None,
) -> Dataset:
    """Return the data set in the files at `path`, which are recognised by their names and content.

    | files | data sets | task |
    |---|---|---|
    | `ind.NAME.x` ... | Planetoid: Cora, CiteSeer, PubMed | node classification |
    | one .npz | the gnn-benchmark, heterophilous-graphs and debian_bookworm layouts | node classification |
    | `raw/`, `split/` | OGB's extracted folders of CSV files, with types or without | as OGB says |
    | one .nt or .nt.gz, `trainingSet.tsv`, `testSet.tsv` | RDF as published with R-GCN: AIFB | node classification |
    | `pa.txt`, `ps.txt`, `p_feat.npz`, `labels.npy` ... | ACM, in the files of HeCo | node classification |
    | one .txt or .txt.gz | "src dst", or "src dst time" as SNAP's CollegeMsg | none, or link prediction |
    | one .csv or .csv.gz | "src,dst", or "from,to,rating,time" as SNAP's Bitcoin OTC | none, or edge regression |
    | `manifest.yaml`, `db/`, `tasks/` | RelBench's folders, see `from_tables` | those of the manifests |
    | NAME.yaml, or the folder that it made | the arguments of `from_tables` | as they say |
    | a file of SQLite or DuckDB | its tables, see `from_tables` | none |
    | .csv with Source, Target | exports of Gephi, with nodes.csv or without | link prediction |
    | .csv with :ID, :START_ID, :END_ID | exports of graph databases (Neo4j): labels are node types | link prediction |
    | .csv that begins with user_id,item_id,timestamp | JODIE: Wikipedia, Reddit, MOOC, LastFM | link prediction |
    | .mtx, .npz of scipy.sparse | an adjacency matrix | link prediction |
    | `metadata.yaml` | GraphBolt's folders, see `OnDiskDataset`; edge ids are those of the files | as the YAML says |
    | `edges.*` or `edges/`, `nodes.*` or `nodes/` | CSV, Parquet, .npy: your own, by the names of files | on nodes |

    Features and graph are as in the files, unless an argument changes them. The repr of the Dataset shows
    normalize_features and largest_component. If the files have no features, the Dataset has no features: a model must
    learn a vector for each node.

    RDF has one node type, "entity", and an edge type ("entity", IRI, "entity") for each predicate; the relations that
    state the labels are left out. Its files have no validation part: see `Dataset.with_validation`.

    For a list of edges in text, `columns` names the columns. For a .csv with a header it may also say what is where,
    such as {"src": "from", "dst": "to", "time": "at"}; ids may then be of any kind, numbered by first occurrence.
    Without `columns`, two columns are source and destination; the meaning of more columns is taken from the name of
    SNAP's file or from a header. Any other file is refused, since weights and times look alike. Lines that begin with
    "#" or "%" are comments.

    Lists with times are split by time: the first 70 % of the edges train, the next 15 % validate, the rest test;
    edges of equal time stay together. The graph has all edges, with their times as the edge attribute "time". A sampler
    that ignores times would show a seed its own future: give the sampler `training_graph`, which has the edges of
    `train_set` alone. Each training seed is still an edge of `training_graph`, and a feature of this edge, such as
    "rating", may be the label of the seed. The node attribute "id" has the ids of the file.

    OGB's links are pairs without labels for training; in validation and test, labels are 1 for edges and 0 for the
    negative edges of the files. OGB keeps settings in its package; here they are read from a `master.csv` in the
    folder. Without this file, OGB's published settings are used, chosen by the name of the folder or its release note.

    Args:
        path: a folder with the files of one data set, or one of the files.
        split: the index of the split in the files. ACM has three: 0, 1 and 2 have 20, 40 and 60 labels of each class.
            For a .npz without splits, it is the seed of a random split: 20 nodes of each class for training, 30 for
            validation, the rest for testing.
        normalize_features: divide each row of "feat" by the sum of its absolute values; a row of zeros stays zero. Only
            for bags of words: Planetoid and gnn-benchmark files.
        largest_component: keep only the largest connected component, as the published figures of gnn-benchmark do, and
            number its nodes from 0 in their old order. A split in the files loses the nodes outside the component; a
            random split is drawn from the nodes inside. Only for Planetoid and .npz files.
        inverse_relations: add the inverse of each relation, under the name `"rev_" + relation`; in OGB's folders
            without types, the inverse of each edge. None: add them for RDF and ACM, and for OGB if its settings say so.
            Only for RDF, ACM and OGB.
    Raises:
        FileNotFoundError: There is nothing at `path`, or a file of the data set is missing.
        IndexError: The files have no such split.
        ValueError: An argument is set that these files do not take.
        DatasetFormatError: A file is truncated, corrupt, hostile or of an unknown layout (a ValueError).
        MemoryError: A file needs more memory than is left.
    """
    where = Path(path)
    check_int("datasets.open", "split", split, 0)
    check_bool("datasets.open", "normalize_features", normalize_features)
    check_bool("datasets.open", "largest_component", largest_component)
    if inverse_relations is not None:
        check_bool("datasets.open", "inverse_relations", inverse_relations)
    if columns is not None and not isinstance(columns, Mapping):
        columns = check_columns(columns)
    arguments = {
        INVERSE: inverse_relations,
        SPLIT: split,
        NORMALIZE: normalize_features,
        LARGEST: largest_component,
        COLUMNS: columns,
    }
    with working(f"read {where}"):
        raw = read_files(where, arguments)
        if isinstance(raw, Dataset):
            return raw
        if isinstance(raw, RawHeteroDataset):
            return hetero_dataset_of(raw)
        if largest_component:
            raw = component_of(raw)
        data = dataset_of(raw, split)
    return replace(data, normalize_features=normalize_features, largest_component=largest_component)


# --- formats

SPLIT, INVERSE, NORMALIZE, COLUMNS = "split", "inverse_relations", "normalize_features", "columns"
LARGEST = "largest_component"  # applied by `open` to the RawDataset that a reader returned


def _read_edges(path: Path, columns: Sequence[str] | Mapping[str, str] | None) -> RawHeteroDataset | Dataset:
    if isinstance(columns, Mapping):
        return edges_by_columns(edge_list_in(path) or path, columns)
    return read_edge_list(path, columns)


@dataclass(frozen=True)
class Format:
    """A file format.

    Attributes:
        name, files: the format and its files as texts for messages.
        recognise: function (path) -> true if the folder or file is of this format.
        read: function (path, **arguments in `takes`) -> arrays or Dataset. It never gets "largest_component".
        takes: the arguments of `datasets.open` that the format takes.
    """

    name: str
    files: str
    recognise: Callable[[Path], object]
    read: Callable[..., RawDataset | RawHeteroDataset | Dataset]
    takes: tuple[str, ...] = ()


_NPZ = Format(".npz", "an .npz", npz_in, read_npz, (SPLIT, NORMALIZE, LARGEST))
FORMATS = (  # the first that recognises a path reads it
    Format("Planetoid", "ind.* files (Planetoid)", is_planetoid, read_planetoid, (NORMALIZE, LARGEST)),
    Format("YAML of tables", "a .yaml with the arguments of from_tables", is_table_yaml, read_table_yaml),
    Format("tables", "tables.json (from_tables)", is_table_folder, read_table_folder),
    Format("RelBench", "manifest.yaml and db/ (RelBench)", is_relbench, from_tables),
    Format("database", "a database of SQLite or DuckDB", is_database, from_tables),
    Format("Gephi", "a .csv with the columns Source and Target (Gephi)", gephi_files, read_gephi),
    Format("graph database", "CSV files with :ID, :START_ID and :END_ID (Neo4j)", is_graph_export, read_graph_export),
    Format("JODIE", "a .csv of JODIE", jodie_in, read_jodie),
    Format("metadata.yaml", "metadata.yaml (GraphBolt), edges and nodes in tables or .npy", is_ondisk, read_ondisk),
    Format("RDF", "an .nt or .nt.gz (RDF)", is_rdf, read_rdf, (INVERSE,)),
    Format("ACM", "pa.txt, ps.txt, p_feat.npz and labels.npy (ACM)", is_heco, read_heco, (SPLIT, INVERSE)),
    Format("OGB", "raw/ and split/ (OGB)", is_ogb, read_ogb, (INVERSE,)),
    Format("matrix", "an .mtx, or an .npz of scipy.sparse (a matrix)", matrix_in, read_matrix),
    _NPZ,
    Format("edge list", "one .txt, .txt.gz, .csv or .csv.gz (a list of edges)", edge_list_in, _read_edges, (COLUMNS,)),
)
_LINES = {  # {suffix: the line that reads a file}; {0} is the path as a str, {1} the path for a shell
    **{f".{name}": f"dp.CSCGraph.from_networkx(networkx.read_{name}({{0!r}}))" for name in ("graphml", "gexf", "gml")},
    ".pt": "data = torch.load({0!r}); dp.datasets.Dataset.from_pyg takes PyG's Data",
    **dict.fromkeys((*TABLES, *PAIRS, ".npy"), "datapipes build OUT --edges {1} --nodes NUM_NODES"),
}


class UnknownFormat(DatasetFormatError):
    """Raised if no file at a path is of a known format."""


def read_files(where: Path, arguments: dict[str, Any]) -> RawDataset | RawHeteroDataset | Dataset:
    """Recognise the format of the files at `where`, and return what its reader returns: a Dataset, or arrays for one.

    `arguments` is {name: value} of the arguments of `open`.

    Raises:
        FileNotFoundError: There is nothing at `where`.
        UnknownFormat: No format is recognised.
        ValueError, IndexError: An argument is set that the format does not take. Also the errors of the reader.
    """
    if not where.exists():
        raise FileNotFoundError(f"datasets.open: {where} does not exist; a folder or a file is needed. Check the path.")
    file_format = next((candidate for candidate in FORMATS if candidate.recognise(where)), None)
    if file_format is None and where.suffix != ".pt" and where.is_file() and zipfile.is_zipfile(where):
        file_format = _NPZ  # a zip archive with another suffix
    if file_format is None:
        *first, last = (candidate.files for candidate in FORMATS)
        holds = "holds none" if where.is_dir() else "is none"
        raise UnknownFormat(f"datasets.open: {where} {holds} of these: {', '.join(first)}, or {last}. {_remedy(where)}")
    for name in arguments:
        if name not in file_format.takes:
            _refuse(where, name, arguments[name])
    return file_format.read(where, **{name: arguments[name] for name in file_format.takes if name != LARGEST})


def _remedy(where: Path) -> str:
    """Return the last sentence of the error for an unknown format: another way to read `where`, a file or a folder.

    `_LINES` has such a way for some suffixes. It is given if exactly one file has one of these suffixes; otherwise the
    sentence says to name the file or to convert it.
    """
    lines = []
    for file in where.iterdir() if where.is_dir() else [where]:
        suffix = max(filter(file.name.endswith, _LINES), key=len, default="")
        lines += [_LINES[suffix].format(str(file), shlex.quote(str(file)))] if suffix else []
    if len(lines) == 1:
        return f"Read it by: {lines[0]}."
    return "Name the file itself." if where.is_dir() else "Convert it to one of these."


def _refuse(where: Path, name: str, value: object) -> None:
    """Raise if the argument `name` of `open` is set, which the format of the files at `where` does not take.

    Raises:
        IndexError: `split` is not 0.
        ValueError: Another argument is set.
    """
    if name == SPLIT:
        if value != 0:
            raise IndexError(f"datasets.open: {where} holds one split, so split must be 0, got {value}. Leave it out.")
    elif value or (name == INVERSE and value is not None):
        *first, last = (candidate.name for candidate in FORMATS if name in candidate.takes)
        takers = f"{', '.join(first)} and {last}"
        kind = {
            INVERSE: f"{takers}; {where} holds other files",
            NORMALIZE: f"bags of words (gnn-benchmark and Planetoid files); {where} holds others",
            LARGEST: f"{takers} files; {where} holds others",
            COLUMNS: f"a list of edges in text; {where} holds other files",
        }[name]
        raise ValueError(f"datasets.open: {name}={value} is for {kind}. Leave it out.")


# --- from arrays to a Dataset

TRAIN_PER_CLASS = 20
VALIDATION_PER_CLASS = 30


def dataset_of(raw: RawDataset, split_seed: int = 0) -> Dataset:
    """Make a Dataset from the arrays that a reader returned. If they have no split, `split_seed` draws a random one."""
    labels = torch.from_numpy(raw.labels)
    parts = raw.split or random_split(raw.labels, split_seed)
    sets = (ItemSet((ids, labels[ids]), names=("seeds", "labels")) for ids in map(torch.from_numpy, parts))
    return _dataset(raw, sets, graph=CSCGraph.from_edge_index(raw.edge_index, raw.num_nodes))


def hetero_dataset_of(raw: RawHeteroDataset) -> Dataset:
    """Make a Dataset that has types, or a task on edges, from the arrays that a reader returned."""
    training = {edge_type: raw.edges[edge_type][:, :count] for edge_type, count in raw.num_training_edges.items()}
    graph = _graph_of(raw, raw.edges)
    training_graph = _graph_of(raw, {**raw.edges, **training}) if training else graph
    fields = {"task": raw.task, "training_graph": training_graph, "node_names": raw.node_names}
    return _dataset(raw, map(_item_set, raw.split), graph=graph, **fields)


def _dataset(raw: RawDataset | RawHeteroDataset, sets: Iterable[Any], **fields: Any) -> Dataset:
    """Make a Dataset from the arrays that a reader returned.

    `sets` are the train, validation and test items; `fields` are further fields of the Dataset, such as "graph".
    """
    train, validation, test = sets
    features: dict[Any, TensorFeature] = {}
    for domain, arrays in (("node", raw.node_features), ("edge", raw.edge_features)):
        for key, rows in arrays.items():
            kind, name = key if isinstance(key, tuple) else (None, key)
            features[domain, kind, name] = TensorFeature(rows)
    return Dataset(
        name=raw.name,
        features=FeatureStore(features),
        train_set=train,
        validation_set=validation,
        test_set=test,
        num_classes=len(raw.class_names),
        class_names=raw.class_names,
        **fields,
    )


def _graph_of(raw: RawHeteroDataset, edges: Mapping[Any, np.ndarray]) -> CSCGraph | HeteroCSCGraph:
    """Return the graph of `edges`, {type: int64 [2, n]}, with the attributes in `raw`.

    For each type, `edges` has all edges in `raw`, or the first n of them (for the training graph).
    """
    of_nodes: dict[Any, dict[str, np.ndarray]] = {}
    of_edges: dict[Any, dict[str, np.ndarray]] = {}
    for (node_type, name), rows in raw.node_attributes.items():
        of_nodes.setdefault(node_type, {})[name] = rows
    for (edge_type, name), rows in raw.edge_attributes.items():
        of_edges.setdefault(edge_type, {})[name] = rows[: edges[edge_type].shape[1]]
    return graph_of_edges(edges, {**raw.num_nodes}, of_nodes, of_edges)


def _item_set(part: Mapping[Any, RawItems]) -> ItemSet | HeteroItemSet:
    sets = {}
    for seed_type, items in part.items():
        values = {name: value for name, value in vars(items).items() if value is not None}
        sets[seed_type] = ItemSet(tuple(map(torch.from_numpy, values.values())), names=tuple(values))
    return one_set(sets)


def random_split(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (train, validation, test), ascending node ids: 20 nodes of each class, 30 of each class, and the rest.

    A class of fewer than 50 nodes fills train first, then validation. Nodes labelled -1 are left out.
    """
    check_seed("random_split", seed)
    num_nodes = len(labels)
    order = _core.permutation_at(num_nodes, _core.hop_key(seed, 0, 0, 0, 0, 0), 0, num_nodes)
    by_class = order[np.argsort(labels[order], kind="stable")]  # grouped by class, shuffled within
    grouped = labels[by_class]
    place = np.arange(num_nodes) - np.searchsorted(grouped, grouped)  # position of each node within its class
    labelled = grouped >= 0
    train = labelled & (place < TRAIN_PER_CLASS)
    validation = labelled & ~train & (place < TRAIN_PER_CLASS + VALIDATION_PER_CLASS)
    test = labelled & ~train & ~validation
    first, second, third = (np.sort(by_class[part]) for part in (train, validation, test))
    return first, second, third
