"""Golden digests: the bits of docs/semantics.md at stream version 1, in tests/golden.json.

A digest there may change only together with STREAM_VERSION. Each is checked twice: against the package, and against a
message that the plain Python twin builds from that page alone; those of links and walks once, as the tests of their
stages compare with the twin. Digests whose names begin with "pyg: " belong to test_golden_pyg.py.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import golden_graphs as golden
import numpy as np
import pytest
import torch
import twin
import twin_layer
from twin_trees import PLAIN, Relation, Rule, Trees, sample_trees

import datapipes as dp

DIGESTS = json.loads((Path(__file__).parent / "golden.json").read_text())
WRITES, REVIEWS, CITES, _, HOSTS, TAGS = golden.EDGE_TYPES


# --- cases


@dataclass(frozen=True)
class Case:
    """A chain of an ItemSampler and a sampler, whose arguments are `options`."""

    options: dict[str, Any]
    stage: str = "sample_neighbor"
    typed: bool = False
    links: bool = False  # seeds are pairs of nodes
    fields: tuple[str, ...] = ()  # of the items, beside their seeds
    repeated: bool = False  # a graph without types has parallel edges, and seeds repeat
    dtype: torch.dtype = torch.int64  # of the graph's ids
    weights: torch.dtype = torch.float64  # of the edge attribute "w"
    features: bool = False
    num_items: int = golden.NUM_ITEMS  # where there are no types
    replacement: bool | None = None  # of items that are drawn by weight; None: they are shuffled

    @property
    def edges(self) -> dict[Any, torch.Tensor]:
        """The columns of each edge type, which is PLAIN where there are no types."""
        if self.typed:
            return golden.edge_index_of_types()
        return {PLAIN: torch.tensor(golden.parallel_edges() if self.repeated else golden.edges())}

    @property
    def num_nodes(self) -> dict[str, int]:
        return golden.NUM_NODES_OF if self.typed else {"": golden.NUM_NODES}

    @property
    def counts(self) -> dict[Any, int]:
        """The number of items of each type."""
        if self.typed:
            return golden.NUM_LINKS_OF if self.links else golden.NUM_ITEMS_OF
        return {PLAIN if self.links else "": self.num_items}

    def seeds(self, item_type: Any) -> torch.Tensor:
        if self.typed:
            return golden.items_of(item_type)
        return golden.repeated_seeds(self.links) if self.repeated else golden.seeds_of(self.links, self.num_items)


plain = partial(Case, fields=("labels",))
types = partial(Case, typed=True, fields=("labels", "my.weight"))
times = partial(Case, stage="temporal_sample_neighbor", fields=("timestamps",), repeated=True)
layer = partial(Case, stage="sample_layer_neighbor")
WEIGHTED = {"prob_name": "w", "return_edge_ids": True}
TREES = {"disjoint": True, "return_edge_ids": True}
OF_NODES, OF_EDGES = (
    {"node_time_attr": "since", "return_edge_ids": True},
    {"edge_time_attr": "at", "return_edge_ids": True},
)
WINDOWED = {"fields": ("timestamps", "recent")}
FEW = dict.fromkeys(golden.EDGE_TYPES, 2) | {REVIEWS: 4}
trees = partial(times, stage="sample_neighbor")

CASES: dict[str, Case] = {
    "all hops, fanouts 3 and 5": plain({"fanouts": [5, 3]}),
    "frontier new": plain({"fanouts": [4, 3, 2], "frontier": "new"}),
    "with replacement": plain({"fanouts": [6, 4], "replace": True}),
    "every neighbor and none": plain({"fanouts": [0, -1]}),
    "int32 ids": plain({"fanouts": [5, 3]}, dtype=torch.int32),
    "edge ids and features": plain({"fanouts": [3, 2], "return_edge_ids": True}, features=True),
    "pairs": plain({"fanouts": [2, 2]}, links=True),
    "a large item set": plain({"fanouts": [3]}, num_items=70_001),
    "types: all types, fanouts 3 and 4": types({"fanouts": [3, 4]}),
    "types: fanouts by edge type": types({"fanouts": golden.FANOUTS_BY_TYPE}),
    "types: frontier new": types({"fanouts": [3, *golden.FANOUTS_BY_TYPE], "frontier": "new"}),
    "types: with replacement": types({"fanouts": [4, 3], "replace": True}),
    "types: int32 ids": types({"fanouts": [3, 4]}, dtype=torch.int32),
    "types: edge ids, features, further fields": types(
        {"fanouts": golden.FANOUTS_BY_TYPE, "return_edge_ids": True}, features=True
    ),
    "types: links": types({"fanouts": [2, 3]}, links=True),
    "weights: without replacement": Case({"fanouts": [5, 3], **WEIGHTED}, weights=torch.float32),
    "weights: with replacement": Case({"fanouts": [6, 4], "replace": True, **WEIGHTED}),
    "weights: every drawable in-edge, frontier new": Case(
        {"fanouts": [4, -1], "frontier": "new", **WEIGHTED}, weights=torch.float16
    ),
    "weights: large fanouts, int32 ids": Case(
        {"fanouts": [2, 25], **WEIGHTED}, weights=torch.bfloat16, dtype=torch.int32
    ),
    "weights: mask": Case({"fanouts": [5, 7], **WEIGHTED}, weights=torch.bool),
    "weights: types": Case({"fanouts": [3, FEW], **WEIGHTED}, typed=True, weights=torch.float32),
    "weights: types, with replacement": Case(
        {"fanouts": [2, 3], "replace": True, "frontier": "new", **WEIGHTED}, typed=True, weights=torch.float16
    ),
    "weights: types, mask": Case({"fanouts": [FEW, FEW], **WEIGHTED}, typed=True, weights=torch.bool),
    "in-subgraph": Case({}, "sample_in_subgraph"),
    "in-subgraph, chosen edge types": Case(
        {"edge_types": [WRITES, golden.EDGE_TYPES[3]]}, "sample_in_subgraph", typed=True
    ),
    "LABOR": layer({"fanouts": [4, 3, 2]}),
    "LABOR, every neighbor and none": layer({"fanouts": [0, 5, -1]}),
    "LABOR, layer dependency": layer({"fanouts": [4, 3, 2], "layer_dependency": True}),
    "LABOR, batch dependency 7": layer({"fanouts": [4, 3], "batch_dependency": 7}),
    "LABOR, types": layer({"fanouts": [2, *golden.FANOUTS_BY_TYPE]}, typed=True),
    "LABOR, types, both dependencies": layer(
        {"fanouts": [3, 2], "layer_dependency": True, "batch_dependency": 7}, typed=True
    ),
    "LABOR by weight": layer({"fanouts": [4, -1, 2], **WEIGHTED}, dtype=torch.int32),
    "LABOR by weight, batch dependency 7": layer(
        {"fanouts": [4, 3], "batch_dependency": 7, **WEIGHTED}, weights=torch.float16
    ),
    "LABOR by weight, types": layer(
        {"fanouts": [3, FEW], "layer_dependency": True, **WEIGHTED}, typed=True, weights=torch.bool
    ),
    "trees": trees({"fanouts": [4, 3], **TREES}),
    "trees, frontier new, int32 ids": trees({"fanouts": [3, 3, 2], "frontier": "new", **TREES}, dtype=torch.int32),
    "trees of pairs": trees({"fanouts": [3, 2], **TREES}, links=True),
    "trees with replacement": trees({"fanouts": [4, 3], "replace": True, **TREES}),
    "times of edges": times({"fanouts": [5, 4], **OF_EDGES}),
    "times of nodes, inclusive": times({"fanouts": [-1, 4], "inclusive": True, **OF_NODES}),
    "both times, window, trees": times({"fanouts": [5, 4], "time_window": 25, **TREES, **OF_NODES, **OF_EDGES}),
    "last, frontier new": times({"fanouts": [4, 3], "strategy": "last", "frontier": "new", **OF_NODES, **OF_EDGES}),
    "times of pairs with replacement": times({"fanouts": [4, 3], "replace": True, **OF_EDGES}, links=True),
    "types: trees": trees({"fanouts": [2, 3], **TREES}, typed=True),
    "types: trees of links": trees({"fanouts": [2, 2], **TREES}, typed=True, links=True),
    "types: times": times({"fanouts": golden.FANOUTS_BY_TYPE, **OF_NODES, **OF_EDGES}, typed=True),
    "types: times of links, last, window, trees": times(
        {"fanouts": [3, 2], "strategy": "last", "inclusive": True, "time_window": 30, **TREES, **OF_NODES},
        typed=True,
        links=True,
    ),
    "items by weight with replacement": plain({"fanouts": [3]}, replacement=True),
    "types: items by weight": types({"fanouts": [3]}, replacement=False, weights=torch.float32),
    "times and weights": times({"fanouts": [6, 4], "time_window": 30, **OF_NODES, **OF_EDGES, **WEIGHTED}),
    "a window for each seed": times({"fanouts": [5, 4], "time_window": "recent", **OF_NODES, **OF_EDGES}, **WINDOWED),
    "types: a window for each link": times(
        {"fanouts": [3, 2], "time_window": "recent", **OF_EDGES}, typed=True, links=True, **WINDOWED
    ),
    "types: times and weights with replacement": times(
        {"fanouts": golden.FANOUTS_BY_TYPE, "replace": True, **OF_EDGES, **WEIGHTED}, typed=True, weights=torch.float32
    ),
}


def negatives(typed: bool = False, dtype: torch.dtype = torch.int64, **options: Any) -> dp.Stage:
    """Links with negatives, and neighbors without the seeds' own edges."""
    if typed:
        case = Case({}, typed=True, links=True)
        graph, excluded = graph_of(case), {}
    else:
        case = Case({}, links=True, repeated=True, fields=("later",), dtype=dtype)
        graph, excluded = graph_of(case), {"include_reverse_edges": True, "only_positive": True}
    pipe = items_of(case).sample_uniform_negative(graph, **options)
    fanouts = [3, 2] if typed else [4, 3]
    return pipe.sample_neighbor(graph, fanouts, return_edge_ids=not typed).exclude_seed_edges(**excluded)


