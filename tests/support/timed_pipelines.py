"""The small graph of pipelines.py with times of edges and nodes, and chains that sample it at the seeds' times."""

import torch
from pipelines import NUM_ITEMS, small_graph

import datapipes as dp

EDGE_TIMES = torch.arange(200) * 37 % 60
NODE_TIMES = torch.arange(40) * 7 % 50
WEIGHTS = (torch.arange(200) % 7).float() ** 4
TIMES = torch.arange(NUM_ITEMS) % 4 * 15 + 10
WINDOWS = torch.arange(NUM_ITEMS) % 3 * 12


def timed_graph(dtype: torch.dtype = torch.int64, **attributes) -> dp.CSCGraph:
    plain = small_graph(dtype)
    given = {"node_attributes": {"since": NODE_TIMES}, "edge_attributes": {"at": EDGE_TIMES}, **attributes}
    return dp.CSCGraph(plain.indptr, plain.indices, edge_ids=plain.edge_ids, **given)


def timed_graph_with_weights(dtype: torch.dtype = torch.int64) -> dp.CSCGraph:
    return timed_graph(dtype, edge_attributes={"at": EDGE_TIMES, "w": WEIGHTS})


def timed_items(times: torch.Tensor | None = TIMES, windows: torch.Tensor | None = None, **arguments) -> dp.ItemSampler:
    seeds, labels = torch.arange(NUM_ITEMS) * 7 % 40, torch.arange(NUM_ITEMS).float()
    given, names = (seeds, labels), ("seeds", "labels")
    if times is not None:
        given, names = (*given, times), (*names, "timestamps")
    if windows is not None:
        given, names = (*given, windows), (*names, "recent")
    return dp.ItemSampler(dp.ItemSet(given, names=names), 4, **{"shuffle": True, "seed": 5, **arguments})


def windowed_items() -> dp.ItemSampler:
    return timed_items(windows=WINDOWS)


def temporal(source: dp.Stage | None = None, graph: dp.CSCGraph | None = None, **arguments) -> dp.Stage:
    given = {"return_edge_ids": True, "edge_time_attr": "at", "node_time_attr": "since", **arguments}
    fanouts = given.pop("fanouts", [3, 2])
    return (source or timed_items()).temporal_sample_neighbor(graph or timed_graph(), fanouts, **given)
