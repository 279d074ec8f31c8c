"""Record: all that a loader has counted, for a report; and the trace, a file that holds one.

A trace is JSON for chrome://tracing and Perfetto: one complete event for each call, in microseconds. Viewers skip its
key "datapipes", which has the rest of the record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datapipes.base.checks import shown
from datapipes.base.clock import CallRecord
from datapipes.base.files import read_regular, write_text
from datapipes.base.strict_json import parse_strict
from datapipes.loader.facts import Facts, LaneFacts, StageFacts
from datapipes.loader.stats import NO_STAGES, LoaderStats, Sample

VERSION = 1
KEY = "datapipes"
TIMES = {"seconds", "concurrent_seconds"}
MOST_BYTES = 2**28  # of a trace; one with all calls that a loader keeps takes 15 MB


@dataclass(frozen=True)
class Record:
    """What a loader has counted.

    Attributes:
        caller: the process of the consumer.
        stats: of all epochs, with the facts of the plan.
        calls: the last calls of all stages, waits included.
        samples: the memory over the time.
    """

    caller: int
    stats: LoaderStats
    calls: Sequence[CallRecord]
    samples: Sequence[Sample]


def write_trace(path: str | Path, record: Record) -> None:
    """Write a record as a trace.

    Raises:
        OSError: The file cannot be written.
    """
    threads: dict[tuple[int, str], int] = {}
    events: list[dict[str, Any]] = []
    for call in record.calls:
        number = threads.setdefault((call.process, call.thread), len(threads))
        event = {"name": call.stage, "ph": "X", "ts": call.began * 1e6, "dur": call.seconds * 1e6}
        used = {"minibatch": call.minibatch, "processor_us": call.processor_seconds * 1e6, "disk": call.disk_bytes}
        events.append({**event, "pid": call.process, "tid": number, "args": used})
    for process in sorted({process for process, _ in threads}):
        name = "caller" if process == record.caller else "worker"
        events.append({"name": "process_name", "ph": "M", "pid": process, "args": {"name": f"{name} {process}"}})
    for (process, thread), number in threads.items():
        events.append({"name": "thread_name", "ph": "M", "pid": process, "tid": number, "args": {"name": thread}})
    facts = record.stats.facts._asdict()
    facts["lanes"] = [
        {**lane._asdict(), "stages": [stage._asdict() for stage in lane.stages]} for lane in record.stats.facts.lanes
    ]
    own = {
        "version": VERSION,
        "caller": record.caller,
        "facts": facts,
        "stats": record.stats,
        "samples": record.samples,
    }
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms", KEY: own})
    write_text(path, text + "\n")


def read_trace(path: str | Path) -> Record:
    """Return the record of a trace.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is no regular file, or not a whole trace of this version; the message says what is wrong.
    """
    found = f"trace {shown(str(path))}"
    again = "Write it again by loader.trace(path)."
    content = read_regular(Path(path), MOST_BYTES)
    try:
        trace = parse_strict(content.decode(), floats=True)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{found} is not valid JSON; it may be cut off ({error}). {again}") from error
    own = trace.get(KEY) if isinstance(trace, dict) else None
    if not isinstance(own, dict):
        raise ValueError(f"{found} has no key {KEY!r}, which a trace of a DataLoader has. {again}")
    if type(own.get("version")) is not int or own["version"] != VERSION:
        version = shown(own.get("version"))
        raise ValueError(f"{found} is a trace of version {version}; this release reads version {VERSION}. {again}")
    try:
        return _record_of(trace, own)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{found} is not a whole trace: {type(error).__name__}: {error}. {again}") from error


def _record_of(trace: Mapping[str, Any], own: Mapping[str, Any]) -> Record:
    given = own["facts"]
    lanes = []
    for lane in given["lanes"]:
        stages = [
            StageFacts(_text(each["label"]), _text(each["text"]), _text(each["does"]), bool(each["awaits"]))
            for each in lane["stages"]
        ]
        title, pool, waiting = (_text(lane[name]) for name in ("title", "pool", "waiting"))
        lanes.append(LaneFacts(title, max(int(lane["workers"]), 1), pool, waiting, tuple(stages)))
    facts = Facts(_text(given["title"]), int(given["processors"]), int(given["batch_size"]), tuple(lanes))
    rows = {_text(name): {_text(key): float(value) for key, value in row.items()} for name, row in own["stats"].items()}
    for name, row in rows.items():
        least = 1.0 if name not in NO_STAGES or name == "epochs" else 0.0  # of calls and epochs
        is_whole = least == 0 or (row.keys() >= TIMES and min(row["calls"], row.get("begun", 1.0)) >= least)
        if not is_whole or min(row.values(), default=0.0) < 0:
            raise ValueError(f"found the counts {shown(row)} of {shown(name)}")
    names = {each["tid"]: _text(each["args"]["name"]) for each in trace["traceEvents"] if each["name"] == "thread_name"}
    calls = [
        CallRecord(
            _text(each["name"]),
            float(each["ts"]) / 1e6,
            float(each["dur"]) / 1e6,
            int(each["pid"]),
            names[each["tid"]],
            int(each["args"]["minibatch"]),
            float(each["args"]["processor_us"]) / 1e6,
            float(each["args"]["disk"]),
        )
        for each in trace["traceEvents"]
        if each["ph"] == "X"
    ]
    samples = [Sample(*map(float, each)) for each in own["samples"]]
    return Record(int(own["caller"]), LoaderStats(rows, facts), calls, samples)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"found {shown(value)} in the place of a text")
    return value
