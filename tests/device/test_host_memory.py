"""Registration of host memory: each byte once, while an owner is left, never at exit nor in a forked child."""

import ctypes
import gc
import mmap
import random
import resource

import numpy as np
import pytest
import torch
from amounts import examples
from at_once import at_once
from fake_registration import NOT_SUPPORTED, FakeRegistration, in_forked_child, registering
from hypothesis import given
from hypothesis import strategies as st
from pipelines import refused
from scripts import run_fresh

from datapipes.base.checks import as_tensor
from datapipes.datasets.tfrecord.torch_memory import shared_empty
from datapipes.device import host_memory, runtime

PAGE = mmap.PAGESIZE
WHERE = "CSCGraph.pin_memory_"


@pytest.fixture
def fake(monkeypatch):
    yield from registering(monkeypatch)


def pages(count: int) -> torch.Tensor:
    """Return `count` pages of shared memory as bytes."""
    return shared_empty((count * PAGE,), torch.uint8, "test")


def segments(fake) -> list[tuple[int, int]]:
    return sorted((address, size) for address, (size, _) in fake.registered.items())


def test_bytes_are_registered_once_and_until_the_last_owner_is_gone(fake):
    memory = pages(4)
    begin = memory.data_ptr()
    first = host_memory.pin(WHERE, [memory[: 2 * PAGE]])
    assert segments(fake) == [(begin, 2 * PAGE)]
    second = host_memory.pin(WHERE, [memory[10 : PAGE + 1]])
    assert segments(fake) == [(begin, 2 * PAGE)]
    first.release()
    assert second.holds
    assert not first.holds
    assert segments(fake) == [(begin, 2 * PAGE)]
    second.release()
    second.release()
    assert segments(fake) == []
    assert fake.calls == ["register", "synchronize", "unregister"]


def test_only_bytes_that_are_not_registered_yet_are(fake):
    memory = pages(6)
    begin = memory.data_ptr()
    middle = host_memory.pin(WHERE, [memory[100:PAGE]])
    whole = host_memory.pin(WHERE, [memory])
    assert segments(fake) == [(begin, 100), (begin + 100, PAGE - 100), (begin + PAGE, 5 * PAGE)]
    middle.release()
    assert fake.covers(memory)
    assert whole.holds
    del whole


def test_tensors_that_overlap_or_have_only_padding_between_are_one_registration(fake):
    memory = pages(4)
    parts = [memory[:100], memory[163:300], memory[364 : PAGE + 1], memory[50:60], memory[PAGE:]]
    held = host_memory.pin(WHERE, parts)
    assert segments(fake) == [(memory.data_ptr(), 300), (memory.data_ptr() + 364, 4 * PAGE - 364)]
    held.release()


def test_what_lies_beside_a_tensor_in_its_pages_stays_as_it_is(fake):
    # CUDA refuses to copy memory that is registered in part.
    memory = pages(3)
    before, pinned, behind = memory[: PAGE + 64], memory[PAGE + 64 : PAGE + 128], memory[PAGE + 128 :]
    held = host_memory.pin(WHERE, [pinned])
    assert segments(fake) == [(pinned.data_ptr(), 64)]
    for beside in (before.data_ptr(), pinned.data_ptr() - 1, behind.data_ptr()):
        assert not fake.is_pinned(beside)
    assert not host_memory.is_locked_elsewhere(before)
    assert not host_memory.is_locked_elsewhere(behind)
    held.release()


def test_empty_tensors_and_rows_that_lie_apart_are_pinned_too(fake):
    memory = pages(4)
    rows = memory.view(-1, 1024)[::3, :8]
    held = host_memory.pin(WHERE, [torch.empty(0), rows, torch.empty(3, 0)])
    assert segments(fake) == [(memory.data_ptr(), 15 * 1024 + 8)]  # to the end of the last row
    held.release()
    assert host_memory.pin(WHERE, []).holds


def test_what_lies_in_memory_that_another_owner_keeps_stays_registered_with_it(fake):
    memory = torch.empty(3 * PAGE, dtype=torch.uint8)
    first, second = (host_memory.pin(WHERE, [part]) for part in (memory[:PAGE], memory[PAGE:]))
    del memory
    first.release()
    assert second.holds
    del second


