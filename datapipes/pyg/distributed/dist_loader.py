"""DistLoader: the base class of PyG's loaders over a partitioned graph, and of loaders that users write themselves."""

from __future__ import annotations

import inspect
import os
import queue
import weakref
from collections.abc import Iterator
from typing import Any, NoReturn

from datapipes.base.checks import check_bool, check_int, check_within, shown
from datapipes.base.rng import RngKey
from datapipes.base.types import of_type
from datapipes.chain.stage import SeedStage, Stage
from datapipes.distributed.tls import TLSConfig
from datapipes.minibatch import MiniBatch
from datapipes.processes.main_module import refuse_missing_main, refuse_repetition
from datapipes.pyg.distributed.dist_neighbor_sampler import DistNeighborSampler, labels_of
from datapipes.pyg.distributed.meeting import Meeting, place_of
from datapipes.pyg.loader.batch_form import SampledIds
from datapipes.pyg.loader.iterating import Iterating
from datapipes.pyg.loader.stages import PygSample, carrying
from datapipes.pyg.loader.view import View
from datapipes.pyg.sampler import fanouts_of
from datapipes.sampling.choice_sampler import CONCURRENCY
from datapipes.seeds.distributed_item_sampler import DistributedItemSampler
from datapipes.seeds.item_set import ItemSet

__all__ = ["DistLoader"]

_DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(DistNeighborSampler).parameters.items()}


_OF_PLACE = ("master_addr", "master_port", "num_rpc_threads", "rpc_timeout", "tls", "insecure")
_OF_SAMPLERS = (
    *("replace", "subgraph_type", "disjoint", "temporal_strategy", "time_attr", "weight_attr", "time_window"),
    "device",
)


class DistLoader:
    """The base of loaders over a partitioned graph: connects all ranks, and serves this rank's part to the other ranks.

    All ranks build their loaders at the same time and in the same order. A rank serves its part until every rank has
    called `close`, dropped the loader, or ended. So a process that has made its last minibatch may have to wait before
    it ends, at most `rpc_timeout` seconds. A process that ends by an error does not wait.

    Args:
        current_ctx: the DistContext of this process: its rank, and the number of ranks.
        master_addr, master_port: where the ranks meet: the address of a torch store that exists, or that rank 0 makes.
            By default MASTER_ADDR and MASTER_PORT + 1 of the environment; under torchrun MASTER_PORT, to share its
            store. Only addresses and a description of each part (counts, names, digests) go through the store.
        channel: a queue from which `channel_get` takes outputs. For users' own loaders whose sampler puts its outputs
            there.
        num_rpc_threads: the most requests of other ranks to answer at once; at most the number of cores.
        rpc_timeout: the most seconds for a request, and the most seconds to wait for a rank that is late.
        dist_sampler: the DistNeighborSampler of this rank.
        tls: the certificates of the ranks; required unless `master_addr` is an address of this machine alone. By
            default the files named by DATAPIPES_TLS_CERT, DATAPIPES_TLS_KEY and DATAPIPES_TLS_CA.
        insecure: True allows connections to other machines without TLS. Use it only if all machines are trusted.
            DATAPIPES_INSECURE=1 means True.
    Raises:
        RankError: A rank has failed, has ended or did not come in time; a ValueError that names the rank.
        TypeError, ValueError: An argument is not allowed; a part is missing, or there twice; the parts are of different
            partitions; or another job uses the port.
    """

    def __init__(
        self,
        current_ctx: Any,
        master_addr: str | None = None,
        master_port: int | str | None = None,
        channel: Any = None,
        num_rpc_threads: int = 16,
        rpc_timeout: float = 180,
        dist_sampler: Any = None,
        *,
        tls: TLSConfig | None = None,
        insecure: bool = False,
        **kwargs: Any,
    ) -> None:
        where = type(self).__name__
        if not isinstance(dist_sampler, DistNeighborSampler):
            raise TypeError(
                f"{where}: dist_sampler must be a DistNeighborSampler of datapipes.pyg.distributed, got "
                f"{type(dist_sampler).__name__}. Build one."
            )
        place = place_of(where, master_addr, master_port, num_rpc_threads, rpc_timeout, tls, insecure)
        self.dist_sampler, self.current_ctx, self.channel = dist_sampler, current_ctx, channel
        self.master_addr, self.master_port = place.host, place.port
        self.num_rpc_threads, self.rpc_timeout = place.num_threads, place.timeout
        self.pid, self.num_workers = os.getpid(), kwargs.get("num_workers", 0)
        self._meeting: Meeting = dist_sampler.meet(place)
        self._meeting.use()
        self._leave = weakref.finalize(self, self._meeting.leave)
        self._leave.atexit = False
        self._iterator: Any = None

    def channel_get(self, out: Any) -> Any:
        """Return the next output in the loader's `channel`. If the loader has no channel, return `out`.

        Raises:
            The error that a call of the sampler has put on the channel.
        """
        if self.channel is None:
            return out
        output = self.channel.get()
        if isinstance(output, BaseException):
            raise output
        return output

    def reset_channel(self, channel: Any = None) -> None:
        """Remove all outputs from the loader's channel. If `channel` is given, use it from now on."""
        while self.channel is not None and not self.channel.empty():
            self.channel.get_nowait()
        if channel is not None:
            self.channel = self.dist_sampler.channel = channel

    def worker_init_fn(self, worker_id: int) -> None:
        """Do nothing. The method exists because PyG's loaders pass it to torch's DataLoader."""

    def close(self) -> None:
        """End the processes and threads of the loader, and tell the other ranks that this rank is done. The loader
        cannot be iterated afterwards. May be called twice.
        """
        super_close = getattr(super(), "close", None)
        if super_close is not None:
            super_close()
        self._leave()

    def __enter__(self) -> Iterator[Any]:
        """Start a loop and return its iterator, as PyG does. The end of the with statement ends the loop."""
        self._iterator = iter(self)  # type: ignore[call-overload]
        return self._iterator  # type: ignore[no-any-return]

    def __exit__(self, *_: object) -> None:
        self._iterator = None  # which ends the loop

    def __repr__(self) -> str:
        return f"{type(self).__name__}(pid={self.pid})"


