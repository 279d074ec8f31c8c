"""Golden digests of trees and times: docs/semantics.md, sections 3.3, 4.5 and 4.6, at stream version 1.

As in test_golden.py, a digest changes only together with STREAM_VERSION. A graph without types is to the twin one with
a single node type.
"""

from typing import Any

import golden_graphs as golden
import numpy as np
import pytest
import torch
import twin
from twin_cases import by_hop
from twin_trees import PLAIN, Relation, Rule, Trees, sample_trees

import datapipes as dp

NO_TIME = Rule()
NO_TIMES = [("a.b:%", "tags", "paper"), ("venue", "hosts", "paper")]  # neither these edges nor their sources have one

CASES: dict[str, dict[str, Any]] = {
    "trees": {"fanouts": [4, 3], "disjoint": True},
    "trees, frontier new, int32 ids": {"fanouts": [3, 3, 2], "disjoint": True, "frontier": "new", "ids": np.int32},
    "trees of pairs": {"fanouts": [3, 2], "disjoint": True, "pairs": True},
    "trees with replacement": {"fanouts": [4, 3], "disjoint": True, "rule": Rule(replace=True)},
    "times of edges": {"fanouts": [5, 4], "times": "edges", "rule": Rule(temporal=True)},
    "times of nodes, inclusive": {"fanouts": [-1, 4], "times": "nodes", "rule": Rule(temporal=True, inclusive=True)},
    "both times, window, trees": {
        "fanouts": [5, 4],
        "times": "both",
        "disjoint": True,
        "rule": Rule(temporal=True, window=25),
    },
    "last, frontier new": {
        "fanouts": [4, 3],
        "times": "both",
        "frontier": "new",
        "rule": Rule(temporal=True, strategy="last"),
    },
    "times of pairs with replacement": {
        "fanouts": [4, 3],
        "times": "edges",
        "pairs": True,
        "rule": Rule(temporal=True, replace=True),
    },
}
TYPED_CASES: dict[str, dict[str, Any]] = {
    "types: trees": {"fanouts": [2, 3], "disjoint": True},
    "types: trees of links": {"fanouts": [2, 2], "disjoint": True, "pairs": True},
    "types: times": {"fanouts": golden.FANOUTS_BY_TYPE, "times": "both", "rule": Rule(temporal=True)},
    "types: times of links, last, window, trees": {
        "fanouts": [3, 2],
        "times": "nodes",
        "disjoint": True,
        "pairs": True,
        "rule": Rule(temporal=True, strategy="last", inclusive=True, window=30),
    },
}
GOLDEN = {
    "trees": "a32307df3c1930bd23c39b2cf15af26f",
    "trees, frontier new, int32 ids": "75b2fd4006f932f48f479a07d2cb332d",
    "trees of pairs": "9653d7cb43e9ed755c8a90fee95f855c",
    "trees with replacement": "d7bb2936235beab617805dbfb9ede546",
    "times of edges": "00e97daf74510aafec870f24c289bb87",
    "times of nodes, inclusive": "79fd1e1923a43facdc37fd2be083ca4b",
    "both times, window, trees": "93f913a82c8ee187ea0db84e3010753a",
    "last, frontier new": "8c37da4814c0d8028c1f95f63be3aeac",
    "times of pairs with replacement": "afa05f5a4fc7897cb8b554d5f804d9e7",
    "types: trees": "caedb0fbbdfaaf8948a5d271818098fb",
    "types: trees of links": "bd39ec799e4428024658cd10b66cbd62",
    "types: times": "88a325a4da04808d68fe1adae0f5f6cc",
    "types: times of links, last, window, trees": "00fb41a6257fc17dce9ab5adbf665679",
}


@pytest.mark.parametrize("name", [*CASES, *TYPED_CASES])
def test_the_twin_gives_the_golden_digest(name):
    assert twin.digest(twin_message(name)) == GOLDEN[name]


@pytest.mark.parametrize("name", [*CASES, *TYPED_CASES])
def test_the_package_gives_the_golden_digest(name):
    minibatch = plain_minibatch(**CASES[name]) if name in CASES else typed_minibatch(**TYPED_CASES[name])
    assert minibatch.digest() == GOLDEN[name]


