"""Golden digests of the batches of datapipes.pyg: its loaders, its sampler in PyG's loaders, and those over parts.

The draws are those of docs/semantics.md at stream version 1, so they change only together with STREAM_VERSION. What
else a digest holds, the fields of a batch and their forms, is PyG's to decide: it may change with a version of
torch_geometric whose own loaders make another batch, and never by a change of this package alone.

A digest is of the first two batches of an epoch, over parts of the first two of each rank.
"""

import copy
import random
from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import islice
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
    "NeighborSampler": calls_of_the_sampler,
    "CachedLoader": lambda: pyg.loader.CachedLoader(of_nodes()),
    "PrefetchLoader": lambda: pyg.loader.PrefetchLoader(of_types(), device="cpu"),
    "ZipLoader": zipped,
    "ZipLoader, whole batches": partial(zipped, filter_per_worker=True),
}
GOLDEN: dict[str, str] = {
    "nodes": "55da2989ce6c5eefefcfa4c8b8b69043",
    "nodes, no shuffle, the last batch dropped": "e3cd2e6fad1e271994f0c369b0ca2eb6",
    "nodes, epoch 3": "5867ecb73d47b3ba3640c21610c55f71",
    "nodes, seed of a generator": "70539397e5c1d083a273c0b172d8ef55",
    "nodes, order of a sampler": "eb1ff1c2abb765047d68c3fca32ff97c",
    "nodes, order of a batch_sampler": "98b2ac81f362129d613388df0717fd17",
    "nodes, replace": "5753f9e589d1973a3c4e8faf561fb749",
    "nodes, all neighbors": "c5ce5d8803e298eccfede393d2a4e709",
    "nodes, no neighbors": "6963132f59880054243fdd57f53edf51",
    "nodes, no hops": "01045464227d1766590055ac13801a36",
    "nodes, induced": "8adaa4753f93bdf4f6e624611f2924a4",
    "nodes, bidirectional": "8f533840ff7189f937108112f6aa2dfe",
    "nodes, trees": "3e31b7f7ef948423a1bf5bce090b08ad",
    "nodes, induced trees with replacement": "c39d9bf4094b81a5a1080848033e308a",
    "nodes, bidirectional trees": "001658237e6299701a3483319512a4b4",
    "nodes, times of nodes": "4c51d6c1115ba2180f6ee7740cb5e489",
    "nodes, times of nodes, last": "c0a156800054b64622230dcb68005f28",
    "nodes, times of edges": "53b1cabecabab075e4ff84d5bb6573af",
    "nodes, times of edges, last": "0cb2e18c1b2bbb47154a0b008f8eec13",
    "nodes, weights": "46586534c7f7403e413da6dcb10c0d52",
    "nodes, weights, all neighbors": "632b0f770a50bcf0de9a09269edc6d43",
    "nodes, mask": "cec445e006ca3274675dbc7de7597d42",
    "nodes, ids": "7e521184ec565d16bf29b1939ebac3a1",
    "nodes, sorted edges": "7c9cb928f305cbea87b5ae3fe15e5f3c",
    "nodes, transform": "d433fd5d94f2371071003ed13c01e25f",
    "nodes, transform_sampler_output": "c819f95c9e265cd7a9ad6fbdeff587cb",
    "nodes, original edges kept": "def5af1bb79677db5d22822eedeb6995",
    "nodes, places": "fedc03df8ec557722f9650d578f4bb86",
    "nodes, a graph of ours": "c338c8e61c05ff0cc0bbd0ff835616cc",
    "nodes, stores": "57217aa9b9c327c1fca11383c989edfb",
    "nodes, stores, times": "08a7822a01227b2ce9e842acd016080b",
    "links": "b6f4c6957c36ccf111ce2afd8d234991",
    "links, labels": "a4385ba79924d12c4f25eba0b5a9f63e",
    "links, some pairs": "5ac4318ac6dafec89e5290469d108b79",
    "links, ratio": "a1a72bcdd0b7d1a2cff0004475fea90f",
    "links, ratio, labels": "c224aa86ff01cb04204c67c8e8243916",
    "links, binary": "2f7600ea369993740a5e12389ec7c1d3",
    "links, binary 1.5": "6c7a6298da124981e24a74a180028788",
    "links, binary 0.4": "997a5e4d3c70fe63616c66f7b4b05c92",
    "links, binary by weight": "3540ce3023d43b38205a9519b3f9fca9",
    "links, triplet": "96ff2707b09b1313625aa49f54c23400",
    "links, triplets": "ee0a3f90fa9f85708dcf7c8a93da5f1a",
    "links, triplets by weight": "5e5787a48770fb3e5cd788dfa9f8278c",
    "links, trees": "a7741226ccd4820022054560570cb0fa",
    "links, trees, binary": "62d61f5138fb4e9c003320b357ce3165",
    "links, trees, triplets": "fac103644ba12e8d428190598603daa9",
    "links, induced": "d4b16a74ffb4d55368d6427be62f6ccb",
    "links, bidirectional": "7b78400010a381ac87917c7de315cf85",
    "links, weights": "458d6d81609e4eb6ee9d1dbb21182cdb",
    "links, times of nodes": "68b0b74a83494fec1203f538661e0211",
    "links, times of nodes, binary": "cfc211a03586c139c87bdede1cdb35a7",
    "links, times of nodes, triplets": "53c450f7ec339aada3f05e9c0a90f1e1",
    "links, times of edges, last": "56016993746e1cd8ebc9a6c9e18845e9",
    "links, transforms": "b8b1ccc9111362a15600fb0e7bc471bc",
    "links, places": "7c581bbf518c748add06b3fb4b967893",
    "links, a graph of ours": "21820ca39a5559d0405edd82772c073f",
    "links, stores": "18e42e05ef8ca72d38a8d743d5af8e40",
    "types": "ba7f97d0b59c6b6db8223f58aaef9c88",
    "types, fanouts by edge type": "42c95e4f801dd5abd95bd916df6c9e80",
    "types, mask": "83d78aaec44125082b4d8ba5f169514d",
    "types, ids, replace": "410520aa1f67949202704d9adf00afac",
    "types, induced": "a6ebea4c17c86941b09a22891462eb98",
    "types, bidirectional": "05c83e6f1f74c0a2e2cffa1d6a25a1ed",
    "types, trees": "9be8c6d031decd09b6e6794bb55b6e74",
    "types, times of edges": "192465b471df9ddd00717732d4208eb9",
    "types, times of nodes, last": "8575529f66a8802f02fb4f2cc0fa9845",
    "types, weights": "10591942ea3040233ac66f1062d2cbca",
    "types, weights by edge type": "5a7ee1c5743b54fef1ec77314d917e27",
    "types, no neighbors": "c1b1eb8e3f33f6e1e2f65be41d993147",
    "types, transforms": "41eb2cf0a52134d35f2d08a4d0134285",
    "types, a graph of ours": "3a3e2f9aa7e757267075cde61996098b",
    "types, stores": "8313dc570f15437bbc3a0bdaf0057571",
    "types, stores by destination": "2e59b4e006cc438cf82dade4311789a3",
    "links of types": "c6a8e32e778f333a023ec25977177baf",
    "links of types, one node type": "0dc48f5f3d35e5967e521d6bbcd18add",
    "links of types, not in the data": "3c5ef2b15428713277148e30badab86f",
    "links of types, binary": "0d029241b4da248015046fecae47248a",
    "links of types, one node type, binary": "3fda6755afa8ad4d621f6f00b1807915",
    "links of types, triplets": "2e72c7015fc7b1aac94d6368e5b99409",
    "links of types, one node type, triplets": "3cd0659aa1c9786711a8a7b843f0801d",
    "links of types, by weight": "4ac067bcfd0594241241336fc7445d33",
    "links of types, trees": "e5aa5167ac6c114f5459913c0647bd36",
    "links of types, times": "64eb08d6b6a9ecea1c2bdca7eb07b19b",
    "links of types, times, binary": "5980755478661ecea37c28fa95fdf5e1",
    "links of types, times, triplets": "990ca58a17407d1d8f0ff0bc7901e826",
    "links of types, one node type, times, triplets": "ae6fef3a7828f43d8183af172e6c291a",
    "links of types, bidirectional": "3dafa5d13a41603716d4bd4ca2b3f49b",
    "links of types, stores": "12425e5894950bbd803ea70930edb3f3",
    "NodeLoader": "280dff643c189429cc35c0541ce3cf91",
    "NodeLoader, types": "5aa7c853a5b332f1720c659644c1e35a",
    "NodeLoader, a sampler of the user's": "07c59ba796b91e0f958102b90c94635b",
    "LinkLoader": "787976ae7c73d867ef5e7533d069b230",
    "LinkLoader, types": "f1ef7230cd8d5c4fe495274cc95675c1",
    "LinkLoader, a sampler of the user's": "caf38aaadce8010ad87c57ac164fd40d",
    "NodeLoader of PyG": "05702e507affe6f9e95f78948e597ecd",
    "NodeLoader of PyG, types": "e0cf53921411e1207475c87199f6ee27",
    "LinkLoader of PyG": "6515442621900a458be2c58f0c1b7b60",
    "LinkLoader of PyG, types": "be71ed167431d33b84114b3713caa667",
    "NeighborSampler": "a357780536518a2f100c7865d034be26",
    "CachedLoader": "aba99f8ef1de9f8bef6dd5f98c2c5869",
    "PrefetchLoader": "ba7f97d0b59c6b6db8223f58aaef9c88",
    "ZipLoader": "b49a2d6f3520a5eff2d5b0c9825c7c7c",
    "ZipLoader, whole batches": "b49a2d6f3520a5eff2d5b0c9825c7c7c",
    "parts: nodes": "983dddaee9c9f1534aea5e92a22852a8",
    "parts: nodes, all neighbors": "734bc5782236a443726772027d541177",
    "parts: nodes, trees with replacement": "2655e53e004bfa8f5ec45471a8dfe0c3",
    "parts: nodes, induced": "8b24aa96500fd9b0c0551609cb2ab79c",
    "parts: nodes, bidirectional": "2c4bca42bc0c0038489bb8d55be9dba2",
    "parts: nodes, weights": "de4487ca56bedd13593c6fbf75153ad8",
    "parts: nodes, labels": "d89cb0720252279d12aba0804b1a71f6",
    "parts: nodes, times of nodes": "1ce3fcee152e3eded5312428818c9266",
    "parts: nodes, times of edges, last": "5a8c593ef2d87178674ddd0533ebfa92",
    "parts: links": "103a43a96b2fed3473e2135cfae6c946",
    "parts: links, binary": "d63ded7cba608233ea1e2e682e1928b0",
    "parts: links, triplets": "1959835ae4d402742be411c74afacc53",
    "parts: links, times of nodes": "cc6250a970d4c2b106ad6d6b47db7a81",
    "parts: types": "18dcfbee86a9e71fb03e97dcb1dbd7cb",
    "parts: types, times of edges": "5b9235ddb69e4538e2fba4c6c1973cee",
    "parts: types, weights": "9983ce3657f342d0e925156e07817410",
    "parts: types, labels": "92257f9a10070d3bb314dbe8e6a343b2",
    "parts: links of types": "d5c21e29880c45cdeb72c0949de72e42",
    "parts: links of types, binary": "03767feafa29386da52d4545aec233b3",
    "parts: links of types, times": "a0687a34268f3e3946ba2ce44bc0efdb",
    "parts: sampler": "f8f4c3a5b068f7f5911bd43454295910",
    "parts: sampler, types": "254e588c3e812c1f02bea0729f3ac3e9",
}


