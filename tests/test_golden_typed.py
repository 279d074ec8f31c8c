"""Golden digests of minibatches with types: docs/semantics.md, sections 2, 4.1 and 5, at stream version 1.

As in test_golden.py, a digest changes only together with STREAM_VERSION, and is checked against the package and against
the plain Python twin.
"""

from typing import Any

import golden_graphs as golden
import numpy as np
import pytest
import torch
import twin
from twin_cases import by_hop

import datapipes as dp

CASES: dict[str, dict[str, Any]] = {
    "all types, fanouts 3 and 4": {"fanouts": [3, 4]},
    "fanouts by edge type": {"fanouts": golden.FANOUTS_BY_TYPE},
    "frontier new": {"fanouts": [3, *golden.FANOUTS_BY_TYPE], "frontier": "new"},
    "with replacement": {"fanouts": [4, 3], "replace": True},
    "int32 ids": {"fanouts": [3, 4], "dtype": torch.int32},
    "edge ids, features, further fields": {"fanouts": golden.FANOUTS_BY_TYPE, "features": True},
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


def node_rows(node_type: str) -> torch.Tensor:
    return (torch.arange(2 * golden.NUM_NODES_OF[node_type]) * 5 - 9).reshape(-1, 2).to(torch.float32)


def edge_rows(edge_type: tuple[str, str, str]) -> torch.Tensor:
    return torch.arange(len(golden.edges_of(edge_type)[0])).to(torch.int16) * 3


def package_minibatch(
    fanouts, frontier="all", replace=False, dtype=torch.int64, features=False, links=False
) -> dp.MiniBatch:
    graph = dp.HeteroCSCGraph.from_edge_index(
        golden.edge_index_of_types(), num_nodes=golden.NUM_NODES_OF
    ).with_index_dtype(dtype)
    sets = {}
    for of, count in (golden.NUM_LINKS_OF if links else golden.NUM_ITEMS_OF).items():
        labels, weight = torch.arange(count, dtype=torch.uint8), torch.arange(count, dtype=torch.float64) / 8
        sets[of] = dp.ItemSet((golden.items_of(of), labels, weight), names=("seeds", "labels", "my.weight"))
    pipe = dp.ItemSampler(dp.HeteroItemSet(sets), golden.TYPED_BATCH_SIZE, shuffle=True, seed=golden.SEED)
    pipe = pipe.sample_neighbor(graph, fanouts, frontier=frontier, replace=replace, return_edge_ids=features)
    if features:
        store = {("node", of, "x"): node_rows(of) for of in ("paper", "a.b:%")}
        store |= {("edge", of, "w"): edge_rows(of) for of in (golden.EDGE_TYPES[0], golden.EDGE_TYPES[2])}
        pipe = pipe.fetch_feature(
            dp.FeatureStore({key: dp.TensorFeature(rows) for key, rows in store.items()}),
            {"a.b:%": ["x"], "paper": ["x"]},
            {golden.EDGE_TYPES[0]: ["w"], golden.EDGE_TYPES[2]: ["w"]},
        )
    return dp.DataLoader(pipe).minibatch(golden.EPOCH, golden.INDEX)


def twin_message(
    fanouts, frontier="all", replace=False, dtype=torch.int64, features=False, links=False
) -> dict[str, np.ndarray]:
    ids = np.int32 if dtype == torch.int32 else np.int64
    counts = golden.NUM_LINKS_OF if links else golden.NUM_ITEMS_OF
    places = golden.places_of_types(counts)
    seeds = {of: golden.items_of(of).numpy()[places[of]] for of in counts}
    found = twin.sample_typed_neighbors(
        sorted(golden.NUM_NODES_OF),
        golden.relations(),
        seeds,
        fanouts=by_hop(fanouts, golden.EDGE_TYPES),
        key_of=golden.key_of_hop,
        replace=replace,
        frontier=frontier,
    )
    message = golden.step_fields()
    for of in counts:
        message[f"seeds.{golden.KEYS[of]}"] = seeds[of]
        message[f"labels.{golden.KEYS[of]}"] = np.array(places[of], dtype=np.uint8)
        message[f"extra.{golden.KEYS[of]}.my%2Eweight"] = np.array(places[of], dtype=np.float64) / 8
        compacted = np.array(found.compacted_seeds[of], dtype=ids)
        message[f"compacted_seeds.{golden.KEYS[of]}"] = compacted.reshape(seeds[of].shape)
    for node_type, nodes in found.nodes.items():
        message[f"input_nodes.{golden.KEYS[node_type]}"] = np.array(nodes, dtype=ids)
        if features and node_type in ("paper", "a.b:%"):
            message[f"node_features.{golden.KEYS[node_type]}.x"] = node_rows(node_type).numpy()[nodes]
    for h, blocks in enumerate(found.hops):
        for of, block in blocks.items():
            message |= golden.block_fields(h, block, ids, f".{golden.KEYS[of]}", with_edge_ids=features)
            if features and of in (golden.EDGE_TYPES[0], golden.EDGE_TYPES[2]):
                message[f"hop{h}.edge_features.{golden.KEYS[of]}.w"] = edge_rows(of).numpy()[block.edge_ids]
    return message


def test_the_cases_hold_what_they_are_meant_to():
    """Several relations between two types, one of a type with itself, an empty type, seeds of both types, all hops."""
    message = twin_message(**CASES["all types, fanouts 3 and 4"])
    assert all(len(message[f"seeds.{of}"]) > 2 for of in golden.NUM_ITEMS_OF)
    assert [name for name in golden.NUM_NODES_OF if len(message[f"input_nodes.{golden.KEYS[name]}"]) == 0] == ["venue"]
    sizes = {of: len(message[f"hop1.indices.{golden.KEYS[of]}"]) for of in golden.EDGE_TYPES}
    assert [of for of, size in sizes.items() if size < 10] == [("venue", "hosts", "paper")]
