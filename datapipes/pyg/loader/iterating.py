"""How our loaders iterate: by a chain in a DataLoader, in place of torch's loader that PyG's derive from.

Attributes, `len` and checks of arguments are those of PyG's class, whose constructor runs. Each loop builds the
DataLoader anew from the attributes as they are then, unless workers persist.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.utils.data
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.log import logger
from datapipes.base.rng import MAX_EPOCH, RngKey, check_epoch, check_seed
from datapipes.base.types import known_node_type
from datapipes.chain.stage import SeedStage, Stage
from datapipes.loader.data_loader import DataLoader
from datapipes.loader.stats import LoaderStats
from datapipes.processes.unforkable import why_not_to_fork
from datapipes.pyg.loader.stages import DrawnOrder, PygSample, PygSlice, carried
from datapipes.pyg.loader.view import View
from datapipes.pyg.sampler import NeighborSampler
from datapipes.pyg.upstream import Data, HeteroData
from datapipes.seeds.item_sampler import ItemSampler
from datapipes.seeds.item_set import ItemSet

MOST_DRAWN = 2**24  # minibatches of one epoch of a batch_sampler


class _OfView:
    """An attribute of a loader that lives in its view, so that a change is seen by the next batch."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, loader: Any, cls: type | None = None) -> Any:
        return self if loader is None else getattr(loader.view, self._name)

    def __set__(self, loader: Any, value: Any) -> None:
        setattr(loader.view, self._name, value)