def test_memory_is_let_go_after_it_was_unregistered(fake):
    memory = pages(2)
    weak = host_memory.Memory.of(memory).keep._weak_ref()
    held = host_memory.pin(WHERE, [memory])
    unregister = fake.unregister
    was_there = []

    def watched(address):
        was_there.append(not torch.UntypedStorage._expired(weak))
        return unregister(address)

    fake.unregister = watched
    del memory
    held.release()
    assert was_there == [True]
    assert torch.UntypedStorage._expired(weak)
    torch.UntypedStorage._free_weak_ref(weak)


def test_memory_that_torch_has_locked_is_held_and_not_registered(fake):
    memory = pages(2)
    fake.locked_by_torch.append((memory.data_ptr(), memory.nbytes))
    held = host_memory.pin(WHERE, [memory, memory[:10]])
    assert held.holds
    assert fake.registered == {}
    fake.reads(memory)
    del memory
    held.release()
    assert fake.calls == ["synchronize"]


def test_memory_that_torch_has_locked_in_part_is_refused(fake):
    memory = pages(2)
    fake.locked_by_torch.append((memory.data_ptr(), PAGE))
    fake.refuse = 712
    with refused(RuntimeError, stage=WHERE, found=f"{2 * PAGE} bytes.*712", allowed="all or none"):
        host_memory.pin(WHERE, [memory])


def test_pages_that_may_not_be_written_are_registered_read_only(fake, tmp_path):
    (tmp_path / "rows").write_bytes(bytes(3 * PAGE))
    mapped = {mode: np.memmap(tmp_path / "rows", np.uint8, mode) for mode in ("r", "c", "r+")}
    held = {mode: host_memory.pin(WHERE, [as_tensor("test", "rows", array)]) for mode, array in mapped.items()}
    flags = {mode: fake.registered[array.ctypes.data] for mode, array in mapped.items()}
    assert flags == {"r": (3 * PAGE, True), "c": (3 * PAGE, True), "r+": (3 * PAGE, False)}
    held.clear()


def test_a_file_that_nobody_may_hold_for_writing_is_registered_for_reading(fake, tmp_path):
    fake.refuses_to_write = 1
    (tmp_path / "rows").write_bytes(bytes(2 * PAGE))
    mapped = np.memmap(tmp_path / "rows", np.uint8, "r+")
    held = host_memory.pin(WHERE, [torch.from_numpy(mapped)])
    assert fake.registered == {mapped.ctypes.data: (2 * PAGE, True)}
    held.release()
    fake.refuses_read_only = NOT_SUPPORTED
    with refused(RuntimeError, stage=WHERE, found=f"{2 * PAGE} bytes.*error 1", allowed="leave pin_memory_ out"):
        host_memory.pin(WHERE, [torch.from_numpy(mapped)])


def test_pages_of_several_kinds_side_by_side_are_registered_apart(fake):
    memory = mmap.mmap(-1, 3 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    begin = tensor.data_ptr()
    protect(begin + PAGE, PAGE, mmap.PROT_READ)
    held = host_memory.pin(WHERE, [tensor])
    assert sorted(fake.registered.items()) == [
        (begin, (PAGE, False)),
        (begin + PAGE, (PAGE, True)),
        (begin + 2 * PAGE, (PAGE, False)),
    ]
    held.release()


def protect(address: int, num_bytes: int, mode: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), mode) == 0


@pytest.mark.parametrize("code", [NOT_SUPPORTED, 1])
def test_where_the_driver_locks_no_file_a_copy_on_write_mapping_is_copied_and_the_log_says_so(
    fake, tmp_path, caplog, code
):
    fake.refuses_read_only = code
    (tmp_path / "rows").write_bytes(bytes(2 * PAGE))
    mapped = np.memmap(tmp_path / "rows", np.uint8, "c")
    held = host_memory.pin(WHERE, [torch.from_numpy(mapped)])
    assert fake.registered == {mapped.ctypes.data: (2 * PAGE, False)}
    assert f"{2 * PAGE} bytes of it are copied" in caplog.text
    held.release()
    only_read = as_tensor("test", "rows", np.memmap(tmp_path / "rows", np.uint8, "r"))
    allowed = "copy-on-write" if code == NOT_SUPPORTED else "leave pin_memory_ out"
    with refused(RuntimeError, stage=WHERE, found=f"{2 * PAGE} bytes.*{code}", allowed=allowed):
        host_memory.pin(WHERE, [only_read])


