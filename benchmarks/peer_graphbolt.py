"""Runs in the peer's interpreter: measures GraphBolt 2.1.0 once for each line on standard input and prints a line.

Arguments: GRAPH (folder) and one of these.

* `sample [THREADS]`: edges and input nodes per second, sampled and compacted; `sample_types`: the same, with the edges
  in 3 node types and 5 relations; `sample_NAME`: the same, of a sampler in SAMPLERS over the values of edge_values.py.
* `gather [THREADS]`: bytes per second of feature rows.
* `end_to_end WORKERS [copy_to]`: minibatches per second of its DataLoader, node features included.
* `training WORKERS COPY BATCH_SIZE HIDDEN STEPS`: steps per second of its DataLoader alone (a line of 0), of the model
  of consumers.py over minibatches that stay (1), and of both (2). COPY is "copy_to" or anything else.
* `consumer WORKERS COPY BATCH_SIZE`: how busy its DataLoader keeps a played device; a line has the milliseconds of a
  step.
* `negatives`, `exclusion`: calls per second of its UniformNegativeSampler (ratio 5) and of exclude_seed_edges, over the
  pairs of links.py.
* `seeds BATCH_SIZE SHUFFLE ITEMS TRANSFORMS [loader]`: minibatches of an ItemSampler over that many items, behind it as
  many transforms that do nothing; its seconds are of a processor.
  `small_chain BATCH_SIZE [loader]`: minibatches of a chain of two hops, [10, 5], and features. See stages.py.
* `accuracy`: trains an epoch of consumers.Classification over the arrays in GRAPH. A line is EPOCHS times the seed of
  the run, plus the epoch. The answer has the accuracy, the seconds spent in `next`, and the seconds of training.

It uses one thread where none are named; a DataLoader without workers and a model use two. 1,024 seeds, fanouts
[15, 10, 5] where the arguments do not say otherwise; as in ours, the last fanout is that of the hop next to the seeds.
A line has what was done, the input nodes, seconds, and seconds of processor time.
"""

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import dgl.graphbolt as gb
import edge_values
import numpy as np
import torch
from consumers import EPOCHS, Classification, Reading, Steps, play_device
from typed_split import split_edges

# What `datapipes bench --peer` measures of GraphBolt, too; the package itself cannot be imported here.
graphbolt = SimpleNamespace(**run_path(str(Path(__file__).parents[1] / "datapipes" / "cli" / "graphbolt_peer.py")))
endless, topology = graphbolt.endless, graphbolt.topology

ROUND_S = 1.0
FANOUTS = [15, 10, 5]
STAYING = 4  # minibatches that the model alone is measured with
AHEAD = 8  # minibatches at most that a loader has made ahead
SAMPLERS = {  # class and arguments
    "weighted": (gb.NeighborSampler, {"prob_name": "weight"}),
    "weighted_replace": (gb.NeighborSampler, {"prob_name": "weight", "replace": True}),
    "labor": (gb.LayerNeighborSampler, {}),
    "in_subgraph": (gb.InSubgraphSampler, {}),
    "temporal_edges": (gb.TemporalNeighborSampler, {"edge_timestamp_attr_name": "time"}),
    "temporal_edges_ascending": (gb.TemporalNeighborSampler, {"edge_timestamp_attr_name": "time"}),
    "temporal_nodes": (gb.TemporalNeighborSampler, {"node_timestamp_attr_name": "time"}),
}


def main() -> None:
    folder, what, *arguments = sys.argv[1:]
    torch.set_num_threads(1)
    kinds = {"training": training, "consumer": consumer, "end_to_end": end_to_end, "gather": gather}
    kinds |= {"negatives": links, "exclusion": links, "seeds": seeds, "small_chain": small_chain}
    measure = accuracy(Path(folder)) if what == "accuracy" else kinds.get(what, sample)(folder, what, *arguments)
    graphbolt.answer_lines(measure)


Measure = Callable[[int], tuple[float, ...]]  # the line -> what was done, input nodes, and seconds if not all count


def sample(folder: str, what: str, threads: str = "1") -> Measure:
    torch.set_num_threads(int(threads))
    arrays = topology(folder)
    name = what.removeprefix("sample_")
    if name in SAMPLERS:
        pipe = sampler_pipe(*arrays, name)
    else:
        pipe = typed_pipe(*arrays) if what == "sample_types" else plain_pipe(*arrays)
    return graphbolt.sampling(pipe, ROUND_S)


def gather(folder: str, _: str, threads: str = "1") -> Measure:
    torch.set_num_threads(int(threads))
    return graphbolt.gathering(plain_pipe(*topology(folder)), features(folder), ["feat"], ROUND_S)


def end_to_end(folder: str, _: str, workers: str, copy: str = "") -> Measure:
    torch.set_num_threads(2 if workers == "0" else 1)
    return graphbolt.loading(loader(folder, workers, copy), ROUND_S)


