"""MiniBatch.to_pyg: what PyG's own NeighborLoader gives, and the results of the blocks, or a refusal."""

import sys

import pytest
import torch
from pipelines import graph_of, items, sampled, small_graph, small_store
from pyg_cases import torch_geometric
from pyg_twin import sampled_by_pyg

import datapipes as dp

# PyG reads annotations in a way that Python 3.13 calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Failing to pass a value to the 'type_params':DeprecationWarning")


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


@pytest.mark.parametrize("seeds", [[3, 0, 17, 8], [3, 0, 3, 17, 0, 0, 8], [5, 5]], ids=str)
@pytest.mark.parametrize("frontier", ["all", "new"])
@pytest.mark.parametrize(("num_hops", "dtype"), [(1, torch.int64), (2, torch.int32), (3, torch.int64)])
def test_full_fanouts_give_what_pygs_own_sampler_gives(seeds, frontier, num_hops, dtype):
    graph = small_graph(dtype)
    labels = torch.arange(len(seeds)) + 100
    pipe = dp.ItemSampler(dp.ItemSet((torch.tensor(seeds), labels)), len(seeds))
    pipe = pipe.sample_neighbor(graph, [-1] * num_hops, frontier=frontier, return_edge_ids=True)
    data = next(iter(pipe.fetch_feature(small_store(), ["feat"], ["weight"]))).to_pyg()
    to, relation = ("node", "to", "node"), (graph.indptr, graph.indices)
    typed = dp.HeteroCSCGraph({to: relation}, {"node": graph.num_nodes}, edge_ids={to: graph.edge_ids})
    nodes, edges, edge_ids, num_nodes, num_edges = sampled_by_pyg(typed, {"node": seeds}, num_hops)
    assert data.n_id.tolist() == nodes["node"]
    assert data.edge_index.T.tolist() == edges[to]
    assert data.e_id.tolist() == edge_ids[to]
    assert (data.num_sampled_nodes, data.num_sampled_edges) == (num_nodes["node"], num_edges[to])
    assert (data.batch_size, data.num_nodes) == (len(seeds), len(nodes["node"]))
    assert torch.equal(data.y[: data.batch_size], labels)
    assert torch.equal(data.x, small_store()["node", None, "feat"].tensor[data.n_id])
    assert torch.equal(data.weight, data.e_id.half())
    assert data.n_id[data.seed_local_id].tolist() == seeds
    assert (data.n_id.dtype, data.seed_local_id.dtype, data.edge_index.dtype) == (dtype, dtype, torch.int64)


