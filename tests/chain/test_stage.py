"""Stages: registration, chaining, rewriting, joins, errors on their way up, epochs, and torchdata around and inside."""

import functools
import pickle
import sys
from pathlib import Path

import pytest
import torch
import torchdata.nodes
import twin
import write_inits
import write_stub
from pipelines import (
    BATCH_SIZE,
    NUM_ITEMS,
    as_it_is,
    digests,
    fetched,
    items,
    keep_most,
    sampled,
    small_graph,
    small_store,
    start_at,
)

import datapipes as dp
from datapipes.chain import functional

CONTRACT_DROPS = 1


def contract_chain() -> dp.Stage:
    return sampled().transform(keep_most)


def contract_forms() -> tuple[dp.Stage, dp.Stage]:
    return sampled().transform(keep_most), dp.MiniBatchTransformer(sampled(), keep_most)


needs_notes = pytest.mark.skipif(sys.version_info < (3, 11), reason="errors carry notes from Python 3.11 on")


class Scaler(dp.MiniBatchTransformer):
    """A stage of a user: multiplies the labels."""

    def __init__(self, source: dp.Stage, factor: int = 2) -> None:
        super().__init__(source)
        self.factor = factor

    def transform(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        return minibatch.replace(labels=minibatch.labels * self.factor)


@pytest.fixture
def scratch_registry():
    """Forget what a test registers."""
    names, methods = functional.registered_stages(), set(vars(functional.FunctionalForms))  # those of annexes too
    yield
    functional._registry.clear()
    functional._registry.update(names)
    for name in set(vars(functional.FunctionalForms)) - methods:
        delattr(functional.FunctionalForms, name)


# --- register_stage


@pytest.mark.usefixtures("scratch_registry")
def test_what_register_stage_refuses(refuses):
    for name in ("", "two words", "1st", "a-b", "class", "_private"):
        refuses(ValueError, dp.register_stage, name)
    for name in ("sources", "close", "state_dict", "name", "replaced", "next", "reset"):  # attributes of a stage
        refuses(ValueError, dp.register_stage(name), type("Scaler", (Scaler,), {}))
    refuses(ValueError, dp.register_stage("sample_neighbor"), Scaler)
    assert functional.registered_stages()["sample_neighbor"] is dp.NeighborSampler


@pytest.mark.usefixtures("scratch_registry")
def test_a_registered_stage_chains_by_its_name_and_may_be_defined_again():
    dp.register_stage("scale")(Scaler)
    dp.register_stage("scale")(Scaler)  # as when a notebook cell runs twice
    stage = items().scale(factor=3)
    assert type(stage) is Scaler
    assert (stage.name, stage.factor) == ("scale", 3)
    assert digests(stage) == digests(Scaler(items(), 3))
    assert Scaler.__doc__ in functional.FunctionalForms.scale.__doc__


def test_a_function_that_a_class_would_not_call_is_refused(refuses):
    class Calls(dp.MiniBatchTransformer):
        def transform(self, minibatch):
            return self.fn(minibatch)

    assert digests(Calls(items(), as_it_is)) == digests(items())
    refuses(TypeError, dp.MiniBatchTransformer.__init__, Scaler(items()), items(), as_it_is)


def test_a_stage_without_a_name_is_called_by_its_class():
    assert Scaler(items()).name == "scaler"
    assert items().name == "item_sampler"
    assert items().transform(as_it_is).name == "transform"


def test_the_generated_files_are_current():
    for path, text in write_inits.inits().items():
        assert path.read_text(encoding="utf-8") == text, f"{path} is out of date: run `make stubs`"
    written = Path(functional.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    assert write_stub.stub_text() == written, "functional.pyi is out of date: run `make stubs`"


# --- transform


@pytest.mark.parametrize("build", [sampled, fetched, lambda: items().copy_to("cpu"), lambda: Scaler(items())])
def test_transform_is_also_the_method_that_takes_a_minibatch(build):
    stage = build()
    by_hand = [stage.transform(minibatch) for minibatch in stage.source]
    assert digests(by_hand) == digests(build())


def test_the_runtime_sets_epoch_and_index_and_gives_no_random_key_away():
    keys = []

    def forget(minibatch):
        keys.append(minibatch.rng)
        return dp.MiniBatch(seeds=minibatch.seeds)

    made = list(start_at(items().transform(forget), 3))
    assert [(minibatch.epoch, minibatch.index, minibatch.rng) for minibatch in made] == [(3, i, None) for i in range(6)]
    assert keys == [dp.stages.RngKey(seed=5, epoch=3, index=i, stage=1) for i in range(6)]


def test_none_drops_a_minibatch_and_its_index_stays_used():
    dropped = list(sampled().transform(keep_most))
    whole = list(sampled())
    assert [minibatch.index for minibatch in dropped] == [0, 1, 3, 4, 5]
    assert digests(dropped) == digests(whole[:2] + whole[3:])
    assert len(sampled().transform(keep_most)) == 6


def test_giving_anything_else_is_refused(refuses):
    for wrong in (3, "text", {"seeds": 1}, [dp.MiniBatch()]):
        refuses(TypeError, list, items().transform(lambda minibatch, wrong=wrong: wrong))


@needs_notes
@pytest.mark.parametrize(("source", "stage_number"), [(sampled, 2), (fetched, 3)])  # in the thread of either
@pytest.mark.parametrize(
    "wrap", [lambda chain: chain, dp.DataLoader, dp.Prefetcher], ids=["plain", "loader", "prefetch"]
)
def test_an_error_in_fn_says_stage_epoch_and_minibatch_once(wrap, source, stage_number):
    def fails(minibatch):
        if minibatch.index == 3:
            raise ZeroDivisionError("of the user")
        return minibatch

    running = start_at(wrap(source().transform(fails)), 2)
    assert [next(running).index for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError, match="of the user") as caught:
        next(running)
    assert caught.value.__notes__ == [f"in stage {stage_number} (transform), epoch 2, minibatch 3"]


def test_what_a_transformer_refuses(refuses):
    for fn in (3, "text"):
        refuses(TypeError, items().transform, fn)
    refuses(TypeError, dp.MiniBatchTransformer, items())  # neither fn nor a method
    for source in (None, 3, [1, 2], torch.utils.data.DataLoader([1])):
        refuses(TypeError, dp.MiniBatchTransformer, source, as_it_is)
    refuses(ValueError, dp.MiniBatchTransformer, [], as_it_is)
    refuses(ValueError, sampled().with_sources, items(), items())


# --- rebuilding a chain


def test_with_sources_builds_the_same_stage_over_other_inputs():
    old = sampled(fanouts=[2, 1], replace=True, frontier="new")
    new = old.with_sources(items(seed=6))
    assert new is not old
    assert (new.fanouts, new.replace, new.frontier, new.graph) == (old.fanouts, True, "new", old.graph)
    assert digests(new) == digests(sampled(items(seed=6), fanouts=[2, 1], replace=True, frontier="new"))
    joined = dp.MiniBatchTransformer([items(), items(seed=1)], fn=take_labels)
    assert digests(joined.with_sources(items(), items())) == digests(joined)


def test_what_was_passed_may_change_afterwards_without_changing_a_rebuilt_stage():
    fanouts, names = [3, 2], ["feat"]
    chain = sampled(fanouts=fanouts).fetch_feature(small_store(), names)
    expected = digests(chain)
    fanouts.append(1)
    names.clear()
    assert digests(chain.with_sources(chain.source.with_sources(items()))) == expected
    assert digests(dp.DataLoader(chain)) == expected


def test_replaced_gives_a_new_chain_and_leaves_the_old():
    old = fetched()
    stages, before = dp.stages.StageGraph(old).walk(), digests(old)
    new = old.replaced(
        dp.NeighborSampler, lambda stage: stage.source.sample_neighbor(stage.graph, [1], return_edge_ids=True)
    )
    assert new.source.fanouts == [1]
    assert new.source.source is old.source.source  # the stages before it are shared
    assert digests(new) == digests(fetched(sampled(fanouts=[1])))
    assert dp.stages.StageGraph(old).walk() == stages
    assert digests(start_at(old, 0)) == before


def test_replaced_reaches_every_stage_of_the_class_subclasses_too():
    chain = Scaler(items().transform(as_it_is)).transform(keep_most)
    seen = []

    def note(stage):
        seen.append(type(stage))
        return stage.with_sources(stage.source)

    new = chain.replaced(dp.MiniBatchTransformer, note)
    assert seen == [dp.MiniBatchTransformer, Scaler, dp.MiniBatchTransformer]
    assert all(
        a is not b
        for a, b in zip(dp.stages.StageGraph(new).walk()[1:], dp.stages.StageGraph(chain).walk()[1:], strict=True)
    )
    assert digests(new) == digests(chain)


def test_replaced_reaches_into_a_loader():
    loader = dp.DataLoader(fetched())
    new = loader.replaced(dp.ItemSampler, lambda old: items(seed=9))
    assert digests(new) == digests(fetched(sampled(items(seed=9))))


def test_asking_for_what_is_not_there_once_is_refused(refuses):
    chain = Scaler(sampled().transform(as_it_is))
    refuses(ValueError, chain.replaced, dp.CopyTo, as_it_is)
    refuses(ValueError, chain.replaced, "copy_to", as_it_is)
    refuses(TypeError, chain.replaced, 3, as_it_is)
    refuses(TypeError, chain.replaced, "copy", 5)
    refuses(TypeError, sampled().replaced, dp.NeighborSampler, lambda old: 3)
    for name in ("copy_to", dp.CopyTo):
        refuses(KeyError, lambda name=name: chain[name])
    refuses(TypeError, lambda: chain[:2])
    for name in ("transform", dp.MiniBatchTransformer):  # there are several
        refuses(ValueError, lambda name=name: chain[name])
    refuses(TypeError, dp.stages.StageGraph(chain).find, None)
    refuses(TypeError, dp.stages.StageGraph, [items()])


def test_a_name_finds_subclasses_that_have_none():
    chain = Scaler(sampled().transform(as_it_is))
    stages = dp.stages.StageGraph(chain).walk()
    assert [chain["item_sampler"], chain["sample_neighbor"], chain["scaler"]] == [stages[0], stages[1], stages[3]]
    assert chain[dp.NeighborSampler] is stages[1]
    assert dp.stages.StageGraph(chain).find("transform") == [stages[2], stages[3]]  # not the sampler, which has a name
    planned = dp.DataLoader(chain, num_workers=1, worker_method="thread", cut="scaler").rewritten()
    assert planned.names() == ["item_sampler", "sample_neighbor", "transform", "workers", "scaler", "prefetch"]


# --- StageGraph


def test_the_walk_gives_sources_first_and_each_stage_once():
    start = items()
    left, right = start.transform(as_it_is), start.transform(keep_most)
    root = dp.MiniBatchTransformer([left, right], take_labels)
    graph = dp.stages.StageGraph(root)
    assert graph.walk() == tuple(graph) == (start, left, right, root)
    assert [graph.ordinal(stage) for stage in graph] == [0, 1, 2, 3]
    assert graph.find(dp.MiniBatchTransformer) == [left, right, root]
    assert graph.seed_stage is start


def test_stages_that_only_carry_or_move_data_have_no_ordinal():
    chain = dp.DataLoader(items().prefetch().copy_to("cpu").transform(as_it_is).prefetch()).copy_to("cpu")
    graph = dp.stages.StageGraph(chain)
    names = ["item_sampler", "prefetch", "copy_to", "transform", "prefetch", "data_loader", "copy_to"]
    assert [stage.name for stage in graph] == names
    assert [graph.ordinal(stage) for stage in graph] == [0, None, None, 1, None, None, None]


def test_labels_count_the_stages_that_work_whether_they_draw_or_not():
    graph = dp.stages.StageGraph(fetched().prefetch().transform(as_it_is))
    labels = ["0 item_sampler", "1 sample_neighbor", "2 fetch_feature", "prefetch", "3 transform"]
    assert [graph.numbering.of(stage).label for stage in graph] == labels
    assert graph.numbering.labels() == [label for label in labels if label != "prefetch"]
    assert graph.numbering.of(graph.root).where == "stage 3 (transform)"


class DrawsAWord(dp.MiniBatchTransformer):
    """Keeps the minibatch's random key as its labels."""

    def transform(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        word = self.rng_of(minibatch).hop_key() % 2**62
        return minibatch.replace(labels=torch.full_like(minibatch.seeds, word))


@pytest.mark.parametrize("move", [fetched, lambda: sampled().copy_to("cpu"), lambda: fetched().copy_to("cpu")])
def test_a_stage_that_moves_data_changes_no_bit_behind_it_and_no_state(move):
    plain, moved = DrawsAWord(sampled()), DrawsAWord(move())
    for ours, theirs in zip(plain, moved, strict=True):
        assert torch.equal(ours.labels, theirs.labels)
        assert moved.state_dict() == plain.state_dict()


class DrawsByTorch(dp.MiniBatchTransformer):
    """Adds random numbers to the labels."""

    def transform(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        drawn = torch.rand(len(minibatch.seeds), generator=self.generator(minibatch))
        return minibatch.replace(labels=minibatch.labels + drawn)


def test_a_generator_of_torch_belongs_to_the_minibatch_and_the_stage():
    chain, labels = DrawsByTorch(DrawsByTorch(items())), [minibatch.labels for minibatch in items()]
    made = list(dp.DataLoader(chain, num_workers=2, worker_method="thread"))
    for minibatch in made:
        keys = [dp.stages.RngKey(seed=5, epoch=0, index=minibatch.index, stage=stage).hop_key() for stage in (1, 2)]
        numbers = [torch.rand(len(minibatch.seeds), generator=torch.Generator().manual_seed(key)) for key in keys]
        assert torch.equal(minibatch.labels, labels[minibatch.index] + numbers[0] + numbers[1])
    by_hand = [chain.transform(chain.source.transform(minibatch)) for minibatch in items()]
    assert digests(by_hand) == digests(made)


def test_a_stage_that_says_it_does_not_draw_gets_no_random_key(refuses):
    class SaysItDoesNot(DrawsAWord):
        draws = False

    refuses(ValueError, list, SaysItDoesNot(sampled()))


def test_replace_rebuilds_what_reads_the_stage_and_shares_the_rest():
    chain = fetched()
    graph = dp.stages.StageGraph(chain)
    new = graph.replace(chain.source, sampled(chain.source.source, fanouts=[1]))
    assert new.root is not chain
    assert new.root.source.source is chain.source.source
    assert graph.root is chain
    assert chain.source.fanouts == [3, 2]


def test_replace_each_returns_a_graph_and_leaves_this_one():
    graph = dp.stages.StageGraph(fetched())
    new = graph.replace_each(dp.NeighborSampler, lambda old: dp.Prefetcher(old))
    assert [stage.name for stage in new] == ["item_sampler", "sample_neighbor", "prefetch", "fetch_feature"]
    assert [stage.name for stage in graph] == ["item_sampler", "sample_neighbor", "fetch_feature"]


# --- several sources


def take_labels(first: dp.MiniBatch, second: dp.MiniBatch) -> dp.MiniBatch:
    """The second source's seeds become the labels."""
    assert (first.epoch, first.index) == (second.epoch, second.index)
    return first.replace(labels=second.seeds)


def test_a_stage_that_two_others_read_runs_once_a_minibatch():
    calls = []

    def count(minibatch):
        calls.append(minibatch.index)
        return minibatch

    shared = items().transform(count)
    joined = dp.MiniBatchTransformer([shared.transform(as_it_is), shared.transform(as_it_is)], take_labels)
    for minibatch in joined:
        assert torch.equal(minibatch.labels, minibatch.seeds)
    assert calls == list(range(6))


def test_a_minibatch_that_one_source_drops_is_dropped():
    joined = dp.MiniBatchTransformer([items(), items().transform(keep_most)], take_labels)
    assert [minibatch.index for minibatch in joined] == [0, 1, 3, 4, 5]


def test_the_first_item_sampler_gives_the_seed_and_each_its_own_shuffle():
    ids = dp.ItemSet(NUM_ITEMS)
    first, second = (dp.ItemSampler(ids, BATCH_SIZE, shuffle=True, seed=seed) for seed in (5, 6))
    made = list(start_at(dp.MiniBatchTransformer([first, second], take_labels), 1))
    for stage, field in ((0, "seeds"), (1, "labels")):
        order = torch.cat([getattr(minibatch, field) for minibatch in made]).tolist()
        assert order == twin.permutation(NUM_ITEMS, twin.hop_key(5, 1, 0, stage, 0, 0))


class Doubled(dp.MiniBatchTransformer):
    def transform(self, minibatch):
        return minibatch


class Awaits(dp.MiniBatchTransformer):
    async def transform_async(self, minibatch):
        return minibatch


def test_which_sources_are_refused(refuses):
    join = functools.partial(dp.MiniBatchTransformer, fn=take_labels)
    refuses(ValueError, join, [items(), items(batch_size=2)])  # of unequal length
    refuses(ValueError, join, [items().prefetch(), items()])
    carried = items().prefetch()
    refuses(ValueError, join, [carried.transform(as_it_is), carried.transform(as_it_is)])
    refuses(ValueError, getattr, join([items(), items()]), "source")
    of_one = [
        lambda sources: dp.NeighborSampler(sources, small_graph(), [2]),
        lambda sources: dp.UniformNegativeSampler(sources, small_graph(), 1),
        lambda sources: dp.FeatureFetcher(sources, small_store(), ["feat"]),
        lambda sources: dp.MiniBatchTransformer(sources, as_it_is),
        *(dp.SeedEdgeExcluder, Doubled, Awaits),
    ]
    for stage in of_one:
        refuses(TypeError, stage, [items(), items()])


def test_a_prefetcher_changes_nothing_wherever_it_stands():
    expected = digests(fetched().transform(keep_most).copy_to("cpu"))
    for place in range(5):
        chain: dp.Stage = items()
        steps = [sampled, fetched, lambda stage: stage.transform(keep_most), lambda stage: stage.copy_to("cpu")]
        steps.insert(place, dp.Prefetcher)
        for step in steps:
            chain = step(chain)
        assert digests(chain) == expected


# --- epochs


def test_epochs_count_up_also_after_a_break_and_set_epoch_sets_the_next():
    stage = sampled()
    assert [next(iter(stage)).epoch for _ in range(3)] == [0, 1, 2]
    stage.set_epoch(7)
    assert [next(iter(stage)).epoch for _ in range(2)] == [7, 8]


def test_an_epoch_outside_its_range_is_refused(refuses):
    for epoch in (-1, 2**32):
        refuses(ValueError, items().set_epoch, epoch)
    for epoch in (True, 1.0):
        refuses(TypeError, items().set_epoch, epoch)


def test_an_older_iterator_ends_with_an_error_when_a_new_one_begins(refuses):
    stage = sampled()
    old = iter(stage)
    next(old)
    new = iter(stage)
    refuses(RuntimeError, next, old)
    assert next(new).epoch == 1


def test_a_closed_stage_refuses_to_go_on_and_to_start(refuses):
    with sampled() as stage:
        running = iter(stage)
        next(running)
    stage.close()
    refuses(RuntimeError, next, running)
    refuses(RuntimeError, iter, stage)


# --- FromNode: a torchdata node in a chain

NODES = {
    "mapper": lambda chain: torchdata.nodes.Mapper(chain, as_it_is),
    "prefetcher": lambda chain: torchdata.nodes.Prefetcher(chain, prefetch_factor=2),
}


@pytest.fixture(params=sorted(NODES))
def from_node(request):
    """Build a chain over a torchdata node over a chain."""
    return lambda: dp.FromNode(NODES[request.param](sampled())).fetch_feature(small_store(), ["feat"], ["weight"])


def test_a_torchdata_node_starts_a_chain(from_node):
    stage, expected = from_node(), fetched()
    assert [digests(stage), digests(stage)] == [digests(expected), digests(expected)]
    assert digests(dp.DataLoader(from_node())) == digests(fetched())


def test_a_chain_over_a_node_resumes_at_every_step(from_node):
    whole = fetched()
    first, second = digests(whole), digests(whole)
    running = from_node()
    for step, _ in enumerate(running, start=1):
        resumed = from_node()
        resumed.load_state_dict(running.state_dict())
        assert digests(resumed) == first[step:]
        assert digests(resumed) == second


def test_asking_for_the_state_of_a_chain_over_a_node_does_not_move_it(from_node):
    stage, whole = from_node(), fetched()
    first, second = digests(whole), digests(whole)
    stage.state_dict()
    assert digests(stage) == first
    stage.state_dict()
    assert digests(stage) == second


def test_the_loader_does_not_read_ahead_of_a_node():
    assert dp.DataLoader(dp.FromNode(NODES["mapper"](sampled()))).rewritten().find(dp.Prefetcher) == []


def test_what_a_chain_over_a_node_refuses(from_node, refuses):
    refuses(TypeError, pickle.dumps, from_node())
    refuses(ValueError, from_node().set_epoch, 3)
    refuses(TypeError, len, from_node())
    refuses(ValueError, from_node().prefetch)


# --- StopIteration from a stage is an error, not the end of the epoch


@pytest.mark.parametrize(
    "wrap",
    [
        lambda chain, fn: chain.transform(fn),
        lambda chain, fn: dp.DataLoader(chain.transform(fn)),
        lambda chain, fn: dp.DataLoader(chain.transform(fn), overlap=False),
        lambda chain, fn: dp.DataLoader(chain).transform(fn),
        lambda chain, fn: chain.prefetch().transform(fn),
    ],
    ids=["chain", "loader", "loader_without_overlap", "after_a_loader", "after_a_prefetcher"],
)
def test_a_stage_that_raises_stop_iteration_does_not_end_the_epoch(wrap):
    def run_dry(minibatch):
        return next(iter(())) if minibatch.index == 2 else minibatch

    stage = wrap(items(), run_dry)
    with pytest.raises(RuntimeError, match=r"transform: its function raised StopIteration at epoch 0, minibatch 2"):
        list(stage)
    assert (stage.state_dict()["epoch"], stage.state_dict()["next_index"]) == (0, 2)


def test_the_mark_of_an_end_changes_nothing():
    pipe = sampled()
    assert pipe.mark_end() is pipe
