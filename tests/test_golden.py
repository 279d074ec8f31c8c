"""Golden digests: the bits of docs/semantics.md at stream version 1.

A digest here may change only together with STREAM_VERSION. Each is checked twice: against the package, and against a
message that the plain Python twin builds from that page alone.
"""

import golden_graphs as golden
import numpy as np
import pytest
import torch
import twin

import datapipes as dp

GOLDEN = {
    "all hops, fanouts 3 and 5": "8e480126c6fd132798effa1574857008",
    "frontier new": "07d40b98c0f7d6f4e78f0c232ed8bdb3",
    "with replacement": "8e52583e68686deda18b837e2acde345",
    "every neighbor and none": "283ada07c9af4b99f38c53140b050035",
    "int32 ids": "395b28c0688b6d041bbf5b55b91f0308",
    "edge ids and features": "234a5618effa2d403ba01647c48bea48",
    "pairs": "80dc99398b52e3891ad7366cbb13dbbe",
    "a large item set": "dd5c3ebc71fad995777cf611bc329c36",
}
CASES = {
    "all hops, fanouts 3 and 5": {"fanouts": [5, 3]},
    "frontier new": {"fanouts": [4, 3, 2], "frontier": "new"},
    "with replacement": {"fanouts": [6, 4], "replace": True},
    "every neighbor and none": {"fanouts": [0, -1]},
    "int32 ids": {"fanouts": [5, 3], "dtype": torch.int32},
    "edge ids and features": {"fanouts": [3, 2], "features": True},
    "pairs": {"fanouts": [2, 2], "pairs": True},
    "a large item set": {"fanouts": [3], "num_items": 70_001},
}


def test_the_stream_version_is_the_one_that_the_digests_belong_to():
    assert dp.STREAM_VERSION == 1


@pytest.mark.parametrize("name", CASES)
def test_the_package_gives_the_golden_digest(name):
    assert package_minibatch(**CASES[name]).digest() == GOLDEN[name]


@pytest.mark.parametrize("name", CASES)
def test_the_twin_gives_the_golden_digest(name):
    assert twin.digest(twin_message(**CASES[name])) == GOLDEN[name]


def edge_rows() -> torch.Tensor:
    return (torch.arange(2 * golden.NUM_EDGES) * 3).reshape(-1, 2).to(torch.float16)


def node_rows() -> torch.Tensor:
    return (torch.arange(3 * golden.NUM_NODES) - 100).reshape(-1, 3).to(torch.bfloat16)


def package_minibatch(
    fanouts, frontier="all", replace=False, dtype=torch.int64, features=False, pairs=False, num_items=golden.NUM_ITEMS
) -> dp.MiniBatch:
    graph = dp.CSCGraph.from_edge_index(torch.tensor(golden.edges()), golden.NUM_NODES).with_index_dtype(dtype)
    labels = torch.arange(num_items, dtype=torch.uint8)
    pipe = dp.ItemSampler(
        dp.ItemSet((golden.seeds_of(pairs, num_items), labels)), golden.BATCH_SIZE, shuffle=True, seed=golden.SEED
    )
    pipe = pipe.sample_neighbor(graph, fanouts, frontier=frontier, replace=replace, return_edge_ids=features)
    if features:
        store = {("node", None, "a.b"): node_rows(), ("edge", None, "w"): edge_rows()}
        store = dp.FeatureStore({key: dp.TensorFeature(rows) for key, rows in store.items()})
        pipe = pipe.fetch_feature(store, ["a.b"], ["w"])
    return dp.DataLoader(pipe).minibatch(golden.EPOCH, golden.INDEX)


def twin_message(
    fanouts, frontier="all", replace=False, dtype=torch.int64, features=False, pairs=False, num_items=golden.NUM_ITEMS
) -> dict:
    ids = np.int32 if dtype == torch.int32 else np.int64
    items = golden.places_of_items(num_items)
    seeds = golden.seeds_of(pairs, num_items).numpy()[items]
    indptr, indices, edge_ids = twin.coo_to_csc(*golden.edges(), golden.NUM_NODES)
    keys = [golden.key_of_hop(hop) for hop in range(len(fanouts))]
    found = twin.sample_neighbors(
        indptr,
        indices,
        edge_ids,
        seeds.reshape(-1).tolist(),
        fanouts=fanouts[::-1],
        keys=keys,
        replace=replace,
        frontier=frontier,
    )
    message = {
        **golden.step_fields(),
        "seeds": seeds,
        "labels": np.array([item % 256 for item in items], dtype=np.uint8),
        "compacted_seeds": np.array(found.compacted_seeds, dtype=ids).reshape(seeds.shape),
        "input_nodes": np.array(found.nodes, dtype=ids),
    }
    for h, hop in enumerate(found.hops):
        message |= golden.block_fields(h, hop, ids, with_edge_ids=features)
        if features:
            message[f"hop{h}.edge_features.w"] = edge_rows().numpy()[hop.edge_ids]
    if features:
        message["node_features.a%2Eb"] = ("bfloat16", node_rows().view(torch.int16).numpy()[found.nodes])
    return message
