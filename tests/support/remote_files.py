"""Files at URIs, for tests: in fsspec's memory, or behind an HTTP server that lists folders and knows ranges."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest


class Server(ThreadingHTTPServer):
    """A server on the loopback.

    Attributes:
        uri: of the folder.
        tells_versions: whether an answer has an ETag.
        before: called before each answer with method and path; returns the status of an error, or None.
        asked: methods, paths and ranges of the requests so far.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
        self.uri = f"http://127.0.0.1:{self.server_address[1]}"
        self.tells_versions = True
        self.before: Callable[[str, str], int | None] = lambda method, path: None
        self.asked: list[tuple[str, str, str | None]] = []
        self._sockets: list[socket.socket] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        self._sockets.append(request)
        super().process_request(request, client_address)

    def end(self) -> None:
        """Stop, and close the connections that clients keep."""
        self.shutdown()
        self.server_close()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(super().do_HEAD)

    def do_GET(self) -> None:
        self._answer(super().do_GET)

    def _answer(self, list_folder: Callable[[], None]) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append((self.command, self.path, asked))
        status = self.server.before(self.command, self.path)
        path = Path(self.translate_path(self.path))
        if status is not None or not path.is_file():
            self.send_error(status) if status is not None else list_folder()
            return
        with path.open("rb") as file:
            found, content = os.fstat(file.fileno()), file.read()
        first, last = (int(each) for each in asked.removeprefix("bytes=").split("-")) if asked else (0, len(content))
        part = content[first : last + 1]
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(part)))
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(content)}")
        if self.server.tells_versions:
            self.send_header("ETag", f'"{found.st_mtime_ns}-{found.st_size}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(part)


@contextmanager
def served(folder: Path) -> Iterator[Server]:
    """Give a server of a folder; skip the test where nothing reads HTTP."""
    http = pytest.importorskip("fsspec.implementations.http", reason="http:// needs fsspec and aiohttp")
    server = Server(folder)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        http.HTTPFileSystem.clear_instance_cache()
        server.end()
        thread.join()


class Place:
    """Files at a URI, for a test: `put` and `remove` change them.

    Attributes:
        uri: of their folder.
        server: the HTTP server; None in memory.
    """

    def __init__(self, uri: str, folder: Path | None = None, server: Server | None = None) -> None:
        self.uri, self.server, self._folder = uri, server, folder

    def put(self, name: str, content: bytes) -> None:
        """Write a file, or write it anew."""
        if self._folder is None:
            _memory().pipe_file(f"{self.uri}/{name}", content)
        else:
            (self._folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self._folder / f"{name}.new").write_bytes(content)
            os.replace(self._folder / f"{name}.new", self._folder / name)

    def copy(self, folder: Path) -> str:
        """Write all files of a folder to a folder of the same name; return its URI, which ends in "/"."""
        for path in folder.iterdir():
            self.put(f"{folder.name}/{path.name}", path.read_bytes())
        return f"{self.uri}/{folder.name}/"

    def remove(self, name: str) -> None:
        """Remove a file."""
        if self._folder is None:
            _memory().rm_file(f"{self.uri}/{name}")
        else:
            (self._folder / name).unlink()


def _memory() -> Any:
    return pytest.importorskip("fsspec", reason="URIs need fsspec").filesystem("memory")


@contextmanager
def place_of(scheme: str, folder: Path) -> Iterator[Place]:
    """Give an empty place of a scheme; that of HTTP lies in a folder, which is made."""
    if scheme == "http":
        folder.mkdir()
        with served(folder) as server:
            yield Place(server.uri, folder, server)
        return
    try:
        yield Place("memory://of-a-test")
    finally:
        if _memory().exists("/of-a-test"):
            _memory().rm("/of-a-test", recursive=True)
