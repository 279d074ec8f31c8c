"""End the connections of some clients.

Flight offers no way to end a call or a connection from the server's side. gRPC takes the end of a socket as the end of
its client, and ends all that it does for it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable

_MAPPED = "::ffff:"  # an IPv4 address on a socket for both versions


def end_connections(peers: set[str]) -> int:
    """Shut down this process's connections to `peers`, each named as gRPC names it; return how many they were."""
    return _end(lambda sock: _grpc_name(sock) in peers) if peers else 0


def end_all_connections(port: int) -> int:
    """Shut down this process's connections that came to a port of its own; return how many they were."""
    return _end(lambda sock: bool(_grpc_name(sock)) and sock.getsockname()[1] == port)


def _end(is_meant: Callable[[socket.socket], bool]) -> int:
    return sum(_ended(int(name), is_meant) for name in os.listdir("/proc/self/fd"))


def _ended(descriptor: int, is_meant: Callable[[socket.socket], bool]) -> bool:
    try:
        ours = os.dup(descriptor)
    except OSError:  # closed meanwhile, or there is no descriptor left
        return False
    try:
        sock = socket.socket(fileno=ours)
    except OSError:  # no socket
        os.close(ours)
        return False
    with sock, contextlib.suppress(OSError):  # it listens, and has no other end
        if sock.type == socket.SOCK_STREAM and is_meant(sock):
            sock.shutdown(socket.SHUT_RDWR)
            return True
    return False


def _grpc_name(sock: socket.socket) -> str:
    """Return how gRPC names the other end of a connection; "" if this is none of TCP."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return ""
    host, port = sock.getpeername()[:2]
    if ":" not in host or host.startswith(_MAPPED):
        return f"ipv4:{host.removeprefix(_MAPPED)}:{port}"
    return f"ipv6:%5B{host}%5D:{port}"
