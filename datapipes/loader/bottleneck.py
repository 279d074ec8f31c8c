"""Find the bottleneck of a loader: what bounds the speed of an epoch, and which option to change. `stats()`, reports
and traces show it as text.

A lane is a group of stages that run in the same threads or processes. If the consumer hardly waits, nothing in the
loader is blamed. Otherwise the lane that works for the largest share of the time holds up all other lanes; the stage to
blame is the stage of that lane that takes the most time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from datapipes.loader.facts import CONSUMER, Facts, LaneFacts, StageFacts

WAITS = 0.1  # share of the time: a consumer that waits less is not held up
SLOW_START = 8  # a first minibatch that takes this many times as long as the others is the workers' start
TINY_S = 0.7e-3  # if a minibatch takes less, most of its time does not depend on its size: see slow_loaders.py
AWAY = 0.3  # share of a call: a thread that is off its processor for less did not wait for disk or processor
READ_BYTES = 2**16  # bytes: the disk is not blamed if a call reads less
FEW = 3  # least minibatches, without the first of each epoch, for a verdict
IDLE = 0.4  # processors: if fewer are idle, more workers would not help
WORKING = 0.6  # share of the time: workers that work less are held up by the receiver of their minibatches


class Bottleneck(NamedTuple):
    """What bounds the speed of an epoch: the consumer, or a stage of the loader.

    Attributes:
        cause: "consumer", "few", "start", "tiny", "disk", "network", "processors", "transform", "workers", "channel",
            "seeds", "sampling", "gather", "copy", "loader" or "stage".
        stage: the label of the stage to blame; "" if no stage is to blame.
        waits: the share of the time in which the consumer waited.
        found: a sentence on what was measured.
        advice: a sentence on what to change.
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
        """The bottleneck as a short text: its cause and, if there is one, the stage to blame."""
        return " ".join(dict.fromkeys(word for word in (self.cause, self.stage) if word))


class _Busy(NamedTuple):
    """How busy a lane is.

    Attributes:
        load: the share of the time in which the lane worked, 0 to 1.
        lane: the lane, a group of stages that run in the same threads or processes.
        stage: the slowest stage of the lane.
        row: the counts of that stage, such as "calls" and "seconds".
    """

    load: float
    lane: LaneFacts
    stage: StageFacts
    row: Mapping[str, float]

    @property
    def ran(self) -> float:
        """The processor time of the slowest stage's calls, as a share of their wall time, 0 to 1."""
        seconds = self.row["concurrent_seconds"]
        return min(self.row.get("processor_seconds", seconds) / max(seconds, 1e-9), 1.0)

    @property
    def call_ms(self) -> float:
        """Mean milliseconds that a call of the slowest stage takes."""
        return self.row["concurrent_seconds"] / self.row["calls"] * 1e3


def find_bottleneck(facts: Facts) -> Bottleneck | None:
    """Return what bounds the epochs that `facts` describes. None: no minibatch was delivered yet."""
    epochs = facts.get("epochs", {})
    count, total, start = (epochs.get(name, 0.0) for name in ("calls", "seconds", "start_seconds"))
    if count == 0 or total == 0:
        return None
    begun, latest = epochs.get("begun", 1.0), epochs.get("latest_start_seconds", 0.0)
    active = max(total - start, 1e-9)  # since the first minibatch of each epoch
    worked = facts.count(CONSUMER)
    waits = max(1 - worked / active, 0.0)
    if count - begun < FEW:
        text = f"{count:.0f} minibatches in {begun:.0f} epochs are too few to tell what bounds them."
        return Bottleneck("few", "", waits, text, "Read a longer epoch, or several.")
    minibatch_s = active / (count - begun)
    if begun > 1 and latest > SLOW_START * minibatch_s and latest > 0.5 * active / begun:
        text = f"the last epoch took {latest:.2f} s to its first minibatch; the rest takes {active / begun:.2f} s."
        advice = "Look at what the first minibatch loads or compiles; a longer epoch pays for it."
        if any(lane.pool == "process" for lane in facts.lanes):
            advice = "Keep the workers between epochs (persistent_workers=True), or use worker_method='thread'."
        return Bottleneck("start", "", waits, text, advice)
    if waits < WAITS:
        text = f"the consumer works {min(worked / active, 1):.0%} of the time; nothing in the loader holds it up."
        return Bottleneck("consumer", CONSUMER, waits, text, "Make the model faster, or leave everything as it is.")
    wait = f"The consumer waits {waits:.0%} of the time:"
    lanes = [(lane, _busy(lane, facts, active)) for lane in facts.lanes]
    at_work = [busy for _, busy in lanes if busy is not None]
    away = [lane for lane, busy in lanes if busy is None and lane.waiting]
    if not at_work or (away and facts.count(away[-1].waiting) / active > 1 - WORKING):
        text = f"{wait} its minibatches are made elsewhere, by {away[-1].title if away else 'others'}."
        return Bottleneck("network", "", waits, text, "Add servers, or raise prefetch_size if answers take long.")
    slowest = max(at_work, key=lambda busy: busy.load)
    idle = _idle_processors(facts, active)
    for judge in (_on_tiny, _on_network, _on_disk, _on_processors, _on_channel, _on_stage):
        if (verdict := judge(slowest, facts, idle)) is not None:
            cause, text, advice = verdict
            return Bottleneck(cause, slowest.stage.label, waits, f"{wait} {text}", advice)
    raise AssertionError


