"""The report of a loader: its stats as one HTML page, which fetches nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datapipes.base.files import write_text
from datapipes.base.html import COLORS, filled
from datapipes.chain.numbering import WAITING
from datapipes.loader.facts import CONSUMER, NO_STAGES
from datapipes.loader.stats import LoaderStats

BINS = 60  # points of a curve
MOST_BLOCKS = 800  # blocks of the timeline
WAITS_COLOR, CONSUMER_COLOR = "rgba(128,128,128,.35)", "#8d99ae"
_Points = Sequence[tuple[float, float]]  # (time, value)


def write_report(path: str | Path, stats: LoaderStats) -> None:
    """Write the report of a loader's stats, which must include the calls.

    Raises:
        RuntimeError: No minibatch was delivered.
        OSError: The file cannot be written.
    """
    write_text(path, as_html(stats))


def as_html(stats: LoaderStats) -> str:
    """Return the report as HTML; raise RuntimeError if no minibatch was delivered."""
    bottleneck = stats.found
    if bottleneck is None:
        raise RuntimeError(
            "data_loader: report: no minibatch was delivered yet, so there is nothing to report. Read an epoch first."
        )
    epochs = stats["epochs"]
    count, seconds = epochs["calls"], epochs["seconds"]
    headline = [
        ("minibatches", f"{count:,.0f}"),
        ("epochs begun", f"{epochs.get('begun', 1):.0f}"),
        ("seconds", f"{seconds:.2f}"),
        ("minibatches/s", f"{count / seconds:,.1f}"),
        ("of the time the consumer waits", f"{bottleneck.waits:.0%}"),
        ("s until the first minibatch of an epoch", f"{epochs.get('start_seconds', 0) / epochs.get('begun', 1):.2f}"),
    ]
    return filled(
        "report.html",
        title="What bounds this loader",
        subtitle=f"{stats.title}, {stats.processors} processors",
        headline=headline,
        found=bottleneck.found[:1].upper() + bottleneck.found[1:],
        advice=bottleneck.advice,
        is_well=bottleneck.cause == "consumer",
        lanes=lanes_of(stats),
        table=_table(stats),
        charts=[chart for chart in (_rates(stats), _memory(stats), _queues(stats)) if chart is not None],
        timeline=_timeline(stats),
        counts=[(name, stats.in_words(name)) for name in NO_STAGES[1:] if name in stats],
    )


def lanes_of(stats: LoaderStats) -> list[dict[str, Any]]:
    """Return a dict for each lane, for the template chain.html. A lane is a group of stages that run together.

    Before the first minibatch the dicts have no figures.
    """
    bottleneck, colors = stats.found, _colors(stats)
    seconds = stats.count("epochs") if stats.count("epochs", "calls") else 0.0
    lanes = []
    for lane in stats.lanes:
        stages = []
        for stage in lane.stages:
            box: dict[str, Any] = {"name": stage.label, "text": stage.text, "color": colors[stage.label]}
            if stage.label in stats and seconds:
                call_ms, _, busy, _ = stats.figures(stage.label)
                box |= {"figures": f"{call_ms:.2f} ms a call, busy {busy:.0%}", "busy": round(busy * 100)}
            box["is_slowest"] = bottleneck is not None and bottleneck.stage == stage.label
            stages.append(box)
        waits = stats.count(lane.waiting)
        load = f"its reader waits {min(waits / seconds, 1.0):.0%} of the time" if waits and seconds else ""
        lanes.append({"title": lane.title, "load": load, "stages": stages})
    return lanes


def _colors(stats: LoaderStats) -> dict[str, str]:
    labels = [stage.label for lane in stats.lanes for stage in lane.stages]
    return {label: COLORS[number % len(COLORS)] for number, label in enumerate(labels)}


def _table(stats: LoaderStats) -> list[list[str]]:
    rows = [["stage", "calls", "ms a call", "ms a minibatch", "busy", "at once", "on a processor", "MB from disk"]]
    for name, row in stats.items():
        if name in NO_STAGES:
            continue
        call_ms, minibatch_ms, busy, at_once = stats.figures(name)
        ran, spent = row.get("processor_seconds", 0.0), row["concurrent_seconds"]
        share = f"{min(ran / spent, 1):.0%}" if ran and spent else ""
        figures = [f"{call_ms:.3f}", f"{minibatch_ms:.3f}", f"{busy:.0%}", f"{at_once:.1f}", share]
        rows.append([name, f"{row['calls']:,.0f}", *figures, f"{row.get('disk_bytes', 0) / 1e6:,.1f}"])
    return rows


# --- charts over time


def _chart(
    stats: LoaderStats, title: str, curves: Iterable[tuple[str, _Points]], unit: str = ""
) -> dict[str, Any] | None:
    """Return a chart of some curves, for the report's template; None if no curve has 2 points.

    Args:
        curves: (name, points) of each curve; a point is (time, value). The chart spans the time of all calls, and its
            lines are scaled to a square of 100 by 100.
        unit: text behind the largest value.
    """
    drawn = [(name, points) for name, points in curves if len(points) > 1]
    if not drawn:
        return None
    first = min(call.began for call in stats.calls)
    last = max(call.began + call.seconds for call in stats.calls)
    most = max(value for _, points in drawn for _, value in points) or 1.0
    span = (last - first) or 1.0
    lines = []
    for number, (name, points) in enumerate(drawn):
        path = " ".join(f"{(at - first) / span * 100:.2f},{98 - value / most * 94:.2f}" for at, value in points)
        lines.append({"name": name, "points": path, "color": COLORS[number % len(COLORS)]})
    return {"title": title, "most": f"{most:,.4g}{unit}", "lines": lines, "first": "0 s", "last": f"{span:.4g} s"}


def _rates(stats: LoaderStats) -> dict[str, Any] | None:
    times = [call.began for call in stats.calls if call.stage == CONSUMER]
    if len(times) < 3:
        return None
    counts, edges = np.histogram(times, min(BINS, len(times) // 2))
    rates = (edges[:-1] + edges[1:]) / 2, counts / np.diff(edges)
    return _chart(stats, "minibatches/s", [("delivered", np.stack(rates, 1).tolist())])


def _memory(stats: LoaderStats) -> dict[str, Any] | None:
    began = min((call.began for call in stats.calls), default=0.0)  # of the first kept call
    samples = [sample for sample in stats.samples if sample.at >= began]
    caller = [(sample.at, sample.caller / 1e6) for sample in samples]
    workers = [(sample.at, sample.workers / 1e6) for sample in samples]
    curves = [("this process", caller), ("all workers, shared pages in each", workers)]
    return _chart(stats, "resident memory", curves if any(value for _, value in workers) else curves[:1], " MB")


def _queues(stats: LoaderStats) -> dict[str, Any] | None:
    """Return a chart of how many minibatches of each lane were made and not yet taken; None if there is no curve."""
    ends: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for call in stats.calls:
        ends[call.stage][call.minibatch].append(call.began + call.seconds)
    curves = []
    for lane in stats.lanes:
        made, taken = ends[lane.stages[-1].label] if lane.stages else {}, ends[lane.waiting]
        changes = []
        for index, times in taken.items():
            pairs = zip(sorted(made.get(index, ())), sorted(times), strict=False)
            changes += [change for ready, at in pairs for change in ((ready, 1), (at, -1))]
        points, waiting = [], 0
        for at, change in sorted(changes):
            waiting += change
            points.append((at, float(max(waiting, 0))))
        curves.append((lane.waiting.removeprefix(WAITING), _thinned(points)))
    return _chart(stats, "made and not yet taken", curves)


def _thinned(points: _Points) -> _Points:
    """Return at most BINS points. Each has the time of the first point and the mean value of a group of neighboring
    points.
    """
    size = -(-len(points) // BINS) or 1
    groups = [points[first : first + size] for first in range(0, len(points), size)]
    return [(group[0][0], sum(value for _, value in group) / len(group)) for group in groups]


def _timeline(stats: LoaderStats) -> dict[str, Any] | None:
    """Return the last calls as a timeline for the report's template: a row for each thread of each process, with a bar
    for each call. None: there are no calls.
    """
    calls = sorted(stats.calls, key=lambda call: call.began)[-MOST_BLOCKS:]
    if not calls:
        return None
    colors = _colors(stats)
    first, last = calls[0].began, max(call.began + call.seconds for call in calls)
    scale = 1000 / ((last - first) or 1.0)
    rows: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for call in calls:
        waits = call.stage.startswith(WAITING)
        block = {
            "x": f"{(call.began - first) * scale:.2f}",
            "width": f"{max(call.seconds * scale, 0.3):.2f}",
            "y": 3 if waits else 0,
            "height": 4 if waits else 10,
            "color": WAITS_COLOR if waits else colors.get(call.stage, CONSUMER_COLOR),
            "text": f"{call.stage}, minibatch {call.minibatch}: {call.seconds * 1e3:.2f} ms",
        }
        rows[call.process, call.thread].append(block)
    shown = [
        {"name": f"{'caller' if process == stats.caller else f'process {process}'}, {thread}", "blocks": blocks}
        for (process, thread), blocks in sorted(rows.items(), key=lambda row: (row[0][0] == stats.caller, row[0]))
    ]
    colors |= {CONSUMER: CONSUMER_COLOR, "waits": WAITS_COLOR}
    return {"rows": shown, "span": f"{last - first:.3g} s", "key": [*colors.items()]}
