"""A TCP proxy in a process of its own: it delays, stalls, swallows and cuts what goes through.

    with Proxy("127.0.0.1:7000", delay=0.001, stall=(0.01, 0.2)) as proxy:
        ...                    # clients connect to proxy.address
        proxy.tell("hole on")  # accept and read, but pass nothing on; "hole off" cuts what was held
        proxy.tell("cut")      # end all connections at once
        proxy.tell("stall 0.5 0.2"), proxy.tell("delay 0.01")

`delay` is in seconds, each way. `stall` is (share of requests, seconds): what is behind a stalled request on the same
connection waits too, as behind a lost packet. Draws are seeded. Run alone: python tests/support/proxy.py TARGET [...].
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import random
import socket
import subprocess
import sys
from pathlib import Path

REQUEST_BYTES = 200  # less is no request: HTTP/2 settings, acknowledgements and window updates
MOST_HELD = 2**22  # bytes that wait on one side before the other is read no more
END_S = 10.0


class Proxy:
    """Runs the proxy as a child process; `address` is where it listens."""

    def __init__(
        self, target: str, *, delay: float = 0.0, stall: tuple[float, float] = (0.0, 0.0), seed: int = 0, port: int = 0
    ) -> None:
        command = [sys.executable, str(Path(__file__)), target, "--port", str(port), "--delay", str(delay)]
        command += ["--stall", str(stall[0]), str(stall[1]), "--seed", str(seed)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = self._line()

    def tell(self, what: str) -> str:
        """Give a command; return when it is done, with what it answers."""
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._line()

    def stalled(self) -> int:
        """Return how many requests were stalled until now."""
        return int(self.tell("stalled"))

    def close(self) -> None:
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
            self._process.wait(END_S)
            self._process.stdout.close()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, f"the proxy ended with {self._process.wait(END_S)}"
        return line

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Rules:
    """What the proxy does at the moment, and the connections it has."""

    def __init__(self, target: tuple[str, int], delay: float, stall: tuple[float, float], seed: int) -> None:
        self.target, self.delay, self.stall, self.hole = target, delay, stall, False
        self.random, self.stalled = random.Random(seed), 0
        self.ends: set[End] = set()

    def pause_of(self, data: bytes, from_client: bool) -> float:
        """Return the seconds to hold up what has come."""
        share, seconds = self.stall
        if from_client and len(data) >= REQUEST_BYTES and share > 0 and self.random.random() < share:
            self.stalled += 1
            return self.delay + seconds
        return self.delay

    def obey(self, line: str) -> str:
        command, *values = line.split()
        if command == "delay":
            self.delay = float(values[0])
        elif command == "stall":
            self.stall = (float(values[0]), float(values[1]))
        elif command == "hole":
            self.hole = values[0] == "on"
        elif command == "stalled":
            return str(self.stalled)
        elif command != "cut":
            return f"there is no command {command}"
        if command == "cut" or (command == "hole" and not self.hole):
            for end in [*self.ends]:
                if end.transport is not None:
                    end.transport.abort()
        return "done"


class End(asyncio.Protocol):
    """One end of a connection: what it receives goes to `other`, later."""

    def __init__(self, rules: Rules, other: End | None = None) -> None:
        self.rules, self.other, self.from_client = rules, other, other is None
        self.transport: asyncio.Transport | None = None
        self.held: collections.deque[tuple[float, bytes | None]] = collections.deque()  # (due, data or the end)
        self.held_bytes, self.due, self.timer = 0, 0.0, None
        self.full = False  # the other end cannot write

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.rules.ends.add(self)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(MOST_HELD)
        if self.from_client and not self.rules.hole:
            self.opening = asyncio.get_running_loop().create_task(self.open_other())
        elif self.other is not None:
            self.other.look()

    async def open_other(self) -> None:
        try:
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: self.join(End(self.rules, self)), *self.rules.target)
        except OSError:
            if self.transport is not None:
                self.transport.abort()

    def join(self, other: End) -> End:
        self.other = other
        return other

    def data_received(self, data: bytes) -> None:
        self.hold(data, self.rules.pause_of(data, self.from_client))

    def eof_received(self) -> bool:
        self.hold(None, self.rules.delay)
        return True

    def hold(self, data: bytes | None, pause: float) -> None:
        if self.rules.hole:
            return
        self.due = max(self.due, asyncio.get_running_loop().time() + pause)
        self.held.append((self.due, data))
        self.held_bytes += len(data or b"")
        self.look()

    def look(self) -> None:
        """Pass on what is due; come again for the rest."""
        other = self.other
        if other is None or other.transport is None or self.transport is None:
            return
        now = asyncio.get_running_loop().time()
        while self.held and self.held[0][0] <= now and not self.full:
            data = self.held.popleft()[1]
            if data is None:
                other.transport.close()
            elif not self.rules.hole:
                self.held_bytes -= len(data)
                other.transport.write(data)
        if self.full or self.held_bytes > MOST_HELD:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()
        if self.held and not self.full:
            self.timer = self.timer or asyncio.get_running_loop().call_at(self.held[0][0], self.come_again)

    def come_again(self) -> None:
        self.timer = None
        self.look()

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.full = True

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.full = False
            self.other.look()

    def connection_lost(self, error: Exception | None) -> None:
        self.rules.ends.discard(self)
        self.transport = None
        if self.other is not None and self.other.transport is not None:
            self.other.transport.abort() if error is not None else self.other.transport.close()


async def main(options: argparse.Namespace) -> None:
    host, _, port = options.target.rpartition(":")
    rules = Rules((host, int(port)), options.delay, tuple(options.stall), options.seed)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: End(rules), "127.0.0.1", options.port)
    print(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():  # its end ends the proxy, also if whoever started it was killed
        print(rules.obey(line.decode()), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", help="host:port")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds each way")
    parser.add_argument("--stall", type=float, nargs=2, default=(0.0, 0.0), help="share of requests, seconds")
    parser.add_argument("--seed", type=int, default=0)
    asyncio.run(main(parser.parse_args()))
