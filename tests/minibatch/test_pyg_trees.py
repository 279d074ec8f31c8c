"""to_pyg() of trees and of temporal samples, beside what PyG publishes of its samplers.

The expectations are written by hand from the published behaviour of pyg-lib's neighbor_sample and
hetero_neighbor_sample (torch_geometric 2.8, `disjoint=True`, `time_attr`), as its documentation and its tests state
it: nodes are numbered by first appearance as pairs (seed, node), seeds first; a hop expands what the hop before found;
without replacement a node of few in-edges gives all of them in order; in-edges of the time of the seed may be drawn;
"last" takes the last ones of those in order; of links, `batch` is the number of the link.
"""

import pytest
import torch
from pyg_cases import CITES, WRITES

import datapipes as dp

BY = ("paper", "by", "author")

# Edges (source, destination); an id is a place.
EDGES = [(1, 0), (2, 0), (3, 1), (2, 1), (0, 2)]


def graph(times: list[int] | None = None, node_times: list[int] | None = None, edges=EDGES) -> dp.CSCGraph:
    return dp.CSCGraph.from_edge_index(
        torch.tensor(edges).t().contiguous(),
        num_nodes=6,
        edge_attributes={"edge_time": torch.tensor(times)} if times else None,
        node_attributes={"time": torch.tensor(node_times)} if node_times else None,
    )


def data_of(pipe: dp.Stage):
    return next(iter(pipe)).to_pyg()


def of_seeds(seeds: list, times: list[int] | None = None) -> dp.ItemSampler:
    given = (torch.tensor(seeds),) if times is None else (torch.tensor(seeds), torch.tensor(times))
    return dp.ItemSampler(dp.ItemSet(given, names=("seeds", "timestamps")[: len(given)]), len(seeds))


def test_trees_are_pygs_disjoint_subgraphs():
    data = data_of(
        of_seeds([0, 1]).sample_neighbor(graph(), [-1, -1], frontier="new", disjoint=True, return_edge_ids=True)
    )
    assert data.n_id.tolist() == [0, 1, 1, 2, 3, 2, 3, 0]
    assert data.batch.tolist() == [0, 1, 0, 0, 1, 1, 0, 1]
    assert data.edge_index.tolist() == [[2, 3, 4, 5, 6, 3, 0, 7], [0, 0, 1, 1, 2, 2, 3, 5]]
    assert data.e_id.tolist() == [0, 1, 2, 3, 2, 3, 4, 4]
    assert data.num_sampled_nodes == [2, 4, 2]
    assert data.num_sampled_edges == [4, 4]
    assert data.batch_size == 2


def test_a_seed_that_repeats_has_a_tree_for_each_place_and_its_own_row():
    data = data_of(of_seeds([0, 0]).sample_neighbor(graph(), [-1], frontier="new", disjoint=True))
    assert data.n_id.tolist() == [0, 0, 1, 2, 1, 2]
    assert data.batch.tolist() == [0, 1, 0, 0, 1, 1]
    assert data.edge_index.tolist() == [[2, 3, 4, 5], [0, 0, 1, 1]]
    assert data.num_sampled_nodes == [2, 4]


@pytest.mark.parametrize(
    ("strategy", "fanout", "kept"),
    [("uniform", -1, [0, 1, 2]), ("last", 2, [1, 2]), ("last", 1, [2]), ("last", 9, [0, 1, 2])],
)
def test_in_edges_up_to_the_time_of_the_seed_are_drawn_and_last_takes_the_last_of_them(strategy, fanout, kept):
    edges = [(1, 0), (2, 0), (3, 0), (4, 0), (0, 3)]
    timed = graph(times=[1, 3, 3, 7, 2], edges=edges)
    pipe = of_seeds([0], [3]).temporal_sample_neighbor(
        timed,
        [fanout, fanout],
        edge_time_attr="edge_time",
        strategy=strategy,
        inclusive=True,
        disjoint=True,
        frontier="new",
        return_edge_ids=True,
    )
    data = data_of(pipe)
    assert data.n_id.tolist() == [0, *(edges[edge][0] for edge in kept)]
    assert data.e_id.tolist() == [*kept, 4]  # node 3 leads back to 0
    assert data.seed_time.tolist() == [3]
    assert data.batch.tolist() == [0] * (len(kept) + 1)
    assert data.num_sampled_nodes == [1, len(kept), 0]
    assert data.num_sampled_edges == [len(kept), 1]


