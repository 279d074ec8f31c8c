"""Meeting: connects the ranks of a loader. Each rank serves its part as long as another rank may need it.

The ranks meet in a torch store at `master_addr:master_port`: the store of torchrun or init_process_group, or one that
rank 0 hosts. There they compare their data and exchange the addresses of their servers. Everything else goes through
these servers. A rank serves until all others have left or ended, even after its own last minibatch.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import functools
import multiprocessing.util
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from typing import Any, NamedTuple

import torch.distributed

from datapipes.base.checks import check_int, check_seconds, shown
from datapipes.base.errors import sentence, text_of
from datapipes.base.log import logger
from datapipes.distributed.addresses import MOST_PORT, Address, Replicas, parse_address
from datapipes.distributed.client.connection import Connection
from datapipes.distributed.client.flight_peers import FlightPeers
from datapipes.distributed.dist_graph import DistGraph
from datapipes.distributed.partition_facts import PartitionFacts
from datapipes.distributed.server.limits import ServerLimits
from datapipes.distributed.server.partition_server import PartitionServer
from datapipes.distributed.tls import TLSConfig, check_tls, refuse_plain
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.envelope import Meant, request_header
from datapipes.partition.native.part import Part
from datapipes.processes.ranks import Members, RankError, Ranks
from datapipes.pyg.torch_geometric_names import DistContext

WHERE = "DistLoader"
MOST_CONNECT_S = 10.0  # seconds to connect to an existing store
_TLS = ("DATAPIPES_TLS_CERT", "DATAPIPES_TLS_KEY", "DATAPIPES_TLS_CA")
_INSECURE = "DATAPIPES_INSECURE"
_AGENT = "TORCHELASTIC_USE_AGENT_STORE"  # "True": torchrun's agent has the store at MASTER_PORT
_c10d: Any = torch.distributed  # partly untyped
_LOOK_S = 0.1  # seconds between two checks whether another rank has left
_PROBE_S = 1.0  # seconds to wait for a server's answer
_STORES_SHARE = 0.5  # share of the time to connect that is torch's timeout: torch tries for up to 1.75 times as long
_stores: dict[tuple[str, int, int], Any] = {}  # {(host, port, rank): store}; kept, since this process may host it
_groups: dict[tuple[Any, str], Any] = {}  # a group's view of a store; kept, since Ranks counts the calls of a store
_job = uuid.uuid4().hex  # with this a process claims its rank
_meetings: list[Meeting] = []  # not yet ended


class Place(NamedTuple):
    """Where the ranks meet, and the settings of the connections between them.

    Attributes:
        host, port: the address of the torch store.
        num_threads: the most requests of other ranks to answer at once.
        timeout: the most seconds for a request, and the most seconds to wait for a rank that is late.
        tls: the certificates of the ranks; None without TLS.
        insecure: whether connections to other machines without TLS are allowed.
    """

    host: str
    port: int
    num_threads: int
    timeout: float
    tls: TLSConfig | None
    insecure: bool


def place_of(
    where: str, host: Any, port: Any, num_threads: Any, timeout: Any, tls: TLSConfig | None, insecure: bool
) -> Place:
    """Check the loader arguments that say where and how the ranks meet, and return them as a Place.

    If `host`, `port` or `tls` is None, take it from the environment, as documented at DistLoader.

    Raises:
        TypeError, ValueError: A value is not allowed, or is neither given nor in the environment.
    """
    for name, value in (("master_addr", host), ("master_port", port)):
        if value is None and not os.environ.get(name.upper()):
            raise ValueError(
                f"{where}: {name} is not given, and the environment variable {name.upper()} is not set. Pass {name}, "
                "or start by torchrun."
            )
    host = os.environ["MASTER_ADDR"] if host is None else host
    is_next = port is None and os.environ.get(_AGENT) != "True"
    port = os.environ["MASTER_PORT"] if port is None else port
    port = int(port) if isinstance(port, str) and port.isascii() and port.isdigit() else port
    if is_next and isinstance(port, int):
        port += 1  # beside DistributedDataParallel's port, as in PyG; torchrun's store is shared instead
    check_int(where, "master_port", port, 1, MOST_PORT)
    if not isinstance(host, str) or not host:
        raise TypeError(
            f"{where}: master_addr must be a name or an address of a machine, got {shown(host)}. Pass that of the "
            "machine of rank 0."
        )
    check_seconds(where, "rpc_timeout", timeout, "180 is PyG's value.")
    check_int(where, "num_rpc_threads", num_threads, 1)
    check_tls(where, tls, insecure)
    if tls is None and not insecure:
        paths = [os.environ.get(name) for name in _TLS]
        missing = [name for name, path in zip(_TLS, paths, strict=True) if not path]
        if 0 < len(missing) < len(_TLS):
            raise ValueError(f"{where}: {missing[0]} is not set, and others of {[*_TLS]} are. Set all three, or none.")
        if not missing:
            tls = TLSConfig(*(str(path) for path in paths))
        insecure = tls is None and os.environ.get(_INSECURE) == "1"
    return Place(host, port, num_threads, timeout, tls, insecure)


class Meeting:
    """A group of ranks that have met: this rank serves its part to the others, and `graph` is the graph of all parts.

    The constructor returns when all ranks have met. All ranks build their meetings together, in the same order.

    Args:
        context: the DistContext of this process.
        place: where the ranks meet.
        make_part: function (tell) -> the Part of this rank. In it, `tell(value)` sends a plain value to all ranks, and
            returns the list of the values of all ranks.
    Raises:
        RankError: A rank has failed, has ended, or did not come; the error names the rank.
        ValueError: Another job or another program uses the port.
        The errors of `make_part`.
    Attributes:
        graph: the DistGraph of all parts.
        rank_of: {part: the rank that serves it}.
        peers: the connections to the servers of the other parts.
    """

    def __init__(self, context: DistContext, place: Place, make_part: Callable[[Callable[[Any], list[Any]]], Part]):
        self._rank, self._size, self._timeout = context.rank, context.world_size, place.timeout
        self.has_left = False
        self._pid, self._users = os.getpid(), 0
        self._ending = threading.Lock()
        self._has_ended = False
        self._server: PartitionServer | None = None
        store = None if self._size == 1 else _claimed(context, place)
        with contextlib.ExitStack() as made:
            members = Members(self._rank, self._size, store)
            with Ranks(
                WHERE, place.timeout, failed="could not build its loader", absent="did not come", members=members
            ) as ranks:
                part, address = make_part(ranks.collected), None
                if self._size > 1:
                    self._server = _server(part, place)
                    made.callback(self._server.stop, 0.0)
                    address = self._server.start()
                parts = ranks.collected([part.part, address])
            made.pop_all()
        self.rank_of = {number: rank for rank, (number, _) in enumerate(parts)}
        others = {
            number: Replicas([parse_address(WHERE, "an address", text)])
            for number, text in parts
            if number != part.part
        }
        facts = PartitionFacts.of(part)
        self.peers = FlightPeers(others, facts, tls=place.tls, deadline=place.timeout, may_return=False)
        self.graph = DistGraph(facts, part.book, self.peers, part)
        if self._size == 1:
            return
        atexit.unregister(end_all)
        atexit.register(end_all)  # registered last, so it runs before the server's handler, which would not wait
        _end_with_a_child()
        _meetings.append(self)

    def use(self) -> None:
        """Count one more loader or sampler that uses this meeting; `leave` counts one less."""
        self.refuse_left()
        self._users += 1

    def refuse_left(self) -> None:
        """Raise RuntimeError if this rank has left the meeting: the other ranks may have ended."""
        if self.has_left:
            raise RuntimeError(
                f"{WHERE}: the loader that met the other ranks was closed. Build a new one, on all ranks."
            )

    def leave(self) -> None:
        """Count one loader or sampler less that uses this meeting. After the last, the rank tells that it is done.

        Its part is still served, in the background, until all ranks are done. Further calls, and calls in another
        process, do nothing.
        """
        self._users -= 1
        if self._users > 0 or self.has_left or os.getpid() != self._pid:
            return
        self.has_left = True
        if self._size == 1:
            return
        with contextlib.suppress(RuntimeError):  # the interpreter is ending; end_all takes over
            threading.Thread(target=self.end, name="datapipes-leave", daemon=True).start()

    def tell(self) -> None:
        """Let this rank's server answer other ranks, when they ask, that this rank is done. It goes on serving."""
        self.has_left = True
        if self._server is not None:
            with contextlib.suppress(RuntimeError):  # the server has ended
                self._server.leave()

    def end(self, *, wait: bool = True) -> None:
        """Tell the other ranks that this rank is done, and end its server. With `wait`, first serve until all other
        ranks have left or ended, at most `timeout` seconds.
        """
        with self._ending:
            if self._has_ended:
                return
            self.tell()
            try:
                self.graph.close()  # before the others' servers end; otherwise gRPC would log their end
                if wait:
                    self._wait()
            finally:
                self._has_ended = True
                if self._server is not None:
                    self._server.stop(0.0)
                with contextlib.suppress(ValueError):
                    _meetings.remove(self)

    def _wait(self) -> None:
        """Wait until all other ranks have left or ended, at most `timeout` seconds. Ask their servers, not the store:
        the process that hosts the store may have ended.
        """
        ends = time.monotonic() + self._timeout
        staying = {part: rank for part, rank in self.rank_of.items() if rank != self._rank}
        while staying and time.monotonic() < ends:
            staying = {part: rank for part, rank in staying.items() if not self._has_left(part)}
            if staying:
                time.sleep(_LOOK_S)
        for rank in staying.values():
            logger.warning("%s: rank %d neither left nor ended in %g s", WHERE, rank, self._timeout)

    def _has_left(self, part: int) -> bool:
        """Ask the server of `part`, and return whether its rank is done with the meeting or has ended."""
        address, facts = self.peers.addresses[part][0], self.graph.facts
        if not address.is_heard(_PROBE_S):
            return True
        question = Message(request_header("health", Meant(part, facts.partition_id, facts.content_id)), {})
        try:
            connection = Connection(f"part {part} at {address}", address, self.peers.tls, _PROBE_S)
            with contextlib.closing(connection):
                return connection.ask(question, _PROBE_S, 0).header.get("status") != "serving"
        except Exception as error:  # the server is stopped or stopping
            logger.info("%s: %s", WHERE, text_of(error))
            return False


