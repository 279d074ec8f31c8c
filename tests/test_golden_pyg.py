"""Golden digests of the batches of datapipes.pyg: its loaders, its sampler in PyG's loaders, and those over parts.

The draws are those of docs/semantics.md at stream version 1, so they change only together with STREAM_VERSION. What
else a digest holds, the fields of a batch and their forms, is PyG's to decide: it may change with a version of
torch_geometric whose own loaders make another batch, and never by a change of this package alone.

The digests are in tests/golden.json, where their names begin with "pyg: ". One is of the first two batches of an
epoch, over parts of the first two of each rank.
"""

import copy
import json
import random
from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import golden_graphs as golden
import numpy as np
import pytest
import torch
from amounts import ranked
from pyg_cases import Data, HeteroData, pyg, stores_of
from pyg_digest import digest_of
from pyg_ranks import TIMEOUT_S, answers, context_of, cut, in_ranks, links_of, nodes_of, port_of_all, stores
from torch import Tensor

import datapipes as dp
from datapipes.pyg import loader as loaders
from datapipes.pyg.distributed import (
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistNeighborSampler,
    init_rpc,
    shutdown_rpc,
)
from datapipes.pyg.loader import LinkLoader, LinkNeighborLoader, NeighborLoader, NodeLoader
from datapipes.pyg.sampler import NeighborSampler

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*positive links:UserWarning"),  # these sample the links themselves
    pytest.mark.filterwarnings("ignore:Cannot convert to bidirectional graph"),
]

NegativeSampling, NodeSamplerInput = pyg.sampler.NegativeSampling, pyg.sampler.NodeSamplerInput
SEED, NUM_NODES, NUM_EDGES = golden.SEED, golden.NUM_NODES, golden.NUM_EDGES
COMMON = {"batch_size": 8, "shuffle": True, "seed": SEED}
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
TIMES = torch.arange(NUM_NODES) * 7 % 40 + 10
LINK_TIMES = torch.arange(NUM_EDGES) * 7 % 60 + 20
LABELS = torch.arange(NUM_EDGES) * 5 % 3
MASK = torch.arange(NUM_NODES) * 13 % 7 < 3
WEIGHT = (torch.arange(NUM_NODES) % 7).float()
FANOUTS = {edge_type: [2, number % 4] for number, edge_type in enumerate(golden.EDGE_TYPES)}
FANOUTS["a.b:%", "tags", "paper"] = [0, 0]
NEGATIVES = {
    "binary": NegativeSampling("binary", 2),
    "binary 1.5": NegativeSampling("binary", 1.5),
    "binary 0.4": ("binary", 0.4),
    "binary by weight": NegativeSampling("binary", 1, src_weight=WEIGHT, dst_weight=WEIGHT.flip(0).double()),
    "triplet": "triplet",
    "triplets": {"mode": "triplet", "amount": 3},
    "triplets by weight": NegativeSampling("triplet", 2, dst_weight=WEIGHT),
}


# --- data, by plain arithmetic: the stream of a random generator may change


def numbers(*shape: int, step: int = 7) -> Tensor:
    """Different numbers in the order of memory, negative ones too, all of them exact in 16 bits."""
    return (torch.arange(int(np.prod(shape))) * step % 401 - 200).reshape(shape)


@cache
def plain_data() -> Data:
    """Attributes of many dtypes and forms, of nodes, of edges, and of neither."""
    count, many = NUM_NODES, NUM_EDGES
    data = Data(edge_index=torch.tensor(golden.parallel_edges()), x=numbers(count, 3).float() / 8, y=numbers(count))
    data.half, data.brain = numbers(count, 2).half(), numbers(count, 2).bfloat16()
    data.flags, data.byte = numbers(count, 2, 2) > 3, numbers(count).to(torch.uint8)
    data.time = torch.tensor([golden.time_of_node(v) for v in range(count)])
    data.table, data.apart = numbers(count, 4).numpy().astype(np.float64), numbers(6, count).int().T
    data.names = [f"node {v}" for v in range(count)]
    data.dates = np.datetime64("2026-01-01") + np.arange(count)
    data.edge_attr, data.edge_weight = numbers(many, 2).float(), (numbers(many).abs() % 9).double()
    data.edge_time, data.edge_kind = torch.tensor([golden.time_of_edge(e) for e in range(many)]), numbers(many).short()
    data.num_classes, data.title, data.whole, data.nothing = 4, "plain", numbers(1, 3), None
    data.words, data.options = ["a", "b"], {"depth": 2, "rates": (0.5, None)}
    return data


