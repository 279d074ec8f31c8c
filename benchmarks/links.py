"""What do negatives, exclusion of the seeds and subgraph forms cost beside sampling, copies, and GraphBolt's stages?

1,024 pairs that are edges of the graph, fanouts [15, 10, 5], one thread, by processor time, the sides in alternation,
median of 9. sample_uniform_negative (ratio 5: plain, strict, by weight, both, strict with sources drawn; and
sample_negative with an empty function; sample_in_batch_negative; sample_historical_negative over the graph as if it
were the reversed one) beside sample_neighbor over the pairs. exclude_seed_edges beside a memcpy of the blocks, into
memory that is there. subgraph_type induced and bidirectional: ns per in-edge that is read. With --peer-python also
GraphBolt 2.1.0's UniformNegativeSampler and exclude_seed_edges over the same pairs, with an allocator that keeps memory
and as installed.
Run: python benchmarks/links.py --graph GRAPH --peer-python PYTHON
Result (2-core VM, shared, 1M nodes / 20M edges, torch 2.13.0 CPU, commit 6019c55):

| what | ms | beside |
|---|---|---|
| sampling the pairs; with the negatives of ratio 5 | 19.0; 35.9 | |
| negatives, plain | 0.054 | 0.3% of sampling the pairs; GraphBolt 0.116 (2.2 x), as installed 2.1 x |
| negatives, strict; sources drawn; both ends | 1.58; 2.14; 1.48 | 8.3%; 11.2%; 7.8% |
| negatives by weight; and strict | 1.11; 2.73 | 5.9%; 14.4% |
| negatives in batch (made graph, 4M edges, commit d2c40ee) | 0.12 | plain 0.03, empty function 0.04, sampling 5.1 |
| historical negatives (the same graph, commit a8d4f45) | 9.5 | 32 ns per earlier edge of a source |
| exclusion; with reverses | 1.55; 1.74 | 2.3 times a memcpy of the blocks; GraphBolt 72 (46 x), as installed 46 x |
| induced; bidirectional | 538; 269 | 36 and 18 ns per in-edge of the nodes, where reading these alone takes 7 |
"""

from __future__ import annotations

import time
from collections.abc import Callable

import edge_values
import numpy as np
import torch
from common import Figures, Peer, alternate, load_graph, parser, peers_of, report

import datapipes as dp

NUM_PAIRS, RATIO, FANOUTS = 1024, 5, [15, 10, 5]
ROUND_S = 0.2

NEGATIVES: dict[str, dict[str, object]] = {
    "plain": {},
    "strict": {"strict": True},
    "by weight": {"dst_weight": True},
    "strict, by weight": {"dst_weight": True, "strict": True},
    "both ends, strict": {"corrupt": "both", "strict": True},
    "sources, strict": {"corrupt": "src", "strict": True},
}


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    graph, _ = load_graph(args.graph)
    pairs = torch.from_numpy(pairs_of(graph.indptr.numpy(), graph.indices.numpy()))
    start = dp.ItemSampler(dp.ItemSet(pairs), NUM_PAIRS, seed=1)
    seeds = next(iter(start)).replace(rng=dp.stages.RngKey(1, 0, 0, 1))  # as the runtime gives it to a stage
    report(
        {
            **negatives(graph, start, seeds, args),
            **exclusion(graph, start, seeds, args),
            **forms(graph, start, seeds, args),
        },
        args.json,
    )


