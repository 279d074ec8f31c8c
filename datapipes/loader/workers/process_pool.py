"""Workers as processes: started, given tasks, watched, and started again when they die.

Each worker has a pipe for tasks, and a row of the board (board.py) in which it writes the tasks it is making. Outcomes
come through a ShmChannel or an inbox (inbox.py). A watch (processes/child.py) tells that a worker has died; the
worker's row tells which tasks it was making.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any

import torch

from datapipes import _core
from datapipes.base.codec import Message
from datapipes.base.error_message import error_from_json
from datapipes.base.errors import ChannelClosed, ChannelDamaged, PeerDied, QueueTimeoutError, add_note
from datapipes.base.log import logger
from datapipes.base.threads import share_of
from datapipes.chain.asynchronous import async_window
from datapipes.chain.pool import Death, Outcome, Pool, Task, at_work
from datapipes.chain.stage import Stage
from datapipes.chain.stage_graph import StageGraph
from datapipes.channel import ChannelBase, MpChannel, ShmChannel
from datapipes.loader.options import LoaderOptions
from datapipes.loader.workers.board import Board
from datapipes.loader.workers.inbox import Inbox
from datapipes.loader.workers.making import tasks_for_each
from datapipes.loader.workers.outcome_messages import CALLS, LABEL, Opener
from datapipes.loader.workers.worker_handle import Start, WorkerHandle
from datapipes.loader.workers.worker_process import main
from datapipes.processes.child import begin, end_all
from datapipes.processes.endings import how_it_exited, why_it_stands_still
from datapipes.processes.main_module import refuse_repetition
from datapipes.processes.sharing import Packed
from datapipes.processes.start import Context, prepare_server, require_descriptors

LOOK_S = 0.1  # seconds between two checks that all workers live
_KEPT = 4  # the channel has room for this many minibatches beyond those under way
_LEAST_SIZE = 2**22
_SHARE = 4  # a channel without a given size takes at most 1 / _SHARE of the memory that is left

_generations = itertools.count(1)  # shared by all pools: messages that an earlier pool left in a channel are stale


class ProcessPool(Pool):
    """Processes that make minibatches of the chain that ends in `root`.

    Args:
        root: the last stage before the cut.
        number: a random id of this loader. It tells the loader's messages from those of other loaders.
        chain: (root, worker_init_fn), in pickled form unless workers are forked.
        context: how processes are started.
        pin: whether minibatches are copied to a GPU from the channel's memory.
    """

    def __init__(
        self,
        root: Stage,
        number: int,
        chain: Packed | tuple[Any, ...],
        options: LoaderOptions,
        context: Context,
        *,
        pin: bool,
    ) -> None:
        super().__init__()
        self.num_workers = options.num_workers
        self.tasks_each = tasks_for_each(root, options.prefetch_factor)
        # Tasks that a worker is making, and tasks whose outcome is not sent yet: an outcome of an abandoned epoch can
        # be under way to the channel.
        self._making_at_once = 1 if async_window(StageGraph(root)) == 0 else self.tasks_each + 1
        self._capacity = 4 * self.num_workers * self.tasks_each + 16  # outcomes of an abandoned epoch may still wait
        self._num_steps = StageGraph(root).seed_stage.num_steps
        self._chain = chain
        self._context = context
        self._wanted_channel = options.channel
        self._shm_size = options.shm_size
        self._pin = pin
        self._id = number
        self._generation = 0  # no epoch has begun
        self._opener = Opener(self._id, StageGraph(root).numbering.labels())
        self._workers: list[WorkerHandle] = []
        self._channel: ChannelBase | None = None
        self._inbox: Inbox | None = None  # receives outcomes that come through no ShmChannel
        self._events: deque[Outcome | Death] = deque()
        self._looked = 0.0
        self._changing = threading.RLock()  # held while workers start or end; `close` may run in another thread
        self._start()

    # --- starting -----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        began = time.monotonic()
        if multiprocessing.current_process().daemon:
            raise RuntimeError(
                "data_loader: worker processes cannot be started in a worker process. Use worker_method='thread' or "
                "num_workers=0 there."
            )
        if self._context.get_start_method() != "fork":
            refuse_repetition(is_building=False)
        prepare_server(self._context)
        self._board = Board(self.num_workers, self._making_at_once)
        self._num_threads = share_of(self.num_workers)
        try:
            self._make_channel()
            for worker in range(self.num_workers):
                self._workers.append(self._launch(worker, 0))
        except BaseException:
            self.close()
            raise
        logger.info(
            "data_loader: started %d worker processes (%s) in %.2f s: pids %s",
            self.num_workers,
            self._context.get_start_method(),
            time.monotonic() - began,
            [worker.pid for worker in self._workers],
        )

    def _make_channel(self) -> None:
        """Make the channel, if its size is known already."""
        wanted = self._wanted_channel
        if isinstance(wanted, ShmChannel):
            self._use(wanted)
        elif wanted != "shm":
            self._inbox = Inbox()  # "mp" has a channel for each worker: a killed worker can leave a lock taken
            if isinstance(wanted, ChannelBase):
                self._channel = wanted
                self._inbox.listen(wanted)
        elif self._shm_size is not None:  # else the first outcome decides
            self._use(ShmChannel(self._capacity, self._shm_size))

    def _use(self, channel: ShmChannel) -> None:
        if self._pin:
            channel.pin_memory()
        self._channel = channel

    def _launch(self, worker: int, life: int) -> WorkerHandle:
        require_descriptors(f"data_loader: worker {worker} cannot be started")
        workers_own = MpChannel() if self._wanted_channel == "mp" else None
        channel = workers_own or self._channel

        def start(there: Connection) -> Start:
            return Start(
                worker=worker,
                life=life,
                loader_id=self._id,
                connection=there,
                chain=self._chain,
                board=self._board.packed,
                channel=channel,
                own_channel=not isinstance(self._wanted_channel, ChannelBase),
                explicit_size=self._shm_size is not None or isinstance(self._wanted_channel, ChannelBase),
                num_threads=self._num_threads,
            )

        self._board.clear(worker)
        name = f"datapipes-worker-{worker}"
        handle = begin(
            self._context, name, main, start, lambda process, here: WorkerHandle(process, here, life, workers_own)
        )
        if workers_own is not None:
            assert self._inbox is not None
            workers_own.only_receive()
            self._inbox.listen(workers_own, handle.process)
        return handle

    def replace(self, worker: int) -> None:
        with self._changing:
            self._check_usable()
            old = self._workers[worker]
            old.forget()
            self._opener.forget(worker)
            try:
                self._workers[worker] = self._launch(worker, old.life + 1)
            except BaseException as error:
                add_note(error, f"in place of worker {worker} (pid {old.pid}), which had died. All workers were ended.")
                self.close()
                raise

    # --- tasks and outcomes -------------------------------------------------------------------------------------------

    def begin(self) -> int:
        self._generation = next(_generations)
        if isinstance(self._channel, ShmChannel) and self._channel is not self._wanted_channel:
            with self._ending_with_channel():
                self._channel.reset(self._generation)  # a worker that waits for room then drops its stale message
        # A death not received yet counts in this epoch; a worker whose death ended the last epoch is started again.
        self._events = deque(event for event in self._events if isinstance(event, Death))
        still_to_tell = {death.worker for death in self._events}
        for number, worker in enumerate(self._workers):
            worker.forget_tasks()
            if worker.death_reported and number not in still_to_tell:
                self.replace(number)
        self._looked = 0.0  # deaths between epochs are seen at once
        return self._generation

    def give(self, worker: int, task: Task) -> None:
        self._workers[worker].give(task)

    def receive(self, timeout: float) -> Outcome | Death | None:
        self._check_usable()
        ends = time.monotonic() + timeout
        while not self._events:
            left = max(ends - time.monotonic(), 0.0)
            for worker in self._workers:
                worker.send_rest()
            if self._channel is None and self._inbox is None:
                pipes = [worker.pipe for worker in self._workers if not worker.death_reported]
                connection.wait(pipes, min(left, LOOK_S))
                self._look()
            else:
                message = self._next_message(min(left, LOOK_S))
                if message is not None:
                    is_whole = self._open(message)
                    if not is_whole and left > 0:
                        continue
                if message is None or time.monotonic() - self._looked > 1.0:
                    self._look()
            if left <= 0:
                break
        return self._events.popleft() if self._events else None

    @contextmanager
    def _ending_with_channel(self) -> Iterator[None]:
        """Context manager: if the code in its `with` block finds the loader's own channel damaged, end the workers. The
        next epoch starts other workers, with a new channel.
        """
        try:
            yield
        except ChannelDamaged as error:
            if self._channel is not self._wanted_channel:
                add_note(error, "The loader has ended its workers. The next epoch starts others, with a new channel.")
                self.close()
            raise

    def _check_usable(self) -> None:
        if self.is_closed or os.getpid() != self.process:
            raise RuntimeError(
                "data_loader: its workers were ended, or belong to another process. Call iter() again in this process."
            )

    def _next_message(self, timeout: float) -> Message | None:
        if isinstance(self._channel, ShmChannel):  # it survives the death of any worker, and stays readable
            with suppress(QueueTimeoutError, PeerDied), self._ending_with_channel():
                return self._channel.recv(timeout)
            return None
        assert self._inbox is not None
        try:
            return self._inbox.get(timeout)
        except Exception:
            # In a user's channel a dead worker may have left half a message; that minibatch is made again.
            self._look()
            if self.is_closed or not self._events:
                raise
            return None

    def _open(self, message: Message) -> bool:
        """Take in a worker's message; return whether the message completes an outcome."""
        label, outcome = self._opener.open(message)
        if outcome is None:
            return False
        worker = self._workers[outcome.worker]
        outcome.from_former_life = label.life != worker.life
        for number, call in enumerate(outcome.calls):
            outcome.calls[number] = call._replace(process=worker.pid, thread=f"worker {outcome.worker}")
        self._events.append(outcome)
        return True

    def _look(self) -> None:
        """Read the messages that workers have sent through their pipes, and check that the workers live."""
        self._looked = time.monotonic()
        for number, worker in enumerate(self._workers):
            for said in worker.messages():
                if "bytes" in said:
                    self._give_channel(said["bytes"])
                elif "outcome" in said:  # there is no channel yet, or the channel refuses
                    kinds = {LABEL: torch.int64, CALLS: torch.float64}  # others: an error, in bytes
                    parts = said["outcome"].items()
                    self._open({name: torch.tensor(part, dtype=kinds.get(name, torch.uint8)) for name, part in parts})
                else:
                    raise self._failed_start(number, said["error"])
            if not worker.death_reported and worker.has_ended():
                worker.death_reported = True
                row, code = self._board.row(number), worker.watch.exit_code()
                by_signal = code is None or code < 0
                how = how_it_exited(code)
                self._events.append(Death(number, worker.pid, how, row.tasks, row.is_ready, by_signal))

    def _give_channel(self, size: int) -> None:
        """Make the channel for minibatches of `size` bytes and pass it to all workers, unless there is one already."""
        if self._channel is None:
            room = (min(self.num_workers * self.tasks_each, self._num_steps) + _KEPT) * size
            wanted = max(room + room // 2, 8 * size)
            left, _ = _core.memory_left()
            num_bytes = max(min(wanted, left // _SHARE), _LEAST_SIZE)  # larger minibatches come in parts
            logger.info("data_loader: a minibatch takes %d bytes; the channel gets %d", size, num_bytes)
            self._use(ShmChannel(self._capacity, num_bytes))
            assert isinstance(self._channel, ShmChannel)
            self._channel.reset(self._generation)
            for worker in self._workers:  # workers that did not ask will need it too
                worker.give_channel(self._channel)

    def _failed_start(self, number: int, error: dict[str, list[int]]) -> Exception:
        raised = error_from_json(error, own_types=True)
        add_note(
            raised,
            f"in worker {number} (pid {self._workers[number].pid}) before its first minibatch. Workers get their "
            "stages and worker_init_fn pickled; make functions and classes importable there, or use "
            "multiprocessing_context='fork'.",
        )
        return raised

    # --- whereabouts and counts ---------------------------------------------------------------------------------------

    def whereabouts(self, worker: int) -> str:
        pid = self._workers[worker].pid
        who = f"worker {worker} (pid {pid})"
        if (stands_still := why_it_stands_still(pid)) is not None:
            who = f"{who} {stands_still}; it"
        tasks, seconds, is_ready = self._board.row(worker)
        return at_work(who, tasks, seconds) if is_ready else f"{who} is starting"

    def stats(self) -> dict[str, float]:
        if isinstance(self._channel, ShmChannel):
            with suppress(ChannelClosed, ChannelDamaged, QueueTimeoutError):  # none of them matters to a count
                return self._channel.stats()
        return {}

    def processes(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self.is_closed or os.getpid() != self.process:
            return
        with self._changing:
            self.is_closed = True
            try:
                self._let_end()
            finally:
                end_all(self._workers)
                self._workers = []

    def _let_end(self) -> None:
        if self._inbox is not None:
            self._inbox.close()
        for worker in self._workers:
            worker.ask_to_end()
        if isinstance(self._channel, ShmChannel) and self._channel is not self._wanted_channel:
            self._channel.close()  # a worker that waits in send then gets ChannelClosed