@functools.lru_cache
def _end_with_a_child() -> None:
    multiprocessing.util.Finalize(None, end_all, exitpriority=100)  # a child of multiprocessing may end without atexit


def end_all(*, wait: bool = True) -> None:
    """End the partition servers of this process. With `wait`, first wait until the other ranks are done; but not if the
    process is ending by an error.
    """
    # The error of the main module, which the interpreter has printed; or the error that ends a multiprocessing child.
    error = getattr(sys, "last_value", None) or sys.exc_info()[1]
    failed = error is not None and not isinstance(error, SystemExit) and not hasattr(sys, "ps1")
    meetings = [meeting for meeting in _meetings if meeting._pid == os.getpid()]
    for meeting in meetings:
        meeting.tell()  # first for all meetings: a rank may be waiting for the last one
    for meeting in meetings:
        meeting.end(wait=wait and not failed)


def _server(part: Part, place: Place) -> PartitionServer:
    address = Address(_own_host(place), 0)
    refuse_plain(WHERE, address, place.tls, place.insecure)
    limits = ServerLimits(concurrency=min(place.num_threads, len(os.sched_getaffinity(0))))
    return PartitionServer(part, address=str(address), tls=place.tls, insecure=place.insecure, limits=limits)


def _own_host(place: Place) -> str:
    """Return this machine's address on the network that leads to the store. Other ranks can reach it there, too."""
    family, _, _, _, to = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect(to)  # sends nothing
        return str(sock.getsockname()[0])


