"""NeighborSampler with prob_name: the sums of the weights, the state, changed weights; wrong weights are refused. That
it equals the twin, test_neighbor_sampler.py and test_typed_sampling.py say.
"""

import copy
import multiprocessing
import pickle

import numpy as np
import pytest
import torch
from pipelines import digests, graph_of, items, small_graph
from typed_pipelines import CITES, WRITES, typed_items
from weights import weighted_graph, weighted_typed_graph

import datapipes as dp
from datapipes.graph.choice import Chosen
from datapipes.processes.sharing import pack
from datapipes.sampling.neighbor_sampler import ByWeight


def weighted(graph: dp.CSCGraph | None = None, **arguments) -> dp.NeighborSampler:
    arguments = {"fanouts": [3, 2], "prob_name": "w", "return_edge_ids": True, **arguments}
    return items().sample_neighbor(graph or weighted_graph(), **arguments)


def typed_weighted(graph: dp.HeteroCSCGraph | None = None) -> dp.NeighborSampler:
    graph = graph or weighted_typed_graph()
    return typed_items().sample_neighbor(graph, [2, 3], prob_name="w", return_edge_ids=True)


def sums_of(graph, of=None) -> Chosen:
    return graph.choose("again", ByWeight("w"), [of])[of]


@pytest.mark.parametrize("chain", [weighted, typed_weighted], ids=["plain", "types"])
def test_workers_draw_what_this_process_draws_from_sums_that_they_share(chain):
    expected = digests(chain())
    with dp.DataLoader(chain(), 2) as loader:
        assert digests(loader) == expected
    pipe = chain()
    digests(pipe)
    packed = pack(pipe).unpack()
    assert digests(packed) == expected
    assert packed.graph._choice_digests(packed.plan) == pipe.graph._choice_digests(pipe.plan)
    for of, kept in packed.plan.chosen.items():
        assert kept is sums_of(packed.graph, of)  # not made anew


def test_threads_do_not_change_what_is_drawn(monkeypatch):
    graph = graph_of([[i % 1200 for i in range(i, i + 40)] for i in range(1200)])
    graph.edge_attributes["w"] = (torch.arange(48_000) % 11).bfloat16()
    found = []
    for threads in (1, 2, 7):
        monkeypatch.setattr("datapipes.graph.hops.num_threads", lambda threads=threads: threads)
        pipe = dp.ItemSampler(dp.ItemSet(1200), 1200).sample_neighbor(graph, [9, 20], prob_name="w", replace=True)
        assert next(iter(pipe)).blocks[-1].num_edges > 16_384  # for fewer picks no thread is woken (draw_hop.h)
        found.append(digests(pipe))
    assert found[0] == found[1] == found[2]


def test_a_mask_keeps_what_is_true_and_equal_weights_reach_every_in_edge():
    mask = torch.arange(200) % 3 != 0
    for minibatch in weighted(weighted_graph(mask), fanouts=[-1, -1]):
        everything = weighted(prob_name=None, fanouts=[-1, -1]).transform(minibatch.replace(blocks=None))
        graph = small_graph()
        kept = set(graph.edge_ids[mask].tolist())
        inner, every = minibatch.blocks[-1].edge_ids.tolist(), everything.blocks[-1].edge_ids.tolist()
        assert inner == [edge for edge in every if edge in kept]


# --- the state


def test_weights_are_part_of_the_state_and_equal_ones_resume():
    pipe = weighted()
    state = dp.DataLoader(pipe).state_dict()
    dp.DataLoader(weighted()).load_state_dict(state)
    other = torch.arange(200).remainder(7).float() ** 4
    other[13] += 1
    for chain in (weighted(weighted_graph(other)), weighted(prob_name=None)):
        with pytest.raises(ValueError, match="weights_digest"):
            dp.DataLoader(chain).load_state_dict(state)
    with pytest.raises(ValueError, match="weights_digest"):
        dp.DataLoader(pipe).load_state_dict(dp.DataLoader(weighted(prob_name=None)).state_dict())
    typed = dp.DataLoader(typed_weighted()).state_dict()
    changed = weighted_typed_graph()
    changed.relation(CITES).edge_attributes["w"][0] = 9
    with pytest.raises(ValueError, match="weights_digest"):
        dp.DataLoader(typed_weighted(changed)).load_state_dict(typed)


def test_weights_that_were_replaced_or_changed_in_place_are_read_anew():
    graph = weighted_graph()
    before, first = weighted(graph), sums_of(graph)
    assert sums_of(graph) is first is sums_of(copy.copy(graph))
    drawn, digest_before = digests(before), before.fingerprint()["weights_digest"]
    graph.edge_attributes["w"].zero_()
    graph.edge_attributes["w"][5] = 1
    changed = weighted(graph, fanouts=[-1])
    assert sum(minibatch.blocks[0].num_edges for minibatch in changed) <= 1
    with pytest.raises(ValueError, match="changed in place"):
        digests(before)
    graph.edge_attributes["w"] = weighted_graph().edge_attributes["w"].double()
    again = weighted(graph)
    assert digests(again) == drawn
    assert again.fingerprint()["weights_digest"] != digest_before  # another dtype


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda graph: pickle.loads(pickle.dumps(graph))])
def test_a_copy_of_a_graph_makes_its_own_sums(copied):
    graph = weighted_graph()
    first = sums_of(graph)
    other = copied(graph)
    other.edge_attributes["w"] = torch.zeros_like(other.edge_attributes["w"])
    assert all(minibatch.blocks[0].num_edges == 0 for minibatch in weighted(other, fanouts=[-1]))
    assert sums_of(graph) is first