@cache
def typed_data() -> HeteroData:
    """One node type is empty; weights are of some edges alone, times of some nodes."""
    data = HeteroData(title="typed", whole=numbers(1, 2))
    for node_type, count in golden.NUM_NODES_OF.items():
        if count > 0:
            data[node_type].x = numbers(count, 2, step=5 + len(node_type)).float()
    data["venue"].num_nodes = 0
    for node_type in golden.TIMED_NODES:
        count = golden.NUM_NODES_OF[node_type]
        data[node_type].time = torch.tensor([golden.time_of_node(v) for v in range(count)])
    data["paper"].y, data["paper"].words = numbers(53).int(), ["of", "all"]
    for edge_type, columns in golden.edge_index_of_types().items():
        data[edge_type].edge_index, many = columns, columns.shape[1]
        data[edge_type].edge_attr = numbers(many, 2, step=3 + len(edge_type[1])).half()
        data[edge_type].edge_time = torch.tensor([golden.time_of_edge(e) for e in range(many)], dtype=torch.int64)
    for edge_type in (WRITES, CITES):
        data[edge_type].edge_weight = (numbers(data[edge_type].num_edges).abs() % 5).float()
    return data


@cache
def sorted_data() -> Data:
    """The edges in the order of their destinations."""
    columns = torch.tensor(golden.parallel_edges())
    return Data(x=numbers(NUM_NODES, 3), edge_index=columns[:, torch.argsort(columns[1], stable=True)])


@cache
def data_of_parts(is_typed: bool) -> Any:
    """Data of what parts hold: tensors with a row for each node or edge, and no type without nodes."""
    data = copy.copy(typed_data() if is_typed else plain_data())
    left = ["title", "whole", "table", "names", "dates", "num_classes", "nothing", "words", "options"]
    for name in left[: 2 if is_typed else None]:
        del data[name]
    if is_typed:
        del data["paper"].words, data["venue"], data["venue", "hosts", "paper"]
        del data["a.b:%"].x
        data["a.b:%"].num_nodes = golden.NUM_NODES_OF["a.b:%"]
        for store in data.edge_stores:  # over parts, edges of all types have weights, or none
            store.setdefault("edge_weight", torch.ones(store.num_edges) / 2)
    return data


def pair_of(data: Any, layout: str = "coo") -> tuple[Any, Any]:
    """PyG's remote backend with what a Data or HeteroData has."""
    edge_names = ["edge_attr"] if layout == "coo" else []
    return stores_of(data, layout, node_names=["x", "y", "time", "brain"], edge_names=edge_names)


class OwnHetero(HeteroData):
    """A class that batches of stores are made of."""


def csc_graph() -> dp.CSCGraph:
    data = plain_data()
    return dp.CSCGraph.from_edge_index(
        data.edge_index, NUM_NODES, node_attributes={"x": data.x}, edge_attributes={"w": data.edge_weight}
    )


# --- code of the user's


def with_seeds(batch: Any) -> Any:
    """Tell what the generators were seeded by, without a draw of torch or NumPy, whose streams may change."""
    batch.seeded_by = [torch.initial_seed(), int(np.random.get_state()[1][0]), random.random()]
    return batch


def turned(out: Any) -> Any:
    out.row, out.col = out.col, out.row
    return out


def both_ways(out: Any) -> Any:
    return out.to_bidirectional(keep_orig_edges=True)


