"""LoaderStats: what a loader's stages and its consumer have spent, as a dict that prints as a table."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import NamedTuple

from datapipes.base.checks import aligned, one_line
from datapipes.base.clock import StageClock
from datapipes.base.progress import working
from datapipes.chain.epoch import WAITING
from datapipes.chain.run import close_stream
from datapipes.loader.bottleneck import CONSUMER, Bottleneck, find_bottleneck
from datapipes.loader.facts import Facts, LaneFacts, StageFacts
from datapipes.minibatch import MiniBatch

NO_STAGES = ("epochs", "channel", "workers", "features")  # rows that count something else than calls
COUNTS = {  # in words
    "channel": {
        "messages": "messages sent",
        "bytes": "bytes sent",
        "waits": "sends and receives that had to wait",
        "send_waits": "sends that had to wait",
        "send_wait_s": "seconds in which sends waited",
        "recv_waits": "receives that had to wait",
        "recv_wait_s": "seconds in which receives waited",
        "held": "received messages that are still in use",
        "held_bytes": "bytes of received messages that are still in use",
        "unread": "messages not received yet",
        "used_bytes": "bytes in use",
        "copied_out": "messages copied on receipt, since messages in use filled half of the channel",
        "dropped": "messages dropped because their epoch was left",
        "deaths": "processes that died",
    },
    "workers": {"deaths": "workers that died", "made_again": "minibatches made again"},
    "features": {
        "own": "ids read from the local part",
        "cached": "ids read from the cache",
        "asked": "ids read from other parts",
        "requests": "requests to other parts",
    },
}


class Figures(NamedTuple):
    """What a row of the table says of a stage.

    Attributes:
        call_ms: milliseconds that one of its calls takes.
        minibatch_ms: milliseconds in which at least one of its calls ran, for each minibatch that was delivered. Less
            than `call_ms` where calls overlap, in workers or in one event loop.
        busy: the share of the time in which at least one of its calls ran.
        at_once: how many of its calls ran at once while one did.
    """

    call_ms: float
    minibatch_ms: float
    busy: float
    at_once: float

    @classmethod
    def of(cls, row: Mapping[str, float], epochs: Mapping[str, float]) -> Figures:
        """Return the figures of a stage's row, beside the row of the epochs."""
        seconds, spent = row["seconds"], row["concurrent_seconds"]
        return cls(
            spent / max(row["calls"], 1) * 1e3,
            seconds / epochs["calls"] * 1e3,
            min(seconds / epochs["seconds"], 1.0),
            spent / seconds if seconds > 0 else 0.0,
        )


