"""Tensors in memory that torch.multiprocessing and our handles both pass on without a copy."""

import gc
import multiprocessing
import os
import tempfile
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing
from amounts import SPAWN
from channels import descriptors_from_now
from torch.multiprocessing.reductions import reduce_tensor

import datapipes as dp
from datapipes import _core
from datapipes.datasets.tfrecord.torch_memory import shared_empty, shared_tensor
from datapipes.processes import torch_storage
from datapipes.processes.mappings import mapping_of
from datapipes.processes.sharing import Packed, pack

START_S = 100.0  # longest wait for a child that imports torch first
SHAPE = (300, 70)  # larger than what travels by value
WAYS = ["argument of a process", "queue of torch", "MpChannel", "handle"]


def memory_of(tensor: torch.Tensor) -> _core.SharedMemory:
    found = mapping_of(tensor)
    assert found is not None
    return found[0]


def write_in_child(argument: torch.Tensor, queue: Any, channel: dp.MpChannel, packed: Packed, answers: Any) -> None:
    """Check what came by each way, write 1, 2, 3, 4 into the first rows, and tell what became of the first tensor."""
    came = [argument, queue.get(timeout=START_S), channel.recv(timeout=START_S)["x"], packed.unpack()["x"]]
    assert all((tensor == 9).all() for tensor in came)
    for row, tensor in enumerate(came):
        tensor[row] = row + 1
    adopted = shared_tensor(argument, "test")
    packed_again = pack(argument)
    packed_again.unpack()[len(WAYS)] = 5
    answers.send((adopted is argument, len(packed_again.memories)))


def test_a_child_writes_into_the_same_memory_whichever_way_it_came():
    context = torch.multiprocessing.get_context(SPAWN)
    tensor = shared_empty(SHAPE, torch.float32, "test")
    memory = memory_of(tensor)
    os.pwrite(memory.descriptor, torch.full(SHAPE, 9.0).numpy().data, 0)
    del memory
    queue, (here, there) = context.Queue(), multiprocessing.Pipe(duplex=False)
    with dp.MpChannel() as channel:
        queue.put(tensor)
        channel.send({"x": tensor})
        child = context.Process(target=write_in_child, args=(tensor, queue, channel, pack({"x": tensor}), there))
        child.start()
        try:
            assert here.poll(START_S)
            assert here.recv() == (True, 1), "the child takes the memory for its own kind, and packs it as it is"
        finally:
            child.join(START_S)
            child.kill()
    assert child.exitcode == 0
    rows = len(WAYS) + 1  # the last came into the child by torch, and was packed there
    assert torch.equal(tensor[:rows, 0], torch.arange(1.0, rows + 1))
    assert torch.equal(tensor[:rows], tensor[:rows, :1].expand(rows, SHAPE[1]))
    assert (tensor[rows:] == 9).all()


def test_a_new_tensor_is_zero_contiguous_and_shared():
    tensor = shared_empty((5, 3), torch.int64, "test")
    assert (tensor.shape, tensor.dtype, tensor.is_contiguous(), tensor.is_shared()) == ((5, 3), torch.int64, True, True)
    assert not tensor.any()
    assert shared_tensor(tensor, "test") is tensor
    memory, mapping = mapping_of(tensor)
    assert (mapping.address, mapping.num_bytes) == (tensor.data_ptr(), tensor.nbytes)
    assert os.fstat(memory.descriptor).st_size == tensor.nbytes
    assert os.pwrite(memory.descriptor, torch.arange(3).numpy().data, 24) == 24
    assert tensor.tolist() == [[0, 0, 0], [0, 1, 2], [0, 0, 0], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 7)])
def test_a_tensor_without_values_is_an_ordinary_one(shape):
    opened = descriptors_from_now()
    tensor = shared_empty(shape, torch.int64, "test")
    assert tensor.shape == shape
    assert opened() == 0


def test_any_part_of_it_is_found_by_handles():
    tensor = shared_empty((1000, 10), torch.float32, "test")
    for part in (tensor, tensor[5:], tensor[:, 3], tensor.T, tensor[999:, 9]):
        assert len(pack(part).memories) == 1
        assert shared_tensor(part, "test") is part


def test_memory_and_descriptors_go_with_the_last_tensor():
    opened = descriptors_from_now()
    tensor = shared_empty((1000, 10), torch.float32, "test")
    part = tensor[5:]
    part += 1
    del tensor
    gc.collect()
    assert opened() > 0
    found = mapping_of(part)
    assert found is not None
    assert torch.equal(pack(part).unpack(), part)
    del found, part
    gc.collect()
    assert opened() == 0


def in_a_file(shared: bool) -> torch.Tensor:
    with tempfile.NamedTemporaryFile() as file:
        file.write(np.arange(12).tobytes())
        file.flush()
        return torch.from_file(file.name, shared=shared, size=12, dtype=torch.int64)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(lambda: torch.arange(12).reshape(3, 4), id="ordinary"),
        pytest.param(lambda: torch.arange(12).reshape(4, 3).T, id="transposed"),
        pytest.param(lambda: torch.arange(12).share_memory_(), id="in the memory of torch"),
        pytest.param(lambda: torch.tensor(7), id="one value"),
        pytest.param(lambda: in_a_file(shared=False), id="in a file"),
        pytest.param(lambda: in_a_file(shared=True), id="in a file that others share"),
    ],
)
def test_other_tensors_are_copied(given):
    tensor = given()
    shared = shared_tensor(tensor, "test")
    assert torch.equal(shared, tensor)
    assert shared.is_contiguous()
    assert shared.is_shared()
    assert mapping_of(shared) is not None
    shared.zero_()
    assert tensor.any(), "it is a copy"


def test_too_large_a_tensor_is_refused_before_memory_is_taken():
    with pytest.raises(MemoryError, match=r"^load: \d+ bytes of shared memory were asked for, \d+ are left by"):
        shared_empty((2**48,), torch.int64, "load")


def test_the_strategy_of_files_shares_what_torch_has_made_and_copies_other_memory(monkeypatch):
    tensor = shared_empty(SHAPE, torch.float32, "test")
    monkeypatch.setattr(torch_storage, "get_sharing_strategy", lambda: "file_system")
    made = shared_empty(SHAPE, torch.float32, "test")
    assert shared_tensor(made, "test") is made
    assert len(pack(made[3:]).memories) == 1
    monkeypatch.setattr(torch_storage, "_made", {})
    assert shared_tensor(tensor, "test") is not tensor


def test_memory_goes_though_torch_remembers_what_it_passed_on():
    opened = descriptors_from_now()
    tensor = shared_empty(SHAPE, torch.float32, "test")
    passed_on = reduce_tensor(tensor)
    del tensor, passed_on
    gc.collect()
    assert opened() == 0
    others = [shared_empty(SHAPE, torch.float32, "test") for _ in range(3)]  # some at the address of the first
    memories = [memory_of(each) for each in others]
    assert len({os.fstat(memory.descriptor).st_ino for memory in memories}) == len(others)
