"""All that may happen to a dispatcher, played by hand, and a search through it.

The Dispatcher is the real one. `Play` is the pool under it, the consumer above it, and what both remember for the
checks. `explore` visits every state that they can get into: it copies a state, lets the consumer do one thing (`take`
the next minibatch, `reset`, or `close` from another thread), and plays a `take` once for each list of choices that the
pool has meanwhile: which outcome comes, which worker dies and what it was making, what fails.

A call of `take` gets `patience` events and then times out, so no state lies inside of a call. The time is played.
Indices are not steps (index = 2 * step + 1), so that neither is taken for the other.

What is checked:
- Each step is delivered once, or dropped, or raises; in order where asked, also over a reset, after which the rest of
  the epoch is what is missing.
- At most `tasks_each` tasks are with a worker, and none lies `most_ahead` or more steps from the first that is missing.
  A task goes to the worker that has the fewest; what was lost goes before what is new.
- The dispatcher waits only if a worker has a task of its generation, nothing can be delivered, no more can be given,
  and somebody reads. In `take` it makes no more rounds without a wait than there are steps.
- A death is charged to what was being made and had not come, and ends the epoch at the first charge too many.
- From every state the end can be reached without a further fault, and only time-outs go in circles.
"""

from __future__ import annotations

import copy
import gc
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from shm_model import Report, Violation, on_a_circle, require, unable_to_reach

import datapipes as dp
from datapipes.base.clock import NoClock
from datapipes.base.errors import LoaderTimeoutError, PeerDied
from datapipes.base.log import logger
from datapipes.chain import dispatcher as module
from datapipes.chain.calls import Calls
from datapipes.chain.deaths import Deaths
from datapipes.chain.dispatcher import Dispatcher
from datapipes.chain.epoch import EpochContext, Position
from datapipes.chain.numbering import Numbering
from datapipes.chain.pool import Death, Outcome, Pool, Task
from datapipes.chain.run import Run

LOOK_S = 0.125  # as in the dispatcher, but sums of it are exact
LIMIT_S = 1.5 * LOOK_S  # of a call of `take`


@dataclass(frozen=True)
class Config:
    """What is played. Steps and indices are the same every time, as the bits of a minibatch are."""

    num_steps: int = 4
    workers: int = 2
    tasks_each: int = 1
    at_once: int = 1  # tasks that a worker makes at once, and may finish in any order
    most_ahead: int | None = None  # None: workers * tasks_each
    in_order: bool = True
    goes_on: bool = False
    max_restarts: int = 0
    dropped: tuple[int, ...] = ()  # steps that a stage drops
    wrong: tuple[int, ...] = ()  # steps at which a stage raises
    patience: int = 1
    # How often:
    deaths: int = 0
    twice: int = 0  # an outcome comes a second time, whenever it likes
    failures: int = 0  # `receive` or `replace` raises
    refusals: int = 0  # `give` raises
    resets: int = 0
    closes: int = 0


class StageError(Exception):
    """A stage raised."""


class Failure(Exception):
    """The pool raised."""


class Worker(NamedTuple):
    life: int = 0
    is_ready: bool = False
    tasks: tuple[Task, ...] = ()  # it has them and has sent no outcome
    sent: Task | None = None  # it may still say that it makes this one


class Sent(NamedTuple):
    """An outcome that is still under way."""

    worker: int
    life: int
    task: Task


class Choices:
    """The choices of one move: those of `script`, and then the first that there is."""

    def __init__(self, script: Iterable[int] = ()) -> None:
        self.script = [*script]
        self.made: list[tuple[int, int]] = []
        self.labels: list[Any] = []

    def choose(self, options: list[Any]) -> Any:
        place = len(self.made)
        chosen = self.script[place] if place < len(self.script) else 0
        self.made.append((chosen, len(options)))
        self.labels.append(options[chosen])
        return options[chosen]

    def next_script(self) -> list[int] | None:
        made = self.made
        while made and made[-1][0] + 1 == made[-1][1]:
            made.pop()
        return [*(chosen for chosen, _ in made[:-1]), made[-1][0] + 1] if made else None


