"""CopyTo and Prefetcher on a device that keeps its order: every read waits for what writes, and no source goes early.

The device is fake_device.py, which refuses a read that a real one would let pass by luck. Some tests break the order on
purpose, and the fake has to see it.
"""

import asyncio
import gc
import random

import pytest
import torch
from at_once import at_once
from fake_device import DeviceTensor, FakeCuda, OrderError, fake_cuda, in_slots, train
from pipelines import digests, fetched, refused
from slow_hetero import slow_sampled

import datapipes as dp
from datapipes.device import copy_to, handover

CUDA = torch.device("cuda", 0)


def consume(gpu: FakeCuda, chain: dp.Stage, rng_seed: int, num_streams: int = 3) -> list[str]:
    """Train on every minibatch, each on a stream of its own choice; return the digests that the model saw."""
    rng = random.Random(rng_seed)
    streams = [gpu.current_stream(CUDA), *(gpu.new_stream(CUDA) for _ in range(num_streams))]
    seen: list[str] = []
    minibatches = iter(chain)
    while True:
        stream = rng.choice(streams)
        with gpu.on(stream):
            minibatch = next(minibatches, None)
            if minibatch is None:
                break
            train(gpu, minibatch, seen)
            del minibatch
        if rng.random() < 0.3:
            stream.synchronize()
    gpu.synchronize()
    return seen


def slotted(gpu: FakeCuda, source: dp.Stage | None = None) -> dp.Stage:
    return (source or fetched()).transform(lambda minibatch: in_slots(gpu, minibatch))