def plain_minibatch(
    fanouts, disjoint=False, frontier="all", ids=np.int64, pairs=False, times=None, rule=NO_TIME
) -> dp.MiniBatch:
    graph = dp.CSCGraph.from_edge_index(
        torch.tensor(golden.parallel_edges()),
        golden.NUM_NODES,
        node_attributes={"since": torch.tensor([golden.time_of_node(v) for v in range(golden.NUM_NODES)])},
        edge_attributes={"at": torch.tensor([golden.time_of_edge(edge) for edge in range(golden.NUM_EDGES)])},
    ).with_index_dtype(torch.int32 if ids is np.int32 else torch.int64)
    timestamps = torch.tensor([golden.time_of_item(item) for item in range(golden.NUM_ITEMS)])
    item_set = dp.ItemSet((golden.repeated_seeds(pairs), timestamps), names=("seeds", "timestamps"))
    pipe = dp.ItemSampler(item_set, golden.BATCH_SIZE, shuffle=True, seed=golden.SEED)
    return dp.DataLoader(chained(pipe, graph, fanouts, disjoint, frontier, times, rule)).minibatch(
        golden.EPOCH, golden.INDEX
    )


def typed_minibatch(
    fanouts, disjoint=False, frontier="all", ids=np.int64, pairs=False, times=None, rule=NO_TIME
) -> dp.MiniBatch:
    edge_index = golden.edge_index_of_types()
    timed = [of for of in golden.EDGE_TYPES if of not in NO_TIMES]
    graph = dp.HeteroCSCGraph.from_edge_index(
        edge_index,
        num_nodes=golden.NUM_NODES_OF,
        node_attributes={
            of: {"since": torch.tensor([golden.time_of_node(v) for v in range(golden.NUM_NODES_OF[of])])}
            for of in golden.TIMED_NODES
        },
        edge_attributes={
            of: {"at": torch.tensor([golden.time_of_edge(edge) for edge in range(edge_index[of].shape[1])])}
            for of in timed
        },
    )
    sets = {}
    for of, count in (golden.NUM_LINKS_OF if pairs else golden.NUM_ITEMS_OF).items():
        timestamps = torch.tensor([golden.time_of_item(item) for item in range(count)])
        sets[of] = dp.ItemSet((golden.items_of(of), timestamps), names=("seeds", "timestamps"))
    pipe = dp.ItemSampler(dp.HeteroItemSet(sets), golden.TYPED_BATCH_SIZE, shuffle=True, seed=golden.SEED)
    return dp.DataLoader(chained(pipe, graph, fanouts, disjoint, frontier, times, rule)).minibatch(
        golden.EPOCH, golden.INDEX
    )


def chained(pipe, graph, fanouts, disjoint, frontier, times, rule) -> dp.Stage:
    arguments = {"replace": rule.replace, "return_edge_ids": True, "frontier": frontier, "disjoint": disjoint}
    if not rule.temporal:
        return pipe.sample_neighbor(graph, fanouts, **arguments)
    return pipe.temporal_sample_neighbor(
        graph,
        fanouts,
        node_time_attr="since" if times in ("nodes", "both") else None,
        edge_time_attr="at" if times in ("edges", "both") else None,
        strategy=rule.strategy,
        inclusive=rule.inclusive,
        time_window=rule.window,
        **arguments,
    )


def times_of(
    sources: list[int], edge_ids: list[int], times: str | None, *, on_edges=True, on_nodes=True
) -> list[list[int]]:
    """The times of each in-edge."""
    of_edges = [[golden.time_of_edge(edge)] if times in ("edges", "both") and on_edges else [] for edge in edge_ids]
    of_nodes = [[golden.time_of_node(u)] if times in ("nodes", "both") and on_nodes else [] for u in sources]
    return [edge + node for edge, node in zip(of_edges, of_nodes, strict=True)]


def twin_message(name: str) -> dict[str, Any]:
    return plain_message(**CASES[name]) if name in CASES else typed_message(**TYPED_CASES[name])


