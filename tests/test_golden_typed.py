"""Golden digests of minibatches with types: docs/semantics.md, sections 2, 4.1 and 5, at stream version 1.

As in test_golden.py, a digest changes only together with STREAM_VERSION, and is checked against the package and against
the plain Python twin.
"""

from typing import Any

import numpy as np
import pytest
import torch
import twin

import datapipes as dp

SEED, EPOCH, INDEX, BATCH_SIZE = 2026, 3, 2, 16
NUM_NODES = {"paper": 53, "author": 31, "venue": 0, "a.b:%": 7}  # one type is empty, one name needs escapes
NUM_ITEMS = {"paper": 40, "author": 23}
NUM_LINKS = {("paper", "cites", "paper"): 30, ("author", "writes", "paper"): 25}
EDGE_TYPES = [
    ("author", "writes", "paper"),
    ("author", "reviews", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "rev:writes", "author"),
    ("venue", "hosts", "paper"),
    ("a.b:%", "tags", "paper"),
]
KEYS = {"paper": "paper", "author": "author", "venue": "venue", "a.b:%": "a%2Eb%3A%25"}
KEYS |= {of: ":".join(KEYS.get(part, part).replace("rev:", "rev%3A") for part in of) for of in EDGE_TYPES}

BY_TYPE = [
    {("author", "writes", "paper"): 3, ("paper", "cites", "paper"): -1, ("paper", "rev:writes", "author"): 2},
    {("author", "writes", "paper"): 2, ("author", "reviews", "paper"): 4, ("a.b:%", "tags", "paper"): 1},
]
CASES: dict[str, dict[str, Any]] = {
    "all types, fanouts 3 and 4": {"fanouts": [3, 4]},
    "fanouts by edge type": {"fanouts": BY_TYPE},
    "frontier new": {"fanouts": [3, *BY_TYPE], "frontier": "new"},
    "with replacement": {"fanouts": [4, 3], "replace": True},
    "int32 ids": {"fanouts": [3, 4], "dtype": torch.int32},
    "edge ids, features, further fields": {"fanouts": BY_TYPE, "features": True},
    "links": {"fanouts": [2, 3], "links": True},
}
GOLDEN = {
    "all types, fanouts 3 and 4": "f0cb9f94e1bec0d38bb866c767e6afa2",
    "fanouts by edge type": "03d42efbcfbfa239114287ef85f50cc6",
    "frontier new": "07220f54d1272fd5228ea2d4b2074621",
    "with replacement": "8c37e5c968a347c945675cb0e815d5c3",
    "int32 ids": "768007d079c6c757c90cc1609731eb96",
    "edge ids, features, further fields": "7a9b27f2ad36b645f33430815ef29314",
    "links": "b5271b75435efee695fa3839e66c97ce",
}


@pytest.mark.parametrize("name", CASES)
def test_the_twin_gives_the_golden_digest(name):
    assert twin.digest(twin_message(**CASES[name])) == GOLDEN[name]


@pytest.mark.parametrize("name", CASES)
def test_the_package_gives_the_golden_digest(name):
    assert package_minibatch(**CASES[name]).digest() == GOLDEN[name]


