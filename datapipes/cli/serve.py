"""`datapipes serve ROOT --part K --address HOST:PORT`: serve a part of a partition to samplers on other machines.

With --chains, the server also runs chains of stages (sampling, fetching features, ...) that clients describe, and sends
them the minibatches. ROOT may then also be a saved graph without parts.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from datapipes.base.log import logger
from datapipes.cli.command import Commands, WrongUsage, add_command
from datapipes.distributed.addresses import parse_address
from datapipes.distributed.server.limits import ServerLimits
from datapipes.distributed.server.partition_server import PartitionServer
from datapipes.distributed.tls import TLSConfig


def add_to(commands: Commands) -> None:
    """Add `datapipes serve ROOT` to the commands."""
    parser = add_command(
        commands,
        "serve",
        run,
        "Serve one part of a partition, or a graph, until SIGTERM or SIGINT. The first line on stdout is "
        "'ready HOST:PORT' with the real port; the log goes to stderr.",
        prints=False,
    )
    add = parser.add_argument
    add("root", metavar="ROOT", help="the folder of the partition, or of a saved graph")
    add("--part", type=int, metavar="K", help="number of the part; not needed if there is only one")
    where = "where to listen; default: 127.0.0.1, any port"
    add("--address", default="127.0.0.1:0", metavar="HOST:PORT", help=where)
    add_tls(parser, "the server", "the clients")
    add("--insecure", action="store_true", help="listen without TLS where other machines can reach the address")
    add("--metrics-port", metavar="[HOST:]PORT", help="metrics for Prometheus; HOST is 127.0.0.1 if left out")
    add("--threads", dest="num_threads", type=int, default=1, metavar="N", help="threads for each request; default: 1")
    add("--concurrency", type=int, metavar="N", help="requests answered at once; default: all cores")
    add("--max-waiting", type=int, default=256, metavar="N", help="further requests that may wait; default: 256")
    add(
        "--max-request", dest="max_request_bytes", default="64MB", metavar="SIZE", help="largest request; default: 64MB"
    )
    most_memory = (
        "memory above which the largest producers are ended, then all connections; default: memory at the start + "
        "2 x --max-in-flight + 16 x --max-request"
    )
    add("--max-memory", default="auto", metavar="SIZE", help=most_memory)
    add("--max-answer", dest="max_answer_bytes", default="256MB", metavar="SIZE", help="largest answer; default: 256MB")
    in_flight = "all answers being made or sent, together; default: 1GB"
    add("--max-in-flight", dest="max_bytes_in_flight", default="1GB", metavar="SIZE", help=in_flight)
    add("--grace", type=float, default=10.0, metavar="S", help="seconds to finish in; default: 10")
    add("--no-verify", action="store_true", help="do not check the files against their hashes")
    add("--in-memory", action="store_true", help="read the part into memory, for faster answers")
    add = parser.add_argument_group("minibatches of whole chains, which clients describe").add_argument
    add("--chains", action="store_true", help="make minibatches; ROOT may then be a graph without parts")
    features = "attributes of nodes and edges that minibatches may fetch; default: none"
    add("--features", nargs="+", metavar="NAME", help=features)
    add("--namebook", metavar="FILE", help="JSON {part: address} of the other parts' servers")
    add("--max-workers", type=int, metavar="N", help="processes of a producer; default: all cores")


def add_tls(parser: argparse.ArgumentParser, whose: str, others: str) -> None:
    """Add the options that `tls_of` reads. The help texts say `whose` the certificate is, and who the `others` are."""
    for name, text in (
        ("cert", f"certificate of {whose}, PEM"),
        ("key", "its private key, PEM"),
        ("ca", f"certificate of the authority that signed the certificates of {others}, PEM"),
    ):
        parser.add_argument(f"--tls-{name}", metavar="FILE", help=text)


LOOK_S = 0.5  # seconds between two checks for a signal


def run(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Serve until SIGTERM or SIGINT."""
    # gRPC writes a line for each client that it refuses.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    server = _server(arguments)
    stop = threading.Event()
    with _log_on_stderr(), _signals_set(stop):
        try:
            print(f"ready {server.start()}", flush=True)
            while not stop.wait(LOOK_S):  # a bounded wait: a signal that another thread takes does not end it
                if server.failure is not None:
                    raise RuntimeError(f"a thread of the server has died: {server.failure!r}. Start the server again.")
        except BaseException:
            server.stop(0.0)
            raise
        if not server.stop(arguments.grace):
            os._exit(1)  # the log has the reason; a thread of Arrow would keep the process alive
    return "", {}


@contextlib.contextmanager
def _signals_set(stop: threading.Event) -> Iterator[None]:
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _log_on_stderr() -> Iterator[None]:
    handler, level = logging.StreamHandler(sys.stderr), logger.level
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _server(arguments: argparse.Namespace) -> PartitionServer:
    try:
        sizes = (field.name for field in fields(ServerLimits) if field.name in arguments)
        limits = ServerLimits(**{name: getattr(arguments, name) for name in sizes})
        return PartitionServer(
            arguments.root,
            arguments.part,
            arguments.address,
            tls=tls_of(arguments),
            insecure=arguments.insecure,
            limits=limits,
            metrics=_metrics(arguments.metrics_port),
            verify=not arguments.no_verify,
            mmap=not arguments.in_memory,
            chains=arguments.chains,
            features=arguments.features,
            namebook=arguments.namebook,
        )
    except (ValueError, TypeError) as error:
        raise WrongUsage(str(error)) from error


def tls_of(arguments: argparse.Namespace) -> TLSConfig | None:
    """Return a TLSConfig of the options --tls-cert, --tls-key and --tls-ca; None if they are not given.

    Raises:
        WrongUsage: Only some of the options are given.
    """
    paths = {name: getattr(arguments, f"tls_{name}") for name in ("cert", "key", "ca")}
    missing = [f"--tls-{name}" for name, path in paths.items() if path is None]
    if len(missing) == len(paths):
        return None
    if missing:
        raise WrongUsage(f"{missing[0]} is missing. Give --tls-cert, --tls-key and --tls-ca together.")
    return TLSConfig(**paths)


def _metrics(port: str | None) -> str | None:
    if port is None:
        return None
    return str(parse_address("serve", "--metrics-port", port if ":" in port else f"127.0.0.1:{port}", lowest_port=0))
