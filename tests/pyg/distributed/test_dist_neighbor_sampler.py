"""DistNeighborSampler without a loader: its calls against those of one machine, channels, keys, one hop."""

import asyncio
import itertools
import queue

import pytest
import torch
from chi_square import p_value
from pyg_cases import CITES, WRITES
from pyg_ranks import TIMEOUT_S, answers, context_of, cut, in_ranks, plain_data, port_of_all, stores, typed_data
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput

import datapipes as dp
from datapipes.base.rng import RngKey
from datapipes.pyg.distributed import (
    ConcurrentEventLoop,
    DistEdgeHeteroSamplerInput,
    DistNeighborSampler,
    LocalFeatureStore,
    LocalGraphStore,
    init_rpc,
    shutdown_rpc,
)
from datapipes.pyg.sampler import NeighborSampler

_numbers = itertools.count()  # of groups: init_rpc is for all samplers of one


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    data, root = plain_data(8), tmp_path_factory.mktemp("plain")
    cut(root / "parts", data, 3, node_time_attr="time")
    return data, root / "parts"


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    data, root = typed_data(8), tmp_path_factory.mktemp("typed")
    cut(root / "parts", data, 2, node_time_attr="time")
    return data, root / "parts"


def sampling(size, root, what, num_neighbors=(3, 2), **given):
    """Return what `what` makes of the sampler of each rank; they meet by init_rpc."""
    port, group = port_of_all(), f"sampling {next(_numbers)}"

    def work(rank, size):
        context = context_of(rank, size, group)
        sampler = DistNeighborSampler(context, stores(root, rank), [*num_neighbors], shuffle=False, **given)
        init_rpc(context, "127.0.0.1", port, rpc_timeout=TIMEOUT_S)
        sampler.init_sampler_instance()
        sampler.register_sampler_rpc()
        return what(sampler)

    return in_ranks(size, work)


def same(one, other):
    for name in ("node", "row", "col", "edge", "batch", "num_sampled_nodes", "num_sampled_edges"):
        ours, theirs = (
            each if isinstance(each, dict) else {None: each} for each in (getattr(one, name), getattr(other, name))
        )
        assert ours.keys() == theirs.keys(), name
        for of, value in ours.items():
            assert torch.equal(value, theirs[of]) if isinstance(value, torch.Tensor) else value == theirs[of], name
    return True


def run(coroutine):
    return asyncio.run(coroutine)


def test_nodes_are_sampled_as_on_one_machine(plain):
    data, root = plain
    whole = NeighborSampler(data, [3, 2], disjoint=True)
    inputs = NodeSamplerInput(input_id=None, node=torch.tensor([1, 30, 7]))

    def work(sampler):
        rank = sampler.current_ctx.rank
        out = run(sampler.node_sample(inputs))
        assert out.metadata == (None, None, 3)
        return same(out, whole.sample_from_nodes(inputs, rng=RngKey(0, 0, rank, 1)))

    assert answers(sampling(3, root, work, disjoint=True)) == [True] * 3


def test_the_key_of_a_call_is_seed_and_number(plain):
    _, root = plain
    inputs = NodeSamplerInput(input_id=None, node=torch.arange(20))

    def work(sampler):
        return [run(sampler.node_sample(inputs)).edge.tolist() for _ in range(2)]

    one, again, other = (answers(sampling(3, root, work, seed=seed)) for seed in (1, 1, 2))
    assert one == again != other
    assert len({str(each) for calls in one for each in calls}) == 6


def test_links_are_sampled_as_on_one_machine(typed):
    data, root = typed
    whole = NeighborSampler(data, [3, 2])
    negatives = NegativeSampling("triplet", 2)

    def work(sampler):
        key = RngKey(0, 0, sampler.current_ctx.rank, 1)
        for number, of in enumerate((WRITES, CITES)):
            row, col = data[of].edge_index[:, :6]
            inputs = EdgeSamplerInput(torch.arange(6), row, col, input_type=of)
            given = (sampler.num_nodes, False, None, negatives)
            out = run(sampler.edge_sample(inputs, sampler.node_sample, *given))
            expected = whole.sample_from_edges(inputs, negatives, rng=RngKey(0, 0, key.index + 2 * number, 1))
            assert same(out, expected)
            assert all(map(torch.equal, out.metadata[:4], expected.metadata[:4]))
        return True

    assert answers(sampling(2, root, work)) == [True] * 2


