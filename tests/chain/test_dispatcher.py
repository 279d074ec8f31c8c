"""Dispatcher: over a pool that a test plays by hand, each step comes once and a death is charged where it belongs."""

import pytest
from pipelines import items

import datapipes as dp
from datapipes.base.clock import CallRecord, StageClock
from datapipes.chain.calls import Calls
from datapipes.chain.dispatcher import Dispatcher
from datapipes.chain.epoch import EpochContext, Position
from datapipes.chain.pool import Death, Outcome, Pool, Task

INDICES = dp.stages.StageGraph(items()).seed_stage._indices


class PlayedPool(Pool):
    """One worker; `events` come one by one, and `given` and `replacements` say what the dispatcher asked for."""

    num_workers = 1
    tasks_each = 3

    def __init__(self, *events: Outcome | Death) -> None:
        super().__init__()
        self.events = list(events)
        self.given: list[int] = []
        self.replacements = 0

    def start(self) -> None: ...

    def begin(self) -> int:
        return 1

    def give(self, worker: int, task: Task) -> None:
        self.given.append(task.index)

    def receive(self, timeout: float) -> Outcome | Death | None:
        return self.events.pop(0)

    def replace(self, worker: int) -> None:
        self.replacements += 1

    def whereabouts(self, worker: int) -> str:
        return "worker 0 is played"

    def close(self) -> None: ...


def made(index: int) -> Outcome:
    return Outcome(0, Task(1, 0, index), dp.MiniBatch(index=index))


def dropped(index: int, *stages: str) -> Outcome:
    calls = [CallRecord(stage, 0.0, 1.0, 1, "a thread", index) for stage in stages]
    return Outcome(0, Task(1, 0, index), calls=calls)


def died(*indices: int, was_ready: bool = True) -> Death:
    tasks = tuple(Task(1, 0, index) for index in indices)
    return Death(0, 4321, "it was killed by SIGKILL", tasks, was_ready)


def begun() -> EpochContext:
    return EpochContext(Calls(dp.stages.StageGraph(items()).numbering, StageClock()), Position(0))


def dispatcher(pool: Pool, max_restarts: int = 0, in_order: bool = True) -> Dispatcher:
    options = {"in_order": in_order, "timeout": None, "max_restarts": max_restarts}
    return Dispatcher(pool, begun(), INDICES, "waiting", **options)


def test_a_death_in_the_middle_of_a_minibatch_is_charged_to_it():
    with pytest.raises(dp.PeerDied, match="1 workers died while they made minibatch 0 of epoch 0"):
        next(dispatcher(PlayedPool(died(0))))


def test_a_death_is_charged_to_every_minibatch_in_flight():
    with pytest.raises(dp.PeerDied, match=r"2 workers died while they made minibatch 0 of epoch 0; the last was"):
        next(dispatcher(PlayedPool(died(0, 1), made(1), died(0, 2)), max_restarts=1))
    pool = PlayedPool(died(1, 0), made(1), died(2, 0), made(0), made(2))
    minibatches = dispatcher(pool, max_restarts=2)
    assert [next(minibatches).index for _ in range(3)] == [0, 1, 2]
    assert pool.replacements == 2


def test_minibatches_that_were_in_flight_at_the_same_deaths_are_all_named():
    together = (
        "3 workers died while they made minibatch 1 of epoch 0, each time together with minibatch 0, 2; the last was"
    )
    with pytest.raises(dp.PeerDied, match=together) as caught:
        next(dispatcher(PlayedPool(died(0, 1, 2), died(2, 0, 1), died(1, 0, 2)), max_restarts=2))
    assert "Try the stages on each of these minibatches with loader.minibatch(0, 1)" in str(caught.value)
    assert len(caught.value.pids) == 3


def test_a_death_is_charged_to_no_minibatch_of_another_epoch():
    pool = PlayedPool(Death(0, 4321, "it was killed", (Task(0, 0, 1), Task(0, 0, 0)), True), made(0))
    assert next(dispatcher(pool)).index == 0


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize(
    "events",
    [
        [made(1), made(0), died(1), made(2)],
        [made(1), died(1), made(1), made(0), made(2)],  # minibatch 1 has come, but 0 has not; it was given again
    ],
)
def test_a_death_right_after_the_outcome_was_sent_is_charged_to_nothing(in_order, events):
    pool = PlayedPool(*events)
    minibatches = dispatcher(pool, in_order=in_order)
    assert sorted(next(minibatches).index for _ in range(3)) == [0, 1, 2]
    assert pool.replacements == 1


