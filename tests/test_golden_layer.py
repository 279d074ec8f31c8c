"""Golden digests of LABOR and of in-subgraphs: docs/semantics.md, sections 3.2 and 4.4, at stream version 1.

As in test_golden.py, a digest changes only together with STREAM_VERSION, and is checked against the package and against
the plain Python twin.
"""

from typing import Any, NamedTuple

import golden_graphs as golden
import numpy as np
import pytest
import torch
import twin
import twin_layer
from twin_cases import by_hop

import datapipes as dp

LAYER = "sample_layer_neighbor"


class Case(NamedTuple):
    """A stage and its arguments; `types` says whether the graph has types."""

    stage: str
    types: bool
    options: dict[str, Any]
    digest: str


CASES = {
    "in-subgraph": Case("sample_in_subgraph", False, {}, "5bb3576ee1338833640a05b6a3b11156"),
    "in-subgraph, chosen edge types": Case(
        "sample_in_subgraph",
        True,
        {"edge_types": [golden.EDGE_TYPES[0], golden.EDGE_TYPES[3]]},
        "385f4ab8406b374e9b2d0f4afb14e34f",
    ),
    "LABOR": Case(LAYER, False, {"fanouts": [4, 3, 2]}, "b1f4b16f7748c5bf478f22cf61397de3"),
    "LABOR, every neighbor and none": Case(LAYER, False, {"fanouts": [0, 5, -1]}, "f1fa0e0c3a3e69e0b7c529ba39bd0297"),
    "LABOR, layer dependency": Case(
        LAYER, False, {"fanouts": [4, 3, 2], "layer_dependency": True}, "11dd1418c396bcd46aa448ad639dcb66"
    ),
    "LABOR, batch dependency 7": Case(
        LAYER, False, {"fanouts": [4, 3], "batch_dependency": 7}, "1a2ba9110c220485b5224fab109f15ba"
    ),
    "LABOR, types": Case(LAYER, True, {"fanouts": [2, *golden.FANOUTS_BY_TYPE]}, "55a297d1ae189439dd1753cf0908fa48"),
    "LABOR, types, both dependencies": Case(
        LAYER,
        True,
        {"fanouts": [3, 2], "layer_dependency": True, "batch_dependency": 7},
        "ee7ddb38367a2f68b6fce7a217ba1cc7",
    ),
}
IN_PACKAGE = [name for name, case in CASES.items() if hasattr(dp.Stage, case.stage)]


@pytest.mark.parametrize("name", IN_PACKAGE)
def test_the_package_gives_the_golden_digest(name):
    case = CASES[name]
    source, graph = (typed_chain if case.types else plain_chain)()
    pipe = getattr(source, case.stage)(graph, **case.options)
    assert dp.DataLoader(pipe).minibatch(golden.EPOCH, golden.INDEX).digest() == case.digest


@pytest.mark.parametrize("name", CASES)
def test_the_twin_gives_the_golden_digest(name):
    case = CASES[name]
    assert twin.digest((typed_message if case.types else plain_message)(case)) == case.digest


def plain_chain() -> tuple[dp.Stage, dp.CSCGraph]:
    graph = dp.CSCGraph.from_edge_index(torch.tensor(golden.edges()), golden.NUM_NODES)
    items = dp.ItemSet(golden.seeds_of(pairs=False))
    return dp.ItemSampler(items, golden.BATCH_SIZE, shuffle=True, seed=golden.SEED), graph


def typed_chain() -> tuple[dp.Stage, dp.HeteroCSCGraph]:
    graph = dp.HeteroCSCGraph.from_edge_index(golden.edge_index_of_types(), num_nodes=golden.NUM_NODES_OF)
    items = dp.HeteroItemSet({of: dp.ItemSet(golden.items_of(of)) for of in golden.NUM_ITEMS_OF})
    return dp.ItemSampler(items, golden.TYPED_BATCH_SIZE, shuffle=True, seed=golden.SEED), graph


def plain_message(case: Case) -> dict[str, np.ndarray]:
    seeds = golden.seeds_of(pairs=False).numpy()[golden.places_of_items()]
    indptr, indices, edge_ids = twin.coo_to_csc(*golden.edges(), golden.NUM_NODES)
    if case.stage == LAYER:
        fanouts = [{twin_layer.PLAIN: fanout} for fanout in reversed(case.options["fanouts"])]
        of_types = twin_layer.sample_layer_neighbors(
            [""],
            {twin_layer.PLAIN: (indptr, indices, edge_ids)},
            {"": seeds.tolist()},
            fanouts=fanouts,
            layers=layers_of(case),
        )
        hops = [blocks[twin_layer.PLAIN] for blocks in of_types.hops]
        found = twin.Neighborhood(of_types.nodes[""], of_types.compacted_seeds[""], hops)
    else:
        found = twin_layer.sample_in_subgraph(indptr, indices, edge_ids, seeds.tolist())
    message = {
        **golden.step_fields(),
        "seeds": seeds,
        "compacted_seeds": np.array(found.compacted_seeds, dtype=np.int64),
        "input_nodes": np.array(found.nodes, dtype=np.int64),
    }
    for h, hop in enumerate(found.hops):
        message |= golden.block_fields(h, hop, with_edge_ids=False)
    return message


def typed_message(case: Case) -> dict[str, np.ndarray]:
    seeds = {
        of: golden.items_of(of).numpy()[places] for of, places in golden.places_of_types(golden.NUM_ITEMS_OF).items()
    }
    node_types, by_destination = sorted(golden.NUM_NODES_OF), golden.relations()
    if case.stage == LAYER:
        fanouts = by_hop(case.options["fanouts"], golden.EDGE_TYPES)
        found = twin_layer.sample_layer_neighbors(
            node_types, by_destination, seeds, fanouts=fanouts, layers=layers_of(case)
        )
    else:
        found = twin_layer.sample_typed_in_subgraph(node_types, by_destination, seeds, case.options["edge_types"])
    message = golden.step_fields()
    for of, ids in seeds.items():
        message[f"seeds.{golden.KEYS[of]}"] = ids
        message[f"compacted_seeds.{golden.KEYS[of]}"] = np.array(found.compacted_seeds[of], dtype=np.int64)
    for of, nodes in found.nodes.items():
        message[f"input_nodes.{golden.KEYS[of]}"] = np.array(nodes, dtype=np.int64)
    for h, blocks in enumerate(found.hops):
        for of, hop in blocks.items():
            message |= golden.block_fields(h, hop, ending=f".{golden.KEYS[of]}", with_edge_ids=False)
    return message


def layers_of(case: Case) -> twin_layer.Layers:
    dependencies = {name: value for name, value in case.options.items() if name != "fanouts"}
    return twin_layer.Layers(golden.SEED, golden.EPOCH, golden.INDEX, 1, **dependencies)
