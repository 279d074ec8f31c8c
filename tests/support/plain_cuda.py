"""Places where gathers run in the tests: Triton's interpreter, at once and on the CPU, or a GPU if there is one."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor

from datapipes.device import runtime
from datapipes.device.missing_ids import MissingIds


class PlainEvent:
    def record(self, stream: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class PlainStream:
    def wait_event(self, event: Any) -> None:
        pass


class PlainCuda(runtime.Cuda):
    """A device whose memory is that of the CPU, whose work is done when it is queued; kernels are interpreted."""

    def __init__(self) -> None:
        super().__init__()
        self.on_device: dict[int, Tensor] = {}  # by address of the storage; kept, so that none is given out again
        self.is_page_locked = True  # all host memory
        self.bytes_left = 2**30  # of the device
        self.grids: list[tuple[int, ...]] = []  # of each launch
        self.constants: list[dict[str, Any]] = []

    def put(self, tensor: Tensor) -> Tensor:
        """Say that a tensor lies on the device."""
        self.on_device[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def device_count(self) -> int:
        return 1

    def device(self, device: torch.device) -> torch.device:
        return torch.device("cpu")

    def memory_left(self, device: torch.device) -> int:
        return self.bytes_left

    def holds(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self.on_device

    def is_pinned(self, address: int) -> bool:
        return self.is_page_locked

    def current_stream(self, device: torch.device) -> Any:
        return PlainStream()

    def on(self, stream: Any) -> Any:
        return contextlib.nullcontext()

    def new_event(self) -> Any:
        return PlainEvent()

    def copy(self, tensor: Tensor, device: torch.device, *, non_blocking: bool) -> Tensor:
        return tensor.clone()

    def copy_back(self, to: Tensor, tensor: Tensor) -> None:
        to.copy_(tensor)

    def used_on(self, tensor: Tensor, stream: Any) -> None:
        pass

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.full(shape, 77, dtype=torch.uint8).to(dtype)

    def empty_pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype)

    def launch(self, kernel: Any, grid: tuple[int, ...], device: torch.device, *args: Any, **constants: Any) -> None:
        self.grids.append(grid)
        self.constants.append(constants)
        kernel[grid](*args, **constants)

    def synchronize(self) -> None:
        pass


class Place:
    """Where tables are put, and ids."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_gpu = name == "gpu"
        self.device = torch.device("cuda", 0) if self.is_gpu else torch.device("cpu")
        self.cuda: Any = runtime.cuda() if self.is_gpu else PlainCuda()
        if not self.is_gpu:
            monkeypatch.setattr(runtime, "_current", self.cuda)

    def table(self, rows: Tensor, where: str) -> Tensor:
        """Return rows as they lie, with their gaps, in page-locked memory ("host") or on the device ("device")."""
        if not self.is_gpu:
            return self.cuda.put(rows) if where == "device" else rows
        base = rows if rows._base is None else rows._base
        put = base.to(self.device) if where == "device" else base.pin_memory()
        return put.as_strided(rows.shape, rows.stride(), rows.storage_offset())

    def ids(self, ids: Tensor) -> Tensor:
        """Return ids on the device."""
        return ids.to(self.device) if self.is_gpu else self.cuda.put(ids.clone())

    def missing(self, num_rows: int) -> MissingIds:
        return MissingIds("TensorFeature", num_rows, self.device)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
needs_interpreter = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles where there is a GPU")


def on_gpu(test: Any) -> Any:
    """Mark a test, or parameters, for machines with a GPU."""
    return pytest.mark.gpu(needs_gpu(test))


PLACES = [
    pytest.param("interpreter", marks=needs_interpreter),
    pytest.param("gpu", marks=[pytest.mark.gpu, needs_gpu]),
]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Place:
    pytest.importorskip("triton")
    return Place(request.param, monkeypatch)