# --- the store


def _claimed(context: DistContext, place: Place) -> Any:
    """Record in the torch store that this process has the rank `context.rank`, and return the store of the group.

    Raises:
        RankError: There is no store.
        ValueError: Another process has recorded this rank already: another job uses the port.
    """
    whole = _store_at(context.rank, place)
    # With the attempt in the prefix, values from before a restart of the ranks are not read.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefix = f"datapipes/pyg/{attempt}/{context.group_name}"
    store = _groups.setdefault((whole, prefix), _c10d.PrefixStore(prefix, whole))
    token = f"{_job} {os.getpid()}"
    claimed = _bounded(lambda: store.compare_set(f"claim/{context.rank}", "", token), place.timeout)
    if claimed is None:
        raise _no_store(context.rank, place)
    if claimed.decode() != token:
        raise ValueError(
            f"{WHERE}: another process is rank {context.rank} of the group {shown(context.group_name)} at {place.host}:"
            f"{place.port} already: another job uses this port, or two processes have one rank. Give each job a "
            "master_port of its own, and each process its own rank."
        )
    return store


def _store_at(rank: int, place: Place) -> Any:
    store = _stores.get((place.host, place.port, rank))
    if store is not None:
        return store
    _refuse_unknown_host(place)
    connect_s = min(place.timeout, MOST_CONNECT_S)

    def connected(is_host: bool) -> Any:
        wait = datetime.timedelta(seconds=_STORES_SHARE * connect_s)
        made = _c10d.TCPStore(place.host, place.port, None, is_host, timeout=wait, wait_for_workers=False)
        made.set_timeout(datetime.timedelta(seconds=place.timeout))
        return made

    ends = time.monotonic() + place.timeout
    if rank == 0 and not _is_agents(place):
        with contextlib.suppress(RuntimeError):  # the port is in use, perhaps by the store of a process group
            store = connected(True)
    else:  # torch's store would wait too, but would log the wait
        while not Address(place.host, place.port).is_heard(_PROBE_S) and time.monotonic() < ends:
            time.sleep(_LOOK_S)
    if store is None and Address(place.host, place.port).is_heard(_PROBE_S):
        # Longer than torch tries: a thread that returns from torch while Python ends would abort the process.
        store = _bounded(lambda: connected(False), connect_s + _PROBE_S)
    if store is None:
        raise _no_store(rank, place)
    _stores[place.host, place.port, rank] = store
    return store


