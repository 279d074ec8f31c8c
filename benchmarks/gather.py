"""How fast does fetch_feature (FeatureFetcher over a TensorFeature) gather rows, and how far is that from memcpy?

First the stage: the input nodes of minibatches of 1,024 seeds with fanouts [15, 10, 5], rows of feat.npy (400 bytes on
the benchmark graph), on one thread and on two. Compared with torch's index_select, into fresh memory (its default) and
into memory that exists already, and with GraphBolt 2.1.0's feature store in its own interpreter (--peer-python), with
an allocator that keeps memory and as installed. Beside it the same features stored as float16, bfloat16 and int8
(`stored_as`), rates in bytes of the float32 rows that come out; all of them lie in huge pages, which numpy asks for
too. Then 250,000 random rows of 4, 16, 64 and 400 bytes and 62,500 of 4,096 bytes from 1 GiB (4 and 16 bytes: 4M rows),
on one thread, compared with both index_selects. The limits are a memcpy of the same bytes, and one random read per line
of the rows. Then what a DistFeatureStore does with ids of two parts: split_ids, with half of the rows here; put_rows,
which gathers those into their places, compared with index_select into memory that is there and without places; and
put_rows of rows that came, compared with index_copy_. Last 10,000 rows of a SparseFeature with 33 entries in 8,415
columns, without and with values, compared with a TensorFeature of the same as dense float32, 1.2 GB. All in
alternation, median of 9.
Run: python benchmarks/gather.py --graph GRAPH --peer-python PYTHON
Result (2-core AMD EPYC VM, shared, 1M nodes / 20M edges, commits 9ddbb91 and 99cefe3): 5.1 and 5.3 GB/s, with two
threads 8.8 and 9.1; index_select 1.24 and 1.31 (4.1 x and 4.0 x), into memory that is there 4.91 and 5.20 (1.04 x and
1.02 x), memcpy 8.7 and 9.3. Random rows (second run), against index_select
into memory that is there: 4 bytes 3.9 x, 16 bytes 3.2 x, 64 bytes 1.7 x, 400 bytes 1.13 x, 4,096 bytes 1.17 x; rows
of 4 to 400 bytes take 0.8 to 1.2 times as long as their lines.
Stored with fewer bits (commit 1bab5b6, six runs, a busy machine): one thread float32 3.9 to 5.0 GB/s, float16 6.1 to
7.6 (1.50 to 1.59 x float32 of the same run), bfloat16 6.1 to 7.5 (1.48 to 1.64 x), int8 8.1 to 9.3 (1.87 to 2.10 x;
0.75 to 0.94 of a memcpy of the rows that come out, which are as large as before); two threads 1.29 to 1.53 x, 1.32 to
1.57 x and 1.79 to 2.00 x.
Of two parts (commit 077f105, a busy machine): split_ids 18 ns an id, put_rows 0.85 to 0.96 x index_select, rows that
came 1.9 to 2.2 x index_copy_.
Beside GraphBolt (2-core Intel Xeon VM, shared, commit 1650a2c, two runs): 4.2 and 4.0 GB/s, GraphBolt 1.43 and 1.40
(3.0 x and 2.9 x), as installed 0.73 and 0.71 (5.8 x and 5.6 x); two threads 7.6 and 7.5, GraphBolt 2.8 and 2.7 (2.7 x
and 2.8 x), as installed 1.7 and 1.6 (4.4 x and 4.8 x).
Rows are prefetched into all caches since commit 3d7ccc8; before, past the outer ones. On an Intel Xeon VM with a last
cache of 480 MB (two cores, busy): rows of 4 bytes 11.3 ns before and 4.7 after, 16 bytes 12.0 and 7.4, 64 bytes 30 and
29, 400 bytes 106 and 90; the stage 3.9 and 4.6 GB/s, 0.97 and 1.04 x index_select into memory that is there.
Sparse rows (2-core AMD EPYC VM, shared and busy, commit 323ebc9, two runs): without values 152 and 153 ns a row, 74 x
dense rows of 33,660 bytes; with values 203 and 217 ns, 55 and 52 x.
"""

from __future__ import annotations

import numpy as np
import torch
from common import Peer, RandomLines, alternate, load_graph, memcpy, parser, peers_of, report, timed, with_threads

import datapipes as dp
from datapipes import _core
from datapipes.base.rows import put_rows