def counts_in_words(name: str, row: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the counts of one of the rows NO_STAGES as (what is counted, the number)."""
    texts = COUNTS.get(name, {})
    counts = []
    for key, value in row.items():
        feature, colon, count = key.rpartition(": ")  # the store counts some of each feature
        number = f"{value:,.0f}" if value == int(value) else f"{value:,.3f}"
        counts.append((feature + colon + texts.get(count, count.replace("_", " ")), number))
    return counts


class LoaderStats(dict[str, dict[str, float]]):
    """What `DataLoader.stats()` returns. `print` shows it as a table, `json.dumps` takes it as a dict."""

    def __init__(self, rows: Mapping[str, dict[str, float]], facts: Facts | None = None) -> None:
        super().__init__(rows)
        self.facts = facts or self._one_lane()

    @property
    def found(self) -> Bottleneck | None:
        """What bounds the epochs, its cause and its parts; None before the first minibatch."""
        return find_bottleneck(self.facts, self)

    @property
    def bottleneck(self) -> str:
        """What bounds the epochs, in words, with the option to turn; "" before the first minibatch."""
        return "" if self.found is None else one_line(str(self.found))

    def _one_lane(self) -> Facts:
        """Return the facts of counts alone."""
        names = [name for name in self if name not in (*NO_STAGES, CONSUMER) and not name.startswith(WAITING)]
        stages = tuple(StageFacts(name, "", "", False) for name in names)
        return Facts("", 1, 0, (LaneFacts("", 1, "", "", stages),))

    def __str__(self) -> str:
        rows = {name: row for name, row in self.items() if name not in NO_STAGES}
        epochs = self.get("epochs", {"calls": 0.0, "seconds": 0.0})
        if epochs["calls"] == 0 or epochs["seconds"] == 0:
            return "no minibatches yet"
        count, total = epochs["calls"], epochs["seconds"]
        table: list[tuple[object, ...]] = [("stage", "calls", "ms/call", "ms/minibatch", "busy", "at once")]
        for name, row in rows.items():
            call_ms, minibatch_ms, busy, at_once = Figures.of(row, epochs)
            table.append((name, f"{row['calls']:.0f}", call_ms, minibatch_ms, f"{busy:.0%}", f"{at_once:.1f}"))
        lines = aligned(table, len(rows))
        for name in NO_STAGES[1:]:
            counts = counts_in_words(name, self.get(name, {}))
            if counts:
                lines.append(f"{name}: {', '.join(f'{number} {text}' for text, number in counts)}")
        start = epochs.get("start_seconds", 0.0)
        begins = (
            f"; {start:.2f} s before the first of each epoch, left out of the next line" if start > 0.05 * total else ""
        )
        lines.append(
            f"{count:.0f} minibatches in {total:.2f} s: {total / count * 1e3:.3f} ms/minibatch, "
            f"{count / total:.1f} minibatches/s{begins}"
        )
        lines.append(f"bottleneck: {self.bottleneck}")
        return "\n".join(map(one_line, lines))


class Sample(NamedTuple):
    """The memory that is resident at a time of time.monotonic, in bytes; pages that processes share count in each."""

    at: float
    caller: float
    workers: float


class Watch:
    """Counts the epochs of a loader, and looks at its processes now and then: at most MOST_SAMPLES samples are kept.

    Attributes:
        epochs: minibatches that were delivered ("calls"), the seconds from asking for the first to the end ("seconds"),
            those until the first came ("start_seconds", of the last epoch "latest_start_seconds"), how many epochs
            there were ("begun"); and of the time that was looked at ("watched_seconds") the processor time of the
            caller's process ("processor_seconds") and the idle time of all processors ("idle_seconds").
        samples: the memory, in the order of time.
    """

    MOST_SAMPLES = 256

    def __init__(self, workers: Callable[[], Iterable[int]]) -> None:
        names = "calls seconds start_seconds latest_start_seconds begun watched_seconds processor_seconds idle_seconds"
        self.epochs = dict.fromkeys(names.split(), 0.0)
        self.samples: list[Sample] = []
        self._workers = workers
        self._every_s = 0.25
        self._looked = (0.0, 0.0, 0.0)  # the time, the processor time of this process, and the idle time then

    def begin(self) -> None:
        """The first minibatch of an epoch has come: what was used before does not count."""
        self._looked = (time.monotonic(), time.process_time(), _idle_seconds())

    def look(self, now: float, *, at_end: bool = False) -> None:
        """Count what was used since the last look, if that was long ago."""
        since, used, idle = self._looked
        if now - since < self._every_s and not at_end:
            return
        self._looked = (now, time.process_time(), _idle_seconds())
        self.epochs["watched_seconds"] += now - since
        self.epochs["processor_seconds"] += self._looked[1] - used
        self.epochs["idle_seconds"] += self._looked[2] - idle
        workers = sum(map(resident_bytes, self._workers()))
        self.samples.append(Sample(now, resident_bytes(os.getpid()), workers))
        if len(self.samples) >= self.MOST_SAMPLES:
            self.samples = self.samples[::2]
            self._every_s *= 2


def _idle_seconds() -> float:
    """Return the idle time of all processors of the machine since it started; 0 if the system does not tell."""
    try:
        with open("/proc/uptime", encoding="ascii") as file:
            return float(file.read().split()[1])
    except (OSError, IndexError):
        return 0.0


def resident_bytes(process: int) -> float:
    """Return the memory of a process that is resident, shared pages included; 0 if there is no such process."""
    try:
        with open(f"/proc/{process}/statm", encoding="ascii") as file:
            return float(file.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0.0


class Delivered(Iterator[MiniBatch]):
    """The minibatches of an epoch as the consumer takes them; it times the consumer, and the epoch as a whole.

    Args:
        look: called with each minibatch before the consumer gets it.
        waited: called with when a minibatch was asked for and with its index, once it has come.
        starting: what a terminal shows if the first minibatch takes long; "" shows nothing.
    """

    def __init__(
        self,
        stream: Iterator[MiniBatch],
        clock: StageClock,
        watch: Watch,
        look: Callable[[MiniBatch], None],
        waited: Callable[[float, int], None],
        starting: str,
    ) -> None:
        self._stream, self._clock, self._watch, self._look, self._waited = stream, clock, watch, look, waited
        self._starting = starting
        self._given: tuple[float, int] | None = None  # when the last minibatch left, and its index
        self._has_begun = False

    def __next__(self) -> MiniBatch:
        began = asked = time.monotonic()
        epochs, is_first = self._watch.epochs, not self._has_begun
        if is_first:
            self._has_begun = True
            epochs["begun"] += 1
        if self._given is not None:
            began = self._given[0]
            self._clock.add(CONSUMER, *self._given)
            self._given = None
        try:
            with working(self._starting) if is_first and self._starting else nullcontext():
                minibatch = next(self._stream)
            self._look(minibatch)
            self._waited(asked, minibatch.index)
            self._given = (time.monotonic(), minibatch.index)
            epochs["calls"] += 1
            if is_first:
                epochs["latest_start_seconds"] = self._given[0] - asked
                epochs["start_seconds"] += self._given[0] - asked
                self._watch.begin()
            return minibatch
        finally:
            now = time.monotonic() if self._given is None else self._given[0]
            epochs["seconds"] += now - began
            if not is_first:
                self._watch.look(now, at_end=self._given is None)

    def close(self) -> None:
        close_stream(self._stream)
