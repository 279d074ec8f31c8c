"""Seeds of several node types in one loader: what batches hold, ways to load them, and what is refused."""

import copy

import pytest
import torch
from pyg_cases import (
    CITES,
    WRITES,
    WRITTEN,
    HeteroData,
    OwnSampler,
    all_in_edges,
    digests,
    edges_of,
    merged,
    random_data,
    random_hetero,
    stores_of,
)

from datapipes.pyg.loader import LinkNeighborLoader, NeighborLoader, NodeLoader
from datapipes.pyg.sampler import NeighborSampler

DATA = random_hetero(1)
MASK = DATA["paper"].train_mask
PAPERS, AUTHORS = MASK.nonzero().flatten(), torch.tensor([9, 4, 4, 0, 17])
SEEDS = {"paper": PAPERS, "author": AUTHORS}
TIMES = {"paper": torch.arange(len(PAPERS)) + 5, "author": torch.arange(5) + 20}


def loader_of(data=DATA, seeds=SEEDS, num_neighbors=(3, 2), **options):
    return NeighborLoader(data, [*num_neighbors], seeds, **{"batch_size": 6, "shuffle": True, "seed": 4, **options})


def test_a_batch_has_seeds_of_all_types_and_tells_for_each_which():
    seen = {node_type: [] for node_type in SEEDS}
    batches = [*loader_of()]
    for batch in batches:
        assert isinstance(batch, HeteroData)
        assert sum(batch[node_type].batch_size for node_type in SEEDS) in (6, (len(PAPERS) + 5) % 6)
        for node_type, ids in SEEDS.items():
            store = batch[node_type]
            assert len(store.input_id) == store.batch_size
            assert torch.equal(store.n_id[: store.batch_size], ids[store.input_id])
            assert torch.equal(store.x, DATA[node_type].x[store.n_id])
            seen[node_type] += store.input_id.tolist()
        assert "input_id" not in batch["venue"]
    assert {node_type: sorted(places) for node_type, places in seen.items()} == {
        node_type: [*range(len(ids))] for node_type, ids in SEEDS.items()
    }
    assert any(all(batch[node_type].batch_size > 0 for node_type in SEEDS) for batch in batches)  # drawn together


def test_all_in_edges_are_those_of_the_plain_definition():
    columns = {edge_type: DATA[edge_type].edge_index for edge_type in DATA.edge_types}
    for batch in loader_of(num_neighbors=(-1, -1)):
        seeds = {node_type: batch[node_type].n_id[: batch[node_type].batch_size].tolist() for node_type in SEEDS}
        nodes, edges = all_in_edges(columns, {**seeds, "venue": []}, 2)
        for node_type in ("paper", "author"):
            assert sorted(set(batch[node_type].n_id.tolist())) == sorted(nodes[node_type])
        for edge_type in (CITES, WRITES, WRITTEN):
            assert sorted(set(edges_of(batch, edge_type))) == edges[edge_type]


def test_places_go_on_from_one_type_to_the_next_and_ids_of_seeds_are_masks_ids_or_the_users_own():
    loader = loader_of(seeds={"author": AUTHORS, "paper": MASK}, shuffle=False, batch_size=4)
    first, second = loader([0, 1, 5]), loader([-1, 4])
    assert first["author"].input_id.tolist() == [0, 1]
    assert first["paper"].input_id.tolist() == PAPERS[:1].tolist()  # of a mask the ids of the nodes, as PyG has it
    assert (second["author"].input_id.tolist(), second["paper"].input_id.tolist()) == ([4], PAPERS[-1:].tolist())
    batch = next(iter(loader))
    assert (batch["author"].batch_size, batch["paper"].batch_size) == (4, 0)
    everything = loader_of(seeds={"paper": None, "venue": None})
    assert len(everything.dataset) == 33
    named = loader_of(input_id={"paper": PAPERS + 100, "author": AUTHORS + 50})
    for batch in named:
        for node_type, offset in (("paper", 100), ("author", 50)):
            store = batch[node_type]
            assert torch.equal(store.input_id, store.n_id[: store.batch_size] + offset)
    with pytest.raises(IndexError, match="index"):
        loader([99])


@pytest.mark.parametrize("options", [{}, {"disjoint": True}, {"time_attr": "time"}], ids=["plain", "trees", "times"])
def test_a_dict_of_one_type_gives_the_batches_of_the_pair(options):
    expected = digests(loader_of(seeds=("paper", PAPERS), **options))
    assert digests(loader_of(seeds={"paper": PAPERS}, **options)) == expected


