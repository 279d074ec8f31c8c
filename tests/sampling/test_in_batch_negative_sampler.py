"""InBatchNegativeSampler: negatives are those of the twin, each other pair is equally likely, and what is refused."""

import pytest
import torch
import twin
import twin_links
from chi_square import p_value
from hypothesis import given
from hypothesis import strategies as st
from link_chains import PAIRS, links_of_types, pairs_chain
from pipelines import assert_no_bit_changes, first, items, small_graph
from strategies import rng_seeds
from typed_pipelines import typed_graph

import datapipes as dp


def contract_chain() -> dp.Stage:
    return pairs_chain().sample_in_batch_negative(2)


def contract_forms() -> tuple[dp.Stage, dp.Stage]:
    options = {"corrupt": "src", "form": "rows"}
    return pairs_chain().sample_in_batch_negative(2, **options), dp.InBatchNegativeSampler(pairs_chain(), 2, **options)


@given(st.data(), rng_seeds)
def test_negatives_are_those_of_the_twin(data, rng_seed):
    ends = st.integers(0, 9)
    links = st.lists(st.tuples(ends, ends), min_size=1, max_size=7)
    typed = data.draw(st.booleans())
    kinds = [("a", "r", "b"), ("a", "s", "b"), ("b", "r", "a")] if typed else [None]
    pairs = {kind: data.draw(links) for kind in kinds}
    corrupt, ratio = data.draw(st.sampled_from(["src", "dst"])), data.draw(st.sampled_from([1, 3, 0.5, 1.25]))
    sets = {kind: dp.ItemSet(torch.tensor(each)) for kind, each in pairs.items()}
    source = dp.ItemSampler(dp.HeteroItemSet(sets) if typed else sets[None], 40, seed=rng_seed)
    found = first(source.sample_in_batch_negative(ratio, corrupt=corrupt)).seeds
    key, slot = twin.hop_key(rng_seed, 0, 0, 1, 0, 0), 0
    for kind in sorted(pairs, key=str):
        column = ["src", "dst"].index(corrupt)
        expected = twin_links.in_batch_negatives(pairs[kind], ratio, key, column=column, first_slot=slot)
        slot += len(expected)
        assert (found[kind] if typed else found).tolist() == [*map(list, pairs[kind]), *expected]


def test_rows_have_the_nodes_of_the_negatives_of_pairs():
    rows = first(pairs_chain().sample_in_batch_negative(3, form="rows")).seeds
    pairs = first(pairs_chain().sample_in_batch_negative(3)).seeds
    assert torch.equal(rows[:, :2], pairs[:4])
    assert torch.equal(rows[:, 2:].flatten(), pairs[4:, 1])


def test_each_other_pair_is_equally_likely():
    pairs = torch.stack((torch.arange(4000), torch.arange(4000) % 5), 1)
    counts = torch.zeros(5, 5, dtype=torch.int64)
    for minibatch in dp.ItemSampler(dp.ItemSet(pairs), 5, seed=3).sample_in_batch_negative(4, form="rows"):
        for _, own, *taken in minibatch.seeds.tolist():
            counts[own] += torch.tensor(taken).bincount(minlength=5)
    assert counts.diagonal().tolist() == [0] * 5
    others = counts[~torch.eye(5, dtype=torch.bool)].double()
    assert 1e-4 < p_value(float(((others - 800) ** 2 / 800).sum()), 15) < 1 - 1e-4


def test_the_only_pair_of_a_minibatch_is_its_own_negative():
    *_, last = dp.ItemSampler(dp.ItemSet(PAIRS[:9]), 4, seed=1).sample_in_batch_negative(2)
    assert last.seeds.tolist() == [PAIRS[8].tolist()] * 3
    assert last.labels.tolist() == [True, False, False]


@pytest.mark.parametrize("typed", [False, True])
def test_no_number_of_workers_changes_a_bit(typed):
    def chain() -> dp.Stage:
        start, graph = (links_of_types(), typed_graph()) if typed else (pairs_chain(), small_graph())
        return start.sample_in_batch_negative(2).sample_neighbor(graph, [2])

    assert_no_bit_changes(chain)


def test_int32_seeds_stay_int32():
    assert first(dp.ItemSampler(dp.ItemSet(PAIRS.int()), 4).sample_in_batch_negative(2)).seeds.dtype == torch.int32


def test_what_an_in_batch_sampler_refuses(refuses):
    for options in ({"corrupt": "both"}, {"corrupt": "end"}, {"form": "row"}, {"negative_ratio": 0}):
        refuses(ValueError, dp.InBatchNegativeSampler, pairs_chain(), **{"negative_ratio": 1, **options})
    refuses(ValueError, dp.ItemSampler(dp.ItemSet(PAIRS), 1).sample_in_batch_negative, 1)
    refuses(ValueError, items().sample_in_batch_negative, 1)
    refuses(ValueError, pairs_chain(labels=torch.arange(22)).sample_in_batch_negative, 1)
    refuses(TypeError, pairs_chain().sample_in_batch_negative, small_graph())


class Own(dp.InBatchNegativeSampler):
    def sample(self, pairs, rng, edge_type, timestamps):
        return torch.stack((pairs[:, 0], torch.zeros_like(pairs[:, 1])), 1)


def test_a_subclass_may_draw_by_itself():
    made = first(Own(pairs_chain(), 1))
    assert not made.seeds[made.labels == 0, 1].any()
    assert made.seeds[made.labels == 1, 1].any()