class Own(pyg.sampler.BaseSampler):
    """A sampler of the user's, which draws nothing and tells what it was seeded by. Its edge ids are not ours."""

    edge_permutation = torch.arange(NUM_EDGES).flip(0)

    def sample_from_nodes(self, index: Any, **kwargs: Any) -> Any:
        nodes, places = torch.cat((index.node, index.node[:3] + 1)) % NUM_NODES, torch.arange(len(index.node))
        seeded_by = torch.tensor([torch.initial_seed() % 2**63])
        edges = index.node * 11 % NUM_EDGES
        metadata = (index.input_id, index.time)
        return pyg.sampler.SamplerOutput(nodes, places.flip(0), places, edges, seeded_by, metadata=metadata)

    def sample_from_edges(self, index: Any, neg_sampling: Any = None) -> Any:
        out = self.sample_from_nodes(NodeSamplerInput(index.input_id, torch.cat((index.row, index.col))))
        places = torch.arange(2 * len(index.row)).view(2, -1)
        out.edge, out.metadata = None, (index.input_id, places, index.label, index.time)
        return out


# --- cases: each gives a loader


def of_nodes(data: Callable[[], Any] = plain_data, **options: Any) -> Any:
    return NeighborLoader(data(), **{**COMMON, "num_neighbors": [4, 3], **options})


def of_links(data: Callable[[], Any] = plain_data, **options: Any) -> Any:
    return LinkNeighborLoader(data(), **{**COMMON, "num_neighbors": [4, 3], **options})


def of_types(data: Callable[[], Any] = typed_data, **options: Any) -> Any:
    return NeighborLoader(data(), **{**COMMON, "num_neighbors": [2, 3], "input_nodes": "paper", **options})


def links_of_types(edge_type: Any = WRITES, data: Callable[[], Any] = typed_data, **options: Any) -> Any:
    if options.get("edge_label_time"):
        options["edge_label_time"] = LINK_TIMES[: typed_data()[edge_type].num_edges]
    options = {**COMMON, "num_neighbors": [2, 3], "edge_label_index": edge_type, **options}
    return LinkNeighborLoader(data(), **options)


def in_epoch(number: int, **options: Any) -> Any:
    loader = of_nodes(**options)
    loader.set_epoch(number)
    return loader


def sampled_by(kind: type, is_typed: bool = False, sampler: Any = None, **options: Any) -> Any:
    """A loader that is given a sampler: ours, which numbers its calls by itself, where no other is."""
    data = data_of_parts(is_typed)  # PyG's own loaders slice no lists
    return kind(data, NeighborSampler(data, [3, 2], seed=SEED) if sampler is None else sampler, **options)


def calls_of_the_sampler() -> list[Any]:
    sampler = NeighborSampler(typed_data(), [3, 2], seed=SEED)
    inputs = NodeSamplerInput(torch.arange(5), torch.arange(5) * 3, input_type="author")
    return [sampler.sample_from_nodes(inputs) for _ in range(2)]


def zipped(**options: Any) -> Any:
    sampler = NeighborSampler(plain_data(), [3, 2], seed=SEED)
    given = {"num_neighbors": None, "neighbor_sampler": sampler}
    return pyg.loader.ZipLoader([of_nodes(**given), of_nodes(input_nodes=MASK, **given)], batch_size=8, **options)


def of_subgraphs(kind: type, *arguments: Any, **options: Any) -> Any:
    return kind(data_of_parts(False), *arguments, seed=SEED, **options)


class Clusters(loaders.ClusterData):
    """Clusters by plain arithmetic: METIS may change."""

    def _metis(self, edge_index: Tensor, num_nodes: int) -> Tensor:
        return torch.arange(num_nodes) * 7 % self.num_parts


