"""What is asked of CUDA by way of torch; a stand-in for torch.cuda where there is no GPU."""

from types import SimpleNamespace

import pytest
import torch
from plain_cuda import on_gpu
from scripts import run_fresh

from datapipes.device import host_memory, runtime

TWO = torch.ones(2)


class TorchCuda(SimpleNamespace):
    """One GPU that torch has not initialised."""

    initialized, available = False, True

    def is_initialized(self):
        return self.initialized

    def is_available(self):
        return self.available

    def device_count(self):
        return 1

    def init(self):
        self.initialized = True


def stand_in(monkeypatch, has_context) -> TorchCuda:
    found = TorchCuda()
    monkeypatch.setattr(runtime, "_TORCH", found)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", has_context, raising=False)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: found.initialized)
    return found


@pytest.mark.parametrize("tells", [True, False])  # torch may lack the function
def test_to_ask_whether_memory_is_pinned_starts_no_cuda(monkeypatch, tells):
    cuda = stand_in(monkeypatch, (lambda index: False) if tells else None)
    for available in (True, False):
        cuda.available = available
        assert not runtime.Cuda().is_pinned(TWO.data_ptr())
        assert not cuda.initialized


def test_registered_memory_is_mapped_for_kernels_of_all_devices(monkeypatch):
    cuda, flags = stand_in(monkeypatch, lambda index: True), []
    driver = SimpleNamespace(cudaHostRegister=lambda address, num_bytes, given: flags.append(given) or 0)
    cuda.cudart = lambda: driver
    for read_only in (False, True):
        assert runtime.Cuda().register(4096, 4096, read_only=read_only) == 0
    assert flags == [1 | 2, 1 | 2 | 8]


def test_memory_that_torch_has_locked_before_all_else_is_seen(monkeypatch):
    cuda = stand_in(monkeypatch, lambda index: True)
    assert runtime.Cuda().is_pinned(TWO.data_ptr())
    assert cuda.initialized
    assert not host_memory.is_locked_elsewhere(torch.ones(0))


def test_a_byte_is_asked_about_and_not_the_begin_of_the_storage_that_it_is_in(monkeypatch):
    stand_in(monkeypatch, lambda index: True)
    memory = torch.zeros(8192, dtype=torch.uint8)
    locked = range(memory.data_ptr(), memory.data_ptr() + 4096)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: tensor.untyped_storage().data_ptr() in locked)
    found = [runtime.Cuda().is_pinned(memory.data_ptr() + place) for place in (0, 4095, 4096)]
    assert found == [True, True, False]


def test_a_forked_child_has_nothing_pinned(monkeypatch):
    def no_longer(index):
        raise RuntimeError("CUDA driver error: initialization error")

    stand_in(monkeypatch, no_longer)
    assert not runtime.Cuda().is_pinned(TWO.data_ptr())


FRESH = """
import torch
import datapipes as dp

CUDA = torch.device("cuda", 0)
assert dp.TensorFeature(torch.ones(8, 4)).reads_on(CUDA) is None
assert not torch.cuda.is_initialized()
assert dp.TensorFeature(torch.ones(8, 4).pin_memory()).reads_on(CUDA) == "uva"
"""


@on_gpu
def test_a_fresh_process_sees_what_torch_has_locked():
    child = run_fresh(FRESH)
    assert child.returncode == 0, child.stderr


LAYOUTS = {
    torch.strided: 1,
    torch.sparse_coo: 2,
    **dict.fromkeys((torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc), 3),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_streams_are_recorded_for_the_dense_parts_of_a_tensor(layout, monkeypatch):
    recorded = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: recorded.append((tensor.layout, stream)))
    blocks = {"blocksize": (2, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    tensor = torch.eye(4) if layout is torch.strided else torch.eye(4).to_sparse(layout=layout, **blocks)
    runtime.Cuda().used_on(tensor, "a stream")
    assert recorded == LAYOUTS[layout] * [(torch.strided, "a stream")]