def test_seeds_of_two_types(typed):
    data, root = typed
    seeds = {"paper": torch.tensor([3, 4]), "author": torch.tensor([1])}

    def work(sampler):
        out = run(sampler.node_sample(DistEdgeHeteroSamplerInput(None, seeds, None, WRITES)))
        assert {of: out.node[of][: len(ids)].tolist() for of, ids in seeds.items()} == {"paper": [3, 4], "author": [1]}
        for of in data.edge_types:
            ends = data[of].edge_index[:, out.edge[of]]
            assert torch.equal(ends[0], out.node[of[0]][out.row[of]])
            assert torch.equal(ends[1], out.node[of[2]][out.col[of]])
        with pytest.raises(ValueError, match="input_type is None"):
            run(sampler.node_sample(NodeSamplerInput(None, torch.arange(2))))
        return True

    assert answers(sampling(2, root, work)) == [True] * 2


def test_calls_of_several_types_at_once_do_not_mix(typed):
    _, root = typed

    def inputs(of):
        return NodeSamplerInput(None, torch.arange(8), input_type=of)

    def work(sampler):
        key = RngKey(3, 0, 0, 1)

        async def at_once():
            return await asyncio.gather(*(sampler.sampled(inputs(of), None, key) for of in ("paper", "author") * 4))

        found = run(at_once())
        for number, of in enumerate(("paper", "author") * 4):
            assert same(found[number], run(sampler.sampled(inputs(of), None, key)))
        return [*found[0].node], [*found[0].edge]

    first, second = answers(sampling(2, root, work))
    assert first == second


def test_results_on_a_channel(plain):
    _, root = plain

    class Kept(dp.stages.ChannelBase):
        def __init__(self):
            self.messages_ = queue.Queue()

        def send(self, msg, **kwargs):
            self.messages_.put(msg)

        def recv(self, **kwargs):
            return self.messages_.get(timeout=TIMEOUT_S)

    def work(sampler):
        inputs = NodeSamplerInput(torch.arange(3), torch.tensor([1, 30, 7]))
        expected = run(sampler.sampled(inputs, None, RngKey(0, 0, sampler.current_ctx.rank, 1)))
        told = queue.Queue()
        sampler.channel = queue.Queue()
        assert sampler.sample_from_nodes(inputs, callback=told.put) is None
        out = sampler.channel.get(timeout=TIMEOUT_S)
        assert told.get(timeout=TIMEOUT_S) is out
        assert same(out, expected)
        assert torch.equal(out.metadata[3], out.features["node", None, "x"])
        assert torch.equal(out.metadata[5], out.features["edge", None, "edge_attr"])
        sampler.channel, sampler._calls = Kept(), 0
        sampler.sample_from_nodes(inputs)
        message = sampler.channel.recv()
        assert {each.dtype for each in message.values()} == {torch.int64}
        for name in ("node", "row", "col", "edge", "num_sampled_nodes"):
            assert message[name].tolist() == torch.as_tensor(getattr(expected, name)).tolist()
        wrong = NodeSamplerInput(torch.arange(1), torch.tensor([400]))
        sampler.sample_from_nodes(wrong)
        with pytest.raises(IndexError, match="400"):
            next(sampler.channel.messages())
        sampler.channel = queue.Queue()
        sampler.sample_from_nodes(wrong)
        assert isinstance(sampler.channel.get(timeout=TIMEOUT_S), IndexError)
        return True

    assert answers(sampling(3, root, work)) == [True] * 3


