"""datapipes.pyg.sampler: what is sampled, against the plain definition, PyG on torch-sparse, and its own loaders."""

import math
from collections import Counter

import pytest
import torch
from amounts import amount
from pyg_cases import (
    CITES,
    WRITES,
    WRITTEN,
    Data,
    all_in_edges,
    assert_same,
    edges_of,
    needs_torch_sparse,
    pyg,
    random_data,
    random_hetero,
)

from datapipes.pyg.loader import LinkNeighborLoader, NeighborLoader
from datapipes.pyg.sampler import NeighborSampler

NodeSamplerInput, NegativeSampling = pyg.sampler.NodeSamplerInput, pyg.sampler.NegativeSampling
pytestmark = [
    pytest.mark.filterwarnings("ignore:Failing to pass a value to the 'type_params':DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*positive links:UserWarning"),
]


@pytest.mark.parametrize("seed", range(amount(20, 4)))
def test_all_in_edges_of_data_are_those_of_the_plain_definition(seed):
    data = random_data(seed)
    seeds = torch.randperm(40, generator=torch.Generator().manual_seed(seed))[:9]
    for batch in NeighborLoader(data, [-1, -1], input_nodes=seeds, batch_size=4, seed=seed):
        own = batch.n_id[: batch.batch_size].tolist()
        nodes, edges = all_in_edges({None: data.edge_index}, {None: own}, 2)
        assert own == seeds[batch.input_id].tolist()
        assert sorted(batch.n_id.tolist()) == sorted(nodes[None])
        assert edges_of(batch) == edges[None]
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        assert sum(batch.num_sampled_nodes) == batch.num_nodes
        assert sum(batch.num_sampled_edges) == batch.num_edges


@pytest.mark.parametrize("seed", range(amount(20, 4)))
def test_all_in_edges_of_heterogeneous_data_are_those_of_the_plain_definition(seed):
    data = random_hetero(seed)
    for batch in NeighborLoader(data, [-1, -1], input_nodes=("paper", data["paper"].train_mask), batch_size=5):
        own = batch["paper"].n_id[: batch["paper"].batch_size].tolist()
        columns = {of: data[of].edge_index for of in data.edge_types}
        nodes, edges = all_in_edges(columns, {"paper": own, "author": [], "venue": []}, 2)
        for of in data.node_types:
            assert sorted(batch[of].n_id.tolist()) == sorted(nodes[of])
        for of in data.edge_types:
            assert edges_of(batch, of) == edges[of]
            assert torch.equal(batch[of].edge_attr, data[of].edge_attr[batch[of].e_id])


@needs_torch_sparse
@pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without")
@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional", "induced"])
@pytest.mark.parametrize("seed", range(amount(10, 2)))
def test_all_in_edges_are_those_of_pyg_on_torch_sparse(seed, subgraph_type):
    for data, nodes in ((random_data(seed), None), (random_hetero(seed), "paper")):
        given = {"num_neighbors": [-1, -1], "input_nodes": nodes, "batch_size": 7, "subgraph_type": subgraph_type}
        ours, theirs = NeighborLoader(data, **given), pyg.loader.NeighborLoader(data, **given)
        for one, other in zip(ours, theirs, strict=True):
            for of in [None] if nodes is None else data.edge_types:
                store, their_store = (one, other) if of is None else (one[of], other[of])
                if "e_id" in their_store and subgraph_type != "bidirectional":
                    assert edges_of(one, of) == edges_of(other, of)
                src, dst = (one, one) if of is None else (one[of[0]], one[of[2]])
                src2, dst2 = (other, other) if of is None else (other[of[0]], other[of[2]])
                pairs = torch.stack((src.n_id[store.edge_index[0]], dst.n_id[store.edge_index[1]]))
                pairs2 = torch.stack((src2.n_id[their_store.edge_index[0]], dst2.n_id[their_store.edge_index[1]]))
                assert sorted(pairs.T.tolist()) == sorted(pairs2.T.tolist())


def test_draws_are_uniform_or_by_weight_and_the_first_number_is_next_to_the_seeds():
    star = torch.stack((torch.arange(1, 11), torch.zeros(10, dtype=torch.int64)))
    behind = torch.stack((torch.arange(11, 14), torch.full((3,), 1)))  # of node 1
    data = Data(edge_index=torch.cat((star, behind), dim=1), num_nodes=14, weight=torch.arange(13).float())
    runs = 2000
    for options, weights in (({}, torch.ones(10)), ({"weight_attr": "weight"}, torch.arange(10).float())):
        sampler = NeighborSampler(data, [1, -1], seed=3, **options)
        drawn = Counter()
        for _ in range(runs):
            out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([0])))
            assert out.num_sampled_edges[0] == 1
            assert out.num_sampled_edges[1] == (
                3 if out.node[1] == 1 and weights.sum() == 10 else out.num_sampled_edges[1]
            )
            drawn[int(out.edge[0])] += 1
        expected = runs * weights / weights.sum()
        statistic = sum((drawn[i] - float(each)) ** 2 / float(each) for i, each in enumerate(expected) if each > 0)
        assert drawn[0] == 0 or weights[0] > 0
        assert statistic < 40  # chi-square of 9 degrees of freedom: p > 1e-5


