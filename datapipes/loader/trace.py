"""The trace of a loader: its stats and its last calls, in a file.

A trace is JSON for chrome://tracing and Perfetto: one complete event for each call, in microseconds. Viewers skip its
key "datapipes", which has the rest of the stats.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datapipes.base.checks import shown
from datapipes.base.clock import CallRecord
from datapipes.base.files import read_regular, write_text
from datapipes.base.records import form_of, to_json
from datapipes.base.strict_json import parse_strict
from datapipes.loader.facts import NO_STAGES, LaneFacts, Sample
from datapipes.loader.stats import LoaderStats

VERSION = 1
KEY = "datapipes"
TIMES = {"seconds", "concurrent_seconds"}
MOST_BYTES = 2**28  # of a trace that is read; all calls that a loader keeps take 15 MB
_TEXT = form_of(str).read
_LANES = form_of(tuple[LaneFacts, ...]).read
_ROWS = form_of(Mapping[str, Mapping[str, float]]).read
_SAMPLES = form_of(tuple[Sample, ...]).read


def write_trace(path: str | Path, stats: LoaderStats) -> None:
    """Write a loader's stats, which must include the calls, as a trace.

    Raises:
        OSError: The file cannot be written.
    """
    threads: dict[tuple[int, str], int] = {}
    events: list[dict[str, Any]] = []
    for call in stats.calls:
        number = threads.setdefault((call.process, call.thread), len(threads))
        event = {"name": call.stage, "ph": "X", "ts": call.began * 1e6, "dur": call.seconds * 1e6}
        used = {"minibatch": call.minibatch, "processor_us": call.processor_seconds * 1e6, "disk": call.disk_bytes}
        events.append({**event, "pid": call.process, "tid": number, "args": used})
    for process in sorted({process for process, _ in threads}):
        name = "caller" if process == stats.caller else "worker"
        events.append({"name": "process_name", "ph": "M", "pid": process, "args": {"name": f"{name} {process}"}})
    for (process, thread), number in threads.items():
        events.append({"name": "thread_name", "ph": "M", "pid": process, "tid": number, "args": {"name": thread}})
    sizes = {"processors": stats.processors, "batch_size": stats.batch_size}
    facts = {"title": stats.title, **sizes, "lanes": [to_json(lane) for lane in stats.lanes]}
    body = {"version": VERSION, "caller": stats.caller, "facts": facts, "stats": stats, "samples": stats.samples}
    write_text(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms", KEY: body}) + "\n")


def read_trace(path: str | Path) -> LoaderStats:
    """Return the stats that a trace contains, with the calls.

    Raises:
        OSError: The file cannot be read.
        ValueError: `path` is no regular file, or its content is no complete trace of this version. The message says
            which.
    """
    where = f"trace {shown(str(path))}"
    again = "Write it again by loader.trace(path)."
    content = read_regular(Path(path), MOST_BYTES)
    try:
        trace = parse_strict(content.decode(), floats=True)
    except ValueError as error:
        raise ValueError(f"{where} is not valid JSON; it may be cut off ({error}). {again}") from error
    body = trace.get(KEY) if isinstance(trace, dict) else None
    if not isinstance(body, dict):
        raise ValueError(f"{where} has no key {KEY!r}, which a trace of a DataLoader has. {again}")
    if type(body.get("version")) is not int or body["version"] != VERSION:
        version = shown(body.get("version"))
        raise ValueError(f"{where} is a trace of version {version}; this release reads version {VERSION}. {again}")
    try:
        return _stats_of(body, trace["traceEvents"])
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{where} is not a whole trace: {type(error).__name__}: {error}. {again}") from error


def _stats_of(body: Mapping[str, Any], events: Any) -> LoaderStats:
    facts, rows = body["facts"], _ROWS("stats", body["stats"])
    for name, row in rows.items():
        least = 1.0 if name not in NO_STAGES or name == "epochs" else 0.0  # the least value of "calls" and of "begun"
        is_whole = least == 0 or (row.keys() >= TIMES and min(row["calls"], row.get("begun", 1.0)) >= least)
        if not is_whole or min(row.values(), default=0.0) < 0:
            raise ValueError(f"found the counts {shown(row)} of {shown(name)}")
    threads = {
        event["tid"]: _TEXT("thread", event["args"]["name"]) for event in events if event["name"] == "thread_name"
    }
    calls = [
        CallRecord(
            _TEXT("name", event["name"]),
            float(event["ts"]) / 1e6,
            float(event["dur"]) / 1e6,
            int(event["pid"]),
            threads[event["tid"]],
            int(event["args"]["minibatch"]),
            float(event["args"]["processor_us"]) / 1e6,
            float(event["args"]["disk"]),
        )
        for event in events
        if event["ph"] == "X"
    ]
    return LoaderStats(
        rows,
        _TEXT("title", facts["title"]),
        int(facts["processors"]),
        int(facts["batch_size"]),
        _LANES("lanes", facts["lanes"]),
        int(body["caller"]),
        _SAMPLES("samples", body["samples"]),
        calls,
    )