def training(folder: str, _: str, workers: str, copy: str, batch_size: str, hidden: str, num_steps: str) -> Measure:
    torch.set_num_threads(2)
    stream = endless(loader(folder, workers, copy, int(batch_size), shuffle=False))
    staying: list[gb.MiniBatch] = []
    width = np.load(f"{folder}/feat.npy", mmap_mode="r").shape[1]
    model = Steps(len(np.load(f"{folder}/indptr.npy")) - 1, width, int(hidden), len(FANOUTS), torch.device("cpu"))

    def measure(part: int) -> tuple[float, float, float]:
        if part == 1 and not staying:
            staying.extend(islice(stream, STAYING))
        if part != 1:
            for _ in range(AHEAD):  # skip what was made ahead while other sides were measured
                next(stream)
        began = time.perf_counter()
        for number in range(int(num_steps)):
            minibatch = staying[number % STAYING] if part == 1 else next(stream)
            if part > 0:
                model.step(minibatch.node_features["feat"], blocks_of(minibatch), minibatch.seed_nodes)
        return int(num_steps), 0, time.perf_counter() - began

    return measure


def consumer(folder: str, _: str, workers: str, copy: str, batch_size: str) -> Measure:
    torch.set_num_threads(2)
    stream = endless(loader(folder, workers, copy, int(batch_size), shuffle=False))

    def measure(step_ms: int) -> tuple[float, float, float]:
        play_device(stream, step_ms / 1e3, AHEAD * step_ms / 1e3)
        busy, seconds, _ = play_device(stream, step_ms / 1e3, ROUND_S)
        return busy, 0, seconds

    return measure


def links(folder: str, what: str) -> Measure:
    indptr, indices = topology(folder)
    graph = gb.fused_csc_sampling_graph(torch.from_numpy(indptr), torch.from_numpy(indices))
    pairs = torch.from_numpy(pairs_of(indptr, indices))
    items = gb.ItemSampler(gb.ItemSet(pairs, names="seeds"), batch_size=len(pairs))
    negative = gb.UniformNegativeSampler(items, graph, 5)
    sampled = next(iter(gb.NeighborSampler(items, graph, FANOUTS)))
    subgraphs = list(sampled.sampled_subgraphs)

    def call() -> None:
        if what == "negatives":
            negative._sample(gb.MiniBatch(seeds=pairs))
        else:
            sampled.sampled_subgraphs = list(subgraphs)  # it changes the minibatch
            gb.exclude_seed_edges(sampled)

    def measure(_: int) -> tuple[float, float]:
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < ROUND_S / 4:
            call()
            done += 1
        return done, 0

    return measure


def seeds(
    folder: str, _: str, batch_size: str, shuffle: str, num_items: str, transforms: str, end: str = ""
) -> Measure:
    items = gb.ItemSet(torch.arange(int(num_items)), names="seed_nodes")
    pipe = gb.ItemSampler(items, int(batch_size), shuffle=shuffle == "1")
    for _ in range(int(transforms)):
        pipe = pipe.transform(as_given)
    return reading(pipe, int(num_items), batch_size, end)


def small_chain(folder: str, _: str, batch_size: str, end: str = "") -> Measure:
    arrays = topology(folder)
    pipe = plain_pipe(*arrays, int(batch_size), fanouts=[10, 5])
    pipe = gb.FeatureFetcher(pipe, features(folder), node_feature_keys=["feat"])
    return reading(pipe, len(arrays[0]) - 1, batch_size, end)


