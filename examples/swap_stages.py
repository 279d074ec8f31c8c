"""Compare samplers and fanouts on one data set: how well each trains, in what time, and on how many input nodes.

Run: python examples/swap_stages.py [--data debian | FOLDER] [--samplers NAME ...] [--fanouts N ...] [--plot FILE.png]

There is one chain. For each point of the grid `pipe.replaced(dp.NeighborSampler, ...)` makes another from it, with the
sampler of that point; the seeds, the features, the model and the schedule stay the same.

| sampler | draws |
|---|---|
| neighbor | in every hop for all nodes found so far |
| new | once for each node, in the hop after its first occurrence |
| weighted | by the weight 1 / (number of out-edges of the source), so seldom used neighbors come more often |
| labor | sources that many destinations share, so fewer input nodes (LABOR-0) |
| labor-layer | the same, with the same choice in all hops |
| in-subgraph | all in-edges of the seeds; the model has one layer, and there is one such row |
| temporal | in-edges whose source is not younger than the seed; needs a node feature with years (--year) |

A fanout N is N in-edges a node in every hop; the settings give the number of hops. Columns: input nodes and edges of a
mean minibatch; milliseconds to sample and fetch one, without a model; seconds of a training epoch; loss of the last
epoch; accuracy on validation and test nodes, which is computed with all neighbors whatever was trained on. All but the
first two are means over --seeds. `--plot` draws accuracy against both costs; it needs matplotlib. The default, six
samplers on the embedded graph, takes two minutes on two processors; `--fanouts 5 10 --epochs 16` takes ten.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from training import Settings, evaluate, make_model, num_input_nodes, pipeline, settings_for, train_epoch

import datapipes as dp

SAMPLERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "neighbor": (dp.NeighborSampler, {}),
    "new": (dp.NeighborSampler, {"frontier": "new"}),
    "weighted": (dp.NeighborSampler, {"prob_name": "weight"}),
    "labor": (dp.LayerNeighborSampler, {}),
    "labor-layer": (dp.LayerNeighborSampler, {"layer_dependency": True}),
    "in-subgraph": (dp.InSubgraphSampler, {}),
    "temporal": (dp.TemporalNeighborSampler, {"node_time_attr": "year", "inclusive": True}),
}


SHORT_EPOCHS = 3  # on the embedded graph, enough to tell samplers apart: the whole grid takes two minutes


class Point(NamedTuple):
    """One row of the table."""

    sampler: str
    fanout: int
    nodes: float
    edges: float
    milliseconds: float
    seconds: float
    loss: float
    validation: float
    test: float


def main() -> None:
    args = parse_arguments()
    if args.plot is not None and find_spec("matplotlib") is None:
        raise SystemExit("--plot needs matplotlib: pip install matplotlib; without --plot there is only the table.")
    data = dp.datasets.debian_packages() if args.data == "debian" else dp.datasets.open(args.data)
    if data.task != "node_classification":
        raise SystemExit(f"{data.name} is a data set for {data.task}; this experiment classifies nodes.")
    samplers = args.samplers
    data = with_weights(data)
    if ("node", None, args.year) in data.features:
        data = with_years(data, args.year)
    elif "temporal" in samplers:
        print(f"temporal is left out: {data.name} has no node feature {args.year!r}")
        samplers = [name for name in samplers if name != "temporal"]
    torch.set_num_threads(args.threads)
    settings = settings_for(data)
    by_data = SHORT_EPOCHS if args.data == "debian" else settings.epochs
    settings = dataclasses.replace(settings, epochs=args.epochs or by_data)
    print(f"{data.name}: {len(settings.fanouts)} hops, {settings.epochs} epochs, seeds {args.seeds}")
    print("sampler      fanout   nodes    edges  ms/minibatch  s/epoch    loss  validation    test", flush=True)
    points = []
    for name in samplers:
        for fanout in [-1] if name == "in-subgraph" else args.fanouts:
            points.append(run(data, settings, name, fanout, args.seeds))
            print(
                "{:12s} {:6d} {:7.0f} {:8.0f} {:13.1f} {:8.2f} {:7.4f} {:11.4f} {:7.4f}".format(*points[-1]), flush=True
            )
    if args.plot is not None:
        draw(points, data.name, args.plot)
        print(f"plot: {args.plot}")


def chain_of(data: dp.datasets.Dataset, settings: Settings, name: str, seed: int) -> dp.Stage:
    """Return the chain of training with another sampler in it."""
    pipe = pipeline(data, data.train_set, settings.fanouts, settings.batch_size, shuffle=True, seed=seed)
    kind, options = SAMPLERS[name]

    def swapped(old: dp.NeighborSampler) -> dp.Stage:
        fanouts = [] if name == "in-subgraph" else [old.fanouts]
        return kind(old.source, old.graph, *fanouts, return_edge_ids=old.return_edge_ids, **options)

    return pipe.replaced(dp.NeighborSampler, swapped)


def run(data: dp.datasets.Dataset, settings: Settings, name: str, fanout: int, seeds: list[int]) -> Point:
    """Measure one sampler with one fanout, a new model for each seed."""
    hops = 1 if name == "in-subgraph" else len(settings.fanouts)
    settings = dataclasses.replace(settings, fanouts=(fanout,) * hops)
    nodes, edges, milliseconds = cost_of(chain_of(data, settings, name, seeds[0]))
    trained = [train(data, chain_of(data, settings, name, seed), settings, seed) for seed in seeds]
    return Point(name, fanout, nodes, edges, milliseconds, *map(statistics.fmean, zip(*trained, strict=True)))


def cost_of(pipe: dp.Stage) -> tuple[float, float, float]:
    """Return the mean input nodes, edges and milliseconds of the minibatches of one epoch, without a model."""
    nodes = edges = count = 0
    began = time.perf_counter()
    for minibatch in pipe:
        nodes += num_input_nodes(minibatch)
        blocks = [
            each for block in minibatch.blocks for each in (block.values() if isinstance(block, dict) else [block])
        ]
        edges += sum(block.num_edges for block in blocks)
        count += 1
    return nodes / count, edges / count, (time.perf_counter() - began) / count * 1e3


def train(
    data: dp.datasets.Dataset, pipe: dp.Stage, settings: Settings, seed: int
) -> tuple[float, float, float, float]:
    """Train a new model on `pipe`; return the seconds of an epoch, the last loss, validation and test accuracy."""
    torch.manual_seed(seed)
    model = make_model(data, settings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    steps = settings.epochs * len(pipe)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.learning_rate, total_steps=steps)
    spent = []
    with dp.DataLoader(pipe) as loader:
        for epoch in range(settings.epochs):
            began = time.perf_counter()
            loss, _ = train_epoch(model, loader, optimizer, schedule, f"epoch {epoch}")
            spent.append(time.perf_counter() - began)
    sets = (data.validation_set, data.test_set)
    validation, test = (evaluate(model, data, items) if len(items) > 0 else math.nan for items in sets)
    return statistics.median(spent), loss, validation, test


def with_weights(data: dp.datasets.Dataset) -> dp.datasets.Dataset:
    """Return `data` with the edge attribute "weight": 1 / (number of out-edges of the source in its edge type)."""
    graph = data.graph
    weights = {}
    for edge_type in graph.edge_types:
        indices = graph.relation(edge_type).indices
        weights[edge_type] = {"weight": 1 / indices.bincount()[indices].float()}
    if not graph.is_heterogeneous:
        return dataclasses.replace(data, graph=with_attributes(graph, {}, weights[None]))
    relations = {of: graph.relation(of) for of in graph.edge_types}
    graph = dp.HeteroCSCGraph(
        {of: (each.indptr, each.indices) for of, each in relations.items()},
        graph.num_nodes,
        edge_attributes=weights,
        edge_ids={of: each.edge_ids for of, each in relations.items() if each.edge_ids is not None},
    )
    return dataclasses.replace(data, graph=graph)


def with_years(data: dp.datasets.Dataset, feature: str) -> dp.datasets.Dataset:
    """Return `data` with the node attribute "year", and with the year of each training node as its timestamp."""
    years = data.features.read("node", None, feature, torch.arange(data.graph.num_nodes)).flatten().long()
    items = data.train_set.take(torch.arange(len(data.train_set)))
    train_set = dp.ItemSet((*items.values(), years[items["seeds"]]), names=(*items, "timestamps"))
    return dataclasses.replace(data, graph=with_attributes(data.graph, {"year": years}, {}), train_set=train_set)


def with_attributes(graph: dp.CSCGraph, nodes: dict[str, torch.Tensor], edges: dict[str, torch.Tensor]) -> dp.CSCGraph:
    """Return a graph of the same edges with more attributes."""
    return dp.CSCGraph(
        graph.indptr,
        graph.indices,
        node_attributes={**graph.node_attributes, **nodes},
        edge_attributes={**graph.edge_attributes, **edges},
        edge_ids=graph.edge_ids,
    )


def draw(points: list[Point], title: str, path: Path) -> None:
    """Write a picture: accuracy against the time of an epoch, and against the input nodes of a minibatch."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True, constrained_layout=True)
    for axes, cost, label in zip(
        panels, ("seconds", "nodes"), ("seconds per epoch", "input nodes per minibatch"), strict=True
    ):
        for name in dict.fromkeys(point.sampler for point in points):
            own = [point for point in points if point.sampler == name]
            axes.plot([getattr(point, cost) for point in own], [point.test for point in own], marker="o", label=name)
            for point in own:
                axes.annotate(f" {point.fanout}", (getattr(point, cost), point.test), fontsize=8)
        axes.set(xlabel=label)
        axes.grid(alpha=0.3)
    panels[0].set(ylabel="test accuracy")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    figure.suptitle(f"{title}: samplers, each with the fanouts beside its points")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="debian", help="'debian', or a folder or .npz that dp.datasets.open reads")
    parser.add_argument("--samplers", nargs="+", choices=list(SAMPLERS), default=list(SAMPLERS), metavar="NAME")
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10], help="in-edges a node, one row for each")
    parser.add_argument("--epochs", type=int, help=f"{SHORT_EPOCHS} on the embedded graph, else by the data")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="of model, order and sampling; means are shown"
    )
    parser.add_argument("--year", default="node_year", help="the node feature that the temporal sampler reads")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--plot", type=Path, help="write a picture to this file")
    args = parser.parse_args()
    if args.epochs is not None and args.epochs < 1:
        parser.error(f"--epochs must be 1 or more, got {args.epochs}")
    if args.plot is not None and not args.plot.absolute().parent.is_dir():
        parser.error(f"--plot: there is no folder {args.plot.parent} to write to")
    return args


if __name__ == "__main__":
    main()
