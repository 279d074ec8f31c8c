"""List the TCP connections of this process, and end some of them.

Flight offers no way to end a call or a connection from the server's side. gRPC takes the end of a socket as the end of
its client, and ends all work for that client. Nothing here needs a free file descriptor, since clients may have taken
all of them.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator

_MAPPED = "::ffff:"  # an IPv4 address on a socket for both versions
_LAST_DATA_RECV = 52  # offset in struct tcp_info (linux/tcp.h): ms since data came, or since the connection was made


class TcpConnections:
    """Lists and ends the TCP connections of this process. It keeps three file descriptors open until `close`. Any
    thread may call its methods.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._status = os.open("/proc/self/status", os.O_RDONLY)
        self._nothing = os.open(os.devnull, os.O_RDONLY)
        self._ours = os.dup(self._nothing)  # a duplicate of each socket in turn, or gRPC could close it meanwhile

    def close(self) -> None:
        """Close the three file descriptors; may be called twice."""
        with self._lock:
            for descriptor in (self._status, self._nothing, self._ours):
                if descriptor >= 0:
                    os.close(descriptor)
            self._status = self._nothing = self._ours = -1

    def to(self, port: int) -> dict[str, float]:
        """Find the connections to `port`, a port of this process. Return {gRPC's name of the other end: seconds since
        data last came from it}.
        """
        return {peer: _idle_s(sock) for sock in self._all() if _port(sock) == port and (peer := _grpc_name(sock))}

    def keep_alive(self, port: int, within_s: int) -> None:
        """Let the system end connections to `port` if the machine at the other end is silent for `within_s` seconds.
        This finds lost machines only: the machine of a stopped process still answers.
        """
        options = {socket.TCP_KEEPIDLE: 1, socket.TCP_KEEPINTVL: 1, socket.TCP_USER_TIMEOUT: 1000 * within_s}
        for sock in self._all():
            with contextlib.suppress(OSError):  # it has ended by itself
                if _port(sock) == port and _grpc_name(sock):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                    for option, value in options.items():
                        sock.setsockopt(socket.IPPROTO_TCP, option, value)

    def end(self, peers: set[str]) -> int:
        """Shut down the connections whose other ends are `peers`, gRPC's names; return how many were shut down."""
        return self._end(lambda sock: _grpc_name(sock) in peers) if peers else 0

    def end_all(self, port: int) -> int:
        """Shut down all connections to `port`, a port of this process; return how many were shut down."""
        return self._end(lambda sock: bool(_grpc_name(sock)) and _port(sock) == port)

    def _end(self, is_meant: Callable[[socket.socket], bool]) -> int:
        count = 0
        for sock in self._all():
            with contextlib.suppress(OSError):  # it has ended by itself
                if is_meant(sock):
                    sock.shutdown(socket.SHUT_RDWR)
                    count += 1
        return count

    def _all(self) -> Iterator[socket.socket]:
        """Yield each stream socket of this process. A socket can be used only until the next one is yielded."""
        with self._lock:
            if self._status < 0:
                return
            match = re.search(rb"^FDSize:\s*(\d+)", os.pread(self._status, 4096, 0), re.MULTILINE)
            try:
                for descriptor in range(int(match[1]) if match else 0):
                    if descriptor in (self._status, self._nothing, self._ours):
                        continue
                    try:
                        os.dup2(descriptor, self._ours, inheritable=False)
                        sock = socket.socket(fileno=self._ours)
                    except OSError:  # it is not open, or no socket
                        continue
                    try:
                        if sock.type == socket.SOCK_STREAM:
                            yield sock
                    finally:
                        sock.detach()
            finally:
                os.dup2(self._nothing, self._ours, inheritable=False)  # or the last connection would stay open


def _idle_s(sock: socket.socket) -> float:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA_RECV + 4)
    idle_ms: int = struct.unpack_from("=I", info, _LAST_DATA_RECV)[0]
    return idle_ms / 1000


def _port(sock: socket.socket) -> int:
    return int(sock.getsockname()[1]) if sock.family in (socket.AF_INET, socket.AF_INET6) else -1


def _grpc_name(sock: socket.socket) -> str:
    """Return the name by which gRPC calls the other end of a connection, "ipv4:HOST:PORT" or the like for IPv6. "": the
    socket has no other end, or is not TCP.
    """
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return ""
    try:
        host, port = sock.getpeername()[:2]
    except OSError:  # it listens
        return ""
    if ":" not in host or host.startswith(_MAPPED):
        return f"ipv4:{host.removeprefix(_MAPPED)}:{port}"
    return f"ipv6:%5B{host}%5D:{port}"
