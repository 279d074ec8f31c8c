"""A trace of the calls of stages, in the format of chrome://tracing and Perfetto."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datapipes.base.clock import CallRecord


def write_trace(path: str | Path, calls: Sequence[CallRecord]) -> None:
    """Write `calls` as JSON: one complete event each, in microseconds, by process and thread."""
    threads: dict[tuple[int, str], int] = {}
    events: list[dict[str, Any]] = []
    for call in calls:
        number = threads.setdefault((call.process, call.thread), len(threads))
        events.append(
            {
                "name": call.stage,
                "ph": "X",
                "ts": call.began * 1e6,
                "dur": call.seconds * 1e6,
                "pid": call.process,
                "tid": number,
                "args": {"minibatch": call.minibatch},
            }
        )
    here = os.getpid()
    for process in sorted({process for process, _ in threads}):
        name = "caller" if process == here else "worker"
        events.append({"name": "process_name", "ph": "M", "pid": process, "args": {"name": f"{name} {process}"}})
    for (process, thread), number in threads.items():
        events.append({"name": "thread_name", "ph": "M", "pid": process, "tid": number, "args": {"name": thread}})
    Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n", encoding="utf-8")