def _refuse_unknown_host(place: Place) -> None:
    """Raise ValueError if `place.host` is still unknown after up to 10 seconds: a new machine may get its name late."""
    ends = time.monotonic() + min(place.timeout, MOST_CONNECT_S)
    while True:
        try:
            socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
            return
        except OSError as error:
            if time.monotonic() > ends:
                raise ValueError(
                    f"{WHERE}: master_addr is {place.host!r}, and no machine of this name is known: {sentence(error)} "
                    "Give the name or the address of the machine of rank 0."
                ) from None
        time.sleep(_LOOK_S)


def _is_agents(place: Place) -> bool:
    """Return whether the store at `place` is the one that torchrun's agent hosts."""
    return os.environ.get(_AGENT) == "True" and os.environ.get("MASTER_PORT") == str(place.port)


def _no_store(rank: int, place: Place) -> Exception:
    """Return the error to raise if no torch store answers `rank` at `place`."""
    at = f"{place.host}:{place.port}"
    if rank != 0 and not Address(place.host, place.port).is_heard(_PROBE_S):
        reason = f"it did not come within {place.timeout:g} s: nothing listens at {at}, where it hosts the store"
        return RankError.of_ranks(rank, {0: reason}, WHERE, "could not build its loader")
    return ValueError(
        f"{WHERE}: no store of torch answers at {at}; another program listens there, or a process that is stopped. "
        "Give another master_port."
    )


def _bounded(call: Callable[[], Any], timeout: float) -> Any:
    """Run `call`, an access to the torch store, in a thread, and return its result. None: the call failed, or took
    longer than `timeout` seconds.
    """
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            logger.info("%s: the store: %s", WHERE, text_of(error))
            future.set_result(None)

    threading.Thread(target=work, name="datapipes-store", daemon=True).start()
    try:
        return future.result(timeout)
    except NoAnswer:
        return None
