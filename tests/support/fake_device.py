"""A GPU that is none: it keeps the order of streams and events, and refuses what a real one would let pass by luck.

Work is queued and runs later, in a random order that respects each stream and each event that a stream waits for. Three
things are looked at:

* The order. Work that reads or writes memory must come after the work that wrote or read it before: on the same stream,
  by an event, or because the host has waited. Whatever order the work happens to run in, a missing wait is an error.
* Memory of the device. It comes from a cache that gives freed memory to the same stream at once, unless `used_on` has
  named another stream. So a missing `used_on` is an error of the order, too.
* Host memory. A copy from page-locked memory reads it when it runs, so memory that is given back too early gives wrong
  bytes; `reads_of_host` tells whether a copy from somewhere is still to come.

A tensor of the device is a DeviceTensor: what torch does with it is queued on the current stream of the thread.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import random
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from datapipes.device import runtime
from datapipes.processes.mappings import extent

ALREADY_REGISTERED, NOT_REGISTERED = 712, 713  # codes of cudaHostRegister and cudaHostUnregister
GARBAGE = 0xAB


class OrderError(AssertionError):
    """Work that a real GPU may run in the wrong order, or on memory that is somebody else's."""


Clock = dict[int, int]  # how far each stream is known to have come, by its number


def _join(clock: Clock, other: Clock) -> None:
    for stream, step in other.items():
        clock[stream] = max(clock.get(stream, 0), step)


class Step:
    """One thing in a stream: work, the recording of an event, or the wait for one."""

    def __init__(self, stream: FakeStream, what: str, run: Callable[[], None] | None = None) -> None:
        self.stream, self.what, self.run = stream, what, run
        self.waits_for: Step | None = None
        self.done = False
        self.host_range: tuple[int, int] | None = None  # addresses that it reads
        stream.steps += 1
        self.number = stream.steps
        _join(stream.clock, stream.gpu.host_clock)
        stream.clock[stream.number] = self.number
        self.clock = dict(stream.clock)

    def comes_before(self, other: Step) -> bool:
        return other.clock.get(self.stream.number, 0) >= self.number

    def __repr__(self) -> str:
        return f"{self.what!r} (step {self.number} of {self.stream!r})"


class FakeStream:
    """A queue of steps, of one device."""

    def __init__(self, gpu: FakeCuda, device: torch.device, number: int) -> None:
        self.gpu, self.device, self.number = gpu, device, number
        self.queue: deque[Step] = deque()
        self.clock: Clock = {}
        self.steps = 0

    def wait_event(self, event: FakeEvent) -> None:
        with self.gpu.begun():
            if event.step is not None:
                step = self.gpu.queue(Step(self, "wait"))
                step.waits_for = event.step
                _join(self.clock, event.step.clock)

    def synchronize(self) -> None:
        with self.gpu.begun():
            if self.queue:
                self.gpu.finish(self.queue[-1])

    def __repr__(self) -> str:
        return f"stream {self.number} of {self.device}"


class FakeEvent:
    """A point in a stream; it has passed until it is recorded."""

    def __init__(self, gpu: FakeCuda) -> None:
        self.gpu = gpu
        self.step: Step | None = None

    def record(self, stream: FakeStream) -> None:
        with self.gpu.begun():
            self.step = self.gpu.queue(Step(stream, "event"))

    def query(self) -> bool:
        with self.gpu.begun():
            self.gpu.run_some()
            if self.step is None or not self.step.done:
                return self.step is None
            _join(self.gpu.host_clock, self.step.clock)
            return True

    def synchronize(self) -> None:
        with self.gpu.begun():
            if self.step is not None:
                self.gpu.finish(self.step)


class Memory:
    """A piece of the device's memory: its bytes, and who has used it last."""

    def __init__(self, num_bytes: int) -> None:
        self.bytes = torch.full((num_bytes,), GARBAGE, dtype=torch.uint8)
        self.is_written = False  # since it was last given out
        self.writer: Step | None = None
        self.readers: list[Step] = []


