"""Bottleneck: what bounds an epoch, in words, with the option to turn. `stats()`, reports and traces share it.

The consumer's share comes first: where it hardly waits, nothing in the loader is blamed. Else the lane that works for
the largest share of the time holds up all others, and in it the stage that takes the most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from datapipes.loader.facts import Facts, LaneFacts, StageFacts

Stats = Mapping[str, Mapping[str, float]]

CONSUMER = "consumer"
WAITS = 0.1  # share of the time: a consumer that waits less is not held up
SLOW_START = 8  # a first minibatch that takes so many times as long as the others is the workers' start
TINY_S = 0.7e-3  # of a minibatch that takes less to make, most does not depend on its size: see slow_loaders.py
AWAY = 0.3  # share of a call: the thread waited for the disk at least so long
READ_BYTES = 2**16  # by each call, before the disk counts
FEW = 3  # minibatches behind the first ones of their epochs, below which nothing can be said
IDLE = 0.4  # processors
WORKING = 0.6  # share of the time: workers that work less are held up by what takes their minibatches


class Bottleneck(NamedTuple):
    """What bounds an epoch.

    Attributes:
        cause: "consumer", "few", "start", "tiny", "disk", "network", "processors", "transform", "workers", "channel",
            "seeds", "sampling", "gather", "copy", "loader" or "stage".
        stage: the label of the stage that is meant; "" if none is.
        waits: the share of the time in which the consumer waited.
        found, advice: a sentence on what was found, and one on what to do.
    """

    cause: str
    stage: str
    waits: float
    found: str
    advice: str

    def __str__(self) -> str:
        return f"{self.found} {self.advice}"

    @property
    def short(self) -> str:
        """The cause, and the stage that is meant."""
        return " ".join(dict.fromkeys(each for each in (self.cause, self.stage) if each))


class _Busy(NamedTuple):
    """How a lane was at work: the share of the time, and its slowest stage with what was counted of it."""

    load: float
    lane: LaneFacts
    slowest: StageFacts
    row: Mapping[str, float]

    @property
    def ran(self) -> float:
        """The share of the calls of the slowest stage in which their own thread was on a processor."""
        seconds = self.row["concurrent_seconds"]
        return min(self.row.get("processor_seconds", seconds) / max(seconds, 1e-9), 1.0)


def find_bottleneck(facts: Facts, stats: Stats) -> Bottleneck | None:
    """Return what bounds the epochs that `stats` counts; None before the first minibatch."""
    epochs = stats.get("epochs", {})
    count, total, start = (epochs.get(name, 0.0) for name in ("calls", "seconds", "start_seconds"))
    if count == 0 or total == 0:
        return None
    begun, latest = epochs.get("begun", 1.0), epochs.get("latest_start_seconds", 0.0)
    active = max(total - start, 1e-9)  # since the first minibatch of each epoch
    worked = stats.get(CONSUMER, {}).get("seconds", 0.0)
    waits = max(1 - worked / active, 0.0)
    if count - begun < FEW:
        found = f"{count:.0f} minibatches in {begun:.0f} epochs are too few to tell what bounds them."
        return Bottleneck("few", "", waits, found, "Read a longer epoch, or several.")
    each = active / (count - begun)
    if begun > 1 and latest > SLOW_START * each and latest > 0.5 * active / begun:
        found = f"the last epoch took {latest:.2f} s to its first minibatch; what follows takes {active / begun:.2f} s."
        return Bottleneck("start", "", waits, found, _on_start(facts))
    if waits < WAITS:
        found = f"the consumer works {min(worked / active, 1):.0%} of the time; nothing in the loader holds it up."
        return Bottleneck("consumer", CONSUMER, waits, found, "Make the model faster, or leave everything as it is.")
    wait = f"The consumer waits {waits:.0%} of the time:"
    made = [_busy(lane, stats, active) for lane in facts.lanes]
    busy = [each for each in made if each is not None]
    away = [lane for lane, each in zip(facts.lanes, made, strict=True) if each is None and lane.waiting]
    if not busy or (away and _share(stats, away[-1].waiting, active) > 1 - WORKING):
        found = f"{wait} its minibatches are made elsewhere, by {away[-1].title if away else 'others'}."
        return Bottleneck("network", "", waits, found, "Add servers, or raise prefetch_size if answers take long.")
    slowest = max(busy, key=lambda each: each.load)
    idle = _idle_processors(facts, stats, active)
    for judge in (_on_tiny, _on_network, _on_disk, _on_processors, _on_channel, _on_stage):
        judged = judge(slowest, facts, stats, idle)
        if judged is not None:
            cause, text, advice = judged
            return Bottleneck(cause, slowest.slowest.label, waits, f"{wait} {text}", advice)
    raise AssertionError


def _busy(lane: LaneFacts, stats: Stats, active: float) -> _Busy | None:
    """Return how a lane was at work; None if no stage of it is called in this loader."""
    rows = {stage: stats[stage.label] for stage in lane.stages if stage.label in stats}
    if not rows:
        return None
    awaited = [row["seconds"] for stage, row in rows.items() if stage.awaits]
    called = [row["concurrent_seconds"] for stage, row in rows.items() if not stage.awaits]
    slowest = max(rows, key=lambda stage: rows[stage]["concurrent_seconds"])
    load = max([sum(called) / lane.workers, *awaited]) / active
    return _Busy(min(load, 1.0), lane, slowest, rows[slowest])


def _share(stats: Stats, name: str, active: float) -> float:
    return stats.get(name, {}).get("seconds", 0.0) / active


def _idle_processors(facts: Facts, stats: Stats, active: float) -> float:
    """Return how many of the loader's processors had nothing to do, neither for it nor for others on the machine."""
    epochs = stats["epochs"]
    watched = max(epochs.get("watched_seconds", 0.0), 1e-9)
    own = epochs.get("processor_seconds", 0.0) / watched
    for lane in facts.lanes:
        if lane.pool == "process":
            spent = sum(stats[each.label].get("processor_seconds", 0.0) for each in lane.stages if each.label in stats)
            own += min(spent / active, lane.workers)
    return max(min(facts.processors - own, epochs.get("idle_seconds", 0.0) / watched), 0.0)