@pytest.mark.parametrize(
    ("code", "limit", "error", "allowed"),
    [
        (2, PAGE, MemoryError, rf"limit of locked memory is {PAGE} bytes.*ulimit -l.*leave pin_memory_ out"),
        (304, PAGE, MemoryError, "ulimit -l"),
        (2, 2**40, RuntimeError, "cudaHostRegister.*leave pin_memory_ out"),
        (1, -1, RuntimeError, "cudaHostRegister"),
    ],
)
def test_a_refusal_undoes_what_was_registered_for_it(fake, monkeypatch, code, limit, error, allowed):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    memory, other = pages(2), pages(2)
    kept = host_memory.pin(WHERE, [memory[:PAGE]])
    before = segments(fake)
    fake.refuse, fake.refuse_after = code, 1
    with refused(error, stage=WHERE, found=rf"\d+ bytes.*error {code}", allowed=allowed):
        host_memory.pin(WHERE, [memory, other])
    assert segments(fake) == before
    assert kept.holds
    fake.refuse = 0
    host_memory.pin(WHERE, [memory, other]).release()
    assert segments(fake) == before
    kept.release()


def test_memory_that_moves_is_no_longer_pinned_and_what_takes_its_place_is_pinned_anew(fake):
    memory = torch.zeros(4 * PAGE, dtype=torch.uint8)
    held = host_memory.pin(WHERE, [memory])
    old = segments(fake)
    memory.share_memory_()  # as torch.multiprocessing does: the old memory is given back
    assert not held.holds
    assert segments(fake) == old
    array = np.frombuffer((ctypes.c_char * 1).from_address(old[0][0]), np.uint8)  # what lies there now
    again = host_memory.pin_range(WHERE, array.ctypes.data, 1, array, "no")
    assert segments(fake) == [(old[0][0], 1)]
    assert again.holds
    assert not held.holds
    new = host_memory.pin(WHERE, [memory])
    assert new.holds
    del held, again, new


def test_an_owner_that_shared_memory_with_memory_that_moved_does_not_hold(fake):
    memory = pages(1)
    moved = torch.zeros(PAGE, dtype=torch.uint8)
    both = host_memory.pin(WHERE, [moved])
    moved.share_memory_()
    host_memory._table._end_moved([host_memory.Memory(*segments(fake)[0][:1], segments(fake)[0][0] + 1, memory, 0)])
    assert not both.holds


def test_a_failed_gpu_and_a_failed_call_are_logged_and_the_memory_stays(fake, caplog, monkeypatch):
    memory = pages(1)
    weak = memory.untyped_storage()._weak_ref()
    held = host_memory.pin(WHERE, [memory])
    monkeypatch.setattr(fake, "synchronize", raising(RuntimeError("device-side assert")))
    monkeypatch.setattr(fake, "unregister", lambda address: fake.registered.pop(address)[0])
    del memory, held
    gc.collect()
    assert "device-side assert" in caplog.text
    assert f"did not unregister {PAGE} bytes" in caplog.text
    assert not torch.UntypedStorage._expired(weak)
    host_memory._table._never_freed.clear()
    torch.UntypedStorage._free_weak_ref(weak)


def raising(error):
    def call(*args):
        raise error

    return call


def test_the_garbage_collector_may_end_owners_inside_of_pin_and_of_a_release(fake, monkeypatch):
    memory = pages(8)
    garbage = [host_memory.pin(WHERE, [memory[n * PAGE : (n + 1) * PAGE]]) for n in range(8)]
    register, unregister = fake.register, fake.unregister

    def collect(call):
        def with_garbage(*args, **kwargs):
            if garbage:
                garbage.pop()
            return call(*args, **kwargs)

        return with_garbage

    monkeypatch.setattr(fake, "register", collect(register))
    monkeypatch.setattr(fake, "unregister", collect(unregister))
    other = pages(1)
    held = host_memory.pin(WHERE, [other])
    assert len(fake.registered) == len(garbage) + 1
    held.release()
    assert garbage == []
    assert fake.registered == {}


def test_pages_that_their_owner_leaves_while_another_pins_them_stay_registered(fake, monkeypatch):
    memory = pages(4)
    garbage = [host_memory.pin(WHERE, [memory[n * PAGE : (n + 1) * PAGE]]) for n in (1, 3)]
    register = fake.register

    def collect(*args, **kwargs):
        garbage.clear()
        return register(*args, **kwargs)

    monkeypatch.setattr(fake, "register", collect)
    held = host_memory.pin(WHERE, [memory])
    assert held.holds
    assert fake.covers(memory)
    held.release()


