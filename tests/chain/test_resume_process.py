"""Resuming in another process, and which states a chain refuses."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from pipelines import BATCH_SIZE, NUM_ITEMS, digests, fetched, items, refused, sampled, small_graph
from scripts import SUPPORT

import datapipes as dp

KINDS = ["plain", "shuffled", "shuffled_with_replacement", "loader"]

CHILD = """
import json, sys
sys.path[:0] = sys.argv[1:]
import test_resume_process
states = json.load(sys.stdin)
print(json.dumps({kind: [test_resume_process.rest_of(kind, state) for state in states[kind]] for kind in states}))
"""


def chain_of(kind: str) -> dp.Stage:
    chain = fetched(sampled(items(shuffle=kind != "plain"), replace=kind == "shuffled_with_replacement"))
    return dp.DataLoader(chain) if kind == "loader" else chain


def rest_of(kind: str, state) -> list[str]:
    chain = chain_of(kind)
    chain.load_state_dict(state)
    return digests(chain)


def test_another_process_goes_on_to_the_bit_from_every_step():
    states, expected = {}, {}
    for kind in KINDS:
        chain = chain_of(kind)
        list(chain)  # a whole epoch, so that the interrupted one is not the first
        states[kind], whole = [], []
        iterator = iter(chain)
        while True:
            states[kind].append(chain.state_dict())
            if len(whole) == len(chain):
                break
            whole.append(next(iterator).digest())
        expected[kind] = [whole[step:] for step in range(len(whole) + 1)]
        chain.close()
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(Path(__file__).parent), SUPPORT],
        input=json.dumps(states),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout) == expected


# --- another pipeline's state


def state_of(chain: dp.Stage):
    next(iter(chain))
    return json.loads(json.dumps(chain.state_dict()))


def one_edge_differs() -> dp.CSCGraph:
    """The other graph with one source changed: equal numbers of nodes and edges, equal indptr and edge ids."""
    graph = small_graph()
    indices = graph.indices.clone()
    indices[17] = (indices[17] + 1) % graph.num_nodes
    return dp.CSCGraph(graph.indptr, indices, edge_ids=graph.edge_ids)


def one_item_differs() -> dp.ItemSampler:
    seeds = items().item_set.take(torch.arange(NUM_ITEMS))["seeds"]
    seeds[3] += 1
    return dp.ItemSampler(dp.ItemSet((seeds, torch.arange(NUM_ITEMS).float())), BATCH_SIZE, shuffle=True, seed=5)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (lambda: sampled(graph=one_edge_differs()), r"1\.sample_neighbor\.graph_digest was '\w+' and is '\w+'"),
        (lambda: sampled(one_item_differs()), r"0\.item_sampler\.item_digest was '\w+' and is '\w+'"),
        (lambda: sampled(items(NUM_ITEMS - 1)), r"0\.item_sampler\.items was 22 and is 21"),
        (lambda: sampled(items(batch_size=5)), r"0\.item_sampler\.batch_size was 4 and is 5"),
        (lambda: sampled(items(shuffle=False)), r"0\.item_sampler\.shuffle was True and is False"),
        (lambda: sampled(items(drop_last=True)), r"0\.item_sampler\.drop_last was False and is True"),
        (lambda: sampled(items(seed=6)), r"seed was 5 and is 6"),
        (lambda: sampled(fanouts=[3, 3]), r"1\.sample_neighbor\.fanouts was \[3, 2\] and is \[3, 3\]"),
        (lambda: sampled(frontier="new"), r"1\.sample_neighbor\.frontier was 'all' and is 'new'"),
        (lambda: sampled(replace=True), r"1\.sample_neighbor\.replace was False and is True"),
        (lambda: sampled(return_edge_ids=False), r"1\.sample_neighbor\.return_edge_ids was True and is False"),
        (lambda: sampled(items().transform(lambda minibatch: minibatch)), r"2\.sample_neighbor\.\w+ was 'absent' and"),
        (items, r"1\.sample_neighbor\.\w+ was .* and is 'absent'"),
    ],
    ids=[
        "edge",
        "item",
        "item_count",
        "batch_size",
        "shuffle",
        "drop_last",
        "seed",
        "fanouts",
        "frontier",
        "replace",
        "edge_ids",
        "stage_between",
        "stage_missing",
    ],
)
def test_another_pipelines_state_is_refused_with_both_values(other, named):
    with refused(ValueError, stage="load_state_dict", found="another pipeline", allowed=named):
        other().load_state_dict(state_of(sampled()))


def test_the_graphs_of_that_test_have_the_same_shape():
    ours, other = small_graph(), one_edge_differs()
    assert (ours.num_nodes, ours.num_edges) == (other.num_nodes, other.num_edges)
    assert int((ours.indices != other.indices).sum()) == 1


def test_the_index_dtype_of_the_graph_may_change_between_runs():
    rest = sampled(graph=small_graph(torch.int32))
    rest.load_state_dict(state_of(sampled()))
    assert len(digests(rest)) == 5


def test_stages_that_only_carry_may_come_and_go_between_runs():
    expected = digests(fetched())[1:]
    for other in (dp.DataLoader(fetched()), fetched(sampled().prefetch(3)), dp.DataLoader(fetched(), overlap=False)):
        other.load_state_dict(state_of(fetched()))
        assert digests(other) == expected
    plain = fetched()
    plain.load_state_dict(state_of(dp.DataLoader(fetched())))
    assert digests(plain) == expected


# --- malformed states


@pytest.mark.parametrize("state", [3, "text", [1], [["seed", 1]]], ids=str)
def test_a_state_must_be_a_dict(state):
    with refused(TypeError, stage="sample_neighbor", found=f"got {type(state).__name__}", allowed="needs a dict"):
        sampled().load_state_dict(state)


@pytest.mark.parametrize("key", ["seed", "epoch", "next_index", "fingerprint"])
def test_a_state_without_a_key_is_refused(key):
    state = state_of(sampled())
    del state[key]
    with refused(ValueError, stage="load_state_dict", found="a state with keys", allowed=f"lacks .*{key}"):
        sampled().load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "error", "found"),
    [
        ({"next_index": -1}, ValueError, "-1"),
        ({"next_index": 7}, ValueError, "7"),
        ({"next_index": 2**70}, ValueError, str(2**70)),
        ({"next_index": True}, ValueError, "True"),
        ({"next_index": 1.0}, ValueError, "1.0"),
        ({"next_index": np.float64(1)}, ValueError, "1.0"),
        ({"next_index": "1"}, ValueError, "'1'"),
        ({"next_index": None}, ValueError, "None"),
        ({"epoch": -1}, ValueError, "-1"),
        ({"epoch": 2**32}, ValueError, str(2**32)),
        ({"epoch": True}, TypeError, "True"),
        ({"epoch": 0.0}, TypeError, "0.0"),
        ({"epoch": None}, TypeError, "None"),
        ({"seed": None}, ValueError, "None"),
        ({"seed": "5"}, ValueError, "'5'"),
        ({"fingerprint": None}, ValueError, "fingerprint"),
        ({"fingerprint": []}, ValueError, "fingerprint"),
        ({"fingerprint": {}}, ValueError, "'absent'"),
        ({"fingerprint": {1: 2}}, ValueError, "'absent'"),
    ],
    ids=str,
)
def test_a_malformed_state_is_refused(change, error, found):
    chain = sampled()
    with pytest.raises(error) as caught:
        chain.load_state_dict({**state_of(sampled()), **change})
    text = str(caught.value)
    assert "sample_neighbor: load_state_dict" in text
    assert found in text
    assert digests(chain) == digests(sampled())  # and the chain is as it was


def test_a_flag_is_no_seed_of_a_state():
    state = state_of(sampled(items(seed=1)))
    with pytest.raises((TypeError, ValueError), match=r"seed.*True"):
        sampled(items(seed=1)).load_state_dict({**state, "seed": True})