def test_a_dead_workers_tasks_are_given_again_and_an_outcome_that_comes_twice_is_dropped():
    pool = PlayedPool(died(0), made(0), made(0), made(1))
    minibatches = dispatcher(pool, max_restarts=1)
    assert [next(minibatches).index for _ in range(2)] == [0, 1]
    assert pool.given[:6] == [0, 1, 2, 0, 1, 2]


def test_a_worker_that_dies_while_it_starts_is_tried_as_often_as_a_minibatch():
    pool = PlayedPool(*[died(was_ready=False)] * 3)
    with pytest.raises(dp.PeerDied, match=r"worker 0 .* died while it started"):
        next(dispatcher(pool, max_restarts=2))
    assert pool.replacements == 2


def test_an_outcome_shows_that_workers_can_start():
    dead = died(was_ready=False)
    minibatches = dispatcher(PlayedPool(dead, dead, made(0), dead, dead, made(1)), max_restarts=2)
    assert [next(minibatches).index for _ in range(2)] == [0, 1]


def test_what_is_not_said_is_a_dispatcher_in_order_without_a_second_try():
    pool = PlayedPool(made(1), made(0), died(2))
    minibatches = Dispatcher(pool, begun(), INDICES)
    assert [next(minibatches).index for _ in range(2)] == [0, 1]
    with pytest.raises(dp.PeerDied):
        next(minibatches)
    assert minibatches._context.calls.clock.stats() == {}


def test_deaths_are_counted_where_the_caller_says():
    counts = {"deaths": 4.0, "made_again": 2.0}
    for pool in (PlayedPool(died(0), made(0)), PlayedPool(died(), made(0))):
        next(Dispatcher(pool, begun(), INDICES, max_restarts=1, counts=counts))
    assert counts == {"deaths": 6.0, "made_again": 8.0}


def test_the_time_until_a_minibatch_came_is_counted_as_waiting():
    minibatches = dispatcher(PlayedPool(made(0), made(1)))
    for _ in range(2):
        next(minibatches)
    waits = minibatches._context.calls.clock.last_calls()
    assert [(wait.stage, wait.minibatch) for wait in waits] == [("waiting", 0), ("waiting", 1)]


@pytest.mark.parametrize(("unknown", "drops"), [("a stage", {"1 odd": 1, "a stage": 1}), ("", {"1 odd": 1})])
def test_a_drop_is_counted_where_the_last_call_was(unknown, drops):
    pool = PlayedPool(dropped(0, "0 item_sampler", "1 odd"), dropped(1), made(2))
    pool.dropped_by = unknown
    minibatches = dispatcher(pool)
    assert next(minibatches).index == 2
    assert minibatches._context.drops == drops


def test_a_timeout_says_who_has_the_minibatch():
    minibatches = dispatcher(PlayedPool(*[None] * 3, made(0), *[None] * 2))
    with pytest.raises(dp.LoaderTimeoutError, match=r"Waiting for minibatch 0 of epoch 0: worker 0 is played\. Raise"):
        minibatches.take(0.0)
    minibatches._with[0].remove(0)
    with pytest.raises(dp.LoaderTimeoutError, match=r"Waiting for minibatch 0 of epoch 0\. Raise"):
        minibatches.take(0.0)


@pytest.mark.parametrize(
    ("death", "doing"),
    [
        (died(0), "It was making minibatch 0 of epoch 0; another takes its place"),
        (died(0, 1, 2), "It was making minibatch 0 of epoch 0 and 2 more;"),
        (died(), "It was idle;"),
        (died(was_ready=False), "It was starting;"),
    ],
)
def test_the_log_says_what_a_dead_worker_was_doing(death, doing, caplog):
    next(dispatcher(PlayedPool(death, made(0)), max_restarts=1))
    assert doing in caplog.text


def test_a_pool_says_of_itself_what_it_has():
    pool = PlayedPool()
    assert (pool.most_ahead, pool.name_of(2), pool.stats(), pool.processes()) == (3, "worker 2", {}, [])
    assert pool.taken(made(4)).index == 4
    with pytest.raises(AssertionError, match="workers do not die by themselves"):
        Pool.replace(pool, 0)


def test_an_epoch_is_refused_in_another_process():
    pool = PlayedPool(made(0))
    minibatches = dispatcher(pool)
    pool.process += 1
    with pytest.raises(RuntimeError, match="begun in another process"):
        next(minibatches)