def _busy(lane: LaneFacts, facts: Facts, active: float) -> _Busy | None:
    """Return how busy a lane is. None: this loader has no counts of the lane's stages, since they run elsewhere.

    Args:
        active: seconds since the first minibatch of each epoch, all epochs together.
    """
    rows = {stage: facts[stage.label] for stage in lane.stages if stage.label in facts}
    if not rows:
        return None
    awaited = [row["seconds"] for stage, row in rows.items() if stage.awaits]
    called = [row["concurrent_seconds"] for stage, row in rows.items() if not stage.awaits]
    slowest = max(rows, key=lambda stage: rows[stage]["concurrent_seconds"])
    load = max([sum(called) / lane.workers, *awaited]) / active
    return _Busy(min(load, 1.0), lane, slowest, rows[slowest])


def _idle_processors(facts: Facts, active: float) -> float:
    """Return how many of the loader's processors were idle on average: at work neither for the loader nor for other
    programs.

    Args:
        active: seconds since the first minibatch of each epoch, all epochs together.
    """
    watched = max(facts.count("epochs", "watched_seconds"), 1e-9)
    used = facts.count("epochs", "processor_seconds") / watched
    for lane in facts.lanes:
        if lane.pool == "process":
            spent = sum(facts.count(stage.label, "processor_seconds") for stage in lane.stages)
            used += min(spent / active, lane.workers)
    return max(min(facts.processors - used, facts.count("epochs", "idle_seconds") / watched), 0.0)


_Verdict = tuple[str, str, str] | None  # cause, finding, advice


def _on_tiny(busy: _Busy, facts: Facts, idle: float) -> _Verdict:
    count, spent, wall, awaited = facts["epochs"]["calls"], 0.0, 0.0, False
    for stage in (stage for lane in facts.lanes for stage in lane.stages):
        row = facts.get(stage.label, {})
        spent += row.get("processor_seconds", row.get("concurrent_seconds", 0.0)) / count
        wall += row.get("concurrent_seconds", 0.0) / count
        awaited |= stage.awaits or stage.does == "loader"
    if awaited or spent >= TINY_S or wall >= 4 * TINY_S:  # a call that waits takes no processor, and is not short
        return None
    size = f" of {facts.batch_size} seeds" if facts.batch_size else ""
    text = f"a minibatch{size} takes {spent * 1e3:.2f} ms to make, and most of that does not depend on its size."
    larger = f"batch_size={facts.batch_size * 4} or more" if facts.batch_size else "larger minibatches"
    hands_over = len(facts.lanes) > 1 and not any(lane.pool for lane in facts.lanes)
    threads = ", or overlap=False: to pass a minibatch from thread to thread takes about as long" if hands_over else ""
    return "tiny", text, f"Give {larger}{threads}."


def _on_network(busy: _Busy, facts: Facts, idle: float) -> _Verdict:
    if not busy.stage.awaits:
        return None
    at_once = busy.row["concurrent_seconds"] / max(busy.row["seconds"], 1e-9)
    text = f"{busy.stage.label} waits for answers: {busy.call_ms:.1f} ms a call, {at_once:.1f} calls at once."
    keep = (
        "Keep rows here (cache_bytes of the DistFeatureStore), raise the store's concurrency, or bring servers nearer."
    )
    advice = {"sampling": "Raise its concurrency, or bring the servers nearer.", "gather": keep}
    return "network", text, advice.get(busy.stage.does, "Raise its concurrency.")