def test_without_replacement_a_row_has_different_in_edges_and_with_it_repeats():
    data = Data(edge_index=torch.stack((torch.arange(20), torch.zeros(20, dtype=torch.int64))), num_nodes=20)
    nodes = torch.tensor([0])
    once = NeighborSampler(data, [15], seed=1).sample_from_nodes(NodeSamplerInput(None, nodes))
    assert len(once.edge) == len(set(once.edge.tolist())) == 15
    repeats = NeighborSampler(data, [15], replace=True, seed=1).sample_from_nodes(NodeSamplerInput(None, nodes))
    assert len(repeats.edge) == 15
    assert len(set(repeats.edge.tolist())) < 15


def test_with_types_each_edge_type_has_its_own_numbers_and_a_dict_names_all():
    data = random_hetero(1)
    numbers = {WRITES: [2, 0], CITES: [0, 3], WRITTEN: [1, 1]}
    batch = next(iter(NeighborLoader(data, numbers, input_nodes="paper", batch_size=30)))
    assert batch[CITES].num_sampled_edges[0] == 0 == batch[WRITES].num_sampled_edges[1]
    degrees = torch.bincount(batch[WRITES].edge_index[1], minlength=30)
    assert int(degrees.max()) == 2
    with pytest.raises(ValueError, match="Missing number of neighbors"):
        NeighborLoader(data, {WRITES: [2, 0]}, input_nodes="paper")
    with pytest.raises(ValueError, match="hops must be the same"):
        NeighborLoader(data, {**numbers, CITES: [1]}, input_nodes="paper")
    with pytest.raises(ValueError, match=r"num_neighbors names the edge type \(.a., .b., .c.\)"):
        NeighborLoader(data, {**numbers, ("a", "b", "c"): [1, 1]}, input_nodes="paper")


def test_trees_share_no_node_and_batch_names_the_seed():
    data = random_data(2)
    for batch in NeighborLoader(data, [3, 3], batch_size=8, disjoint=True):
        row, col = batch.edge_index
        assert torch.equal(batch.batch[row], batch.batch[col])
        assert batch.batch[: batch.batch_size].tolist() == list(range(batch.batch_size))
        places = list(zip(batch.batch.tolist(), batch.n_id.tolist(), strict=True))
        assert len(set(places)) == len(places)


@pytest.mark.parametrize("strategy", ["uniform", "last"])
@pytest.mark.parametrize("time_attr", ["time", "edge_time"])
@pytest.mark.parametrize("window", [None, 9, 0])
def test_no_in_edge_is_later_than_its_seed_or_before_its_window_and_last_takes_the_latest(time_attr, strategy, window):
    data = random_data(3)
    times = torch.randint(5, 25, (40,), generator=torch.Generator().manual_seed(0))
    given = {"input_time": times, "time_attr": time_attr, "temporal_strategy": strategy, "batch_size": 10}
    num_drawn = 0
    for batch in NeighborLoader(data, [3], time_window=window, **given):
        assert torch.equal(batch.seed_time, times[batch.input_id])
        for place, (node, time) in enumerate(zip(batch.n_id[:10].tolist(), batch.seed_time.tolist(), strict=True)):
            into = data.edge_index[1] == node
            since = data.time[data.edge_index[0]] if time_attr == "time" else data.edge_time
            is_late_enough = since >= (time - 100 if window is None else time - window)
            possible = sorted(since[into & (since <= time) & is_late_enough].tolist())
            drawn = sorted(since[batch.e_id[batch.edge_index[1] == place]].tolist())
            assert len(drawn) == min(3, len(possible))
            assert not Counter(drawn) - Counter(possible)
            assert strategy == "uniform" or drawn == possible[-3:]
            num_drawn += len(drawn)
    assert num_drawn > 0


