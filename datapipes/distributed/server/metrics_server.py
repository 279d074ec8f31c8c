"""The metrics port: GET /metrics for Prometheus, GET /health for probes. Plain HTTP, a thread for each request.

Other machines may reach the port without TLS: probes of an orchestrator come from other machines and have no
certificate, and metrics have no data of the graph. Up to 16 connections are served at once; further ones are closed.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from datapipes.base.log import logger
from datapipes.distributed.addresses import Address
from datapipes.distributed.server.service import Service
from datapipes.distributed.server.statistics import BUCKETS

_TIMEOUT_S = 10.0  # for a client that sends nothing
MOST_CONNECTIONS = 16
_RETRY_S = 0.5


class MetricsServer:
    """The HTTP server of the metrics port. It listens from its construction until `close`."""

    def __init__(self, where: str, service: Service, address: Address) -> None:
        try:
            self._server = _Server((address.host, address.port), _Handler)
        except OSError as error:
            raise type(error)(
                error.errno,
                f"{where}: cannot listen on {address} for metrics: {error.strerror}. Choose another port, or 0.",
            ) from error
        self._server.service = service
        self.address = Address(address.host, self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and end the server's thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    service: Service
    request_queue_size = 8

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:  # no descriptor is left; the pending connection would be tried again at once
            time.sleep(_RETRY_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could start
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("the metrics port has met an error of %s", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = _TIMEOUT_S
    server: _Server
    server_version = "datapipes"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._say(200, _metrics_page(self.server.service), CONTENT_TYPE)
        elif path == "/health":
            serves = not self.server.service.is_stopping
            self._say(200 if serves else 503, "serving\n" if serves else "stopping\n", "text/plain; charset=utf-8")
        else:
            self._say(404, "there are /metrics and /health\n", "text/plain; charset=utf-8")

    def _say(self, code: int, text: str, content_type: str) -> None:
        data = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: probes come every few seconds."""


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def _metrics_page(service: Service) -> str:
    """Return all metrics of `service` as a text in the format of Prometheus."""
    return "".join(f"{line}\n" for line in (*_of_requests(service.numbers()), *_of_part(service), *_of_process()))


def _of_requests(numbers: dict[str, Any]) -> Iterator[str]:
    kinds = numbers["requests"].items()
    yield from _about("datapipes_requests_total", "counter", "Requests by kind and result.")
    for kind, counts in kinds:
        for result, count in counts["results"].items():
            yield f'datapipes_requests_total{{kind="{kind}",result="{result}"}} {count}'
    yield from _about("datapipes_request_seconds", "histogram", "From a request's arrival until its answer is made.")
    for kind, counts in kinds:
        for bound, total in zip((*BUCKETS, "+Inf"), itertools.accumulate(counts["buckets"]), strict=True):
            yield f'datapipes_request_seconds_bucket{{kind="{kind}",le="{bound}"}} {total}'
        yield f'datapipes_request_seconds_sum{{kind="{kind}"}} {counts["microseconds"] / 1e6}'
        yield f'datapipes_request_seconds_count{{kind="{kind}"}} {sum(counts["buckets"])}'
    for name, key, text in (
        ("datapipes_request_bytes_total", "received_bytes", "Bytes of requests."),
        ("datapipes_answer_bytes_total", "sent_bytes", "Bytes of answers."),
    ):
        yield from _about(name, "counter", text)
        for kind, counts in kinds:
            yield f'{name}{{kind="{kind}"}} {counts[key]}'
    for name, kind, text, key in (
        ("stalled_connections_total", "counter", "Connections ended since nothing was read.", "stalled_connections"),
        ("memory_sheds_total", "counter", "Ends of all connections at the memory bound.", "memory_sheds"),
        ("requests_waiting", "gauge", "Requests that wait for their turn.", "waiting"),
        ("requests_working", "gauge", "Requests that are worked on.", "working"),
        ("answer_bytes_in_flight", "gauge", "Bytes of answers that are being made or sent.", "bytes_in_flight"),
    ):
        yield from _about(f"datapipes_{name}", kind, text)
        yield f"datapipes_{name} {numbers[key]}"


def _of_part(service: Service) -> Iterator[str]:
    meant = service.meant
    yield from _about("datapipes_part_info", "gauge", "What is served.")
    yield (
        f'datapipes_part_info{{part="{meant.part}",num_parts="{service.facts.num_parts}",'
        f'partition_id="{meant.partition_id}",content_id="{meant.content_id}"}} 1'
    )


def _of_process() -> Iterator[str]:
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        # The name of the program, in parentheses, may hold spaces. The rest begins with field 3 of proc(5).
        fields = file.read().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    for name, kind, text, value in (
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
        yield from _about(name, kind, text)
        yield f"{name} {value}"


def _about(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"
