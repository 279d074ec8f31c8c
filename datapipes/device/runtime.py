"""All calls of CUDA in one object: streams, events, copies, page-locked memory and kernels.

All other modules call `cuda()` and never torch.cuda. So tests can put another object in its place. It needs no GPU,
runs queued work in the order in which a GPU might, and refuses a read that comes too early. Nothing here initialises
CUDA before its first use.
"""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

import torch
from torch import Tensor

_PORTABLE = 1  # cudaHostRegisterPortable: page-locked for every device of this process
_MAPPED = 2  # cudaHostRegisterMapped: kernels may read it; CUDA implies this only if no flag is given
_READ_ONLY = 8  # cudaHostRegisterReadOnly
_TORCH: Any = torch.cuda  # its functions have no types

OutOfMemory: type[RuntimeError] = _TORCH.OutOfMemoryError  # of a device


class Event(Protocol):
    """A point in the work of a stream. The interface is that of torch.cuda.Event."""

    def record(self, stream: Any) -> None: ...
    def query(self) -> bool: ...
    def synchronize(self) -> None: ...


class Stream(Protocol):
    """A queue of work on one device; the work runs in order. The interface is that of torch.cuda.Stream."""

    def wait_event(self, event: Any) -> None: ...
    def synchronize(self) -> None: ...


class Cuda:
    """The CUDA runtime, by way of torch. Tests replace this object by one that needs no GPU."""

    def __init__(self) -> None:
        self._launched_on: set[int] = set()

    def device_count(self) -> int:
        """Return how many CUDA devices torch can use here; 0 without CUDA."""
        return int(_TORCH.device_count()) if _TORCH.is_available() else 0

    def device(self, device: torch.device) -> torch.device:
        """Return `device` with an index. A device without an index means this thread's current device."""
        return device if device.index is not None else torch.device("cuda", int(_TORCH.current_device()))

    def holds(self, tensor: Tensor) -> bool:
        """Return whether a tensor lies in GPU memory."""
        return tensor.is_cuda

    def is_pinned(self, address: int) -> bool:
        """Return whether the byte of host memory at `address` is page-locked, by torch or by `register`.

        This never initialises CUDA. Torch itself can only be asked about the first byte of a tensor's storage.
        """
        if not self._is_in_use():
            return False
        byte = (ctypes.c_uint8 * 1).from_address(address)
        return torch.frombuffer(byte, dtype=torch.uint8).is_pinned()

    def _is_in_use(self) -> bool:
        """Return whether this process uses CUDA already. After Tensor.pin_memory alone, torch's own flag is not set."""
        if _TORCH.is_initialized():
            return True
        with suppress(RuntimeError):  # a forked child, which cannot use CUDA
            if any(map(_has_context, range(self.device_count()))):
                _TORCH.init()  # else some versions of torch call every tensor unpinned
                return True
        return False

    def new_stream(self, device: torch.device) -> Stream:
        """Return a new stream of `device`. Its work waits for no other stream."""
        return _TORCH.Stream(device)  # type: ignore[no-any-return]

    def current_stream(self, device: torch.device) -> Stream:
        """Return this thread's current stream of `device`, on which it queues work."""
        return _TORCH.current_stream(device)  # type: ignore[no-any-return]

    def default_stream(self, device: torch.device) -> Stream:
        """Return the default stream of `device`, which threads use unless they have chosen a stream."""
        return _TORCH.default_stream(device)  # type: ignore[no-any-return]

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Return a context manager that makes `stream` and its device this thread's current ones."""
        return _TORCH.stream(stream)  # type: ignore[no-any-return]

    def new_event(self) -> Event:
        """Return an event without timing. An event that was never recorded counts as passed."""
        return _TORCH.Event()  # type: ignore[no-any-return]

    def copy(self, tensor: Tensor, device: torch.device, *, non_blocking: bool) -> Tensor:
        """Queue a copy of a tensor to `device`, and return the copy; or the tensor itself if it is there already."""
        return tensor.to(device, non_blocking=non_blocking)

    def copy_back(self, to: Tensor, tensor: Tensor) -> None:
        """Queue a copy on the current stream, from `tensor` on a device into `to` in page-locked host memory."""
        to.copy_(tensor, non_blocking=True)

    def used_on(self, tensor: Tensor, stream: Stream) -> None:
        """Tell torch that `stream` uses a tensor: its memory is recycled only after the work queued on `stream`."""
        for part in _parts(tensor):
            part.record_stream(stream)  # type: ignore[arg-type]

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an uninitialised tensor on `device`, in memory from torch's cache for the device's current stream."""
        return torch.empty(shape, dtype=dtype, device=device)

    def memory_left(self, device: torch.device) -> int:
        """Return how many more bytes a device can give: its free bytes, and unused bytes in torch's cache."""
        unused = _TORCH.memory_reserved(device) - _TORCH.memory_allocated(device)
        return int(_TORCH.mem_get_info(device)[0] + unused)

    def empty_pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return an uninitialised tensor in page-locked memory, which torch reuses only after all copies from it."""
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def register(self, address: int, num_bytes: int, *, read_only: bool) -> int:
        """Page-lock host memory and map it for all devices. Return the code of the CUDA error; 0: success."""
        _TORCH.init()
        flags = _PORTABLE | _MAPPED | (_READ_ONLY if read_only else 0)
        return _forgotten(int(_TORCH.cudart().cudaHostRegister(address, num_bytes, flags)))

    def unregister(self, address: int) -> int:
        """Undo `register` for the memory at `address`. Return the code of the CUDA error; 0: success."""
        return _forgotten(int(_TORCH.cudart().cudaHostUnregister(address)))

    def launch(self, kernel: Any, grid: tuple[int, ...], device: torch.device, *args: Any, **constants: Any) -> None:
        """Queue a Triton kernel on the current stream of `device`.

        Args:
            grid: the number of programs along each dimension.
            args: the kernel's arguments. Tensors must be on the device; host memory is passed by its address.
            constants: the kernel's compile-time constants, and options for the launch.
        """
        self._launched_on.add(device.index)
        with _TORCH.device(device):
            kernel[grid](*args, **constants)

    def synchronize(self) -> None:
        """Wait for the work of all devices that this process has used, by torch or otherwise; not of other devices."""
        for index in range(self.device_count() if _TORCH.is_initialized() else 0):
            if index in self._launched_on or _has_context(index) is not False:
                _TORCH.synchronize(index)


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the dense tensors of which a sparse tensor consists, since torch records streams only for these.

    For a dense tensor return it alone.
    """
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)


def _has_context(index: int) -> bool | None:
    """Return whether this process has used the CUDA device `index`. None: this version of torch does not tell."""
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    return None if has_context is None else bool(has_context(index))


def _forgotten(code: int) -> int:
    """Return `code`, a CUDA error that the caller handles, and clear it, or torch would raise it at its next kernel."""
    if code != 0:
        with suppress(RuntimeError):  # raised and so forgotten here
            torch.ones(1, device="cuda")
    return code


_current = Cuda()


def cuda() -> Cuda:
    """Return the object for all calls of CUDA; in tests its replacement."""
    return _current
