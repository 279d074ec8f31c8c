"""`datapipes status NAMEBOOK`: ask the servers of a partition for their state."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from datapipes.base.checks import aligned, one_line
from datapipes.base.errors import text_of
from datapipes.cli.command import Commands, DoneInPart, WrongUsage, add_command
from datapipes.cli.serve import add_tls, tls_of
from datapipes.distributed.addresses import Address
from datapipes.distributed.connecting import check_security
from datapipes.distributed.namebook import read_namebook
from datapipes.distributed.partition_client import connect

_AT_ONCE = 64
_OF_PRODUCER = ("producer", "clients", "num_workers", "waiting", "working", "num_made")
_HEAD = ("server", "address", "status", "requests", "not ok", "waiting", "working", "sent MB", "memory MB", "partition")


def add_to(commands: Commands) -> None:
    """Add `datapipes status NAMEBOOK` to the commands."""
    parser = add_command(
        commands,
        "status",
        run,
        "Ask all servers of a namebook for their state. The exit code is 1 if a server does not answer, is stopping, "
        "or has another partition than the others.",
    )
    parser.add_argument("namebook", metavar="NAMEBOOK", help='a JSON file: {"0": "host:port", ...}')
    parser.add_argument("--timeout", type=float, default=5.0, metavar="S", help="seconds for each server; default: 5")
    add_tls(parser, "this side", "the servers")
    parser.add_argument("--insecure", action="store_true", help="ask other machines without TLS")


def run(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Ask all servers, and return their states as (text, JSON values)."""
    book = read_namebook("status", arguments.namebook)
    if not book:
        raise WrongUsage("the namebook is empty. Name the address of the server of each part.")
    try:
        security = check_security("status", tls_of(arguments), arguments.insecure, arguments.timeout)
    except (TypeError, ValueError) as error:
        raise WrongUsage(text_of(error)) from error

    def ask(part: int, address: Address) -> dict[str, Any]:
        server: dict[str, Any] = {"part": part, "address": str(address)}
        try:
            with connect({part: str(address)}, **security._asdict()) as client:
                return {
                    **server,
                    "status": client.health(part)["status"],
                    "partition_id": client.facts.partition_id,
                    "content_id": client.facts.content_id,
                    "statistics": client.statistics(part),
                }
        except Exception as error:
            return {**server, "status": "no answer", "error": {"type": type(error).__name__, "message": text_of(error)}}

    every = [(part, address) for part, replicas in book.items() for address in replicas]
    with ThreadPoolExecutor(min(len(every), _AT_ONCE)) as threads:
        servers = [*threads.map(ask, *zip(*every, strict=True))]
    wrong = [server for server in servers if server["status"] != "serving"]
    contents = {(server["partition_id"], server["content_id"]) for server in servers if "error" not in server}
    lines = aligned([_HEAD, *map(_row, servers)], len(servers))
    lines += [f"server {server['part']}: {server['error']['message']}" for server in wrong if "error" in server]
    lines += _of_producers(servers)
    if len(contents) > 1:
        lines.append("the servers have different partitions, or different attributes on one partition")
    values = {"servers": servers, "agree": len(contents) < 2}
    text = "\n".join(map(one_line, lines))
    if wrong or len(contents) > 1:
        raise DoneInPart(text, values)
    return text, values


def _of_producers(servers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table of all producers; each makes minibatches for trainers on a server.

    []: there are none.
    """
    rows = [
        (
            server["part"],
            *(str(producer[name]) for name in _OF_PRODUCER),
            f"{producer['made_per_s']:.1f}",
            f"{producer['largest_bytes'] / 1e6:.2f}",
        )
        for server in servers
        for producer in server.get("statistics", {}).get("producers", ())
    ]
    head = ("server", "producer", "clients", "workers", "waiting", "working", "minibatches", "a second", "largest MB")
    return aligned([head, *rows], len(rows)) if rows else []


def _row(server: Mapping[str, Any]) -> tuple[object, ...]:
    said = server.get("statistics")
    if said is None:
        return (server["part"], server["address"], server["status"], *[None] * 7)
    kinds = said["requests"].values()
    results = [(result, count) for kind in kinds for result, count in kind["results"].items()]
    count, others = sum(count for _, count in results), sum(count for result, count in results if result != "ok")
    sent = f"{sum(kind['sent_bytes'] for kind in kinds) / 1e6:.1f}"
    numbers = (count, others, said["waiting"], said["working"], sent, f"{said['memory_bytes'] / 1e6:.0f}")
    return (server["part"], server["address"], server["status"], *numbers, server["partition_id"])
