"""ServerPool: lets a Dispatcher use servers as it uses worker processes. It asks the servers for minibatches of a chain
by epoch and index.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

from datapipes.base.errors import ServerUnavailable
from datapipes.base.log import logger
from datapipes.base.outcome import as_error
from datapipes.chain.pool import Outcome, Pool, Task
from datapipes.distributed.partition_client import PartitionClient
from datapipes.distributed.requests.chains import Made

SILENT_S = 60.0  # a server without an answer is left out for this time, if there are others


class SilentServers:
    """Records which servers gave no answer lately. They are not asked for SILENT_S seconds, as long as there are other
    servers.

    Args:
        servers: the ranks of all servers.
        deadline: seconds after which a request without an answer ends.
        name: who uses the servers, for the log.
    """

    def __init__(self, servers: Sequence[int], deadline: float, name: str) -> None:
        self._servers, self._deadline, self._name = servers, deadline, name
        self._silent: dict[int, float] = {}  # {server: since when}

    def answering(self) -> list[int]:
        """Return the ranks of the servers to ask: those that are not silent. If all are silent, return all."""
        return [server for server in self._servers if server not in self.silent] or [*self._servers]

    @property
    def silent(self) -> set[int]:
        """The ranks of the servers that have left a request without an answer within the last SILENT_S seconds."""
        now = time.monotonic()
        return {server for server, since in [*self._silent.items()] if now - since < SILENT_S}

    def add(self, server: int, error: ServerUnavailable) -> bool:
        """Record that `server` gave no answer, with `error` for the log. Return True if there is another server to ask.

        If all servers are silent, those that fell silent longer than a deadline ago may be back by now, so they are
        asked again.
        """
        now = time.monotonic()
        if server not in self._silent:
            logger.warning(
                "%s: left out for %g s, so that other servers make its share: %s", self._name, SILENT_S, error
            )
        self._silent[server] = now
        if len(self._silent) < len(self._servers):
            return True
        before = now - self._deadline - 1.0  # servers that are lost together fall silent within a deadline
        self._silent = {server: since for server, since in self._silent.items() if since > before}
        return len(self._silent) < len(self._servers)

    def forget(self) -> None:
        """Forget which servers were silent, so that all are asked again."""
        self._silent = {}

    def remove(self, server: int) -> None:
        """Record that `server` gave an answer, so that it is asked like the other servers."""
        self._silent.pop(server, None)


class _Asked(NamedTuple):
    worker: int
    server: int
    waits: bool  # whether to wait for the server if it is gone
    began: float  # of time.monotonic
    answer: Future[Made]


class ServerPool(Pool):
    """The servers that run a chain, used by a Dispatcher like a pool of worker processes. A ServerPool is for one
    reader and one epoch.

    A server that gives no answer is not treated as a worker that died: its minibatch is not to blame, and can be asked
    of another server. For a while, the server's requests go to the least busy of the other servers. While there are
    other servers, no request waits for a server that has ended. If no server is left, `receive` raises
    ServerUnavailable.
    """

    where = "remote_source"
    makers = "connections"

    def __init__(
        self, client: PartitionClient, producer: int, servers: Sequence[int], silent: SilentServers, ahead: int
    ):
        super().__init__()
        self.num_workers, self.tasks_each = len(servers), ahead
        self._client, self._producer, self._servers, self._silent = client, producer, servers, silent
        self._done: queue.SimpleQueue[tuple[Task, Future[Made]] | None] = queue.SimpleQueue()
        self._asked: dict[Task, _Asked] = {}

    def begin(self) -> int:
        return 1

    def give(self, worker: int, task: Task) -> None:
        server, answering = self._servers[worker], self._silent.answering()
        if server not in answering:
            server = min(answering, key=[asked.server for asked in self._asked.values()].count)
        self._ask(worker, server, task, waits=len(answering) == 1)

    def _ask(self, worker: int, server: int, task: Task, *, waits: bool) -> None:
        done = self._done
        answer = self._client._made(server, self._producer, task.epoch, task.index, waits=waits)
        self._asked[task] = _Asked(worker, server, waits, time.monotonic(), answer)
        answer.add_done_callback(lambda answer: done.put((task, answer)))

    def receive(self, timeout: float) -> Outcome | None:
        ends = time.monotonic() + timeout
        while True:
            try:
                done = self._done.get(timeout=max(ends - time.monotonic(), 0.0))
            except queue.Empty:
                return None
            if done is None:
                return None
            task, answer = done
            asked = self._asked.get(task)
            if asked is None or asked.answer is not answer:
                continue  # the task was given again meanwhile
            del self._asked[task]
            error = answer.exception()
            if not isinstance(error, ServerUnavailable):
                self._silent.remove(asked.server)
                made = Made(None, as_error(error)) if error is not None else answer.result()
                return Outcome(asked.worker, task, *made)
            has_waited = asked.waits or time.monotonic() - asked.began >= self._client.deadline
            if self._silent.add(asked.server, error):
                self.give(asked.worker, task)
            elif not has_waited:  # no other server has answered
                self._ask(asked.worker, asked.server, task, waits=True)
            else:
                self._silent.forget()
                self._asked.clear()
                raise error

    def wake(self) -> None:
        """Let a call of `receive` that waits in another thread return at once."""
        self._done.put(None)

    @property
    def num_arrived(self) -> int:
        """Number of answers that have arrived and that `receive` has not returned yet."""
        return self._done.qsize()

    def whereabouts(self, worker: int) -> str:
        server = self._servers[worker]
        began = [asked.began for asked in self._asked.values() if asked.server == server]
        where = self._client.where(server)
        return f"{where} has been asked for {time.monotonic() - min(began):.1f} s" if began else f"{where} has no task"

    def name_of(self, worker: int) -> str:
        return ""  # the error names the server

    def close(self) -> None:
        """Does nothing: requests in flight end by themselves, and the servers go on."""