def test_with_weights_and_times_only_in_edges_of_the_right_times_are_drawn_by_weight():
    data = random_data(3)
    data.edge_weight = (torch.arange(data.num_edges) % 3).float()
    chosen = {"time_attr": "edge_time", "weight_attr": "edge_weight", "input_time": torch.full((40,), 12)}
    for fanout in (-1, 2):
        (batch,) = NeighborLoader(data, [fanout], batch_size=40, **chosen)
        possible = (data.edge_time <= 12) & (data.edge_weight > 0)
        counts = torch.bincount(data.edge_index[1, possible], minlength=40)
        drawn = torch.bincount(data.edge_index[1, batch.e_id], minlength=40)
        assert possible[batch.e_id].all()
        assert torch.equal(drawn, counts if fanout < 0 else counts.clamp(max=fanout))


def test_seeds_have_their_own_times_unless_others_are_given():
    data = random_data(4)
    batch = NeighborLoader(data, [-1], time_attr="time", batch_size=40)(range(40))
    row, col = batch.edge_index
    assert bool((batch.time[row] <= batch.time[col]).all())
    assert "seed_time" not in batch
    with pytest.raises(ValueError, match="have no times: neither input_time"):
        next(iter(NeighborLoader(data, [-1], time_attr="edge_time")))
    hetero = random_hetero(0)
    with pytest.raises(ValueError, match="the seeds of venue have no times"):
        next(iter(NeighborLoader(hetero, [-1], input_nodes="venue", time_attr="time")))


# --- links


@pytest.mark.parametrize("mode", ["binary", "triplet"])
@pytest.mark.parametrize("disjoint", [False, True])
def test_links_point_at_their_ends_and_negatives_belong_to_their_positive(mode, disjoint):
    data = random_data(5)
    negatives = NegativeSampling(mode, amount=2)
    loader = LinkNeighborLoader(data, [2, 2], batch_size=12, neg_sampling=negatives, disjoint=disjoint)
    for batch in loader:
        positives = data.edge_index[:, batch.input_id]
        count = positives.shape[1]
        if mode == "binary":
            assert batch.edge_label.tolist() == [1.0] * count + [0.0] * 2 * count
            assert torch.equal(batch.n_id[batch.edge_label_index[:, :count]], positives)
        else:
            assert torch.equal(batch.n_id[batch.src_index], positives[0])
            assert torch.equal(batch.n_id[batch.dst_pos_index], positives[1])
            assert batch.dst_neg_index.shape == (count, 2)
        if disjoint and mode == "binary":
            trees = batch.batch[batch.edge_label_index]
            assert torch.equal(trees[0], trees[1])
            assert trees[0].tolist() == list(range(count)) * 3
        elif disjoint:
            for column in (batch.src_index, batch.dst_pos_index, *batch.dst_neg_index.T):
                assert batch.batch[column].tolist() == list(range(count))
        elif mode == "binary":
            first = batch.n_id[: int(batch.edge_label_index.max()) + 1]
            assert torch.equal(first, first.unique())  # sorted, as in PyG


@pytest.mark.parametrize("amount_", [0.3, 0.5, 1.7])
def test_trees_of_links_are_right_also_with_a_fraction_of_negatives(amount_):
    data = random_hetero(6)
    loader = LinkNeighborLoader(
        data,
        [2],
        edge_label_index=WRITES,
        edge_label_time=data[WRITES].edge_time + 30,
        time_attr="time",
        neg_sampling=NegativeSampling("binary", amount_),
        batch_size=10,
        drop_last=True,
    )
    for batch in loader:
        src, dst = batch[WRITES].edge_label_index
        count = 10 + math.ceil(amount_ * 10)
        assert batch["author"].batch[src].tolist() == [i % 10 for i in range(count)]
        assert batch["paper"].batch[dst].tolist() == [i % 10 for i in range(count)]


def test_negatives_are_drawn_by_weight_at_their_time_and_by_the_seed_alone():
    data = random_data(7)
    weights = torch.arange(40).float()
    negatives = NegativeSampling("triplet", 50, dst_weight=weights)
    loader = LinkNeighborLoader(data, [0], batch_size=160, neg_sampling=negatives, seed=1)
    batch = next(iter(loader))
    drawn = torch.bincount(batch.n_id[batch.dst_neg_index].flatten(), minlength=40)
    expected = drawn.sum() * weights / weights.sum()
    assert int(drawn[0]) == 0
    assert float(((drawn - expected)[1:] ** 2 / expected[1:]).sum()) < 90  # 38 degrees of freedom: p > 1e-5
    torch.manual_seed(5)
    again = LinkNeighborLoader(data, [0], batch_size=160, neg_sampling=negatives, seed=1)
    assert_same(batch, next(iter(again)))
    timed = LinkNeighborLoader(
        data,
        [2],
        edge_label_time=data.edge_time + 20,
        time_attr="time",
        neg_sampling=NegativeSampling("triplet", 3),
        batch_size=160,
    )
    batch = next(iter(timed))
    latest = batch.seed_time.view(-1, 1)
    assert bool((batch.time[batch.dst_neg_index] <= latest).all())


