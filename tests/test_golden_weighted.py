"""Golden digests of weighted and masked picks: docs/semantics.md, section 3.1, at stream version 1.

As in test_golden.py, a digest changes only together with STREAM_VERSION.
"""

from typing import Any

import golden_graphs as golden
import numpy as np
import pytest
import torch
import twin
from twin_cases import by_hop

import datapipes as dp

FEW = dict.fromkeys(golden.EDGE_TYPES, 2) | {golden.EDGE_TYPES[1]: 4}
CASES: dict[str, dict[str, Any]] = {
    "without replacement": {"fanouts": [5, 3], "dtype": torch.float32},
    "with replacement": {"fanouts": [6, 4], "dtype": torch.float64, "replace": True},
    "every drawable in-edge, frontier new": {"fanouts": [4, -1], "dtype": torch.float16, "frontier": "new"},
    "large fanouts, int32 ids": {"fanouts": [2, 25], "dtype": torch.bfloat16, "ids": np.int32},
    "mask": {"fanouts": [5, 7], "dtype": torch.bool},
}
TYPED_CASES: dict[str, dict[str, Any]] = {
    "types": {"fanouts": [3, FEW], "dtype": torch.float32},
    "types, with replacement": {"fanouts": [2, 3], "dtype": torch.float16, "replace": True, "frontier": "new"},
    "types, mask": {"fanouts": [FEW, FEW], "dtype": torch.bool},
}
GOLDEN = {
    "without replacement": "d788dfa53d4beabcf1d096b6173e459c",
    "with replacement": "1b0f842d718b1bcdce9c6619cea41cdc",
    "every drawable in-edge, frontier new": "bbd337fe0abed925623e5ed4942c07ea",
    "large fanouts, int32 ids": "b356e8dfec585820a5050cc3c3a4568f",
    "mask": "a692c131ce89d4367c6e0dbf16d1d971",
    "types": "c202038534a97d7f8d7631f58a894384",
    "types, with replacement": "bf0256e273e5d87bbb88bda33fe1cb68",
    "types, mask": "4b535d1912af8694d969aa5feeffe91c",
}


@pytest.mark.parametrize("name", [*CASES, *TYPED_CASES])
def test_the_twin_gives_the_golden_digest(name):
    assert twin.digest(twin_message(name)) == GOLDEN[name]


@pytest.mark.parametrize("name", [*CASES, *TYPED_CASES])
def test_the_package_gives_the_golden_digest(name):
    found = package_minibatch(**CASES[name]) if name in CASES else typed_package_minibatch(**TYPED_CASES[name])
    assert found.digest() == GOLDEN[name]


def package_minibatch(fanouts, dtype, replace=False, frontier="all", ids: Any = np.int64) -> dp.MiniBatch:
    attributes = {"w": weights_of(golden.NUM_EDGES, dtype)}
    graph = dp.CSCGraph.from_edge_index(torch.tensor(golden.edges()), golden.NUM_NODES, edge_attributes=attributes)
    graph = graph.with_index_dtype(torch.int32 if ids is np.int32 else torch.int64)
    pipe = dp.ItemSampler(dp.ItemSet(golden.seeds_of(False)), golden.BATCH_SIZE, shuffle=True, seed=golden.SEED)
    options = {"replace": replace, "frontier": frontier, "prob_name": "w", "return_edge_ids": True}
    return dp.DataLoader(pipe.sample_neighbor(graph, fanouts, **options)).minibatch(golden.EPOCH, golden.INDEX)


def typed_package_minibatch(fanouts, dtype, replace=False, frontier="all") -> dp.MiniBatch:
    edge_index = golden.edge_index_of_types()
    attributes = {of: {"w": weights_of(columns.shape[1], dtype)} for of, columns in edge_index.items()}
    graph = dp.HeteroCSCGraph.from_edge_index(edge_index, golden.NUM_NODES_OF, edge_attributes=attributes)
    sets = {of: dp.ItemSet(golden.items_of(of)) for of in golden.NUM_ITEMS_OF}
    pipe = dp.ItemSampler(dp.HeteroItemSet(sets), golden.TYPED_BATCH_SIZE, shuffle=True, seed=golden.SEED)
    options = {"replace": replace, "frontier": frontier, "prob_name": "w", "return_edge_ids": True}
    return dp.DataLoader(pipe.sample_neighbor(graph, fanouts, **options)).minibatch(golden.EPOCH, golden.INDEX)


