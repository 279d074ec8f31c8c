"""The contract of every stage: it pickles, restarts, resumes at every step to the bit, and closes twice.

The suite runs over each stage that the package registers, over the samplers and over the DataLoader. contract.py
says how a new stage joins.
"""

import copy
import json
import pickle
from functools import cache

import contract
import pytest
import torch
from amounts import amount
from contract import REGISTERED
from pipelines import as_it_is, assert_ended, digests, prefetch_threads

import datapipes as dp


@pytest.fixture(params=contract.CHAINS)
def build(request):
    """Build a chain that ends in the stage under test; each call builds a fresh one."""
    built = []

    def build_one() -> dp.Stage:
        built.append(contract.build(request.param))
        return built[-1]

    yield build_one
    for stage in built:
        stage.close()


@cache
def epochs_of(name: str) -> tuple[list[str], list[str]]:
    """Return the digests of epochs 0 and 1 of an uninterrupted run, which all tests of a chain share."""
    stage = contract.build(name)
    try:
        return digests(stage), digests(stage)
    finally:
        stage.close()


@pytest.fixture
def epochs(build, request):
    return [list(each) for each in epochs_of(request.node.callspec.params["build"])]


def test_the_builder_ends_in_the_stage_it_is_named_after(build, request):
    name = request.node.callspec.params["build"]
    if name in REGISTERED:
        assert type(build()) is REGISTERED[name]


@pytest.mark.parametrize("name", sorted(REGISTERED))
def test_the_functional_form_equals_the_constructor(name):
    functional_form, constructor = contract.forms(name)
    assert type(functional_form) is type(constructor) is REGISTERED[name]
    assert repr(functional_form) == repr(constructor)
    assert digests(functional_form) == digests(constructor)


def test_its_name_finds_exchanges_and_cuts_before_it_alone(build, request):
    name, chain = request.node.callspec.params["build"], build()
    if name not in REGISTERED:
        name = chain.name
    replaced = []
    new = chain.replaced(name, lambda old: replaced.append(old) or old)
    assert new is chain[name] is chain
    assert dp.stages.StageGraph(chain).find(name) == replaced == [chain]
    if chain.sources:
        dp.DataLoader(chain, cut=name).close()


def test_transform_chains_a_function_after_every_stage(build, epochs):
    stage = build().transform(as_it_is)
    assert type(stage) is dp.MiniBatchTransformer
    assert digests(stage) == epochs[0]


def test_an_epoch_is_not_empty_and_the_next_one_differs(epochs):
    first, second = epochs
    assert len(first) > 1
    assert len(set(first + second)) == len(first + second)


def test_it_pickles(build, epochs):
    assert digests(pickle.loads(pickle.dumps(build()))) == epochs[0]


def test_a_copy_starts_anew(build, epochs):
    running = build()
    next(iter(running))
    copied = copy.copy(running)
    assert type(copied) is type(running)
    assert digests(copied) == epochs[0]
    assert next(iter(running)).epoch == 1  # the copy did not touch the first


def test_it_pickles_while_it_runs(build, epochs):
    running = build()
    iterator = iter(running)
    next(iterator)
    assert digests(pickle.loads(pickle.dumps(running))) == epochs[0]
    assert digests(iterator) == epochs[0][1:]


def test_it_restarts(build, epochs):
    stage = build()
    assert [digests(stage), digests(stage)] == epochs
    stage.set_epoch(0)
    assert digests(stage) == epochs[0]
    for _ in stage:
        break
    stage.set_epoch(0)
    assert digests(stage) == epochs[0]


def test_it_resumes_at_every_step_to_the_bit(build, epochs):
    first, second = epochs
    running = build()
    states = [running.state_dict()]
    for _ in running:
        states.append(running.state_dict())
    for step, state in list(enumerate(states))[:: -amount(1, 2)]:  # also after the last step: an empty rest
        resumed = build()
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert digests(resumed) == first[step:]
        assert digests(resumed) == second
    assert len(states) == len(first) + 1


def test_loading_a_state_and_asking_for_it_gives_it_back(build):
    running = build()
    next(iter(running))
    state = running.state_dict()
    resumed = build()
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    iter(resumed)
    assert resumed.state_dict() == state


def test_a_state_is_a_value_of_its_own(build, epochs):
    stage = build()
    iterator = iter(stage)
    next(iterator)
    state = stage.state_dict()
    for value in state["fingerprint"].values():
        if isinstance(value, list):
            value.append(1)
    state["fingerprint"].clear()
    assert digests(iterator) == epochs[0][1:]
    assert stage.state_dict()["fingerprint"] == build().state_dict()["fingerprint"]


def test_a_state_after_the_end_gives_the_next_epoch(build, epochs):
    running = build()
    list(running)
    resumed = build()
    resumed.load_state_dict(running.state_dict())
    assert digests(resumed) == epochs[1]


def test_a_state_loaded_into_a_running_stage_ends_its_epoch(build, epochs):
    stage = build()
    start = stage.state_dict()
    iterator = iter(stage)
    next(iterator)
    stage.load_state_dict(start)
    with pytest.raises(RuntimeError, match="this iterator has ended"):
        next(iterator)
    assert digests(stage) == epochs[0]


def test_it_closes_twice_and_leaves_no_thread(build):
    before = prefetch_threads()
    stage = build()
    next(iter(stage))
    started = [thread for thread in prefetch_threads() if thread not in before]
    stage.close()
    stage.close()
    assert_ended(started)
    with pytest.raises(RuntimeError, match="is closed"):
        iter(stage)


def test_building_and_describing_it_starts_nothing(build):
    before = prefetch_threads()
    stage = build()
    assert type(stage).__name__ in repr(stage)
    assert bool(stage)
    assert prefetch_threads() == before


def test_iterating_leaves_its_sources_as_they_are(build):
    stage = build()
    walk = dp.stages.StageGraph(stage).walk()
    states = [other.state_dict() for other in walk[:-1]]
    list(stage)
    assert dp.stages.StageGraph(stage).walk() == walk
    assert [other.state_dict() for other in walk[:-1]] == states


def test_its_length_counts_its_minibatches_before_any_are_dropped(build, request, epochs):
    dropped = contract.dropped(request.node.callspec.params["build"])
    assert len(build()) == len(epochs[0]) + dropped
    assert len(iter(build())) == len(build())


def test_the_same_stage_over_its_own_sources_gives_the_same(build, epochs):
    stage = build()
    rebuilt = stage.with_sources(*stage.sources)
    assert rebuilt is not stage
    assert digests(rebuilt) == epochs[0]
    rebuilt.close()


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_the_number_of_threads_changes_nothing(build, epochs, threads):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert digests(build()) == epochs[0]
    finally:
        torch.set_num_threads(before)


def test_the_global_generators_are_neither_read_nor_changed(build, epochs):
    before = torch.get_rng_state()
    try:
        torch.manual_seed(123)
        drawn = torch.get_rng_state()
        assert digests(build()) == epochs[0]
        assert torch.equal(torch.get_rng_state(), drawn)
    finally:
        torch.set_rng_state(before)