class Waits(dp.MiniBatchTransformer):
    """An asynchronous stage that works with what it is given."""

    concurrency = 2
    draws = False

    async def transform_async(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        await asyncio.sleep(0)
        return doubled(minibatch)


CHAINS = {
    "plain": lambda gpu: fetched().copy_to("cuda"),
    "slots": lambda gpu: slotted(gpu).copy_to("cuda"),
    "waits": lambda gpu: slotted(gpu).copy_to("cuda", non_blocking=False),
    "ahead": lambda gpu: slotted(gpu).copy_to("cuda").prefetch(2),
    "twice": lambda gpu: slotted(gpu).copy_to("cuda:1").copy_to("cuda:0").prefetch(1),
    "there_already": lambda gpu: slotted(gpu).copy_to("cuda:0").copy_to("cuda"),
    "two_threads": lambda gpu: slotted(gpu).copy_to("cuda").prefetch(1).transform(doubled).prefetch(2),
    "and_back": lambda gpu: slotted(gpu).copy_to("cuda").copy_to("cpu"),
    "behind_a_loop": lambda gpu: Waits(slotted(gpu)).copy_to("cuda"),
    "in_a_loop": lambda gpu: Waits(slotted(gpu).copy_to("cuda")),
    "into_a_loop": lambda gpu: Waits(slotted(gpu).copy_to("cuda").prefetch(1)),
}


def doubled(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    """Compute twice what cancels, on the device."""
    feat = minibatch.node_features["feat"]
    return minibatch.replace(node_features={"feat": (feat * 2) / 2})


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("rng_seed", range(4))
def test_what_the_model_sees_are_the_bits_of_the_cpu(name, rng_seed):
    with fake_cuda(rng_seed=rng_seed, num_devices=2, haste=rng_seed / 3) as gpu:
        assert consume(gpu, CHAINS[name](gpu), rng_seed) == digests(fetched())
        gc.collect()
        assert gpu.registered == {} or name != "and_back"


def test_a_minibatch_that_is_made_again_behind_an_event_loop_is_waited_for():
    wanted = next(iter(fetched())).digest()
    with fake_cuda(haste=0.0) as gpu:
        loader = dp.DataLoader(Waits(slotted(gpu)).copy_to("cuda"))
        seen: list[str] = []
        with gpu.on(gpu.new_stream(CUDA)):
            train(gpu, loader.minibatch(0, 0), seen)
        gpu.synchronize()
        assert seen == [wanted]


def test_types_are_copied_too():
    with fake_cuda() as gpu:
        chain = slow_sampled().transform(lambda minibatch: in_slots(gpu, minibatch)).copy_to("cuda")
        assert consume(gpu, chain, 0) == digests(slow_sampled())


def test_a_tensor_that_stands_twice_is_copied_once():
    seeds = torch.arange(5)
    minibatch = dp.MiniBatch(seeds=seeds, labels=seeds.view(5), timestamps=seeds.clone())
    with fake_cuda():
        there = dp.CopyTo(fetched(), "cuda").transform(minibatch)
        assert there.seeds is there.labels
        assert there.timestamps is not there.seeds
        assert isinstance(there.seeds, DeviceTensor)


def test_a_conjugate_that_shares_memory_is_copied_for_itself():
    values = torch.randn(5, dtype=torch.complex64)
    minibatch = dp.MiniBatch(seeds=torch.arange(5), extra={"one": values, "other": values.conj()})
    with fake_cuda():
        there = dp.CopyTo(fetched(), "cuda").transform(minibatch)
        assert there.extra["one"] is not there.extra["other"]


def test_a_source_is_kept_until_its_copy_has_run():
    with fake_cuda(haste=0.0) as gpu:
        stage = dp.CopyTo(fetched(), "cuda")
        source = in_slots(gpu, next(iter(fetched())))
        copied = stage.transform(source)
        del source
        assert len(stage._kept._kept) == 1
        assert len(gpu.registered) > 0
        stage._finish()
        assert len(stage._kept._kept) == 0
        assert gpu.registered == {}
        del copied


@pytest.mark.parametrize("end", [lambda stage: stage.close(), lambda stage: stage._end_kept(), lambda stage: None])
def test_a_stage_that_ends_waits_for_its_copies(end):
    with fake_cuda(haste=0.0) as gpu:
        stage = dp.CopyTo(fetched(), "cuda")
        stage.transform(in_slots(gpu, next(iter(fetched()))))
        end(stage)
        del stage  # a stage that is collected, too
        gc.collect()
        assert gpu.registered == {}


def test_a_blocking_copy_keeps_nothing():
    with fake_cuda(haste=0.0) as gpu:
        stage = dp.CopyTo(fetched(), "cuda", non_blocking=False)
        stage.transform(in_slots(gpu, next(iter(fetched()))))
        assert len(stage._kept._kept) == 0
        assert gpu.registered == {}


def test_a_copy_that_fails_in_the_middle_waits_for_those_under_way(monkeypatch):
    with fake_cuda(haste=0.0) as gpu:
        left = [3]

        def empty(*args):
            left[0] -= 1
            if left[0] == 0:
                raise torch.OutOfMemoryError("no memory")
            return FakeCuda.empty(gpu, *args)

        monkeypatch.setattr(gpu, "empty", empty)
        stage = dp.CopyTo(fetched(), "cuda")
        with pytest.raises(torch.OutOfMemoryError):
            stage.transform(in_slots(gpu, next(iter(fetched()))))
        assert gpu.registered == {}


def test_many_minibatches_take_no_more_memory_of_the_device_than_a_few():
    with fake_cuda(haste=1.0) as gpu:
        chain = slotted(gpu).copy_to("cuda").prefetch(2)
        one = dp.CopyTo(fetched(), "cuda").transform(next(iter(fetched())))
        bytes_of_one = gpu.device_bytes
        for _ in range(20):
            for minibatch in chain:
                train(gpu, minibatch, [])
                gpu.synchronize()
        assert gpu.device_bytes <= 8 * bytes_of_one  # 1 kept here, 2 ready, 1 in the making, 1 trained, sizes that vary
        del one, minibatch
        assert len(gpu.streams) == 4  # the default one, one of each CopyTo, one of the thread


def test_the_device_is_the_current_one_of_whoever_iterates():
    with fake_cuda(num_devices=2) as gpu:
        chain = fetched().copy_to("cuda").prefetch(1)
        gpu.set_device(1)
        assert {tensor.device for tensor in handover.on_devices(next(iter(chain)))} == {torch.device("cuda", 1)}
        chain.close()


def test_a_device_that_is_not_there_is_refused():
    with fake_cuda(), refused(ValueError, stage="copy_to", found="'cuda:7'", allowed=r"cuda:0 \.\. cuda:0"):
        fetched().copy_to("cuda:7")


def test_a_forked_copy_of_the_stage_waits_for_nothing_of_its_parent(monkeypatch):
    with fake_cuda(haste=0.0) as gpu:
        stage = dp.CopyTo(fetched(), "cuda")
        stage.transform(in_slots(gpu, next(iter(fetched()))))
        with monkeypatch.context() as patch:
            patch.setattr(copy_to.os, "getpid", lambda: -1)
            stage._finish()
            assert len(stage._kept._kept) == 1  # these are the parent's
        stage._finish()
        assert len(stage._kept._kept) == 0


# --- orders that are broken on purpose


def no_wait(patch, gpu):
    patch.setattr("fake_device.FakeStream.wait_event", lambda stream, event: None)


def no_used_on(patch, gpu):
    patch.setattr(gpu, "used_on", lambda tensor, stream: None)


def source_not_kept(patch, gpu):
    patch.setattr(copy_to.KeptSources, "add", lambda kept, event, source: None)


def event_too_early(patch, gpu):
    early = []
    copied, now = copy_to._copied, copy_to.queued_now

    def copy(minibatch, device):
        early.append(now(device))
        return copied(minibatch, device)

    patch.setattr(copy_to, "_copied", copy)
    patch.setattr(copy_to, "queued_now", lambda device: early.pop())


def thread_without_handover(patch, gpu):
    patch.setattr("datapipes.loader.prefetcher.take", lambda minibatch, queued: None)


def loop_without_handover(patch, gpu):
    patch.setattr("datapipes.device.copy_to.take_from_loop", lambda minibatch: None)


def handover_to_a_loop_left_out(patch, gpu):
    patch.setattr("datapipes.device.copy_to.give_to_loop", lambda minibatch: None)


BROKEN = [
    loop_without_handover,
    handover_to_a_loop_left_out,
    no_wait,
    no_used_on,
    source_not_kept,
    event_too_early,
    thread_without_handover,
]


@pytest.mark.parametrize("break_it", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_order_is_seen(break_it):
    with pytest.raises(AssertionError):  # an OrderError, of a call or of `check`, or other digests
        run_broken(break_it)


def run_broken(break_it) -> None:
    for rng_seed in range(3):
        with pytest.MonkeyPatch.context() as patch, fake_cuda(rng_seed=rng_seed, haste=0.1) as gpu:
            break_it(patch, gpu)
            chain = slotted(gpu).copy_to("cuda").prefetch(2)
            chain = Waits(chain) if "loop" in break_it.__name__ else chain
            with chain:  # closed before another device takes the place of this one
                assert consume(gpu, chain, rng_seed) == digests(fetched())


# --- the fake itself


def test_the_fake_refuses_a_read_on_another_stream_and_grants_it_after_the_event():
    with fake_cuda(haste=0.0) as gpu:
        x = gpu.copy(torch.arange(6.0), CUDA, non_blocking=True)
        other = gpu.new_stream(CUDA)
        with gpu.on(other), pytest.raises(OrderError, match="does not wait for 'copy'"):
            x.sum()
        event = gpu.new_event()
        event.record(gpu.current_stream(CUDA))
        other.wait_event(event)
        with gpu.on(other):
            assert float(x.sum()) == 15.0
        gpu.problems.clear()


def test_the_fake_refuses_memory_that_nothing_has_written():
    with fake_cuda() as gpu:
        with pytest.raises(OrderError, match="nothing has written"):
            gpu.empty((3,), torch.float32, CUDA) + 1
        gpu.problems.clear()


def test_the_fake_recycles_memory_at_once_on_its_stream_and_later_for_others():
    with fake_cuda(haste=0.0) as gpu:
        x = gpu.copy(torch.arange(6.0), CUDA, non_blocking=True)
        address = x.data_ptr()
        del x
        y = gpu.copy(torch.arange(6.0), CUDA, non_blocking=True)
        assert y.data_ptr() == address
        other = gpu.new_stream(CUDA)
        gpu.used_on(y, other)
        with gpu.on(other):
            gpu.call(lambda: None)
        del y
        assert gpu.empty((6,), torch.float32, CUDA).data_ptr() != address
        gpu.synchronize()
        assert gpu.empty((6,), torch.float32, CUDA).data_ptr() == address


def test_the_fake_keeps_the_order_of_threads_that_share_it():
    with fake_cuda(rng_seed=2) as gpu:

        def work(_: int) -> float:
            with gpu.on(gpu.new_stream(CUDA)):
                x = gpu.copy(torch.ones(10), CUDA, non_blocking=True)
                for _ in range(20):
                    x = x + 1
                return float(x.sum())

        assert at_once(work, 4) == [210.0] * 4