PLACES = [5, 1, 9, 33]
CASES: dict[str, Callable[..., Iterable[Any]]] = {
    "nodes": of_nodes,
    "nodes, no shuffle, the last batch dropped": partial(of_nodes, shuffle=False, drop_last=True, batch_size=40),
    "nodes, epoch 3": partial(in_epoch, 3),
    "nodes, seed of a generator": lambda: of_nodes(seed=0, generator=torch.Generator().manual_seed(11)),
    "nodes, order of a sampler": partial(of_nodes, shuffle=False, sampler=[*range(96, 30, -3)]),
    "nodes, order of a batch_sampler": partial(of_nodes, batch_size=1, shuffle=False, batch_sampler=[[3, 90, -1], [7]]),
    "nodes, replace": partial(of_nodes, replace=True),
    "nodes, all neighbors": partial(of_nodes, num_neighbors=[-1, 2]),
    "nodes, no neighbors": partial(of_nodes, num_neighbors=[0, 0]),
    "nodes, no hops": partial(of_nodes, num_neighbors=[]),
    "nodes, induced": partial(of_nodes, subgraph_type="induced"),
    "nodes, bidirectional": partial(of_nodes, subgraph_type="bidirectional"),
    "nodes, trees": partial(of_nodes, disjoint=True),
    "nodes, induced trees with replacement": partial(of_nodes, disjoint=True, subgraph_type="induced", replace=True),
    "nodes, bidirectional trees": partial(of_nodes, disjoint=True, subgraph_type="bidirectional"),
    "nodes, times of nodes": partial(of_nodes, time_attr="time"),
    "nodes, times of nodes, last": partial(of_nodes, time_attr="time", temporal_strategy="last", input_time=TIMES),
    "nodes, times of edges": partial(of_nodes, time_attr="edge_time", input_time=TIMES),
    "nodes, times of edges, last": partial(
        of_nodes, time_attr="edge_time", input_time=TIMES, temporal_strategy="last", subgraph_type="induced"
    ),
    "nodes, weights": partial(of_nodes, weight_attr="edge_weight"),
    "nodes, weights, all neighbors": partial(of_nodes, weight_attr="edge_weight", num_neighbors=[-1, 5], replace=True),
    "nodes, mask": partial(of_nodes, input_nodes=MASK),
    "nodes, ids": partial(of_nodes, input_nodes=[*range(60, 20, -1), 3, 3], input_id=torch.arange(42) + 100),
    "nodes, sorted edges": partial(of_nodes, sorted_data, is_sorted=True),
    "nodes, transform": partial(of_nodes, transform=with_seeds),
    "nodes, transform_sampler_output": partial(of_nodes, transform_sampler_output=turned),
    "nodes, original edges kept": partial(of_nodes, transform_sampler_output=both_ways),
    "nodes, places": lambda: [of_nodes()(PLACES), of_nodes()([])],
    "nodes, a graph of ours": partial(of_nodes, csc_graph, weight_attr="w"),
    "nodes, stores": partial(of_nodes, lambda: pair_of(plain_data()), input_nodes=MASK.nonzero().flatten()),
    "nodes, stores, times": partial(
        of_nodes, lambda: pair_of(plain_data()), input_nodes=torch.arange(50), time_attr="time"
    ),
    "links": of_links,
    "links, labels": partial(of_links, edge_label=LABELS, input_id=torch.arange(NUM_EDGES) + 7),
    "links, some pairs": partial(of_links, edge_label_index=golden.repeated_seeds(pairs=True).T),
    "links, ratio": partial(of_links, neg_sampling_ratio=1.0),
    "links, ratio, labels": partial(of_links, neg_sampling_ratio=0.5, edge_label=LABELS),
    **{f"links, {name}": partial(of_links, neg_sampling=drawn) for name, drawn in NEGATIVES.items()},
    "links, trees": partial(of_links, disjoint=True),
    "links, trees, binary": partial(of_links, disjoint=True, neg_sampling=NEGATIVES["binary 1.5"]),
    "links, trees, triplets": partial(of_links, disjoint=True, neg_sampling=NEGATIVES["triplets by weight"]),
    "links, induced": partial(of_links, subgraph_type="induced", neg_sampling="binary"),
    "links, bidirectional": partial(of_links, subgraph_type="bidirectional", neg_sampling="triplet"),
    "links, weights": partial(of_links, weight_attr="edge_weight"),
    "links, times of nodes": partial(of_links, time_attr="time", edge_label_time=LINK_TIMES),
    "links, times of nodes, binary": partial(
        of_links, time_attr="time", edge_label_time=LINK_TIMES, neg_sampling=NEGATIVES["binary 1.5"]
    ),
    "links, times of nodes, triplets": partial(
        of_links, time_attr="time", edge_label_time=LINK_TIMES, neg_sampling=NEGATIVES["triplets"]
    ),
    "links, times of edges, last": partial(
        of_links, time_attr="edge_time", edge_label_time=LINK_TIMES, temporal_strategy="last", neg_sampling="binary"
    ),
    "links, transforms": partial(
        of_links, neg_sampling="binary", transform=with_seeds, transform_sampler_output=turned
    ),
    "links, places": lambda: [of_links(neg_sampling="triplet")(PLACES)],
    "links, a graph of ours": partial(of_links, csc_graph, neg_sampling="triplet"),
    "links, stores": partial(
        of_links, lambda: pair_of(plain_data()), edge_label_index=plain_data().edge_index, neg_sampling="binary"
    ),
    "types": of_types,
    "types, fanouts by edge type": partial(of_types, num_neighbors=FANOUTS, input_nodes="author"),
    "types, mask": partial(of_types, input_nodes=("paper", MASK[:53])),
    "types, ids, replace": partial(of_types, input_nodes=("author", [*range(30, 3, -1)]), replace=True),
    "types, induced": partial(of_types, subgraph_type="induced"),
    "types, bidirectional": partial(of_types, subgraph_type="bidirectional"),
    "types, trees": partial(of_types, disjoint=True),
    "types, times of edges": partial(of_types, time_attr="edge_time", input_time=TIMES[:53]),
    "types, times of nodes, last": partial(of_types, time_attr="time", temporal_strategy="last", input_nodes="author"),
    "types, weights": partial(of_types, weight_attr="edge_weight"),
    "types, weights by edge type": partial(of_types, weight_attr={CITES: "edge_weight"}),
    "types, no neighbors": partial(of_types, num_neighbors=[0], disjoint=True),
    "types, transforms": partial(of_types, transform=with_seeds, transform_sampler_output=both_ways),
    "types, a graph of ours": partial(of_types, lambda: dp.HeteroCSCGraph.from_pyg(typed_data())),
    "types, stores": partial(of_types, lambda: pair_of(typed_data())),
    "types, stores by destination": partial(
        of_types, lambda: pair_of(typed_data(), "csc"), time_attr="time", custom_cls=OwnHetero
    ),
    "links of types": links_of_types,
    "links of types, one node type": partial(links_of_types, CITES, edge_label=LABELS[:270]),
    "links of types, not in the data": partial(
        links_of_types, (("paper", "likes", "author"), numbers(2, 90, step=1).abs() % 31), neg_sampling="binary"
    ),
    "links of types, binary": partial(links_of_types, neg_sampling=NEGATIVES["binary 1.5"]),
    "links of types, one node type, binary": partial(links_of_types, CITES, neg_sampling_ratio=2),
    "links of types, triplets": partial(links_of_types, neg_sampling=NEGATIVES["triplets"]),
    "links of types, one node type, triplets": partial(links_of_types, CITES, neg_sampling=NEGATIVES["triplets"]),
    "links of types, by weight": partial(
        links_of_types, neg_sampling=NegativeSampling("binary", 1, src_weight=WEIGHT[:31], dst_weight=WEIGHT[:53])
    ),
    "links of types, trees": partial(links_of_types, disjoint=True, neg_sampling="binary"),
    "links of types, times": partial(links_of_types, time_attr="time", edge_label_time=True),
    "links of types, times, binary": partial(
        links_of_types, time_attr="time", edge_label_time=True, neg_sampling=NEGATIVES["binary 0.4"]
    ),
    "links of types, times, triplets": partial(
        links_of_types, time_attr="time", edge_label_time=True, neg_sampling="triplet"
    ),
    "links of types, one node type, times, triplets": partial(
        links_of_types, CITES, time_attr="edge_time", edge_label_time=True, neg_sampling=NEGATIVES["triplets"]
    ),
    "links of types, bidirectional": partial(links_of_types, subgraph_type="bidirectional", neg_sampling="binary"),
    "links of types, stores": partial(
        links_of_types, data=lambda: pair_of(typed_data()), neg_sampling=NEGATIVES["triplets"]
    ),
    "NodeLoader": partial(sampled_by, NodeLoader, **COMMON),
    "NodeLoader, types": partial(sampled_by, NodeLoader, True, input_nodes="author", **COMMON),
    "NodeLoader, a sampler of the user's": partial(sampled_by, NodeLoader, sampler=Own(), **COMMON, input_time=TIMES),
    "LinkLoader": partial(sampled_by, LinkLoader, neg_sampling="binary", **COMMON),
    "LinkLoader, types": partial(sampled_by, LinkLoader, True, edge_label_index=WRITES, **COMMON),
    "LinkLoader, a sampler of the user's": partial(
        sampled_by, LinkLoader, sampler=Own(), edge_label=LABELS, edge_label_time=LINK_TIMES, **COMMON
    ),
    "NodeLoader of PyG": partial(sampled_by, pyg.loader.NodeLoader, batch_size=8),
    "NodeLoader of PyG, types": partial(sampled_by, pyg.loader.NodeLoader, True, input_nodes="paper", batch_size=8),
    "LinkLoader of PyG": partial(sampled_by, pyg.loader.LinkLoader, neg_sampling=NEGATIVES["triplets"], batch_size=8),
    "LinkLoader of PyG, types": partial(
        sampled_by, pyg.loader.LinkLoader, True, edge_label_index=CITES, neg_sampling_ratio=1.5, batch_size=8
    ),
    "ShaDowKHopSampler": partial(of_subgraphs, loaders.ShaDowKHopSampler, 2, 3, batch_size=8, shuffle=True),
    "ClusterLoader": lambda: loaders.ClusterLoader(
        Clusters(data_of_parts(False), 12, log=False), batch_size=3, shuffle=True, seed=SEED
    ),
    "RandomNodeLoader": partial(of_subgraphs, loaders.RandomNodeLoader, 4, shuffle=True),
    "GraphSAINTNodeSampler": partial(of_subgraphs, loaders.GraphSAINTNodeSampler, 20, 3, 2, log=False),
    "GraphSAINTRandomWalkSampler": partial(of_subgraphs, loaders.GraphSAINTRandomWalkSampler, 9, 3, 3, 2, log=False),
    "NeighborSampler": calls_of_the_sampler,
    "CachedLoader": lambda: pyg.loader.CachedLoader(of_nodes()),
    "PrefetchLoader": lambda: pyg.loader.PrefetchLoader(of_types(), device="cpu"),
    "ZipLoader": zipped,
    "ZipLoader, whole batches": partial(zipped, filter_per_worker=True),
}
DIGESTS = {
    name.removeprefix("pyg: "): digest
    for name, digest in json.loads((Path(__file__).parent / "golden.json").read_text()).items()
    if name.startswith("pyg: ")
}


