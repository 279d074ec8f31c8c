"""Train on a graph in TFRecord files: load them in parallel into shared memory, and train GraphSAGE.

Run: python examples/from_tfrecords.py [--files FOLDER] [--sequential] [--epochs N] [--workers N]

Without files in FOLDER the embedded graph of Debian's packages is written there first, as records of tf.train.Example:
for each package its id, the ids of its words, its section, and which set it is in; for each dependency its two ends and
its direction. Nothing here needs TensorFlow. The records are then all that is used. Since they are loaded in the order
of the files, the graph has the same digest as the embedded one, and training the same minibatches, as in
examples/node_classification.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from node_classification import train
from training import evaluate, make_model, pipeline, settings_for

import datapipes as dp
from datapipes import datasets

SETS = ("train_set", "validation_set", "test_set")
NO_SET = -1
NUM_FILES = 8


def main() -> None:
    args = parse_arguments()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.files or Path(temporary)
        if not (folder / "nodes").exists():
            write(folder)
        data = load(folder, in_parallel=not args.sequential)
    print(f"{data.graph}, digest {data.graph.digest()[:16]}, {len(data.train_set)} training nodes", flush=True)

    settings = settings_for(data)
    if args.epochs is not None:
        settings = dataclasses.replace(settings, epochs=args.epochs)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // 2))
    torch.manual_seed(args.seed)
    model = make_model(data, settings)
    pipe = pipeline(data, data.train_set, settings.fanouts, settings.batch_size, shuffle=True, seed=args.seed)
    with dp.DataLoader(pipe, num_workers=args.workers) as loader:
        _, best = train(model, data, loader, settings, "accuracy")
    print(f"test accuracy {evaluate(best, data, data.test_set, 'test', 'accuracy'):.4f}")


def write(folder: Path) -> None:
    """Write the embedded graph as TFRecords: a folder of the nodes, and one of the edges."""
    data = datasets.debian_packages()
    num_nodes = data.graph.num_nodes
    section = torch.zeros(num_nodes, dtype=torch.int64)
    which_set = torch.full((num_nodes,), NO_SET)
    for number, name in enumerate(SETS):
        items = getattr(data, name).take(torch.arange(len(getattr(data, name))))
        section[items["seeds"]], which_set[items["seeds"]] = items["labels"], number
    ids = torch.arange(num_nodes)
    words = data.features.read("node", None, "words", ids)
    nodes = {"id": ids, "words": words, "section": section, "set": which_set}
    datasets.write_tf_records(folder / "nodes", nodes, num_files=NUM_FILES)

    positions = torch.arange(data.graph.num_edges)
    direction = data.features.read("edge", None, "direction", positions)
    destination = torch.repeat_interleave(ids, data.graph.indptr.diff())
    edges = {"source": data.graph.indices, "destination": destination, "direction": direction}
    datasets.write_tf_records(folder / "edges", edges, num_files=NUM_FILES, compress=True)


def load(folder: Path, in_parallel: bool) -> datasets.Dataset:
    """Return the data set that the records of a folder hold."""
    number, words = spec(), spec(26)
    nodes = datasets.SerializedTFRecordInfo(
        tfrecord_uri_prefix=folder / "nodes",
        feature_keys=["words"],
        feature_spec={"id": number, "words": words, "section": number, "set": number},
        feature_dim=26,
        entity_key="id",
        label_keys=["section", "set"],
        feature_dtype=torch.int16,
    )
    edges = datasets.SerializedTFRecordInfo(
        tfrecord_uri_prefix=folder / "edges",
        feature_keys=["direction"],
        feature_spec={"source": number, "destination": number, "direction": number},
        feature_dim=1,
        entity_key=("source", "destination"),
        feature_dtype=torch.uint8,
    )
    began = time.perf_counter()
    loaded = datasets.load_torch_tensors_from_tf_record(
        datasets.TFRecordDataLoader(rank=0, world_size=1), datasets.SerializedGraphMetadata(nodes, edges), in_parallel
    )
    print(f"loaded {len(loaded.node_ids)} nodes and {loaded.edge_index.shape[1]} edges in", end=" ")
    print(f"{time.perf_counter() - began:.2f} s", flush=True)

    ids, section, which_set = loaded.node_ids, *loaded.node_labels.unbind(1)
    sets = [dp.ItemSet((ids[chosen], section[chosen])) for chosen in (which_set == n for n in range(len(SETS)))]
    loaded.node_labels = section.unsqueeze(1)
    data = loaded.to_dataset()
    # By these names the model of the examples knows the ids of words, the bag of words and the direction of an edge.
    features = dp.FeatureStore(
        {
            ("node", None, "words"): data.features["node", None, "feat"],
            ("node", None, "feat"): dp.TensorFeature(bag_of(loaded.node_features)),
            ("edge", None, "direction"): dp.TensorFeature(loaded.edge_features[:, 0]),
        }
    )
    return dataclasses.replace(data, features=features, **dict(zip(SETS, sets, strict=True)))


def bag_of(words: torch.Tensor) -> torch.Tensor:
    """Return uint8 [n, number of words], 1 for each word of a node; rows of `words` end with the number of words."""
    num_words = int(words.max())
    bag = torch.zeros(len(words), num_words + 1, dtype=torch.uint8)
    return bag.scatter_(1, words.long(), 1)[:, :num_words].contiguous()


def spec(width: int | None = None) -> SimpleNamespace:
    """Return what `tf.io.FixedLenFeature` would say of integers: one, or `width` of them."""
    return SimpleNamespace(shape=() if width is None else (width,), dtype="int64")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=Path, help="folder of the TFRecords; a temporary one by default")
    parser.add_argument("--sequential", action="store_true", help="load one entity after another")
    parser.add_argument("--epochs", type=int, help="of training; as many as the labels ask for by default")
    parser.add_argument("--seed", type=int, default=0, help="of the model, the order of the seeds and the sampling")
    parser.add_argument("--workers", type=int, default=2, help="processes that sample; 0 samples in a thread")
    return parser.parse_args()


if __name__ == "__main__":
    main()