_Judged = tuple[str, str, str] | None  # cause, what was found, advice


def _on_tiny(busy: _Busy, facts: Facts, stats: Stats, idle: float) -> _Judged:
    count, each, wall, awaited = stats["epochs"]["calls"], 0.0, 0.0, False
    for lane in facts.lanes:
        for stage in lane.stages:
            row = stats.get(stage.label, {})
            each += row.get("processor_seconds", row.get("concurrent_seconds", 0.0)) / count
            wall += row.get("concurrent_seconds", 0.0) / count
            awaited |= stage.awaits or stage.does == "loader"
    if awaited or each >= TINY_S or wall >= 4 * TINY_S:  # a call that waits takes no processor, and is not short
        return None
    size = f" of {facts.batch_size} seeds" if facts.batch_size else ""
    text = f"a minibatch{size} takes {each * 1e3:.2f} ms to make, and most of that does not depend on its size."
    larger = f"batch_size={facts.batch_size * 4} or more" if facts.batch_size else "larger minibatches"
    return "tiny", text, f"Give {larger}."


def _on_network(busy: _Busy, facts: Facts, stats: Stats, idle: float) -> _Judged:
    if not busy.slowest.awaits:
        return None
    each = busy.row["concurrent_seconds"] / busy.row["calls"] * 1e3
    at_once = busy.row["concurrent_seconds"] / max(busy.row["seconds"], 1e-9)
    text = f"{busy.slowest.label} waits for answers: {each:.1f} ms a call, {at_once:.1f} calls at once."
    keep = (
        "Keep rows here (cache_bytes of the DistFeatureStore), raise the store's concurrency, or bring servers nearer."
    )
    advice = {"sampling": "Raise its concurrency, or bring the servers nearer.", "gather": keep}
    return "network", text, advice.get(busy.slowest.does, "Raise its concurrency.")


def _on_disk(busy: _Busy, facts: Facts, stats: Stats, idle: float) -> _Judged:
    row, read = busy.row, busy.row.get("disk_bytes", 0.0)
    if read < READ_BYTES * row["calls"] or busy.ran > 1 - AWAY:
        return None
    text = (
        f"{busy.slowest.label} waits for the disk {1 - busy.ran:.0%} of its time; it read {read / 1e6:.0f} MB, "
        f"{read / row['calls'] / 1e6:.2f} MB a minibatch."
    )
    return (
        "disk",
        text,
        "Load what is mapped into memory if it fits, store it in fewer bytes (stored_as='float16' or 'int8'), or give "
        "the machine more memory for its page cache.",
    )


