"""A process that overwrites the shared memory of a channel: the others get an error, none crashes or waits too long.

csrc/tests/test_shm_garbage.cpp has the same for the queue alone, under sanitizers.
"""

import ctypes
import struct

import pytest
import soak_garbage
import torch
from channels import BOUND_S, Child, attached_again, in_thread, number_of, numbered
from pipelines import refused

import datapipes as dp

KIB = 1024
NO_SLOT = 2**32 - 1


class Memory:
    """The segment of a channel, as any process sees it that has it mapped. csrc/shm/state.h has the places."""

    DATA_BYTES, FENCE, FIRST_BY_ADDRESS = 48, 328, 1216
    TAG, OFFSET, BYTES, NEXT_BY_ADDRESS, SLOT = 0, 16, 24, 48, 64

    def __init__(self, channel: dp.ShmChannel) -> None:
        address, num_bytes = channel._shared.memory
        self.bytes = (ctypes.c_ubyte * num_bytes).from_address(address)
        self.slots = self.u64(32)

    def u32(self, at: int) -> int:
        return struct.unpack_from("<I", self.bytes, at)[0]

    def u64(self, at: int) -> int:
        return struct.unpack_from("<Q", self.bytes, at)[0]

    def put32(self, at: int, value: int) -> None:
        struct.pack_into("<I", self.bytes, at, value)

    def put64(self, at: int, value: int) -> None:
        struct.pack_into("<Q", self.bytes, at, value % 2**64)

    def used_slots(self) -> list[int]:
        """The numbers of the slots with a message."""
        return [i for i in range(68) if self.u64(self.slots + i * self.SLOT) & 0xFF]

    def slot(self, number: int, field: int) -> int:
        return self.slots + number * self.SLOT + field


def assert_damaged(channel: dp.ShmChannel, other: dp.ShmChannel) -> None:
    """Both sides are told, in every call but close."""
    for call in (
        lambda: channel.send(numbered(1), timeout=0),
        lambda: other.recv(timeout=0),
        lambda: other.recv(timeout=None),
        lambda: other.send(numbered(1), timeout=None),
        lambda: channel.end_epoch(timeout=0),
        lambda: channel.send_error(ValueError(), timeout=0),
        lambda: other.reset(),
        lambda: len(other),
        lambda: other.stats(),
        lambda: attached_again(channel),
    ):
        with refused(dp.ChannelDamaged, stage="ShmChannel", found="damaged", allowed="only datapipes may write"):
            call()
    other.close()
    other.close()
    channel.close()


def test_a_damaged_size_of_the_data_is_never_read_again():
    with dp.ShmChannel(4, 4 * KIB) as channel:
        memory = Memory(channel)
        assert memory.u64(memory.DATA_BYTES) == 4 * KIB
        memory.put64(memory.DATA_BYTES, 2**40)
        with refused(ValueError, stage="ShmChannel.send", found="takes", allowed="has 4096"):
            channel.send(numbered(1, 2**20), timeout=0)
        channel.send(numbered(1), timeout=0)
        assert number_of(channel.recv(timeout=0)) == 1
        assert repr(channel) == "ShmChannel(capacity=4, shm_size=4096)"


DAMAGES = {
    "a slot that points to itself": lambda memory, slot: (
        memory.put32(memory.slot(slot, memory.NEXT_BY_ADDRESS), slot),
        memory.put64(memory.slot(slot, memory.OFFSET), -64),
    ),
    "an extent of 2^40 bytes": lambda memory, slot: memory.put64(memory.slot(slot, memory.BYTES), 2**40),
    "an extent elsewhere": lambda memory, slot: memory.put64(memory.slot(slot, memory.OFFSET), 2**40),
    "a state that there is not": lambda memory, slot: memory.put64(memory.slot(slot, memory.TAG), 9),
    "a list that begins nowhere": lambda memory, slot: memory.put32(memory.FIRST_BY_ADDRESS, 12_345),
    "a list that begins too late": lambda memory, slot: memory.put32(memory.FIRST_BY_ADDRESS, NO_SLOT),
    "a fence above all epochs": lambda memory, slot: memory.put64(memory.FENCE, 2**50),
}


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("first", ["send", "recv"])
def test_a_damaged_channel_is_an_error_on_both_sides(kind, first):
    channel = dp.ShmChannel(4, 4 * KIB)
    other = attached_again(channel)
    channel.send(numbered(1), timeout=0)
    memory = Memory(channel)
    (slot,) = memory.used_slots()
    DAMAGES[kind](memory, slot)
    with refused(dp.ChannelDamaged, stage="ShmChannel", found="is damaged", allowed="only datapipes may write"):
        channel.send(numbered(1), timeout=0) if first == "send" else other.recv(timeout=0)
    assert_damaged(channel, other)


def test_who_waits_without_a_timeout_is_told_what_another_has_found():
    with dp.ShmChannel(4, 4 * KIB) as channel:
        waiting = in_thread(attached_again(channel).recv, None)
        memory = Memory(channel)
        memory.put32(memory.FIRST_BY_ADDRESS, 12_345)
        with pytest.raises(dp.ChannelDamaged):
            channel.send(numbered(1), timeout=0)
        with pytest.raises(dp.ChannelDamaged, match="an earlier call found"):
            waiting.result(BOUND_S)


def test_a_process_that_leaves_a_damaged_channel_ends_without_an_error():
    def damage() -> str:
        memory = Memory(channel)
        memory.put32(memory.FIRST_BY_ADDRESS, 12_345)
        with pytest.raises(dp.ChannelDamaged):
            channel.send(numbered(1), timeout=0)
        return "damaged"

    with dp.ShmChannel(4, 4 * KIB) as channel, Child(damage) as child:
        assert child.result() == "damaged"
        assert child.process.exitcode == 0
        with pytest.raises(dp.ChannelDamaged):
            channel.recv(timeout=None)


def test_received_tensors_stay_readable_when_the_channel_is_damaged():
    with dp.ShmChannel(4, 4 * KIB) as channel:
        channel.send(numbered(7), timeout=0)
        kept = channel.recv(timeout=0)
        memory = Memory(channel)
        memory.put32(memory.FIRST_BY_ADDRESS, 12_345)
        with pytest.raises(dp.ChannelDamaged):
            channel.stats() and channel.send(numbered(1), timeout=0)
    assert number_of(kept) == 7


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64])
def test_an_error_of_other_dtypes_than_text_is_still_an_error(dtype):
    with dp.ShmChannel(4, "64KB") as channel:
        parts = {name: torch.ones(3).to(dtype) for name in ("type", "module", "text", "traceback", "pid", "notes")}
        channel._shared.send(2, 0, parts, dp.channel.shm_channel.to_dlpack, dp.channel.shm_channel.plain, 0.0)
        with pytest.raises(dp.RemoteError):
            channel.recv(timeout=0)


@pytest.mark.parametrize("setting", soak_garbage.SETTINGS)
def test_garbage_at_random_crashes_nobody_and_nobody_waits_too_long(setting):
    total = soak_garbage.run(setting, runs=5, rng_seed=11)
    assert total.outcomes["runs"] == 5
    assert total.outcomes["ChannelDamaged"] > 0


def test_ids_that_change_while_they_are_used_are_refused_or_used():
    total = soak_garbage.run(soak_garbage.IDS, runs=2, rng_seed=11)
    for use in ("rows", "packed rows", "minibatch"):
        assert total.outcomes[f"{use} done"] + total.outcomes[f"{use} refused"] == 2 * soak_garbage.USES