def test_one_hop_gives_neighbors_by_global_id(plain):
    data, root = plain
    row, col = data.edge_index
    nodes = torch.tensor([5, 30, 5, 39, 12])

    def work(sampler):
        out = run(sampler.sample_one_hop(nodes, -1, src_batch=torch.tensor([0, 1, 2, 3, 3])))
        (counts,) = out.metadata
        expected = [(col == node).nonzero().flatten() for node in nodes]
        assert counts == [len(each) for each in expected]
        assert torch.equal(out.edge, torch.cat(expected))
        assert torch.equal(out.node, row[out.edge])
        assert out.batch.tolist() == [
            tree for tree, count in zip([0, 1, 2, 3, 3], counts, strict=True) for _ in range(count)
        ]
        some = run(sampler.sample_one_hop(nodes, 2))
        assert some.metadata[0] == [min(count, 2) for count in counts]
        assert run(sampler.sample_one_hop(nodes, 0)).node.tolist() == []
        assert run(sampler.sample_one_hop(nodes[:0], 2)).metadata == ([],)
        return True

    assert answers(sampling(3, root, work)) == [True] * 3


def test_one_hop_is_bounded_by_times(plain):
    data, root = plain

    def work(sampler):
        nodes = torch.arange(40)
        times = torch.arange(40) % 30
        out = run(sampler.sample_one_hop(nodes, -1, seed_time=times))
        of_each = torch.repeat_interleave(times, torch.tensor(out.metadata[0]))
        assert bool((data.time[out.node] <= of_each).all())
        row, col = data.edge_index
        assert len(out.node) == int((data.time[row] <= times[col]).sum())
        return True

    assert answers(sampling(3, root, work, time_attr="time")) == [True] * 3


def test_one_hop_draws_uniformly(plain):
    data, root = plain
    _, col = data.edge_index
    node = int(torch.bincount(col).argmax())
    ids = (col == node).nonzero().flatten()

    def work(sampler):
        drawn = run(sampler.sample_one_hop(torch.full((4000,), node), 1)).edge
        counts = torch.tensor([int((drawn == each).sum()) for each in ids], dtype=torch.float64)
        expected = len(drawn) / len(ids)
        return p_value(float(((counts - expected) ** 2 / expected).sum()), len(ids) - 1)

    assert all(p > 1e-4 for p in answers(sampling(3, root, work)))


def test_features_are_looked_up_in_all_parts(plain):
    data, root = plain

    def work(sampler):
        ids = torch.tensor([3, 39, 3, 20])
        found = sampler.feature_store.lookup_features(ids).wait()
        edges = sampler.feature_store.lookup_features(ids, is_node_feat=False).wait()
        return torch.equal(found, data.x[ids]) and torch.equal(edges, data.edge_attr[ids])

    assert answers(sampling(3, root, work)) == [True] * 3


def test_stores_in_memory_with_edges_of_other_parts(plain):
    """Nodes in any order, no edge ids, and in-edges of nodes that another part owns, which count there alone."""
    data, _ = plain
    columns = data.edge_index[:, torch.argsort(data.edge_index[1], stable=True)]
    owner = torch.arange(40) % 2

    def work(rank, size, port):
        nodes = (owner == rank).nonzero().flatten().flip(0)
        some = (owner[columns[1]] == rank) | (torch.arange(160) % 5 == 0)
        features = LocalFeatureStore.from_data(nodes, x=data.x[nodes], y=data.y[nodes])
        graph = LocalGraphStore.from_data(None, columns[:, some], num_nodes=40)
        graph.node_pb, graph.partition_idx, graph.num_partitions = owner, rank, size
        sampler = DistNeighborSampler(context_of(rank, size, "in memory"), (features, graph), [-1, -1])
        init_rpc(sampler.current_ctx, "127.0.0.1", port, rpc_timeout=TIMEOUT_S)
        sampler.event_loop = ConcurrentEventLoop(2)
        sampler.event_loop.start_loop()
        out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([0, 1, 17])))
        sampler.event_loop.shutdown_loop()
        assert torch.equal(out.metadata[3], data.x[out.node])
        assert torch.equal(out.features["node", None, "y"], data.y[out.node])
        return out

    expected = NeighborSampler(data, [-1, -1]).sample_from_nodes(NodeSamplerInput(None, torch.tensor([0, 1, 17])))
    first, second = answers(in_ranks(2, work, port_of_all()))
    for out in (first, second):
        assert torch.equal(out.node, expected.node)
        assert torch.equal(out.row, expected.row)
        assert torch.equal(out.edge, first.edge)
    shutdown_rpc()