def _on_processors(busy: _Busy, facts: Facts, stats: Stats, idle: float) -> _Judged:
    if busy.slowest.does in ("transform", "loader"):  # which may wait for anything
        return None
    alone = sum(stats.get(stage.label, {}).get("processor_seconds", math.inf) for stage in busy.lane.stages)
    if busy.ran > 1 - AWAY or idle > IDLE or alone / busy.lane.workers > stats.get(CONSUMER, {}).get("seconds", 0.0):
        return None  # or the lane would hold up the consumer on processors of its own too
    text = (
        f"{busy.slowest.label} is on a processor only {busy.ran:.0%} of its time, and of {facts.processors} processors "
        f"{idle:.1f} are idle."
    )
    return (
        "processors",
        text,
        "Run less beside the loader, give the model fewer threads (torch.set_num_threads), or use more processors.",
    )


def _on_channel(busy: _Busy, facts: Facts, stats: Stats, idle: float) -> _Judged:
    lane = busy.lane
    if lane.pool != "process" or busy.load >= WORKING:
        return None
    moved = stats.get("channel", {})
    sent, count = moved.get("bytes", 0.0), max(moved.get("messages", 0.0), 1.0)
    size = f" of {sent / count / 1e6:.1f} MB" if sent else ""
    text = f"the workers are busy only {busy.load:.0%} of the time; minibatches{size} pass their channel slowly."
    return (
        "channel",
        text,
        "Use worker_method='thread' or num_workers=0, which copy nothing; or move the cut so that less passes it.",
    )


def _on_stage(busy: _Busy, facts: Facts, stats: Stats, idle: float) -> _Judged:
    lane, stage = busy.lane, busy.slowest
    each = busy.row["concurrent_seconds"] / busy.row["calls"] * 1e3
    by = f" with num_workers={lane.workers}" if lane.pool else ""
    names = {"transform": f"your {stage.label}", "": stage.label, "loader": f"another loader ({stage.label})"}
    name = names.get(stage.does, f"{stage.does} ({stage.label})")
    who = "its thread is" if not lane.pool else "its worker is" if lane.workers == 1 else "its workers are"
    text = f"{name}{by} takes {each:.1f} ms a call; {who} busy {busy.load:.0%} of the time."
    if stage.does == "loader":
        return "loader", text, "It is a loader with a plan of its own: ask its stats()."
    if busy.ran < 1 - AWAY and stage.does != "transform":  # a function of the user's may wait for anything
        text += f" It is on a processor only {busy.ran:.0%} of that."
    more = min(facts.processors, lane.workers + max(int(idle), 1))
    can_grow = idle > IDLE and more > lane.workers
    if stage.does == "transform":
        advice = "Make it faster (tensors in the place of loops)"
        if lane.pool and can_grow:
            advice += f", or give num_workers={more}: {idle:.1f} of {facts.processors} processors are idle"
        elif can_grow:
            before = facts.lanes[: facts.lanes.index(lane) + 1]
            fetched = any(other.does == "gather" for each in before for other in each.stages)
            advice += f", or let workers run it: num_workers={more}{', cut=' + repr('end') if fetched else ''}"
        return "transform", text, f"{advice}."
    if lane.pool and can_grow:
        return "workers", text, f"Give num_workers={more}: {idle:.1f} of {facts.processors} processors are idle."
    return stage.does or "stage", text, _advice(stage.does, lane, facts, idle)


def _advice(does: str, lane: LaneFacts, facts: Facts, idle: float) -> str:
    spare = f"{idle:.1f} of {facts.processors} processors are idle"
    own = {
        "sampling": "Sample fewer edges (fanouts), or use a machine with more processors",
        "gather": "Store features in fewer bytes (stored_as='float16' or 'int8'), or fetch fewer of them",
        "copy": "Copy fewer bytes (stored_as='float16'), or let the GPU read rows by itself (feature.pin_memory_())",
        "seeds": "Make the item set's tensors contiguous and in memory",
    }.get(does, "Make the stage faster")
    if idle > IDLE and not lane.pool and does in ("seeds", "sampling", ""):
        return f"Give num_workers={min(facts.processors, 1 + max(int(idle), 1))}: {spare}. {own} otherwise."
    return f"{own}; {spare}."


def _on_start(facts: Facts) -> str:
    if any(lane.pool == "process" for lane in facts.lanes):
        return "Keep the workers between epochs (persistent_workers=True), or use worker_method='thread'."
    return "Look at what the first minibatch loads or compiles; a longer epoch pays for it."
