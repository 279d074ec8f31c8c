"""Workers as threads of this process: nothing is copied, and the kernels run side by side.

The threads share the stages, so the functions of stages must not keep state of their own. Their Python code waits for
the GIL.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from datapipes.base.log import logger
from datapipes.base.outcome import as_error
from datapipes.base.threads import EndingThread, preempt_nobody, share_of, threads_of_kernels
from datapipes.chain.pool import Death, Outcome, Pool, Task, at_work
from datapipes.chain.stage import Stage
from datapipes.device.handover import Queued, current_streams, leave, take
from datapipes.device.runtime import Stream
from datapipes.loader.options import LoaderOptions
from datapipes.loader.workers.making import tasks_for_each, work
from datapipes.minibatch import MiniBatch
from datapipes.processes.child import end_if_clone

JOIN_S = 5.0  # seconds that closing waits for minibatches that are being made


class MakingHere(dict[Task, float]):
    """The tasks that a worker of this process is making: {task: when it began}, the oldest first."""

    def begin(self, task: Task) -> None:
        self[task] = time.monotonic()

    def end(self, task: Task) -> None:
        self.pop(task, None)

    def in_words(self, who: str) -> str:
        """Return a sentence on the tasks that `who` is making, and on how long `who` has been making them."""
        began = self.copy()
        return at_work(who, [*began], time.monotonic() - min(began.values(), default=0.0))


class _State:
    """State that the worker threads share with the pool. It does not refer to the pool, which may be collected."""

    def __init__(self, root: Stage, options: LoaderOptions, streams: Sequence[Stream]) -> None:
        self.root, self.init, self.streams = root, options.worker_init_fn, streams
        self.generation = 0
        self.closed = False
        self.outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        workers = range(options.num_workers)
        self.tasks: list[queue.SimpleQueue[Task | None]] = [queue.SimpleQueue() for _ in workers]
        self.making = [MakingHere() for _ in workers]


@dataclass
class _Queued(Outcome):
    """An outcome whose minibatch waits for work that is queued on GPUs."""

    queued: list[Queued] = field(default_factory=list)


class ThreadPool(Pool):
    """Threads that make minibatches of the chain that ends in `root`.

    Args:
        streams: the streams on which the threads queue GPU work.
    """

    def __init__(self, root: Stage, options: LoaderOptions, streams: Sequence[Stream] = ()) -> None:
        super().__init__()
        self.num_workers = options.num_workers
        self.tasks_each = tasks_for_each(root, options.prefetch_factor)
        self._state = _State(root, options, streams)
        self._threads: list[threading.Thread] = []
        logger.info("data_loader: %d worker threads", self.num_workers)
        for worker in range(self.num_workers):
            name, num_threads = f"datapipes-worker-{worker}", share_of(self.num_workers)
            thread = EndingThread(_run, (worker, self._state, num_threads), name=name)
            self._threads.append(thread)
            thread.start()

    def begin(self) -> int:
        self._state.generation += 1
        return self._state.generation

    def give(self, worker: int, task: Task) -> None:
        self._state.tasks[worker].put(task)

    def receive(self, timeout: float) -> Outcome | Death | None:
        try:
            return self._state.outcomes.get(timeout=timeout)
        except queue.Empty:
            return None

    def taken(self, outcome: Outcome) -> MiniBatch:
        minibatch = super().taken(outcome)
        if isinstance(outcome, _Queued):
            take(minibatch, outcome.queued)
        return minibatch

    def whereabouts(self, worker: int) -> str:
        return self._state.making[worker].in_words(f"worker thread {worker}")

    def close(self) -> None:
        self.is_closed = self._state.closed = True
        self._state.generation += 1
        for tasks in self._state.tasks:
            tasks.put(None)
        if os.getpid() != self.process:
            return  # a forked child has no such threads
        ends = time.monotonic() + JOIN_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(ends - time.monotonic(), 0.0))
        self._threads = []


def _run(worker: int, state: _State, num_threads: int) -> None:
    def next_task() -> Task | None:
        while not state.closed:  # checked each time, since the None that ends the work is sent only once
            task = state.tasks[worker].get()
            if task is not None and not state.closed and task.generation == state.generation:
                return task
        return None

    preempt_nobody()
    process = os.getpid()
    error: Exception | None = None
    with threads_of_kernels(num_threads), current_streams(state.streams):
        try:
            if state.init is not None:
                state.init(worker)
        except BaseException as raised:
            error = as_error(raised, "worker_init_fn", "Raise an error, or return.")
        end_if_clone(process)
        if error is None:
            for outcome in work(worker, state.root, next_task, state.making[worker]):
                end_if_clone(process)
                if state.streams and outcome.minibatch is not None:
                    outcome = _Queued(**vars(outcome), queued=leave(outcome.minibatch))
                state.outcomes.put(outcome)
            return
    while (task := next_task()) is not None:  # worker_init_fn failed: answer each task with its error
        state.outcomes.put(Outcome(worker, task, error=error))
