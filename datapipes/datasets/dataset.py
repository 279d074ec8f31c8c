"""Dataset: a graph, its features and its task, ready for a chain, built from the arrays of the file readers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from datapipes import _core
from datapipes.base.checks import check_bool, check_int
from datapipes.base.other_names import OtherNames
from datapipes.base.rng import check_seed
from datapipes.datasets.debian import read_debian_packages
from datapipes.datasets.npz import read_npz
from datapipes.datasets.planetoid import read_planetoid
from datapipes.datasets.raw import RawDataset, component_of
from datapipes.features import FeatureStore, TensorFeature
from datapipes.graph import CSCGraph
from datapipes.seeds import ItemSet

__all__ = ["Dataset", "debian_packages", "open"]

TRAIN_PER_CLASS = 20
VALIDATION_PER_CLASS = 30


@dataclass(frozen=True, eq=False)
class Dataset(OtherNames):
    """A node classification task.

    Attributes:
        name: the name used in messages.
        graph: the graph to sample from.
        features: features by key ("node" or "edge", None, name).
        train_set, validation_set, test_set: nodes with labels, named ("seeds", "labels"); int64 each.
        num_classes: labels are in [0, num_classes).
        class_names: one for each class; numbers as text if the files name none.
        normalize_features, largest_component: what `open` did to the files; the repr shows both.
    """

    name: str
    graph: CSCGraph
    features: FeatureStore
    train_set: ItemSet
    validation_set: ItemSet
    test_set: ItemSet
    num_classes: int
    class_names: tuple[str, ...]
    normalize_features: bool = False
    largest_component: bool = False


def debian_packages(direction: str = "both") -> Dataset:
    """Return the embedded data set: the packages of Debian 12 main and their dependencies.

    The task is to predict the archive section of a package (such as libs, python, science) from the words of its
    one-line description and from its neighbors. All binaries of one source package are in the same part of the split.

    Args:
        direction: which packages send in-edges to a package: "depends" (those it depends on), "reverse" (those that
            depend on it) or "both".

    Features: "feat", uint8 [num_nodes, num_words], 1 for each word of the description; "words", int16 [num_nodes,
    max_words], the ids of these words, padded with num_words. The file was made by tools/make_debian_packages.py.
    """
    return dataset_of(read_debian_packages(direction))


def open(
    path: str | Path, *, split: int = 0, normalize_features: bool = False, largest_component: bool = False
) -> Dataset:
    """Return the data set in the files at `path`.

    The feature "feat" and the graph are those of the files, as in PyG and in gnn-benchmark. Two arguments change them;
    the repr of the Dataset shows both.

    Args:
        path: a folder with Planetoid files (`ind.NAME.x` ...) or with one .npz, or that .npz: the gnn-benchmark,
            heterophilous-graphs and debian_bookworm layouts.
        split: the number of the split in the file. If the file holds none, the seed of a random one: 20 nodes of each
            class for training, 30 for validation, the rest for testing.
        normalize_features: divide each row of "feat" by the sum of its absolute values; a row of zeros stays zero. Only
            for bags of words: Planetoid and gnn-benchmark files.
        largest_component: keep only the largest connected component, as the published figures of gnn-benchmark do, and
            number its nodes from 0 in their old order. A split of the files loses the nodes outside; a random one is
            drawn inside.
    Raises:
        FileNotFoundError: There is nothing at `path`.
        ValueError: `normalize_features` is set, but the file holds no bags of words.
        DatasetFormatError: A file is truncated, corrupt, hostile or of an unknown layout (a ValueError).
    """
    where = Path(path)
    check_int("datasets.open", "split", split, 0)
    check_bool("datasets.open", "normalize_features", normalize_features)
    check_bool("datasets.open", "largest_component", largest_component)
    raw = _read(where, split, normalize_features)
    if largest_component:
        raw = component_of(raw)
    return replace(dataset_of(raw, split), normalize_features=normalize_features, largest_component=largest_component)


def _read(where: Path, split: int, normalize_features: bool) -> RawDataset:
    if not where.exists():
        raise FileNotFoundError(
            f"datasets.open: {where} does not exist; a folder or an .npz file is needed. Check the path."
        )
    if not where.is_dir():
        return _read_npz(where, split, normalize_features)
    archives = sorted(where.glob("*.npz"))
    if any(where.glob("ind.*")):
        if split != 0:
            raise IndexError(f"datasets.open: {where} holds one split, so split must be 0, got {split}. Leave it out.")
        return read_planetoid(where, normalize_features=normalize_features)
    if not archives:
        raise ValueError(
            f"datasets.open: {where} holds neither ind.* files nor an .npz; one of the two is needed. Check the path."
        )
    own = [archive for archive in archives if archive.stem == where.name]
    if len(archives) != 1 and len(own) != 1:
        raise ValueError(
            f"datasets.open: {where} holds {[archive.name for archive in archives]} and no ind.* files; Planetoid "
            "files or one .npz are needed. Name the .npz itself."
        )
    return _read_npz((own or archives)[0], split, normalize_features)


def _read_npz(path: Path, split: int, normalize_features: bool) -> RawDataset:
    raw = read_npz(path, normalize_features=normalize_features)
    if raw.split is not None and split != 0:
        raw = read_npz(path, split, normalize_features=normalize_features)
    return raw


def dataset_of(raw: RawDataset, split_seed: int = 0) -> Dataset:
    """Return the arrays of a reader as a Dataset. Without a split of its own it gets a random one of `split_seed`."""
    labels = torch.from_numpy(raw.labels)
    parts = raw.split or random_split(raw.labels, split_seed)
    train, validation, test = (
        ItemSet((ids, labels[ids]), names=("seeds", "labels")) for ids in (torch.from_numpy(part) for part in parts)
    )
    features = {("node", None, name): TensorFeature(value) for name, value in raw.node_features.items()}
    features.update({("edge", None, name): TensorFeature(value) for name, value in raw.edge_features.items()})
    return Dataset(
        name=raw.name,
        graph=CSCGraph.from_edge_index(raw.edge_index, raw.num_nodes),
        features=FeatureStore(features),
        train_set=train,
        validation_set=validation,
        test_set=test,
        num_classes=len(raw.class_names),
        class_names=raw.class_names,
    )


def random_split(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return node ids of train (20 per class), validation (30 per class) and test (the rest), each ascending.

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
