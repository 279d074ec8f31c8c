"""Drawn graphs, seeds and options for samplers of trees and times, and what the package and the twin sample of them.

Graphs are with types and without; rows are sorted or not; seeds are nodes, pairs or longer rows.
"""

from typing import Any, NamedTuple

import numpy as np
import strategies
import torch
import twin
from hypothesis import strategies as st
from twin_cases import typed_graph_of
from twin_trees import PLAIN, Relation, Rule, Trees, sample_trees
from weights import weights_for

import datapipes as dp

SEED = 5
SMALL_TIMES = st.integers(-3, 3)
ANY_TIME = st.one_of(SMALL_TIMES, st.sampled_from([-(2**63), -(2**63) + 1, 2**63 - 1]))


class Case(NamedTuple):
    """A graph with types; seeds and times by type; and how to sample. Without types all types are those of PLAIN."""

    graph: strategies.TypedGraph
    edge_times: dict[Any, np.ndarray]
    node_times: dict[str, np.ndarray]
    seeds: dict[Any, np.ndarray]
    timestamps: dict[Any, np.ndarray]
    fanouts: list[dict[Any, int]]
    rule: Rule
    disjoint: bool
    frontier: str
    windows: dict[Any, np.ndarray]  # of the rows of the seeds; empty if these have none of their own
    weights: dict[Any, torch.Tensor]  # of each edge type; empty if all in-edges are alike

    @property
    def has_types(self) -> bool:
        return PLAIN not in self.graph.relations


@st.composite
def some_times(draw, count: int, times) -> np.ndarray:
    return np.array(draw(st.lists(times, min_size=count, max_size=count)), dtype=np.int64)


