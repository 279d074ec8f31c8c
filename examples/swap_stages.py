"""Compare two samplers by replacing one stage; the rest of the chain, the model and the seed stay the same.

Run: python examples/swap_stages.py [--data debian | FOLDER] [--epochs N]

The first chain samples in every hop for all nodes found so far (frontier "all"). `replaced` makes the second chain from
it, which samples once for each node, in the hop after its first occurrence (frontier "new"). Prints the size and the
time of a minibatch, and how well each chain trains.
"""

from __future__ import annotations

import argparse
import dataclasses
import time

import torch
from training import evaluate, make_model, pipeline, settings_for, train_epoch

import datapipes as dp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="debian", help="'debian', or a folder or .npz that dp.datasets.open reads")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    data = dp.datasets.debian_packages() if args.data == "debian" else dp.datasets.open(args.data)
    settings = dataclasses.replace(settings_for(data), epochs=args.epochs)

    every_hop = pipeline(data, data.train_set, settings.fanouts, settings.batch_size, shuffle=True)
    once = every_hop.replaced(dp.NeighborSampler, sample_once)

    chains = {"all": every_hop, "new": once}
    measured = {
        name: measure(pipe) for _ in range(3) for name, pipe in chains.items()
    }  # both chains in turn; the last round counts
    print(f"{'frontier':10s} {'nodes':>9s} {'edges':>9s} {'minibatches/s':>14s} {'loss':>8s} {'validation':>11s}")
    for name, pipe in chains.items():
        nodes, edges, rate = measured[name]
        loss, accuracy = train(data, pipe, settings)
        print(f"{name:10s} {nodes:9.0f} {edges:9.0f} {rate:14.1f} {loss:8.4f} {accuracy:11.4f}")


def sample_once(old: dp.NeighborSampler) -> dp.NeighborSampler:
    """Return the sampler that replaces `old`, over the same source."""
    return dp.NeighborSampler(old.source, old.graph, old.fanouts, return_edge_ids=old.return_edge_ids, frontier="new")


def measure(pipe: dp.Stage) -> tuple[float, float, float]:
    """Return the mean nodes and edges per minibatch of one epoch, and the minibatches per second without a model."""
    nodes = edges = count = 0
    began = time.perf_counter()
    for minibatch in pipe:
        nodes += len(minibatch.input_nodes)
        edges += sum(block.num_edges for block in minibatch.blocks)
        count += 1
    return nodes / count, edges / count, count / (time.perf_counter() - began)


def train(data: dp.datasets.Dataset, pipe: dp.Stage, settings) -> tuple[float, float]:
    """Train a new model on `pipe`; return the loss of the last epoch and the validation accuracy."""
    torch.manual_seed(0)
    model = make_model(data, settings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    with dp.DataLoader(pipe) as loader:
        loader.set_epoch(0)
        for epoch in range(settings.epochs):
            loss, _ = train_epoch(model, loader, optimizer, title=f"epoch {epoch}")
    return loss, evaluate(model, data, data.validation_set)


if __name__ == "__main__":
    main()
