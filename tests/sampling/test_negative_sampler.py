"""NegativeSampler: how negatives stand in a minibatch, what a user's own sampler may return, what is refused."""

import math

import pytest
import torch
from link_chains import PAIRS, links_of_types, next_destination, next_source, pairs_chain
from pipelines import assert_no_bit_changes, first, items, refused, small_graph
from typed_pipelines import CITES, WRITES, typed_graph, typed_items

import datapipes as dp


class Swapped(dp.NegativeSampler):
    """A negative sampler of a user: the reverse of each positive."""

    def sample(self, pairs, rng, edge_type, timestamps):
        return pairs.flip(1)


def contract_chain() -> dp.Stage:
    return pairs_chain().sample_negative(2, next_destination)


def contract_forms() -> tuple[dp.Stage, dp.Stage]:
    return contract_chain(), dp.NegativeSampler(pairs_chain(), 2, next_destination)


def test_the_form_pairs_appends_the_negatives_row_by_row():
    times, own = torch.arange(22), torch.rand(22, 3)
    plain = first(pairs_chain(timestamps=times, own=own))
    found = first(pairs_chain(timestamps=times, own=own).sample_negative(2, next_destination))
    of = [0, 0, 1, 1, 2, 2, 3, 3]
    assert torch.equal(found.seeds[:4], plain.seeds)
    assert torch.equal(found.seeds[4:], next_destination(plain.seeds[of], None, None, None))
    assert found.labels.dtype == torch.bool
    assert found.labels.tolist() == [True] * 4 + [False] * 8
    assert found.indexes.tolist() == [0, 1, 2, 3, *of]
    assert torch.equal(found.timestamps, plain.timestamps[[0, 1, 2, 3, *of]])
    assert torch.equal(found.extra["own"], plain.extra["own"][[0, 1, 2, 3, *of]])


def test_indexes_of_the_item_set_are_those_of_the_positive():
    queries = torch.arange(22) * 100
    plain = first(pairs_chain(indexes=queries))
    found = first(pairs_chain(indexes=queries).sample_negative(1, next_destination))
    assert torch.equal(found.indexes, plain.indexes.repeat(2))