def test_negatives_of_a_users_class_and_weights_that_change_are_drawn_as_they_say():
    class Sevens(NegativeSampling):
        def sample(self, num_samples, endpoint, num_nodes=None):
            return torch.full((num_samples,), 7) + torch.randint(2, (num_samples,))

    data = random_data(7)
    for workers in (0, 1):
        given = {"batch_size": 160, "neg_sampling": Sevens("triplet", 1), "num_workers": workers}
        one, other = (next(iter(LinkNeighborLoader(data, [1], **given))) for _ in range(2))
        assert {*one.n_id[one.dst_neg_index].tolist()} == {7, 8}
        assert torch.equal(one.dst_neg_index, other.dst_neg_index)  # seeded
    weights = torch.zeros(40)
    weights[3] = 1
    loader = LinkNeighborLoader(data, [1], neg_sampling=NegativeSampling("triplet", 1, dst_weight=weights))
    first = loader([0])
    weights[3], weights[4] = 0, 1
    second = loader([0])
    assert [int(each.n_id[each.dst_neg_index]) for each in (first, second)] == [3, 4]


def test_a_seed_of_the_sampler_draws_anew_in_each_epoch_of_pygs_workers():
    data = random_data(9)
    loader = pyg.loader.NodeLoader(data, NeighborSampler(data, [2, 2], seed=1), batch_size=10, num_workers=1)
    torch.manual_seed(0)
    first, second = list(loader), list(loader)
    assert any(not torch.equal(one.e_id, two.e_id) for one, two in zip(first, second, strict=True))


def test_given_labels_are_shifted_by_one_and_triplets_refuse_them():
    data = random_data(8)
    labels = torch.arange(160) % 3
    batch = next(iter(LinkNeighborLoader(data, [1], edge_label=labels, batch_size=9, neg_sampling_ratio=1.0)))
    assert batch.edge_label.tolist() == [*(labels[:9] + 1).tolist(), *[0] * 9]
    with pytest.raises(ValueError, match="'edge_label' needs to be undefined"):
        LinkNeighborLoader(data, [1], edge_label=labels, neg_sampling=NegativeSampling("triplet"))


# --- in PyG's own loaders


@pytest.mark.parametrize("workers", [0, 2])
def test_pygs_own_loaders_sample_by_ours_and_draw_from_torchs_generator(workers):
    data = random_data(9)
    torch.manual_seed(0)
    loader = pyg.loader.NodeLoader(data, NeighborSampler(data, [2, 2]), batch_size=10, num_workers=workers)
    first, second = list(loader), list(loader)
    assert len(first) == 4
    for batch in first:
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])
    assert any(not torch.equal(one.e_id, two.e_id) for one, two in zip(first, second, strict=True))
    torch.manual_seed(0)
    for one, two in zip(first, loader, strict=True):
        assert_same(one, two)
    links = pyg.loader.LinkLoader(data, NeighborSampler(data, [2]), batch_size=50, neg_sampling_ratio=1.0)
    for batch in links:
        count = len(batch.input_id)
        assert torch.equal(batch.n_id[batch.edge_label_index[:, :count]], data.edge_index[:, batch.input_id])


def test_numbers_of_neighbors_may_be_set_and_wrong_arguments_are_refused(refuses):
    data = random_data(10)
    sampler = NeighborSampler(data, [1], seed=0)
    sampler.num_neighbors = [2, 2]
    assert sampler.sample_from_nodes(NodeSamplerInput(None, torch.arange(5))).num_sampled_edges[1] > 0
    assert "num_neighbors=[2, 2]" in repr(sampler)
    sampler.disjoint, sampler.replace = True, True
    out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.arange(5)))
    assert out.batch[:5].tolist() == [0, 1, 2, 3, 4]
    assert out.num_sampled_edges[0] == 2 * int((torch.bincount(data.edge_index[1], minlength=40)[:5] > 0).sum())
    refuses(ValueError, NeighborSampler, data, [-2])
    refuses(ValueError, NeighborSampler, data, {("a", "b", "c"): [1]})
    for wrong in (
        {"weight_attr": "missing"},
        {"time_attr": "missing"},
        {"time_attr": "time", "weight_attr": "edge_weight", "temporal_strategy": "last"},
        {"subgraph_type": "other"},
        {"temporal_strategy": "other", "time_attr": "time"},
        {"time_window": 3},
        {"time_window": -1, "time_attr": "time"},
        {"seed": -1},
    ):
        refuses(ValueError, NeighborSampler, data, [1], **wrong)
    with pytest.warns(UserWarning, match="directed=False"):
        assert NeighborSampler(data, [1], directed=False).subgraph_type.value == "induced"
