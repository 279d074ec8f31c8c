"""Run partition servers in a Ray cluster, each in an actor. Ray restarts actors that have ended, and clients find them
on any machine.

`import datapipes.distributed.ray` needs no Ray; RayServers does (the extra [ray]).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datapipes.base.checks import check_int, check_seconds, shown
from datapipes.base.errors import needed
from datapipes.distributed.addresses import Address, Resolver
from datapipes.distributed.server.partition_server import PartitionServer
from datapipes.distributed.tls import TLSConfig, check_tls
from datapipes.graph.saved import is_saved_graph
from datapipes.partition.native.native_book import open_book

_WHERE = "RayServers"
_NAMESPACE = "datapipes"  # of the actors' names in the cluster
_ASK_S = 1.0  # in which all replicas of a part must tell their addresses
_STOP_S = 5.0


class RayServers(Resolver):
    """Partition servers as actors, spread over the machines of the cluster. A RayServers is a Resolver, so pass it as
    the namebook.

    Ray restarts a server that has ended, on its machine or another one, and clients find it: DistGraph.connect,
    `connect` and the producers of other servers ask the actors for their addresses. The workers of ray.train, and their
    own worker processes, get this object by pickle. The actors end at `close`, at the end of the `with` statement, or
    with the Ray job.

    Args:
        root: folder of the partition, or with `chains=True` of a saved graph. The folder must be on every machine that
            may run a server.
        parts: the parts to serve; by default all parts of the partition.
        replicas: number of servers of each part.
        name: name of these servers in the cluster; programs that have servers at the same time need different names.
        tls: certificates of the servers and of their own requests; the files must be at these paths on every machine.
        insecure: listen to other machines without TLS, if all of them are trusted. Without `tls` and `insecure`, a
            server listens only to its own machine; a cluster of several machines is then refused.
        timeout: seconds for Ray to place and start all servers.
        actor_options: further options of the actors, such as `num_cpus` (1), `resources` or `scheduling_strategy`
            ("SPREAD"); see ray.actor.
        server_options: further arguments of PartitionServer, such as `chains`, `features` or `limits`. With `chains`
            each server gets this object as its `namebook`.
    Raises:
        ModuleNotFoundError: Ray is not installed.
        RuntimeError: This process is in no cluster: ray.init was not called.
        ValueError: An argument is not valid, or servers of this name are there already.
        TimeoutError: The servers were not placed in time; the message lists the resources of the cluster.
        The error of a server that cannot start, such as FileNotFoundError.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        parts: Sequence[int] | None = None,
        replicas: int = 1,
        name: str = "servers",
        tls: TLSConfig | None = None,
        insecure: bool = False,
        timeout: float = 60.0,
        actor_options: Mapping[str, Any] | None = None,
        **server_options: Any,
    ) -> None:
        ray = needed("ray", "ray", _WHERE)
        check_tls(_WHERE, tls, insecure)
        self.replicas = check_int(_WHERE, "replicas", replicas, 1)
        check_seconds(_WHERE, "timeout", timeout, "60 is a good value.")
        if not ray.is_initialized():
            raise RuntimeError(f"{_WHERE}: this process is in no Ray cluster. Call ray.init() first.")
        nodes = [node for node in ray.nodes() if node["Alive"]]
        if tls is None and not insecure and len(nodes) > 1:
            raise ValueError(
                f"{_WHERE}: the cluster has {len(nodes)} nodes, and there is no TLS: anybody could ask and answer. "
                "Pass tls=TLSConfig(cert, key, ca), with paths that every node has; or insecure=True, in a network "
                "where every machine is trusted."
            )
        is_whole = is_saved_graph(Path(root))
        if parts is None:
            parts = [0] if is_whole else range(open_book(root).num_parts)
        self.parts = tuple(check_int(_WHERE, "part", part, 0) for part in parts)
        if not self.parts:
            raise ValueError(f"{_WHERE}: parts is empty. Name the parts to be served, or leave it out.")
        self.name, self._cluster, self._process = name, ray.get_runtime_context().gcs_address, os.getpid()
        options = dict(server_options)
        if not is_whole and options.get("chains"):
            options.setdefault("namebook", self)
        args = (str(root), is_whole, tls, insecure, options)
        self._actors: list[Any] = []
        try:
            self._actors += [self._start(part, replica, args, actor_options or {}) for part, replica in self._all()]
            ray.get([actor.address.remote() for actor in self._actors], timeout=timeout)
        except BaseException as error:
            self._kill()
            if isinstance(error, ray.exceptions.RayTaskError):
                raise error.cause from error  # the server's own error
            if isinstance(error, ray.exceptions.GetTimeoutError):
                raise TimeoutError(
                    f"{_WHERE}: {len(self._all())} servers were not placed within {timeout:g} s. The cluster has "
                    f"{_amounts(ray.cluster_resources())}, free: {_amounts(ray.available_resources())}. Start nodes, "
                    "or ask for less: actor_options={'num_cpus': ...}."
                ) from error
            raise

    def addresses(self, part: int) -> list[str]:
        """Ask the actors of `part` for their addresses; return "host:port" of each server that runs. See Resolver."""
        ray = self._joined()
        questions = []
        for replica in range(self.replicas):
            with contextlib.suppress(ValueError):  # the actor has ended for good
                actor = ray.get_actor(self._name_of(part, replica), namespace=_NAMESPACE)
                questions.append(actor.address.remote())
        answered, _ = ray.wait(questions, num_returns=len(questions), timeout=_ASK_S) if questions else ([], [])
        addresses = []
        for answer in answered:
            with contextlib.suppress(Exception):  # the server is ending, or cannot start
                addresses.append(ray.get(answer))
        return addresses

    def close(self) -> None:
        """Stop the servers, if this process has started them; may be called twice."""
        ray = needed("ray", "ray", _WHERE)
        if os.getpid() != self._process or not ray.is_initialized():  # then the job has ended the actors
            self._actors = []
        elif self._actors:
            with contextlib.suppress(Exception):  # the cluster has gone, or is another one
                stopping = [actor.stop.remote() for actor in self._actors]
                ray.wait(stopping, num_returns=len(stopping), timeout=_STOP_S)
            self._kill()

    def _kill(self) -> None:
        actors, self._actors = self._actors, []
        for actor in actors:
            with contextlib.suppress(Exception):
                needed("ray", "ray", _WHERE).kill(actor, no_restart=True)

    def _start(self, part: int, replica: int, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        ray = needed("ray", "ray", _WHERE)
        wanted = {"num_cpus": 1, "scheduling_strategy": "SPREAD", **options}
        wanted |= {"name": self._name_of(part, replica), "namespace": _NAMESPACE}
        actor = ray.remote(_Server).options(max_restarts=-1, max_task_retries=-1, **wanted)
        return actor.remote(part, *arguments)

    def _joined(self) -> Any:
        """Connect this process to the Ray cluster, if it is not connected yet; return the module ray. Raise
        RuntimeError if this process was forked from a connected process.
        """
        ray = needed("ray", "ray", _WHERE)
        if not ray.is_initialized():
            ray.init(self._cluster, namespace=_NAMESPACE, log_to_driver=False, configure_logging=False)
        elif os.getpid() != self._process:
            raise RuntimeError(f"{_WHERE}: this process was forked from one in a Ray cluster, and cannot ask it.")
        return ray

    def _all(self) -> list[tuple[int, int]]:
        return [(part, replica) for part in self.parts for replica in range(self.replicas)]

    def _name_of(self, part: int, replica: int) -> str:
        return f"{self.name}/{part}/{replica}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_actors": []}  # a copy finds the actors by their names

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _process=os.getpid())

    def __enter__(self) -> RayServers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{_WHERE}({self.name!r}, parts={[*self.parts]}, replicas={self.replicas})"