ROWS = 250_000
WIDTHS = (4, 16, 64, 400, 4096)
LINE = 64
STORED_AS = ("float16", "bfloat16", "int8")


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    figures: dict[str, float | str] = {}
    peers = peers_of(args.peer_python, args.graph, "gather")
    pairs = {f"{name}, 2 threads": peer for name, peer in peers_of(args.peer_python, args.graph, "gather 2").items()}
    figures |= stage_figures(args, peers | pairs)
    for peer in (peers | pairs).values():
        peer.close()
    for width in WIDTHS:
        figures |= width_figures(width, args.repeats)
    figures |= parts_figures(args.repeats)
    figures |= sparse_figures(args.repeats)
    stats = _core.pool_stats()
    figures["pool, most bytes in use at once (MB)"] = stats["peak_bytes"] / 1e6
    figures["pool, outputs in memory that was there"] = stats["reused"] / (stats["reused"] + stats["fresh"])
    report(figures, args.json)


def stage_figures(args, peers: dict[str, Peer]) -> dict[str, float]:
    graph, rows = load_graph(args.graph)
    features = torch.from_numpy(rows)
    store = stored(features, None)
    items = dp.ItemSampler(dp.ItemSet(graph.num_nodes), 1024, shuffle=True, seed=1)
    sampled = items.sample_neighbor(graph, [15, 10, 5])
    fetcher = sampled.fetch_feature(store, node_feature_keys=["feat"])
    stream = iter(sampled)
    minibatches = [next(stream) for _ in range(5)]
    nodes = [minibatch.input_nodes for minibatch in minibatches]
    outs = [torch.empty(len(ids), *features.shape[1:], dtype=features.dtype) for ids in nodes]
    for minibatch in minibatches:
        wanted = features.index_select(0, minibatch.input_nodes)
        assert torch.equal(fetcher.transform(minibatch).node_features["feat"], wanted)
    num_bytes = sum(map(len, nodes)) * features[0].nbytes
    stores = {f"stored as {name}": stored(features, name) for name in STORED_AS}
    fetchers = {name: sampled.fetch_feature(other, node_feature_keys=["feat"]) for name, other in stores.items()}

    def rate(work):
        """Bytes per second over all minibatches; each result is released before the next."""
        return lambda _: num_bytes / sum(timed(lambda i=i: work(i))[0] for i in range(len(nodes)))

    def reused(i: int) -> None:
        torch.index_select(features, 0, nodes[i], out=outs[i])

    sides = {
        "fetch_feature": rate(lambda i: fetcher.transform(minibatches[i])),
        "fetch_feature, 2 threads": with_threads(2, rate(lambda i: fetcher.transform(minibatches[i]))),
        "index_select": rate(lambda i: features.index_select(0, nodes[i])),
        "index_select, reused memory": rate(reused),
        "memcpy": memcpy(num_bytes // len(nodes)),
    }
    for name, other in fetchers.items():
        sides[name] = rate(lambda i, other=other: other.transform(minibatches[i]))
        sides[f"{name}, 2 threads"] = with_threads(2, sides[name])
    sides |= {name: peer.measure for name, peer in peers.items()}
    rates = alternate(sides, args.repeats)
    figures = {f"{name} (GB/s)": value / 1e9 for name, value in rates.items()}
    for name in sides:
        if name.removesuffix(", 2 threads") in ("fetch_feature", *fetchers):
            continue
        threads = ", 2 threads" if name.endswith(", 2 threads") else ""
        figures[f"fetch_feature{threads}, ratio to {name}"] = rates[f"fetch_feature{threads}"] / rates[name]
    for name in fetchers:
        for threads in ("", ", 2 threads"):
            ratio = rates[f"{name}{threads}"] / rates[f"fetch_feature{threads}"]
            figures[f"{name}{threads}, ratio to float32"] = ratio
    return figures


def stored(features: torch.Tensor, stored_as: str | None) -> dp.FeatureStore:
    return dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(features, stored_as=stored_as)})


