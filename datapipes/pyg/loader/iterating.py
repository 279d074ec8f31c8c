"""Iterating: the base of our loaders. It replaces the iteration of PyG's loaders by a chain of our stages.

Attributes, `len` and checks of arguments come from PyG's class, whose constructor runs. Each loop builds the DataLoader
that runs the chain anew from the current attributes, unless workers persist.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.utils.data
from torch import Tensor

from datapipes.base.checks import check_bool, check_ids, check_within, names_in_code, shown
from datapipes.base.log import logger
from datapipes.base.rng import MAX_EPOCH, RngKey, check_epoch, check_seed
from datapipes.chain.stage import SeedStage, Stage
from datapipes.loader.data_loader import DataLoader
from datapipes.loader.stats import LoaderStats
from datapipes.processes.unforkable import why_not_to_fork
from datapipes.pyg.loader.arguments import feature_store, refuse_wrong_options
from datapipes.pyg.loader.batch_form import why_not_ahead
from datapipes.pyg.loader.epoch import Epoch
from datapipes.pyg.loader.stages import DrawnOrder, InWorker, PygFetch, PygSample, PygSlice, carried
from datapipes.pyg.loader.view import View
from datapipes.pyg.sampler import NeighborSampler, draws_itself, seeded
from datapipes.pyg.torch_geometric_names import Data, HeteroData
from datapipes.seeds.item_sampler import ItemSampler
from datapipes.seeds.item_set import ItemSet

MOST_DRAWN = 2**24  # minibatches of one epoch of a batch_sampler


class OfView:
    """A loader's attribute that its View stores. A change acts on the next batch; in workers, on the next loop."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, loader: Any, cls: type | None = None) -> Any:
        return self if loader is None else getattr(loader.view, self._name)

    def __set__(self, loader: Any, value: Any) -> None:
        setattr(loader.view, self._name, value)
        loader.view.forget()


