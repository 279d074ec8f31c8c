"""LoaderStats: the times and counts of a loader's stages and its consumer, as a dict that prints as a table."""

from __future__ import annotations

import math
import os
import resource
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from datapipes.base.checks import aligned, one_line
from datapipes.base.clock import StageClock
from datapipes.base.log import users_frame
from datapipes.base.progress import working
from datapipes.chain.streams import close_stream
from datapipes.loader.bottleneck import Bottleneck, find_bottleneck
from datapipes.loader.facts import CONSUMER, NO_STAGES, Facts, Sample
from datapipes.loader.workers.workers import Workers
from datapipes.minibatch import MiniBatch

JUDGED_MINIBATCHES = 20  # before that, nothing is said about the buckets of `pad`

COUNTS = {  # {row: {count: its description}}
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


class LoaderStats(Facts):
    """The result of `DataLoader.stats()`. `print` shows a table, `json.dumps` takes it as a dict."""

    @property
    def found(self) -> Bottleneck | None:
        """The Bottleneck of all epochs so far; None before the first minibatch."""
        return find_bottleneck(self)

    @property
    def bottleneck(self) -> str:
        """The bottleneck of the epochs as text, with the option to change; "" before the first minibatch."""
        verdict = self.found
        return "" if verdict is None else one_line(str(verdict))

    def figures(self, name: str) -> tuple[float, float, float, float]:
        """Return the figures of a row that counts calls: (call_ms, minibatch_ms, busy, at_once).

        call_ms: milliseconds that one call takes.
        minibatch_ms: milliseconds in which at least one call ran, for each delivered minibatch. Less than `call_ms` if
            calls overlap, in workers or in one event loop.
        busy: the share of the time in which at least one call ran.
        at_once: how many calls ran at once while one did.
        """
        row, epochs = self[name], self["epochs"]
        seconds, spent = row["seconds"], row["concurrent_seconds"]
        call_ms, minibatch_ms = spent / max(row["calls"], 1) * 1e3, seconds / epochs["calls"] * 1e3
        return call_ms, minibatch_ms, min(seconds / epochs["seconds"], 1.0), spent / seconds if seconds > 0 else 0.0

    def in_words(self, name: str) -> list[tuple[str, str]]:
        """Return [(description of a count, its value as text)] for the row `name`, which is one of NO_STAGES ("epochs",
        "channel", "workers", "features", "padding").
        """
        counts, texts = [], COUNTS.get(name, {})
        for key, value in self.get(name, {}).items():
            feature, colon, count = key.rpartition(": ")  # some counts of the store are "{feature}: {count}"
            number = f"{value:,.0f}" if value == int(value) else f"{value:,.3f}"
            counts.append((feature + colon + texts.get(count, count.replace("_", " ")), number))
        return counts

    def __str__(self) -> str:
        count, total = self.count("epochs", "calls"), self.count("epochs")
        if count == 0 or total == 0:
            return "no minibatches yet"
        table: list[tuple[object, ...]] = [("stage", "calls", "ms/call", "ms/minibatch", "busy", "at once")]
        for name in self:
            if name not in NO_STAGES:
                call_ms, minibatch_ms, busy, at_once = self.figures(name)
                calls = f"{self[name]['calls']:.0f}"
                table.append((name, calls, call_ms, minibatch_ms, f"{busy:.0%}", f"{at_once:.1f}"))
        lines = aligned(table, len(table) - 1)
        for name in NO_STAGES[1:]:
            if counts := self.in_words(name):
                lines.append(f"{name}: {', '.join(f'{number} {text}' for text, number in counts)}")
        start = self.count("epochs", "start_seconds")
        begins = f"; {start:.2f} s before the first of each epoch, left out of the next line"
        lines.append(
            f"{count:.0f} minibatches in {total:.2f} s: {total / count * 1e3:.3f} ms/minibatch, "
            f"{count / total:.1f} minibatches/s{begins if start > 0.05 * total else ''}"
        )
        lines.append(f"bottleneck: {self.bottleneck}")
        return "\n".join(map(one_line, lines))


class Watch:
    """Measures the epochs of a loader: counts and times, and now and then a look at its processes. At most MOST_SAMPLES
    samples of their memory are kept.

    Attributes:
        epochs: sums over all epochs. "begun" counts epochs, and "calls" delivered minibatches. "seconds" is the time
            from asking for the first minibatch to the end of the epoch; "start_seconds" is the time until the first
            minibatch came, "latest_start_seconds" the same in the last epoch alone. "watched_seconds" is the time
            between looks. In that time, "processor_seconds" is what the caller's process used, and "idle_seconds" is
            how long the processors were idle, all processors added up.
        samples: the memory at several times, the oldest first.
        padding: {number of a bucket of `pad`: how many of its minibatches were delivered}.
    """

    MOST_SAMPLES = 256

    def __init__(self, workers: Iterable[Workers], num_buckets: int | None) -> None:
        names = "calls seconds start_seconds latest_start_seconds begun watched_seconds processor_seconds idle_seconds"
        self.epochs = dict.fromkeys(names.split(), 0.0)
        self.samples: list[Sample] = []
        self.padding: Counter[int] = Counter()
        self._num_buckets, self._num_beyond, self._has_warned = num_buckets, 0, False
        self._workers = workers
        self._every_s = 0.25
        self._looked = (0.0, 0.0, 0.0)  # time of the last look; processor time of this process and idle time then
        self.next_look = math.inf  # when the next look is due

    def is_beyond(self, bucket: int) -> bool:
        """Return whether a number stands for a multiple of the last bucket. False if the chain has no `pad`."""
        return self._num_buckets is not None and bucket >= self._num_buckets

    def count_padded(self, bucket: int) -> None:
        """Count a minibatch, and warn once if most of them are beyond the last bucket."""
        self.padding[bucket] += 1
        if not self.is_beyond(bucket):
            return
        self._num_beyond += 1
        total = self.padding.total()
        if not self._has_warned and total >= JUDGED_MINIBATCHES and 2 * self._num_beyond > total:
            self._has_warned = True
            text = (
                f"data_loader: {self._num_beyond} of {total} minibatches are larger than the last bucket of pad, and "
                "have shapes of their own. Give pad what dp.measure_sizes finds for this chain."
            )
            warnings.warn(text, UserWarning, stacklevel=users_frame()[0])  # the loop over the loader

    def begin(self) -> None:
        """Begin to watch the processes. Called when the first minibatch of an epoch has come."""
        now = time.monotonic()
        self._looked = (now, time.process_time(), _idle_seconds())
        self.next_look = now + self._every_s

    def look(self, now: float) -> None:
        """Look at the processes: add the times since the last look to `epochs`, and store how much memory is in use.

        Args:
            now: time.monotonic().
        """
        since, used, idle = self._looked
        self.begin()
        self.epochs["watched_seconds"] += now - since
        self.epochs["processor_seconds"] += self._looked[1] - used
        self.epochs["idle_seconds"] += self._looked[2] - idle
        workers = [process for stage in self._workers for process in stage.processes()]
        self.samples.append(Sample(now, _resident_bytes([os.getpid()]), _resident_bytes(workers)))
        if len(self.samples) >= self.MOST_SAMPLES:
            self.samples = self.samples[::2]
            self._every_s *= 2


def _idle_seconds() -> float:
    """Return the idle time of all processors of the machine since it started; 0 if the system does not tell."""
    return _second_number("/proc/uptime")


def _resident_bytes(processes: Iterable[int]) -> float:
    """Return the resident memory of processes, shared pages included; 0 for ended processes."""
    return resource.getpagesize() * sum(_second_number(f"/proc/{process}/statm") for process in processes)


def _second_number(path: str) -> float:
    try:
        with open(path, encoding="ascii") as file:
            return float(file.read().split()[1])
    except (OSError, IndexError):
        return 0.0


class Delivered(Iterator[MiniBatch]):
    """The minibatches of an epoch as the consumer takes them; it times the consumer, and the epoch as a whole.

    Args:
        look: called with the first minibatch before the consumer gets it.
        waited: called for each minibatch once it has come: waited(time at which it was asked for, its index).
        starting: text to show on a terminal if the first minibatch takes long; "" shows nothing.
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
        self._delivered: tuple[float, int] | None = None  # when the last minibatch left, and its index
        self._first_called = 0.0  # when the first minibatch was asked for
        self._has_come = False  # whether the first minibatch came

    def __next__(self) -> MiniBatch:
        called = began = time.monotonic()
        epochs = self._watch.epochs
        try:
            if self._delivered is not None:
                began = self._delivered[0]
                self._clock.add(CONSUMER, *self._delivered)
                self._delivered = None
            minibatch = next(self._stream) if self._has_come else self._first(called)
            self._waited(called, minibatch.index)
        except BaseException:
            now = time.monotonic()
            epochs["seconds"] += now - began
            if self._has_come:
                self._watch.look(now)
            raise
        now = time.monotonic()
        self._delivered = now, minibatch.index
        epochs["calls"] += 1
        epochs["seconds"] += now - began
        if minibatch.bucket is not None:
            self._watch.count_padded(minibatch.bucket)
        if now >= self._watch.next_look:
            self._watch.look(now)
        return minibatch

    def _first(self, called: float) -> MiniBatch:
        """Return the first minibatch of the epoch, and count the epoch and its start.

        Args:
            called: when the consumer asked for the minibatch, in seconds of time.monotonic().
        """
        epochs = self._watch.epochs
        if self._first_called == 0.0:
            self._first_called = called
            epochs["begun"] += 1
        with working(self._starting):
            minibatch = next(self._stream)
        self._look(minibatch)
        self._has_come = True
        epochs["latest_start_seconds"] = time.monotonic() - self._first_called
        epochs["start_seconds"] += epochs["latest_start_seconds"]
        self._watch.begin()
        return minibatch

    def close(self) -> None:
        close_stream(self._stream)