WAYS = [
    {"num_workers": 1},
    {"num_workers": 2, "fetch_ahead": False},
    {"num_workers": 1, "filter_per_worker": True},
    {"num_workers": 1, "worker_method": "thread"},
    {"fetch_ahead": True},
    {"transform": copy.copy},
]


@pytest.mark.parametrize("options", [{}, {"time_attr": "time", "input_time": TIMES}], ids=["plain", "times"])
def test_batches_do_not_depend_on_how_they_are_loaded(options):
    expected = digests(loader_of(**options))
    for way in WAYS:
        assert digests(loader_of(**options, **way)) == expected


def test_a_pair_of_stores_gives_the_same_nodes_and_edges():
    plain = merged(DATA)
    for one, other in zip(loader_of(plain), loader_of(stores_of(plain, "coo")), strict=True):
        for node_type in SEEDS:
            for name in ("n_id", "input_id", "x"):
                assert torch.equal(one[node_type][name], other[node_type][name])
            assert one[node_type].batch_size == other[node_type].batch_size
        for edge_type in (CITES, WRITES, WRITTEN):
            assert edges_of(one, edge_type) == edges_of(other, edge_type)


def test_trees_are_counted_over_the_types_in_sorted_order_and_times_bound_them():
    for batch in loader_of(time_attr="time", input_time=TIMES, shuffle=True):
        times = []
        for node_type in sorted(SEEDS):
            store = batch[node_type]
            assert torch.equal(store.batch[: store.batch_size], torch.arange(store.batch_size) + len(times))
            assert torch.equal(store.seed_time, TIMES[node_type][store.input_id])
            times += store.seed_time.tolist()
        times = torch.tensor(times)
        for node_type in SEEDS:
            store = batch[node_type]
            later = slice(store.batch_size, None)
            assert (store.time[later] <= times[store.batch[later]]).all()
        for edge_type in (CITES, WRITES, WRITTEN):
            src, dst = batch[edge_type[0]], batch[edge_type[2]]
            assert torch.equal(src.batch[batch[edge_type].edge_index[0]], dst.batch[batch[edge_type].edge_index[1]])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_epoch_is_resumed_and_other_seeds_are_refused(num_workers):
    loader = loader_of(num_workers=num_workers)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    again = loader_of(num_workers=1 - num_workers)
    again.load_state_dict(state)
    assert digests(again) == digests(batches)
    for seeds in ({"author": AUTHORS, "paper": PAPERS}, {**SEEDS, "author": AUTHORS + 1}):
        with pytest.raises(ValueError, match="input_digest"):
            loader_of(seeds=seeds).load_state_dict(state)


OF_ONE_TYPE = OwnSampler(lambda inputs: pytest.fail("it is not called"))


class Overriding(NeighborSampler):
    def sample_from_nodes(self, inputs, *, rng=None):
        return super().sample_from_nodes(inputs, rng=rng)


def test_other_seeds_are_refused(refuses):
    refuses(ValueError, loader_of, seeds={})
    refuses(ValueError, loader_of, seeds={"papers": PAPERS})
    refuses(TypeError, loader_of, seeds={"paper": [0.5]})
    refuses(ValueError, loader_of, seeds={"paper": MASK[:4], "author": None})
    refuses(TypeError, loader_of, input_time=TIMES["paper"], time_attr="time")
    refuses(TypeError, loader_of, input_time={"paper": TIMES["paper"]}, time_attr="time")
    refuses(ValueError, loader_of, input_time={**TIMES, "author": [1]}, time_attr="time")
    refuses(TypeError, loader_of, input_time={**TIMES, "author": None}, time_attr="time")
    refuses(TypeError, loader_of, input_id=PAPERS)
    refuses(ValueError, loader_of, input_id={**SEEDS, "author": [1]})
    refuses(TypeError, loader_of, random_data(1))
    for sampler in (OF_ONE_TYPE, Overriding(DATA, [2])):
        refuses(TypeError, NodeLoader, DATA, sampler, SEEDS)
    refuses(TypeError, LinkNeighborLoader, DATA, [2], {CITES: None})
    loader = loader_of()
    loader.node_sampler = OF_ONE_TYPE
    with pytest.raises(TypeError, match="OwnSampler samples for seeds of one type"):  # with a note, from Python 3.11 on
        next(iter(loader))
    loader = loader_of(seeds={"paper": PAPERS[:6], "author": AUTHORS})
    assert loader([-11])["paper"].input_id.tolist() == [0]  # as Python counts
    for place in (-12, 11):  # is named as it was given
        refuses(IndexError, loader, [place])