def weights_of(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Weights by the id of an edge: one in seven is 0, the others go over six orders of magnitude."""
    values = [0.0 if i % 7 == 3 else (i * 37 % 1000 + 1) * 0.5 ** (i * 5 % 13) for i in range(count)]
    return torch.tensor(values, dtype=torch.float64).to(dtype)


def twin_message(name: str) -> dict[str, Any]:
    return plain_message(**CASES[name]) if name in CASES else typed_message(**TYPED_CASES[name])


def plain_message(
    fanouts, dtype, replace=False, frontier="all", ids: Any = np.int64, weighted=True
) -> dict[str, np.ndarray]:
    seeds = golden.seeds_of(False).numpy()[golden.places_of_items()]
    indptr, indices, edge_ids = twin.coo_to_csc(*golden.edges(), golden.NUM_NODES)
    found = twin.sample_neighbors(
        indptr,
        indices,
        edge_ids,
        seeds.tolist(),
        fanouts=fanouts[::-1],
        keys=[golden.key_of_hop(hop) for hop in range(len(fanouts))],
        replace=replace,
        frontier=frontier,
        weights=weights_of(golden.NUM_EDGES, dtype)[edge_ids].tolist() if weighted else None,
    )
    message = {
        **golden.step_fields(),
        "seeds": seeds,
        "compacted_seeds": np.array(found.compacted_seeds, dtype=ids),
        "input_nodes": np.array(found.nodes, dtype=ids),
    }
    for h, hop in enumerate(found.hops):
        message |= golden.block_fields(h, hop, ids)
    return message


def typed_message(fanouts, dtype, replace=False, frontier="all") -> dict[str, np.ndarray]:
    seeds = {
        of: golden.items_of(of).numpy()[places] for of, places in golden.places_of_types(golden.NUM_ITEMS_OF).items()
    }
    by_destination = golden.relations()
    found = twin.sample_typed_neighbors(
        sorted(golden.NUM_NODES_OF),
        by_destination,
        seeds,
        fanouts=by_hop(fanouts, golden.EDGE_TYPES),
        key_of=golden.key_of_hop,
        replace=replace,
        frontier=frontier,
        weights={of: weights_of(len(ids), dtype)[ids].tolist() for of, (_, _, ids) in by_destination.items()},
    )
    message = golden.step_fields()
    for of, ids in seeds.items():
        message[f"seeds.{of}"] = ids
        message[f"compacted_seeds.{of}"] = np.array(found.compacted_seeds[of], dtype=np.int64)
    for node_type, nodes in found.nodes.items():
        message[f"input_nodes.{golden.KEYS[node_type]}"] = np.array(nodes, dtype=np.int64)
    for h, blocks in enumerate(found.hops):
        for of, block in blocks.items():
            message |= golden.block_fields(h, block, ending=f".{golden.KEYS[of]}")
    return message


def test_the_cases_hold_what_they_are_meant_to(monkeypatch):
    """Zeros are left out, draws are rejected, and picks removed for many rejections."""
    masked, every = (plain_message([-1], torch.bool, weighted=weighted) for weighted in (True, False))
    zeros = (~weights_of(golden.NUM_EDGES, torch.bool)).nonzero().flatten().tolist()
    of_seeds = set(every["hop0.edge_ids"].tolist())
    assert set(masked["hop0.edge_ids"].tolist()) == of_seeds - set(zeros) != of_seeds
    calls: list[int] = []
    sums_of = twin.sums_of
    monkeypatch.setattr(twin, "sums_of", lambda weights: calls.append(len(weights)) or sums_of(weights))
    message = plain_message(**CASES["large fanouts, int32 ids"])
    columns = sum(len(message[f"hop{h}.indptr"]) - 1 for h in range(2))
    assert len(calls) > columns  # what is more than one for each column are removals
