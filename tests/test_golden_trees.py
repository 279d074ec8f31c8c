"""Golden digests of trees and times: docs/semantics.md, sections 3.3, 4.5 and 4.6, at stream version 1.

As in test_golden.py, a digest changes only together with STREAM_VERSION. The typed graph and seeds are those of
test_golden_typed.py. A graph without types is to the twin one with a single node type.
"""

from typing import Any

import numpy as np
import pytest
import test_golden_typed as typed
import torch
import twin
from twin_trees import PLAIN, Relation, Rule, Trees, sample_trees

import datapipes as dp

SEED, EPOCH, INDEX = 2026, 3, 2
NO_TIME = Rule()
NUM_NODES, NUM_EDGES, NUM_ITEMS, BATCH_SIZE = 97, 1200, 50, 8
EDGE_TYPES = typed.EDGE_TYPES
NO_TIMES = [("a.b:%", "tags", "paper"), ("venue", "hosts", "paper")]  # neither these edges nor their sources have one
TIMED_NODES = ("paper", "author")

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
    "types: times": {"fanouts": typed.BY_TYPE, "times": "both", "rule": Rule(temporal=True)},
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


def edges() -> tuple[list[int], list[int]]:
    """Sources and destinations by plain arithmetic, with degrees from 0 to about 120 and parallel edges."""
    sources = [(i * 31 + i // 7 * 13 + 5) % NUM_NODES for i in range(NUM_EDGES)]
    destinations = [(i * 37 % NUM_NODES) * (i // 11 % NUM_NODES) // NUM_NODES for i in range(NUM_EDGES)]
    return sources, destinations


def seeds_of(pairs: bool) -> torch.Tensor:
    ids = torch.arange(NUM_ITEMS) % 7 * 5  # some repeat, also at one time
    return torch.stack((ids, ids * 7 % NUM_NODES), dim=1) if pairs else ids


@pytest.mark.parametrize("name", [*CASES, *TYPED_CASES])
def test_the_package_gives_the_golden_digest(name):
    minibatch = plain_minibatch(**CASES[name]) if name in CASES else typed_minibatch(**TYPED_CASES[name])
    assert minibatch.digest() == GOLDEN[name]


def plain_minibatch(
    fanouts, disjoint=False, frontier="all", ids=np.int64, pairs=False, times=None, rule=NO_TIME
) -> dp.MiniBatch:
    graph = dp.CSCGraph.from_edge_index(
        torch.tensor(edges()),
        NUM_NODES,
        node_attributes={"since": torch.tensor([time_of_node(v) for v in range(NUM_NODES)])},
        edge_attributes={"at": torch.tensor([time_of_edge(edge) for edge in range(NUM_EDGES)])},
    ).with_index_dtype(torch.int32 if ids is np.int32 else torch.int64)
    timestamps = torch.tensor([time_of_item(item) for item in range(NUM_ITEMS)])
    item_set = dp.ItemSet((seeds_of(pairs), timestamps), names=("seeds", "timestamps"))
    pipe = dp.ItemSampler(item_set, BATCH_SIZE, shuffle=True, seed=SEED)
    return dp.DataLoader(chained(pipe, graph, fanouts, disjoint, frontier, times, rule)).minibatch(EPOCH, INDEX)


def typed_minibatch(
    fanouts, disjoint=False, frontier="all", ids=np.int64, pairs=False, times=None, rule=NO_TIME
) -> dp.MiniBatch:
    edge_index = {of: torch.tensor(typed.edges_of(of), dtype=torch.int64).reshape(2, -1) for of in EDGE_TYPES}
    timed = [of for of in EDGE_TYPES if of not in NO_TIMES]
    graph = dp.HeteroCSCGraph.from_edge_index(
        edge_index,
        num_nodes=typed.NUM_NODES,
        node_attributes={
            of: {"since": torch.tensor([time_of_node(v) for v in range(typed.NUM_NODES[of])])} for of in TIMED_NODES
        },
        edge_attributes={
            of: {"at": torch.tensor([time_of_edge(edge) for edge in range(edge_index[of].shape[1])])} for of in timed
        },
    )
    sets = {}
    for of, count in (typed.NUM_LINKS if pairs else typed.NUM_ITEMS).items():
        timestamps = torch.tensor([time_of_item(item) for item in range(count)])
        sets[of] = dp.ItemSet((typed.items_of(of), timestamps), names=("seeds", "timestamps"))
    pipe = dp.ItemSampler(dp.HeteroItemSet(sets), typed.BATCH_SIZE, shuffle=True, seed=SEED)
    return dp.DataLoader(chained(pipe, graph, fanouts, disjoint, frontier, times, rule)).minibatch(EPOCH, INDEX)


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


def time_of_edge(edge: int) -> int:
    return (edge * 37 + 11) % 50


def time_of_node(v: int) -> int:
    return (v * 19 + 3) % 50


def time_of_item(item: int) -> int:
    """Few different times, so that seeds share some."""
    return item % 2 * 20 + 19


def times_of(
    sources: list[int], edge_ids: list[int], times: str | None, *, on_edges=True, on_nodes=True
) -> list[list[int]]:
    """The times of each in-edge."""
    of_edges = [[time_of_edge(edge)] if times in ("edges", "both") and on_edges else [] for edge in edge_ids]
    of_nodes = [[time_of_node(u)] if times in ("nodes", "both") and on_nodes else [] for u in sources]
    return [edge + node for edge, node in zip(of_edges, of_nodes, strict=True)]


def twin_message(name: str) -> dict[str, Any]:
    return plain_message(**CASES[name]) if name in CASES else typed_message(**TYPED_CASES[name])


def plain_message(
    fanouts, disjoint=False, frontier="all", ids=np.int64, pairs=False, times=None, rule=NO_TIME
) -> dict[str, np.ndarray]:
    order = twin.permutation(NUM_ITEMS, twin.hop_key(SEED, EPOCH, 0, 0, 0, 0))
    items = order[INDEX * BATCH_SIZE : (INDEX + 1) * BATCH_SIZE]
    seeds = seeds_of(pairs).numpy()[items]
    indptr, indices, edge_ids = twin.coo_to_csc(*edges(), NUM_NODES)
    timestamps = np.array([time_of_item(item) for item in items], dtype=np.int64)
    of = PLAIN if pairs else ""
    found = sample_trees(
        [""],
        {PLAIN: Relation(indptr, indices, edge_ids, times_of(indices, edge_ids, times))},
        {of: seeds.reshape(len(items), -1).tolist()},
        fanouts=[{PLAIN: fanout} for fanout in reversed(fanouts)],
        key_of=lambda hop, ordinal: twin.hop_key(SEED, EPOCH, INDEX, 1, hop, ordinal),
        frontier=frontier,
        disjoint=disjoint,
        rule=rule,
        timestamps={of: timestamps.tolist()},
    )
    message = {"epoch": np.array(EPOCH), "index": np.array(INDEX), "seeds": seeds, "timestamps": timestamps}
    message["compacted_seeds"] = np.array(found.compacted_seeds[of], dtype=ids).reshape(seeds.shape)
    return message | sampled_part(found, ids, {"": "", PLAIN: ""})


def typed_message(
    fanouts, disjoint=False, frontier="all", ids=np.int64, pairs=False, times=None, rule=NO_TIME
) -> dict[str, np.ndarray]:
    counts = typed.NUM_LINKS if pairs else typed.NUM_ITEMS
    numbered = [(of, place) for of in sorted(counts) for place in range(counts[of])]
    order = twin.permutation(len(numbered), twin.hop_key(SEED, EPOCH, 0, 0, 0, 0))
    visited = [numbered[i] for i in order[INDEX * typed.BATCH_SIZE : (INDEX + 1) * typed.BATCH_SIZE]]
    places = {of: [place for found, place in visited if found == of] for of in counts}
    seeds = {of: typed.items_of(of).numpy()[places[of]] for of in counts}
    timestamps = {of: np.array([time_of_item(place) for place in places[of]], dtype=np.int64) for of in counts}
    relations = {}
    for of in EDGE_TYPES:
        indptr, indices, edge_ids = twin.coo_to_csc(*typed.edges_of(of), typed.NUM_NODES[of[2]])
        of_edges = times_of(indices, edge_ids, times, on_edges=of not in NO_TIMES, on_nodes=of[0] in TIMED_NODES)
        relations[of] = Relation(indptr, indices, edge_ids, of_edges)
    by_hop = [dict.fromkeys(EDGE_TYPES, fanout) if isinstance(fanout, int) else fanout for fanout in reversed(fanouts)]
    found = sample_trees(
        sorted(typed.NUM_NODES),
        relations,
        {of: rows.reshape(len(rows), -1).tolist() for of, rows in seeds.items()},
        fanouts=by_hop,
        key_of=lambda hop, ordinal: twin.hop_key(SEED, EPOCH, INDEX, 1, hop, ordinal),
        frontier=frontier,
        disjoint=disjoint,
        rule=rule,
        timestamps={of: each.tolist() for of, each in timestamps.items()},
    )
    message = {"epoch": np.array(EPOCH), "index": np.array(INDEX)}
    for of in counts:
        message[f"seeds.{typed.KEYS[of]}"] = seeds[of]
        message[f"timestamps.{typed.KEYS[of]}"] = timestamps[of]
        compacted = np.array(found.compacted_seeds[of], dtype=ids)
        message[f"compacted_seeds.{typed.KEYS[of]}"] = compacted.reshape(seeds[of].shape)
    return message | sampled_part(found, ids, {of: f".{key}" for of, key in typed.KEYS.items()})


def sampled_part(found: Trees, ids: Any, keys: dict[Any, str]) -> dict[str, np.ndarray]:
    """The fields that a sampler sets; `keys` has the ending of the keys of each type."""
    message = {}
    for of, nodes in found.nodes.items():
        message[f"input_nodes{keys[of]}"] = np.array(nodes, dtype=ids)
        if found.batch is not None:
            message[f"batch{keys[of]}"] = np.array(found.batch[of], dtype=np.int64)
    for h, blocks in enumerate(found.hops):
        for of, block in blocks.items():
            message[f"hop{h}.indptr{keys[of]}"] = np.array(block.indptr, dtype=np.int64)
            message[f"hop{h}.indices{keys[of]}"] = np.array(block.indices, dtype=ids)
            message[f"hop{h}.num_src{keys[of]}"] = np.array(block.num_src)
            message[f"hop{h}.edge_ids{keys[of]}"] = np.array(block.edge_ids, dtype=np.int64)
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
