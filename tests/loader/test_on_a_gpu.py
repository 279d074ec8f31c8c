"""Long runs on a GPU: nothing grows, and what arrives there has the bits of the CPU."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache

import pytest
import strategies
import torch
from pipelines import small_graph, small_store

import datapipes as dp
from datapipes.device import host_memory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICE = "cuda"
NUM_FULL = 200
FULL_NODES = 50_000
SLACK_BYTES = 2**22  # two of the pieces in which torch takes memory; a leak of every minibatch is ten times as much


def memory_in_use() -> dict[str, int]:
    """Return the bytes of the GPU and of page-locked memory that this process has taken."""
    torch.cuda.synchronize()
    of_torch = getattr(torch.cuda, "host_memory_stats", dict)()  # torch 2.6 or newer
    return {
        "device, reserved": torch.cuda.memory_reserved(),
        "device, allocated": torch.cuda.memory_allocated(),
        "registered": sum(segment.num_bytes for segment in host_memory._table.segments),
        **{name: value for name, value in of_torch.items() if name.endswith("bytes.current")},
    }


@pytest.mark.parametrize("pinned", [False, True], ids=["fetched_on_the_cpu", "uva"])
def test_10_000_small_minibatches_through_a_pinned_channel_and_the_side_stream_show_no_growth(pinned):
    store = small_store().pin_memory_() if pinned else small_store()
    items = dp.ItemSampler(dp.ItemSet(torch.arange(40_000) % 40), 4, shuffle=True, seed=1)
    chain = items.sample_neighbor(small_graph(), [3, 2]).fetch_feature(store, ["feat"]).copy_to(DEVICE)
    total = torch.zeros((), device=DEVICE)
    seen = {}
    with dp.DataLoader(chain, 2) as loader:
        for number, minibatch in enumerate(loader, start=1):
            total += minibatch.node_features["feat"].sum()
            if number in (2_000, 10_000):
                seen[number] = memory_in_use()
    growth = {name: seen[10_000][name] - before for name, before in seen[2_000].items()}
    assert {name: grown for name, grown in growth.items() if grown > SLACK_BYTES} == {}
    assert total.isfinite()


# --- full minibatches


@cache
def full_graph() -> dp.CSCGraph:
    return dp.CSCGraph(*strategies.random_graph(FULL_NODES, 1_000_000, rng_seed=3))


def rows() -> torch.Tensor:
    return torch.randn(FULL_NODES, 25, generator=torch.Generator().manual_seed(2))


def full_sampled() -> dp.Stage:
    items = dp.ItemSampler(dp.ItemSet(torch.arange(1024 * NUM_FULL) % FULL_NODES), 1024, shuffle=True, seed=7)
    return items.sample_neighbor(full_graph(), [15, 10, 5])


def store_of(feature: dp.TensorFeature) -> dp.FeatureStore:
    return dp.FeatureStore({("node", None, "feat"): feature})


@cache
def digests_of_the_cpu(stored_as: str | None) -> list[str]:
    with dp.DataLoader(fetched_first(dp.TensorFeature(rows(), stored_as=stored_as)), 4) as loader:
        return [minibatch.digest() for minibatch in loader]


def fetched_first(feature: dp.TensorFeature) -> dp.Stage:
    return full_sampled().fetch_feature(store_of(feature), ["feat"])


def copied_first(feature: dp.TensorFeature) -> dp.Stage:
    return full_sampled().copy_to(DEVICE).fetch_feature(store_of(feature), ["feat"])


Chain = Callable[[str | None], dp.Stage]
CHAINS: dict[str, Chain] = {
    "fetched on the CPU": lambda stored: fetched_first(dp.TensorFeature(rows(), stored_as=stored)).copy_to(DEVICE),
    "uva": lambda stored: copied_first(dp.TensorFeature(rows(), stored_as=stored).pin_memory_()),
    "uva, padded and sorted": lambda stored: copied_first(
        dp.TensorFeature(rows(), stored_as=stored).pin_memory_(pad_rows=True, sort_ids=True)
    ),
    "features on the GPU": lambda stored: copied_first(dp.TensorFeature(rows().to(DEVICE), stored_as=stored)),
}


@pytest.mark.parametrize(
    ("chain", "stored_as"),
    [
        ("fetched on the CPU", None),
        ("fetched on the CPU", "float16"),
        ("uva", None),
        ("uva", "int8"),
        ("uva, padded and sorted", "float16"),
        ("features on the GPU", None),
    ],
)
def test_200_full_minibatches_have_the_digests_of_the_cpu(chain, stored_as):
    with dp.DataLoader(CHAINS[chain](stored_as), 4) as loader:
        found = [minibatch.digest() for minibatch in on_another_stream(loader)]
    assert len(found) == NUM_FULL
    assert found == digests_of_the_cpu(stored_as)


def on_another_stream(loader: dp.DataLoader) -> Iterator[dp.MiniBatch]:
    """Yield the minibatches while a stream is current that is not the default one."""
    context = torch.cuda.stream(torch.cuda.Stream()) if DEVICE == "cuda" else nullcontext()
    with context:
        yield from loader