def test_the_stage_says_by_what_it_draws():
    assert "prob_name='w'" in repr(weighted())
    assert "prob_name" not in repr(weighted(prob_name=None))
    assert "weights_digest" not in weighted(prob_name=None).fingerprint()


def test_a_graph_with_types_and_weights_of_many_relations_goes_to_a_worker_in_few_memories():
    edges = {("a", f"r{number:03}", "b"): torch.randint(90, (2, 900)) for number in range(150)}
    attributes = {of: {"w": torch.rand(900)} for of in edges}
    graph = dp.HeteroCSCGraph.from_edge_index(edges, {"a": 90, "b": 90}, edge_attributes=attributes)
    pipe = dp.ItemSampler(dp.HeteroItemSet({"b": dp.ItemSet(90)}), 30).sample_neighbor(graph, [2], prob_name="w")
    packed = pack(pipe)
    assert len(packed.memories) <= 3
    assert digests(packed.unpack()) == digests(pipe)


# --- refused


def test_what_weights_are_refused_when_the_stage_is_built(refuses):
    for wrong in (-0.5, float("inf")):
        refuses(ValueError, weighted, weighted_graph(torch.full((200,), wrong)))
    with pytest.raises(ValueError, match=r"the weight 'w' is -?nan at position 0, an in-edge of node"):
        weighted(weighted_graph(torch.full((200,), float("nan"))))
    refuses(ValueError, weighted, weighted_graph(torch.full((200,), 1e308, dtype=torch.float64)))
    refuses(TypeError, weighted, weighted_graph(torch.ones(200).long()))
    refuses(TypeError, weighted, weighted_graph(torch.ones(200, dtype=torch.complex64)))
    refuses(ValueError, weighted, weighted_graph(torch.ones(200, 1)))
    refuses(ValueError, weighted, weighted_graph(torch.ones(200, device="meta")))
    graph = weighted_graph()
    graph.edge_attributes["w"] = torch.ones(199)
    refuses(ValueError, weighted, graph)
    graph.edge_attributes["w"] = torch.ones(200).numpy()
    refuses(TypeError, weighted, graph)
    refuses(TypeError, items().temporal_sample_neighbor, graph, [2], edge_time_attr="w")
    for name in ("v", ""):
        refuses(ValueError, weighted, prob_name=name)
    for name in (3, ["w"]):
        refuses(TypeError, weighted, prob_name=name)


def test_each_edge_type_that_is_sampled_needs_weights(refuses):
    graph = weighted_typed_graph()
    del graph.relation(WRITES).edge_attributes["w"]
    refuses(ValueError, typed_weighted, graph)
    pipe = typed_items().sample_neighbor(graph, [{CITES: 2}], prob_name="w")
    assert list(next(iter(pipe)).blocks[0]) == [CITES]
    graph.relation(CITES).edge_attributes["w"] = torch.full((graph.num_edges[CITES],), float("inf"))
    refuses(ValueError, typed_items().sample_neighbor, graph, [{CITES: 2}], prob_name="w")


def test_weights_may_be_any_view():
    wide = torch.arange(400).remainder(7).float() ** 4
    views = [wide[::2], wide.view(200, 2)[:, 0], torch.from_numpy(np.ascontiguousarray(wide[::2].numpy()))]
    found = {tuple(digests(weighted(weighted_graph(view)))) for view in views}
    assert len(found) == 1


def test_weights_changed_under_a_stage_are_refused(refuses):
    weights = torch.tensor([1.0, 0.0, 0.0])
    graph = dp.CSCGraph(torch.tensor([0, 3, 3, 3]), torch.tensor([0, 1, 2]), edge_attributes={"w": weights})
    chain = dp.ItemSampler(dp.ItemSet(3), 3).sample_neighbor(graph, [-1], prob_name="w")
    assert next(iter(chain)).blocks[0].indices.tolist() == [0]
    weights.copy_(torch.tensor([0.0, 1.0, 1.0]))
    uses = (
        pickle.dumps,
        dp.NeighborSampler.fingerprint,
        lambda chain: next(iter(chain)),
    )  # for workers, for a state, and to sample
    for use in uses:
        refuses(ValueError, use, chain)
    again = dp.ItemSampler(dp.ItemSet(3), 3).sample_neighbor(graph, [-1], prob_name="w")
    assert next(iter(again)).blocks[0].indices.tolist() == [1, 2]
    graph.edge_attributes["w"] = torch.ones(3)
    for use in uses:
        refuses(ValueError, use, again)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "multiprocessing_context": "fork"}], ids=str)
def test_a_loader_ends_though_its_weights_have_changed(workers):
    graph = weighted_graph()
    loader = dp.DataLoader(weighted(graph), **workers)
    started = set()

    def train() -> None:
        with loader:
            next(iter(loader))
            started.update(multiprocessing.active_children())
            graph.edge_attributes["w"].add_(1)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):  # closing does not hide it
        train()
    assert bool(started) == bool(workers)
    assert not started & set(multiprocessing.active_children())
    loader.close()
    with pytest.raises(
        ValueError, match=r"sample_neighbor: the weights were changed in place .* Build the stage again"
    ):
        loader.state_dict()
