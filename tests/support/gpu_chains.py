"""Chains at random that copy to a GPU, run on the fake device (fake_device.py) and compared with the CPU.

What is drawn: where features lie and how they are stored, fetches before and behind the copy, a second GPU, slots that
are reused, Prefetchers, stages of the user's (asynchronous ones too), the options of the loader, and a consumer: slow
or fast, on several streams, in one thread or two. The model sees the bits of the CPU, whatever runs where and when.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import random
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from fake_device import FakeCuda, fake_cuda, in_slots, train
from pipelines import NUM_NODES, items, keep_most, refused, sampled

import datapipes as dp
from datapipes.channel import pinning

CUDA = torch.device("cuda", 0)
NUM_EDGES = 200
BOUND_S = 60.0  # longest wait for a minibatch

IN_HOST = ["plain", "float16", "bfloat16", "int8"]
PINNED = ["pinned", "pinned padded", "pinned sorted", "pinned float16", "pinned int8"]
ON_GPU = [*PINNED, "device", "device bfloat16", "device int8"]
LOADERS = {
    "none": None,
    "overlap": {},
    "no overlap": {"overlap": False},
    "two threads": {"num_workers": 2},
    "two threads, no overlap": {"num_workers": 2, "overlap": False},
    "two threads out of order": {"num_workers": 2, "in_order": False},
    "one thread": {"num_workers": 1},
    "threads that copy": {"num_workers": 2, "cut": "end"},
    "processes": {"num_workers": 2, "worker_method": "process", "multiprocessing_context": "fork", "shm_size": "64KB"},
}
Drawn = dict[str, Any]


def draw(rng: random.Random, loader: str | None = None) -> Drawn:
    """Return what a chain is made of; all of it may stand together."""
    loader = loader or rng.choice([name for name in LOADERS if name != "processes"])
    has_workers = "num_workers" in (LOADERS[loader] or {})
    fetch_first = rng.random() < 0.5
    places = ["start", "middle", "end"] if not has_workers else ["middle", "end"]
    slots = ["before", "between"] if fetch_first else ["before"]
    if loader == "processes":
        slots.remove("before")  # these slots are in this process
    drawn = {
        "loader": loader,
        "fetch_first": fetch_first,
        "two_fetches": rng.random() < 0.3,
        "two_gpus": rng.random() < 0.15,
        "slots": rng.choice(["none", *slots]),
        "prefetch": "none" if loader == "threads that copy" else rng.choice(["none", "none", *places]),
        "device": rng.choice(["cuda", "cuda:0"]),
        "non_blocking": rng.random() < 0.8,
        "drops": rng.random() < 0.2,
        "awaits": rng.random() < 0.15 and loader != "threads that copy",
        "own_stage": rng.random() < 0.4,
        "behind": rng.choice(["nothing", "nothing", "a stage", "a thread"]),
        "padded": rng.random() < 0.3,
        "stops_early": rng.random() < 0.2,
    }
    kinds = ON_GPU if not fetch_first or rng.random() < 0.4 else IN_HOST + PINNED
    drawn["kinds"] = {name: rng.choice(kinds) for name in ("feat", "weight")}
    for name, kind in drawn["kinds"].items():
        if "device" in kind and ((drawn["two_gpus"] and fetch_first) or name not in read_behind(drawn)):
            drawn["kinds"][name] = "pinned"
    return drawn


def read_behind(drawn: Drawn) -> list[str]:
    """Return the features that are to be read with ids on the GPU."""
    names = ["feat", "weight"]
    if not drawn["fetch_first"]:
        return names
    if drawn["loader"] in ("none", "threads that copy") or drawn["slots"] == "between" or drawn["prefetch"] == "middle":
        return []
    found: list[str] = []
    for fetched in (["weight"], ["feat"]) if drawn["two_fetches"] else (names,):  # the last one first
        if any(drawn["kinds"][name] in IN_HOST for name in fetched):
            break
        found += fetched
    return found


# --- the chain


def table(rows: torch.Tensor, kind: str, gpu: FakeCuda | None) -> dp.TensorFeature:
    """A feature "plain" or stored as it is named; with "pinned" page-locked, with "device" on the GPU."""
    dtype = next((name for name in ("bfloat16", "float16", "int8") if name in kind), None)
    if gpu is not None and "device" in kind:
        return dp.TensorFeature(gpu.copy(rows, CUDA, non_blocking=False), stored_as=dtype)
    feature = dp.TensorFeature(rows, stored_as=dtype)
    if gpu is not None and "pinned" in kind:
        feature.pin_memory_(pad_rows="padded" in kind, sort_ids="sorted" in kind)
    return feature


class Awaits(dp.MiniBatchTransformer):
    """An asynchronous stage of the user's."""

    concurrency = 2
    draws = False

    async def transform_async(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        await asyncio.sleep(0)
        return minibatch.replace()


def with_bias(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    """A stage of the user's, with work of its own on the device."""
    features = minibatch.node_features
    return minibatch.replace(node_features={**features, "bias": features["feat"] * 2})


def built(drawn: Drawn, gpu: FakeCuda | None) -> dp.Stage:
    """Return the chain; without `gpu` the same chain on the CPU."""
    feat = torch.sin(torch.arange(3.0 * NUM_NODES)).reshape(NUM_NODES, 3)
    weight = torch.cos(torch.arange(float(NUM_EDGES)))
    store = dp.FeatureStore(
        {
            ("node", None, "feat"): table(feat, drawn["kinds"]["feat"], gpu),
            ("edge", None, "weight"): table(weight, drawn["kinds"]["weight"], gpu),
        }
    )

    def fetched(chain: dp.Stage) -> dp.Stage:
        if drawn["two_fetches"]:
            return chain.fetch_feature(store, ["feat"]).fetch_feature(store, None, ["weight"])
        return chain.fetch_feature(store, ["feat"], ["weight"])

    def copied(chain: dp.Stage) -> dp.Stage:
        if gpu is None:
            return chain
        chain = chain.copy_to("cuda:1") if drawn["two_gpus"] else chain
        return chain.copy_to(drawn["device"], non_blocking=drawn["non_blocking"])

    def slotted(chain: dp.Stage, place: str) -> dp.Stage:
        here = gpu is not None and drawn["slots"] == place
        return chain.transform(lambda minibatch: in_slots(gpu, minibatch)) if here else chain

    def ahead(chain: dp.Stage, place: str) -> dp.Stage:
        return chain.prefetch(1) if drawn["prefetch"] == place and gpu is not None else chain

    chain: dp.Stage = sampled(items(num_items=10), fanouts=[3])  # three minibatches
    chain = chain.transform(keep_most) if drawn["drops"] else chain
    chain = chain.pad([{"seeds": 5, "nodes": [5, 13], "edges": [13]}]) if drawn["padded"] else chain
    chain = Awaits(chain) if drawn["awaits"] else chain
    chain = ahead(slotted(chain, "before"), "start")
    if drawn["fetch_first"]:
        chain = copied(ahead(slotted(fetched(chain), "between"), "middle"))
    else:
        chain = fetched(ahead(copied(chain), "middle"))
    return ahead(chain.transform(with_bias) if drawn["own_stage"] else chain, "end")


def loaded(drawn: Drawn, chain: dp.Stage, max_uva_threads: int) -> dp.Stage:
    options = LOADERS[drawn["loader"]]
    if options is None:
        return chain
    options = (
        {"worker_method": "thread", "persistent_workers": False, **options} if options.get("num_workers") else options
    )
    by_uva = any("pinned" in drawn["kinds"][name] for name in read_behind(drawn))
    if by_uva:
        return dp.DataLoader(chain, max_uva_threads=max_uva_threads, **options)
    if max_uva_threads == 1 and options.get("num_workers"):  # looked at now and then
        with refused(ValueError, stage="data_loader", found="max_uva_threads is 1,", allowed="allowed: 10240"):
            dp.DataLoader(chain, max_uva_threads=1, **options)
    return dp.DataLoader(chain, **options)


def followed(drawn: Drawn, chain: dp.Stage) -> dp.Stage:
    """Return the chain with a stage behind the loader, if there is to be one."""
    if drawn["behind"] == "nothing":
        return chain
    return chain.transform(lambda minibatch: minibatch.replace(extra={"twice": minibatch.seeds * 2}))


# --- the consumer


def consumed(gpu: FakeCuda, chain: dp.Stage, rng: random.Random, most: int | None = None) -> list[str]:
    """Train on each minibatch, on a stream and in a thread at random; return the digests that the model saw."""
    seen: list[str] = []
    streams = [gpu.current_stream(CUDA), gpu.new_stream(CUDA), gpu.new_stream(CUDA)][: rng.randint(1, 3)]
    laziness = rng.choice([0.0, 0.4, 1.0])
    minibatches = iter(chain)

    def step() -> bool:
        stream = rng.choice(streams)
        with gpu.on(stream):
            minibatch = next(minibatches, None)
            if minibatch is None:
                return False
            train(gpu, minibatch, seen)
            del minibatch
        if rng.random() >= laziness:
            stream.synchronize()
        return True

    with ExitStack() as ends:
        threads = [ends.enter_context(ThreadPoolExecutor(1)) for _ in range(rng.randint(1, 2))]
        while rng.choice(threads).submit(step).result(BOUND_S):
            if len(seen) == most:
                break
    gpu.synchronize()
    return seen


def watch_slots(patch: pytest.MonkeyPatch, gpu: FakeCuda) -> None:
    """Have the fake say so if a slot of a channel is given back before the copy from it has run."""
    given_back = pinning.Pinning._let_go

    class Watched:
        def __init__(self, shared: Any) -> None:
            self._shared = shared

        def __getattr__(self, name: str) -> Any:
            return getattr(self._shared, name)

        def let_go(self, slots: list[int]) -> None:
            address, num_bytes = self._shared.memory
            memory = (ctypes.c_ubyte * num_bytes).from_address(address)
            _, first_slot, data, _ = struct.unpack_from("<4Q", memory, 24)  # csrc/shm/state.h
            for slot in slots:
                offset, size = struct.unpack_from("<2Q", memory, first_slot + 64 * slot + 16)
                gpu.slots_freed += 1
                if gpu.reads_of_host(address + data + offset, size):
                    gpu.problems.append("a slot of the channel was given back before the copy from it has run")
            self._shared.let_go(slots)

    def let_go(self: Any, wait: bool) -> None:
        if not isinstance(self._shared, Watched):
            self._shared = Watched(self._shared)
        given_back(self, wait)

    patch.setattr(pinning.Pinning, "_let_go", let_go)


# --- one run


def run(
    number: int, loader_name: str | None = None, break_it: Callable[[pytest.MonkeyPatch], None] | None = None
) -> FakeCuda:
    """Run a chain at random, and check what the model saw and that nothing is left; return the device."""
    rng = random.Random(number)
    drawn = draw(rng, loader_name)
    haste, max_uva_threads = rng.choice([0.0, 0.3, 1.0]), rng.choice([1, 64, 10240])
    haste = haste if break_it is None else 0.0  # what comes too early comes long before the work that it waits for
    wanted = [minibatch.digest() for minibatch in followed(drawn, built(drawn, None))]
    with (
        pytest.MonkeyPatch.context() as patch,
        fake_cuda(rng_seed=number, num_devices=2, haste=haste, interprets=number % 50 == 0) as gpu,
    ):
        if break_it is not None:
            break_it(patch)
        watch_slots(patch, gpu)
        loader = loaded(drawn, built(drawn, gpu), max_uva_threads)
        chain = followed(drawn, loader)
        chain = chain.prefetch(1) if drawn["behind"] == "a thread" else chain
        in_order = "out of order" not in drawn["loader"]
        try:
            if drawn["stops_early"]:
                (first,) = consumed(gpu, chain, rng, most=1)
                assert first in (wanted[:1] if in_order else wanted), drawn
                chain.set_epoch(0)
            seen = consumed(gpu, chain, rng)
            assert (seen if in_order else sorted(seen)) == (wanted if in_order else sorted(wanted)), drawn
            if isinstance(chain, dp.DataLoader):
                with gpu.on(gpu.new_stream(CUDA)):
                    assert chain.minibatch(0, 1).to("cpu").digest() == wanted[1], drawn
        finally:
            chain.close()
        del chain, loader
        gc.collect()
        gpu.synchronize()
        assert gpu.registered == {}, drawn
    return gpu
