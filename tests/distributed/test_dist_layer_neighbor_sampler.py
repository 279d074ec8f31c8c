"""DistLayerNeighborSampler: LABOR-0 from parts is that of the whole graph; what parts are told; what is refused."""

import pytest
import torch
from amounts import examples
from dist_graphs import dist_graph_of, new_root, small_parts, typed_parts
from hypothesis import given
from hypothesis import strategies as st
from partitions import books
from pipelines import assert_states_move, digests, items, refused, small_graph
from strategies import csc_graphs, rng_seeds
from typed_pipelines import FANOUTS, typed_graph, typed_items

import datapipes as dp
from datapipes.distributed import DistLayerNeighborSampler
from datapipes.partition.native.choices import ByNumber

OPTIONS = {"layer_dependency": True, "batch_dependency": 3, "return_edge_ids": True}


def contract_chain() -> dp.Stage:
    return items().dist_sample_layer_neighbor(small_parts(), [3, 2], **OPTIONS)


def contract_forms() -> tuple[dp.Stage, dp.Stage]:
    graph, options = small_parts(), {"batch_dependency": 2, "frontier": "new", "concurrency": 2}
    functional = items().dist_sample_layer_neighbor(graph, [2, 1], **options)
    return functional, DistLayerNeighborSampler(items(), graph, [2, 1], **options)


@examples(40)
@given(st.data(), csc_graphs(min_nodes=1), rng_seeds)
def test_layers_from_any_parts_are_those_of_the_whole_graph(data, arrays, rng_seed):
    graph = dp.CSCGraph(*arrays)
    fanouts = data.draw(st.lists(st.integers(-1, 4), min_size=1, max_size=3))
    ids = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), min_size=1, max_size=9))
    start = dp.ItemSampler(dp.ItemSet(torch.tensor(ids)), 2, shuffle=True, seed=rng_seed)
    options = {
        "layer_dependency": data.draw(st.booleans()),
        "batch_dependency": data.draw(st.sampled_from([1, 2, 5, 2**31 - 1])),
        "frontier": data.draw(st.sampled_from(["all", "new"])),
        "return_edge_ids": data.draw(st.booleans()),
    }
    parts = dist_graph_of(graph, data.draw(books(graph, 4)), new_root())
    try:
        whole = start.sample_layer_neighbor(graph, fanouts, **options)
        ours = start.dist_sample_layer_neighbor(parts, fanouts, **options)
        assert digests(ours) == digests(whole)
        assert ours.fingerprint() == whole.fingerprint()
    finally:
        parts.close()


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dependencies", [{}, {"layer_dependency": True}, {"batch_dependency": 4}], ids=str)
def test_layers_with_types_are_those_of_the_whole_graph(dependencies, dtype, num_parts):
    graph = typed_graph(dtype)
    expected = digests(typed_items(links=True).sample_layer_neighbor(graph, FANOUTS, **dependencies))
    parts = typed_parts(num_parts, 0, graph)
    assert digests(typed_items(links=True).dist_sample_layer_neighbor(parts, FANOUTS, **dependencies)) == expected


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_neither_workers_nor_minibatches_in_flight_change_a_bit(workers):
    expected = digests(items().sample_layer_neighbor(small_graph(), [3, 2], **OPTIONS))
    for concurrency in (1, 8):
        pipe = items().dist_sample_layer_neighbor(small_parts(), [3, 2], concurrency=concurrency, **OPTIONS)
        context = {"multiprocessing_context": "fork"} if workers == "process" else {}
        with dp.DataLoader(pipe, 2, worker_method=workers, **context) as loader:
            assert digests(loader) == expected


def test_a_part_is_told_the_keys_of_the_generations_only_if_sources_keep_their_numbers():
    for dependency in (1, 2):
        graph = typed_parts(2, None)
        next(iter(typed_items().dist_sample_layer_neighbor(graph, FANOUTS, batch_dependency=dependency)))
        for _, request in graph.peers.asked:
            assert isinstance(request.choice, ByNumber)
            assert len(request.choice.keys) == (0 if dependency == 1 else len(request.draws))


def test_a_state_moves_between_the_whole_graph_and_any_parts():
    def pipes() -> list[dp.Stage]:
        return [
            items().sample_layer_neighbor(small_graph(), [2, 3], **OPTIONS),
            items().dist_sample_layer_neighbor(small_parts(3), [2, 3], **OPTIONS),
            items().dist_sample_layer_neighbor(small_parts(1, None), [2, 3], concurrency=1, **OPTIONS),
        ]

    assert_states_move(pipes)
    other = items().dist_sample_layer_neighbor(small_parts(), [2, 3], **{**OPTIONS, "batch_dependency": 4})
    with refused(ValueError, stage="sample_layer_neighbor", found="batch_dependency was 3", allowed="is 4"):
        other.load_state_dict(pipes()[0].state_dict())


@pytest.mark.parametrize(
    ("change", "error", "found", "allowed"),
    [
        ({"batch_dependency": 0}, ValueError, "batch_dependency.*0", "1"),
        ({"batch_dependency": 2**31}, ValueError, "2147483648", "2147483647"),
        ({"layer_dependency": 1}, TypeError, "got 1", "True or False"),
        ({"frontier": "old"}, ValueError, "'old'", r"\['all', 'new'\]"),
        ({"concurrency": 0}, ValueError, "concurrency.*0", "1"),
        ({"dist_graph": small_graph()}, TypeError, "CSCGraph", "DistGraph"),
    ],
    ids=str,
)
def test_arguments_that_are_not_allowed_are_refused(change, error, found, allowed):
    with refused(error, stage="dist_sample_layer_neighbor", found=found, allowed=allowed):
        items().dist_sample_layer_neighbor(**{"dist_graph": small_parts(), "fanouts": [2], **change})


def test_the_sampler_of_whole_graphs_names_that_of_parts():
    with refused(TypeError, stage="^sample_layer", found="DistGraph", allowed="CSCGraph", remedy="dist_sample_layer"):
        items().sample_layer_neighbor(small_parts(), [2])


def test_a_part_refuses_numbers_that_cannot_be():
    part = small_parts().local_part
    for choice in (ByNumber(0, 1), ByNumber(3, 4, ((1, 2),)), ByNumber(3, 1), ByNumber(3, 1, ((1, 2), (3, 4)))):
        with pytest.raises(ValueError, match=r"dependency must be in|give one of next_keys"):
            part.draw(part.node_ids(), fanout=2, key=1, choice=choice)
    with pytest.raises(ValueError, match="not drawn with replacement"):
        part.draw(part.node_ids(), fanout=2, key=1, choice=ByNumber(), replace=True)