def test_a_node_is_drawn_at_the_time_of_its_seed_and_not_at_its_own():
    """Node-level times: node 3 is later than node 1 but not than the seed."""
    timed = graph(node_times=[9, 1, 5, 4, 0, 0])
    arguments = {"node_time_attr": "time", "inclusive": True, "disjoint": True, "frontier": "new"}
    data = data_of(of_seeds([0, 0], [4, 5]).temporal_sample_neighbor(timed, [-1, -1], **arguments))
    assert data.n_id.tolist() == [0, 0, 1, 1, 2, 3, 3]
    assert data.batch.tolist() == [0, 1, 0, 1, 1, 0, 1]
    assert data.edge_index.tolist() == [[2, 3, 4, 5, 6, 4], [0, 1, 1, 2, 3, 3]]
    assert data.num_sampled_nodes == [2, 3, 2]
    assert data.num_sampled_edges == [3, 3]


def test_the_trees_of_a_link_have_its_number():
    pipe = of_seeds([[0, 1], [2, 0]], [5, 6]).temporal_sample_neighbor(
        graph(times=[1, 2, 3, 4, 5]), [-1], edge_time_attr="edge_time", disjoint=True, frontier="new"
    )
    data = data_of(pipe)
    assert data.n_id[data.edge_label_index].tolist() == [[0, 2], [1, 0]]
    assert data.batch[data.edge_label_index].tolist() == [[0, 1], [0, 1]]
    assert data.edge_label_time.tolist() == [5, 6]
    assert data.batch.tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1]
    assert data.num_sampled_nodes == [4, 7]


def test_without_trees_the_seeds_of_a_time_share_their_nodes_and_there_is_no_batch():
    pipe = of_seeds([0, 1, 0], [9, 9, 2]).temporal_sample_neighbor(
        graph(times=[1, 2, 3, 4, 5]), [-1], edge_time_attr="edge_time", frontier="new"
    )
    data = data_of(pipe)
    assert data.n_id.tolist() == [0, 1, 0, 2, 3, 1]
    assert data.edge_index.tolist() == [[1, 3, 4, 3, 5], [0, 0, 1, 1, 2]]
    assert "batch" not in data
    assert data.seed_time.tolist() == [9, 9, 2]


def test_with_types_each_type_has_its_rows_batch_and_counts():
    edges = {CITES: [[1, 2, 2], [0, 0, 1]], WRITES: [[0, 1, 0], [0, 0, 1]], BY: [[2, 1], [0, 1]]}
    typed = dp.HeteroCSCGraph.from_edge_index(
        {of: torch.tensor(each) for of, each in edges.items()},
        {"author": 2, "paper": 3},
        node_attributes={"paper": {"time": torch.tensor([0, 3, 6])}},
    )
    items = dp.HeteroItemSet(
        {"paper": dp.ItemSet((torch.tensor([0, 1]), torch.tensor([5, 6])), names=("seeds", "timestamps"))}
    )
    arguments = {"node_time_attr": "time", "inclusive": True, "disjoint": True, "frontier": "new"}
    data = data_of(dp.ItemSampler(items, 2).temporal_sample_neighbor(typed, [-1, -1], **arguments))
    assert data["paper"].n_id.tolist() == [0, 1, 1, 2]  # seeds, paper 1 for the first, paper 2 for the second
    assert data["paper"].batch.tolist() == [0, 1, 0, 1]
    assert data["author"].n_id.tolist() == [0, 1, 0]  # authors have no time
    assert data["author"].batch.tolist() == [0, 0, 1]
    assert data[CITES].edge_index.tolist() == [[2, 3], [0, 1]]
    assert data[WRITES].edge_index.tolist() == [[0, 1, 2, 0], [0, 0, 1, 2]]
    assert data[BY].edge_index.tolist() == [[2, 3], [1, 2]]  # to authors 1 and 0: paper 1 by 5, paper 2 by 6
    assert data["paper"].num_sampled_nodes == [2, 2, 0]
    assert data["author"].num_sampled_nodes == [0, 3, 0]
    assert data[CITES].num_sampled_edges == [2, 0]
    assert data[WRITES].num_sampled_edges == [3, 1]
    assert data[BY].num_sampled_edges == [0, 2]
    assert data["paper"].seed_time.tolist() == [5, 6]
