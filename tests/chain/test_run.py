"""Epochs: one counts from its first minibatch; what names another position before that; epochs that give nothing."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial

import pytest
import torchdata.nodes
from pipelines import BOUND_S, as_it_is, digests, fetched, items, keep_most, sampled, start_at, wait_until
from scripts import run_script

import datapipes as dp
from datapipes.chain.run import Run

WRAPS = {
    "plain": lambda chain: chain,
    "data_loader": dp.DataLoader,
    "threads": partial(dp.DataLoader, num_workers=2, worker_method="thread"),
    "processes": partial(dp.DataLoader, num_workers=2, multiprocessing_context="fork"),
}


@pytest.fixture(params=WRAPS)
def wrap(request):
    built = []

    def wrap_one(chain):
        built.append(WRAPS[request.param](chain))
        return built[-1]

    yield wrap_one
    for stage in built:
        stage.close()


def first(stage) -> tuple[int, int]:
    """(epoch, index) of the next minibatch that a new iterator gives."""
    minibatch = next(iter(stage))
    return minibatch.epoch, minibatch.index


def state_at(epoch: int, step: int) -> dict:
    chain = fetched()
    chain.set_epoch(epoch)
    iterator = iter(chain)
    for _ in range(step):
        next(iterator)
    return chain.state_dict()


# --- an epoch counts from its first minibatch


def test_iter_alone_starts_nothing_and_uses_no_epoch_up(wrap):
    stage = wrap(fetched())
    threads, state = threading.active_count(), stage.state_dict()
    for _ in range(3):
        iter(stage)
        assert stage.state_dict() == state
    assert threading.active_count() <= threads
    assert [first(stage), first(stage)] == [(0, 0), (1, 0)]
    iter(stage)
    assert first(stage) == (2, 0)
    assert digests(stage) == digests(start_at(fetched(), 3))
    iter(stage)
    assert first(stage) == (4, 0)


def test_an_epoch_that_fails_before_its_first_minibatch_is_tried_again(wrap):
    failing = threading.Event()
    failing.set()

    def fails(minibatch):
        if failing.is_set():
            raise ZeroDivisionError("of the user")
        return minibatch

    stage = wrap(sampled()).transform(fails)
    iterator = iter(stage)
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    failing.clear()
    with pytest.raises(RuntimeError, match="broke off"):
        next(iterator)
    assert stage.state_dict()["epoch"] == 0
    assert first(stage) == (0, 0)
    assert first(stage) == (1, 0)


def test_the_older_of_two_unread_iterators_ends_with_an_error(refuses):
    stage = sampled()
    older, newer = iter(stage), iter(stage)
    refuses(RuntimeError, next, older)
    assert next(newer).epoch == 0


def test_threads_that_ask_for_the_first_minibatch_at_once_begin_one_epoch(monkeypatch):
    both, began = threading.Barrier(2), []
    begin = Run._begin

    def counted(run, root, position):
        began.append(position)
        return begin(run, root, position)

    monkeypatch.setattr(Run, "_begin", counted)
    for _ in range(20):
        with dp.DataLoader(fetched()) as stage:
            iterator, got = iter(stage), []

            def read(iterator=iterator, got=got):
                both.wait(BOUND_S)
                got.append(next(iterator).index)

            threads = [threading.Thread(target=read) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(BOUND_S)
            assert sorted(got) == [0, 1]
    assert len(began) == 20


# --- several threads may read an epoch


def read_by_threads(iterator: Iterator[dp.MiniBatch]) -> tuple[list[int], list[BaseException]]:
    """The indices that four threads get together, in order, and the errors that end them."""
    got, errors = [], []

    def read():
        try:
            got.extend(minibatch.index for minibatch in iterator)
        except Exception as error:
            errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(BOUND_S)
        assert not reader.is_alive()
    return sorted(got), errors


def test_threads_get_each_minibatch_once_and_the_state_counts_all(wrap):
    stage = wrap(sampled(items(400, 1)))
    iterator = iter(stage)
    assert read_by_threads(iterator) == ([*range(400)], [])
    assert stage.state_dict()["ended"]


def test_at_a_minibatch_that_raises_every_thread_gets_an_error(wrap):
    def fail(minibatch):
        if minibatch.index == 30:
            raise ZeroDivisionError("of the user")
        return minibatch

    stage = wrap(sampled(items(400, 1)).transform(fail))
    got, errors = read_by_threads(iter(stage))
    assert got == [*range(30)]
    assert sorted(type(error).__name__ for error in errors) == ["RuntimeError"] * 3 + ["ZeroDivisionError"]
    assert stage.state_dict()["next_index"] == 30


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_process_that_is_forked_while_a_thread_reads_may_read_on():
    reads, go_on = threading.Event(), threading.Event()

    def wait_in_parent(minibatch):
        if minibatch.index == 0:
            reads.set()
            go_on.wait(BOUND_S)
        return minibatch

    iterator = iter(sampled().transform(wait_in_parent))
    reader = threading.Thread(target=next, args=(iterator,))
    reader.start()
    assert reads.wait(BOUND_S)
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends the child if it hangs
        os._exit(next(iterator).index)
    go_on.set()
    reader.join(BOUND_S)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


# --- before its first minibatch an epoch can be named


def test_set_epoch_moves_an_iterator_that_was_not_read(wrap):
    stage = wrap(fetched())
    iterator = iter(stage)
    stage.set_epoch(3)
    assert stage.state_dict()["epoch"] == 3
    assert next(iterator).epoch == 3
    stage.set_epoch(7)  # this one was read
    assert next(iterator).epoch == 3
    assert [first(stage), first(stage)] == [(7, 0), (8, 0)]


def test_set_epoch_after_a_first_minibatch_that_failed_ends_that_iterator(refuses):
    stage = sampled().transform(lambda minibatch: 1 / 0 if minibatch.epoch == 0 else minibatch)
    iterator = iter(stage)
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    stage.set_epoch(5)
    refuses(RuntimeError, next, iterator)
    assert [first(stage), first(stage)] == [(5, 0), (6, 0)]


def test_load_state_dict_moves_an_iterator_that_was_not_read(wrap):
    stage = wrap(fetched())
    iterator, state = iter(stage), state_at(1, 2)
    stage.load_state_dict(state)
    minibatch = next(iterator)
    assert (minibatch.epoch, minibatch.index) == (1, 2)


def test_a_position_that_was_loaded_stays_until_it_is_read(wrap):
    stage, state = wrap(fetched()), state_at(1, 2)
    stage.load_state_dict(state)
    for _ in range(2):
        iter(stage)
        assert stage.state_dict() == state
    assert [first(stage), first(stage)] == [(1, 2), (2, 0)]


def test_an_empty_rest_is_given_once_however_often_iter_is_called():
    stage, state = fetched(), state_at(1, 6)
    assert "ended" not in state
    stage.load_state_dict(state)
    iter(stage)
    assert [digests(stage), first(stage)] == [[], (2, 0)]


@pytest.mark.parametrize("probes", [0, 1])
@pytest.mark.parametrize(
    ("loaded", "ended", "named", "expected"),
    [
        ((1, 2), False, 1, (1, 2)),  # the loop goes on with the epoch that it was interrupted in
        ((1, 2), False, 2, (2, 0)),
        ((1, 0), False, 1, (1, 0)),
        ((1, 6), False, 2, (2, 0)),
        ((1, 6), True, 2, (2, 0)),
        ((1, 6), True, 1, (1, 0)),  # that epoch had ended: it is meant anew
    ],
)
def test_set_epoch_keeps_a_loaded_position_of_that_epoch(probes, loaded, ended, named, expected):
    stage, state = fetched(), state_at(*loaded)
    stage.load_state_dict({**state, "ended": True} if ended else state)
    for _ in range(probes):
        iter(stage)
    stage.set_epoch(named)
    assert first(stage) == expected


def test_set_epoch_begins_an_epoch_anew_that_was_read_from(wrap):
    stage = wrap(fetched())
    stage.load_state_dict(state_at(1, 2))
    assert first(stage) == (1, 2)
    stage.set_epoch(1)
    assert first(stage) == (1, 0)


def test_iter_alone_does_not_move_a_node():
    def chain():
        return dp.FromNode(torchdata.nodes.Mapper(fetched(), as_it_is))

    plain, probed = chain(), chain()
    for _ in range(2):
        iter(probed)
        assert digests(probed) == digests(plain)
    iter(probed)
    state = probed.state_dict()
    resumed = chain()
    resumed.load_state_dict(state)
    iter(resumed)
    assert digests(resumed) == digests(probed) == digests(plain)


def test_closing_from_another_thread_before_the_first_minibatch_keeps_the_position():
    reached, go = threading.Event(), threading.Event()

    def waits(minibatch):
        reached.set()
        assert go.wait(BOUND_S)
        return minibatch

    stage = dp.DataLoader(fetched().transform(waits))
    stage.set_epoch(7)
    reader = threading.Thread(target=lambda: next(iter(stage), None))
    reader.start()
    assert reached.wait(BOUND_S)
    closer = threading.Thread(target=stage.close)
    closer.start()
    wait_until(lambda: stage._closed)
    go.set()
    for thread in (reader, closer):
        thread.join(BOUND_S)
        assert not thread.is_alive()
    assert stage.state_dict()["epoch"] == 7


def test_a_timeout_that_was_waited_out_is_no_error_at_the_end(tmp_path):
    first = threading.Event()

    def waits(minibatch):
        if minibatch.index == 0:
            first.wait(BOUND_S)
            return minibatch
        return None

    with dp.DataLoader(items().transform(waits), timeout=0.1) as stage:
        iterator = iter(stage)
        with pytest.raises(dp.LoaderTimeoutError):
            next(iterator)
        first.set()
        got = []
        while len(got) < 2:
            with contextlib.suppress(dp.LoaderTimeoutError):
                got.append(next(iterator, None))
        assert [minibatch and minibatch.index for minibatch in got] == [0, None]


# --- an epoch that gives nothing


def forgets_its_return(minibatch):
    minibatch.replace()


def drop_all(minibatch):
    return None


class Forgets(dp.MiniBatchTransformer):
    concurrency = 3

    async def transform_async(self, minibatch):
        minibatch.replace()


def test_an_epoch_of_which_stages_drop_everything_ends_in_an_error_that_names_them(wrap, refuses):
    stage = wrap(sampled().transform(forgets_its_return).transform(as_it_is))
    for _ in range(2):
        refuses(RuntimeError, list, stage)
    assert stage.state_dict()["ended"]
    refuses(RuntimeError, list, wrap(sampled().transform(keep_most)).transform(forgets_its_return))
    refuses(RuntimeError, list, wrap(Forgets(items())))
    node = dp.FromNode(torchdata.nodes.Mapper(items(), as_it_is))
    refuses(RuntimeError, list, node.transform(forgets_its_return))


def test_an_epoch_may_be_empty_if_a_stage_says_so(wrap, refuses):
    class Drops(dp.MiniBatchTransformer):
        may_drop_all = True

        def transform(self, minibatch):
            return None

    for chain in (items().transform(drop_all, may_drop_all=True), Drops(items())):
        assert [list(wrap(chain)), list(wrap(chain.copy_to("cpu")))] == [[], []]
    assert "may_drop_all=True" in repr(items().transform(drop_all, may_drop_all=True))
    refuses(TypeError, items().transform, drop_all, may_drop_all=1)


def test_the_rest_of_an_epoch_may_be_dropped():
    def keep_first(minibatch):
        return minibatch if minibatch.index == 0 else None

    stage = fetched().transform(keep_first)
    next(iter(stage))
    resumed = fetched().transform(keep_first)
    resumed.load_state_dict(stage.state_dict())
    assert list(resumed) == []


COLLECTED = """
import gc, threading
import datapipes as dp
from pipelines import fetched

class Awaits(dp.MiniBatchTransformer):
    async def transform_async(self, minibatch):
        return minibatch

kinds = [lambda: fetched(), lambda: fetched().prefetch(2), lambda: Awaits(fetched())]
epochs = [iter(kind()) for kind in kinds]
for epoch in epochs:
    next(epoch)
del epoch
names = sorted(each.name for each in threading.enumerate() if each.name.startswith("datapipes"))
with threading._active_limbo_lock:  # threading.enumerate, for example, makes objects while it has this lock
    epochs.clear()
    gc.collect()
print(names)
"""


def test_an_epoch_may_be_collected_inside_threading():
    ended = run_script(COLLECTED)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "datapipes-async" in ended.stdout