def _on_disk(busy: _Busy, facts: Facts, idle: float) -> _Verdict:
    calls, read = busy.row["calls"], busy.row.get("disk_bytes", 0.0)
    if read < READ_BYTES * calls or busy.ran > 1 - AWAY:
        return None
    text = (
        f"{busy.stage.label} waits for the disk {1 - busy.ran:.0%} of its time; it read {read / 1e6:.0f} MB, "
        f"{read / calls / 1e6:.2f} MB a minibatch."
    )
    advice = (
        "Load mapped data into memory if it fits, store it in fewer bytes (stored_as='float16' or 'int8'), or give "
        "the machine more memory for its page cache."
    )
    return "disk", text, advice


def _on_processors(busy: _Busy, facts: Facts, idle: float) -> _Verdict:
    if busy.stage.does in ("transform", "loader"):  # these may wait for anything
        return None
    alone = sum(facts.get(stage.label, {}).get("processor_seconds", math.inf) for stage in busy.lane.stages)
    if busy.ran > 1 - AWAY or idle > IDLE or alone / busy.lane.workers > facts.count(CONSUMER):
        return None  # the last: the lane would hold up the consumer even on processors of its own
    text = (
        f"{busy.stage.label} is on a processor only {busy.ran:.0%} of its time, and of {facts.processors} processors "
        f"{idle:.1f} are idle."
    )
    advice = "Run less beside the loader, give the model fewer threads (torch.set_num_threads), or use more processors."
    return "processors", text, advice


def _on_channel(busy: _Busy, facts: Facts, idle: float) -> _Verdict:
    if busy.lane.pool != "process" or busy.load >= WORKING:
        return None
    sent, count = facts.count("channel", "bytes"), max(facts.count("channel", "messages"), 1.0)
    size = f" of {sent / count / 1e6:.1f} MB" if sent else ""
    text = f"the workers are busy only {busy.load:.0%} of the time; minibatches{size} pass their channel slowly."
    advice = "Use worker_method='thread' or num_workers=0, which copy nothing; or move the cut so that less passes it."
    return "channel", text, advice


def _on_stage(busy: _Busy, facts: Facts, idle: float) -> _Verdict:
    lane, stage = busy.lane, busy.stage
    by = f" with num_workers={lane.workers}" if lane.pool else ""
    names = {"transform": f"your {stage.label}", "": stage.label, "loader": f"another loader ({stage.label})"}
    name = names.get(stage.does, f"{stage.does} ({stage.label})")
    who = "its thread is" if not lane.pool else "its worker is" if lane.workers == 1 else "its workers are"
    text = f"{name}{by} takes {busy.call_ms:.1f} ms a call; {who} busy {busy.load:.0%} of the time."
    if stage.does == "loader":
        return "loader", text, "It is a loader with a plan of its own: ask its stats()."
    if busy.ran < 1 - AWAY and stage.does != "transform":  # a user's function may wait for anything
        text += f" It is on a processor only {busy.ran:.0%} of that time."
    more = min(facts.processors, lane.workers + max(int(idle), 1))
    can_grow = idle > IDLE and more > lane.workers
    spare = f"{idle:.1f} of {facts.processors} processors are idle"
    if stage.does == "transform":
        advice = "Make it faster (tensors in the place of loops)"
        if lane.pool and can_grow:
            advice += f", or give num_workers={more}: {spare}"
        elif can_grow:
            before = facts.lanes[: facts.lanes.index(lane) + 1]
            fetched = any(earlier.does == "gather" for lane in before for earlier in lane.stages)
            advice += f", or let workers run it: num_workers={more}{', cut=' + repr('end') if fetched else ''}"
        return "transform", text, f"{advice}."
    if lane.pool and can_grow:
        return "workers", text, f"Give num_workers={more}: {spare}."
    advice = {
        "sampling": "Sample fewer edges (fanouts), or use a machine with more processors",
        "gather": "Store features in fewer bytes (stored_as='float16' or 'int8'), or fetch fewer of them",
        "copy": "Copy fewer bytes (stored_as='float16'), or let the GPU read rows by itself (feature.pin_memory_())",
        "seeds": "Make the item set's tensors contiguous and in memory",
    }.get(stage.does, "Make the stage faster")
    if idle > IDLE and not lane.pool and stage.does in ("seeds", "sampling", ""):
        return stage.does or "stage", text, f"Give num_workers={more}: {spare}. {advice} otherwise."
    return stage.does or "stage", text, f"{advice}; {spare}."