def test_a_pin_inside_of_a_pin_is_refused(fake, monkeypatch, refuses):
    register = fake.register

    def inner(*args, **kwargs):
        refuses(RuntimeError, host_memory.pin, WHERE, [torch.zeros(3)])
        return register(*args, **kwargs)

    monkeypatch.setattr(fake, "register", inner)
    host_memory.pin(WHERE, [pages(1)]).release()


def test_threads_may_pin_and_release_at_once(fake):
    memory = pages(16)

    def work(number: int) -> None:
        draw = random.Random(number)
        for _ in range(60):
            begin = draw.randrange(15 * PAGE)
            held = host_memory.pin(WHERE, [memory[begin : draw.randrange(begin + 1, 16 * PAGE + 1)]])
            assert held.holds
            if draw.random() < 0.5:
                held.release()
            del held

    at_once(work, 4)
    assert fake.registered == {}


COMMANDS = st.one_of(
    st.tuples(st.just("pin"), st.integers(0, 2), st.integers(0, 5 * PAGE), st.integers(1, 3 * PAGE)),
    st.tuples(st.sampled_from(["release", "collect", "read", "again"]), st.integers(0, 8)),
    st.tuples(st.sampled_from(["fork", "drop"]), st.integers(0, 2)),
)


@examples(60)
@given(st.lists(COMMANDS, max_size=24))
def test_any_sequence_keeps_the_memory_of_every_owner_and_of_no_other(commands):
    """Pins of overlapping ranges of three memories, by several owners, in any order; memories may be dropped by all but
    their owners, and forked children end with all they have."""
    fake, before = FakeRegistration(), runtime._current
    runtime._current = fake
    try:
        memories = {number: pages(6) for number in range(3)}
        owned = []  # (owner, tensor)
        for name, *numbers in commands:
            if name == "pin" and numbers[0] in memories:
                tensor = memories[numbers[0]][numbers[1] : numbers[1] + numbers[2]]
                owned.append((host_memory.pin(WHERE, [tensor]), tensor))
            elif name == "drop":
                memories.pop(numbers[0], None)
            elif name == "fork" and numbers[0] == 0:
                assert in_forked_child(lambda: (owned.clear(), gc.collect(), fake.calls.count("unregister"))[2]) == (
                    fake.calls.count("unregister")
                )
            elif name in ("release", "collect", "read", "again") and numbers[0] < len(owned):
                held, tensor = owned[numbers[0]]
                if name == "read" and held.holds:
                    fake.reads(tensor)
                elif name == "again":
                    owned.append((host_memory.pin(WHERE, [tensor]), tensor))
                elif name == "release":
                    held.release()
                    held.release()
                elif name == "collect":
                    del owned[numbers[0]]
                del held, tensor
            assert fake.faults == []
            assert all(fake.covers(tensor) for held, tensor in owned if held.holds)
            if not any(held.holds for held, _ in owned):
                assert fake.registered == {}
        owned.clear()
        assert (fake.registered, fake.faults) == ({}, [])
        assert fake.calls.count("register") == fake.calls.count("unregister")
    finally:
        runtime._current = before


def test_a_forked_child_has_nothing_pinned_and_unregisters_nothing(fake):
    memory = pages(2)
    held = host_memory.pin(WHERE, [memory])
    assert in_forked_child(lambda: held.holds) == 0
    assert in_forked_child(lambda: (held.release(), len(fake.registered))[1]) == 1
    assert in_forked_child(lambda: len(host_memory._table.segments)) == 0

    def pins_anew():
        fake.registered.clear()  # CUDA knows nothing there
        mine = host_memory.pin(WHERE, [memory])
        found = mine.holds, len(fake.registered)
        mine.release()
        return found == (True, 1) and fake.registered == {} and fake.faults == []

    assert in_forked_child(pins_anew) == 1
    assert held.holds
    held.release()


EXIT = """
import sys, threading, torch
from fake_registration import FakeRegistration
from datapipes.device import host_memory, runtime

class Told(FakeRegistration):
    def synchronize(self): print("synchronized", flush=True)
    def unregister(self, address): print("unregistered", flush=True); return super().unregister(address)

runtime._current = Told()
kept = host_memory.pin("here", [torch.zeros(5000)])
class Cycle: pass
cycle = Cycle(); cycle.me = cycle; cycle.held = host_memory.pin("here", [torch.zeros(9000)])
print("pinned", len(runtime._current.registered), flush=True)
"""


def test_nothing_is_unregistered_at_exit():
    child = run_fresh(EXIT)
    assert (child.returncode, child.stdout, child.stderr) == (0, "pinned 2\n", "")
