"""How fast does fetch_feature (FeatureFetcher over a TensorFeature) gather rows, on one thread?

The input nodes of minibatches of 1,024 seeds with fanouts [15, 10, 5], rows of feat.npy (400 bytes on the benchmark
graph). Against torch's index_select into fresh memory, and GraphBolt 2.1.0's feature store in its own interpreter
(--peer-python), in alternation; median of 9. Run: python benchmarks/gather.py --graph GRAPH --peer-python PYTHON
Result (2-core AMD EPYC VM, 1M nodes / 20M edges, commits 3701689 and 8ab20ec, five runs on a shared machine):
1.9 to 4.0 GB/s; index_select 1.0 to 1.5, GraphBolt 0.67 to 0.79; 1.9 to 2.9 x and 2.8 to 5.1 x, median 2.6 x and 4.6 x.
"""

from __future__ import annotations

import torch
from common import Peer, alternate, load_graph, parser, report, timed

import datapipes as dp


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    graph, rows = load_graph(args.graph)
    features = torch.from_numpy(rows)
    store = dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(features)})
    sampled = dp.ItemSampler(dp.ItemSet(graph.num_nodes), 1024, shuffle=True, seed=1).sample_neighbor(
        graph, [15, 10, 5]
    )
    fetcher = sampled.fetch_feature(store, node_feature_keys=["feat"])
    stream = iter(sampled)
    minibatches = [next(stream) for _ in range(5)]
    num_bytes = sum(len(minibatch.input_nodes) for minibatch in minibatches) * features[0].nbytes

    def fetch(_: int) -> float:
        return num_bytes / sum(timed(lambda m=minibatch: fetcher.transform(m))[0] for minibatch in minibatches)

    def index_select(_: int) -> float:
        return num_bytes / sum(timed(lambda m=m: features.index_select(0, m.input_nodes))[0] for m in minibatches)

    for minibatch in minibatches:
        wanted = features.index_select(0, minibatch.input_nodes)
        assert torch.equal(fetcher.transform(minibatch).node_features["feat"], wanted)
    sides = {"datapipes (bytes/s)": fetch, "torch.index_select (bytes/s)": index_select}
    peer = Peer(args.peer_python, args.graph, "gather") if args.peer_python else None
    if peer is not None:
        sides["graphbolt 2.1.0 (bytes/s)"] = peer.measure
    figures = alternate(sides, args.repeats)
    for name in list(figures)[1:]:
        figures[f"ratio to {name.rsplit(' ', 1)[0]}"] = figures["datapipes (bytes/s)"] / figures[name]
    if peer is not None:
        peer.close()
    report(figures, args.json)


if __name__ == "__main__":
    main()
