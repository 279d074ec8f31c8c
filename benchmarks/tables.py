"""How fast do tables become a graph, and how fast is sampling it by time?

ids: 10^7 texts ("user8123456", drawn from 10^7, so 6.3 million are distinct), numbered by first occurrence, one thread.
Compared with pandas.factorize of the same Arrow texts, and with pyarrow's dictionary_encode.
typed: a database of customers, 20,000 products and purchases in time, by from_tables, in two shapes: 200,000 customers
with 10 purchases each, as in large sets of RelBench, and 50,000 with 100. 512 customers a minibatch at times of their
own, fanouts [128, 64], trees, the last purchases first. Sampling alone; with two columns of each type; and then with
add_ages, for times of purchases. The first two are compared with torch_geometric's NeighborLoader on pyg-lib over the
same graph, with the same columns as `x`; without pyg-lib this side is left out. One thread each. All in alternation,
median of 7.
Run: python benchmarks/tables.py
Result (2-core VM, shared; ids on commit 94fb26f, typed on d4b679b): 8.7 M texts/s, 2.2 x pandas.factorize (another run,
before a text of up to 12 bytes lay in one line: 1.8 x), dictionary_encode 3.8. With 10 purchases (7,900 edges a
minibatch) 1,022 minibatches/s, 773 with columns; PyG on pyg-lib 0.9.0 272 and 260: 3.8 x and 3.0 x (another run: 4.0 x
and 3.1 x; before types and items of one type were looked up at once: 2.8 to 3.2 x and 2.3 to 2.6 x); half of our ms is
Python. With 100 (52,000 edges) 278 and 227, PyG 58 and 56: 4.8 x and 4.1 x (other runs: 5.2 to 6.1 x and 4.6 to 4.8 x);
ages cost 16 % of either. 10^8 texts, 63 million of them distinct, as the ends of 5 * 10^7 edges
in a Parquet file, become a folder in 48 s in a cgroup of 4 GiB; anonymous memory: 3.4 GB.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import torch
from common import Figures, alternate, parser, report

import datapipes as dp
from datapipes.ingest.ids import Ids

NUM_IDS = 10**7
NUM_PRODUCTS, SECONDS = 20_000, 400 * 86_400
SHAPES = {"10 purchases": (200_000, 2_000_000), "100 purchases": (50_000, 5_000_000)}  # (customers, purchases)
BATCH_SIZE, FANOUTS, MINIBATCHES = 512, [128, 64], 20


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--parts", nargs="*", default=["ids", "typed"], choices=["ids", "typed"])
    arguments.set_defaults(repeats=7)
    args = arguments.parse_args()
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    figures: Figures = {}
    for part in args.parts:
        figures |= ids(args.repeats) if part == "ids" else {}
        for shape in SHAPES if part == "typed" else ():
            figures |= {f"{shape}: {name}": rate for name, rate in typed(*SHAPES[shape], args.repeats).items()}
    report(figures, args.json)


def ids(repeats: int) -> Figures:
    numbers = np.random.default_rng(0).integers(0, NUM_IDS, NUM_IDS)
    texts = pc.binary_join_element_wise(pa.scalar("user"), pa.array(numbers).cast(pa.string()), "")
    series = pd.Series(texts.to_pandas(), dtype="str")
    large = texts.cast(pa.large_string())
    assert np.array_equal(Ids().number([large], add=True)[0], pd.factorize(series)[0])
    sides = {
        "numbered (M texts/s)": lambda: Ids().number([large], add=True),
        "pandas.factorize (M texts/s)": lambda: pd.factorize(series),
        "dictionary_encode (M texts/s)": lambda: pc.dictionary_encode(texts),
    }
    rates = alternate({name: rate_of(side, NUM_IDS / 1e6) for name, side in sides.items()}, repeats, warm_ups=1)
    first, second, _ = rates.values()
    return {**rates, "of pandas.factorize": first / second}


def rate_of(side: Callable[[], Any], count: float) -> Callable[[int], float]:
    def rate(_: int) -> float:
        begin = time.perf_counter()
        side()
        return count / (time.perf_counter() - begin)

    return rate


def shop(num_customers: int, num_purchases: int) -> dict[str, pa.Table]:
    rng = np.random.default_rng(0)
    times = np.sort(rng.integers(0, SECONDS, num_purchases))
    buyers = (rng.pareto(1.2, num_purchases) * 2000).astype(np.int64) % num_customers
    columns = {
        "customers": {
            "id": np.arange(num_customers),
            "age": rng.random(num_customers),
            "income": rng.random(num_customers),
        },
        "products": {
            "id": np.arange(NUM_PRODUCTS),
            "price": rng.random(NUM_PRODUCTS),
            "size": rng.random(NUM_PRODUCTS),
        },
        "purchases": {
            "customer": buyers,
            "product": rng.integers(0, NUM_PRODUCTS, num_purchases),
            "pieces": rng.random(num_purchases),
            "discount": rng.random(num_purchases),
            "at": times,
        },
    }
    return {name: pa.table(of_table) for name, of_table in columns.items()}


def shop_data(num_customers: int, num_purchases: int) -> dp.datasets.Dataset:
    return dp.datasets.from_tables(
        shop(num_customers, num_purchases),
        keys={"customers": "id", "products": "id"},
        links={"purchases": {"customer": "customers", "product": "products"}},
        times={"purchases": "at"},
    )


COLUMNS = {"customers": ["age", "income"], "products": ["price", "size"], "purchases": ["pieces", "discount"]}


def typed(num_customers: int, num_purchases: int, repeats: int) -> Figures:
    data = shop_data(num_customers, num_purchases)
    rng = np.random.default_rng(1)
    seeds = torch.from_numpy(rng.integers(0, num_customers, BATCH_SIZE * MINIBATCHES * 4))
    times = torch.from_numpy(rng.integers(SECONDS // 2, SECONDS, len(seeds)))
    items = dp.HeteroItemSet({"customers": dp.ItemSet((seeds, times), ("seeds", "timestamps"))})
    sampled = dp.ItemSampler(items, BATCH_SIZE).temporal_sample_neighbor(
        data.graph, FANOUTS[::-1], node_time_attr="time", strategy="last", inclusive=True, disjoint=True
    )
    fetched = sampled.fetch_feature(data.features, COLUMNS)
    edges = sum(block.num_edges for hop in next(iter(sampled)).blocks for block in hop.values())
    timed = sampled.fetch_feature(data.features, {**COLUMNS, "purchases": [*COLUMNS["purchases"], "time"]})
    sides = {"sampling (minibatches/s)": stream_of(sampled), "with columns (minibatches/s)": stream_of(fetched)}
    sides["with columns and ages (minibatches/s)"] = stream_of(timed.add_ages({"purchases": ["time"]}, per=86_400))
    sides |= pyg_sides(data, seeds, times)
    rates = alternate({name: rate_of(side, MINIBATCHES) for name, side in sides.items()}, repeats, warm_ups=1)
    figures: Figures = {**rates, "edges in the first minibatch": edges}
    for name in [name for name in rates if name.startswith("pyg, ")]:
        figures[f"{name.split(' (')[0].removeprefix('pyg, ')}: of PyG"] = (
            rates[name.removeprefix("pyg, ")] / rates[name]
        )
    return figures


def stream_of(pipe: dp.Stage) -> Callable[[], Any]:
    return lambda: [minibatch.index for minibatch in itertools.islice(iter(pipe), MINIBATCHES)]


def pyg_sides(data: dp.datasets.Dataset, seeds: torch.Tensor, times: torch.Tensor) -> dict[str, Callable[[], Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch_geometric.typing
        from torch_geometric.data import HeteroData
        from torch_geometric.loader import NeighborLoader
    if not torch_geometric.typing.WITH_PYG_LIB:
        return {}
    sides = {}
    for name, has_columns in (("sampling", False), ("with columns", True)):
        graph = HeteroData()
        for kind in data.graph.node_types:
            graph[kind].num_nodes = data.graph.num_nodes_of(kind)
            if has_columns:
                every = torch.arange(data.graph.num_nodes_of(kind))
                graph[kind].x = torch.stack([data.features["node", kind, one].read(every) for one in COLUMNS[kind]], 1)
        graph["purchases"].time = data.graph.node_attributes_of("purchases")["time"]
        for kind in data.graph.edge_types:
            relation = data.graph.relation(kind)
            dst = torch.repeat_interleave(torch.arange(len(relation.indptr) - 1), relation.indptr.diff())
            graph[kind].edge_index = torch.stack([relation.indices, dst])
        loader = NeighborLoader(
            graph,
            FANOUTS,
            ("customers", seeds),
            input_time=times,
            time_attr="time",
            temporal_strategy="last",
            disjoint=True,
            batch_size=BATCH_SIZE,
        )
        sides[f"pyg, {name} (minibatches/s)"] = lambda loader=loader: [*itertools.islice(loader, MINIBATCHES)]
    return sides


if __name__ == "__main__":
    main()