def in_batch(typed: bool = False, **options: Any) -> dp.Stage:
    return items_of(Case({}, typed=typed, links=True)).sample_in_batch_negative(**options)


def historical(typed: bool = False, **options: Any) -> dp.Stage:
    case = Case({}, typed=typed, links=True, repeated=not typed, fields=("later",))
    return items_of(case).sample_historical_negative(graph_of(case).reversed(), edge_time_attr="at", **options)


def of_form(**options: Any) -> dp.Stage:
    case = Case({}, links=True, repeated=True)
    return items_of(case).sample_neighbor(graph_of(case).to_undirected(), [4, 3], return_edge_ids=True, **options)


def walks(dtype: torch.dtype = torch.int64, **options: Any) -> dp.Stage:
    case = Case({}, dtype=dtype)
    return items_of(case).sample_random_walk(graph_of(case), 6, walks_per_node=2, return_edge_ids=True, **options)


def metapath(*edge_types: Any) -> dp.Stage:
    nodes = dp.HeteroItemSet({edge_types[0][2]: dp.ItemSet(golden.NUM_NODES_OF[edge_types[0][2]])})
    items = dp.ItemSampler(nodes, golden.TYPED_BATCH_SIZE, shuffle=True, seed=golden.SEED)
    return items.sample_random_walk(graph_of(Case({}, typed=True)), len(edge_types), metapath=edge_types)