@pytest.mark.parametrize(("ratio", "number"), [(0.5, 2), (0.3, 2), (1.5, 6), (2.0, 8), (0.01, 1)])
def test_a_ratio_with_a_fraction_gives_the_next_larger_number(ratio, number):
    found = first(pairs_chain().sample_negative(ratio, next_destination))
    assert found.indexes.tolist() == [0, 1, 2, 3, *(j * 4 // number for j in range(number))]


def test_the_form_rows_has_the_nodes_of_the_negatives_behind_the_pair():
    labels = torch.arange(22)
    plain = first(pairs_chain(labels=labels))
    found = first(pairs_chain(labels=labels).sample_negative(3, next_destination, form="rows"))
    nodes = (plain.seeds[:, 1:] + 1) % 40
    assert torch.equal(found.seeds, torch.cat((plain.seeds, nodes, nodes, nodes), 1))
    assert torch.equal(found.labels, plain.labels)
    assert found.indexes is None
    sources = first(pairs_chain().sample_negative(1, next_source, corrupt="src", form="rows"))
    assert torch.equal(sources.seeds[:, 2], (sources.seeds[:, 0] + 1) % 40)


def test_each_edge_type_has_negatives_of_its_own():
    found = first(Swapped(links_of_types(), 2, corrupt="both"))
    for of, seeds in found.seeds.items():
        count = len(seeds) // 3
        assert torch.equal(seeds[count:], seeds[:count].repeat_interleave(2, 0).flip(1))
        assert found.labels[of].tolist() == [True] * count + [False] * (2 * count)
        assert found.indexes[of].tolist() == [*range(count), *(j // 2 for j in range(2 * count))]


def test_a_sampler_is_told_type_key_and_times():
    told = []

    def told_all(pairs, rng, edge_type, timestamps):
        told.append((edge_type, rng.stage, timestamps))
        return pairs

    first(pairs_chain(timestamps=torch.arange(22)).sample_negative(1, told_all))
    first(links_of_types().sample_negative(1, told_all))
    assert told[0][:2] == (None, 1)
    assert told[0][2].dtype == torch.int64
    assert [each[0] for each in told[1:]] == sorted(each[0] for each in told[1:])
    assert all(each[2] is None for each in told[1:])


def test_threads_and_workers_change_no_bit():
    assert_no_bit_changes(lambda: Swapped(pairs_chain(), 2, corrupt="both").sample_neighbor(small_graph(), [3]))


# --- rows with more than two columns, with types


def test_rows_of_types_are_numbered_column_0_first_and_row_by_row():
    graph = typed_graph()
    for corrupt, columns in (
        ("dst", {"author": [0], "paper": [1, 2, 3]}),
        ("src", {"author": [0, 2, 3], "paper": [1]}),
    ):
        pairs = dp.ItemSet(torch.tensor([[3, 1], [0, 1], [3, 4]]))
        pipe = dp.ItemSampler(dp.HeteroItemSet({WRITES: pairs}), 3)
        more = [[2, 2], [1, 0], [5, 3]]

        def given(pairs, rng, edge_type, timestamps, corrupt=corrupt, more=more):
            found = pairs.clone()
            found[:, 0 if corrupt == "src" else 1] = torch.tensor(more).flatten()
            return found

        rows = pipe.sample_negative(2, given, corrupt=corrupt, form="rows")
        for sampled in (rows.sample_neighbor(graph, [1]), rows.sample_neighbor(graph, [1], disjoint=True)):
            found = first(sampled)
            seeds, local = found.seeds[WRITES], found.compacted_seeds[WRITES]
            assert seeds.shape == local.shape == (3, 4)
            for of, some in columns.items():
                assert torch.equal(found.input_nodes[of][local[:, some]], seeds[:, some])
                ids = seeds[:, some].flatten()
                if found.batch is None:
                    assert found.input_nodes[of][: len(ids.unique())].tolist() == list(dict.fromkeys(ids.tolist()))
                else:
                    assert torch.equal(local[:, some].flatten(), torch.arange(len(ids)))
                    assert found.batch[of][: len(ids)].tolist() == [row for row in range(3) for _ in some]


def test_rows_of_one_type_are_numbered_row_by_row():
    rows = torch.tensor([[2, 0, 2], [4, 1, 0], [1, 1, 3]])
    items_of = dp.HeteroItemSet({CITES: dp.ItemSet(rows)})
    found = first(dp.ItemSampler(items_of, 2).sample_neighbor(typed_graph(), [1], disjoint=True))
    assert found.compacted_seeds[CITES].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found.batch["paper"][:6].tolist() == [0, 0, 0, 1, 1, 1]


# --- what is refused


class Joined(dp.MiniBatchTransformer):
    def transform(self, minibatch, other):
        return minibatch


def rows_of(corrupt: str) -> dp.Stage:
    return links_of_types().sample_uniform_negative(typed_graph(), 2, form="rows", corrupt=corrupt)


@pytest.mark.parametrize("corrupt", ["src", "dst"])
def test_rows_behind_a_join_are_numbered_as_in_a_line(corrupt):
    line = first(rows_of(corrupt).sample_neighbor(typed_graph(), [2]))
    behind = first(Joined([rows_of(corrupt), rows_of(corrupt)]).sample_neighbor(typed_graph(), [2]))
    for found in (line, behind):
        for of, local in found.compacted_seeds.items():
            nodes = found.input_nodes[of[0] if corrupt == "src" else of[2]]
            assert torch.equal(nodes[local[:, 2:].long()], found.seeds[of][:, 2:])


def test_what_a_negative_sampler_refuses(refuses):
    def sampler(ratio: object = 1, fn: object = next_destination, **options: object) -> dp.Stage:
        return pairs_chain().sample_negative(ratio, fn, **options)

    for ratio in (0, -1, 0.0, float("nan"), float("inf"), 2.0**31):
        refuses(ValueError, sampler, ratio)
    for ratio in ("2", None, True, torch.tensor(2)):
        refuses(TypeError, sampler, ratio)
    refuses(ValueError, sampler, 1.5, form="rows")
    refuses(ValueError, sampler, corrupt="both", form="rows")
    refuses(ValueError, sampler, corrupt="head")
    refuses(ValueError, sampler, form="head")
    refuses(TypeError, sampler, fn=3)
    refuses(TypeError, pairs_chain().sample_negative, 1)
    refuses(ValueError, Joined([rows_of("src"), rows_of("dst")]).sample_neighbor, typed_graph(), [2])
    for wrong in (
        sampler(2),
        sampler(2, form="rows"),
        pairs_chain(labels=torch.arange(22)),
        dp.ItemSampler(dp.ItemSet(torch.arange(22)), 4),
        dp.ItemSampler(dp.ItemSet(PAIRS.repeat(1, 2)[:, :3].contiguous()), 4),
        typed_items(),
        pairs_chain().sample_neighbor(small_graph(), [2]),
    ):
        refuses(ValueError, wrong.sample_negative, 1, next_destination)


def test_what_minibatches_and_negatives_are_refused(refuses):
    for chain, change in (
        (pairs_chain(), {"labels": torch.ones(4)}),
        (items(), {"labels": None}),
        (pairs_chain(), {"input_nodes": torch.arange(3)}),
    ):
        changed = chain.transform(lambda minibatch, change=change: minibatch.replace(**change))
        refuses(ValueError, first, changed.sample_negative(1, next_destination))
    for form in ("pairs", "rows"):  # the end that is kept is changed
        refuses(ValueError, first, Swapped(pairs_chain(), 1, form=form))
        refuses(ValueError, first, pairs_chain().sample_negative(1, next_destination, form=form, corrupt="src"))
    refuses(ValueError, first, pairs_chain().sample_negative(1, lambda *_: None))
    refuses(ValueError, first, pairs_chain().sample_negative(1, lambda *_: torch.zeros(3, 2, dtype=torch.int64)))
    refuses(TypeError, first, pairs_chain().sample_negative(1, lambda *_: torch.zeros(4, 2)))


def test_a_number_that_exceeds_the_memory():
    with refused(MemoryError, stage="sample_negative", found="negatives needs", allowed="are left by"):
        first(pairs_chain().sample_negative(2**31 - 1, next_destination))


def test_times_that_nobody_reads_may_be_floats():
    found = first(pairs_chain(timestamps=torch.rand(22)).sample_uniform_negative(small_graph(), 2))
    assert found.timestamps.shape == (12,)


@pytest.mark.parametrize("ratio", [2, 1.5])
def test_negatives_belong_to_their_positives_whatever_was_asked_before(ratio):
    pairs = dp.ItemSampler(dp.ItemSet(PAIRS.repeat(6, 1)), 8)
    some = pairs.transform(lambda minibatch: minibatch.replace(seeds=minibatch.seeds[: 1 + minibatch.index % 7]))
    for minibatch in some.sample_negative(ratio, next_destination):
        count = 1 + minibatch.index % 7
        number = math.ceil(ratio * count)
        assert minibatch.indexes.tolist() == [*range(count), *(j * count // number for j in range(number))]


# --- GraphBolt's and PyG's forms

# What UniformNegativeSampler of GraphBolt 2.1.0 gave for PAIRS_THERE, negative_ratio 2, without and with types.
PAIRS_THERE = torch.tensor([[1, 0], [2, 0], [0, 1], [4, 2]])
SOURCES_THERE = [1, 2, 0, 4, 1, 1, 2, 2, 0, 0, 4, 4]
LABELS_THERE = [True] * 4 + [False] * 8
INDEXES_THERE = [0, 1, 2, 3, 0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("typed", [False, True])
def test_the_form_pairs_is_that_of_graphbolt(typed):
    items = dp.ItemSet(PAIRS_THERE, names="seeds")
    graph, items = (typed_graph(), dp.HeteroItemSet({WRITES: items})) if typed else (small_graph(), items)
    ours = first(dp.ItemSampler(items, 4).sample_uniform_negative(graph, 2))
    seeds, labels, indexes = (each[WRITES] if typed else each for each in (ours.seeds, ours.labels, ours.indexes))
    assert (seeds.dtype, labels.dtype, indexes.dtype) == (torch.int64, torch.bool, torch.int64)
    assert torch.equal(seeds[:4], PAIRS_THERE)
    assert (seeds[:, 0].tolist(), labels.tolist(), indexes.tolist()) == (SOURCES_THERE, LABELS_THERE, INDEXES_THERE)


@pytest.mark.parametrize(("mode", "amount"), [("binary", 2), ("binary", 1.5), ("triplet", 3)])
def test_the_forms_are_those_of_pygs_binary_and_triplet(mode, amount):
    sampler = pytest.importorskip("torch_geometric.sampler")
    from torch_geometric.sampler.neighbor_sampler import edge_sample

    torch.manual_seed(1)
    pairs = PAIRS[:4]
    given = sampler.EdgeSamplerInput(torch.arange(4), pairs[:, 0], pairs[:, 1])
    negatives = sampler.NegativeSampling(mode, amount)
    nodes = []

    def sample(seeds, times):
        nodes.append(seeds)
        return sampler.SamplerOutput(seeds, seeds, seeds, None)

    found = edge_sample(given, sample, 40, False, neg_sampling=negatives).metadata
    form, corrupt = ("pairs", "both") if mode == "binary" else ("rows", "dst")
    pipe = dp.ItemSampler(dp.ItemSet(pairs), 4).sample_uniform_negative(
        small_graph(), amount, corrupt=corrupt, form=form
    )
    ours = first(pipe)
    if mode == "binary":
        _, index, label, _ = found
        theirs = nodes[0][index].t()
        assert theirs.shape == ours.seeds.shape
        assert torch.equal(theirs[:4], ours.seeds[:4])
        assert torch.equal(label, ours.labels.float())
    else:
        _, src, positive, negative, _ = found
        theirs = torch.cat((nodes[0][src][:, None], nodes[0][positive][:, None], nodes[0][negative]), 1)
        assert theirs.shape == ours.seeds.shape
        assert torch.equal(theirs[:, :2], ours.seeds[:, :2])
