"""Memory: a long run takes no more than after its first minibatches, and an id map takes 4 bytes per node.

Each measurement runs in its own process, so that the memory of other tests does not count. Private memory, clean and
dirty, is the memory that would be free if the process ended; memory shared with others does not count.
"""

import gc
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from amounts import ranked
from scripts import SUPPORT
from strategies import random_graph

import datapipes as dp
from datapipes import _core

SMAPS_ROLLUP = Path("/proc/self/smaps_rollup")

pytestmark = pytest.mark.skipif(
    not SMAPS_ROLLUP.exists(), reason="private memory is read from /proc/self/smaps_rollup, which only Linux has"
)

MIB = 2**20

PATHS = os.pathsep.join([str(Path(__file__).parent), SUPPORT])

CHILD = """
import json, os, sys
sys.path[:0] = sys.argv[1].split(os.pathsep)
import test_memory_growth
print(json.dumps(getattr(test_memory_growth, sys.argv[2])(*json.loads(sys.argv[3]))))
"""


def in_a_child(function, *arguments, environment=None) -> list:
    """Return the result of a function of this module that runs in a fresh process."""
    torchs_own_threads = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    child = subprocess.run(
        [sys.executable, "-c", CHILD, PATHS, function.__name__, json.dumps(arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**torchs_own_threads, **(environment or {})},
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


def private_bytes() -> int:
    """Return the private memory of this process, after a garbage collection."""
    gc.collect()
    lines = SMAPS_ROLLUP.read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))


# --- many minibatches

READ_AT = (50, 1_000, 2_000)  # minibatches

# A minibatch holds about 1.7 MB here, most of it in recycled memory. The number of minibatches under way varies between
# readings: at most two sampled and two complete ones wait, each thread makes one, the consumer has one. Freed blocks
# that the C allocator keeps come on top. Measured: 0.03 to 3.9 MiB.
MAX_GROWTH_BYTES = 8 * MIB

# glibc gives a thread its own heap while another thread is alive. A loader starts a thread in each epoch. If the last
# thread has not quite ended, the new one gets another heap, of about 10 MB here. This happens in some runs, until there
# are as many heaps as threads at a time. Measured: 1.5 to 18 MiB. With one heap for all threads the small bound holds
# for a loader too.
MAX_GROWTH_BYTES_WITH_HEAPS = 32 * MIB
ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}

# A leak in small pieces, up to 4 kB per minibatch, would stay below those bounds. But a leaked tensor is a leaked
# Python object too, and the interpreter counts these exactly. Half a block per minibatch is allowed; measured were 210
# in all.
MAX_GROWTH_BLOCKS = (READ_AT[-1] - READ_AT[0]) // 2


def chain_of(kind: str, kept: list[torch.Tensor]) -> dp.Stage:
    num_nodes, num_edges = 100_000, 1_000_000
    graph = dp.CSCGraph(*random_graph(num_nodes, num_edges, rng_seed=1))
    feat = torch.rand(num_nodes, 32, generator=torch.Generator().manual_seed(2))
    store = dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(feat)})
    items = dp.ItemSampler(dp.ItemSet(torch.arange(num_nodes)), 256, shuffle=True, seed=3)
    chain = items.sample_neighbor(graph, fanouts=[10, 5]).fetch_feature(store, ["feat"])
    if kind == "keeps_some":
        return chain.transform(lambda minibatch: kept.append(minibatch.seeds.repeat(4)) or minibatch)
    return dp.DataLoader(chain) if kind == "loader" else chain


def growth_of(kind: str) -> list[tuple[int, int]]:
    """Return by how many bytes and interpreter's blocks the process grew after the first reading."""
    chain, readings, done = chain_of(kind, []), [], 0
    while True:  # more than five epochs; with a loader, each has its own thread
        for _ in chain:
            done += 1
            if done in READ_AT:
                readings.append((private_bytes(), sys.getallocatedblocks()))
            if done == READ_AT[-1]:
                return [(held - readings[0][0], blocks - readings[0][1]) for held, blocks in readings[1:]]


@pytest.mark.parametrize(
    ("kind", "environment", "max_growth_bytes"),
    ranked(
        [
            ("loader", {}, MAX_GROWTH_BYTES_WITH_HEAPS),
            ("plain", {}, MAX_GROWTH_BYTES),
            ("loader", ONE_HEAP, MAX_GROWTH_BYTES),
        ],
        1,
    ),
    ids=["loader", "plain", "loader_with_one_heap"],
)
def test_two_thousand_minibatches_need_no_more_memory_than_fifty(kind, environment, max_growth_bytes):
    for grown_bytes, grown_blocks in in_a_child(growth_of, kind, environment=environment):
        assert grown_bytes < max_growth_bytes
        assert grown_blocks < MAX_GROWTH_BLOCKS


@pytest.mark.full  # it tests the test above
def test_a_stage_that_keeps_8_kb_of_each_minibatch_is_noticed():
    grown_bytes, grown_blocks = in_a_child(growth_of, "keeps_some")[-1]
    assert grown_bytes > MAX_GROWTH_BYTES
    assert grown_blocks > MAX_GROWTH_BLOCKS


# --- the id map

NUM_NODES = 4_000_000
MAP_BYTES = 4 * NUM_NODES
TOLERANCE_BYTES = 3 * MIB  # for the minibatch itself, a stack, and up to one huge page at the end of the map
NUM_THREADS = 6


def rises_of_sampling(direct_limit: int) -> list[int]:
    """Return the rises of memory: after this thread sampled, after it sampled again, after a second thread did, and
    after several more did in turn.
    """
    num_edges = 1_000
    indptr = np.empty(NUM_NODES + 1, dtype=np.int64)  # filled in place: freed temporaries would distort the reading
    indptr[:num_edges] = np.arange(num_edges)
    indptr[num_edges:] = num_edges
    indices = np.arange(num_edges, dtype=np.int64) * (NUM_NODES // num_edges)
    seeds = np.arange(100, dtype=np.int64)
    graph = _core.Topology([("", NUM_NODES)], [(0, 0, indptr, indices, None, "")])
    hops = {"sampled": [0], "fanouts": [[5], [5]], "keys": [[1], [2]], "replace": False, "only_new": False}
    rises: list[int] = []

    def sample() -> int:
        _core.sample_neighbors(graph, [(0, seeds)], **hops, want_edge_ids=False, direct_limit=direct_limit)
        return private_bytes() - start

    def sample_in_a_thread() -> int:
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(sample()))
        thread.start()
        thread.join()
        return found[0]

    start = private_bytes()
    rises += [sample(), sample(), sample_in_a_thread()]
    return [*rises, [sample_in_a_thread() for _ in range(NUM_THREADS)][-1]]


@pytest.mark.full
def test_a_direct_id_map_costs_4_bytes_a_node_whichever_thread_samples():
    for risen in in_a_child(rises_of_sampling, 2**25):
        assert abs(risen - MAP_BYTES) < TOLERANCE_BYTES  # one call at a time: all of them use the same map


@pytest.mark.full
def test_a_hash_id_map_costs_nothing_for_nodes_that_are_not_found():
    rises = in_a_child(rises_of_sampling, 0)
    assert max(rises) < MAP_BYTES / 20  # at most 64 bytes for each of 3,100 nodes, and the threads' stacks
