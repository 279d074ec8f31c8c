"""Exchange: sends messages between the ranks of torch.distributed during one call; if one rank fails, all ranks stop.

A collective of gloo waits for a missing rank without naming it. So the ranks vote before each collective: a rank enters
it only after every rank has said that it is ready.
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

_LOOKS = 10  # how often, in each heartbeat interval, failures are looked for once a connection is broken


@contextmanager
def exchange(where: str, timeout_s: float, error: type[RankError] = RankError) -> Iterator[Exchange]:
    """Yield an Exchange.

    All ranks of the default process group enter this with statement together, and leave it together.

    `where`, `timeout_s` and `error` are the arguments of Ranks, whose errors are raised. Each collective may also take
    up to `timeout_s` seconds.
    """
    after = contextlib.ExitStack()  # destroys the group when no rank sends any more
    with after, Exchange(where, timeout_s, error=error) as ranks:
        ranks.vote()
        if ranks.size > 1:
            after.callback(dist.destroy_process_group, ranks.connect())
        yield ranks


class Exchange(Ranks):
    """Ranks (processes/ranks.py) that can also send tensors to each other. The function `exchange` makes the object.

    All ranks must call the same methods in the same order.
    """

    _group: Any = None

    def connect(self) -> Any:
        """Make a gloo process group of all ranks and return it. `to_each` and `gather` send through this group."""
        timeout = datetime.timedelta(seconds=self.timeout_s)
        with self._carrying():
            self._group = dist.new_group(backend="gloo", timeout=timeout)
        return self._group

    def to_each(self, messages: Sequence[Tensor]) -> list[Tensor]:
        """Send `messages[r]`, uint8 [n], to each rank r; return the messages that ranks 0, 1, ... sent to this rank.

        The lengths may differ. The returned tensors are views of one tensor. During the call, a copy of `messages` is
        in memory too. Raises RankError if another rank has failed or does not come.
        """
        if self.size == 1:
            return [*messages]
        self.vote()
        sizes = torch.tensor([message.shape[0] for message in messages])
        coming = torch.empty_like(sizes)
        with self._carrying():
            dist.all_to_all_single(coming, sizes, group=self._group)
        counts: list[int] = coming.tolist()
        # Outside of `_carrying`: a lack of memory is a RuntimeError, too.
        received, sent = torch.empty(sum(counts), dtype=torch.uint8), torch.cat([*messages])
        with self._carrying():
            dist.all_to_all_single(received, sent, counts, sizes.tolist(), group=self._group)
        return [*torch.split(received, counts)]

    def gather(self, value: Any) -> list[Any]:
        """Return a list of the `value` of every rank, rank 0 first. `value` must be a JSON value.

        Raises RankError if another rank has failed or does not come.
        """
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        return [json.loads(message.numpy().tobytes()) for message in self.to_each([data] * self.size)]

    @contextmanager
    def _carrying(self) -> Iterator[None]:
        """Turn the RuntimeError of a collective in this with statement into a RankError.

        gloo's error names no rank; the RankError names one.
        """
        try:
            yield
        except RuntimeError as error:
            raise self._broken(error) from error

    def _broken(self, error: RuntimeError) -> RankError:
        """Return the RankError for a collective that failed with `error`, after a look at which rank is dead.

        The RankError names a rank whose heartbeat has stopped. If all heartbeats go on, it names this rank. If another
        rank has reported why it failed, the RankError for that rank is raised instead.
        """
        others = [rank for rank in range(self.size) if rank != self.rank]
        before = {rank: self._add(beat_key(rank), 0) for rank in others}
        for _ in range(3 * _LOOKS):
            self._ready(0)
            time.sleep(self.beat_s / _LOOKS)
        still = [rank for rank, beats in before.items() if self._add(beat_key(rank), 0) == beats]
        if still:
            return self._failure({still[0]: "it has ended, or does not answer any more"})
        return self._failure({self.rank: f"its connection to another rank is broken ({text_of(error)})"})