class Sage(torch.nn.Module):
    """SAGE layers in float64, over blocks or over PyG's Data."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            widths = [3, *[4] * num_layers]
            layers = [torch_geometric.nn.SAGEConv(*widths[i : i + 2]) for i in range(num_layers)]
        self.layers = torch.nn.ModuleList(layer.double() for layer in layers)

    def by_blocks(self, minibatch: dp.MiniBatch, with_older: bool) -> torch.Tensor:
        """Rows for the seeds; `with_older` adds to each block the in-edges that hops nearer to the seeds drew."""
        x = minibatch.node_features["feat"].double()
        for number, (layer, block) in enumerate(zip(self.layers, minibatch.blocks, strict=True)):
            blocks = minibatch.blocks[number:] if with_older else [block]
            edge_index = torch.cat([block.edge_index for block in blocks], dim=1)
            x = layer((x[: block.num_src], x[: block.num_dst]), edge_index).tanh()
        return x[minibatch.compacted_seeds]

    def by_data(self, data, trim: bool) -> torch.Tensor:
        x, edge_index = data.x.double(), data.edge_index
        for number, layer in enumerate(self.layers):
            if trim:
                x, edge_index, _ = torch_geometric.utils.trim_to_layer(
                    number, data.num_sampled_nodes, data.num_sampled_edges, x, edge_index
                )
            x = layer(x, edge_index).tanh()
        return x[: data.batch_size]


KINDS = [
    pytest.param(frontier, replace, seeds, fanouts, id=f"{frontier}-{replace}-{len(seeds)}-{fanouts}")
    for frontier in ("all", "new")
    for replace in (False, True)
    for seeds in ([3, 0, 17, 8], [3, 0, 3, 17, 0, 0, 8])
    for fanouts in ([2], [-1, -1], [3, 2], [2, 3, 2])
]


def minibatch_of(frontier: str, replace: bool, seeds: list[int], fanouts: list[int]) -> dp.MiniBatch:
    pipe = dp.ItemSampler(dp.ItemSet(torch.tensor(seeds)), len(seeds), seed=3)
    pipe = pipe.sample_neighbor(small_graph(), fanouts, frontier=frontier, replace=replace)
    return next(iter(pipe.fetch_feature(small_store(), ["feat"])))


@pytest.mark.parametrize(("frontier", "replace", "seeds", "fanouts"), KINDS)
def test_layers_over_data_give_the_seeds_what_layers_over_blocks_give_or_are_refused(frontier, replace, seeds, fanouts):
    minibatch = minibatch_of(frontier, replace, seeds, fanouts)
    if frontier == "all" and len(fanouts) > 1 and -1 not in fanouts:
        with pytest.raises(ValueError, match=r"to_pyg: found .* hop 1 drew other in-edges .*frontier='new'"):
            minibatch.to_pyg()
        return
    data = minibatch.to_pyg()
    assert data.batch_size == len(seeds)
    assert data.n_id[: data.batch_size].tolist() == seeds
    one = Sage(1)
    inner = minibatch.blocks[-1]
    x = minibatch.node_features["feat"].double()
    expected = one.layers[0]((x[: inner.num_src], x[: inner.num_dst]), inner.edge_index).tanh()
    assert torch.allclose(one.by_data(data, trim=False), expected[minibatch.compacted_seeds], rtol=1e-12, atol=1e-12)
    model = Sage(len(fanouts))
    expected = model.by_blocks(minibatch, with_older=frontier == "new")
    for trim in (False, True):
        assert torch.allclose(model.by_data(data, trim), expected, rtol=1e-12, atol=1e-12)


def test_a_later_hop_that_draws_the_same_again_is_kept_once():
    minibatch = next(iter(pyg_chain(frontier="all", fanouts=[-1, -1])))
    data, (outer, inner) = minibatch.to_pyg(), minibatch.blocks
    first = int(outer.indptr[inner.num_dst])
    assert first == inner.num_edges
    assert torch.equal(data.edge_index, outer.edge_index)
    assert data.num_sampled_edges == [first, outer.num_edges - first]


def test_a_later_hop_that_draws_one_other_edge_is_refused(refuses):
    """Also where only the ids of parallel edges differ: their features would."""
    minibatch = next(iter(pyg_chain(frontier="all", fanouts=[-1, -1])))
    outer, inner = minibatch.blocks
    for change in ("indptr", "indices", "edge_ids"):
        parts = {"indptr": outer.indptr.clone(), "indices": outer.indices.clone(), "edge_ids": outer.edge_ids.clone()}
        parts[change][1] += 1
        changed = dp.Block(num_src=outer.num_src, **parts)
        refuses(ValueError, minibatch.replace(blocks=[changed, inner], edge_features=None).to_pyg)


def test_seeds_that_a_stage_dropped_or_turned_round_keep_their_rows():
    minibatch = minibatch_of("new", False, [3, 0, 17, 8], [3, 2])
    places = torch.tensor([3, 1])
    changed = minibatch.replace(seeds=minibatch.seeds[places], compacted_seeds=minibatch.compacted_seeds[places])
    data, model = changed.to_pyg(), Sage(2)
    assert data.n_id[: data.batch_size].tolist() == [8, 0]
    assert data.num_sampled_nodes[0] == 4
    expected = model.by_blocks(minibatch, with_older=True)[places]
    for trim in (False, True):
        assert torch.allclose(model.by_data(data, trim)[:2], expected, rtol=1e-12, atol=1e-12)


def test_pairs_become_edge_label_index_and_edge_label():
    pairs, labels = torch.tensor([[3, 0], [0, 17], [3, 3]]), torch.tensor([1, 0, 1])
    items = dp.ItemSet((pairs, labels, torch.arange(3), torch.arange(3) * 10))
    minibatch = next(iter(dp.ItemSampler(items, 3).sample_neighbor(small_graph(), [-1, -1], frontier="new")))
    data = minibatch.to_pyg()
    assert torch.equal(data.n_id[data.edge_label_index], pairs.t())
    assert len(data.n_id.unique()) == len(data.n_id)
    assert torch.equal(data.edge_label, labels)
    assert torch.equal(data.input_id, torch.arange(3))
    assert torch.equal(data.edge_label_time, torch.arange(3) * 10)
    assert not {"batch_size", "y", "seed_time"} & set(data.keys())


def test_the_indexes_and_times_of_the_seeds_and_the_trees_of_nodes_go_along():
    items = dp.ItemSet((torch.tensor([3, 3, 0]), torch.ones(3), torch.tensor([7, 8, 9]), torch.tensor([1, 2, 3])))
    minibatch = next(iter(dp.ItemSampler(items, 3).sample_neighbor(small_graph(), [-1], frontier="new")))
    trees = torch.arange(len(minibatch.input_nodes))
    data = minibatch.replace(batch=trees).to_pyg()
    assert data.input_id.tolist() == [7, 8, 9]
    assert data.seed_time.tolist() == [1, 2, 3]
    assert torch.equal(minibatch.input_nodes[data.batch], data.n_id)


def test_further_fields_of_the_seeds_go_along_under_their_name():
    minibatch = next(iter(sampled(frontier="new"))).replace(extra={"mine": torch.arange(4)})
    assert minibatch.to_pyg().mine.tolist() == [0, 1, 2, 3]


def test_hyperlinks_say_where_their_nodes_are():
    links = torch.tensor([[3, 0, 5], [0, 17, 17]])
    minibatch = next(iter(dp.ItemSampler(dp.ItemSet((links, torch.ones(2))), 2).sample_neighbor(small_graph(), [-1])))
    data = minibatch.to_pyg()
    assert torch.equal(data.n_id[data.seed_local_id], links)
    assert len(data.y) == 2
    assert "batch_size" not in data


def test_what_to_pyg_refuses(refuses, monkeypatch):
    minibatch = next(iter(pyg_chain()))
    of_hops, of_nodes = minibatch.edge_features, torch.zeros(len(minibatch.input_nodes))

    def of_edges(name: str) -> list[dict]:
        return [{name: torch.zeros(block.num_edges)} for block in minibatch.blocks]

    for change in (
        {"labels": torch.ones(3)},
        {"seeds": minibatch.seeds[:2]},
        {"seeds": minibatch.seeds.view(-1, 1)},
        {"compacted_seeds": None},
        {"extra": {"mine": torch.ones(3)}},
        {"node_features": {"feat": torch.ones(4, 3)}},
        {"edge_features": [{"w": torch.ones(1)}, {}]},
        {"edge_features": [of_hops[0], {}]},
        {"edge_features": [{}, of_hops[1]]},
        {"node_features": {"feat": of_nodes, "x": of_nodes}},  # names that hide each other
        {"node_features": {"w": of_nodes}, "edge_features": of_edges("w")},
        {"node_features": {"edge_index": of_nodes}},
        {"edge_features": of_edges("n_id")},
        {"extra": {"y": torch.ones(4)}},
    ):
        refuses(ValueError, minibatch.replace(**change).to_pyg)
    refuses(IndexError, minibatch.replace(compacted_seeds=minibatch.compacted_seeds + 4).to_pyg)
    refuses(ValueError, next(iter(items())).to_pyg)
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    with pytest.raises(ImportError, match=r"to_pyg: needs .* pip install torch_geometric \(in the extra \[pyg\] of"):
        minibatch.to_pyg()


def test_other_features_keep_their_name():
    store = dp.FeatureStore({("node", None, "words"): dp.TensorFeature(torch.arange(40).reshape(40, 1))})
    data = next(iter(sampled(frontier="new").fetch_feature(store, ["words"]))).to_pyg()
    assert torch.equal(data.words[:, 0], data.n_id)
    assert "x" not in data
