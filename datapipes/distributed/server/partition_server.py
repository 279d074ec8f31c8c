"""PartitionServer: serves one part of a partition to samplers and feature stores on other machines, and makes
minibatches of whole chains for trainers.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datapipes.base.checks import check_bool, check_int, shown
from datapipes.base.log import logger
from datapipes.base.sizes import parse_size
from datapipes.chain.stage import Stage
from datapipes.distributed.addresses import Address, Namebook, parse_address
from datapipes.distributed.arrow import arrow_flight
from datapipes.distributed.connecting import Security
from datapipes.distributed.server.flight_server import close_flight_server, flight_server
from datapipes.distributed.server.guards import MemoryWatch, guards, own_memory
from datapipes.distributed.server.limits import AUTO, ServerLimits, sizes_of
from datapipes.distributed.server.metrics_server import MetricsServer
from datapipes.distributed.server.offers import Offers, Served, served
from datapipes.distributed.server.service import Service
from datapipes.distributed.server.tcp_connections import TcpConnections
from datapipes.distributed.tls import TLSConfig, check_tls, refuse_plain
from datapipes.features.feature_store import FeatureStore
from datapipes.graph.csc_graph import CSCGraph
from datapipes.graph.graph import Graph
from datapipes.graph.hetero_csc_graph import HeteroCSCGraph
from datapipes.partition.native.part import Part
from datapipes.seeds.hetero_item_set import HeteroItemSet
from datapipes.seeds.item_set import ItemSet

__all__ = ["PartitionServer"]

_WHERE = "PartitionServer"
_DEADLINE_S = 8.0  # of the requests of chains to other servers; less than a client's deadline


class PartitionServer:
    """Serves one part of a partitioned graph: draws in-edges of its nodes, and reads rows of its features. `datapipes
    serve` runs a server in a process of its own. With `chains` a server also makes minibatches of chains that clients
    describe, see PartitionClient.create_producer.

    Requests are idempotent: a client that repeats a request, also after a restart of the server, gets the same bits.
    Nothing that arrives is unpickled; all of it is checked before it is used. Kernels run without the GIL.

    A server is for one process; a forked child must not use it. After `stop` the server can be started again.

    Args:
        root: folder of the partition; the files of other parts may be absent. Or an open Part; then leave out `part`,
            `verify` and `mmap`. With `chains` also allowed are an undivided graph, and the folder of a saved graph.
        part: id of the part; None if there is only one part.
        address: "host:port" to listen on; port 0 lets the system choose.
        tls: certificates of this side and of the authority; clients without a certificate of the authority are refused.
            Without `tls` only addresses of this machine, such as 127.0.0.1, are allowed.
        insecure: allow other addresses without TLS. Whoever reaches the address may then read the part.
        limits: bounds on concurrent work and on bytes received, sent and held; see ServerLimits.
        metrics: "host:port" for Prometheus and probes, plain HTTP (/metrics, /health); None for no metrics. Port 0 lets
            the system choose. Other machines may reach this port, also without `insecure`: metrics have no data of the
            graph, and probes have no certificate. Up to 16 connections are served at once.
        verify: whether to compare the files with their hashes, which reads all files once.
        mmap: True leaves the part on disk, see Part.open; False reads it into memory, so that answers take less time.
        chains: whether to make minibatches of chains that clients describe.
        stages: further classes of stages that such chains may have. Always allowed are ItemSampler, the samplers,
            the negative samplers, SeedEdgeExcluder and FeatureFetcher.
        items: {name: item set} that descriptions of chains may name.
        features: the features that such chains may fetch: names of attributes of the graph, a store, or {name: store}.
            By default chains may fetch no features.
        namebook: addresses of the servers of other parts, which such chains ask; needed if the partition has several
            parts. The namebook is read when the first chain is made. See DistGraph.connect.
    Attributes:
        failure: the error that ended a guard (a thread of the server that checks it, see guards.py) and with it the
            server; else None.
    Raises:
        ValueError: An argument is not allowed; or the address can be reached from other machines, without TLS.
        ImportError: pyarrow is not installed.
    """

    def __init__(
        self,
        root: str | Path | Part | CSCGraph | HeteroCSCGraph,
        part: int | None = None,
        address: str = "127.0.0.1:0",
        *,
        tls: TLSConfig | None = None,
        insecure: bool = False,
        limits: ServerLimits | None = None,
        metrics: str | None = None,
        verify: bool = True,
        mmap: bool = True,
        chains: bool = False,
        stages: Sequence[type[Stage]] = (),
        items: Mapping[str, ItemSet | HeteroItemSet] | None = None,
        features: FeatureStore | Mapping[str, FeatureStore] | Sequence[str] | None = None,
        namebook: Namebook | None = None,
    ) -> None:
        arrow_flight(_WHERE)
        self.root: Any = root if isinstance(root, (Part, Graph)) else Path(root)
        self.part, self.tls = part, tls
        self.verify, self.mmap = check_bool(_WHERE, "verify", verify), check_bool(_WHERE, "mmap", mmap)
        if not isinstance(self.root, Path) and (part, verify, mmap) != (None, True, True):
            raise ValueError(f"{_WHERE}: an open Part or graph is served as it is. Leave out part, verify and mmap.")
        if part is not None:
            check_int(_WHERE, "part", part, 0)
        check_tls(_WHERE, tls, insecure)
        self._asked: Address = parse_address(_WHERE, "address", address, lowest_port=0)
        refuse_plain(_WHERE, self._asked, tls, insecure)
        self._asked_metrics = None if metrics is None else parse_address(_WHERE, "metrics", metrics, lowest_port=0)
        self.limits = limits = ServerLimits() if limits is None else limits
        if not isinstance(limits, ServerLimits):
            raise TypeError(
                f"{_WHERE}: limits must be a ServerLimits, got {shown(limits)}. Pass ServerLimits(concurrency=2), say."
            )
        self._offers: Offers | None = None
        if check_bool(_WHERE, "chains", chains):
            self._offers = Offers(_WHERE, stages, items, features, namebook, Security(tls, insecure, _DEADLINE_S))
        else:
            others = {"stages": stages or None, "items": items, "features": features, "namebook": namebook}
            of_chains = {**others, "limits.max_workers": limits.max_workers}
            unused = [name for name, value in of_chains.items() if value is not None]
            if unused:
                raise ValueError(f"{_WHERE}: {unused} are for chains. Set chains=True, or leave them out.")
        self.failure: BaseException | None = None
        self._pid = 0  # of the process that has started the server
        self._stopping = threading.Lock()
        self._ending = contextlib.ExitStack()  # what `stop` closes after the service and the server
        self._service: Service | None = None
        self._server: Any = None
        self._metrics: MetricsServer | None = None
        self._address: Address | None = None

    @property
    def address(self) -> str | None:
        """The address on which the server listens, "host:port" with the real port; None if it does not listen."""
        return None if self._address is None else str(self._address)

    @property
    def metrics_address(self) -> str | None:
        """The address of the metrics port, "host:port" with the real port; None if there are no metrics."""
        return None if self._metrics is None else str(self._metrics.address)

    def start(self) -> str:
        """Open the part and begin to listen. Return the address, "host:port" with the real port.

        Raises:
            FileNotFoundError: `root` holds no native partition, or the part's files are not there.
            ValueError: The partition has several parts and none was named, there is no such part, a file or a
                certificate is not valid, or `max_memory` is less than the process needs, the part included.
            OSError: The server cannot listen on the address: it is in use, or is not an address of this machine. The
                message names the address.
            RuntimeError: The server was started already.
        """
        if self._service is not None:
            raise RuntimeError(f"{_WHERE}: it listens on {self.address} already. Call stop() first.")
        pem = None if self.tls is None else self.tls.checked(_WHERE)
        has = self._open()
        max_memory = self._memory_bound()
        with contextlib.ExitStack() as made:  # ended if a later piece fails
            connections = made.enter_context(contextlib.closing(TcpConnections()))
            offers = None if self._offers is None else self._offers.over(has)
            service = Service(*has, self.limits, connections, offers)
            made.callback(service.close, 0.0)
            metrics = None
            if self._asked_metrics is not None:
                metrics = made.enter_context(contextlib.closing(MetricsServer(_WHERE, service, self._asked_metrics)))
            server = flight_server(_WHERE, service, self._asked, pem)
            self._ending = made.pop_all()
        self._service, self._server, self._metrics, self.failure = service, server, metrics, None
        self._pid = os.getpid()
        self._address = address = Address(self._asked.host, server.port)
        try:
            self._guard(service, connections, max_memory)
        except BaseException:
            self.stop(0.0)
            raise
        atexit.register(self.stop, 0.0)
        logger.info("%s listens on %s: %r", service.where, address, has.part or has.graph)
        if self._metrics is not None:
            logger.info("%s: metrics are at http://%s/metrics", service.where, self._metrics.address)
        return str(address)

    def _guard(self, service: Service, connections: TcpConnections, max_memory: int | None) -> None:
        """Start the guards, threads that check this server again and again; see guards.py."""
        port, looks = self._server.port, {"watch of stalled clients": service.sendings.look}
        if service.producers is not None:
            looks["watch of producers"] = service.producers.look
        if max_memory is not None:
            kept = (lambda: service.kept_bytes) if self.limits.max_memory == AUTO else (lambda: 0)
            watch = MemoryWatch(port, max_memory, service.statistics, connections, kept, service.end_producers)
            looks["watch of memory"] = self._ending.enter_context(contextlib.closing(watch)).look
        self._ending.push(guards(service.where, service, port, connections, looks, self._fail))

    def leave(self) -> None:
        """From now on answer requests for the server's health with the status "leaving": the server stays only until
        the other ranks are done. All other requests are answered as before.
        """
        self._running().is_leaving = True

    def stop(self, grace_s: float = 10.0) -> bool:
        """Refuse new requests, answer earlier requests for up to `grace_s` seconds, then end all connections.

        May be called twice, and before `start`. Return True if the server has ended. False: Arrow's server still runs
        after some 10 s. The log says so, and the process may have to be ended.
        """
        if os.getpid() != self._pid:  # not started, or a forked child, which must not stop it
            return True
        with self._stopping:
            service, server, ending = self._service, self._server, self._ending
            self._service = self._server = self._address = self._metrics = None
        if service is None:
            return True
        atexit.unregister(self.stop)
        if service.close(grace_s):
            level = logging.WARNING if grace_s > 0 else logging.INFO  # without a grace this is expected
            logger.log(level, "%s stops while requests are under way", service.where)
        has_ended = close_flight_server(server, service.sendings.connections)
        ending.close()
        if has_ended:
            logger.info("%s has stopped", service.where)
        else:
            logger.error("%s has not ended within its bound; end the process", service.where)
        return has_ended

    def _fail(self, error: BaseException) -> None:
        """End the server, since `error` has ended one of its guards; keep the error in `failure`."""
        self.failure = error
        try:
            threading.Thread(target=self.stop, args=(0.0,), daemon=True).start()
        except RuntimeError:  # no thread is left
            self.stop(0.0)

    def statistics(self) -> dict[str, Any]:
        """Return all counters since the start as {name: JSON value}; see docs/distributed.md.

        Raises:
            RuntimeError: The server is not started.
        """
        return self._running().numbers()

    def _memory_bound(self) -> int | None:
        """Return the limit `max_memory` in bytes; None for no bound. Call this after the part was opened: the memory in
        use at this moment is added in the value of "auto", and in the least value that is allowed.
        """
        max_memory, now = self.limits.max_memory, own_memory()
        max_request_bytes, _, max_bytes_in_flight = sizes_of(self.limits)
        if max_memory is None:
            return None
        if max_memory == AUTO:
            return now + 2 * max_bytes_in_flight + 16 * max_request_bytes
        allowed, least = parse_size(_WHERE, "max_memory", max_memory), now + max_bytes_in_flight + max_request_bytes
        if allowed < least:
            raise ValueError(
                f"{_WHERE}: max_memory must be at least {least}: memory of the process now, max_bytes_in_flight and "
                f"max_request_bytes; got {allowed}. Raise it, or lower the others."
            )
        return allowed

    def _running(self) -> Service:
        if self._service is None:
            raise RuntimeError(f"{_WHERE}: it is not started. Call start() first.")
        return self._service

    def _open(self) -> Served:
        has = served(_WHERE, self.root, self.part, verify=self.verify, mmap=self.mmap)
        if has.part is None and self._offers is None:
            raise ValueError(
                f"{_WHERE}: {self.root} is an undivided graph, which can only be served to chains. Set "
                "chains=True, or partition it."
            )
        return has

    def __enter__(self) -> PartitionServer:
        if self._service is None:
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "not started" if self._address is None else f"listens on {self._address}"
        source = f"{str(self.root)!r}, part={self.part}" if isinstance(self.root, Path) else repr(self.root)
        return f"PartitionServer({source}, {state})"