def sampled_by(name: str, *arguments: Any, dtype: torch.dtype = torch.int64, **options: Any) -> dp.Stage:
    case = Case({}, dtype=dtype)
    return getattr(items_of(case), name)(graph_of(case), *arguments, **options)


def clusters() -> dp.Stage:
    numbers = dp.ItemSampler(dp.ItemSet(10), 4, shuffle=True, seed=golden.SEED)
    of_nodes = torch.arange(golden.NUM_NODES) * 7 % 10
    return numbers.sample_induced_subgraph(graph_of(Case({})), clusters=of_nodes, return_edge_ids=True)


WEIGHT = (torch.arange(golden.NUM_NODES) % 7).double()
CHAINS: dict[str, Callable[[], dp.Stage]] = {
    "links: plain": partial(negatives, negative_ratio=3),
    "links: strict, both ends, int32 ids": partial(
        negatives, dtype=torch.int32, negative_ratio=1.5, corrupt="both", strict=True
    ),
    "links: rows of sources by weight": partial(
        negatives, negative_ratio=2, form="rows", corrupt="src", src_weight=WEIGHT
    ),
    "links: times, strict": partial(negatives, negative_ratio=2, node_time_attr="multiples", strict=True),
    "links: in batch": partial(in_batch, negative_ratio=1.5),
    "links: types: in batch, rows of sources": partial(
        in_batch, typed=True, negative_ratio=3, form="rows", corrupt="src"
    ),
    "links: historical": partial(historical, negative_ratio=3),
    "links: types: historical, rows": partial(historical, typed=True, negative_ratio=2, form="rows"),
    "links: induced": partial(of_form, subgraph_type="induced"),
    "links: induced trees": partial(of_form, subgraph_type="induced", disjoint=True),
    "links: bidirectional": partial(of_form, subgraph_type="bidirectional"),
    "links: types": partial(negatives, typed=True, negative_ratio=2, strict=True),
    "links: types: rows": partial(negatives, typed=True, negative_ratio=2, form="rows", corrupt="src"),
    "walks: plain, restarts": partial(walks, restart_prob=0.1),
    "walks: node2vec, int32 ids": partial(walks, dtype=torch.int32, p=0.25, q=4.0),
    "walks: node2vec by weight": partial(walks, p=4.0, q=0.25, prob_name="w"),
    "walks: metapath": partial(metapath, CITES, WRITES),
    "ppr: plain": lambda: sampled_by("sample_ppr", 6, eps=1e-3),
    "ppr: induced trees, int32 ids": lambda: sampled_by(
        "sample_ppr", 6, dtype=torch.int32, alpha=0.3, subgraph_type="induced", disjoint=True
    ),
    "pinsage: two hops": lambda: sampled_by("sample_pinsage", [3, 5], num_walks=8, walk_length=4, restart_prob=0.3),
    "subgraph: clusters": clusters,
}