def plain_message(
    fanouts, disjoint=False, frontier="all", ids=np.int64, pairs=False, times=None, rule=NO_TIME
) -> dict[str, np.ndarray]:
    items = golden.places_of_items()
    seeds = golden.repeated_seeds(pairs).numpy()[items]
    indptr, indices, edge_ids = twin.coo_to_csc(*golden.parallel_edges(), golden.NUM_NODES)
    timestamps = np.array([golden.time_of_item(item) for item in items], dtype=np.int64)
    of = PLAIN if pairs else ""
    found = sample_trees(
        [""],
        {PLAIN: Relation(indptr, indices, edge_ids, times_of(indices, edge_ids, times))},
        {of: seeds.reshape(len(items), -1).tolist()},
        fanouts=[{PLAIN: fanout} for fanout in reversed(fanouts)],
        key_of=golden.key_of_hop,
        frontier=frontier,
        disjoint=disjoint,
        rule=rule,
        timestamps={of: timestamps.tolist()},
    )
    message = {**golden.step_fields(), "seeds": seeds, "timestamps": timestamps}
    message["compacted_seeds"] = np.array(found.compacted_seeds[of], dtype=ids).reshape(seeds.shape)
    return message | sampled_part(found, ids, {"": "", PLAIN: ""})


def typed_message(
    fanouts, disjoint=False, frontier="all", ids=np.int64, pairs=False, times=None, rule=NO_TIME
) -> dict[str, np.ndarray]:
    counts = golden.NUM_LINKS_OF if pairs else golden.NUM_ITEMS_OF
    places = golden.places_of_types(counts)
    seeds = {of: golden.items_of(of).numpy()[places[of]] for of in counts}
    timestamps = {of: np.array([golden.time_of_item(place) for place in places[of]], dtype=np.int64) for of in counts}
    timed_relations = {}
    for of, (indptr, indices, edge_ids) in golden.relations().items():
        of_edges = times_of(indices, edge_ids, times, on_edges=of not in NO_TIMES, on_nodes=of[0] in golden.TIMED_NODES)
        timed_relations[of] = Relation(indptr, indices, edge_ids, of_edges)
    found = sample_trees(
        sorted(golden.NUM_NODES_OF),
        timed_relations,
        {of: rows.reshape(len(rows), -1).tolist() for of, rows in seeds.items()},
        fanouts=by_hop(fanouts, golden.EDGE_TYPES),
        key_of=golden.key_of_hop,
        frontier=frontier,
        disjoint=disjoint,
        rule=rule,
        timestamps={of: each.tolist() for of, each in timestamps.items()},
    )
    message = golden.step_fields()
    for of in counts:
        message[f"seeds.{golden.KEYS[of]}"] = seeds[of]
        message[f"timestamps.{golden.KEYS[of]}"] = timestamps[of]
        compacted = np.array(found.compacted_seeds[of], dtype=ids)
        message[f"compacted_seeds.{golden.KEYS[of]}"] = compacted.reshape(seeds[of].shape)
    return message | sampled_part(found, ids, {of: f".{key}" for of, key in golden.KEYS.items()})


def sampled_part(found: Trees, ids: Any, keys: dict[Any, str]) -> dict[str, np.ndarray]:
    """The fields that a sampler sets; `keys` has the ending of the keys of each type."""
    message = {}
    for of, nodes in found.nodes.items():
        message[f"input_nodes{keys[of]}"] = np.array(nodes, dtype=ids)
        if found.batch is not None:
            message[f"batch{keys[of]}"] = np.array(found.batch[of], dtype=np.int64)
    for h, blocks in enumerate(found.hops):
        for of, block in blocks.items():
            message |= golden.block_fields(h, block, ids, keys[of])
    return message


def test_the_cases_hold_what_they_are_meant_to():
    """A node is in several trees, or there at several times; and some in-edges are not eligible."""
    trees, times = plain_message(**CASES["trees"]), plain_message(**CASES["times of edges"])
    for message in (trees, times):
        assert len(set(message["input_nodes"].tolist())) < len(message["input_nodes"])
    assert trees["batch"].tolist()[:8] == list(range(8))
    assert len(set(times["seeds"].tolist())) < len(set(times["compacted_seeds"].tolist())) < len(times["seeds"])
    every = {**CASES["times of edges"], "rule": NO_TIME}
    assert len(times["hop1.indices"]) < len(plain_message(**{**every, "disjoint": True})["hop1.indices"])