class DistView(View):
    """Turns the outputs of a DistNeighborSampler into batches. The outputs already have the rows of all attributes."""

    labels: Any = None

    async def sampled_async(self, index: Any, key: RngKey) -> Any:
        """Return the sampler's output for the seeds at positions `index`, with the rows of all attributes.

        Args:
            key: the random key that decides the draws.
        """
        return await self.sampler.sampled(self.input_data[index], self.neg_sampling, key)

    def sampled(self, index: Any, key: RngKey | None = None) -> Any:
        """Return the sampler's output for the seeds at positions `index`, and wait for it.

        Args:
            key: the random key that decides the draws. None: the sampler numbers its calls and takes a new key for
                each.
        """
        sampler = self.sampler
        sampler.init_event_loop()
        return sampler.event_loop.run_task(self.sampled_async(index, sampler._next_key(key)))

    def _read(self, out: Any, sampled: SampledIds) -> tuple[Any, Any, Any]:
        with_rows = {group for domain, group, _ in out.features if domain == "node"}
        counts = {node_type: None if node_type in with_rows else len(ids) for node_type, ids in sampled.nodes.items()}
        rows = dict(out.features)
        labels = labels_of(self._labels(), out, self.input_data.input_type, self.sampler.graph)
        for group, values in labels.items():
            rows["edge" if isinstance(group, tuple) else "node", group, "y"] = values
        return counts, sampled.ends, rows

    def transformed(self, batch: Any) -> Any:
        """Apply the user's transform, then move the batch to the sampler's device; return the batch."""
        device = self.sampler.device
        return super().transformed(batch if device is None else batch.to(device))

    def _labels(self) -> Any:
        return self.labels if self.data is None else self.data[0].labels

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle for a worker process, without the stores: its sampler has this rank's part."""
        return {**self.__dict__, "_data": None, "labels": self._labels()}


class PygSampleOverParts(PygSample):
    """The stage that samples a partitioned graph. Up to `concurrency` minibatches wait for other ranks at once.

    Each sampler output comes with the rows of all attributes.
    """

    def __init__(self, source: Stage, view: DistView, concurrency: int, asynchronous: bool) -> None:
        super().__init__(source, view)
        self.asynchronous, self.concurrency = asynchronous, concurrency

    async def transform_async(self, minibatch: MiniBatch) -> MiniBatch:
        """Sample for the seeds of `minibatch`, and return a minibatch that carries the output.

        While this minibatch waits for other ranks, further minibatches are sampled.
        """
        view: Any = self.view
        return carrying(minibatch, await view.sampled_async(minibatch.seeds, self.rng_of(minibatch)))


