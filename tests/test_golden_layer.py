"""Golden digests of LABOR and of in-subgraphs: docs/semantics.md, sections 3.2 and 4.4, at stream version 1.

As in test_golden.py, a digest changes only together with STREAM_VERSION, and is checked against the package and against
the plain Python twin. Graphs and seeds are those of test_golden.py and test_golden_typed.py.
"""

from typing import Any, NamedTuple

import numpy as np
import pytest
import test_golden as plain
import test_golden_typed as typed
import torch
import twin
import twin_layer

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
        {"edge_types": [typed.EDGE_TYPES[0], typed.EDGE_TYPES[3]]},
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
    "LABOR, types": Case(LAYER, True, {"fanouts": [2, *typed.BY_TYPE]}, "55a297d1ae189439dd1753cf0908fa48"),
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
    assert dp.DataLoader(pipe).minibatch(plain.EPOCH, plain.INDEX).digest() == case.digest


@pytest.mark.parametrize("name", CASES)
def test_the_twin_gives_the_golden_digest(name):
    case = CASES[name]
    assert twin.digest((typed_message if case.types else plain_message)(case)) == case.digest


def plain_chain() -> tuple[dp.Stage, dp.CSCGraph]:
    graph = dp.CSCGraph.from_edge_index(torch.tensor(plain.edges()), plain.NUM_NODES)
    items = dp.ItemSet(plain.seeds_of(pairs=False, num_items=50))
    return dp.ItemSampler(items, plain.BATCH_SIZE, shuffle=True, seed=plain.SEED), graph


def typed_chain() -> tuple[dp.Stage, dp.HeteroCSCGraph]:
    edge_index = {of: torch.tensor(typed.edges_of(of), dtype=torch.int64).reshape(2, -1) for of in typed.EDGE_TYPES}
    graph = dp.HeteroCSCGraph.from_edge_index(edge_index, num_nodes=typed.NUM_NODES)
    items = dp.HeteroItemSet({of: dp.ItemSet(typed.items_of(of)) for of in typed.NUM_ITEMS})
    return dp.ItemSampler(items, typed.BATCH_SIZE, shuffle=True, seed=typed.SEED), graph


def plain_message(case: Case) -> dict[str, np.ndarray]:
    order = twin.permutation(50, twin.hop_key(plain.SEED, plain.EPOCH, 0, 0, 0, 0))
    places = order[plain.INDEX * plain.BATCH_SIZE :][: plain.BATCH_SIZE]
    seeds = plain.seeds_of(pairs=False, num_items=50).numpy()[places]
    indptr, indices, edge_ids = twin.coo_to_csc(*plain.edges(), plain.NUM_NODES)
    if case.stage == LAYER:
        relations = {twin_layer.PLAIN: (indptr, indices, edge_ids)}
        fanouts = [{twin_layer.PLAIN: fanout} for fanout in reversed(case.options["fanouts"])]
        of_types = twin_layer.sample_layer_neighbors(
            [""], relations, {"": seeds.tolist()}, fanouts=fanouts, layers=layers_of(case)
        )
        hops = [blocks[twin_layer.PLAIN] for blocks in of_types.hops]
        found = twin.Neighborhood(of_types.nodes[""], of_types.compacted_seeds[""], hops)
    else:
        found = twin_layer.sample_in_subgraph(indptr, indices, edge_ids, seeds.tolist())
    message = {
        **numbers(),
        "seeds": seeds,
        "compacted_seeds": np.array(found.compacted_seeds, dtype=np.int64),
        "input_nodes": np.array(found.nodes, dtype=np.int64),
    }
    for h, hop in enumerate(found.hops):
        message |= hop_message(h, hop, "")
    return message


def typed_message(case: Case) -> dict[str, np.ndarray]:
    numbered = [(of, place) for of in sorted(typed.NUM_ITEMS) for place in range(typed.NUM_ITEMS[of])]
    order = twin.permutation(len(numbered), twin.hop_key(typed.SEED, typed.EPOCH, 0, 0, 0, 0))
    visited = [numbered[i] for i in order[typed.INDEX * typed.BATCH_SIZE :][: typed.BATCH_SIZE]]
    seeds = {
        of: typed.items_of(of).numpy()[[place for found, place in visited if found == of]] for of in typed.NUM_ITEMS
    }
    relations = {of: twin.coo_to_csc(*typed.edges_of(of), typed.NUM_NODES[of[2]]) for of in typed.EDGE_TYPES}
    node_types = sorted(typed.NUM_NODES)
    if case.stage == LAYER:
        fanouts = [
            dict.fromkeys(typed.EDGE_TYPES, fanout) if isinstance(fanout, int) else fanout
            for fanout in reversed(case.options["fanouts"])
        ]
        found = twin_layer.sample_layer_neighbors(node_types, relations, seeds, fanouts=fanouts, layers=layers_of(case))
    else:
        found = twin_layer.sample_typed_in_subgraph(node_types, relations, seeds, case.options["edge_types"])
    message = numbers()
    for of, ids in seeds.items():
        message[f"seeds.{typed.KEYS[of]}"] = ids
        message[f"compacted_seeds.{typed.KEYS[of]}"] = np.array(found.compacted_seeds[of], dtype=np.int64)
    for of, nodes in found.nodes.items():
        message[f"input_nodes.{typed.KEYS[of]}"] = np.array(nodes, dtype=np.int64)
    for h, blocks in enumerate(found.hops):
        for of, hop in blocks.items():
            message |= hop_message(h, hop, f".{typed.KEYS[of]}")
    return message


def layers_of(case: Case) -> twin_layer.Layers:
    dependencies = {name: value for name, value in case.options.items() if name != "fanouts"}
    return twin_layer.Layers(plain.SEED, plain.EPOCH, plain.INDEX, 1, **dependencies)


def numbers() -> dict[str, np.ndarray]:
    return {"epoch": np.array(plain.EPOCH), "index": np.array(plain.INDEX)}


def hop_message(h: int, hop: twin.Hop, of: str) -> dict[str, np.ndarray]:
    return {
        f"hop{h}.indptr{of}": np.array(hop.indptr, dtype=np.int64),
        f"hop{h}.indices{of}": np.array(hop.indices, dtype=np.int64),
        f"hop{h}.num_src{of}": np.array(hop.num_src),
    }
