"""The statistics of a server as text for Prometheus."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

from datapipes.distributed.server.service import Service
from datapipes.distributed.server.statistics import BUCKETS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_page(service: Service) -> str:
    """Return all metrics."""
    return "".join(f"{line}\n" for line in (*_of_requests(service.numbers()), *_of_part(service), *_of_process()))


def _of_requests(numbers: dict[str, Any]) -> Iterator[str]:
    kinds = numbers["requests"].items()
    yield from _about("datapipes_requests_total", "counter", "Requests by kind and result.")
    for kind, each in kinds:
        for result, count in each["results"].items():
            yield f'datapipes_requests_total{{kind="{kind}",result="{result}"}} {count}'
    yield from _about("datapipes_request_seconds", "histogram", "From a request's arrival until its answer is made.")
    for kind, each in kinds:
        for bound, total in zip((*BUCKETS, "+Inf"), itertools.accumulate(each["buckets"]), strict=True):
            yield f'datapipes_request_seconds_bucket{{kind="{kind}",le="{bound}"}} {total}'
        yield f'datapipes_request_seconds_sum{{kind="{kind}"}} {each["microseconds"] / 1e6}'
        yield f'datapipes_request_seconds_count{{kind="{kind}"}} {sum(each["buckets"])}'
    for name, key, what in (
        ("datapipes_request_bytes_total", "received_bytes", "Bytes of requests."),
        ("datapipes_answer_bytes_total", "sent_bytes", "Bytes of answers."),
    ):
        yield from _about(name, "counter", what)
        for kind, each in kinds:
            yield f'{name}{{kind="{kind}"}} {each[key]}'
    yield from _about("datapipes_stalled_connections_total", "counter", "Connections ended since nothing was read.")
    yield f"datapipes_stalled_connections_total {numbers['stalled_connections']}"
    yield from _about("datapipes_memory_sheds_total", "counter", "Ends of all connections at the memory bound.")
    yield f"datapipes_memory_sheds_total {numbers['memory_sheds']}"
    for name, key, what in (
        ("datapipes_requests_waiting", "waiting", "Requests that wait for their turn."),
        ("datapipes_requests_working", "working", "Requests that are worked on."),
        ("datapipes_answer_bytes_in_flight", "bytes_in_flight", "Bytes of answers that are being made or sent."),
    ):
        yield from _about(name, "gauge", what)
        yield f"{name} {numbers[key]}"


def _of_part(service: Service) -> Iterator[str]:
    meant = service.meant
    yield from _about("datapipes_part_info", "gauge", "What is served.")
    yield (
        f'datapipes_part_info{{part="{meant.part}",num_parts="{service.facts.num_parts}",'
        f'partition_id="{meant.partition_id}",content_id="{meant.content_id}"}} 1'
    )


def _of_process() -> Iterator[str]:
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        # The name of the program, in parentheses, may hold spaces. What follows begins with field 3 of proc(5).
        fields = file.read().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    for name, kind, what, value in (
        ("process_cpu_seconds_total", "counter", "User and system time.", (int(fields[11]) + int(fields[12])) / ticks),
        ("process_threads", "gauge", "Threads.", int(fields[17])),
        ("process_virtual_memory_bytes", "gauge", "Virtual memory.", int(fields[20])),
        (
            "process_resident_memory_bytes",
            "gauge",
            "Resident memory, with the mapped files.",
            int(fields[21]) * os.sysconf("SC_PAGESIZE"),
        ),
        ("process_open_fds", "gauge", "Open file descriptors.", len(os.listdir("/proc/self/fd"))),
    ):
        yield from _about(name, kind, what)
        yield f"{name} {value}"


def _about(name: str, kind: str, what: str) -> tuple[str, str]:
    return f"# HELP {name} {what}", f"# TYPE {name} {kind}"
