"""ServerPool under a Dispatcher: whatever servers answer, and in whatever order, each minibatch comes once.

The client is played: a request ends when the search says so, with a minibatch, the error of a stage, or without an
answer, also after the pool has stopped waiting for it. The settings have 35,998 states.
"""

import queue
import time
from dataclasses import dataclass

import pytest
from amounts import ranked
from dispatcher_model import CLOCK, frozen
from pipelines import BOUND_S
from replayed import PlayedFuture, PlayedQueue, explore_by_replay
from shm_model import require

import datapipes as dp
from datapipes.base.clock import NoClock
from datapipes.base.errors import LoaderTimeoutError, ServerUnavailable
from datapipes.chain import dispatcher
from datapipes.chain.calls import Calls
from datapipes.chain.dispatcher import Dispatcher
from datapipes.chain.epoch import EpochContext, Position
from datapipes.chain.numbering import Numbering
from datapipes.chain.pool import Task
from datapipes.distributed import server_pool
from datapipes.distributed.requests.chains import Made
from datapipes.distributed.server_pool import SILENT_S, ServerPool, SilentServers

DEADLINE_S = 5.0


@dataclass(frozen=True)
class Config:
    num_steps: int = 3
    servers: tuple[int, ...] = (4, 7)
    ahead: int = 1
    in_order: bool = True
    silences: int = 0  # requests that end without an answer
    refusals: int = 0  # requests that cannot be made
    waits: int = 0  # how often so much time passes that a server is asked again
    wrong: tuple[int, ...] = ()  # indices at which a stage raises
    dropped: tuple[int, ...] = ()


class StageError(Exception):
    """A stage raised."""


class World:
    """A reader, a ServerPool and its servers. `asked` holds what they were asked for, [(server, index, future)]."""

    def __init__(self, config: Config) -> None:
        self.config, self.asked, self.left = config, [], {"silences": config.silences, "waits": config.waits}
        self.silent = SilentServers(config.servers, DEADLINE_S, "played")
        self.pool = ServerPool(self, 1, config.servers, self.silent, config.ahead)
        self.pool._done = PlayedQueue(queue.Empty)
        self.num_refused, self.delivered, self.has_ended, self.began = 0, [], False, CLOCK.now
        context = EpochContext(Calls(Numbering({}, None), NoClock()), Position(2))
        self.dispatcher = Dispatcher(
            self.pool, context, range(config.num_steps), in_order=config.in_order, goes_on=True
        )

    # --- the client, as the pool sees it

    deadline = DEADLINE_S

    def _made(self, server: int, producer: int, epoch: int, index: int, *, waits: bool) -> PlayedFuture:
        require((producer, epoch) == (1, 2), f"{producer}, {epoch} was asked for")
        require(index not in self.delivered, f"{index} was delivered, and is asked for again")
        others = [other for other in self.config.servers if self.is_silent(other) < self.is_silent(server)]
        require(not others, f"{server} was asked, which gives no answer, and not {others}")
        if self.num_refused < self.config.refusals and len(self.asked) == 2:
            self.num_refused += 1
            raise OSError("it cannot be asked")
        future = PlayedFuture()
        self.asked.append((server, index, future))
        return future

    def is_silent(self, server: int) -> bool:
        since = self.silent._silent.get(server)
        return since is not None and CLOCK.now - since < SILENT_S

    def where(self, server: int) -> str:
        return f"server {server}"

    # --- what may happen

    def moves(self):
        if self.has_ended:
            return
        yield ("take",)
        for number, (_, _, future) in enumerate(self.asked):
            if future.state == "pending":
                yield "answer", number
                if self.left["silences"]:
                    yield "give_no_answer", number
        if self.left["waits"] and self.silent._silent:
            yield ("wait",)

    def answer(self, number: int) -> None:
        _, index, future = self.asked[number]
        error = StageError(index) if index in self.config.wrong else None
        made = None if error or index in self.config.dropped else dp.MiniBatch(index=index)
        future.finish(Made(made, error))
        future.tell()

    def give_no_answer(self, number: int) -> None:
        self.left["silences"] -= 1
        server, _, future = self.asked[number]
        future.finish(ServerUnavailable(f"server {server} gives no answer"))
        future.tell()

    def wait(self) -> None:
        self.left["waits"] -= 1
        CLOCK.now += SILENT_S

    def take(self) -> None:
        all_were_silent = {server for server, _, future in self.asked if isinstance(future.made, ServerUnavailable)}
        try:
            minibatch = self.dispatcher.take(0.0)
            index = minibatch.index
            last = [future for _, asked, future in self.asked if asked == index][-1]
            require(last.made.minibatch is minibatch, f"{index} is an answer that was not waited for any more")
        except LoaderTimeoutError:
            require(not self.pool._done, "it waits, and has answers")
            running = {index for _, index, future in self.asked if future.state == "pending"}
            missing = {*range(self.config.num_steps)} - {*self.delivered}
            require(bool(running & missing), f"it waits for {missing}, and {running} are asked for")
            return
        except StopIteration:
            self.has_ended = True
            return
        except StageError as error:
            (index,) = error.args
            require(index in self.config.wrong, f"{index} raised")
        except ServerUnavailable:
            require(all_were_silent == {*self.config.servers}, f"it gave up, and only {all_were_silent} were silent")
            return
        except OSError:
            return
        require(index not in self.delivered, f"{index} came twice")
        require(not self.config.in_order or not self.delivered or index > max(self.delivered), f"{index} came late")
        self.delivered.append(index)

    # --- what must hold

    def key(self):
        futures = frozenset(
            (server, index, future.state, id(type(future.made))) for server, index, future in self.asked
        )
        held = [
            (task, *entry[:3], CLOCK.now - entry.began, self.number_of(entry.answer))
            for task, entry in self.pool._asked.items()
        ]
        done = [(task, self.number_of(answer)) for task, answer in self.pool._done]
        silent = [(server, CLOCK.now - since) for server, since in self.silent._silent.items()]
        names = ("_again", "_low", "_settled", "_with", "_made", "_next_step")
        states = [frozen(getattr(self.dispatcher, name)) for name in names]
        left = tuple(self.left.values()), self.num_refused, len(self.asked)
        return futures, *map(tuple, (held, done, silent, states, self.delivered)), left, self.has_ended

    def number_of(self, answer: PlayedFuture) -> int:
        return next(number for number, (_, _, future) in enumerate(self.asked) if future is answer)

    def check(self) -> None:
        out = [self.dispatcher._with, self.pool._asked]
        require(sum(map(len, out[0])) <= len(out[1]), f"it has {out[0]}, and is asked for {out[1]}")

    def check_end(self) -> None:
        wanted = [index for index in range(self.config.num_steps) if index not in self.config.dropped]
        require(sorted(self.delivered) == wanted, f"{self.delivered} came")


