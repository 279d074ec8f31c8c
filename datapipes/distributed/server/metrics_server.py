"""The metrics port: GET /metrics for Prometheus, GET /health for probes. Plain HTTP, a thread for each request.

It may listen where other machines reach it, without TLS: probes of an orchestrator come from there and have no
certificate, and what it tells has no data of the graph. A few connections at once are served, the rest are closed.
"""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from datapipes.base.log import logger
from datapipes.distributed.address import Address
from datapipes.distributed.server.metrics_page import CONTENT_TYPE, metrics_page
from datapipes.distributed.server.service import Service

_TIMEOUT_S = 10.0  # for a client that sends nothing
MOST_CONNECTIONS = 16


class MetricsServer:
    """Listens from its making until `close`."""

    def __init__(self, where: str, service: Service, address: Address) -> None:
        kind = _ServerOfIPv6 if ":" in address.host else _Server
        try:
            self._server = kind((address.host, address.port), _Handler)
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
        """End the thread and the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    service: Service
    request_queue_size = 8

    def __init__(self, *arguments: Any) -> None:
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(*arguments)

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


class _ServerOfIPv6(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    timeout = _TIMEOUT_S
    server: _Server
    server_version = "datapipes"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._say(200, metrics_page(self.server.service), CONTENT_TYPE)
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
