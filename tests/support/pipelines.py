"""Small graphs, chains and checks for the stage tests. Child processes import this module too."""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import strategies
import torch
import typed_pipelines

import datapipes as dp

NUM_NODES = 40
NUM_ITEMS = 22
BATCH_SIZE = 4  # six minibatches, the last one shorter
PREFETCH_THREAD = "datapipes-prefetch-"  # and a number
BOUND_S = 60.0  # longest wait for an event that should happen at once: on a busy machine a process takes long to start


# --- graphs and features


def graph_of(columns: list[list[int]], **arguments) -> dp.CSCGraph:
    """The graph in which node v has the in-edges `columns[v]`."""
    return dp.CSCGraph(*strategies.graph_of(columns), **arguments)


def small_graph(dtype: torch.dtype = torch.int64, *, with_edge_ids: bool = True) -> dp.CSCGraph:
    """40 nodes of uneven degree and 200 edges; the edge ids are not the positions."""
    indptr, indices = strategies.random_graph(NUM_NODES, 200, rng_seed=1)
    edge_ids = np.random.default_rng(2).permutation(len(indices)) if with_edge_ids else None
    return dp.CSCGraph(indptr, indices, edge_ids=edge_ids).with_index_dtype(dtype)


def small_store(num_nodes: int = NUM_NODES, num_edges: int = 200) -> dp.FeatureStore:
    """Node feature "feat", float32 [num_nodes, 3]; edge feature "weight", float16 [num_edges]."""
    feat = torch.arange(3.0 * num_nodes).reshape(num_nodes, 3)
    weight = torch.arange(num_edges).half()
    return dp.FeatureStore(
        {("node", None, "feat"): dp.TensorFeature(feat), ("edge", None, "weight"): dp.TensorFeature(weight)}
    )


# --- chains


def item_set(num_items: int = NUM_ITEMS) -> dp.ItemSet:
    seeds = torch.arange(num_items) * 7 % NUM_NODES
    return dp.ItemSet((seeds, torch.arange(num_items).float()))


def items(num_items: int = NUM_ITEMS, batch_size: int = BATCH_SIZE, **arguments) -> dp.ItemSampler:
    return dp.ItemSampler(item_set(num_items), batch_size, **{"shuffle": True, "seed": 5, **arguments})


def sampled(source: dp.Stage | None = None, graph: dp.CSCGraph | None = None, **arguments) -> dp.NeighborSampler:
    arguments = {"fanouts": [3, 2], "return_edge_ids": True, **arguments}
    return (source or items()).sample_neighbor(graph or small_graph(), **arguments)


def fetched(source: dp.Stage | None = None) -> dp.FeatureFetcher:
    return (source or sampled()).fetch_feature(small_store(), ["feat"], ["weight"])


def walked_and_ranked(source: dp.Stage, graph: Any) -> dp.Stage:
    """Walks of node2vec, then the nodes with the largest PageRank, and the edges among them."""
    pipe = source.sample_random_walk(graph, 3, walks_per_node=2, p=0.5, q=2.0)
    return pipe.sample_ppr(graph, 5, eps=1e-3, subgraph_type="induced")


def full_minibatch() -> dp.MiniBatch:
    """A minibatch with every field set."""
    minibatch = next(iter(fetched()))
    num_seeds, num_nodes = len(minibatch.seeds), len(minibatch.input_nodes)
    return minibatch.replace(
        indexes=torch.arange(num_seeds), timestamps=torch.arange(num_seeds) * 10, batch=torch.zeros(num_nodes).long()
    )


def keep_most(minibatch: dp.MiniBatch) -> dp.MiniBatch | None:
    """Drop minibatch 2."""
    return None if minibatch.index == 2 else minibatch