CONFIGS = {
    "in order": Config(wrong=(0,), dropped=(1,)),
    "one falls silent": Config(silences=1, in_order=False),
    "both fall silent": Config(silences=2, refusals=1),
    "it cannot be asked": Config(refusals=1),
    "one is asked again": Config(silences=2, waits=1, ahead=2),
    "three servers": Config(silences=3, servers=(4, 7, 9), in_order=False),
    "it gives up": Config(silences=4, servers=(4,), num_steps=2, refusals=1),
}


@pytest.fixture(autouse=True)
def played(monkeypatch):
    for module in (dispatcher, server_pool):
        monkeypatch.setattr(module, "time", CLOCK)
    monkeypatch.setattr(server_pool.logger, "disabled", True)


@pytest.fixture
def silent(caplog):
    CLOCK.now += 1000.0
    return SilentServers([4, 7, 9], DEADLINE_S, "played")


GONE = ServerUnavailable("it gives no answer")


def test_a_silent_server_is_left_out_for_a_while(silent):
    assert silent.add(7, GONE)
    assert silent.answering() == [4, 9]
    CLOCK.now += SILENT_S - 0.1
    assert silent.answering() == [4, 9]
    CLOCK.now += 0.1
    assert silent.answering() == [4, 7, 9]


def test_while_others_are_left_a_silent_server_stays_so_for_longer_than_a_deadline(silent):
    assert silent.add(4, GONE)
    CLOCK.now += 2 * DEADLINE_S
    assert silent.add(7, GONE)
    assert silent.answering() == [9]


def test_all_are_asked_while_another_reader_is_noting_that_none_answered(silent):
    silent._silent = dict.fromkeys([4, 7, 9], CLOCK.now)
    assert silent.answering() == [4, 7, 9]


def test_a_server_that_answers_is_there_again(silent):
    for server in (4, 7):
        assert silent.add(server, GONE)
    silent.remove(4)
    silent.remove(9)  # it was not left out
    assert silent.answering() == [4, 9]


def test_servers_that_fall_silent_together_are_all_asked_next_time(silent):
    assert silent.add(4, GONE)
    assert silent.add(7, GONE)
    CLOCK.now += DEADLINE_S
    assert not silent.add(9, GONE)
    assert silent.answering() == [4, 7, 9]
    silent.forget()
    assert silent.answering() == [4, 7, 9]
    assert silent.add(9, GONE)


def test_before_all_are_given_up_those_are_asked_that_were_lost_earlier(silent):
    assert silent.add(4, GONE)
    CLOCK.now += 1.0
    assert silent.add(7, GONE)
    CLOCK.now += DEADLINE_S
    assert silent.add(9, GONE)  # server 4 fell silent before a deadline and a second, and may be back
    assert silent.answering() == [4]


def test_the_log_says_once_that_a_server_is_left_out(silent, monkeypatch, caplog):
    monkeypatch.setattr(server_pool.logger, "disabled", False)
    for _ in range(2):
        silent.add(4, GONE)
        assert [message[:25] for message in caplog.messages] == ["played: left out for 60 s"]


def test_the_server_that_has_least_to_do_takes_over(silent):
    world = World(Config(servers=(4, 7, 9), ahead=2))
    world.silent.add(4, GONE)
    for worker, index in ((1, 0), (2, 1), (1, 2), (0, 3), (0, 4)):
        world.pool.give(worker, Task(1, 2, index))
    assert [server for server, _, _ in world.asked] == [7, 9, 7, 9, 7]


def test_it_waits_as_long_as_it_may_unless_it_is_woken():
    pool = ServerPool(None, 1, (4, 7), None, 1)
    began = time.monotonic()
    assert pool.receive(0.05) is None
    assert time.monotonic() - began >= 0.05
    pool.wake()
    assert pool.num_arrived == 1
    assert pool.receive(BOUND_S) is None
    assert time.monotonic() - began < BOUND_S


def test_it_says_what_its_servers_do():
    world = World(Config())
    world.pool.give(0, Task(1, 2, 0))
    CLOCK.now += 2.0
    world.pool.give(0, Task(1, 2, 1))
    assert world.pool.whereabouts(0) == "server 4 has been asked for 2.0 s"
    assert world.pool.whereabouts(1) == "server 7 has no task"
    assert (world.pool.name_of(0), world.pool.begin()) == ("", 1)


# --- The search


@pytest.mark.parametrize("config", ranked(CONFIGS.values(), 4), ids=CONFIGS)
def test_no_order_of_answers_loses_or_doubles_a_minibatch(config):
    assert explore_by_replay(lambda: World(config)).ends > 0