def test_each_digest_has_a_case_at_the_stream_version_that_they_belong_to():
    assert [name for name in DIGESTS if not name.startswith("pyg: ")] == [*CASES, *CHAINS]
    assert dp.STREAM_VERSION == 1


@pytest.mark.parametrize("name", [*CASES, *CHAINS])
def test_the_package_gives_the_golden_digest(name):
    pipe = CHAINS[name]() if name in CHAINS else package_chain(CASES[name])
    assert dp.DataLoader(pipe).minibatch(golden.EPOCH, golden.INDEX).digest() == DIGESTS[name]


@pytest.mark.parametrize("name", CASES)
def test_the_twin_gives_the_golden_digest(name):
    assert twin.digest(twin_message(CASES[name])) == DIGESTS[name]


# --- attributes and features, by plain arithmetic

FIELDS: dict[str, Callable[[int], torch.Tensor]] = {
    "labels": lambda count: torch.arange(count, dtype=torch.uint8),
    "my.weight": lambda count: torch.arange(count, dtype=torch.float64) / 8,
    "timestamps": lambda count: torch.tensor([golden.time_of_item(item) for item in range(count)]),
    "recent": lambda count: torch.arange(count) % 3 * 11,
    "later": lambda count: torch.arange(count) * 7 % 60 + 20,
}
KEYS_OF_FIELDS = {
    "labels": ("labels", ""),
    "timestamps": ("timestamps", ""),
    "recent": ("extra", ".recent"),
    "my.weight": ("extra", ".my%2Eweight"),
}
NODE_FEATURES = {
    "": ("a.b", (torch.arange(3 * golden.NUM_NODES) - 100).reshape(-1, 3).to(torch.bfloat16)),
    **{
        name: ("x", (torch.arange(2 * golden.NUM_NODES_OF[name]) * 5 - 9).reshape(-1, 2).to(torch.float32))
        for name in ("paper", "a.b:%")
    },
}
EDGE_FEATURES = {
    PLAIN: (torch.arange(2 * golden.NUM_EDGES) * 3).reshape(-1, 2).to(torch.float16),
    **{name: torch.arange(len(golden.edges_of(name)[0])).to(torch.int16) * 3 for name in (WRITES, CITES)},
}