class Block:
    """Memory that tensors use; it goes back to the cache with the last of them."""

    def __init__(self, gpu: FakeCuda, device: torch.device, stream: FakeStream, memory: Memory) -> None:
        self.gpu, self.device, self.stream, self.memory = gpu, device, stream, memory
        self.used_on: set[FakeStream] = set()

    def __del__(self) -> None:
        self.gpu.freed.append(
            (self.stream, self.memory, self.used_on)
        )  # the lock may be held: the collector calls this


class DeviceTensor(Tensor):
    """A tensor that the fake device holds. `plain` has its memory as a CPU tensor; only queued work may look at it."""

    plain: Tensor
    block: Block
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, plain: Tensor, block: Block) -> DeviceTensor:
        tensor = Tensor._make_subclass(cls, plain)
        tensor.plain, tensor.block = plain, block
        return tensor

    def __init__(self, *_: Any) -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.block.device

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert a tensor of the device to numpy. Use Tensor.cpu() first.")

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def cpu(self) -> Tensor:  # type: ignore[override]
        return self.block.gpu.copy(self, torch.device("cpu"), non_blocking=False)

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        device = kwargs.get("device", args[0] if args else None)
        if isinstance(device, (str, torch.device)):
            return self.block.gpu.copy(self, torch.device(device), non_blocking=bool(kwargs.get("non_blocking")))
        return super().to(*args, **kwargs)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"DeviceTensor({list(self.shape)}, {self.dtype}, {self.device})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        held = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, DeviceTensor)]
        return held[0].block.gpu.torch_call(func, held, args, kwargs)


