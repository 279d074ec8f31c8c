"""A partition server under clients that come and go, and under malformed requests: no growth, only typed errors.

Each round starts client processes with a certificate of the right authority, and kills them after a few seconds, in
whatever they are doing. In "join" they connect, ask, and leave in all ways: closed, dropped, in the middle of an
answer, without having read it, in the middle of a handshake. In "fuzz" they send malformed requests; each answer must
be one, or a typed error. In "short" the server
has few descriptors, and few threads where a cgroup allows to say so; clients open silent connections and idle streams,
more than there are of both, while a good client asks, whose errors must have types. Between rounds, with no client
left, the server's memory, threads and descriptors are read: the last third of a run must not be above the first. At the
end a good client gets the bits of the part, and the server ends within its bound.
Run: PYTHONPATH=tests/support python tests/soak/soak_server.py --minutes 10   (or make soak)
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import resource
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.flight as flight
import torch
from certificates import Certificates, make_certificates
from partition_servers import ServerProcess
from plain_clients import PlainClient, in_parts, plain_graph
from soaking import BOUND_S, FIRST, arguments, expect_a_clean_end, expect_no_growth, one_round, settled, state_of
from ticket_fuzz import TOLD, TicketFuzz

from datapipes.distributed import Part
from datapipes.distributed.requests.draw import Draw, DrawRequest
from datapipes.distributed.requests.rows import Rows, RowsRequest
from datapipes.distributed.wire.arrow_message import to_bytes

FEW_FILES, FEW_THREADS = 128, 32


def options_of(made: Certificates) -> dict:
    pem = made.client.read("soak")
    return {"tls": True, "tls_root_certs": pem.ca, "cert_chain": pem.cert, "private_key": pem.key}


# --- clients, each in a process of its own until it is killed


def joins(address: str, made: Certificates, ids: torch.Tensor, rng_seed: int, told: object) -> None:
    rng, left = random.Random(rng_seed), []
    torch.set_num_threads(1)
    small = RowsRequest((Rows("node", None, ("y",), ids),))
    large = RowsRequest((Rows("node", None, ("across",), ids.repeat(10_000)),))
    while True:
        way = rng.randrange(7)
        if way == 0:  # in the middle of a handshake
            host, _, port = address.rpartition(":")
            with socket.create_connection((host, int(port)), timeout=BOUND_S) as sock:
                sock.sendall(rng.randbytes(rng.choice((0, 1, 100, 10_000))))
            continue
        client = PlainClient(address, **options_of(made))
        client.hello()
        for _ in range(rng.randrange(5)):
            client.answer(small)
        if way >= 4:
            stream = client.open(to_bytes("soak", large.to_message(client.meant)))
            if way == 5:
                next(iter(stream))
            elif way == 6:
                left.append((client, stream))  # not read: the server's memory is held until this process is killed
                left = left[-3:]
                continue
            stream.cancel()
        if way % 2:
            client.close()
        told.value += 1


def fuzzes(address: str, made: Certificates, ids: torch.Tensor, rng_seed: int, told: object) -> None:
    torch.set_num_threads(1)
    with PlainClient(address, **options_of(made)) as client:
        client.hello()
        fuzz = TicketFuzz(ids, client.meant, rng_seed)
        while True:
            ticket = fuzz.next()
            try:
                client.ask_bytes(ticket)
            except TOLD:
                pass
            except flight.FlightError as error:
                if "too large" not in str(error):  # a message of more than gRPC takes
                    raise
            told.value += 1


def expect_bits(address: str, made: Certificates, root: Path, ids: torch.Tensor) -> None:
    torch.set_num_threads(1)
    request = DrawRequest({None: ids}, (Draw(None, 4, 9),), edge_ids=True)
    with PlainClient(address, **options_of(made)) as client:
        client.hello()
        expected = request.answered_by(Part.open(root, 1))
        assert all(torch.equal(one, other) for one, other in zip(client.answer(request), expected, strict=True))


def crowds(address: str, made: Certificates, ids: torch.Tensor, rng_seed: int, told: object) -> None:
    """Open connections that say nothing or little, and streams that send nothing; leave them, and begin again."""
    rng, (host, _, port) = random.Random(rng_seed), address.rpartition(":")
    torch.set_num_threads(1)
    schema, descriptor = pyarrow.schema([("x", pyarrow.int64())]), flight.FlightDescriptor.for_path("x")
    while True:
        left = []
        with contextlib.suppress(OSError):  # the server ends them
            for _ in range(rng.randrange(2 * FEW_FILES)):
                left.append(socket.create_connection((host, int(port)), timeout=BOUND_S))
                left[-1].sendall(rng.randbytes(rng.choice((0, 0, 1, 100))))
        with (
            contextlib.suppress(flight.FlightError, pyarrow.ArrowException),
            PlainClient(address, **options_of(made)) as client,
        ):
            for _ in range(rng.randrange(100)):
                begin = rng.choice(
                    (lambda: client.client.do_put(descriptor, schema), lambda: client.client.do_exchange(descriptor))
                )
                with contextlib.suppress(flight.FlightUnauthorizedError):
                    left.append(begin()[0])
        time.sleep(rng.random())
        for each in left:
            with contextlib.suppress(OSError, flight.FlightError, pyarrow.ArrowException):
                each.close()
        told.value += len(left)


def asks(address: str, made: Certificates, ids: torch.Tensor, rng_seed: int, told: object) -> None:
    """Ask as a good client does, again and again; every error must have a type."""
    torch.set_num_threads(1)
    small = RowsRequest((Rows("node", None, ("y",), ids),))
    while True:
        with contextlib.suppress(*TOLD, flight.FlightError), PlainClient(address, **options_of(made)) as client:
            client.hello()
            for _ in range(10):
                client.answer(small)
                told.value += 1


TARGETS = {"join": [joins] * 2, "fuzz": [fuzzes] * 2, "short": [crowds, crowds, asks]}


# --- rounds


@contextlib.contextmanager
def few_threads(pid: int) -> Iterator[bool]:
    """Allow a process FEW_THREADS threads more than it has; give whether this machine's cgroups allow to say so."""
    for place in (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")):
        group = place / f"datapipes-soak-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            try:
                (group / "cgroup.procs").write_text(str(pid))
                (group / "pids.max").write_text(str(state_of(pid).threads + FEW_THREADS))
            except OSError:
                yield False
            else:
                yield True
        finally:
            with contextlib.suppress(OSError):
                (place / "cgroup.procs").write_text(str(pid))
            with contextlib.suppress(OSError):
                group.rmdir()
        return
    yield False


def run(name: str, minutes: float, rng_seed: int) -> Counter[str]:
    """Make rounds for so many minutes. AssertionError if anything goes wrong."""
    total, states = Counter[str](), []
    with tempfile.TemporaryDirectory() as place:
        made = make_certificates(Path(place) / "tls")
        root = in_parts(Path(place) / "root", plain_graph())
        ids = Part.open(root, 1).node_ids()
        tls = ["--tls-cert", made.server.cert, "--tls-key", made.server.key, "--tls-ca", made.ca]
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(ServerProcess(root, 1, *tls, address="127.0.0.1:0"))
            if name == "short":
                resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (FEW_FILES, FEW_FILES))
                limited = stack.enter_context(few_threads(server.pid))
                print(f"short: {FEW_FILES} descriptors, threads are {'' if limited else 'not '}short", flush=True)
            files, until = state_of(server.pid).files + 4, time.monotonic() + 60 * minutes
            while time.monotonic() < until or len(states) < 3 * FIRST:
                total["done"] += one_round(TARGETS[name], (server.address, made, ids), [server], rng_seed + len(states))
                states.append(settled(server.pid, files))
                total["rounds"] += 1
            expect_no_growth(name, states, 2)
            if name == "short":
                host, _, port = server.address.rpartition(":")
                try:
                    silent = socket.create_connection((host, int(port)), timeout=BOUND_S)
                except OSError as error:
                    ended = server.process.poll()
                    raise AssertionError(f"{error}; the server has ended: {ended}; its log:\n{server.log}") from error
                with silent:
                    assert silent.recv(1) == b"", "no guard ends a silent connection any more"
            context = multiprocessing.get_context("fork")
            good = context.Process(target=expect_bits, args=(server.address, made, root, ids), daemon=True)
            good.start()
            good.join(BOUND_S)
            assert good.exitcode == 0, f"a good client ended with {good.exitcode}"
            expect_a_clean_end(server)
    return total


def main() -> None:
    options = arguments(__doc__, minutes=10.0, kinds=[*TARGETS])
    for name in options.kinds:
        print(f"{name}: {dict(run(name, options.minutes, options.seed))}", flush=True)


if __name__ == "__main__":
    main()