def weights_of(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Weights by the id of an edge: one in seven is 0, the others go over six orders of magnitude."""
    values = [0.0 if i % 7 == 3 else (i * 37 % 1000 + 1) * 0.5 ** (i * 5 % 13) for i in range(count)]
    return torch.tensor(values, dtype=torch.float64).to(dtype)


def have_times(edge_type: Any) -> tuple[bool, bool]:
    """Whether the edges of a type, and the nodes that they come from, have times."""
    return edge_type not in (HOSTS, TAGS), edge_type[0] in ("", *golden.TIMED_NODES)


# --- the package


def graph_of(case: Case) -> Any:
    edges = case.edges
    of_nodes = {
        name: {
            "since": torch.tensor([golden.time_of_node(v) for v in range(count)]),
            "multiples": torch.arange(count) * 19 % 50,
        }
        for name, count in case.num_nodes.items()
        if name in ("", *golden.TIMED_NODES)
    }
    of_edges: dict[Any, dict[str, torch.Tensor]] = {}
    for edge_type, columns in edges.items():
        count = columns.shape[1]
        of_edges[edge_type] = {"w": weights_of(count, case.weights)}
        if have_times(edge_type)[0]:
            of_edges[edge_type]["at"] = torch.tensor([golden.time_of_edge(edge) for edge in range(count)])
    if case.typed:
        graph = dp.HeteroCSCGraph.from_edge_index(
            edges, case.num_nodes, node_attributes=of_nodes, edge_attributes=of_edges
        )
    else:
        graph = dp.CSCGraph.from_edge_index(
            edges[PLAIN], golden.NUM_NODES, node_attributes=of_nodes[""], edge_attributes=of_edges[PLAIN]
        )
    return graph.with_index_dtype(case.dtype)


def items_of(case: Case) -> dp.ItemSampler:
    names = ["timestamps" if name == "later" else name for name in case.fields]
    sets = {
        item_type: dp.ItemSet(
            (case.seeds(item_type), *(FIELDS[name](count) for name in case.fields)), names=("seeds", *names)
        )
        for item_type, count in case.counts.items()
    }
    how: dict[str, Any] = {"shuffle": True}
    if case.replacement is not None:
        weights = {item_type: weights_of(count, case.weights) for item_type, count in case.counts.items()}
        how = {"weights": weights if case.typed else weights.popitem()[1], "replacement": case.replacement}
    if case.typed:
        return dp.ItemSampler(dp.HeteroItemSet(sets), golden.TYPED_BATCH_SIZE, seed=golden.SEED, **how)
    return dp.ItemSampler(*sets.values(), golden.BATCH_SIZE, seed=golden.SEED, **how)


def package_chain(case: Case) -> dp.Stage:
    pipe = getattr(items_of(case), case.stage)(graph_of(case), **case.options)
    if not case.features:
        return pipe
    nodes = {name: named for name, named in NODE_FEATURES.items() if (name != "") == case.typed}
    edges = {name: rows for name, rows in EDGE_FEATURES.items() if (name != PLAIN) == case.typed}
    store = {("node", name or None, attribute): rows for name, (attribute, rows) in nodes.items()}
    store |= {("edge", name if case.typed else None, "w"): rows for name, rows in edges.items()}
    features = dp.FeatureStore({key: dp.TensorFeature(rows) for key, rows in store.items()})
    if case.typed:
        return pipe.fetch_feature(features, dict.fromkeys(nodes, ("x",)), dict.fromkeys(edges, ("w",)))
    return pipe.fetch_feature(features, ["a.b"], ["w"])


# --- the twin


def sampled(
    case: Case, seeds: dict[Any, list[Any]], timestamps: dict[Any, list[int]], windows: dict[Any, list[int]] | None
) -> twin.TypedNeighborhood | Trees:
    """What the twin samples; a graph without types has the node type "" and the edge type PLAIN."""
    options = {"replace": False, "frontier": "all", "disjoint": False} | case.options
    node_types = sorted(case.num_nodes)
    relations = {
        edge_type: twin.coo_to_csc(*columns.tolist(), case.num_nodes[edge_type[2]])
        for edge_type, columns in case.edges.items()
    }
    fanouts = [
        fanout if isinstance(fanout, dict) else dict.fromkeys(relations, fanout)
        for fanout in reversed(options.get("fanouts", []))
    ]
    weights = None
    if "prob_name" in options:
        weights = {name: weights_of(len(ids), case.weights)[ids].tolist() for name, (_, _, ids) in relations.items()}
    if case.stage == "sample_layer_neighbor":
        dependencies = {name: value for name, value in case.options.items() if name.endswith("_dependency")}
        layers = twin_layer.Layers(golden.SEED, golden.EPOCH, golden.INDEX, 1, **dependencies)
        return twin_layer.sample_layer_neighbors(
            node_types, relations, seeds, fanouts=fanouts, layers=layers, weights=weights
        )
    if case.stage == "sample_in_subgraph" and case.typed:
        return twin_layer.sample_typed_in_subgraph(node_types, relations, seeds, options["edge_types"])
    if case.stage == "sample_in_subgraph":
        return in_types(twin_layer.sample_in_subgraph(*relations[PLAIN], seeds[""]), "")
    weights = None
    if "prob_name" in options:
        weights = {name: weights_of(len(ids), case.weights)[ids].tolist() for name, (_, _, ids) in relations.items()}
    if options["disjoint"] or timestamps:
        return sample_trees(
            node_types,
            {
                name: Relation(*arrays, times_of(case, name, *arrays[1:]), weights and weights[name])
                for name, arrays in relations.items()
            },
            {name: [np.ravel(row).tolist() for row in rows] for name, rows in seeds.items()},
            fanouts=fanouts,
            key_of=golden.key_of_hop,
            frontier=options["frontier"],
            disjoint=options["disjoint"],
            rule=rule_of(case),
            timestamps=timestamps,
            windows=windows,
        )
    draws = {"replace": options["replace"], "frontier": options["frontier"]}
    if case.typed:
        return twin.sample_typed_neighbors(
            node_types, relations, seeds, fanouts=fanouts, key_of=golden.key_of_hop, weights=weights, **draws
        )
    [(item_type, rows)] = seeds.items()
    neighborhood = twin.sample_neighbors(
        *relations[PLAIN],
        np.ravel(rows).tolist(),
        fanouts=[fanout[PLAIN] for fanout in fanouts],
        keys=[golden.key_of_hop(hop) for hop in range(len(fanouts))],
        weights=weights and weights[PLAIN],
        **draws,
    )
    return in_types(neighborhood, item_type)


def in_types(plain: twin.Neighborhood, item_type: Any) -> twin.TypedNeighborhood:
    return twin.TypedNeighborhood(
        {"": plain.nodes}, {item_type: plain.compacted_seeds}, [{PLAIN: hop} for hop in plain.hops]
    )


def rule_of(case: Case) -> Rule:
    named = {"replace": "replace", "strategy": "strategy", "inclusive": "inclusive", "time_window": "window"}
    values = {named[option]: value for option, value in case.options.items() if option in named}
    return Rule(temporal=case.stage == "temporal_sample_neighbor", **values)


def times_of(case: Case, edge_type: Any, sources: list[int], edge_ids: list[int]) -> list[list[int]]:
    """The times of each in-edge."""
    on_edges, on_nodes = have_times(edge_type)
    of_edges = [golden.time_of_edge(edge) for edge in edge_ids] if on_edges and "edge_time_attr" in case.options else []
    of_nodes = [golden.time_of_node(u) for u in sources] if on_nodes and "node_time_attr" in case.options else []
    columns = [column for column in (of_edges, of_nodes) if column]
    return [[column[place] for column in columns] for place in range(len(edge_ids))]


def twin_message(case: Case) -> dict[str, Any]:
    ids = np.int32 if case.dtype == torch.int32 else np.int64
    drawn: dict[str, Any] = {}
    if case.replacement is not None:
        of_types = [weights_of(case.counts[name], case.weights) for name in sorted(case.counts)]
        drawn = {"weights": torch.cat(of_types).tolist(), "replacement": case.replacement}
    if case.typed:
        places = golden.places_of_types(case.counts, **drawn)
    else:
        places = dict.fromkeys(case.counts, golden.places_of_items(case.num_items, **drawn))
    seeds = {name: case.seeds(name).numpy()[rows] for name, rows in places.items()}
    fields = {
        name: {field: FIELDS[field](case.counts[name]).numpy()[rows] for field in case.fields}
        for name, rows in places.items()
    }
    timestamps = {name: values["timestamps"].tolist() for name, values in fields.items() if "timestamps" in values}
    windows = {name: values["recent"].tolist() for name, values in fields.items() if "recent" in values}
    neighborhood = sampled(case, {name: rows.tolist() for name, rows in seeds.items()}, timestamps, windows or None)
    batch = getattr(neighborhood, "batch", None)
    ending = {name: f".{key}" for name, key in golden.KEYS.items()} if case.typed else {"": "", PLAIN: ""}
    message: dict[str, Any] = golden.step_fields()
    for name, rows in seeds.items():
        message[f"seeds{ending[name]}"] = rows
        compacted = np.array(neighborhood.compacted_seeds[name], dtype=ids)
        message[f"compacted_seeds{ending[name]}"] = compacted.reshape(rows.shape)
        for field, values in fields[name].items():
            key, rest = KEYS_OF_FIELDS[field]
            message[f"{key}{ending[name]}{rest}"] = values
    for name, nodes in neighborhood.nodes.items():
        message[f"input_nodes{ending[name]}"] = np.array(nodes, dtype=ids)
        if batch is not None:
            message[f"batch{ending[name]}"] = np.array(batch[name], dtype=np.int64)
        if case.features and name in NODE_FEATURES:
            attribute, rows = NODE_FEATURES[name]
            bits = ("bfloat16", rows.view(torch.int16).numpy()[nodes]) if name == "" else rows.numpy()[nodes]
            message[f"node_features{ending[name]}.{attribute.replace('.', '%2E')}"] = bits
    for h, blocks in enumerate(neighborhood.hops):
        for name, block in blocks.items():
            has_ids = "return_edge_ids" in case.options
            message |= golden.block_fields(h, block, ids, ending[name], with_edge_ids=has_ids)
            if case.features and name in EDGE_FEATURES:
                message[f"hop{h}.edge_features{ending[name]}.w"] = EDGE_FEATURES[name].numpy()[block.edge_ids]
    return message


# --- the cases hold what they are meant to


def test_cases_of_types_have_several_relations_an_empty_type_seeds_of_both_types_and_all_hops():
    message = twin_message(CASES["types: all types, fanouts 3 and 4"])
    assert all(len(message[f"seeds.{name}"]) > 2 for name in golden.NUM_ITEMS_OF)
    assert [name for name in golden.NUM_NODES_OF if len(message[f"input_nodes.{golden.KEYS[name]}"]) == 0] == ["venue"]
    sizes = {name: len(message[f"hop1.indices.{golden.KEYS[name]}"]) for name in golden.EDGE_TYPES}
    assert [name for name, size in sizes.items() if size < 10] == [HOSTS]


def test_cases_of_weights_leave_zeros_out_reject_draws_and_remove_picks_for_many_rejections(monkeypatch):
    masked, every = (
        twin_message(Case({"fanouts": [-1], "return_edge_ids": True, **options}, weights=torch.bool))
        for options in (WEIGHTED, {})
    )
    zeros = (~weights_of(golden.NUM_EDGES, torch.bool)).nonzero().flatten().tolist()
    of_seeds = set(every["hop0.edge_ids"].tolist())
    assert set(masked["hop0.edge_ids"].tolist()) == of_seeds - set(zeros) != of_seeds
    calls: list[int] = []
    sums_of = twin.sums_of
    monkeypatch.setattr(twin, "sums_of", lambda weights: calls.append(len(weights)) or sums_of(weights))
    message = twin_message(CASES["weights: large fanouts, int32 ids"])
    columns = sum(len(message[f"hop{h}.indptr"]) - 1 for h in range(2))
    assert len(calls) > columns  # what is more than one for each column are removals


def test_in_cases_of_trees_and_times_a_node_is_there_several_times_and_some_edges_are_not_eligible():
    of_trees, of_times = twin_message(CASES["trees"]), twin_message(CASES["times of edges"])
    for message in (of_trees, of_times):
        assert len(set(message["input_nodes"].tolist())) < len(message["input_nodes"])
    assert of_trees["batch"].tolist()[:8] == list(range(8))
    compacted = of_times["compacted_seeds"]
    assert len(set(of_times["seeds"].tolist())) < len(set(compacted.tolist())) < len(of_times["seeds"])
    every = twin_message(replace(CASES["trees"], options={"fanouts": [5, 4], **TREES}))
    assert len(of_times["hop1.indices"]) < len(every["hop1.indices"])