class FakeCuda(runtime.Cuda):
    """What datapipes asks of CUDA (device/runtime.py), without a device.

    Args:
        rng_seed: decides which work runs when.
        num_devices: how many devices it has.
        haste: how much work runs beside each call, 0.0 (nothing before somebody waits) to 1.0 (much).
        interprets: whether Triton's interpreter runs kernels. It takes 10 ms for each; without it a gather of rows is
            done by torch.
    """

    def __init__(self, rng_seed: int = 0, num_devices: int = 1, haste: float = 0.5, *, interprets: bool = True) -> None:
        super().__init__()
        self.num_devices, self.haste, self.interprets = num_devices, haste, interprets
        self.lock = threading.RLock()
        self.rng = random.Random(rng_seed)
        self.streams: list[FakeStream] = []
        self.host_clock: Clock = {}  # what the host has waited for
        self.problems: list[str] = []
        self.freed: deque[tuple[FakeStream, Memory, set[FakeStream]]] = deque()
        self.freed_pinned: deque[np.ndarray] = deque()
        self.registered: dict[int, int] = {}  # bytes by address
        self.device_bytes = self.pinned_bytes = 0  # taken, in use or in the caches
        self.launches = 0
        self.slots_kept: list[np.ndarray] = []
        self.slots_freed = 0  # of channels, see gpu_chains.py
        self._free: defaultdict[tuple[int, int], list[tuple[Memory, list[Step]]]] = defaultdict(list)
        self._free_pinned: defaultdict[int, list[np.ndarray]] = defaultdict(list)
        self._pinned: dict[int, int] = {}  # bytes by address, of empty_pinned
        self._copies_from: defaultdict[int, list[Step]] = defaultdict(list)  # by address in _pinned
        self._here = threading.local()
        self._default = [self._new_stream(torch.device("cuda", index)) for index in range(num_devices)]

    # --- what runtime.Cuda has

    def device_count(self) -> int:
        return self.num_devices

    def device(self, device: torch.device) -> torch.device:
        return torch.device("cuda", self._index(device))

    def holds(self, tensor: Tensor) -> bool:
        return isinstance(tensor, DeviceTensor)

    def is_pinned(self, address: int) -> bool:
        return self._are_pinned(address, address + 1)

    def _are_pinned(self, first: int, end: int) -> bool:
        with self.lock:  # another thread may lock pages meanwhile
            ranges = [*self._pinned.items(), *self.registered.items()]
        return any(address <= first and end <= address + num_bytes for address, num_bytes in ranges)

    def covers(self, tensor: Tensor) -> bool:
        """Return whether all of a tensor in host memory is page-locked."""
        if self.holds(tensor) or tensor.numel() == 0:
            return False
        return self._are_pinned(tensor.data_ptr(), tensor.data_ptr() + extent(tensor))

    def new_stream(self, device: torch.device) -> Any:
        with self.lock:
            return self._new_stream(self.device(device))

    def current_stream(self, device: torch.device) -> Any:
        index = self._index(device)
        return self._streams_here().get(index, self._default[index])

    def default_stream(self, device: torch.device) -> Any:
        return self._default[self._index(device)]

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        here, before = self._streams_here(), dict(self._streams_here())
        before_index = getattr(self._here, "index", 0)
        here[stream.device.index] = stream
        self._here.index = stream.device.index
        try:
            yield
        finally:
            here.clear()
            here.update(before)
            self._here.index = before_index

    def new_event(self) -> Any:
        return FakeEvent(self)

    def copy(self, tensor: Tensor, device: torch.device, *, non_blocking: bool) -> Tensor:
        with self.begun():
            if device.type == "cpu":
                return self._to_host(tensor, non_blocking=non_blocking)
            device = self.device(device)
            if tensor.device == device:
                return tensor
            copied = self.empty(tuple(tensor.shape), tensor.dtype, device)
            if isinstance(tensor, DeviceTensor):
                other, here = self.current_stream(tensor.device), self.current_stream(device)
                before, after = FakeEvent(self), FakeEvent(self)
                before.record(other)
                here.wait_event(before)
                self._queue_call("copy", lambda to, of: to.copy_(of), [tensor], [copied], device)
                after.record(here)
                other.wait_event(after)
                return copied
            is_pinned = self.covers(tensor)
            source = _at_its_address(tensor) if is_pinned else tensor.clone()  # CUDA stages what is not page-locked
            step = self._queue_call("copy", lambda to: to.copy_(source), [], [copied], device)
            if is_pinned and tensor.numel() > 0:
                first = tensor.data_ptr()
                step.host_range = (first, first + tensor.numel() * tensor.itemsize)
                for address, num_bytes in self._pinned.items():
                    if address <= first < address + num_bytes:
                        self._copies_from[address].append(step)
            if not non_blocking:
                self.finish(step)
            return copied

    def copy_back(self, to: Tensor, tensor: Tensor) -> None:
        assert isinstance(tensor, DeviceTensor)
        with self.begun():
            if not self.covers(to):
                self._problem(f"copy_back to host memory that is not page-locked, {to.shape}")
            there = _at_its_address(to)
            self._queue_call("copy back", lambda of: there.copy_(of), [tensor], [], tensor.device)

    def used_on(self, tensor: Tensor, stream: Any) -> None:
        assert isinstance(tensor, DeviceTensor)
        with self.lock:
            tensor.block.used_on.add(stream)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        with self.begun():
            stream = self.current_stream(device)
            num_bytes = max(math.prod(shape) * dtype.itemsize, 1)
            memory = self._take(stream, num_bytes)
            block = Block(self, stream.device, stream, memory)
            plain = memory.bytes[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
            return DeviceTensor(plain, block)

    def memory_left(self, device: torch.device) -> int:
        return 2**30

    def empty_pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        with self.begun():
            count = math.prod(shape)
            size = 1 << max(count * dtype.itemsize - 1, 0).bit_length()
            free = self._free_pinned[size]
            ready = [array for array in free if all(step.done for step in self._copies_from[array.ctypes.data])]
            if ready:
                array = ready[0]
                free[:] = [each for each in free if each is not array]
            else:
                array = np.full(size, GARBAGE, dtype=np.uint8)
                self._pinned[array.ctypes.data] = size
                self.pinned_bytes += size
            self._copies_from.pop(array.ctypes.data, None)
            lent = array[:]
            weakref.finalize(lent, self.freed_pinned.append, array).atexit = False
            return torch.from_numpy(lent)[: count * dtype.itemsize].view(dtype).reshape(shape)

    def register(self, address: int, num_bytes: int, *, read_only: bool) -> int:
        with self.begun():
            for other, its_bytes in self.registered.items():
                if address < other + its_bytes and other < address + num_bytes:
                    return ALREADY_REGISTERED
            self.registered[address] = num_bytes
            return 0

    def unregister(self, address: int) -> int:
        with self.begun():
            num_bytes = self.registered.pop(address, None)
            if num_bytes is None:
                return NOT_REGISTERED
            if self.reads_of_host(address, num_bytes):
                self._problem("host memory is unregistered while work that reads it is queued")
            return 0

    def launch(self, kernel: Any, grid: tuple[int, ...], device: torch.device, *args: Any, **constants: Any) -> None:
        with self.begun():
            self.launches += 1
            held = [arg for arg in args if isinstance(arg, DeviceTensor)]
            name = getattr(kernel, "__name__", "kernel")
            written = [args[place] for place in WRITTEN[name]]
            plain = [arg.plain if isinstance(arg, DeviceTensor) else arg for arg in args]
            twin = None if self.interprets else TWINS.get(name)
            step = self._queue(
                name,
                lambda: kernel[grid](*plain, **constants) if twin is None else twin(*plain, **constants),
                [tensor for tensor in held if tensor.block.memory.is_written],  # the others it can only write
                written,
                device,
            )
            for first, num_bytes in (*self.registered.items(), *self._pinned.items()):
                if any(type(arg) is int and first <= arg < first + num_bytes for arg in args):
                    step.host_range = (first, first + num_bytes)

    def synchronize(self) -> None:
        with self.begun():
            for stream in list(self.streams):
                if stream.queue:
                    self.finish(stream.queue[-1])
                _join(self.host_clock, stream.clock)  # of work that has run before, too

    # --- for tests

    def call(self, fn: Callable[..., None], *tensors: Tensor, what: str = "model") -> None:
        """Queue `fn(*plain)` on the current stream of the tensors' device; it only reads them."""
        with self.begun():
            held = [tensor for tensor in tensors if isinstance(tensor, DeviceTensor)]
            plain = [tensor.plain if isinstance(tensor, DeviceTensor) else tensor for tensor in tensors]
            device = held[0].device if held else torch.device("cuda", self._index(torch.device("cuda")))
            self._queue(what, lambda: fn(*plain), held, [], device)

    def set_device(self, index: int) -> None:
        """Do what torch.cuda.set_device does, in this thread."""
        self._here.index = index

    def reads_of_host(self, address: int, num_bytes: int) -> bool:
        """Return whether a copy or a kernel that reads some of this host memory is still to run."""
        with self.lock:
            ranges = [step.host_range for stream in self.streams for step in stream.queue if step.host_range]
            return any(first < address + num_bytes and address < end for first, end in ranges)

    def check(self) -> None:
        """Run all work; fail if something was out of order, also where an error was swallowed."""
        self.synchronize()
        if self.problems:
            raise OrderError("; ".join(self.problems))

    # --- how it works

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Hold the lock; first take back what was freed, and let some work run."""
        with self.lock:
            while self.freed:
                stream, memory, used_on = self.freed.popleft()
                waits = [self.queue(Step(each, "event")) for each in used_on if each is not stream]
                self._free[stream.number, memory.bytes.numel()].append((memory, waits))
            while self.freed_pinned:
                array = self.freed_pinned.popleft()
                self._free_pinned[array.size].append(array)
            if self.rng.random() < self.haste:
                self.run_some()
            yield

    def queue(self, step: Step) -> Step:
        step.stream.queue.append(step)
        return step

    def run_some(self) -> None:
        for _ in range(self.rng.choice((0, 1, 1, 3))):
            if not self._run_one():
                return

    def finish(self, step: Step) -> None:
        """Run work until `step` is done; the host knows it then."""
        while not step.done:
            if not self._run_one():
                raise OrderError(f"nothing can run, and {step} is not done")
        _join(self.host_clock, step.clock)

    def torch_call(self, func: Any, held: list[DeviceTensor], args: Any, kwargs: Any) -> Any:
        """Do what torch asks for, `func`, now if it only makes a view; otherwise queue it."""
        with self.begun():
            device, schema, name = held[0].device, func._schema, func._schema.name.removeprefix("aten::")
            others = [leaf for leaf in tree_leaves((args, kwargs)) if type(leaf) is Tensor and leaf.ndim > 0]
            if others or any(tensor.device != device for tensor in held):
                raise RuntimeError(f"{name}: expected all tensors to be on one device, {device}; found others too")
            args, kwargs = tree_map(_plain_of, (args, kwargs))
            if any(given.alias_info is not None and not given.alias_info.is_write for given in schema.returns):
                return tree_map(lambda made: _wrapped(made, held[0].block), func(*args, **kwargs))
            written = _written(schema, args, kwargs, held)
            if written:
                read = [tensor for tensor in held if all(tensor is not each for each in written)]
                self._queue(name, lambda: func(*args, **kwargs), read, written, device)
                return written[0] if len(written) == 1 else tuple(written)
            shapes = None if name in _TELL_SIZES else _shapes(func, args, kwargs)
            if shapes is None:  # the host needs values, and waits for them
                self.finish(self._queue(name, lambda: None, held, [], device))
                found = func(*args, **kwargs)
                return tree_map(lambda made: self._put(made, device) if isinstance(made, Tensor) else made, found)
            made = tree_map(lambda each: self._like(each, device), shapes)
            outputs = [each for each in tree_leaves(made) if isinstance(each, DeviceTensor)]
            plains = [each.plain for each in outputs]  # `run` keeps memory, but no block

            def run() -> None:
                found = [each for each in tree_leaves(func(*args, **kwargs)) if isinstance(each, Tensor)]
                for to, of in zip(plains, found, strict=True):
                    to.copy_(of)

            self._queue(name, run, held, outputs, device)
            return made

    def _queue_call(
        self,
        what: str,
        fn: Callable[..., Any],
        read: list[Tensor],
        written: list[Tensor],
        device: torch.device,
    ) -> Step:
        plain = [_plain_of(tensor) for tensor in (*written, *read)]
        return self._queue(what, lambda: fn(*plain), read, written, device)

    def _queue(
        self, what: str, run: Callable[[], Any], read: list[Any], written: list[Any], device: torch.device
    ) -> Step:
        step = Step(self.current_stream(device), what, run)
        for tensor in read:
            memory = tensor.block.memory
            if not memory.is_written:
                self._problem(f"{step} reads memory that nothing has written")
            elif not memory.writer.comes_before(step):
                self._problem(f"{step} does not wait for {memory.writer}, which writes what it reads")
            memory.readers.append(step)
        for tensor in written:
            memory = tensor.block.memory
            for before in (*([memory.writer] if memory.writer else []), *memory.readers):
                if before is not step and not before.comes_before(step):
                    self._problem(f"{step} does not wait for {before}, whose memory it writes")
            memory.is_written, memory.writer, memory.readers = True, step, []
        return self.queue(step)

    def _problem(self, text: str) -> None:
        self.problems.append(text)
        raise OrderError(text)

    def _run_one(self) -> bool:
        ready = [
            stream
            for stream in self.streams
            if stream.queue and (stream.queue[0].waits_for is None or stream.queue[0].waits_for.done)
        ]
        if not ready:
            return False
        step = self.rng.choice(ready).queue.popleft()
        step.done = True
        if step.run is not None:
            run, step.run = step.run, None
            run()
        return True

    def _take(self, stream: FakeStream, num_bytes: int) -> Memory:
        size = -(-num_bytes // 512) * 512
        free = self._free[stream.number, size]
        for number, (memory, waits) in enumerate(free):
            if all(step.done for step in waits):
                for step in waits:
                    _join(self.host_clock, step.clock)
                del free[number]
                memory.is_written = False
                return memory
        self.device_bytes += size
        return Memory(size)

    def _to_host(self, tensor: Tensor, *, non_blocking: bool) -> Tensor:
        if not isinstance(tensor, DeviceTensor):
            return tensor
        to = torch.empty_like(tensor.plain)
        to.untyped_storage().fill_(0 if tensor.dtype == torch.bool else GARBAGE)
        step = self._queue_call("copy to the host", lambda of: to.copy_(of), [tensor], [], tensor.device)
        if not non_blocking:
            self.finish(step)
        return to

    def _like(self, shape: Any, device: torch.device) -> Any:
        return self.empty(tuple(shape.shape), shape.dtype, device) if isinstance(shape, Tensor) else shape

    def _put(self, made: Tensor, device: torch.device) -> Tensor:
        there = self.empty(tuple(made.shape), made.dtype, device)
        self._queue_call("result", lambda to: to.copy_(made), [], [there], device)
        return there

    def _new_stream(self, device: torch.device) -> FakeStream:
        self.streams.append(FakeStream(self, device, len(self.streams)))
        return self.streams[-1]

    def _index(self, device: torch.device) -> int:
        return getattr(self._here, "index", 0) if device.index is None else device.index

    def _streams_here(self) -> dict[int, FakeStream]:
        if not hasattr(self._here, "streams"):
            self._here.streams = {}
        found: dict[int, FakeStream] = self._here.streams
        return found


def _plain_of(value: Any) -> Any:
    return value.plain if isinstance(value, DeviceTensor) else value


def _wrapped(made: Any, block: Block) -> Any:
    return DeviceTensor(made, block) if isinstance(made, Tensor) else made


def _written(schema: Any, args: Any, kwargs: Any, held: list[DeviceTensor]) -> list[DeviceTensor]:
    """Return the tensors that a call writes in place."""
    of_plain = {id(tensor.plain): tensor for tensor in held}
    found = []
    for number, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[number] if number < len(args) else kwargs.get(argument.name)
            found += [of_plain[id(leaf)] for leaf in tree_leaves(given) if id(leaf) in of_plain]
    return found


def _shapes(func: Any, args: Any, kwargs: Any) -> Any:
    """Return tensors without memory, of the shapes and dtypes that a call gives; None if only the values tell."""
    args, kwargs = tree_map(lambda each: each.to("meta") if isinstance(each, Tensor) else each, (args, kwargs))
    try:
        return func(*args, **kwargs)
    except (NotImplementedError, RuntimeError):
        return None


def _at_its_address(tensor: Tensor) -> Tensor:
    """Return a tensor at the same address that does not keep its memory, as a copy of a GPU does not."""
    if tensor.numel() == 0:
        return tensor.clone()
    count = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    memory = (ctypes.c_char * (count * tensor.itemsize)).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())


def gather_rows(
    table: Any,
    ids: Tensor,
    out: Tensor,
    places: Tensor | None,
    cached: Tensor | None,
    slots: Tensor | None,
    scale: Tensor | None,
    missing: Tensor,
    num_ids: int,
    count: int,
    stride: int,
    num_tiles: int,
    *,
    UNITS: int,
    LANES: int,
    BITS: int,
    DECODED_FROM: str,
    **_: Any,
) -> None:
    """Do what the kernel of this name does (device/kernels.py), by torch."""
    unit_bytes = LANES * BITS // 8
    row_bytes, step = UNITS * unit_bytes, stride * unit_bytes
    assert cached is slots is None  # only the interpreter reads them
    num_bytes = (count - 1) * step + row_bytes
    if isinstance(table, int):
        table = torch.frombuffer((ctypes.c_char * num_bytes).from_address(table), dtype=torch.uint8)
    rows = table.view(torch.uint8).as_strided((count, row_bytes), (step, 1))
    known = (ids >= 0) & (ids < count)
    missing[0] += int((~known).sum())
    if not known.all():
        missing[1] = min(int(missing[1]), int(ids[~known].min()))
    found = rows[torch.where(known, ids, 0).long()]
    if DECODED_FROM:
        found = found.view(getattr(torch, DECODED_FROM)).float()
        found = found if scale is None else found * scale.flatten()
    found[~known] = 0
    where = torch.arange(num_ids) if places is None else places
    to = out.view(found.dtype) if out.dtype != found.dtype else out
    to.reshape(-1)[: found.numel()].view(found.shape)[where] = found


_TELL_SIZES = ("_local_scalar_dense", "equal", "nonzero", "_unique2")  # the host needs values of them

# What kernels do by torch, and which of their arguments they write.
TWINS: dict[str, Callable[..., None]] = {"gather_rows": gather_rows}
WRITTEN = {"gather_rows": (2, 7), "check_ids": (1,), "look_up": (2, 3, 4, 5), "choose_slots": (1, 2, 3)}


@contextmanager
def fake_cuda(**arguments: Any) -> Iterator[FakeCuda]:
    """Put a fake in the place of CUDA; at the end run its work, and fail if something was out of order."""
    fake = FakeCuda(**arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "_current", fake)
        yield fake
        fake.check()


# --- what tests put around a chain


def train(gpu: FakeCuda, minibatch: Any, into: list[str]) -> None:
    """Queue a model on the current stream: it reads all of a minibatch, and adds its digest to `into` when it runs."""
    held: list[Tensor] = []

    def look(tensor: Tensor) -> Any:
        held.append(tensor)
        return _plain_of(tensor)

    plain = minibatch.map_tensors(look)
    if not any(isinstance(tensor, DeviceTensor) for tensor in held):
        into.append(plain.digest())
        return
    place = len(into)
    into.append("not trained")
    gpu.call(lambda *_: into.__setitem__(place, plain.digest()), *held)


def in_slots(gpu: FakeCuda, minibatch: Any) -> Any:
    """Return a minibatch whose tensors lie in page-locked memory that is filled with garbage when they are gone."""
    return minibatch.map_tensors(lambda tensor: _in_slot(gpu, tensor))


def _in_slot(gpu: FakeCuda, tensor: Tensor) -> Tensor:
    pages = mmap.mmap(-1, max(tensor.numel() * tensor.itemsize, 1))  # shared with nothing else that is registered
    memory = np.frombuffer(pages, dtype=np.uint8)
    memory[:] = GARBAGE
    assert gpu.register(memory.ctypes.data, memory.size, read_only=False) == 0
    lent = memory[: tensor.numel() * tensor.itemsize]
    weakref.finalize(lent, _give_back, gpu, memory).atexit = False
    return torch.from_numpy(lent).view(tensor.dtype).reshape(tensor.shape).copy_(tensor)


def _give_back(gpu: FakeCuda, memory: np.ndarray) -> None:
    if gpu.reads_of_host(memory.ctypes.data, memory.size):
        gpu.problems.append("a slot was given back before the copy from it has run")
    memory[:] = GARBAGE
    gpu.registered.pop(memory.ctypes.data, None)
    gpu.slots_kept.append(memory)  # a copy that is still queued reads it