def width_figures(width: int, repeats: int) -> dict[str, float]:
    count = 4_000_000 if width < LINE else 2**30 // width
    rng = np.random.default_rng(0)
    table = torch.from_numpy(np.ones((count, width // 4), dtype=np.float32))
    ids = torch.from_numpy(rng.integers(0, count, ROWS if width < 4096 else ROWS // 4))
    feature, out = dp.TensorFeature(table), torch.zeros(len(ids), width // 4)
    num_bytes = len(ids) * width

    def rate(work):
        return lambda _: num_bytes / timed(work)[0]

    lines = (width + LINE - 4) / LINE if width > LINE // 2 else 1.0  # per row, averaged over its offset in a line
    sides = {
        "TensorFeature.read": rate(lambda: feature.read(ids)),
        "index_select": rate(lambda: table.index_select(0, ids)),
        "index_select, reused memory": rate(lambda: torch.index_select(table, 0, ids, out=out)),
        "memcpy": memcpy(num_bytes),
        "lines": RandomLines(table.nbytes),
    }
    rates = alternate(sides, repeats)
    ours = rates["TensorFeature.read"]
    figures = {f"rows of {width} B: TensorFeature.read (GB/s)": ours / 1e9}
    figures[f"rows of {width} B: (ns/row)"] = width / ours * 1e9
    for name in list(rates)[1:-1]:
        figures[f"rows of {width} B: ratio to {name}"] = ours / rates[name]
    figures[f"rows of {width} B: time over its lines"] = width / ours / (lines / rates["lines"])
    return figures


def parts_figures(repeats: int) -> dict[str, float]:
    """Rows of 400 bytes of a graph of 1M nodes in two parts, half of them in this one."""
    num_nodes, width = 1_000_000, 100
    made = torch.Generator().manual_seed(0)
    parts = torch.randint(0, 2, (num_nodes,), generator=made, dtype=torch.uint8)
    own = (parts == 0).nonzero().flatten()
    owners, rank = _core.PartMap(parts.numpy(), 2, num_nodes), _core.IdRank(own.numpy(), num_nodes)
    table = torch.rand(len(own), width)
    ids = torch.randperm(num_nodes, generator=made)[:ROWS]
    out = torch.zeros(ROWS, width)

    def split():
        return _core.split_ids("gather", owners, ids.numpy(), part=0, rank=rank)

    places, rows, bounds = split()
    here, numbers = torch.from_numpy(places[: bounds[1]]), torch.from_numpy(rows[: bounds[1]])
    there, came = torch.from_numpy(places[bounds[3] :]), torch.rand(ROWS - bounds[1], width)
    dense = torch.zeros(len(here), width)

    def rate(work, num_bytes: int):
        return lambda _: num_bytes / timed(work)[0]

    rates = alternate(
        {
            "split": lambda _: ROWS / timed(split)[0],
            "put": rate(lambda: put_rows(out, here, table, numbers), dense.nbytes),
            "select": rate(lambda: torch.index_select(table, 0, numbers, out=dense), dense.nbytes),
            "put what came": rate(lambda: put_rows(out, there, came), came.nbytes),
            "copy what came": rate(lambda: out.index_copy_(0, there, came), came.nbytes),
        },
        repeats,
    )
    return {
        "split_ids (ns/id)": 1e9 / rates["split"],
        "put_rows (GB/s)": rates["put"] / 1e9,
        "put_rows, ratio to index_select, reused memory": rates["put"] / rates["select"],
        "put_rows of rows that came (GB/s)": rates["put what came"] / 1e9,
        "put_rows of rows that came, ratio to index_copy_": rates["put what came"] / rates["copy what came"],
    }


def sparse_figures(repeats: int) -> dict[str, float]:
    """Rows of the sizes of Coauthor Physics."""
    count, columns, entries = 34_493, 8415, 33
    rng = np.random.default_rng(0)
    indptr = torch.arange(count + 1) * entries
    indices = torch.from_numpy(rng.integers(0, columns, count * entries, dtype=np.int32))
    ids = torch.from_numpy(rng.integers(0, count, 10_000))
    bags = dp.SparseFeature(indptr, indices, num_columns=columns)
    valued = dp.SparseFeature(indptr, indices, torch.ones(len(indices)), num_columns=columns)
    table = torch.zeros(count, columns)
    table[torch.arange(count).repeat_interleave(entries), indices.long()] = 1
    dense = dp.TensorFeature(table)
    works = {"ids": lambda: bags.read(ids), "values": lambda: valued.read(ids), "dense": lambda: dense.read(ids)}
    rates = alternate({name: lambda _, work=work: len(ids) / timed(work)[0] for name, work in works.items()}, repeats)
    figures = {f"SparseFeature, {name} (ns/row)": 1e9 / rates[name] for name in ("ids", "values")}
    return figures | {
        f"SparseFeature, {name}, ratio to dense": rates[name] / rates["dense"] for name in ("ids", "values")
    }


if __name__ == "__main__":
    main()