@pytest.mark.parametrize("name", CASES)
def test_the_first_batches_have_the_golden_digest(name):
    assert digest_of(*islice(CASES[name](), 2)) == DIGESTS[name]


IN_WORKERS = [  # the case, and filter_per_worker
    ("links of types, times, binary", False),
    ("nodes, transform", True),
    ("links, transforms", False),
    ("types, stores", None),
    ("LinkLoader, a sampler of the user's", True),
    ("nodes, order of a batch_sampler", None),
]


@pytest.mark.parametrize(("name", "filter_per_worker"), ranked(IN_WORKERS, small=3))
def test_batches_of_two_workers_have_the_same_digest(name, filter_per_worker):
    loader = CASES[name](num_workers=2, filter_per_worker=filter_per_worker)
    assert digest_of(*islice(loader, 2)) == DIGESTS[name]


def test_each_case_has_a_digest_of_its_own():
    names = [*CASES, *(f"parts: {name}" for name in PARTS), "parts: sampler", "parts: sampler, types"]
    assert [*DIGESTS] == names
    alike = {"PrefetchLoader": "types", "ZipLoader, whole batches": "ZipLoader"}  # other ways to the same batches
    assert all(DIGESTS[name] == DIGESTS[other] for name, other in alike.items())
    assert len({*DIGESTS.values()}) == len(names) - len(alike)


