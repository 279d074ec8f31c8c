"""The loaders over parts against those of one machine: field by field, bit by bit, for every kind of sampling."""

import pytest
from pyg_ranks import ask_all, compare, cut, free_port, plain_data, typed_data
from pyg_cases import CITES, WRITES
from rank_group import RankGroup

NODES = [
    {"num_neighbors": [-1, -1]},
    {"num_neighbors": [3, 2]},
    {"num_neighbors": [3, 2], "replace": True},
    {"num_neighbors": [3, 2], "disjoint": True},
    {"num_neighbors": [3, 2], "subgraph_type": "bidirectional"},
    {"num_neighbors": [3, 2], "subgraph_type": "induced"},
    {"num_neighbors": [3, 2], "weight_attr": "edge_weight"},
    {"num_neighbors": [-1, -1], "time_attr": "time"},
    {"num_neighbors": [3, 2], "time_attr": "time", "times": True},
    {"num_neighbors": [2, 2], "time_attr": "time", "temporal_strategy": "last"},
    {"num_neighbors": [-1, 2], "time_attr": "edge_time", "times": True},
    {"num_neighbors": [2, 2], "time_attr": "edge_time", "temporal_strategy": "last", "times": True},
]
LINKS = [
    {"num_neighbors": [-1, -1]},
    {"num_neighbors": [3, 2], "neg_sampling": "binary"},
    {"num_neighbors": [3, 2], "neg_sampling": ("binary", 1.5), "labels": True, "disjoint": True},
    {"num_neighbors": [3, 2], "neg_sampling": ("triplet", 2)},
    {"num_neighbors": [2, 2], "time_attr": "time", "neg_sampling": ("triplet", 1)},
    {"num_neighbors": [2, 2], "time_attr": "edge_time", "temporal_strategy": "last"},
]


def cases_of(is_typed, loading):
    nodes = [(False, given, loading) for given in NODES]
    links = [(True, given, loading) for given in LINKS]
    if not is_typed:
        return nodes + links
    return nodes + [(True, {**given, "edge_type": of}, loading) for _, given, _ in links for of in (WRITES, CITES)]


@pytest.mark.parametrize("num_parts", [1, 2, 3, 4])
@pytest.mark.parametrize("is_typed", [False, True])
@pytest.mark.parametrize("layout", ["pyg", "native"])
def test_batches_are_those_of_one_machine(tmp_path, num_parts, is_typed, layout):
    data = typed_data(3) if is_typed else plain_data(3)
    cut(tmp_path / "parts", data, num_parts, layout, node_time_attr="time")
    with RankGroup(num_parts) as group:
        cases = cases_of(is_typed, {})
        ask_all(group, compare, tmp_path / "parts", 3, is_typed, free_port(), num_parts, [*range(num_parts)][::-1], cases)
