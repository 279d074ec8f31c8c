"""Resuming in another process, and which states a chain refuses."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from pipelines import BATCH_SIZE, NUM_ITEMS, as_it_is, digests, fetched, items, sampled, small_graph
from scripts import run_script

import datapipes as dp

KINDS = ["plain", "shuffled", "shuffled_with_replacement", "loader"]

CHILD = """
import json, sys
sys.path.insert(0, {folder!r})
import test_resume_process
states = json.loads({states!r})
print(json.dumps({{kind: [test_resume_process.rest_of(kind, state) for state in states[kind]] for kind in states}}))
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
    child = run_script(CHILD.format(folder=str(Path(__file__).parent), states=json.dumps(states)))
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


def test_another_pipelines_state_is_refused_with_both_values(refuses):
    state = state_of(sampled())
    others = [
        *(sampled(graph=one_edge_differs()), sampled(one_item_differs()), sampled(items(NUM_ITEMS - 1))),
        *(sampled(items(batch_size=5)), sampled(items(shuffle=False)), sampled(items(drop_last=True))),
        *(sampled(items(seed=6)), sampled(fanouts=[3, 3]), sampled(frontier="new"), sampled(replace=True)),
        sampled(return_edge_ids=False),
        *(sampled(items().transform(as_it_is)), items()),  # a stage more, and one less
    ]
    for other in others:
        refuses(ValueError, other.load_state_dict, state)


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


def test_a_malformed_state_is_refused(refuses):
    chain, state = sampled(), state_of(sampled())
    for no_dict in (3, "text", [1], [["seed", 1]]):
        refuses(TypeError, chain.load_state_dict, no_dict)
    for key in ("seed", "epoch", "next_index", "fingerprint"):
        refuses(ValueError, chain.load_state_dict, {name: state[name] for name in state if name != key})
    for next_index in (-1, 7, 2**70, True, 1.0, "1", None):
        refuses(ValueError, chain.load_state_dict, {**state, "next_index": next_index})
    with pytest.raises(ValueError, match=r"next_index must be an int in .*1\.0"):
        chain.load_state_dict({**state, "next_index": np.float64(1)})
    for epoch in (-1, 2**32):
        refuses(ValueError, chain.load_state_dict, {**state, "epoch": epoch})
    for epoch in (True, 0.0, None):
        refuses(TypeError, chain.load_state_dict, {**state, "epoch": epoch})
    for seed in (None, "5"):
        refuses(ValueError, chain.load_state_dict, {**state, "seed": seed})
    for fingerprint in (None, [], {}, {1: 2}):
        refuses(ValueError, chain.load_state_dict, {**state, "fingerprint": fingerprint})
    assert digests(chain) == digests(sampled())  # and the chain is as it was


def test_a_flag_is_no_seed_of_a_state():
    state = state_of(sampled(items(seed=1)))
    with pytest.raises((TypeError, ValueError), match=r"seed.*True"):
        sampled(items(seed=1)).load_state_dict({**state, "seed": True})