def test_every_loader_of_this_package_has_a_case():
    ours = {getattr(loaders, name) for name in loaders.__all__}
    ours = {kind for kind in ours if kind.__module__.startswith("datapipes.")}
    named = {"nodes", "links", *(kind.__name__ for kind in ours)} & CASES.keys()
    assert ours - {loaders.ClusterData} == {type(CASES[name]()) for name in named}


# --- over parts

PARTS: dict[str, dict[str, Any]] = {
    "nodes": {},
    "nodes, all neighbors": {"num_neighbors": [-1, -1], "shuffle": False},
    "nodes, trees with replacement": {"replace": True, "disjoint": True},
    "nodes, induced": {"subgraph_type": "induced"},
    "nodes, bidirectional": {"subgraph_type": "bidirectional"},
    "nodes, weights": {"weight_attr": "edge_weight"},
    "nodes, labels": {"labels": torch.arange(NUM_NODES) + 100},
    "nodes, times of nodes": {"time_attr": "time", "input_time": True},
    "nodes, times of edges, last": {"time_attr": "edge_time", "input_time": True, "temporal_strategy": "last"},
    "links": {},
    "links, binary": {"neg_sampling": NEGATIVES["binary 1.5"], "edge_label": True},
    "links, triplets": {"neg_sampling": NEGATIVES["triplets by weight"], "disjoint": True},
    "links, times of nodes": {"time_attr": "time", "edge_label_time": True, "neg_sampling": NEGATIVES["triplets"]},
    "types": {"num_neighbors": {edge_type: hops for edge_type, hops in FANOUTS.items() if "venue" not in edge_type}},
    "types, times of edges": {"time_attr": "edge_time", "input_time": True},
    "types, weights": {"weight_attr": "edge_weight"},
    "types, labels": {"labels": {"author": torch.arange(31) + 100, CITES: LABELS[:270]}},
    "links of types": {"neg_sampling": NEGATIVES["triplets"], "edge_label_index": WRITES},
    "links of types, binary": {"neg_sampling": "binary", "edge_label_index": CITES, "edge_label": True},
    "links of types, times": {
        "time_attr": "time",
        "edge_label_time": True,
        "neg_sampling": NEGATIVES["binary 1.5"],
        "edge_label_index": WRITES,
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of two parts each of the data without and with types."""
    root = tmp_path_factory.mktemp("parts")
    for is_typed in (False, True):
        cut(root / str(is_typed), data_of_parts(is_typed), 2, node_time_attr="time")
    return root


@pytest.fixture
def parts(folder):
    yield folder
    shutdown_rpc(graceful=False)  # nothing is served any more when a test has ended


def batches_of_rank(rank: int, size: int, root: Any, port: int, name: str, **more: Any) -> list[Any]:
    """The first two batches of a rank; its seeds are of all parts."""
    given = {"num_neighbors": [3, 2], "batch_size": 5, "shuffle": True, "seed": SEED, "rpc_timeout": TIMEOUT_S}
    given |= PARTS[name] | more
    data, kind = data_of_parts("types" in name), DistNeighborLoader
    if "links" in name:
        kind = DistLinkNeighborLoader
        given["edge_label_index"] = links_of(data, rank, size, given.get("edge_label_index"))
    else:
        given["input_nodes"] = nodes_of(data, rank, size)
    for argument in {"input_time", "edge_label_time", "edge_label"} & given.keys():
        count = 13 - 4 * rank
        given[argument] = torch.arange(count) % 3 if argument == "edge_label" else LINK_TIMES[:count]
    pair, fanouts = stores(root / str("types" in name), rank), given.pop("num_neighbors")
    pair[0].labels = given.pop("labels", None)
    loader = kind(pair, fanouts, "127.0.0.1", port, context_of(rank, size, "golden"), **given)
    batches = [*islice(loader, 2)]
    loader.close()
    return batches


def digest_over_parts(root: Any, name: str, **more: Any) -> str:
    first, second = answers(in_ranks(2, partial(batches_of_rank, **more), root, port_of_all(), name))
    assert len(first) == len(second) == 2
    return digest_of(*first, *second)


@pytest.mark.parametrize("name", PARTS)
def test_the_first_batches_of_two_ranks_have_the_golden_digest(name, parts):
    assert digest_over_parts(parts, name) == DIGESTS[f"parts: {name}"]


WAYS = [  # of loading, which change no bit
    {"async_sampling": False},
    {"concurrency": 3},
    {"num_workers": 1},
    {"num_workers": 2, "filter_per_worker": True},
]


@pytest.mark.parametrize("way", ranked(WAYS, small=1))
def test_batches_of_two_ranks_that_load_otherwise_have_the_same_digest(way, parts):
    name = "links of types, times"
    assert digest_over_parts(parts, name, **way) == DIGESTS[f"parts: {name}"]


def outputs_of_rank(rank: int, size: int, root: Any, port: int, is_typed: bool) -> list[Any]:
    """What the sampler of a rank gives without a loader, in two calls for nodes, one for links and one for a hop."""
    data, context = data_of_parts(is_typed), context_of(rank, size, f"golden sampler {is_typed}")
    sampler = DistNeighborSampler(context, stores(root / str(is_typed), rank), [3, 2], seed=SEED)
    init_rpc(context, "127.0.0.1", port, rpc_timeout=TIMEOUT_S)
    nodes = NodeSamplerInput(torch.arange(4), torch.arange(4) * 5 + rank, input_type="paper" if is_typed else None)
    edge_type, (row, col) = links_of(data, rank, size, WRITES if is_typed else None)
    links = pyg.sampler.EdgeSamplerInput(torch.arange(len(row)), row, col, input_type=edge_type)
    outputs = [sampler.sample_from_nodes(nodes) for _ in range(2)]
    outputs.append(sampler.sample_from_edges(links, NEGATIVES["binary 1.5"]))
    hop = sampler.sample_one_hop(torch.arange(9), 2, src_batch=torch.arange(9) // 2, edge_type=edge_type)
    outputs.append(sampler.event_loop.run_task(hop))
    sampler.event_loop.shutdown_loop()
    return outputs


@pytest.mark.parametrize("is_typed", [False, True])
def test_the_outputs_of_the_samplers_of_two_ranks_have_the_golden_digest(is_typed, parts):
    first, second = answers(in_ranks(2, outputs_of_rank, parts, port_of_all(), is_typed))
    assert digest_of(*first, *second) == DIGESTS["parts: sampler, types" if is_typed else "parts: sampler"]


# --- the digest itself


def changed(change: Callable[[Any], Any]) -> str:
    batch = copy.deepcopy(typed_data())
    change(batch)
    return digest_of(batch)


def test_a_digest_changes_with_all_that_a_user_sees_of_a_batch():
    forms: list[Callable[[Tensor], Any]] = [
        Tensor.double,
        lambda x: x.view(torch.int32),
        lambda x: x.flip(0),
        lambda x: x.T,
        lambda x: x.reshape(-1),
        Tensor.to_sparse,
        Tensor.requires_grad_,
        Tensor.numpy,
        Tensor.tolist,
    ]
    changes: list[Callable[[Any], Any]] = [
        *(lambda batch, form=form: setattr(batch["paper"], "x", form(batch["paper"].x)) for form in forms),
        lambda batch: batch["paper"].pop("x"),
        lambda batch: setattr(batch["paper"], "z", batch["paper"].pop("x")),
        lambda batch: setattr(batch["author"], "e_id", torch.empty(0, dtype=torch.int64)),
        lambda batch: setattr(batch, "batch_size", 1),
        lambda batch: setattr(batch["paper"], "words", ("of", "all")),
        lambda batch: setattr(batch["paper"], "words", ["all", "of"]),
        lambda batch: setattr(batch["venue"], "num_nodes", 0.0),
        lambda batch: setattr(batch[WRITES], "edge_index", batch[WRITES].edge_index.roll(1, dims=1)),
        lambda batch: setattr(batch[WRITES], "_orig_edge_index", batch[WRITES].edge_index),
    ]
    digests = [digest_of(typed_data()), *map(changed, changes)]
    assert len({*digests}) == len(digests)
    others = [digest_of(value) for value in (None, 1, 1.0, True, "1", [1], (1,), {1: 1}, [[1], 2], [[1, 2]])]
    assert len({*others}) == len(others)


def test_a_digest_is_the_same_for_other_places_in_memory_and_another_order_of_names():
    def moved(batch: Any) -> None:
        x = batch["paper"].pop("x")
        batch["paper"].x = x.T.contiguous().T
        assert not batch["paper"].x.is_contiguous()

    assert changed(moved) == digest_of(typed_data())
    with pytest.raises(TypeError, match="found a object in a batch"):
        digest_of({"a": object()})