@pytest.mark.parametrize("name", CASES)
def test_the_first_batches_have_the_golden_digest(name):
    assert digest_of(*islice(CASES[name](), 2)) == GOLDEN[name]


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
    assert digest_of(*islice(loader, 2)) == GOLDEN[name]


def test_each_case_has_a_digest_of_its_own():
    names = [*CASES, *(f"parts: {name}" for name in PARTS), "parts: sampler", "parts: sampler, types"]
    assert [*GOLDEN] == names
    alike = {"PrefetchLoader": "types", "ZipLoader, whole batches": "ZipLoader"}  # other ways to the same batches
    assert all(GOLDEN[name] == GOLDEN[other] for name, other in alike.items())
    assert len({*GOLDEN.values()}) == len(names) - len(alike)


def test_every_loader_of_this_package_has_a_case():
    ours = {getattr(loaders, name) for name in loaders.__all__}
    ours = {kind for kind in ours if kind.__module__.startswith("datapipes.")}
    assert ours == {NodeLoader, NeighborLoader, LinkLoader, LinkNeighborLoader}
    assert ours <= {type(CASES[name]()) for name in ("nodes", "links", "NodeLoader", "LinkLoader")}


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
    assert digest_over_parts(parts, name) == GOLDEN[f"parts: {name}"]


WAYS = [  # of loading, which change no bit
    {"async_sampling": False},
    {"concurrency": 3},
    {"num_workers": 1},
    {"num_workers": 2, "filter_per_worker": True},
]


@pytest.mark.parametrize("way", ranked(WAYS, small=1))
def test_batches_of_two_ranks_that_load_otherwise_have_the_same_digest(way, parts):
    name = "links of types, times"
    assert digest_over_parts(parts, name, **way) == GOLDEN[f"parts: {name}"]


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
    assert digest_of(*first, *second) == GOLDEN["parts: sampler, types" if is_typed else "parts: sampler"]


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
