"""Runs in the peer's interpreter: measures GraphBolt 2.1.0 once for each line on standard input and prints the rate.

Arguments: GRAPH (folder) and "sample" (edges per second, sampled and compacted), "gather" (bytes per second of
feature rows) or "end_to_end_W" (minibatches per second of its DataLoader with W workers, node features included). It
uses one thread, two for its DataLoader without workers. 1,024 seeds, fanouts [15, 10, 5]; as in ours, the last fanout
is that of the hop next to the seeds.
"""

import sys
import time

import dgl.graphbolt as gb
import numpy as np
import torch

ROUND_S = 1.0


def main() -> None:
    folder, what = sys.argv[1:3]
    torch.set_num_threads(1)
    indptr, indices = (torch.from_numpy(np.load(f"{folder}/{name}.npy")) for name in ("indptr", "indices"))
    graph = gb.fused_csc_sampling_graph(indptr, indices)
    ids = torch.from_numpy(np.random.default_rng(1).permutation(len(indptr) - 1))
    items = gb.ItemSet(ids, names="seed_nodes")
    pipe = gb.NeighborSampler(gb.ItemSampler(items, batch_size=1024, shuffle=True), graph, [15, 10, 5])
    if what != "sample":
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
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < ROUND_S:
            if what == "gather":
                for ids in nodes:
                    rows = store.read("node", None, "feat", ids)
                    done += rows.numel() * rows.element_size()
                continue
            minibatch = next(stream, None)
            if minibatch is None:
                stream = iter(pipe)
            elif what == "sample":
                done += sum(hop.sampled_csc.indices.numel() for hop in minibatch.sampled_subgraphs)
            else:
                done += 1
        print(done / (time.perf_counter() - began), flush=True)


if __name__ == "__main__":
    main()