def pairs_of(indptr: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Return the same edges as the peer takes: source and destination of each."""
    positions = np.random.default_rng(1).integers(0, len(indices), NUM_PAIRS)
    return np.stack((indices[positions].astype(np.int64), np.searchsorted(indptr, positions, side="right") - 1), axis=1)


def calls(work: Callable[[], object]) -> Callable[[int], float]:
    """Return a side: calls per second of processor time."""

    def measure(_: int) -> float:
        began, done = time.process_time(), 0
        while time.process_time() - began < ROUND_S:
            work()
            done += 1
        return done / (time.process_time() - began)

    return measure


def of_peer(peer: Peer) -> Callable[[int], float]:
    def measure(round_: int) -> float:
        done, _, _, seconds = peer.counts(round_)
        return done / seconds

    return measure


def with_peers(sides: dict[str, Callable[[int], float]], args, what: str) -> dict[str, float]:
    """Return milliseconds of a call of each side."""
    peers = peers_of(args.peer_python, args.graph, what)
    rates = alternate({**sides, **{name: of_peer(peer) for name, peer in peers.items()}}, args.repeats)
    for peer in peers.values():
        peer.close()
    return {name: 1e3 / rate for name, rate in rates.items()}


def negatives(graph: dp.CSCGraph, start: dp.Stage, seeds: dp.MiniBatch, args) -> Figures:
    weights = torch.from_numpy(np.random.default_rng(2).random(graph.num_nodes))
    sampler = start.sample_neighbor(graph, FANOUTS)
    sides = {"sampling": calls(lambda: sampler.transform(seeds))}
    empty = start.sample_negative(RATIO, lambda pairs, *_: pairs)
    sides["empty function"] = calls(lambda: empty.transform(seeds))
    for name, options in NEGATIVES.items():
        given = {**options, **({"dst_weight": weights} if "dst_weight" in options else {})}
        stage = start.sample_uniform_negative(graph, RATIO, **given)
        sides[name] = calls(lambda stage=stage: stage.transform(seeds))
    in_batch = start.sample_in_batch_negative(RATIO)
    sides["in batch"] = calls(lambda: in_batch.transform(seeds))
    timed = dp.CSCGraph(
        graph.indptr, graph.indices, edge_attributes={"at": edge_values.edge_times(graph.indptr.numpy())}
    )
    at = torch.from_numpy(edge_values.seed_times(NUM_PAIRS))
    items = dp.ItemSet((start.item_set[:], at), names=("seeds", "timestamps"))
    historical = dp.ItemSampler(items, NUM_PAIRS).sample_historical_negative(timed, RATIO, edge_time_attr="at")
    sides["historical"] = calls(lambda: historical.transform(seeds.replace(timestamps=at)))
    ms = with_peers(sides, args, "negatives")
    with_negatives = start.sample_uniform_negative(graph, RATIO).transform(seeds).replace(rng=seeds.rng)
    whole = 1e3 / alternate({"it": calls(lambda: sampler.transform(with_negatives))}, args.repeats)["it"]
    figures: Figures = {"sampling the pairs (ms)": ms.pop("sampling"), "sampling with the negatives (ms)": whole}
    earlier = graph.in_degrees()[seeds.seeds[:, 0]].sum().item() * 0.75  # as edge_values.py says
    figures["negatives: historical (ns per earlier edge)"] = 1e6 * ms["historical"] / earlier
    for name, each in ms.items():
        figures[f"negatives: {name} (ms)"] = each
        if name in NEGATIVES:
            figures[f"negatives: {name}, share of sampling the pairs"] = each / figures["sampling the pairs (ms)"]
        elif name not in ("empty function", "in batch", "historical"):
            figures[f"negatives: plain, faster than {name}"] = each / ms["plain"]
    return figures


def exclusion(graph: dp.CSCGraph, start: dp.Stage, seeds: dp.MiniBatch, args) -> Figures:
    sampled = start.sample_neighbor(graph, FANOUTS, return_edge_ids=False)
    minibatch = sampled.transform(seeds)
    stage, both = sampled.exclude_seed_edges(), sampled.exclude_seed_edges(include_reverse_edges=True)
    copies = [(block.indptr.clone(), block.indices.clone()) for block in minibatch.blocks]

    def memcpy() -> None:
        for (indptr, indices), block in zip(copies, minibatch.blocks, strict=True):
            indptr.copy_(block.indptr)
            indices.copy_(block.indices)

    sides = {
        "it": calls(lambda: stage.transform(minibatch)),
        "with reverses": calls(lambda: both.transform(minibatch)),
        "memcpy": calls(memcpy),
    }
    ms = with_peers(sides, args, "exclusion")
    edges = sum(block.num_edges for block in minibatch.blocks)
    figures: Figures = {
        "exclusion: edges of the minibatch": float(edges),
        "exclusion: edges taken out": float(edges - sum(b.num_edges for b in stage.transform(minibatch).blocks)),
        "exclusion (ms)": ms["it"],
        "exclusion, with reverses (ms)": ms["with reverses"],
        "memcpy of the blocks (ms)": ms["memcpy"],
        "exclusion: times a memcpy": ms["it"] / ms["memcpy"],
    }
    for name in ms.keys() - {"it", "with reverses", "memcpy"}:
        figures[f"exclusion: {name} (ms)"] = ms[name]
        figures[f"exclusion: faster than {name}"] = ms[name] / ms["it"]
    return figures


def forms(graph: dp.CSCGraph, start: dp.Stage, seeds: dp.MiniBatch, args) -> Figures:
    plain = start.sample_neighbor(graph, FANOUTS)
    nodes = plain.transform(seeds).input_nodes.long()
    read = int((graph.indptr[nodes + 1] - graph.indptr[nodes]).sum())
    all_of = dp.ItemSampler(dp.ItemSet(nodes), len(nodes)).sample_in_subgraph(graph)
    of_nodes = dp.MiniBatch(seeds=nodes, rng=seeds.rng)
    sides = {"all in-edges of the nodes": calls(lambda: all_of.transform(of_nodes))}
    for form in ("induced", "bidirectional"):
        stage = start.sample_neighbor(graph, FANOUTS, subgraph_type=form)
        sides[form] = calls(lambda stage=stage: stage.transform(seeds))
    ms = {name: 1e3 / rate for name, rate in alternate(sides, args.repeats, warm_ups=1).items()}
    figures: Figures = {"forms: nodes": float(len(nodes)), "forms: in-edges of the nodes": float(read)}
    for name, each in ms.items():
        figures[f"forms: {name} (ms)"] = each
        figures[f"forms: {name} (ns per in-edge of the nodes)"] = each * 1e6 / read
    return figures


if __name__ == "__main__":
    main()