def edges_of(edge_type: tuple[str, str, str]) -> tuple[list[int], list[int]]:
    """Sources and destinations by plain arithmetic; none where a type is empty."""
    shift = EDGE_TYPES.index(edge_type)
    sources, destinations = NUM_NODES[edge_type[0]], NUM_NODES[edge_type[2]]
    count = 150 + 60 * shift if sources and destinations else 0
    return (
        [(i * i * 31 + i * 7 + 5 + shift) % sources for i in range(count)],
        [(i * (13 + shift) % destinations) * (i * 29 % destinations) // destinations for i in range(count)],
    )


def items_of(of: Any) -> torch.Tensor:
    """The seeds of a node type, or the pairs of an edge type."""
    if isinstance(of, str):
        return torch.arange(NUM_ITEMS[of]) * 17 % NUM_NODES[of]
    places = torch.arange(NUM_LINKS[of])
    return torch.stack((places * 11 % NUM_NODES[of[0]], places * 7 % NUM_NODES[of[2]]), dim=1)


def node_rows(node_type: str) -> torch.Tensor:
    return (torch.arange(2 * NUM_NODES[node_type]) * 5 - 9).reshape(-1, 2).to(torch.float32)


def edge_rows(edge_type: tuple[str, str, str]) -> torch.Tensor:
    return torch.arange(len(edges_of(edge_type)[0])).to(torch.int16) * 3


def package_minibatch(
    fanouts, frontier="all", replace=False, dtype=torch.int64, features=False, links=False
) -> dp.MiniBatch:
    edge_index = {of: torch.tensor(edges_of(of), dtype=torch.int64).reshape(2, -1) for of in EDGE_TYPES}
    graph = dp.HeteroCSCGraph.from_edge_index(edge_index, num_nodes=NUM_NODES).with_index_dtype(dtype)
    sets = {}
    for of, count in (NUM_LINKS if links else NUM_ITEMS).items():
        labels, weight = torch.arange(count, dtype=torch.uint8), torch.arange(count, dtype=torch.float64) / 8
        sets[of] = dp.ItemSet((items_of(of), labels, weight), names=("seeds", "labels", "my.weight"))
    pipe = dp.ItemSampler(dp.HeteroItemSet(sets), BATCH_SIZE, shuffle=True, seed=SEED)
    pipe = pipe.sample_neighbor(graph, fanouts, frontier=frontier, replace=replace, return_edge_ids=features)
    if features:
        store = {("node", of, "x"): node_rows(of) for of in ("paper", "a.b:%")}
        store |= {("edge", of, "w"): edge_rows(of) for of in (EDGE_TYPES[0], EDGE_TYPES[2])}
        pipe = pipe.fetch_feature(
            dp.FeatureStore({key: dp.TensorFeature(rows) for key, rows in store.items()}),
            {"a.b:%": ["x"], "paper": ["x"]},
            {EDGE_TYPES[0]: ["w"], EDGE_TYPES[2]: ["w"]},
        )
    return dp.DataLoader(pipe).minibatch(EPOCH, INDEX)


def twin_message(
    fanouts, frontier="all", replace=False, dtype=torch.int64, features=False, links=False
) -> dict[str, np.ndarray]:
    ids = np.int32 if dtype == torch.int32 else np.int64
    counts = NUM_LINKS if links else NUM_ITEMS
    numbered = [(of, place) for of in sorted(counts) for place in range(counts[of])]
    order = twin.permutation(len(numbered), twin.hop_key(SEED, EPOCH, 0, 0, 0, 0))
    visited = [numbered[i] for i in order[INDEX * BATCH_SIZE : (INDEX + 1) * BATCH_SIZE]]
    places = {of: [place for found, place in visited if found == of] for of in counts}
    seeds = {of: items_of(of).numpy()[places[of]] for of in counts}
    relations = {}
    for of in EDGE_TYPES:
        relations[of] = twin.coo_to_csc(*edges_of(of), NUM_NODES[of[2]])
    by_hop = [dict.fromkeys(EDGE_TYPES, fanout) if isinstance(fanout, int) else fanout for fanout in reversed(fanouts)]
    found = twin.sample_typed_neighbors(
        sorted(NUM_NODES),
        relations,
        seeds,
        fanouts=by_hop,
        key_of=lambda hop, ordinal: twin.hop_key(SEED, EPOCH, INDEX, 1, hop, ordinal),
        replace=replace,
        frontier=frontier,
    )
    message = {"epoch": np.array(EPOCH), "index": np.array(INDEX)}
    for of in counts:
        message[f"seeds.{KEYS[of]}"] = seeds[of]
        message[f"labels.{KEYS[of]}"] = np.array(places[of], dtype=np.uint8)
        message[f"extra.{KEYS[of]}.my%2Eweight"] = np.array(places[of], dtype=np.float64) / 8
        compacted = np.array(found.compacted_seeds[of], dtype=ids)
        message[f"compacted_seeds.{KEYS[of]}"] = compacted.reshape(seeds[of].shape)
    for node_type, nodes in found.nodes.items():
        message[f"input_nodes.{KEYS[node_type]}"] = np.array(nodes, dtype=ids)
        if features and node_type in ("paper", "a.b:%"):
            message[f"node_features.{KEYS[node_type]}.x"] = node_rows(node_type).numpy()[nodes]
    for h, blocks in enumerate(found.hops):
        for of, block in blocks.items():
            message[f"hop{h}.indptr.{KEYS[of]}"] = np.array(block.indptr, dtype=np.int64)
            message[f"hop{h}.indices.{KEYS[of]}"] = np.array(block.indices, dtype=ids)
            message[f"hop{h}.num_src.{KEYS[of]}"] = np.array(block.num_src)
            if features:
                message[f"hop{h}.edge_ids.{KEYS[of]}"] = np.array(block.edge_ids, dtype=np.int64)
            if features and of in (EDGE_TYPES[0], EDGE_TYPES[2]):
                message[f"hop{h}.edge_features.{KEYS[of]}.w"] = edge_rows(of).numpy()[block.edge_ids]
    return message


def test_the_cases_hold_what_they_are_meant_to():
    """Several relations between two types, one of a type with itself, an empty type, seeds of both types, all hops."""
    message = twin_message(**CASES["all types, fanouts 3 and 4"])
    assert all(len(message[f"seeds.{of}"]) > 2 for of in NUM_ITEMS)
    assert [name for name in NUM_NODES if len(message[f"input_nodes.{KEYS[name]}"]) == 0] == ["venue"]
    sizes = {of: len(message[f"hop1.indices.{KEYS[of]}"]) for of in EDGE_TYPES}
    assert [of for of, size in sizes.items() if size < 10] == [("venue", "hosts", "paper")]
