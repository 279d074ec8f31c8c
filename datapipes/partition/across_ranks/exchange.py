"""Exchange: messages between the ranks of one call; a rank that fails ends the call on all of them.

A collective of gloo waits for a missing rank without naming it. So a vote precedes each collective: a rank enters the
collective once all ranks have voted.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from datapipes.base.errors import text_of
from datapipes.processes.ranks import RankError, Ranks, beat_key

_LOOKS = 10  # per heartbeat, once a connection is broken


@contextmanager
def exchange(where: str, timeout_s: float, error: type[RankError] = RankError) -> Iterator[Exchange]:
    """Meet all ranks of the default process group in the block, and leave it together.

    Arguments and errors are those of Ranks. Each collective may also take up to `timeout_s`.
    """
    after = contextlib.ExitStack()  # a group is ended when no rank sends any more
    with after, Exchange(where, timeout_s, error=error) as ranks:
        ranks.vote()
        if ranks.size > 1:
            after.callback(dist.destroy_process_group, ranks.connect())
        yield ranks


class Exchange(Ranks):
    """Ranks that send to each other; `exchange` makes it. All ranks call the same methods in the same order."""

    _group: Any = None

    def connect(self) -> Any:
        """Make and return a gloo group of all ranks. From then on its collectives carry the messages."""
        timeout = datetime.timedelta(seconds=self.timeout_s)
        with self._carrying():
            self._group = dist.new_group(backend="gloo", timeout=timeout)
        return self._group

    def to_each(self, messages: Sequence[Tensor]) -> list[Tensor]:
        """Send `messages[r]`, uint8 [n], to each rank r; return the messages of all ranks to this one, in their order.

        The returned tensors share one memory. The call needs a copy of `messages` too. Raises the errors of `vote`.
        """
        if self.size == 1:
            return [*messages]
        self.vote()
        sizes = torch.tensor([message.shape[0] for message in messages])
        coming = torch.empty_like(sizes)
        with self._carrying():
            dist.all_to_all_single(coming, sizes, group=self._group)
        counts: list[int] = coming.tolist()
        # Outside the block: want of memory is a RuntimeError, too.
        received, sent = torch.empty(sum(counts), dtype=torch.uint8), torch.cat([*messages])
        with self._carrying():
            dist.all_to_all_single(received, sent, counts, sizes.tolist(), group=self._group)
        return [*torch.split(received, counts)]

    def gather(self, value: Any) -> list[Any]:
        """Return the `value` of each rank, in their order. Values must be JSON values. Raises the errors of `vote`."""
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        return [json.loads(message.numpy().tobytes()) for message in self.to_each([data] * self.size)]

    @contextmanager
    def _carrying(self) -> Iterator[None]:
        """Turn the error of a collective, which names no rank, into a RankError that names one."""
        try:
            yield
        except RuntimeError as error:
            raise self._broken(error) from error

    def _broken(self, error: RuntimeError) -> RankError:
        """Return the error for a broken connection; look for a rank without heartbeat, or with a failure, to name."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        before = {rank: self._add(beat_key(rank), 0) for rank in others}
        for _ in range(3 * _LOOKS):
            self._ready(0)
            time.sleep(self.beat_s / _LOOKS)
        still = [rank for rank, beats in before.items() if self._add(beat_key(rank), 0) == beats]
        if still:
            return self._failure({still[0]: "it has ended, or does not answer any more"})
        return self._failure({self.rank: f"its connection to another rank is broken ({text_of(error)})"})
