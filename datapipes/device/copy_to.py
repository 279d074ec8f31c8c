"""CopyTo: the stage that copies all tensors of a minibatch to a device."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import check_bool, dtype_name, shown
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import MiniBatchTransformer, Stage
from datapipes.chain.stage_base import QueuesOnStreams
from datapipes.device.handover import SideStreams, give_to_loop, leave, queued_now, take, take_from_loop
from datapipes.device.runtime import Event, cuda
from datapipes.minibatch import MiniBatch

__all__ = ["CopyTo"]


@register_stage("copy_to")
class CopyTo(QueuesOnStreams, MiniBatchTransformer):
    """Copy every tensor of the minibatch to `device`; tensors that are already there are shared.

    Copies to a GPU run on a stream of their own, beside the work of the current stream. The current stream waits for
    the copies, so work queued there afterwards sees the copied values. Copies from page-locked memory run while the
    caller goes on; the stage keeps the source minibatch alive until they are done. For copies from other host memory,
    the caller waits until they are done.

    Args:
        device: "cpu", "cuda", "cuda:1" or a torch.device; "cuda" is the current device of the thread that asks for the
            minibatch.
        non_blocking: False waits until the copies to a GPU are done. Copies to host memory are always waited for.
        into: a dict, which the stage fills: {bucket: MiniBatch}. The first minibatch of each bucket of `pad` is copied
            to memory of its own, and each later one into that same memory, on the current stream: a captured step reads
            it there. So a minibatch holds its values only until the next one of its bucket. The stage stands behind the
            DataLoader, whose threads run ahead; build it once, before the loop over epochs. A captured step must read
            `indptr` and `indices` of the blocks: `edge_index` is computed once and kept. None: each minibatch gets
            memory of its own.
    Raises:
        TypeError: `into` is no dict.
        ValueError: The device does not exist here; checked when the chain is built. While running, with `into`: a
            minibatch is not padded, or its tensors have other shapes or dtypes than those of its bucket.
    """

    draws = False
    _does = "copy"

    def __init__(
        self,
        source: Stage,
        device: str | torch.device,
        *,
        non_blocking: bool = True,
        into: dict[int, MiniBatch] | None = None,
    ) -> None:
        super().__init__(source)
        self.device = _check_device(device)
        self.non_blocking = check_bool("copy_to", "non_blocking", non_blocking)
        if into is not None and not isinstance(into, dict):
            raise TypeError(f"copy_to: into must be a dict, which the stage fills, got {shown(into)}. Pass {{}}.")
        self.into = into
        self._reuses_memory = into is not None
        self._streams = SideStreams()
        self._kept = KeptSources()
        # Sources may not be freed before their copies are done; except at exit, when nothing reads the copies.
        weakref.finalize(self, self._kept.finish).atexit = False

    def transform(self, minibatch: MiniBatch) -> MiniBatch:
        if self.into is not None:
            return self._copied_into(self.into, minibatch)
        if self.device.type != "cuda":
            # A non-blocking copy into host memory might still run when the caller reads the copy.
            return minibatch.to(self.device, self.non_blocking and self.device.type != "cpu")
        device = cuda().device(self.device)
        before, (stream,) = leave(minibatch), self._streams.of([device])
        with cuda().on(stream):
            take(minibatch, before)  # queued work may still be making tensors on a device
            try:
                copied = _copied(minibatch, device)
            except BaseException:
                stream.synchronize()  # copies may be running, and nothing would keep their source
                raise
            queued = queued_now(device)
        if self.non_blocking:
            self._kept.add(queued.event, minibatch)
        else:
            queued.event.synchronize()
        take(copied, [queued])
        return copied

    def _copied_into(self, into: dict[int, MiniBatch], minibatch: MiniBatch) -> MiniBatch:
        """Copy a minibatch into the memory of its bucket, on the current stream, behind the work that read it last."""
        bucket = minibatch.bucket
        if bucket is None:
            raise ValueError("copy_to: into needs minibatches of fixed shapes, found one without a bucket. Use pad.")
        memory = into.get(bucket)
        if memory is None:
            into[bucket] = minibatch.map_tensors(self._memory_for)
        elif isinstance(memory, MiniBatch):
            into[bucket] = self._written_over(memory, minibatch)
        else:
            raise TypeError(f"copy_to: into must have minibatches, got {shown(memory)}. Pass an empty dict.")
        if self.device.type == "cuda":
            queued = queued_now(cuda().device(self.device))
            if self.non_blocking:
                self._kept.add(queued.event, minibatch)
            else:
                queued.event.synchronize()
        return into[bucket]

    def _written_over(self, memory: MiniBatch, minibatch: MiniBatch) -> MiniBatch:
        """Return a copy of `minibatch` in the tensors of `memory`, an earlier one of its bucket."""
        tensors, places = tensors_of(minibatch), tensors_of(memory)
        wanted = [(self.device.type, tensor.dtype, tensor.shape) for tensor in tensors]
        if wanted != [(place.device.type, place.dtype, place.shape) for place in places]:
            given, kept = _forms(minibatch, self.device), _forms(memory, None)
            name = next(name for name in {**given, **kept} if given.get(name) != kept.get(name))
            raise ValueError(
                f"copy_to: {name} of minibatch {minibatch.index} is {given.get(name)}; into has {kept.get(name)} for "
                f"bucket {minibatch.bucket}. All minibatches of a bucket need the same shapes: use a dict for each "
                "chain, and neither lists nor sparse features, whose sizes pad does not fix."
            )
        for tensor, place in zip(tensors, places, strict=True):
            place.copy_(self._there(tensor))
        left = iter(places)
        return minibatch.map_tensors(lambda tensor: next(left))

    def _memory_for(self, tensor: Tensor) -> Tensor:
        """Return a copy of a tensor on the device, in memory of its own."""
        there = self._there(tensor)
        return there.clone() if there is tensor else there

    def _there(self, tensor: Tensor) -> Tensor:
        """Return the tensor, or a copy of it if it is not on the device."""
        if self.device.type != "cuda":
            return tensor.to(self.device)
        device = cuda().device(self.device)
        return tensor if tensor.device == device else cuda().copy(tensor, device, non_blocking=True)

    def _enter_loop(self, minibatch: MiniBatch) -> None:
        if self.device.type == "cuda":
            give_to_loop(minibatch)

    def _leave_loop(self, minibatch: MiniBatch) -> None:
        if self.device.type == "cuda":
            take_from_loop(minibatch)

    def _finish(self) -> None:
        """Wait until the queued copies are done, and drop the references to their source minibatches."""
        self._kept.finish()

    _end_kept = _finish

    def describe(self) -> dict[str, Any]:
        if self.into is not None:
            return {"device": str(self.device), "into": f"{len(self.into)} buckets"}
        return {"device": str(self.device)} | ({"stream": "its own"} if self.device.type == "cuda" else {})


def _forms(minibatch: MiniBatch, device: torch.device | None) -> dict[str, str]:
    """Return {name of a tensor in the message: its dtype, shape and device}, which is `device` if one is given."""
    return {
        name: f"{dtype_name(tensor.dtype)} {[*tensor.shape]} on {(device or tensor.device).type}"
        for name, tensor in minibatch.to_message().items()
        if tensor.ndim > 0
    }


def tensors_of(minibatch: MiniBatch) -> list[Tensor]:
    """Return the tensors of a minibatch, in the order in which `map_tensors` takes them."""
    tensors: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    minibatch.map_tensors(note)
    return tensors


def _copied(minibatch: MiniBatch, device: torch.device) -> MiniBatch:
    """Return a copy of `minibatch` with its tensors on `device`. A tensor that is in several fields is copied once."""
    made: dict[Any, Tensor] = {}

    def copy(tensor: Tensor) -> Tensor:
        if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
            return cuda().copy(tensor, device, non_blocking=True)
        values = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if values not in made:
            made[values] = cuda().copy(tensor, device, non_blocking=True)
        return made[values]

    return minibatch.map_tensors(copy)


def _check_device(device: str | torch.device) -> torch.device:
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f"copy_to: device must be a device such as 'cpu' or 'cuda:0', got {shown(device)}. Name one."
        ) from error
    if wanted.type == "cuda":
        count = cuda().device_count()
        if count == 0:
            raise ValueError(
                f"copy_to: device is {str(wanted)!r}, but this machine offers no CUDA device to torch "
                f"{torch.__version__}; allowed here: 'cpu'. Use copy_to('cpu'), or install a CUDA build of torch."
            )
        if wanted.index is not None and wanted.index >= count:
            raise ValueError(
                f"copy_to: device is {str(wanted)!r}, allowed are cuda:0 .. cuda:{count - 1}. Choose one of these."
            )
    elif wanted.type not in ("cpu", "meta"):
        module = getattr(torch, wanted.type, None)
        if module is None or not getattr(module, "is_available", lambda: False)():
            raise ValueError(f"copy_to: device is {str(wanted)!r}, which is not available here. Use 'cpu' or 'cuda'.")
    return wanted


class KeptSources:
    """Keeps the source of each queued copy alive until the event after the copy has passed; the oldest is first.

    This is needed for host memory that datapipes has page-locked itself, such as a slot of a channel: torch does not
    know of it. Without a reference to the source, its memory could be freed while a queued copy still reads it.
    """

    def __init__(self) -> None:
        self._kept: deque[tuple[Event, MiniBatch]] = deque()
        self._changing = threading.RLock()  # the garbage collector may call `finish` inside any other call
        self._process = os.getpid()

    def add(self, event: Event, source: MiniBatch) -> None:
        """Keep `source` alive until `event`, which is queued behind its copy, has passed.

        Also drop earlier sources whose event has passed by now.
        """
        if self._process != os.getpid():  # a forked child has its parent's sources, but not the events
            self._kept, self._changing, self._process = deque(), threading.RLock(), os.getpid()
        with self._changing:
            self._kept.append((event, source))
            while self._kept and self._kept[0][0].query():
                self._kept.popleft()

    def finish(self) -> None:
        """Wait until the queued copies are done, and drop the references to their sources."""
        if self._process != os.getpid():
            return
        with self._changing:
            while self._kept:
                self._kept[0][0].synchronize()
                self._kept.popleft()