class IteratingOverParts(DistLoader, Iterating):
    """The base of DistNeighborLoader and DistLinkNeighborLoader: each rank has its own seeds and its own part."""

    _view_class = DistView

    def _begin(self, is_link: bool, data: Any, sampler: DistNeighborSampler | None, kwargs: dict[str, Any]) -> None:
        """Build the sampler unless one is given, and meet the other ranks. Call this before PyG's constructor.

        Args:
            is_link: whether the seeds are links.
            data: (feature_store, graph_store) of this rank's part.
            sampler: the user's sampler. None: build one from the other arguments.
            kwargs: the loader's arguments. Those that PyG's constructor does not take are removed.
        """
        where, is_own = type(self).__name__, sampler is None
        self._set_up(is_link, kwargs)
        if self.view.features:
            raise ValueError(
                f"{where}: features are given, but the rows of all attributes come from the parts. Put them there: "
                "partition the graph with these features."
            )
        self.async_sampling = check_bool(where, "async_sampling", kwargs.pop("async_sampling"))
        self.concurrency = check_int(where, "concurrency", kwargs.pop("concurrency"), 1)
        context, num_neighbors = kwargs.pop("current_ctx"), kwargs.pop("num_neighbors")
        place = {name: kwargs.pop(name) for name in _OF_PLACE}
        options = {name: kwargs.pop(name) for name in _OF_SAMPLERS}
        if sampler is None:
            own = {**options, "concurrency": self.concurrency, "seed": self.seed}
            sampler = DistNeighborSampler(context, data, num_neighbors, **own)
        elif isinstance(sampler, DistNeighborSampler):
            self._refuse_others_options(sampler, num_neighbors, options)
        channel: Any = queue.SimpleQueue() if self.async_sampling else None  # stays empty; PyG's scripts look at it
        num_workers = kwargs.get("num_workers", 0)
        DistLoader.__init__(self, context, channel=channel, dist_sampler=sampler, num_workers=num_workers, **place)
        self._ranks = self.current_ctx.rank, self.current_ctx.world_size
        if is_own:
            self.dist_sampler._leave()  # only the loader counts as a user of the meeting

    def _refuse_others_options(self, sampler: DistNeighborSampler, num_neighbors: Any, options: Any) -> None:
        """Raise ValueError if an option of the loader differs from the value in the given `sampler`.

        An option with PyG's default value counts as not given and may differ.
        """

        def differs(name: str, value: Any) -> bool:
            if name == "num_neighbors":
                types = [attr.edge_type for attr in sampler.graph_store.get_all_edge_attrs() if attr.edge_type]
                return fanouts_of(value, types or None)[1] != fanouts_of(sampler._fanouts, types or None)[1]
            texts = [
                str(getattr(option, "value", option))  # the value of an enum
                for option in (value, getattr(sampler, name), _DEFAULTS.get(name))
            ]
            return texts[0] not in texts[1:]

        for name, value in {"num_neighbors": num_neighbors, **options}.items():
            if value is not None and differs(name, value):
                raise ValueError(
                    f"{type(self).__name__}: {name} is {shown(value)}, but the given dist_sampler has another value: "
                    f"{sampler!r}. Leave it out, or give the sampler the same value."
                )

    def _sample(self, view: View) -> Stage:
        assert isinstance(view, DistView)
        # With PyG's default, 1, the process would be idle whenever it waits for a part.
        concurrency = self.concurrency if self.concurrency > 1 or not self.async_sampling else CONCURRENCY
        return PygSampleOverParts(self._seeds(), view, concurrency, self.async_sampling)

    def _ordered(self, items: ItemSet, **options: Any) -> SeedStage:
        options |= {"local_items": True, "num_steps": len(self.batch_sampler)}
        rank, world_size = self._ranks
        return DistributedItemSampler(items, self.batch_size, rank=rank, world_size=world_size, **options)

    def _why_not_to_fork(self) -> str | None:
        try:
            refuse_missing_main()
            refuse_repetition(is_building=True)
        except RuntimeError:
            return "serves a part, so it must not be forked, and its main module cannot be imported again"
        return None

    def _options(self) -> dict[str, Any]:
        options = super()._options()
        if self.num_workers == 0 and not self.async_sampling:
            return {"overlap": False}
        if self.num_workers > 0 and options.get("worker_method") != "thread" and self.multiprocessing_context is None:
            options["multiprocessing_context"] = None  # the DataLoader's default, since a fork is not safe
        return options

    def _next(self) -> Any:
        if not self._leave.alive:
            raise RuntimeError(f"{type(self).__name__}: was closed. Build a new one, on all ranks.")
        return super()._next()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__}: belongs to its process, whose part it serves. Build one in each process."
        )

    def _refuse_wrong_ids(self, name: str, node_type: Any, ids: Any) -> None:
        """Raise IndexError if some of `ids`, seeds of type `node_type`, are outside the graph; `name` is for errors."""
        count = self.dist_sampler.graph.num_nodes_of(node_type)
        check_within(type(self).__name__, f"{name}{of_type(node_type)}", ids, count, "Pass ids of the whole graph.")