@st.composite
def cases(draw, *, temporal: bool) -> Case:
    has_types = draw(st.booleans())
    if has_types:
        graph = draw(strategies.typed_graphs())
        seeds = {
            of: np.array(rows[:3], dtype=np.int64) for of, rows in draw(strategies.typed_seeds(graph)).items() if rows
        }
        seeds = {of: rows if isinstance(of, str) else rows.reshape(-1, 2) for of, rows in seeds.items()}
    else:
        plain = draw(strategies.csc_graphs(min_nodes=1))
        graph = strategies.TypedGraph({"": plain.num_nodes}, {PLAIN: (*plain, None)})
        ids, columns = draw(strategies.seeds_in(plain)), draw(st.integers(1, 3))
        ids = ids[: min(len(ids) // columns, 4) * columns]
        seeds = {"": ids} if columns == 1 else {PLAIN: ids.reshape(-1, columns)}
    times = draw(st.sampled_from([SMALL_TIMES, ANY_TIME]))
    edge_times, node_times = {}, {}
    which = draw(st.sampled_from(["edges", "nodes", "both"])) if temporal else ""
    for of, (indptr, indices, _) in graph.relations.items():
        if which in ("edges", "both") and (not has_types or draw(st.integers(0, 4)) > 0):
            edge_times[of] = draw(some_times(len(indices), times))
            for v in range(len(indptr) - 1):
                if draw(st.booleans()):
                    edge_times[of][indptr[v] : indptr[v + 1]].sort()
    if which in ("nodes", "both"):
        named = [of for of in graph.num_nodes if not has_types or draw(st.integers(0, 4)) > 0]
        node_times = {of: draw(some_times(graph.num_nodes[of], times)) for of in named}
    strategy = draw(st.sampled_from(["uniform", "last"])) if temporal else "uniform"
    rule = Rule(
        replace=strategy == "uniform" and draw(st.booleans()),
        temporal=temporal,
        strategy=strategy,
        inclusive=temporal and draw(st.booleans()),
        window=draw(st.one_of(st.none(), st.integers(0, 4), st.just(2**63 - 1))) if temporal else None,
    )
    fanouts = [{of: draw(st.integers(-1, 5)) for of in graph.relations} for _ in range(draw(st.integers(1, 3)))]
    if draw(st.booleans()):
        fanouts[0] |= {of: draw(st.sampled_from([8, 33, 64, 150])) for of in list(graph.relations)[:1]}
    timestamps = {of: draw(some_times(len(rows), times)) for of, rows in seeds.items()}
    disjoint = not temporal or draw(st.booleans())
    frontier = draw(st.sampled_from(["all", "new"]))
    weights = {}
    if strategy == "uniform" and draw(st.booleans()):
        weights = {of: draw(weights_for(len(indices))) for of, (_, indices, _) in graph.relations.items()}
    windows = {}
    if temporal and draw(st.booleans()):
        a_window = st.one_of(st.integers(0, 4), st.just(2**63 - 1))
        windows = {of: draw(some_times(len(rows), a_window)) for of, rows in seeds.items()}
    return Case(graph, edge_times, node_times, seeds, timestamps, fanouts, rule, disjoint, frontier, windows, weights)


def built(case: Case) -> tuple[Any, dp.Stage, list[Any], dict[str, Any]]:
    """The graph, the stage that gives the seeds, fanouts and options."""
    if case.has_types:
        graph: Any = typed_graph_of(
            case.graph,
            node_attributes={of: {"since": times} for of, times in case.node_times.items()},
            edge_attributes={
                of: {
                    **({"at": case.edge_times[of]} if of in case.edge_times else {}),
                    **({"w": case.weights[of]} if of in case.weights else {}),
                }
                for of in case.graph.relations
            },
        )
        sets = {of: item_set(case, of) for of in case.seeds}
        items: Any = dp.HeteroItemSet(sets)
        fanouts: list[Any] = case.fanouts[::-1]
    else:
        (relation,) = case.graph.relations.values()
        graph = dp.CSCGraph(
            *relation[:2],
            node_attributes={"since": case.node_times[""]} if case.node_times else None,
            edge_attributes={
                **({"at": case.edge_times[PLAIN]} if case.edge_times else {}),
                **({"w": case.weights[PLAIN]} if case.weights else {}),
            },
        )
        (of,) = case.seeds
        items, fanouts = item_set(case, of), [fanout[PLAIN] for fanout in case.fanouts[::-1]]
    pipe: Any = dp.ItemSampler(items, 1000, seed=SEED)
    arguments: dict[str, Any] = {"replace": case.rule.replace, "return_edge_ids": True, "frontier": case.frontier}
    arguments["disjoint"] = case.disjoint
    if case.weights:
        arguments["prob_name"] = "w"
    if case.rule.temporal:
        arguments |= {
            "node_time_attr": "since" if case.node_times else None,
            "edge_time_attr": "at" if case.edge_times else None,
            "strategy": case.rule.strategy,
            "inclusive": case.rule.inclusive,
            "time_window": "recent" if case.windows else case.rule.window,
        }
    return graph, pipe, fanouts, arguments


def item_set(case: Case, of: Any) -> dp.ItemSet:
    fields = {"seeds": case.seeds, "timestamps": case.timestamps, **({"recent": case.windows} if case.windows else {})}
    return dp.ItemSet(tuple(torch.from_numpy(by_type[of]) for by_type in fields.values()), names=tuple(fields))


def can_be_sampled(case: Case) -> bool:
    """Whether there are seeds, something to draw, and a time for it where one is named."""
    sampled = [of for of in case.graph.relations if any(fanout[of] != 0 for fanout in case.fanouts)]
    if not any(len(rows) for rows in case.seeds.values()) or (case.has_types and not sampled):
        return False
    named = sampled if case.has_types else [PLAIN]
    has_edges = not case.edge_times or any(of in case.edge_times for of in named)
    has_nodes = not case.node_times or any(of[0] in case.node_times for of in named)
    return has_edges and has_nodes and (not case.rule.temporal or bool(case.edge_times or case.node_times))


def relations_of(case: Case) -> dict[Any, Relation]:
    relations = {}
    for of, (indptr, indices, edge_ids) in case.graph.relations.items():
        times: list[list[int]] = [[] for _ in indices]
        for position, source in enumerate(indices):
            if of in case.edge_times:
                times[position].append(int(case.edge_times[of][position]))
            if of[0] in case.node_times:
                times[position].append(int(case.node_times[of[0]][source]))
        weights = case.weights[of].tolist() if case.weights else None
        relations[of] = Relation(indptr, indices, edge_ids, times, weights)
    return relations


def by_twin(case: Case) -> Trees:
    return sample_trees(
        sorted(case.graph.num_nodes),
        relations_of(case),
        {of: (rows if rows.ndim == 2 else rows[:, None]).tolist() for of, rows in case.seeds.items()},
        fanouts=case.fanouts,
        key_of=lambda hop, ordinal: twin.hop_key(SEED, 0, 0, 1, hop, ordinal),
        frontier=case.frontier,
        disjoint=case.disjoint,
        rule=case.rule,
        timestamps={of: times.tolist() for of, times in case.timestamps.items()},
        windows={of: windows.tolist() for of, windows in case.windows.items()} or None,
    )


def by_package(case: Case, **more: Any) -> dp.MiniBatch:
    graph, start, fanouts, arguments = built(case)
    arguments |= more
    sample: Any = start.temporal_sample_neighbor if case.rule.temporal else start.sample_neighbor
    return next(iter(sample(graph, fanouts, **arguments)))
