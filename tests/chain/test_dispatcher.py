"""Dispatcher: over a pool that a test plays by hand, each step comes once and a death is charged where it belongs."""

import pytest
from pipelines import items

import datapipes as dp
from datapipes.base.clock import StageClock
from datapipes.chain.calls import Calls
from datapipes.chain.dispatcher import Dispatcher
from datapipes.chain.epoch import EpochContext, Position
from datapipes.chain.pool import Death, Outcome, Pool, Task


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


def died(*indices: int, was_ready: bool = True) -> Death:
    tasks = tuple(Task(1, 0, index) for index in indices)
    return Death(0, 4321, "it was killed by SIGKILL", tasks, was_ready)


def dispatcher(pool: Pool, max_restarts: int = 0, in_order: bool = True) -> Dispatcher:
    graph = dp.stages.StageGraph(items())
    context = EpochContext(Calls(graph.numbering, StageClock()), Position(0))
    options = {"in_order": in_order, "timeout": None, "max_restarts": max_restarts}
    return Dispatcher(pool, context, graph.seed_stage._indices, "waiting", **options)


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
    together = "3 workers died while they made minibatch 1 of epoch 0, and each time 0, 2 beside it; the last was"
    with pytest.raises(dp.PeerDied, match=together) as caught:
        next(dispatcher(PlayedPool(died(0, 1, 2), died(2, 0, 1), died(1, 0, 2)), max_restarts=2))
    assert "Try the stages on each of these with loader.minibatch(0, 1)" in str(caught.value)
    assert len(caught.value.pids) == 3


def test_a_death_is_charged_to_no_minibatch_of_another_epoch():
    pool = PlayedPool(Death(0, 4321, "it was killed", (Task(0, 0, 1), Task(0, 0, 0)), True), made(0))
    assert next(dispatcher(pool)).index == 0


def test_outcomes_that_come_in_any_order_leave_in_order():
    minibatches = dispatcher(PlayedPool(made(2), made(1), made(0), made(4), made(3)))
    assert [next(minibatches).index for _ in range(5)] == [0, 1, 2, 3, 4]


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


def test_no_more_is_given_out_than_the_pool_may_have_ahead():
    pool = PlayedPool(made(0))
    next(dispatcher(pool))
    assert pool.given == [0, 1, 2]


def test_a_worker_that_dies_while_it_starts_is_tried_as_often_as_a_minibatch():
    pool = PlayedPool(*[died(was_ready=False)] * 3)
    with pytest.raises(dp.PeerDied, match=r"worker 0 .* died while it started"):
        next(dispatcher(pool, max_restarts=2))
    assert pool.replacements == 2


def test_an_outcome_shows_that_workers_can_start():
    dead = died(was_ready=False)
    minibatches = dispatcher(PlayedPool(dead, dead, made(0), dead, dead, made(1)), max_restarts=2)
    assert [next(minibatches).index for _ in range(2)] == [0, 1]