def as_it_is(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    return minibatch.replace()


def distributed_chain() -> dp.Stage:
    return fetched(sampled(dp.DistributedItemSampler(item_set(), 4, rank=1, world_size=2, shuffle=True, seed=5)))


# The contract suite runs over these, and over a chain that ends in each registered stage (contract.py).
BUILDERS: dict[str, Callable[[], dp.Stage]] = {
    "item_sampler": items,
    "distributed_item_sampler": distributed_chain,
    "data_loader": lambda: dp.DataLoader(fetched()),
    "data_loader_without_overlap": lambda: dp.DataLoader(fetched(), overlap=False),
    "data_loader_threads": lambda: dp.DataLoader(fetched(), 2, worker_method="thread"),
    "data_loader_processes": lambda: dp.DataLoader(fetched(), 2, multiprocessing_context="fork"),
    "data_loader_out_of_order": lambda: dp.DataLoader(fetched(), 1, worker_method="thread", in_order=False),
    "types": typed_pipelines.typed_fetched,
    "links_of_types": typed_pipelines.typed_links,
    "types_in_processes": lambda: dp.DataLoader(typed_pipelines.typed_fetched(), 2, multiprocessing_context="fork"),
    "stages_after_a_loader": lambda: dp.DataLoader(sampled().prefetch()).transform(keep_most).copy_to("cpu"),
}


DROPS = {"stages_after_a_loader": 1}  # minibatches an epoch, by builder


def digests(minibatches) -> list[str]:
    return [minibatch.digest() for minibatch in minibatches]


def first(stage: dp.Stage) -> dp.MiniBatch:
    return next(iter(stage))


def start_at(stage: dp.Stage, epoch: int) -> Iterator[dp.MiniBatch]:
    stage.set_epoch(epoch)
    return iter(stage)


# --- checks


def assert_states_move(pipes: Callable[[], list[dp.Stage]]) -> None:
    """Check that chains, which are built anew by each call, go on where any of them stopped after two minibatches."""
    expected = digests(pipes()[0])
    for saved in pipes():
        running = iter(saved)
        next(running), next(running)
        for resumed in pipes():
            resumed.load_state_dict(saved.state_dict())
            assert digests(resumed) == expected[2:]


def assert_states_are_apart(chains: list[dp.Stage]) -> None:
    """Check that the state of each chain loads into none of the others."""
    for i, saved in enumerate(chains):
        next(iter(saved))
        for other in chains[:i] + chains[i + 1 :]:
            with pytest.raises(ValueError, match="pipeline"):
                other.load_state_dict(saved.state_dict())


def assert_no_bit_changes(chain: Callable[[], dp.Stage]) -> list[str]:
    """Check that a chain makes the same with 2 and 7 threads, and in 2 processes; return the digests."""
    expected = digests(chain())
    for threads in (2, 7):
        torch.set_num_threads(threads)
        try:
            assert digests(chain()) == expected
        finally:
            torch.set_num_threads(1)
    with dp.DataLoader(chain(), 2, multiprocessing_context="fork") as loader:
        assert digests(loader) == expected
    return expected


@contextmanager
def refused(error: type[Exception], *, stage: str, found: str, allowed: str, remedy: str = r"\. [A-Z]\w+"):
    """Expect an error whose text names the stage and says what was found, what is allowed and what to do."""
    with pytest.raises(error) as caught:
        yield caught
    text = str(caught.value)
    for part, pattern in {"stage": stage, "found": found, "allowed": allowed, "remedy": remedy}.items():
        assert re.search(pattern, text), f"the error does not say {part} ({pattern}): {text}"


def ended(call: Callable[[], object], fifo: Path) -> list[BaseException | object]:
    """Return what a call gave or raised; nothing if it waits for a writer of `fifo`, which then lets it go."""
    outcome: list[BaseException | object] = []

    def run() -> None:
        try:
            outcome.append(call())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(BOUND_S)
    if thread.is_alive():
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        thread.join(BOUND_S)
        outcome.clear()
    return outcome


def wait_until(happens: Callable[[], bool], otherwise: str = "it did not happen") -> None:
    """Wait until `happens()`, for what can only be looked at; after BOUND_S seconds fail, with `otherwise` as text."""
    ends = time.monotonic() + BOUND_S
    while not happens():
        assert time.monotonic() < ends, f"{otherwise} within {BOUND_S} s"
        threading.Event().wait(0.01)


def prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(PREFETCH_THREAD)]


def assert_ended(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(BOUND_S)
    assert not [thread for thread in threads if thread.is_alive()]
