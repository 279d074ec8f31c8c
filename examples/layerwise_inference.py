"""Compute the scores of all nodes layer by layer, over a graph and features on disk.

Run: python examples/layerwise_inference.py [--folder FOLDER] [--nodes N] [--batch-size N]

A minibatch that reads all neighbors of all layers computes most nodes again and again, and may take in the whole graph.
Layer by layer each node is computed once in a layer: a chain reads the rows of the layer before from one file, and
`update` writes the rows of this layer into the next. Memory holds one minibatch of nodes and their neighbors.

The graph is a random one, in which most neighbors have the class of a node, so one node alone says little of its class.
It is built in FOLDER (by default a temporary one) unless it is there already. At the end the scores are compared with
those of minibatches with all neighbors.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from graphsage import GraphSAGE, RowEncoder
from torch import Tensor
from torch.nn import functional as F
from training import accuracy, scores, train_epoch

import datapipes as dp

NUM_CLASSES, FEATURES, HIDDEN, DEGREE = 4, 16, 32, 8


def main() -> None:
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as temporary:
        run(args, args.folder or Path(temporary))


def run(args: argparse.Namespace, folder: Path) -> None:
    graph, features = open_or_build(folder, args.nodes)
    print(f"{graph}, {features}")
    torch.manual_seed(0)
    model = GraphSAGE(RowEncoder(FEATURES, HIDDEN, 0.0), [HIDDEN, HIDDEN, NUM_CLASSES], 1, 0.1, own_map=True)
    train(model, graph, features, args.epochs)
    found = infer(model, graph, features, folder, args.batch_size)

    nodes = torch.arange(graph.num_nodes)
    by_layers = found.read(nodes)
    at_once = with_all_neighbors(model, graph, features, args.batch_size)
    print(f"largest difference from all neighbors at once: {float((by_layers - at_once).abs().max()):.1e}")
    print(f"accuracy {accuracy(by_layers, classes_of(nodes)):.4f}")


def classes_of(nodes: Tensor) -> Tensor:
    return nodes % NUM_CLASSES


def open_or_build(folder: Path, num_nodes: int) -> tuple[dp.CSCGraph, dp.DiskFeature]:
    """Return the graph and the features in `folder`, which are made if there are none."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "graph").exists():
        graph = dp.CSCGraph.open(folder / "graph")
        return graph, dp.DiskFeature(folder / "x.npy")
    rng = torch.Generator().manual_seed(0)
    x = new_rows(folder / "x.npy", num_nodes, FEATURES)
    for nodes in torch.arange(num_nodes).split(10_000):
        noise = torch.randn(len(nodes), FEATURES, generator=rng)
        x.update(nodes, noise + F.one_hot(classes_of(nodes), FEATURES))
    x.flush()
    targets = torch.arange(num_nodes).repeat_interleave(DEGREE)
    near = targets + NUM_CLASSES * torch.randint(num_nodes, targets.shape, generator=rng)  # of the same class
    far = torch.randint(num_nodes, targets.shape, generator=rng)
    is_far = torch.rand(targets.shape, generator=rng) < 0.2
    edges = torch.stack([torch.where(is_far, far, near % (num_nodes - num_nodes % NUM_CLASSES)), targets])
    return dp.CSCGraph.build(edges, folder / "graph", num_nodes=num_nodes), x


def new_rows(path: Path, count: int, width: int) -> dp.DiskFeature:
    """Return rows of zeros in a new file, which takes room on the disk as it is written."""
    np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(count, width))
    return dp.DiskFeature(path)


def fetch(source: dp.Stage, feature: dp.DiskFeature) -> dp.Stage:
    return source.fetch_feature(dp.FeatureStore({("node", None, "x"): feature}), ["x"])


def train(model: GraphSAGE, graph: dp.CSCGraph, features: dp.DiskFeature, epochs: int) -> None:
    nodes = torch.arange(graph.num_nodes // 2)
    items = dp.ItemSet((nodes, classes_of(nodes)), names=("seeds", "labels"))
    pipe = dp.ItemSampler(items, 64, shuffle=True).sample_neighbor(graph, [5, 5])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with dp.DataLoader(fetch(pipe, features)) as loader:
        for epoch in range(epochs):
            loss, share = train_epoch(model, loader, optimizer)
            print(f"epoch {epoch}  loss {loss:.4f}  train {share:.4f}")


@torch.no_grad()
def infer(
    model: GraphSAGE, graph: dp.CSCGraph, features: dp.DiskFeature, folder: Path, batch_size: int
) -> dp.DiskFeature:
    """Return the scores of all nodes, [num_nodes, NUM_CLASSES], in a file; each layer has a file in `folder`."""
    model.eval()
    all_nodes = dp.ItemSampler(dp.ItemSet(graph.num_nodes, names="seeds"), batch_size)

    def compute(number: int, width: int, pipe: dp.Stage, rows_of: Callable[[dp.MiniBatch], Tensor]) -> dp.DiskFeature:
        computed = new_rows(folder / f"layer-{number}.npy", graph.num_nodes, width)
        with dp.DataLoader(pipe) as loader:
            for minibatch in loader:
                computed.update(minibatch.seeds, rows_of(minibatch))  # not the feature that the loader reads
        computed.flush()
        print(f"computed {computed.path.name}, {computed.count} rows of {width}")
        return computed

    h = compute(0, HIDDEN, fetch(all_nodes, features), lambda minibatch: model.encoder(minibatch.node_features["x"]))
    for number, layer in enumerate(model.layers, 1):

        def rows_of(minibatch: dp.MiniBatch, layer: torch.nn.Module = layer) -> Tensor:
            rows = layer(minibatch.blocks[0], F.relu(layer.norm(minibatch.node_features["x"])), None)
            return rows[minibatch.compacted_seeds]

        h = compute(number, layer.own.out_features, fetch(all_nodes.sample_neighbor(graph, [-1]), h), rows_of)
    return h


@torch.no_grad()
def with_all_neighbors(model: GraphSAGE, graph: dp.CSCGraph, features: dp.DiskFeature, batch_size: int) -> Tensor:
    """Return the same scores from minibatches with all neighbors of all layers."""
    all_nodes = dp.ItemSampler(dp.ItemSet(graph.num_nodes, names="seeds"), batch_size)
    with dp.DataLoader(fetch(all_nodes.sample_neighbor(graph, [-1] * len(model.layers)), features)) as loader:
        return torch.cat([scores(model, minibatch) for minibatch in loader])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the graph, the features and the layers are; may be empty")
    parser.add_argument("--nodes", type=int, default=4000, help="of a graph that is built")
    parser.add_argument("--batch-size", type=int, default=256, help="nodes of a minibatch")
    parser.add_argument("--epochs", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
