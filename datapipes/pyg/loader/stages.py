"""The stages of a loader's chain: order the seeds, sample, and fill batches, in threads or in workers.

These stages make objects of PyG, such as a SamplerOutput, and a minibatch carries the object. Within a process the
minibatch has a reference to it. From a worker process, the object's tensors travel as in every message, and the rest of
the object is pickled.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data._utils import worker

from datapipes.base.codec import Message
from datapipes.base.rng import RngKey
from datapipes.chain.stage import MiniBatchTransformer, SeedStage, Stage
from datapipes.chain.stage_base import Fingerprint
from datapipes.features.feature_fetcher import FeatureFetcher, checked_rows
from datapipes.features.feature_store import FeatureRequest
from datapipes.minibatch import MiniBatch
from datapipes.pyg.loader.view import View
from datapipes.pyg.sampler import NeighborSampler, seeded

_PICKLE = "pickle"  # the name of the pickled bytes in a message; the names of tensors are "0", "1", ...


class _Pickler(pickle.Pickler):
    """Pickles an object, but collects its plain tensors (dense, in host memory, without a gradient) in `tensors`,
    {name: tensor}.

    For a row of a contiguous tensor [2, n], such as row or col of the edges, the whole tensor is collected, once for
    both rows.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}

    def persistent_id(self, value: Any) -> tuple[str, int] | None:
        is_plain = type(value) is Tensor and value.layout == torch.strided and value.device.type == "cpu"
        if not is_plain or value.requires_grad or value.is_nested or value.is_quantized:
            return None
        base = value._base
        is_row = base is not None and base.shape == (2, value.numel()) and base.dtype == value.dtype and value.ndim == 1
        if base is not None and is_row and base.is_contiguous() and value.is_contiguous() and len(value) > 0:
            return self._name(base), (value.storage_offset() - base.storage_offset()) // len(value)
        return self._name(value), -1

    def _name(self, tensor: Tensor) -> str:
        name = self._names.setdefault(id(tensor), str(len(self._names)))
        self.tensors[name] = tensor
        return name


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: Any) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, place: Any) -> Any:
        name, row = place
        return self._tensors[name] if row < 0 else self._tensors[name][row]


@dataclass(slots=True, eq=False)
class Carried(MiniBatch):
    """A minibatch that carries an object of PyG, such as a SamplerOutput or a Data.

    Attributes:
        value: the object.
        consumers_batch: a weak reference to the batch that the loop got for this minibatch. It tells whether the loop
            still uses the batch. An Epoch sets it, and keeps this minibatch until the next minibatch.
    """

    value: Any = None
    consumers_batch: Callable[[], object] | None = None

    def _kept_by_consumer(self) -> Callable[[], object]:
        this = weakref.ref(self)

        def kept() -> object:
            carried = this()
            return carried if carried is None or carried.consumers_batch is None else carried.consumers_batch()

        return kept

    def to_message(self) -> Message:
        file = io.BytesIO()
        pickler = _Pickler(file)
        pickler.dump(self.value)
        bytes_ = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
        return MiniBatch(epoch=self.epoch, index=self.index, extra={**pickler.tensors, _PICKLE: bytes_}).to_message()


def carried(minibatch: MiniBatch) -> Any:
    """Return the object that `minibatch` carries; if it came as a message from a worker, unpickle the object."""
    if isinstance(minibatch, Carried):
        return minibatch.value
    extra: Any = minibatch.extra
    return _Unpickler(io.BytesIO(extra[_PICKLE].numpy().tobytes()), extra).load()


def carrying(minibatch: MiniBatch, value: Any) -> Carried:
    return Carried(epoch=minibatch.epoch, index=minibatch.index, value=value)