def reading(pipe, num_items: int, batch_size: str, end: str) -> Measure:
    read = Reading(gb.DataLoader(pipe) if end else pipe, -(-num_items // int(batch_size)))

    def measure(_: int) -> tuple[float, float, float]:
        done, seconds = read()
        return done, 0, seconds

    return measure


def as_given(minibatch):
    return minibatch


def pairs_of(indptr: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Return the pairs of links.py."""
    positions = np.random.default_rng(1).integers(0, len(indices), 1024)
    return np.stack((indices[positions].astype(np.int64), np.searchsorted(indptr, positions, side="right") - 1), axis=1)


def accuracy(folder: Path) -> Measure:
    torch.set_num_threads(2)
    graph = gb.fused_csc_sampling_graph(*map(torch.from_numpy, topology(folder)))
    words, train = (torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ("words", "train"))
    store = gb.BasicFeatureStore({("node", None, "words"): gb.TorchBasedFeature(words)})
    pipe = gb.ItemSampler(gb.ItemSet(train, names="seed_nodes"), Classification.BATCH_SIZE, shuffle=True)
    pipe = gb.NeighborSampler(pipe, graph, list(Classification.FANOUTS))
    minibatches = gb.DataLoader(gb.FeatureFetcher(pipe, store, node_feature_keys=["words"]))
    run: list[Classification] = []

    def measure(line: int) -> tuple[float, float, float]:
        if line % EPOCHS == 0:
            run[:] = [Classification(folder, line // EPOCHS)]
        given = ((each.node_features["words"], blocks_of(each), each.seed_nodes) for each in minibatches)
        seconds, waited = run[0].epoch(given)
        return run[0].accuracy(), waited, seconds

    return measure


def features(folder: str) -> gb.BasicFeatureStore:
    return graphbolt.features(Path(folder), ["feat"])


def loader(folder: str, workers: str, copy: str, batch_size: int = 1024, *, shuffle: bool = True) -> gb.DataLoader:
    """Return its DataLoader; with a copy, to the CPU, it makes two minibatches ahead in a thread."""
    pipe = plain_pipe(*topology(folder), batch_size, shuffle)
    pipe = gb.FeatureFetcher(pipe, features(folder), node_feature_keys=["feat"])
    if copy == "copy_to":
        pipe = pipe.copy_to("cpu")
    return gb.DataLoader(pipe, num_workers=int(workers))


def blocks_of(minibatch: gb.MiniBatch) -> list:
    """Return the hops as consumers.py reads them."""
    return [hop.sampled_csc for hop in minibatch.sampled_subgraphs]


def plain_pipe(
    indptr: np.ndarray,
    indices: np.ndarray,
    batch_size: int = 1024,
    shuffle: bool = True,
    fanouts: Sequence[int] = FANOUTS,
) -> gb.NeighborSampler:
    ids = np.random.default_rng(1).permutation(len(indptr) - 1)
    return graphbolt.neighbor_sampler((indptr, indices), ids, batch_size, [*fanouts], shuffle)


def sampler_pipe(indptr: np.ndarray, indices: np.ndarray, name: str):
    """Return one of SAMPLERS over the graph with the values that it reads; the seeds have times if it is temporal."""
    num_nodes, edges, nodes = len(indptr) - 1, {}, {}
    if name.startswith("weighted"):
        edges["weight"] = edge_values.weights(len(indices))
    if name.startswith("temporal_edges"):
        edges["time"] = edge_values.edge_times(indptr, ascending=name.endswith("ascending"))
    if name == "temporal_nodes":
        nodes["time"] = edge_values.node_times(num_nodes)
    graph = gb.fused_csc_sampling_graph(
        torch.from_numpy(indptr),
        torch.from_numpy(indices),
        node_attributes={key: torch.from_numpy(values) for key, values in nodes.items()},
        edge_attributes={key: torch.from_numpy(values) for key, values in edges.items()},
    )
    ids = np.random.default_rng(1).permutation(num_nodes)
    given = {"seed_nodes": ids}
    if name.startswith("temporal"):
        given["timestamp"] = edge_values.seed_times(num_nodes)[ids]
        warnings.filterwarnings("ignore", message="Unknown item name")  # its sampler asks for this name
    item_set = gb.ItemSet(tuple(map(torch.from_numpy, given.values())), names=tuple(given))
    items = gb.ItemSampler(item_set, batch_size=1024, shuffle=True)
    kind, arguments = SAMPLERS[name]
    return kind(items, graph, *([] if name == "in_subgraph" else [FANOUTS]), **arguments)


def typed_pipe(indptr: np.ndarray, indices: np.ndarray) -> gb.NeighborSampler:
    """Return its sampler over the relations of typed_split.py: one array of columns, sorted by type within a column."""
    num_nodes, relations = split_edges(indptr, indices)
    offsets = dict(zip(num_nodes, np.cumsum([0, *num_nodes.values()])[:-1].tolist(), strict=True))
    edge_types = sorted(relations)
    sources, destinations, types = [], [], []
    for number, of in enumerate(edge_types):
        ends, neighbors = relations[of]
        sources.append(neighbors + offsets[of[0]])
        destinations.append(np.repeat(np.arange(len(ends) - 1), np.diff(ends)) + offsets[of[2]])
        types.append(np.full(len(neighbors), number, dtype=np.uint8))
    order = np.argsort(np.concatenate(destinations), kind="stable")  # the types of a column stay in order
    total = sum(num_nodes.values())
    counts = np.bincount(np.concatenate(destinations), minlength=total)
    graph = gb.fused_csc_sampling_graph(
        torch.from_numpy(np.concatenate(([0], np.cumsum(counts)))),
        torch.from_numpy(np.concatenate(sources)[order]),
        node_type_offset=torch.tensor([*offsets.values(), total]),
        type_per_edge=torch.from_numpy(np.concatenate(types)[order]),
        node_type_to_id={name: number for number, name in enumerate(num_nodes)},
        edge_type_to_id={":".join(of): number for number, of in enumerate(edge_types)},
    )
    rng = np.random.default_rng(1)
    sets = {name: gb.ItemSet(torch.from_numpy(rng.permutation(n)), names="seed_nodes") for name, n in num_nodes.items()}
    items = gb.ItemSampler(gb.ItemSetDict(sets), batch_size=1024, shuffle=True)
    return gb.NeighborSampler(items, graph, [torch.full((len(edge_types),), fanout) for fanout in FANOUTS])


if __name__ == "__main__":
    main()
