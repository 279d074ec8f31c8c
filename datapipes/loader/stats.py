"""LoaderStats: what a loader's stages and its consumer have spent, as a dict that prints as a table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from datapipes.base.checks import aligned
from datapipes.base.clock import StageClock
from datapipes.chain.run import close_stream
from datapipes.minibatch import MiniBatch

CONSUMER = "consumer"


class LoaderStats(dict[str, dict[str, float]]):
    """What `DataLoader.stats()` returns. `print` shows it as a table, `json.dumps` takes it as a dict."""

    def __str__(self) -> str:
        rows = {name: row for name, row in self.items() if name not in ("epochs", "channel")}
        epochs = self.get("epochs", {"calls": 0.0, "seconds": 0.0})
        if epochs["calls"] == 0 or epochs["seconds"] == 0:
            return "no minibatches yet"
        count, total = epochs["calls"], epochs["seconds"]
        table: list[tuple[object, ...]] = [("stage", "calls", "ms/minibatch", "busy", "at once")]
        for name, row in rows.items():
            at_once = row["concurrent_seconds"] / row["seconds"] if row["seconds"] > 0 else 0.0
            each, busy = row["seconds"] / count * 1e3, row["seconds"] / total
            table.append((name, f"{row['calls']:.0f}", each, f"{busy:.0%}", f"{at_once:.1f}"))
        lines = aligned(table, len(rows))
        if "channel" in self:
            lines.append(", ".join(["channel", *(f"{value:.0f} {name}" for name, value in self["channel"].items())]))
        lines.append(
            f"{count:.0f} minibatches in {total:.2f} s: {total / count * 1e3:.3f} ms/minibatch, "
            f"{count / total:.1f} minibatches/s"
        )
        slowest = max(
            (name for name in rows if not name.startswith("waiting for ")), key=lambda name: rows[name]["seconds"]
        )
        lines.append(f"bottleneck: {slowest}, busy {rows[slowest]['seconds'] / total:.0%} of the time")
        return "\n".join(lines)


class Delivered(Iterator[MiniBatch]):
    """The minibatches of an epoch as the consumer takes them; it times the consumer, and the epoch as a whole.

    Args:
        look: called with each minibatch before the consumer gets it.
    """

    def __init__(
        self,
        stream: Iterator[MiniBatch],
        clock: StageClock,
        epochs: dict[str, float],
        look: Callable[[MiniBatch], None] = lambda minibatch: None,
    ) -> None:
        self._stream, self._clock, self._epochs, self._look = stream, clock, epochs, look
        self._given: tuple[float, int] | None = None  # when the last minibatch left, and its index

    def __next__(self) -> MiniBatch:
        began = time.monotonic()
        if self._given is not None:
            began = self._given[0]
            self._clock.add(CONSUMER, *self._given)
            self._given = None
        try:
            minibatch = next(self._stream)
            self._look(minibatch)
            self._given = (time.monotonic(), minibatch.index)
            self._epochs["calls"] += 1
            return minibatch
        finally:
            self._epochs["seconds"] += time.monotonic() - began

    def close(self) -> None:
        close_stream(self._stream)