class Iterating:
    """The base of our loaders: their additions to PyG's NodeLoader and LinkLoader, and their differences.

    Attributes:
        seed: the random seed. It decides order and draws, together with the epoch and the index of the batch.
        fetch_ahead: see NodeLoader. A new value acts on the next loop.
    """

    _view_class: type[View] = View
    _ranks = (0, 1)  # this rank, and the number of ranks
    # Arguments that only constructors read (PyG's and torch's); torch itself refuses to set the others later.
    _read_once = frozenset(
        {
            *("input_nodes", "input_time", "input_id", "edge_label_index", "edge_label", "edge_label_time"),
            *("num_neighbors", "replace", "subgraph_type", "directed", "disjoint", "temporal_strategy"),
            *("time_attr", "time_window", "weight_attr", "is_sorted", "neighbor_sampler", "neg_sampling_ratio"),
            *("features", "seed", "shuffle", "generator", "collate_fn", "pin_memory_device"),
        }
    )
    # stored in the view
    data = OfView("data")
    input_data = OfView("input_data")
    neg_sampling = OfView("neg_sampling")
    transform = OfView("transform")
    transform_sampler_output = OfView("transform_sampler_output")
    custom_cls = OfView("custom_cls")
    features = OfView("features")
    node_sampler = OfView("sampler")
    link_sampler = OfView("sampler")
    # set by PyG's and torch's constructors
    batch_size: Any
    batch_sampler: Any
    dataset: Any
    drop_last: bool
    filter_per_worker: bool
    multiprocessing_context: Any
    num_workers: int
    persistent_workers: bool
    prefetch_factor: Any
    sampler: Any
    timeout: float
    worker_init_fn: Any

    def _set_up(self, is_link: bool, kwargs: dict[str, Any]) -> None:
        """Make the loader's view, and remove our own arguments from `kwargs`. Call it before PyG's constructor."""
        where, seed = type(self).__name__, kwargs.pop("seed")
        self._asked = kwargs["filter_per_worker"]
        if kwargs.get("pin_memory_device"):
            raise TypeError(
                f"{where}: pin_memory_device is {kwargs['pin_memory_device']!r}; batches are pinned for the current "
                "device. Leave it out."
            )
        if kwargs.get("batch_size", 1) is None and kwargs.get("batch_sampler") is None:
            raise TypeError(f"{where}: batch_size is None, but batches are made of lists of seeds. Pass 1 or more.")
        self.worker_method = kwargs.pop("worker_method", "process")
        self.fetch_ahead = kwargs.pop("fetch_ahead", None)
        refuse_wrong_options(where, self.worker_method, kwargs)
        generator = kwargs.get("generator")
        if generator is not None and seed != 0:
            raise ValueError(f"{where}: generator and seed={shown(seed)} are both given; pass one of them.")
        self.seed = check_seed(where, seed if generator is None else generator.initial_seed() % 2**64)
        self.view = self._view_class(where, is_link, self.seed)
        self.view.features = feature_store(where, kwargs.pop("features", None))
        if type(self).collate_fn is not Iterating.collate_fn:
            raise TypeError(
                f"{where}: collate_fn is overridden, but nothing here calls it. Override filter_fn, which makes the "
                "batch of a sampler's output, or give NodeLoader or LinkLoader a sampler of your own."
            )
        self._draws_order = any(kwargs.get(name) is not None for name in ("sampler", "batch_sampler"))
        self._order: tuple[Tensor, Tensor] | None = None  # drawn for the epoch by the user's sampler
        self._epoch = 0  # the next epoch
        self._running: DataLoader | None = None  # of the last loop
        self._state: dict[str, Any] | None = None  # the loaded state, from which the next loop goes on
        self._options_then: Any = None  # the options of the last DataLoader
        self._has_logged = False

    def _slices_in_workers(self) -> bool:
        """Whether workers make the whole batch. By default they do if Python code of the user makes batches."""
        if self._filters_itself() or self.num_workers == 0 or not self.filter_per_worker or self._has_threads():
            return False
        return bool(self._asked or self._has_own_code() or not isinstance(self.data, (Data, HeteroData)))

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. A user's class that derives from the loader may set any attribute in its methods.

        Raises:
            ValueError: Only the constructor reads the attribute, so a new value would change nothing.
        """
        if name in self._read_once and getattr(self, "_DataLoader__initialized", False):
            kind = type(self).__name__
            users = [cls for cls in type(self).__mro__ if not cls.__module__.startswith(("datapipes.", "torch"))]
            if name not in names_in_code(users):
                raise ValueError(f"{kind}: {name} is fixed since the loader was built. Build a new one: {kind}(...).")
        if name == "fetch_ahead" and value is not None:
            check_bool(type(self).__name__, name, value)
        super().__setattr__(name, value)

    # --- PyG's methods

    def filter_fn(self, out: Any) -> Any:
        """Make the batch of `out`, a SamplerOutput, apply the user's transform, and return the batch."""
        return self.view.transformed(self.view.sliced(out))

    def collate_fn(self, index: Any) -> Any:
        """Return the batch of the seeds at positions `index`; with `filter_per_worker=False` their SamplerOutput.

        Other loaders of PyG, such as ZipLoader, call this. The draws then depend on torch's generator.
        """
        out = self.view.sampled(index)
        return self.filter_fn(out) if self.filter_per_worker else out

    def __call__(self, index: Any) -> Any:
        """Return the batch of the seeds at positions `index`; equal positions give equal batches."""
        places = torch.as_tensor(index, dtype=torch.int64)
        number = int.from_bytes(hashlib.blake2b(places.numpy().tobytes(), digest_size=6).digest(), "little")
        key = RngKey(self.seed, MAX_EPOCH, number, 1)
        return self._batch_of(self.view.sampled(places, key), key)

    def __iter__(self) -> Iterator[Any]:
        return Epoch(self)

    # --- ours

    @property
    def datapipe(self) -> Stage:
        """The chain of stages that makes the minibatches of an epoch. Its stages order the seeds and sample; a further
        stage may gather rows ahead of the loop or, in workers, make whole batches.
        """
        if self._slices_in_workers():
            return PygSlice(self._sample(self.view), self.view)
        sampled = self._sample(self.view if self.num_workers == 0 else self.view.for_sampling())
        return PygFetch(sampled, self.view, self._fetches_ahead()) if self._fetches() else sampled

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch for `load_state_dict`, with the order if a torch sampler drew it."""
        if self._state is None and self._running is None:
            if self._draws_order:
                self._order = self._drawn_order()
            running = self._built()
            running.set_epoch(self._epoch)
            self._state = running.state_dict()
        state = self._state if self._state is not None else self._running.state_dict()  # type: ignore[union-attr]
        return {**state} if self._order is None else {**state, "order": [values.clone() for values in self._order]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next loop finish the epoch that `state` was saved in, with the same bits.

        Raises:
            TypeError, ValueError, IndexError: The state is malformed, or of another loader; the message names the
                difference.
        """
        plain = dict(state) if isinstance(state, Mapping) else state
        order, self._order = self._order, None
        try:
            if isinstance(plain, dict) and self._draws_order and "order" in plain:
                self._order = self._checked_order(plain.pop("order"))
            self._built().load_state_dict(plain)
        except BaseException:
            self._order = order
            raise
        self._state, self._epoch = plain, plain["epoch"]

    def set_epoch(self, epoch: int) -> None:
        """Make the next loop epoch `epoch`. A loaded state within this epoch is kept, any other state is dropped."""
        has_ended = self._state is not None and self._state.get("ended", False)
        if self._epoch != check_epoch(type(self).__name__, epoch) or has_ended:
            self._state, self._epoch = None, epoch

    def minibatch(self, epoch: int, index: int) -> Any:
        """Make batch `index` of an epoch again, in this process, and return it; a running loop is not disturbed.

        If the user's sampler gives the order, the last order that the sampler drew is used.
        """
        made = DataLoader(self._sample(self.view), overlap=False).minibatch(epoch, index)
        assert made is not None
        return self._batch_of(carried(made), self.view.key(made))

    def explain(self) -> str:
        """Return a text that shows the chain of stages as it runs."""
        return (self._running or self._built()).explain()

    def stats(self) -> LoaderStats:
        """Return DataLoader.stats for the last loop; if workers persist, for all loops since the workers started."""
        return LoaderStats({}) if self._running is None else self._running.stats()

    def report(self, path: str | Path) -> None:
        """Write the counts of `stats` as one HTML page, see DataLoader.report."""
        (self._running or self._built()).report(path)

    def close(self) -> None:
        """End the workers and threads of the loader; a later loop starts new ones."""
        running, self._running = self._running, None
        if running is not None:
            running.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "view": copy.copy(self.view), "_running": None, "_options_then": None}

    # --- how

    def _sample(self, view: View) -> Stage:
        return PygSample(self._seeds(), view)

    def _seeds(self) -> SeedStage:
        if self._draws_order or len(self.batch_sampler) == 0:
            none = torch.empty(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
            return DrawnOrder(*(self._order or none), self.seed, *self._ranks)
        shuffle = isinstance(self.sampler, torch.utils.data.RandomSampler)
        return self._ordered(ItemSet(len(self.dataset)), shuffle=shuffle, drop_last=self.drop_last, seed=self.seed)

    def _ordered(self, items: ItemSet, **options: Any) -> SeedStage:
        """Return the first stage of the chain, which orders the seeds and cuts them into minibatches."""
        return ItemSampler(items, self.batch_size, **options)

    def _drawn_order(self) -> tuple[Tensor, Tensor]:
        """Draw an epoch's order from the user's sampler, in this process; return (order, offsets) for DrawnOrder."""
        drawn = itertools.islice(self.batch_sampler, MOST_DRAWN + 1)
        batches = [check_ids(type(self).__name__, "a minibatch of the sampler", places).long() for places in drawn]
        if len(batches) > MOST_DRAWN:
            raise ValueError(
                f"{type(self).__name__}: the batch_sampler gave more than {MOST_DRAWN} minibatches in one epoch; the "
                "order is drawn whole before it begins. Give it an end."
            )
        sizes = torch.tensor([0, *map(len, batches)])
        return self._checked_order((torch.cat([sizes[:0], *batches]), sizes.cumsum(0)))

    def _checked_order(self, state: Any) -> tuple[Tensor, Tensor]:
        where = type(self).__name__
        if not isinstance(state, (list, tuple)) or [*map(type, state)] != [Tensor, Tensor]:
            raise TypeError(
                f"{where}: the order in a state must be two tensors, got {shown(state)}. Load a whole state."
            )
        order, offsets = state
        order = torch.where(order < 0, order + len(self.dataset), order)  # negative places count from the end
        check_within(where, "indices of the sampler", order, len(self.dataset), "Let it draw from loader.dataset.")
        return order, offsets

    def _has_threads(self) -> bool:
        """Whether workers are threads."""
        return self.worker_method == "thread" or self._why_threads() is not None

    def _why_threads(self) -> str | None:
        """Return why a fork is not safe, so that workers must be threads. None: a fork is safe, or is not used."""
        context = self.multiprocessing_context
        if context is not None and context.get_start_method() != "fork":
            return None
        return self._why_not_to_fork()

    def _why_not_to_fork(self) -> str | None:
        reason = why_not_to_fork()
        return None if reason is None else reason.has

    def _options(self) -> dict[str, Any]:
        """Return the options of the DataLoader that runs the chain for the current attributes."""
        timeout = self.timeout or None
        if self._runs_in_loop():
            return {"overlap": False}
        if self.num_workers == 0:
            return {"timeout": timeout}
        options = {
            "num_workers": self.num_workers,
            "persistent_workers": self.persistent_workers,
            "prefetch_factor": self.prefetch_factor,
            "worker_init_fn": self.worker_init_fn,
            "in_order": getattr(self, "in_order", True),  # torch has it from 2.6 on
            "timeout": timeout,
            "cut": PygFetch if self._fetches() else "end",
        }
        if self._has_threads():
            return {**options, "worker_method": "thread"}
        options["worker_init_fn"] = InWorker(self.worker_init_fn, self.num_workers, self.seed)
        return {**options, "multiprocessing_context": self.multiprocessing_context or "fork"}

    def _built(self) -> DataLoader:
        """Return a DataLoader for the current attributes; it starts nothing before its first minibatch."""
        options = self._options()
        self._options_then = options, self._fetches_ahead()
        if options.get("worker_method") == "thread":
            where, why = type(self).__name__, self._why_threads() or "was told worker_method='thread'"
            of_pyg = getattr(options["worker_init_fn"], "__self__", None) is self  # PyG's, for processes alone
            if not self._has_logged and (of_pyg or self.worker_method != "thread"):
                more = "; they have neither cores nor torch threads of their own" if of_pyg else ""
                logger.warning("%s: this process %s, so its workers are threads%s", where, why, more)
                self._has_logged = True
            options = {**options, "worker_init_fn": None} if of_pyg else options
        return DataLoader(self.datapipe, **options)

    def _next(self) -> DataLoader:
        """Return the DataLoader for the next loop, set to its start. If workers persist, use the last one again."""
        state, self._state = self._state, None
        if state is None and self._draws_order:
            self._order = self._drawn_order()
        running, now = self._running, (self._options(), self._fetches_ahead())
        if running is None or not self._keeps_workers() or self._options_then != now:
            running = self._built()
        if state is not None:
            running.load_state_dict(state)
        else:
            running.set_epoch(self._epoch)
        return running

    def _fetches(self) -> bool:
        """Whether the chain has a PygFetch: a stage that fills batches ahead of the loop, or reads features."""
        return self._fetches_ahead() or (bool(self.view.features) and self._why_not_ahead() is None)

    def _fetches_ahead(self) -> bool:
        """Whether batches are filled ahead of the loop. ValueError if `fetch_ahead` is True, but no batch can be."""
        if self.fetch_ahead is False or (self.fetch_ahead is None and self.num_workers == 0):
            return False
        why_not = self._why_not_ahead() or why_not_ahead(self.data)
        if self.fetch_ahead and why_not is not None:
            raise ValueError(
                f"{type(self).__name__}: fetch_ahead is True, but {why_not}, so no batch can be filled before the loop "
                "asks for it. Leave fetch_ahead out."
            )
        return why_not is None

    def _why_not_ahead(self) -> str | None:
        """Return why this loader cannot read rows ahead of the loop, whatever its data. None: it can."""
        reasons = {
            "filter_fn is overridden": self._filters_itself(),
            "transform_sampler_output may change the sampled ids": self.transform_sampler_output is not None,
            "workers make whole batches": self._slices_in_workers(),
            "without workers the sampler's own code runs in the thread of the loop": self._runs_in_loop(),
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def _runs_in_loop(self) -> bool:
        """Whether the user's own sampler or negative sampling runs in the thread of the loop."""
        is_ours = isinstance(self.view.sampler, NeighborSampler) and not draws_itself(self.neg_sampling)
        return self.num_workers == 0 and not is_ours

    def _has_own_code(self) -> bool:
        """Whether code of the user takes part in making a batch from a sampler's output."""
        return self._filters_itself() or self.transform is not None or self.transform_sampler_output is not None

    def _filters_itself(self) -> bool:
        return type(self).filter_fn is not Iterating.filter_fn

    def _batch_of(self, out: Any, key: RngKey) -> Any:
        """Make the batch of `out`, a sampler's output, and return it. The user's own code is seeded by `key`."""
        with seeded(key if self._has_own_code() else None):
            return self.filter_fn(out)

    def _keeps_workers(self) -> bool:
        return self.num_workers > 0 and self.persistent_workers and not self._draws_order
