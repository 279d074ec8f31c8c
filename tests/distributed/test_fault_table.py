"""docs/errors.md, "Faults": each row is played with real processes, threads and servers, and looks as it says.

A player brings about the fault of a row; tests/support/fault_plays.py has what it uses. The test compares the errors,
the minibatches and the log with the row. Most players have a fast form; the others are for `make test-all`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import multiprocessing
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from amounts import amount
from channels import damage_slots
from fault_plays import PAGE, Breaks, BreaksAsync, Play, Received, die, die_once, rows_of
from parts_on_disk import seeds
from pipelines import BOUND_S, digests, items, sampled, small_graph, wait_until
from scripts import ended
from warm_servers import Supervisor, WarmServer
from worker_ways import workers

import datapipes as dp
from datapipes.distributed import (
    DistFeatureStore,
    DistGraph,
    PartitionServer,
    RemoteReceivingChannel,
    RemoteSource,
    SamplerPool,
    SamplerReceiver,
    SamplerSender,
    ServerLimits,
    connect,
    partition_client,
    sampler_receiver,
)
from datapipes.distributed.server import producers

SHORT_S = 1.0  # a deadline that a test waits for
FORKED = {"num_workers": 2, "multiprocessing_context": "fork"}
THREADS = {"num_workers": 2, "worker_method": "thread"}
ONE_AHEAD = {"num_workers": 1, "multiprocessing_context": "fork", "prefetch_factor": 1, "overlap": False}

ROWS = rows_of(PAGE.read_text(encoding="utf-8"))
PLAYERS: dict[str, Callable[[Play], None]] = {}
SLOW: set[str] = set()  # the faults that only `make test-all` plays


def plays(fault: str, *, slow: bool = False) -> Callable[[Callable[[Play], None]], Callable[[Play], None]]:
    """Let a function play the row of this fault."""

    def keep(player: Callable[[Play], None]) -> Callable[[Play], None]:
        assert fault not in PLAYERS
        PLAYERS[fault] = player
        SLOW.update({fault} if slow else ())
        return player

    return keep


# --- worker processes


def of_workers(loader: dp.DataLoader) -> dict[str, float]:
    return loader.stats()["workers"]


@plays("a worker process dies while it makes a minibatch")
def _(play: Play) -> None:
    every = [(method, channel) for method in ("fork", "forkserver") for channel in ("shm", "mp")]
    for method, channel in amount(every, [every[0], every[3]]):
        chain = sampled()
        options = {"num_workers": 2, "multiprocessing_context": method, "channel": channel}
        with dp.DataLoader(play.broken("die once"), max_restarts=play.max_restarts, **options) as loader:
            for _ in range(2):
                play.read(loader, expected=digests(chain))
            assert of_workers(loader)["deaths"] == 1
            assert of_workers(loader)["made_again"] >= 1
    told = "killed by SIGKILL, perhaps since memory ran out. It was making minibatch 3 of epoch 0"
    assert told in play.fixture("caplog").text


@plays("a worker process dies while it waits for work")
def _(play: Play) -> None:
    def kill_idle() -> None:
        pool = loader._plan.root._running.pool
        wait_until(lambda: pool.whereabouts(0).endswith("waits for a task"))
        (worker,) = workers()
        worker.kill()
        worker.join()

    chain = sampled()
    with dp.DataLoader(chain, max_restarts=play.max_restarts, **ONE_AHEAD) as loader:
        play.read(loader, kill_idle, expected=digests(chain))
        assert of_workers(loader)["deaths"] == 1
        kill_idle()
        play.read(loader, expected=digests(chain))


def exit_while(is_broken: str, worker: int) -> None:
    if os.path.exists(is_broken):
        os._exit(7)


def die_while(is_broken: str, worker: int) -> None:
    if os.path.exists(is_broken):
        die()


@plays("a worker process is killed while it starts")
def _(play: Play) -> None:
    play.is_broken.touch()
    prepare = functools.partial(die_once, str(play.is_broken))
    with dp.DataLoader(sampled(), worker_init_fn=prepare, max_restarts=1, **FORKED) as loader:
        play.read(loader)
    assert not play.is_broken.exists()


@plays("a worker process exits while it starts, or is killed more often in a row")
def _(play: Play) -> None:
    for function, how in ((exit_while, "it exited with code 7"), (die_while, "it was killed by SIGKILL")):
        play.is_broken.touch()
        prepare = functools.partial(function, str(play.is_broken))
        with dp.DataLoader(sampled(), worker_init_fn=prepare, max_restarts=1, **FORKED) as loader:
            play.read(loader)
        assert re.search(rf"worker \d \(pid \d+\) died while it started: {how}", str(play.seen[-1]))
        assert len(play.seen[-1].pids) == 1


@plays("more than `max_restarts` worker processes die at one minibatch")
def _(play: Play) -> None:
    for method in ("fork", "forkserver"):
        options = {**FORKED, "multiprocessing_context": method}
        with dp.DataLoader(play.broken("die"), max_restarts=play.max_restarts, **options) as loader:
            play.read(loader)
            assert of_workers(loader)["deaths"] == 2
        error = play.seen[-1]
        assert len({*error.pids}) == 2
        for part in ("2 workers", "minibatch 3 of epoch 0", "SIGKILL", "memory", str(error.pids[-1])):
            assert part in str(error)


@plays("a worker process stands still, by SIGSTOP or a debugger")
def _(play: Play) -> None:
    for then, restarts in ((signal.SIGCONT, play.max_restarts), (signal.SIGKILL, 1)):
        stopped: list[int] = []

        def stop(stopped: list[int] = stopped) -> None:
            stopped += [worker.pid for worker in workers()]
            os.kill(stopped[0], signal.SIGSTOP)

        def let_go(stopped: list[int] = stopped, then: int = then) -> None:
            late = str(play.seen[-1])  # also of a worker that takes long to start
            if "is stopped by a signal" in late:
                assert re.search(rf"within 0.3 s.*minibatch \d of epoch 0: worker 0 \(pid {stopped[0]}\) is", late)
                assert f"`kill -CONT {stopped[0]}` lets it go on; it " in late
                os.kill(stopped[0], then)

        with dp.DataLoader(sampled(), timeout=0.3, max_restarts=restarts, **ONE_AHEAD) as loader:
            play.read(loader, stop, let_go)
            assert of_workers(loader)["deaths"] == (then == signal.SIGKILL)


@plays("a process overwrites the memory of the channel of a loader")
def _(play: Play) -> None:
    def damage() -> None:
        damage_slots(*loader._plan.root._running.pool._channel._shared.memory)

    def look() -> None:
        assert workers() == []

    chain = sampled(items(200))
    for persistent in (True, False):
        options = {**FORKED, "shm_size": "1MB", "persistent_workers": persistent}
        with dp.DataLoader(chain, max_restarts=play.max_restarts, **options) as loader:
            play.read(loader, damage, look, digests(sampled(items(200))))
            assert of_workers(loader)["deaths"] == 0
        play.check_notes(".*starts others, with a new channel")


# --- time-outs


@plays("no minibatch comes within `timeout` of a loader")
def _(play: Play) -> None:
    for overlap in (True, False):
        chain = play.broken("wait")
        with dp.DataLoader(chain, 1, worker_method="thread", timeout=0.05, overlap=overlap) as loader:
            play.read(loader)
        assert all("stage 2 (breaks)" in str(error) or "worker" in str(error) for error in play.seen)


@plays("`recv` of a channel gets no message within its `timeout`")
def _(play: Play) -> None:
    def send_all(channel: dp.stages.ChannelBase) -> None:
        for minibatch in play.broken("wait"):
            channel.send(minibatch.to_message())
        channel.end_epoch()

    for channel in (dp.ShmChannel(4, "1MB"), dp.MpChannel()):
        with contextlib.closing(channel), ThreadPoolExecutor(1) as threads:
            sent = threads.submit(send_all, channel)
            play.read(Received(channel, 0.1))
            sent.result(BOUND_S)
    with served(play, "wait", Received) as received:
        received.timeout_s = 0.1
        play.read(received)


# --- stages that raise

WHERE = "in stage 2 (breaks), epoch 0, minibatch 3"


@plays("a stage raises in this process")
def _(play: Play) -> None:
    for options in (None, {}, {"overlap": False}):
        chain = play.broken("raise")
        play.read(chain if options is None else dp.DataLoader(chain, **options))
        assert getattr(play.seen[-1], "__notes__", [WHERE]) == [WHERE]


@plays("a stage raises in a worker thread")
def _(play: Play) -> None:
    with dp.DataLoader(play.broken("raise"), **THREADS) as loader:
        play.read(loader)
    play.check_notes(re.escape(WHERE), r"in worker \d$")


@plays("a stage raises in a worker process")
def _(play: Play) -> None:
    for how, persistent in (("raise", True), ("raise picky", False)):
        options = {**FORKED, "persistent_workers": persistent}
        with dp.DataLoader(play.broken(how), max_restarts=play.max_restarts, **options) as loader:
            play.read(loader)
            assert of_workers(loader)["deaths"] == 0
        play.check_notes(re.escape(WHERE), r"in worker \d$")
        assert "in raise_it" in str(play.seen[-1].__cause__)


@plays("an asynchronous stage raises")
def _(play: Play) -> None:
    for options in ({}, {"overlap": False}, THREADS, FORKED):
        with dp.DataLoader(play.broken("raise", BreaksAsync), **options) as loader:
            play.read(loader)
        play.check_notes(r"in stage 2 \(breaks_async\), epoch 0, minibatch 3")


@plays("a stage raises on a server")
def _(play: Play) -> None:
    for how, kind, reader in (
        ("raise", Breaks, dp.DataLoader),
        ("raise", BreaksAsync, Received),
        ("raise picky", BreaksAsync, dp.DataLoader),
        ("raise picky", Breaks, Received),
    ):
        with served(play, how, reader, kind) as minibatches:
            play.read(minibatches)
        play.check_notes(r"in stage 2 \(breaks", "on server 0 at 127.0.0.1:")
        assert "in raise_it" in str(play.seen[-1].__cause__)


@plays("a stage raises SystemExit, KeyboardInterrupt or GeneratorExit")
def _(play: Play) -> None:
    for options in ({"overlap": False}, {}, THREADS, FORKED):
        with dp.DataLoader(play.broken("exit"), **options) as loader:
            play.read(loader)
        assert type(play.seen[-1]) is (SystemExit if "overlap" in options else RuntimeError)
        play.check_notes(re.escape(WHERE))
    with served(play, "exit", dp.DataLoader) as minibatches:
        play.read(minibatches)
    assert "a stage raised SystemExit: 5" in str(play.seen[-1])


# --- servers of parts


def chain_of_parts(graph: Any, store: Any) -> dp.Stage:
    """100 minibatches: more than two workers make ahead of the fault, which comes after two."""
    return seeds(400).sample_neighbor(graph, [4, 4]).fetch_feature(store, ["x"])


def of_whole(play: Play) -> list[str]:
    """The digests of an epoch over the undivided graph."""
    graph = play.fixture("graph")
    x = dp.TensorFeature(graph.node_attributes_of(None)["x"])
    return digests(chain_of_parts(graph, dp.FeatureStore({("node", None, "x"): x})))


@contextlib.contextmanager
def parts(
    play: Play, kind: Callable[..., Any], servers: int, deadline: float, **options: Any
) -> Iterator[tuple[list[Any], Callable[[], Any], dp.DataLoader]]:
    """So many servers of part 1, a function that tells which one this process asks first, a loader over the parts."""
    root = play.fixture("root")
    with contextlib.ExitStack() as stack:
        running = {server.address: server for server in (stack.enter_context(kind(root, 1)) for _ in range(servers))}
        graph = DistGraph.connect(root, {1: [*running]}, local_part=0, deadline=deadline)
        stack.callback(graph.close)

        def asked_first() -> Any:
            if len(running) == 1:
                return next(iter(running.values()))
            return running[str(graph.peers._remote_part(1)._places.all()[0])]

        loader = dp.DataLoader(chain_of_parts(graph, DistFeatureStore(graph)), **options)
        yield [*running.values()], asked_first, stack.enter_context(loader)


def read_parts(play: Play, fault: str, servers: int, deadline: float, **options: Any) -> None:
    """Read while the server that is asked first is killed, or frozen; after an error it is there again."""
    broken: list[WarmServer] = []

    def begin() -> None:
        broken.append(asked_first())
        broken[0].kill() if fault == "kill" else broken[0].freeze()

    def repair() -> None:
        broken[0].start() if fault == "kill" else broken[0].thaw()

    with parts(play, WarmServer, servers, deadline, **options) as (_, asked_first, loader):
        play.read(loader, begin, repair, of_whole(play))
    assert broken
    for error in play.seen:
        assert re.match(rf"part 1 at 127[.0-9]+:\d+: no answer within {deadline:g} s", str(error))
    if play.seen:
        play.check_notes(".*minibatch")


@plays("the server of a part dies, and starts again at its address")
def _(play: Play) -> None:
    options = {"num_workers": 2, "max_restarts": play.max_restarts}
    with parts(play, Supervisor, 1, BOUND_S, **options) as ((server,), _, loader):
        play.read(loader, server.kill, expected=of_whole(play))
        assert of_workers(loader)["deaths"] == 0
        server.wait_until_ready()


@plays("the server of a part is lost, and there is a replica")
def _(play: Play) -> None:
    read_parts(play, "kill", 2, BOUND_S)


@plays("the server of a part is lost, and there is none other")
def _(play: Play) -> None:
    for num_workers in amount([0, 2], [2]):
        read_parts(play, "kill", 1, SHORT_S, num_workers=num_workers)


@plays("the server of a part stands still, and there is a replica", slow=True)
def _(play: Play) -> None:
    read_parts(play, "freeze", 2, 3 * SHORT_S)


@plays("the server of a part stands still, and there is none other", slow=True)
def _(play: Play) -> None:
    read_parts(play, "freeze", 1, SHORT_S)


# --- servers of producers

READERS = (dp.DataLoader, Received)


def reader_of(kind: type, pipe: dp.Stage, channel: RemoteReceivingChannel) -> Any:
    return Received(channel) if kind is Received else dp.DataLoader(RemoteSource(pipe, channel))


@contextlib.contextmanager
def served(
    play: Play,
    how: str,
    reader: type,
    kind: type[Breaks] = Breaks,
    num_workers: int = 0,
    deadline: float = BOUND_S,
) -> Iterator[Any]:
    """A loader or a channel of a chain that breaks on a server in this process."""
    options = {"chains": True, "stages": [kind], "limits": ServerLimits(max_workers=1)}
    with PartitionServer(small_graph(), **options) as server, connect({0: server.address}, deadline=deadline) as client:
        pipe = play.broken(how, kind)
        producer = client.create_producer(0, pipe, num_workers=num_workers)
        yield reader_of(reader, pipe, RemoteReceivingChannel(0, producer, client=client))


def read_producer(
    play: Play,
    fault: str,
    servers: int,
    deadline: float,
    readers: tuple[type, ...] = READERS,
    kind: Callable[..., Any] = WarmServer,
) -> None:
    """Read by a loader, or a channel, while a server is killed, or frozen; after an error it is there again."""
    small_graph().save(root := play.folder / "graph")
    for reader in readers:
        with contextlib.ExitStack() as stack:
            running = [stack.enter_context(kind(root, None, "--chains")) for _ in range(servers)]
            book = {rank: server.address for rank, server in enumerate(running)}
            client = stack.enter_context(connect(book, deadline=deadline))
            pipe = sampled(items(80))
            made = [client.create_producer(rank, pipe) for rank in book]
            channel = RemoteReceivingChannel([*book], made, client=client, prefetch_size=1)
            last = running[-1]

            def repair(last: Any = last) -> None:
                last.start() if fault == "kill" else last.thaw()

            play.read(reader_of(reader, pipe, channel), getattr(last, fault), repair, digests(sampled(items(80))))
            if kind is Supervisor:
                last.wait_until_ready()
    for error in play.seen:
        assert re.match(rf"server 0 at .*: no answer within {deadline:g} s", str(error))


@plays("the server of a producer dies, and starts again at its address")
def _(play: Play) -> None:
    read_producer(play, "kill", 1, BOUND_S, amount(READERS, READERS[:1]), Supervisor)


@plays("the server of a producer is lost, and there are others")
def _(play: Play) -> None:
    read_producer(play, "kill", 2, 10 * BOUND_S)  # which is not waited for


@plays("the server of a producer is lost, and there is none other, or all are lost")
def _(play: Play) -> None:
    read_producer(play, "kill", 1, SHORT_S, amount(READERS, READERS[1:]))


@plays("the server of a producer stands still, and there are others", slow=True)
def _(play: Play) -> None:
    read_producer(play, "freeze", 2, SHORT_S)


@plays("the server of a producer stands still, and there is none other", slow=True)
def _(play: Play) -> None:
    read_producer(play, "freeze", 1, SHORT_S)


@plays("a server needs longer for a minibatch than the deadline", slow=True)
def _(play: Play) -> None:
    for reader in READERS:
        with served(play, "wait", reader, deadline=SHORT_S) as minibatches:
            play.read(minibatches)
        assert "had not answered yet: if it needs longer, raise deadline" in str(play.seen[-1])


@plays("a worker process of a producer dies while it makes a minibatch")
def _(play: Play) -> None:
    how = "die once" if play.max_restarts else "die"  # the server has a limit of its own
    with served(play, how, dp.DataLoader, num_workers=1) as minibatches:
        play.read(minibatches)
    assert not play.is_broken.exists()


@plays("more than 3 worker processes of a producer die at one minibatch", slow=True)
def _(play: Play) -> None:
    for reader in READERS:
        with served(play, "die", reader, num_workers=1) as minibatches:
            play.read(minibatches)
        assert "4 workers died while they made minibatch 3 of epoch 0" in str(play.seen[-1])
        assert len({*play.seen[-1].pids}) == 4


# --- other ends


def train(there: Any, address: str) -> None:
    """Read two minibatches of a loader with workers, and be a client of a producer; tell the state, and wait."""
    loader = dp.DataLoader(sampled(), **FORKED)
    for minibatch in loader:
        if minibatch.index == 1:
            break
    client = connect({0: address})
    client.create_producer(0, sampled())
    there.send((loader.state_dict(), [worker.pid for worker in workers()]))
    signal.pause()


@plays("the trainer dies")
def _(play: Play) -> None:
    play.fixture("monkeypatch").setattr(producers, "LOOK_S", 0.1)
    context = multiprocessing.get_context("forkserver")
    with PartitionServer(small_graph(), chains=True) as server:
        here, there = context.Pipe(duplex=False)
        trainer = context.Process(target=train, args=(there, server.address))
        trainer.start()
        there.close()
        assert here.poll(BOUND_S)
        state, pids = here.recv()
        assert len(pids) == 2
        assert len(server.statistics()["producers"]) == 1
        trainer.kill()
        trainer.join()
        here.close()
        wait_until(lambda: all(ended(pid) for pid in pids))
        play.fixture("monkeypatch").setattr(producers, "IDLE_S", 0.1)
        wait_until(lambda: server.statistics()["producers"] == [])
    with dp.DataLoader(sampled()) as loader:
        loader.load_state_dict(state)
        assert digests(loader) == digests(sampled())[2:]


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


def child(work: Callable[..., None], *arguments: Any) -> Any:
    process = multiprocessing.get_context("forkserver").Process(target=work, args=arguments, daemon=True)
    process.start()
    return process


def send_some(address: str, count: int) -> None:
    sender = SamplerSender({0: address}, timeout=BOUND_S)
    for minibatch in itertools.islice(sampled(), count):
        sender.send(minibatch, 0)
    threading.Event().wait()


def receive_some(address: str, count: int) -> None:
    receiver = SamplerReceiver(None, address, 1, timeout=BOUND_S)
    for _ in range(count):
        next(receiver)
    threading.Event().wait()


def send_rest(address: str, already: int) -> None:
    """Send what is left of an epoch, and its end."""
    with SamplerSender({0: address}, timeout=BOUND_S) as sender:
        for minibatch in itertools.islice(sampled(), already, None):
            sender.send(minibatch, 0)
        sender.signal(0)


@plays("a SamplerSender dies in the middle of an epoch")
def _(play: Play) -> None:
    play.fixture("monkeypatch").setattr(sampler_receiver, "_GONE_S", 0.3)
    sender = child(send_some, address := free_address(), 2)
    with SamplerReceiver(None, address, 1, timeout=BOUND_S) as receiver:
        play.read(receiver, sender.kill, lambda: send_rest(address, 2))
    assert f"'process {sender.pid} of {socket.gethostname()}' has ended, or its machine is away" in str(play.seen[0])


def send_many(sender: SamplerSender) -> None:
    for minibatch in itertools.islice(itertools.cycle(sampled()), 100):
        sender.send(minibatch, 0)


@plays("a SamplerReceiver dies")
def _(play: Play) -> None:
    receiver = child(receive_some, address := free_address(), 1)
    sender = SamplerSender({0: address}, timeout=4 * BOUND_S)  # which is not waited for
    sender.send(next(iter(sampled())), 0)
    receiver.kill()
    receiver.join()
    with pytest.raises(dp.ServerUnavailable, match=f"receiver 0 at {address}: nothing listens there any more") as lost:
        send_many(sender)
    sender._abandon()
    play.seen.append(lost.value)
    with ThreadPoolExecutor(1) as threads:
        sent = threads.submit(send_rest, address, 0)
        with SamplerReceiver(None, address, 1, timeout=BOUND_S) as another:
            assert digests(another) == digests(sampled())
            sent.result(BOUND_S)


class OwnPool(SamplerPool):
    """Processes of which one dies, as long as a file exists, while the others wait; then each writes digests."""

    def worker(self, args: Path) -> None:
        if not (args / "is_broken").exists():
            (args / str(os.getpid())).write_text(" ".join(digests(sampled())))
            return
        with contextlib.suppress(FileExistsError):
            (args / "is_first").touch(exist_ok=False)
            die()
        signal.pause()


@plays("a process of a SamplerPool dies")
def _(play: Play) -> None:
    play.is_broken.touch()
    with pytest.raises(dp.PeerDied, match=r"worker \d \(pid \d+\) did not end well: it was killed by SIGKILL") as lost:
        OwnPool().start(3, play.folder)
    assert len(lost.value.pids) == 1
    assert multiprocessing.active_children() == []
    play.seen.append(lost.value)
    play.repair()
    OwnPool().start(3, play.folder)
    told = [path.read_text().split() for path in play.folder.iterdir() if path.name.isdigit()]
    assert told == 3 * [digests(sampled())]


# --- the table


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch):
    """Check that each row has ended its workers. A client that ends waits a moment for servers that are gone."""
    monkeypatch.setattr(partition_client, "_FAREWELL_S", 0.05)
    yield
    wait_until(lambda: workers() == [])


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=[pytest.mark.full] if fault in SLOW else []) for fault in ROWS]
)
def test_a_fault_looks_as_its_row_says(fault, request, caplog):
    assert fault in PLAYERS, "nothing plays this row: write its player here"
    row = ROWS[fault]
    assert row.charged in ("yes", "no")
    is_charged = row.charged == "yes"
    play = Play(row, request, max_restarts=int(is_charged))  # with 0 a charge would be an error
    PLAYERS[fault](play)
    assert {type(error) for error in play.seen} == row.errors
    if is_charged and not row.errors:
        with pytest.raises(dp.PeerDied, match="died while they made minibatch 3 of epoch 0"):
            PLAYERS[fault](Play(row, request, max_restarts=0))
    assert not is_charged or row.errors <= {dp.PeerDied}
    if "a warning in the log" in row.you_see:
        assert any(record.name == "datapipes" and record.levelno == logging.WARNING for record in caplog.records)


def test_every_player_has_a_row():
    assert PLAYERS.keys() == ROWS.keys()