class DrawnOrder(SeedStage):
    """The first stage of a chain whose minibatches a sampler of torch has drawn. Seeds are positions in the dataset.

    Args:
        order: int64 [n], the seeds of all minibatches, one minibatch after the other.
        offsets: int64 [num_minibatches + 1], where each minibatch begins in `order`.
        seed: the random seed, from which later stages derive their random keys.
        rank, world_size: this rank and the number of ranks, if each rank has its own order. The i-th minibatch in
            `order` then has the index i * world_size + rank.
    """

    def __init__(self, order: Tensor, offsets: Tensor, seed: int, rank: int = 0, world_size: int = 1) -> None:
        super().__init__()
        self.order, self.offsets, self.rng_seed = order, offsets, seed
        self.rank, self.world_size = rank, world_size

    @property
    def num_steps(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_batches(self) -> int:
        return self.num_steps * self.world_size

    def make_minibatch(self, rng: RngKey) -> MiniBatch:
        step = rng.index // self.world_size
        begin, end = self.offsets[step : step + 2].tolist()
        return MiniBatch(epoch=rng.epoch, index=rng.index, seeds=self.order[begin:end])

    def fingerprint(self) -> Fingerprint:
        digest = hashlib.blake2b(digest_size=16)
        for values in (self.order, self.offsets):
            digest.update(values.numpy().tobytes())
        return {"order_digest": digest.hexdigest()}


class PygSample(MiniBatchTransformer):
    """Call the loader's sampler for the seeds of each minibatch. The minibatch then carries the sampler's output."""

    _does = "sampling"

    def __init__(self, source: Stage, view: View) -> None:
        super().__init__(source)
        self.view = view

    def transform(self, minibatch: MiniBatch) -> MiniBatch:
        return carrying(minibatch, self.view.sampled(minibatch.seeds, self.rng_of(minibatch)))

    def fingerprint(self) -> Fingerprint:
        sampler, negatives = self.view.sampler, self.view.neg_sampling
        is_ours = isinstance(sampler, NeighborSampler)
        fields = sampler.fingerprint() if is_ours else {"sampler": type(sampler).__name__}
        drawn = None if negatives is None else [negatives.mode.value, negatives.amount]
        return {**fields, "neg_sampling": drawn, "input_digest": self.view.input_digest()}

    def describe(self) -> dict[str, Any]:
        return {"sampler": self.view.sampler}


class PygFetch(FeatureFetcher):
    """Read the features for a sampler's output, and fill its batch, in a thread, before the loop asks for the batch.

    Args:
        fills: False: only the features are read here, and the loop fills the batch with them.
    """

    def __init__(self, source: Stage, view: View, fills: bool) -> None:
        self.view, self.fills = view, fills
        super().__init__(source, view.features, view.feature_names("node"), view.feature_names("edge"))

    def transform(self, minibatch: MiniBatch) -> MiniBatch:
        return self._with_batch(super().transform(carrying(minibatch, carried(minibatch))))

    async def transform_async(self, minibatch: MiniBatch) -> MiniBatch:
        return self._with_batch(await super().transform_async(carrying(minibatch, carried(minibatch))))

    def _with_batch(self, minibatch: MiniBatch) -> MiniBatch:
        if self.fills:
            self.view.fill_ahead(carried(minibatch))
        return minibatch

    def requests_of(self, minibatch: MiniBatch) -> list[FeatureRequest]:
        return self.view.requests_of(carried(minibatch))

    def _filled(self, minibatch: MiniBatch, requests: list[FeatureRequest], all_rows: Any) -> MiniBatch:
        carried(minibatch).feature_rows = requests, checked_rows(requests, all_rows)
        return minibatch


class PygSlice(MiniBatchTransformer):
    """Make a Data or HeteroData from a sampler's output and apply the user's transform, in worker processes."""

    _does = "gather"
    draws = False

    def __init__(self, source: Stage, view: View) -> None:
        super().__init__(source)
        self.view = view

    def transform(self, minibatch: MiniBatch) -> MiniBatch:
        with seeded(self.view.key(minibatch)):
            return carrying(minibatch, self.view.transformed(self.view.sliced(carried(minibatch))))


@dataclass(frozen=True)
class InWorker:
    """A worker_init_fn for worker processes: makes `torch.utils.data.get_worker_info()` describe this worker, then
    calls `fn`, the user's function.
    """

    fn: Callable[[int], None] | None
    num_workers: int
    seed: int

    def __call__(self, number: int) -> None:
        info: Any = worker.WorkerInfo
        seed = (self.seed + number) % 2**63
        worker._worker_info = info(id=number, num_workers=self.num_workers, seed=seed, dataset=None)
        if self.fn is not None:
            self.fn(number)