def _amounts(resources: Mapping[str, float]) -> str:
    """Return the resources of a cluster, {name: amount}, as text for an error. Ray's entries for single machines are
    left out.
    """
    return shown({name: amount for name, amount in sorted(resources.items()) if not name.startswith("node:")})


class _Server:
    """The Ray actor that runs one PartitionServer. If its process ends, Ray starts the actor again in a new process."""

    def __init__(
        self, part: int, root: str, is_whole: bool, tls: TLSConfig | None, insecure: bool, options: dict[str, Any]
    ) -> None:
        ray = needed("ray", "ray", _WHERE)
        host = "127.0.0.1" if tls is None and not insecure else ray.util.get_node_ip_address()
        self._root, self._part, self._address = root, None if is_whole else part, str(Address(host, 0))
        self._options = {**options, "tls": tls, "insecure": insecure}
        self._server: PartitionServer | None = None
        with contextlib.suppress(Exception):  # `address` will raise it again
            self.address()

    def address(self) -> str:
        """Return the server's address, "host:port". If the server does not run, start it first; raises the error if
        this fails.
        """
        if self._server is None:
            server = PartitionServer(self._root, self._part, self._address, **self._options)
            server.start()
            self._server = server
        assert self._server.address is not None
        return self._server.address

    def pid(self) -> int:
        """Return the id of the actor's process."""
        return os.getpid()

    def stop(self) -> None:
        """Stop the server, if it runs."""
        if self._server is not None:
            self._server.stop()