class Clock:
    """The time as the dispatcher sees it."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


CLOCK = Clock()


class Context(EpochContext):
    """Its steps are a list, whose iterator can be copied."""

    def steps(self, num_steps: int) -> list[int]:
        return [*super().steps(num_steps)]


class Stopped:
    """The event of a context. The dispatcher looks at it once in each round."""

    def __init__(self, most_rounds: int) -> None:
        self.is_so = False
        self.rounds, self.most_rounds = 0, most_rounds  # since the last wait

    def is_set(self) -> bool:
        self.rounds += 1
        require(self.rounds <= self.most_rounds, "it goes in circles without waiting")
        return self.is_so


class Play(Pool):
    """The pool, the consumer, and what happened.

    `done` are the steps that need nothing more: delivered, dropped, or raised where the epoch goes on. `received` are
    those whose outcome this dispatcher got.
    """

    def __init__(self, config: Config, dispatcher: type[Dispatcher] = Dispatcher) -> None:
        super().__init__()
        self.config, self.make = config, dispatcher
        self.num_workers, self.tasks_each = config.workers, config.tasks_each
        self.indices = range(1, 2 * config.num_steps + 1, 2)
        self.choices = Choices()
        self.workers = [Worker() for _ in range(config.workers)]
        self.under_way: tuple[Sent, ...] = ()
        self.left = {
            name: getattr(config, name) for name in ("deaths", "twice", "failures", "refusals", "resets", "closes")
        }
        self.generation, self.epoch = 0, 0
        self.delivered: set[int] = set()
        self.begin_epoch(Position(0))

    # --- copies

    def copy(self) -> Play:
        twin = copy.copy(self)
        twin.choices, twin.workers, twin.left = Choices(), [*self.workers], {**self.left}
        for name in ("delivered", "done", "received", "given", "charged", "early"):
            setattr(twin, name, copy.copy(getattr(self, name)))
        twin.reader = SimpleNamespace(**vars(self.reader))
        twin.reader.ahead = {*self.reader.ahead}
        twin.stopped = Stopped(self.stopped.most_rounds)
        twin.stopped.is_so = self.stopped.is_so
        drops = Counter(self.context.drops)
        twin.context = Context(self.context.calls, self.context.position, twin.stopped, drops)
        twin.dispatcher = object.__new__(type(self.dispatcher))
        vars(twin.dispatcher).update((name, copied(value)) for name, value in vars(self.dispatcher).items())
        twin.dispatcher._pool, twin.dispatcher._context = twin, twin.context
        return twin

    def key(self) -> Any:
        dispatcher = (
            frozen(value) for name, value in vars(self.dispatcher).items() if name not in ("_pool", "_context")
        )
        return (
            *dispatcher,
            tuple(self.workers),
            self.under_way,
            tuple(self.left.values()),
            frozenset(self.delivered),
            frozenset(self.done),
            frozenset(self.received),
            frozenset(self.given),
            tuple(sorted(self.charged.items())),
            tuple(self.early),
            (self.reader.next_step, frozenset(self.reader.ahead)),
            (self.stopped.is_so, self.is_broken, self.by_stage, self.has_ended),
        )

    # --- the consumer

    def begin_epoch(self, position: Position) -> None:
        config = self.config
        self.done = {*range(position.step), *position.ahead}
        self.received: set[int] = set()
        self.given: set[int] = set()
        self.charged: dict[int, tuple[int, ...]] = {}  # by step: the pids that died
        self.early = [0] * config.workers
        self.num_deaths = self.num_lost = 0
        self.expected: tuple[Any, ...] = ()  # what must happen before anything else does
        self.raised: str = ""
        self.is_broken = self.by_stage = self.has_ended = False
        window = 1 if config.in_order else self.most_ahead
        self.reader = SimpleNamespace(next_step=position.step, ahead={*position.ahead}, _window=window)
        self.stopped = Stopped(config.num_steps + 1)
        self.context = Context(Calls(Numbering({}, None), NoClock()), position, self.stopped)  # type: ignore[arg-type]
        self.dispatcher = self.make(
            self,
            self.context,
            self.indices,
            in_order=config.in_order,
            max_restarts=config.max_restarts,
            goes_on=config.goes_on,
        )

    def actions(self) -> Iterator[str]:
        if not self.has_ended:
            yield "take"
            if self.left["closes"] and not self.stopped.is_so:
                yield "close"
        if self.left["resets"] and not self.stopped.is_so:
            yield "reset"

    def reset(self) -> None:
        """Leave the epoch, and begin the rest of it; after errors that it went on from, another one."""
        self.left["resets"] -= 1
        if self.config.goes_on:
            self.epoch += 1
            self.delivered = set()
            self.begin_epoch(Position(self.epoch))
            return
        position = Position(self.epoch, self.reader.next_step, ahead=tuple(sorted(self.reader.ahead)))
        self.begin_epoch(position)
        require(self.delivered <= self.done, f"{self.delivered - self.done} would come again from {position}")
        require(self.done <= self.delivered | {*self.config.dropped}, f"{self.done} would be left out by {position}")

    def close(self) -> None:
        self.left["closes"] -= 1
        self.stopped.is_so = True

    def take(self) -> None:
        began, was_broken, self.events, self.raised = CLOCK.now, self.is_broken, 0, ""
        self.stopped.rounds, self.ends = 0, began + LIMIT_S
        try:
            minibatch = self.dispatcher.take(LIMIT_S)
        except LoaderTimeoutError:
            require(CLOCK.now - began >= LIMIT_S, "it gave up too early")
            require(not was_broken, "an epoch that broke off waits")
        except StopIteration:
            whole = len(self.done) == self.config.num_steps
            require(whole or was_broken or self.stopped.is_so, f"it ended, and has only {self.done}")
            if whole and not was_broken:
                count = len(self.received & {*self.config.dropped})
                require(self.context.drops == ({"a stage": count} if count else {}), f"drops are {self.context.drops}")
            self.has_ended = True
        except StageError as error:
            self.note_error(error)
        except PeerDied as error:
            require(self.expected[:1] == ("died",), f"it raised {error!r}")
            _, text, pids = self.expected
            require(text in str(error) and [*error.pids] == pids, f"it raised {error!r}, not about {text}, {pids}")
            self.expected, self.is_broken = (), True
        except Failure as failure:
            require(str(failure) == self.raised, f"{failure} was raised, not {self.raised}")
            self.raised = ""
        else:
            self.note_delivery(minibatch)
        require(not self.expected, f"{self.expected} did not happen")
        require(not self.raised, f"{self.raised} was swallowed")
        require(not self.context.calls.under_way, "it goes on waiting")
        counts = {"deaths": self.num_deaths, "made_again": self.num_lost}
        require(self.dispatcher._counts == counts, f"the counts are {self.dispatcher._counts}, not {counts}")
        here = len(self.received - self.done) - self.by_stage  # and what was dropped, until it is its turn
        drops = len(self.received & {*self.config.dropped})
        require(here <= len(self.dispatcher) <= here + drops, f"it has {here} and says {len(self.dispatcher)}")

    def note_error(self, error: StageError) -> None:
        step, worker = error.args
        require(step in self.received - self.done, f"step {step} raises, and has not")
        require(error.__notes__ == [f"in worker {worker}"], f"the notes are {error.__notes__}")
        if self.config.in_order:
            require(step == self.low, f"step {step} raises; the next is {self.low}")
        if self.config.goes_on:
            self.done.add(step)
        else:
            self.is_broken = self.by_stage = True

    def note_delivery(self, minibatch: dp.MiniBatch) -> None:
        step = self.indices.index(minibatch.index)
        require(step not in self.done | self.delivered, f"step {step} was delivered twice")
        require(step in self.received and step not in self.config.wrong, f"step {step} was not made")
        if self.config.in_order:
            require(step == self.low, f"step {step} was delivered; the next is {self.low}")
        require(not self.is_broken, f"step {step} was delivered after an error")
        self.done.add(step)
        self.delivered.add(step)
        Run._record_delivery(self.reader, step)  # type: ignore[arg-type]

    # --- what it sees of the dispatcher

    @property
    def low(self) -> int:
        return next((step for step in range(self.config.num_steps) if step not in self.done), self.config.num_steps)

    @property
    def most_ahead(self) -> int:
        return self.config.most_ahead or super().most_ahead

    def out(self, worker: int) -> list[int]:
        """Return the steps that a worker has of this dispatcher."""
        tasks = self.workers[worker].tasks
        return [self.indices.index(task.index) for task in tasks if task.generation == self.generation]

    def all_out(self) -> set[int]:
        return {step for worker in range(self.num_workers) for step in self.out(worker)}

    # --- the pool

    def begin(self) -> int:
        self.generation += 1
        making = self.config.at_once  # of those of an epoch that was left, a worker may go on with these
        self.workers = [worker._replace(tasks=worker.tasks[:making]) for worker in self.workers]
        return self.generation

    def give(self, worker: int, task: Task) -> None:
        require(not self.expected, f"{self.expected} did not happen")
        step = self.indices.index(task.index)
        require(task[:2] == (self.generation, self.epoch), f"{task} was given in {self.generation}")
        require(step not in self.received | self.done, f"step {step} was given after it had come")
        out = [self.out(number) for number in range(self.num_workers)]
        all_out = self.all_out()
        require(step not in all_out, f"step {step} was given, and {out} has it")
        require(len(out[worker]) < self.tasks_each, f"worker {worker} has {out[worker]} and got {step}")
        require(len(out[worker]) == min(map(len, out)), f"worker {worker} got {step}; they have {out}")
        require(step < self.low + self.most_ahead, f"step {step} was given; the first that is missing is {self.low}")
        lost = self.given - self.received - all_out
        require(not lost or step in lost, f"step {step} was given before {lost}, which are made again")
        if self.left["refusals"] and self.choices.choose(["give", "refuse"]) == "refuse":
            self.left["refusals"] -= 1
            self.fail("give")
        self.given.add(step)
        self.workers[worker] = self.workers[worker]._replace(tasks=(*self.workers[worker].tasks, task))

    def fail(self, what: str) -> None:
        self.raised = what
        raise Failure(what)

    def receive(self, timeout: float) -> Outcome | Death | None:
        self.check_wait()
        self.stopped.rounds = 0
        expected = max(min(LOOK_S, self.ends - CLOCK.now), 0.0)
        require(timeout == expected, f"it waits {timeout} s, not {expected}")
        self.events += 1
        if self.events > self.config.patience:
            return self._lull()
        event = self.choices.choose([*self.possible()])
        return getattr(self, f"_{event[0]}")(*event[1:])

    def check_wait(self) -> None:
        """No wait is without an end, and none while there is something to do."""
        require(not self.expected, f"{self.expected} did not happen")
        require(not self.stopped.is_so, "it waits, and nobody reads")
        require(not self.is_broken, "it waits after an error")
        all_out = self.all_out()
        require(bool(all_out), "it waits, and no worker has a task")
        here = self.received - self.done
        require(not here or (self.config.in_order and self.low not in here), f"it waits, and has {here}")
        if any(len(self.out(worker)) < self.tasks_each for worker in range(self.num_workers)):
            steps = {*range(self.low, min(self.low + self.most_ahead, self.config.num_steps))}
            missing = steps - self.done - self.received - all_out
            require(not missing, f"it waits, and could have given {missing}")

    def possible(self) -> Iterator[tuple[Any, ...]]:
        """Yield what may happen while the dispatcher waits; first what needs no fault."""
        for number, worker in enumerate(self.workers):
            stale = [task for task in worker.tasks if task.generation != self.generation]
            fresh = [task for task in worker.tasks if task.generation == self.generation]
            for task in [*fresh[: self.config.at_once], *stale]:
                yield "outcome", number, task
                if self.left["twice"]:
                    yield "twice", number, task
            if self.left["deaths"]:
                yield from self.possible_deaths(number, worker, stale, fresh)
        for sent in dict.fromkeys(self.under_way):
            yield "arrival", sent
        yield ("lull",)
        if self.left["failures"]:
            yield ("failure",)
        if self.left["closes"]:
            yield ("closing",)

    def possible_deaths(self, number: int, worker: Worker, stale: list[Task], fresh: list[Task]) -> Iterator[Any]:
        if not worker.is_ready:
            yield "death", number, (), (), False, True
            yield "death", number, (), (), False, False
        yield "death", number, (), (), True, True
        if worker.sent:
            yield "death", number, (worker.sent,), (), True, True
        for task in stale:
            yield "death", number, (task,), (), True, True
        for count in range(1, min(self.config.at_once, len(fresh)) + 1):
            making = (*stale[:1], *fresh[:count])
            yield "death", number, making, (), True, True
            yield "death", number, making, (making[-1],), True, True  # it had sent this outcome

    def _outcome(self, number: int, task: Task) -> Outcome:
        worker = self.workers[number]
        tasks = tuple(other for other in worker.tasks if other != task)
        self.workers[number] = worker._replace(is_ready=True, tasks=tasks, sent=task)
        return self.made(Sent(number, worker.life, task))

    def _twice(self, number: int, task: Task) -> Outcome:
        self.left["twice"] -= 1
        self.under_way += (Sent(number, self.workers[number].life, task),)
        return self._outcome(number, task)

    def _arrival(self, sent: Sent) -> Outcome:
        place = self.under_way.index(sent)
        self.under_way = self.under_way[:place] + self.under_way[place + 1 :]
        return self.made(sent)

    def made(self, sent: Sent) -> Outcome:
        step = self.indices.index(sent.task.index)
        outcome = Outcome(sent.worker, sent.task, from_former_life=sent.life != self.workers[sent.worker].life)
        if step in self.config.wrong:
            outcome.error = StageError(step, sent.worker)
        elif step not in self.config.dropped:
            outcome.minibatch = dp.MiniBatch(index=sent.task.index)
        if sent.task.generation == self.generation:
            self.early = [0] * self.num_workers
            self.received.add(step)
            if step in self.config.dropped:
                self.done.add(step)
        return outcome

    def _death(
        self, number: int, making: tuple[Task, ...], sent: tuple[Task, ...], was_ready: bool, by_signal: bool
    ) -> Death:
        self.left["deaths"] -= 1
        self.num_deaths += 1
        worker, most = self.workers[number], self.config.max_restarts
        pid = 100 * number + worker.life
        self.under_way += tuple(Sent(number, worker.life, task) for task in sent)
        self.expected = ("replaced", number)
        charged = [self.indices.index(task.index) for task in making if task.generation == self.generation]
        charged = [step for step in charged if step not in self.received | self.done]
        for step in charged:
            self.charged[step] = (*self.charged.get(step, ()), pid)
        too_often = [step for step in charged if len(self.charged[step]) > most]
        if too_often:
            pids = [*self.charged[too_often[0]]]
            self.expected = ("died", f"minibatch {self.indices[too_often[0]]} of epoch {self.epoch}", pids)
        elif not was_ready:
            self.early[number] += 1
            if not by_signal or self.early[number] > most:
                self.expected = ("died", f"worker {number} (pid {pid}) died while it started", [pid])
        return Death(number, pid, "it was killed", making, was_ready, by_signal)

    def replace(self, worker: int) -> None:
        require(self.expected == ("replaced", worker), f"worker {worker} was replaced, not {self.expected}")
        self.expected = ()
        if self.left["failures"] and self.choices.choose(["start", "fail"]) == "fail":
            self.left["failures"] -= 1
            self.is_broken = True
            self.fail("replace")
        self.num_lost += len({*self.out(worker)} - self.received)
        self.workers[worker] = Worker(self.workers[worker].life + 1)

    def _lull(self) -> None:
        """Nothing comes as long as it waits."""
        require(self.events <= self.config.patience + 3, "it goes on after its time has passed")
        CLOCK.now = min(CLOCK.now + LOOK_S, self.ends)

    def _closing(self) -> None:
        self.close()

    def _failure(self) -> None:
        self.left["failures"] -= 1
        self.under_way = tuple(sent for sent in self.under_way if sent.task.generation != self.generation)
        for number, worker in enumerate(self.workers):
            stale = tuple(task for task in worker.tasks if task.generation != self.generation)
            self.workers[number] = worker._replace(tasks=stale)
        self.is_broken = not self.config.goes_on
        self.fail("receive")

    def whereabouts(self, worker: int) -> str:
        return f"worker {worker} is played"


def copied(value: Any) -> Any:
    """Return a copy of a field of a dispatcher; what never changes is shared."""
    if isinstance(value, (list, deque)):
        return type(value)(map(copied, value))
    if isinstance(value, Deaths):
        twin = copy.copy(value)
        vars(twin).update((name, copied(entry)) for name, entry in vars(value).items())
        return twin
    if isinstance(value, Counter):
        return Counter(value)
    if isinstance(value, dict):
        return {name: copied(entry) for name, entry in value.items()}
    if isinstance(value, Outcome) and value.error is not None:  # gets a note
        return Outcome(value.worker, value.task, error=StageError(*value.error.args))
    return copy.copy(value) if isinstance(value, (set, type(iter([])))) else value


def frozen(value: Any) -> Any:
    """Return what a field of a dispatcher holds, as something that can be compared and hashed."""
    if isinstance(value, (list, deque)):
        return tuple(map(frozen, value))
    if isinstance(value, Deaths):
        return frozen(vars(value))
    if isinstance(value, dict):
        return tuple((name, frozen(entry)) for name, entry in value.items())
    if isinstance(value, Outcome):
        return value.worker, value.task
    if isinstance(value, set):
        return frozenset(value)
    return value.__length_hint__() if isinstance(value, type(iter([]))) else value


def moves(play: Play) -> Iterator[tuple[str, str, Play]]:
    """Yield what may happen next: how it is called, what it is ("step", "wait" or "fault"), and the state after it."""
    for action in play.actions():
        script: list[int] | None = []
        while script is not None:
            after = play.copy()
            after.choices = choices = Choices(script)
            try:
                getattr(after, action)()
            except Violation as violation:
                raise Violation(f"{violation}, after {action} {choices.labels}") from violation
            kinds = [label if isinstance(label, str) else label[0] for label in choices.labels]
            happened = [kind for kind in kinds if kind not in ("give", "start")]
            is_fault = action != "take" or not {*happened} <= {"outcome", "arrival", "lull"}
            kind = "fault" if is_fault else "wait" if {*happened} == {"lull"} else "step"
            yield f"{action} {choices.labels}", kind, after
            script = choices.next_script()


def explore(config: Config, dispatcher: type[Dispatcher] = Dispatcher) -> Report:
    """Visit every state; raise Violation with the moves that lead to it if something does not hold.

    Also check that the end can be reached from every state without a further fault, and that only waits go in circles.
    """
    collects = gc.isenabled()
    gc.disable()  # the search makes little garbage, and looking for it doubles the time
    try:
        with mock.patch.multiple(module, time=CLOCK, LOOK_S=LOOK_S), mock.patch.object(logger, "disabled", True):
            return _explore(Play(config, dispatcher))
    finally:
        if collects:
            gc.enable()


def _explore(first: Play) -> Report:
    number = {first.key(): 0}
    came: list[tuple[int, str]] = [(0, "")]
    edges: list[tuple[str, int, int]] = []
    ends: list[int] = []
    todo = [(first, 0)]

    def fail(what: object, at: int) -> None:
        trace = []
        while at:
            at, label = came[at]
            trace.append(label)
        raise Violation("\n".join([str(what), *reversed(trace)]))

    while todo:
        play, here = todo.pop()
        if play.has_ended:
            ends.append(here)
        try:
            for label, kind, after in moves(play):
                key = after.key()
                there = number.setdefault(key, len(number))
                if there == len(came):
                    came.append((here, label))
                    todo.append((after, there))
                edges.append((kind, here, there))
        except Violation as violation:
            fail(violation, here)
    stuck = unable_to_reach(len(number), ends, [(a, b) for kind, a, b in edges if kind != "fault"])
    if stuck:
        fail("the end cannot be reached", stuck[-1])
    circle = on_a_circle(len(number), [(a, b) for kind, a, b in edges if kind != "wait"])
    if circle is not None:
        fail("goes in circles without waiting", circle)
    return Report(len(number), len(edges), len(ends))
