"""MiniBatch.to_pyg: the same as PyG's own NeighborLoader, and equal results layer by layer."""

import sys
import warnings

import pytest
import torch
from pipelines import graph_of, items, sampled, small_graph, small_store

import datapipes as dp

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyG warns about its own parts while it is imported
    pyg = pytest.importorskip(
        "torch_geometric", reason="to_pyg makes objects of torch_geometric: install the pyg extra"
    )
    import torch_geometric.nn
    import torch_geometric.utils


def pyg_chain(**arguments) -> dp.Stage:
    return sampled(**{"frontier": "new", **arguments}).fetch_feature(small_store(), ["feat"], ["weight"])


def edges_of(data) -> list[tuple[int, int]]:
    """The edges of a PyG minibatch as global ids."""
    return [tuple(edge) for edge in data.n_id[data.edge_index].T.tolist()]


def test_with_the_new_frontier_every_edge_and_node_is_there():
    for minibatch in pyg_chain():
        data = minibatch.to_pyg()
        hops = minibatch.blocks[::-1]
        assert data.n_id is minibatch.input_nodes
        assert torch.equal(data.edge_index, torch.cat([block.edge_index for block in hops], dim=1))
        assert torch.equal(data.e_id, torch.cat([block.edge_ids for block in hops]))
        assert data.num_sampled_edges == [block.num_edges for block in hops]
        assert sum(data.num_sampled_nodes) == data.num_nodes == len(minibatch.input_nodes)
        assert data.num_sampled_nodes[0] == hops[0].num_dst == data.batch_size
        assert torch.equal(data.x, minibatch.node_features["feat"])
        assert torch.equal(data.weight, data.e_id.half())
        assert torch.equal(data.y, minibatch.labels)
        assert torch.equal(data.n_id[data.seed_local_id], minibatch.seeds)


def test_edges_run_from_row_zero_to_row_one_as_in_the_graph():
    graph = graph_of([[1, 2], [2], []])
    pipe = dp.ItemSampler(dp.ItemSet(torch.tensor([0])), 1).sample_neighbor(graph, [-1, -1], frontier="new")
    assert sorted(edges_of(next(iter(pipe)).to_pyg())) == [(1, 0), (2, 0), (2, 1)]


def test_with_the_frontier_of_all_nodes_a_column_is_kept_once():
    repeated = 0
    for minibatch in pyg_chain(frontier="all", fanouts=[2, 2, 2]):
        data = minibatch.to_pyg()
        assert sum(block.num_edges for block in minibatch.blocks) > sum(data.num_sampled_edges)
        layer_of_node = torch.arange(4).repeat_interleave(torch.tensor(data.num_sampled_nodes))
        layer_of_edge = torch.arange(3).repeat_interleave(torch.tensor(data.num_sampled_edges))
        assert torch.equal(layer_of_node[data.edge_index[1]], layer_of_edge)  # all in-edges of a node are of one hop
        assert torch.equal(data.weight, data.e_id.half())
        assert len(data.e_id) == data.edge_index.shape[1]
        repeated += 1
    assert repeated == len(items())


def test_each_node_keeps_the_picks_of_the_hop_where_it_is_first_a_destination():
    minibatch = next(iter(pyg_chain(frontier="all")))
    data, (outer, inner) = minibatch.to_pyg(), minibatch.blocks
    first = int(outer.indptr[inner.num_dst])
    assert torch.equal(data.edge_index, torch.cat([inner.edge_index, outer.edge_index[:, first:]], dim=1))


class Sage(torch.nn.Module):
    """Two SAGE layers in float64, over blocks or over PyG's layers."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            layers = [torch_geometric.nn.SAGEConv(3, 5), torch_geometric.nn.SAGEConv(5, 2)]
        self.layers = torch.nn.ModuleList(layer.double() for layer in layers)

    def by_blocks(self, minibatch: dp.MiniBatch) -> torch.Tensor:
        x = minibatch.node_features["feat"].double()
        for layer, block in zip(self.layers, minibatch.blocks, strict=True):
            x = layer((x, x[: block.num_dst]), block.edge_index).relu()
        return x

    def by_trimming(self, data) -> torch.Tensor:
        x, edge_index = data.x.double(), data.edge_index
        for number, layer in enumerate(self.layers):
            x, edge_index, _ = torch_geometric.utils.trim_to_layer(
                number, data.num_sampled_nodes, data.num_sampled_edges, x, edge_index
            )
            x = layer(x, edge_index).relu()
        return x[: data.batch_size]


@pytest.mark.parametrize("frontier", ["all", "new"])
def test_trimmed_layers_give_the_seeds_what_the_blocks_give(frontier):
    tree = graph_of([[2 * v + 1, 2 * v + 2] if 2 * v + 2 < 31 else [] for v in range(31)])
    pipe = dp.ItemSampler(dp.ItemSet(torch.tensor([3, 4, 5, 6])), 4).sample_neighbor(tree, [-1, -1], frontier="all")
    pipe = pipe.fetch_feature(small_store(31), ["feat"])
    model = Sage()
    expected = model.by_blocks(next(iter(pipe)))
    other = pipe.replaced(dp.NeighborSampler, lambda old: old.source.sample_neighbor(tree, [-1, -1], frontier=frontier))
    assert torch.allclose(model.by_trimming(next(iter(other)).to_pyg()), expected, rtol=1e-12, atol=0)


def test_a_minibatch_that_was_not_sampled_is_refused():
    with pytest.raises(ValueError, match=r"to_pyg: .* without blocks.*Put a sampler"):
        next(iter(items())).to_pyg()


def test_without_torch_geometric_the_error_names_the_extra(monkeypatch):
    minibatch = next(iter(pyg_chain()))
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    with pytest.raises(ImportError, match=r"to_pyg: needs torch_geometric.*datapipes\[pyg\]"):
        minibatch.to_pyg()


def test_other_features_keep_their_name():
    store = dp.FeatureStore({("node", None, "words"): dp.TensorFeature(torch.arange(40).reshape(40, 1))})
    data = next(iter(sampled(graph=small_graph()).fetch_feature(store, ["words"]))).to_pyg()
    assert torch.equal(data.words[:, 0], data.n_id)
    assert "x" not in data


@pytest.mark.parametrize(
    ("node_features", "edge_features", "named"),
    [
        (["feat", "x"], [], r"'feat' and 'x'"),
        (["w"], ["w"], r"'w' is a node and an edge feature"),
        (["edge_index"], [], r"\['edge_index'\] have names of Data's own"),
        ([], ["n_id"], r"\['n_id'\] have names of Data's own"),
    ],
)
def test_features_that_would_hide_each_other_are_refused(node_features, edge_features, named):
    minibatch = next(iter(sampled(frontier="new")))
    crowded = minibatch.replace(
        node_features={name: torch.zeros(len(minibatch.input_nodes)) for name in node_features},
        edge_features=[{name: torch.zeros(block.num_edges) for name in edge_features} for block in minibatch.blocks],
    )
    with pytest.raises(ValueError, match=f"to_pyg: .*{named}"):
        crowded.to_pyg()