class Iterating:
    """What our loaders add to PyG's NodeLoader and LinkLoader, and what they do otherwise.

    Attributes:
        seed: decides order and draws; with the number of the epoch and of the batch alone.
    """

    data = _OfView("data")
    input_data = _OfView("input_data")
    neg_sampling = _OfView("neg_sampling")
    transform = _OfView("transform")
    transform_sampler_output = _OfView("transform_sampler_output")
    custom_cls = _OfView("custom_cls")
    node_sampler = _OfView("sampler")
    link_sampler = _OfView("sampler")

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

    def _set_up(self, is_link: bool, seed: int, kwargs: Mapping[str, Any]) -> None:
        """Make the view; called before PyG's constructor, which fills it."""
        where = type(self).__name__
        if kwargs.get("pin_memory_device"):
            raise TypeError(
                f"{where}: pin_memory_device is {kwargs['pin_memory_device']!r}; batches are pinned for the current "
                "device. Leave it out."
            )
        if kwargs.get("batch_size", 1) is None and kwargs.get("batch_sampler") is None:
            raise TypeError(f"{where}: batch_size is None, but batches are made of lists of seeds. Pass 1 or more.")
        generator = kwargs.get("generator")
        if generator is not None and seed != 0:
            raise ValueError(f"{where}: generator and seed={shown(seed)} are both given; pass one of them.")
        self.seed = check_seed(where, seed if generator is None else generator.initial_seed() % 2**64)
        self.view = View(is_link, self.seed)
        self._draws_order = any(kwargs.get(name) is not None for name in ("sampler", "batch_sampler"))
        self._order: tuple[Tensor, Tensor] | None = None  # that a sampler of the user's drew for the epoch
        self._epoch = 0  # the next one
        self._running: DataLoader | None = None  # of the last loop
        self._ready: DataLoader | None = None  # for the next loop: with a state, or begun by state_dict
        self._options_then: Any = None  # with which the last DataLoader was built

    def _refuse_wrong_seeds(self, data: Any, name: str, seeds: Any) -> None:
        """Refuse types that a HeteroData does not have, and masks of another length; the rest is left to PyG."""
        where, of, ids = type(self).__name__, None, seeds
        if isinstance(data, HeteroData):
            if not isinstance(seeds, (str, tuple, list)) or len(seeds) == 0:
                form = "a type, or a pair of a type and ids"
                raise TypeError(
                    f"{where}: {name} must be {form}, since the data has types, got {shown(seeds)}. Name one."
                )
            alone = isinstance(seeds, str) or all(isinstance(each, str) for each in seeds)
            of, ids = (seeds, None) if alone else (seeds[0], seeds[-1])
            for end in (of,) if isinstance(of, str) else (of[0], of[-1]):
                known_node_type(f"{where}, {name}", end, data.node_types)
        if isinstance(ids, Tensor) and ids.dtype == torch.bool and isinstance(data, (Data, HeteroData)):
            count = (data if of is None else data[of]).num_nodes
            if ids.shape != (count,):
                raise ValueError(
                    f"{where}: {name} is a mask of shape {list(ids.shape)}, but there are {count} nodes, which need "
                    f"[{count}]. Take the mask of the same data."
                )

    def _set_filter(self, given: bool | None) -> None:
        """Set `filter_per_worker`; None: workers make the whole batch where there is Python of the user's."""
        own = self.transform is not None or self.transform_sampler_output is not None
        self.filter_per_worker = (own and not getattr(self.data, "is_cuda", False)) if given is None else given

    # --- PyG's methods

    def filter_fn(self, out: Any) -> Any:
        """Return the batch of a SamplerOutput, the user's transform applied."""
        return self.view.transformed(self.view.sliced(out))

    def collate_fn(self, index: Any) -> Any:
        """Return the SamplerOutput of the seeds at places `index`, drawn by a key from torch's generator; other loaders
        of PyG, such as ZipLoader, call it.
        """
        out = self.view.output(self.view.sampled(index))
        return self.filter_fn(out) if self.filter_per_worker else out

    def __call__(self, index: Any) -> Any:
        """Return the batch of the seeds at places `index`; equal for equal places."""
        places = torch.as_tensor(index, dtype=torch.int64)
        number = int.from_bytes(hashlib.blake2b(places.numpy().tobytes(), digest_size=6).digest(), "little")
        key = RngKey(self.seed, MAX_EPOCH, number, 1)
        return self.view.transformed(self.view.sliced(self.view.sampled(places, key)), key)

    def __iter__(self) -> Iterator[Any]:
        return _Epoch(self)

    # --- ours

    @property
    def datapipe(self) -> Stage:
        """The chain that makes the batches of an epoch: the order of the seeds, the sampler, the slicing."""
        in_workers = self.num_workers > 0 and bool(self.filter_per_worker) and self._why_threads() is None
        view = self.view if in_workers or self.num_workers == 0 else self.view.for_sampling()
        found = PygSample(self._seeds(), view, converts=self.num_workers > 0)
        return PygSlice(found, self.view, transforms=in_workers)

    def state_dict(self) -> dict[str, Any]:
        """Return where the epoch stands, to resume from: plain values, and the order that a sampler of torch drew."""
        if self._ready is None and self._running is None:
            self._ready = self._next()
        state = (self._ready or self._running).state_dict()  # type: ignore[union-attr]  # one of them is there
        return state if self._order is None else {**state, "order": [each.clone() for each in self._order]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next loop finish the epoch that `state` was saved in, with the same bits.

        Raises:
            TypeError, ValueError: The state is malformed, or another loader's; the message names what differs.
        """
        plain = dict(state) if isinstance(state, Mapping) else state
        order, self._order = self._order, None
        try:
            if isinstance(plain, dict) and "order" in plain and self._draws_order:
                self._order = self._checked_order(*plain.pop("order"))
            ready = self._built()
            ready.load_state_dict(plain)
        except BaseException:
            self._order = order
            raise
        self._ready, self._epoch = ready, plain["epoch"]

    def set_epoch(self, epoch: int) -> None:
        """Make the next loop epoch `epoch`. A state of this epoch that was loaded stays."""
        if self._epoch != check_epoch(type(self).__name__, epoch):
            self._ready, self._epoch = None, epoch

    def explain(self) -> str:
        """Return the chain as it runs, as text."""
        return (self._ready or self._running or self._built()).explain()

    def stats(self) -> LoaderStats:
        """Return calls and seconds of each stage, see DataLoader.stats; of the last loop, unless workers persist."""
        return LoaderStats({}) if self._running is None else self._running.stats()

    def close(self) -> None:
        """End what runs for the loader; a later loop begins anew."""
        running, self._running, self._ready = self._running, None, None
        if running is not None:
            running.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_running": None, "_ready": None, "_options_then": None}

    # --- how

    def _seeds(self) -> SeedStage:
        if self._draws_order:
            none = torch.empty(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
            return DrawnOrder(*(self._order or none), self.seed)
        shuffle = isinstance(self.sampler, torch.utils.data.RandomSampler)
        items = ItemSet(len(self.dataset))
        return ItemSampler(items, self.batch_size, shuffle=shuffle, drop_last=self.drop_last, seed=self.seed)

    def _drawn_order(self) -> tuple[Tensor, Tensor]:
        """Return the order of an epoch, drawn here, in the main process."""
        drawn = itertools.islice(self.batch_sampler, MOST_DRAWN + 1)
        batches = [torch.as_tensor(each, dtype=torch.int64) for each in drawn]
        if len(batches) > MOST_DRAWN:
            raise ValueError(
                f"{type(self).__name__}: the batch_sampler gave more than {MOST_DRAWN} minibatches in one epoch; the "
                "order is drawn whole before it begins. Give it an end."
            )
        sizes = torch.tensor([0, *map(len, batches)])
        return self._checked_order(torch.cat([sizes[:0], *batches]), sizes.cumsum(0))

    def _checked_order(self, order: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        outside = order[(order < 0) | (order >= len(self.dataset))]
        if outside.numel() > 0:
            raise IndexError(
                f"{type(self).__name__}: the sampler gave the place {int(outside[0])}, must be in [0, "
                f"{len(self.dataset)}), the seeds of the loader. Let it draw from loader.dataset."
            )
        return order, offsets

    def _why_threads(self) -> str | None:
        """Return why workers must be threads: a fork is not safe. None if it is, or the user names another start."""
        context = self.multiprocessing_context
        if context is not None and context.get_start_method() != "fork":
            return None
        found = why_not_to_fork()
        return None if found is None else found.has

    def _options(self) -> dict[str, Any]:
        """Return the options of the DataLoader that runs the chain."""
        timeout = self.timeout or None
        if self.num_workers == 0:
            own = not isinstance(self.view.sampler, NeighborSampler) or self.transform_sampler_output is not None
            return {"overlap": False} if own else {"timeout": timeout}  # code of the user's runs in his thread
        options = {
            "num_workers": self.num_workers,
            "persistent_workers": self.persistent_workers,
            "prefetch_factor": self.prefetch_factor,
            "worker_init_fn": self.worker_init_fn,
            "in_order": getattr(self, "in_order", True),  # torch has it from 2.6 on
            "timeout": timeout,
        }
        if self._why_threads() is not None:
            options["worker_method"] = "thread"
        else:
            options["multiprocessing_context"] = self.multiprocessing_context or "fork"
            if self.filter_per_worker:
                return {**options, "cut": "end"}
        return {**options, "cut": PygSlice, "overlap": self.transform_sampler_output is None}

    def _built(self) -> DataLoader:
        """Return a DataLoader for the attributes as they are; it begins with its first minibatch."""
        self._options_then = options = self._options()
        if options.get("worker_method") == "thread":
            why = self._why_threads()
            logger.warning("%s: this process %s, so its workers are threads", type(self).__name__, why)
            if getattr(options["worker_init_fn"], "__self__", None) is self:  # it would bind this whole process
                logger.warning("%s: threads have neither cores nor torch threads of their own", type(self).__name__)
                options = {**options, "worker_init_fn": None}
        return DataLoader(self.datapipe, **options)

    def _next(self) -> DataLoader:
        """Return the DataLoader of the next loop."""
        ready, self._ready = self._ready, None
        if ready is not None:
            return ready
        if self._draws_order:
            self._order = self._drawn_order()
        elif self._running is not None and self._keeps_workers() and self._options_then == self._options():
            ready = self._running
        ready = ready or self._built()
        ready.set_epoch(self._epoch)
        return ready

    def _keeps_workers(self) -> bool:
        return self.num_workers > 0 and self.persistent_workers and not self._draws_order


class _Epoch(Iterator[Any]):
    """The batches of one loop over a loader. It begins with the first one."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._running: DataLoader | None = None
        self._minibatches: Iterator[Any] = iter(())

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        loader, view = self._loader, self._loader.view
        if self._running is None:
            if len(loader) == 0:
                raise StopIteration
            self._running = loader._running = loader._next()
            self._minibatches = iter(self._running)
        minibatch = next(self._minibatches)
        loader._epoch = minibatch.epoch + 1
        batch = carried(minibatch)
        chain: Any = self._running.source
        if not chain.transforms:
            batch = view.transformed(batch, view.key(minibatch))
        return batch.pin_memory() if loader.pin_memory and torch.cuda.is_available() else batch

    def __del__(self) -> None:
        if self._running is not None and not self._loader._keeps_workers():
            self._running.close()  # workers end with the loop, also after a break


def only_ours(where: str, sampler: Any) -> NeighborSampler:
    """Return a sampler of this package; refuse others."""
    if not isinstance(sampler, NeighborSampler):
        found = f"{type(sampler).__module__}.{type(sampler).__name__}"
        raise TypeError(
            f"{where}: neighbor_sampler must be a datapipes.pyg.sampler.NeighborSampler, got {found}. Give another "
            "sampler to NodeLoader or LinkLoader."
        )
    return sampler
