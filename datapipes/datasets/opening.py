"""What users call: the embedded data set, and `open` for files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from datapipes.base.checks import check_bool, check_int
from datapipes.datasets.build import dataset_of, hetero_dataset_of
from datapipes.datasets.dataset import Dataset
from datapipes.datasets.debian import read_debian_packages
from datapipes.datasets.debian_relations import read_debian_relations
from datapipes.datasets.formats import INVERSE, LARGEST, NORMALIZE, SPLIT, read_files
from datapipes.datasets.raw import component_of
from datapipes.datasets.raw_hetero import RawHeteroDataset

__all__ = ["debian_packages", "open"]


def debian_packages(direction: str = "both", *, heterogeneous: bool = False) -> Dataset:
    """Return the embedded data set: the packages of Debian 12 main and their dependencies.

    The task is to predict the archive section of a package (such as libs, python, science) from the words of its
    one-line description and from its neighbors. All binaries of one source package are in the same part of the split.

    Args:
        direction: which packages send in-edges to a package: "depends" (those it depends on), "reverse" (those that
            depend on it) or "both"; without types only.
        heterogeneous: give packages, source packages and virtual names types of their own, and each kind of dependency
            an edge type, such as ("package", "recommends", "package"), with its inverse "rev_recommends". Packages,
            words and split stay.

    Features: "feat", uint8 [num_nodes, num_words], 1 for each word of the description; "words", int16 [num_nodes,
    max_words], the ids of these words, padded with num_words; with types both are of "package". The files were made by
    tools/make_debian_packages.py.
    """
    if not check_bool("datasets.debian_packages", "heterogeneous", heterogeneous):
        return dataset_of(read_debian_packages(direction))
    if direction != "both":
        raise ValueError(
            f"datasets.debian_packages: direction={direction!r} is for heterogeneous=False; with types both directions "
            "are there, each as an edge type. Leave it out, and give the others a fanout of 0."
        )
    return hetero_dataset_of(read_debian_relations())


def open(
    path: str | Path,
    *,
    split: int = 0,
    normalize_features: bool = False,
    largest_component: bool = False,
    inverse_relations: bool | None = None,
) -> Dataset:
    """Return the data set in the files at `path`, which are recognised by their names and content.

    | files | data sets | task |
    |---|---|---|
    | `ind.NAME.x` ... | Planetoid: Cora, CiteSeer, PubMed | node classification |
    | one .npz | the gnn-benchmark, heterophilous-graphs and debian_bookworm layouts | node classification |
    | `raw/`, `split/` | OGB's extracted folders of CSV files, with types or without | as OGB says |
    | one .nt or .nt.gz, `trainingSet.tsv`, `testSet.tsv` | RDF as published with R-GCN: AIFB | node classification |
    | `pa.txt`, `ps.txt`, `p_feat.npz`, `labels.npy` ... | ACM, in the files of HeCo | node classification |
    | one .txt or .txt.gz | "src dst time", as SNAP's CollegeMsg | link prediction |
    | one .csv or .csv.gz | "from,to,rating,time", as SNAP's Bitcoin OTC | edge regression |

    Features and graph are those of the files; the arguments change them, and the repr of the Dataset shows the first
    two. Where the files have no features there are none: a model learns a vector for each node.

    RDF has one node type, "entity", and an edge type ("entity", IRI, "entity") for each predicate; the relations that
    state the labels are left out. Its files have no validation part: see `Dataset.with_validation`.

    Temporal edge lists are split by time: the first 70 % of the edges train, the next 15 % validate, the rest test;
    edges of one time stay together. The graph has all of them, and their times as the edge attribute "time", so a
    sampler that does not look at times shows a seed its own future: give it `training_graph`. There a seed of
    `train_set` is still an edge itself, and what is fetched of that edge may be its label, such as "rating"; seeds of
    the other parts are not in it. The node attribute "id" has the ids of the file.

    OGB's links are pairs without labels for training, and with labels 1 and 0 for validation and test, where the files
    name edges that do not exist. What OGB keeps in its package comes from a `master.csv` in the folder, else from its
    published settings, by the name of the folder or its release note.

    Args:
        path: a folder with the files of one data set, or such a file.
        split: the number of the split in the files; ACM has three: 20, 40 and 60 labels of each class. If .npz holds
            none, the seed of a random one: 20 nodes of each class for training, 30 for validation, the rest for
            testing.
        normalize_features: divide each row of "feat" by the sum of its absolute values; a row of zeros stays zero. Only
            for bags of words: Planetoid and gnn-benchmark files.
        largest_component: keep only the largest connected component, as the published figures of gnn-benchmark do, and
            number its nodes from 0 in their old order. A split of the files loses the nodes outside; a random one is
            drawn inside. Only for Planetoid and .npz files.
        inverse_relations: add the inverse of each relation, under the name "rev_" + relation; in OGB's folders without
            types, the inverse of each edge. None: yes for RDF and ACM, and for OGB what its settings say. Only for
            these three.
    Raises:
        FileNotFoundError: There is nothing at `path`, or a file of the data set is missing.
        IndexError: The files have no such split.
        ValueError: An argument is set that is not for these files.
        DatasetFormatError: A file is truncated, corrupt, hostile or of an unknown layout (a ValueError).
        MemoryError: A file needs more memory than is left.
    """
    where = Path(path)
    check_int("datasets.open", "split", split, 0)
    check_bool("datasets.open", "normalize_features", normalize_features)
    check_bool("datasets.open", "largest_component", largest_component)
    if inverse_relations is not None:
        check_bool("datasets.open", "inverse_relations", inverse_relations)
    arguments = {
        SPLIT: split,
        NORMALIZE: normalize_features,
        LARGEST: largest_component,
        INVERSE: inverse_relations,
    }
    raw = read_files(where, arguments)
    if isinstance(raw, RawHeteroDataset):
        return hetero_dataset_of(raw)
    if largest_component:
        raw = component_of(raw)
    return replace(dataset_of(raw, split), normalize_features=normalize_features, largest_component=largest_component)
