"""200 chains at random that copy to a GPU, on the fake device, and orders that are broken on purpose; gpu_chains.py."""

import gc
import random
import threading

import pytest
from amounts import ranked
from fake_device import FakeCuda, FakeStream
from gpu_chains import draw, run
from plain_cuda import needs_interpreter

from datapipes.channel import pinning
from datapipes.device import copy_to, handover, runtime
from datapipes.device.copy_to import KeptSources

pytest.importorskip("triton")
pytestmark = needs_interpreter


@pytest.mark.parametrize("part", ranked(range(20), 4))
def test_random_chains_give_the_bits_of_the_cpu(part):
    for number in range(10 * part, 10 * part + 10):
        run(number)


def test_chains_from_worker_processes_give_them_too_and_each_slot_is_kept_until_its_copy_has_run():
    assert sum(run(number, "processes").slots_freed for number in range(6)) >= 6


# --- orders that are broken on purpose


def no_wait_for_an_event(patch):
    patch.setattr(FakeStream, "wait_event", lambda stream, event: None)


def memory_recycled_while_another_stream_uses_it(patch):
    patch.setattr(FakeCuda, "used_on", lambda gpu, tensor, stream: None)


def sources_not_kept(patch):
    patch.setattr(KeptSources, "add", lambda kept, event, source: None)


def event_of_a_copy_too_early(patch):
    here = threading.local()
    copied, now = copy_to._copied, copy_to.queued_now

    def copy(minibatch, device):
        here.early = now(device)
        return copied(minibatch, device)

    patch.setattr(copy_to, "_copied", copy)
    patch.setattr(copy_to, "queued_now", lambda device: here.early)


def event_of_a_thread_too_early(patch):
    def leave(minibatch):
        return [left._replace(event=runtime.cuda().new_event()) for left in handover.leave(minibatch)]

    patch.setattr("datapipes.loader.prefetcher.leave", leave)


def no_handover_from_a_thread(patch):
    patch.setattr("datapipes.loader.prefetcher.take", lambda minibatch, queued: None)


def no_handover_from_a_worker(patch):
    patch.setattr("datapipes.loader.workers.thread_pool.take", lambda minibatch, queued: None)


def no_handover_from_a_copy(patch):
    patch.setattr(copy_to, "take", lambda minibatch, queued: None)


def slots_given_back_at_once(patch):
    sources_not_kept(patch)
    patch.setattr(pinning.Pinning, "_let_go", lambda self, wait: self._shared.let_go(self._shared.dropped_slots()))


# Each with the loader in which it matters; None for any.
BROKEN = {
    no_wait_for_an_event: None,
    memory_recycled_while_another_stream_uses_it: None,
    sources_not_kept: None,
    event_of_a_copy_too_early: None,
    event_of_a_thread_too_early: "overlap",
    no_handover_from_a_thread: "overlap",
    no_handover_from_a_worker: "threads that copy",
    no_handover_from_a_copy: None,
    slots_given_back_at_once: "processes",
}


@pytest.mark.parametrize("break_it", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_order_is_seen(break_it, monkeypatch):
    monkeypatch.setattr(runtime, "_current", FakeCuda(num_devices=2))  # for what is collected late
    with pytest.raises((AssertionError, IndexError)):  # an OrderError, other digests, or ids that are garbage
        run_many(BROKEN[break_it], break_it)
    gc.collect()


def run_many(loader, break_it):
    for number in range(40):
        run(number, loader, break_it)


def test_all_that_is_drawn_comes_up():
    drawn = [draw(random.Random(number)) for number in range(200)]
    for name in drawn[0].keys() - {"kinds"}:
        assert len({each[name] for each in drawn}) >= 2, name
    assert {kind for each in drawn for kind in each["kinds"].values()} >= {"plain", "int8", "pinned", "device"}
