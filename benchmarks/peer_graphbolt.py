"""Runs in the peer's interpreter: measures GraphBolt 2.1.0 once for each line on standard input and prints a line.

Arguments: GRAPH (folder) and "sample" (edges and input nodes per second, sampled and compacted), "sample_types" (the
same, with the edges in 3 node types and 5 relations), "sample_NAME" (the same, of a sampler in SAMPLERS over the values
of edge_values.py), "gather" (bytes per second of feature rows) or "end_to_end_W" (minibatches per second of its
DataLoader with W workers, node features included). It uses one thread, two for its DataLoader without workers. 1,024
seeds, fanouts [15, 10, 5]; as in ours, the last fanout is that of the hop next to the seeds. A line has what was done,
the input nodes, seconds, and seconds of processor time.
"""

import sys
import time
import warnings

import dgl.graphbolt as gb
import edge_values
import numpy as np
import torch
from typed_split import split_edges

ROUND_S = 1.0
FANOUTS = [15, 10, 5]
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
    folder, what = sys.argv[1:3]
    torch.set_num_threads(1)
    arrays = [np.load(f"{folder}/{name}.npy") for name in ("indptr", "indices")]
    sampler = what.removeprefix("sample_")
    if sampler in SAMPLERS:
        pipe = sampler_pipe(*arrays, sampler)
    else:
        pipe = typed_pipe(*arrays) if what == "sample_types" else plain_pipe(*map(torch.from_numpy, arrays))
    if not what.startswith("sample"):
        features = torch.from_numpy(np.load(f"{folder}/feat.npy"))
        store = gb.BasicFeatureStore({("node", None, "feat"): gb.TorchBasedFeature(features)})
    if what == "gather":
        stream = iter(pipe)
        nodes = [next(stream).input_nodes for _ in range(5)]
    if what.startswith("end_to_end"):
        workers = int(what.rsplit("_", 1)[1])
        torch.set_num_threads(2 if workers == 0 else 1)
        pipe = gb.DataLoader(gb.FeatureFetcher(pipe, store, node_feature_keys=["feat"]), num_workers=workers)
    stream = iter(pipe)
    for _ in sys.stdin:
        began, began_processor, done, num_nodes = time.perf_counter(), time.process_time(), 0, 0
        while time.perf_counter() - began < ROUND_S:
            if what == "gather":
                for ids in nodes:
                    rows = store.read("node", None, "feat", ids)
                    done += rows.numel() * rows.element_size()
                continue
            minibatch = next(stream, None)
            if minibatch is None:
                stream = iter(pipe)
            elif what.startswith("sample"):
                done += sum(edges_of(hop.sampled_csc) for hop in minibatch.sampled_subgraphs)
                num_nodes += nodes_of(minibatch.input_nodes)
            else:
                done += 1
        print(done, num_nodes, time.perf_counter() - began, time.process_time() - began_processor, flush=True)


def plain_pipe(indptr: torch.Tensor, indices: torch.Tensor) -> gb.NeighborSampler:
    ids = torch.from_numpy(np.random.default_rng(1).permutation(len(indptr) - 1))
    items = gb.ItemSampler(gb.ItemSet(ids, names="seed_nodes"), batch_size=1024, shuffle=True)
    return gb.NeighborSampler(items, gb.fused_csc_sampling_graph(indptr, indices), FANOUTS)


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


def edges_of(csc) -> int:
    """Return how many edges a hop has, with types or without."""
    return sum(part.indices.numel() for part in (csc.values() if isinstance(csc, dict) else [csc]))


def nodes_of(input_nodes) -> int:
    """Return how many input nodes a minibatch has, with types or without."""
    return sum(map(len, input_nodes.values())) if isinstance(input_nodes, dict) else len(input_nodes)


if __name__ == "__main__":
    main()
