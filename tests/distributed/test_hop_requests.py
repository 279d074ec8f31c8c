"""Hops over parts, by sample_neighbor: what a part is asked, answers that are wrong, and loops of one's own."""

import asyncio
import copy
import functools

import pytest
import strategies
import torch
from dist_graphs import ChangedPeers, dist_graph_of, in_parts, new_root, small_parts, typed_parts
from pipelines import digests, items, small_graph
from typed_pipelines import CITES, EDGE_TYPES, FANOUTS, REVIEWS, WRITES, typed_graph, typed_items

import datapipes as dp
from datapipes.distributed import DistGraph, PartitionBook, Partitioner, open_book
from datapipes.distributed.requests.draw import Drawn
from datapipes.partition.book import RangeMap

OPTIONS = {"return_edge_ids": True}


# --- the bits of the whole graph


def book_by(method: str, graph: dp.CSCGraph, num_parts: int) -> PartitionBook:
    """A book whose parts METIS or chance has chosen, or ranges of uneven length."""
    if method == "range":
        cuts = torch.arange(num_parts + 1) ** 2 * graph.num_nodes // num_parts**2
        return PartitionBook(num_parts, RangeMap(cuts))
    root = new_root()
    Partitioner(graph, num_parts, root, method=method, layouts=("native",)).generate_partition()
    return open_book(root)


@functools.cache
def larger_graph() -> dp.CSCGraph:
    """1000 nodes and 20,000 edges: a hop has several blocks of picks."""
    return dp.CSCGraph(*strategies.random_graph(1000, 20_000, rng_seed=3))


def larger_items() -> dp.ItemSampler:
    return dp.ItemSampler(dp.ItemSet(1000), 300, shuffle=True, seed=8)


@functools.cache
def expected_of_larger(frontier: str) -> list[str]:
    return digests(larger_items().sample_neighbor(larger_graph(), [-1, 5, 3], frontier=frontier, **OPTIONS))


@pytest.mark.parametrize("num_parts", [1, 2, 3, 4])
@pytest.mark.parametrize("method", ["metis", "random", "range"])
def test_it_does_not_matter_how_many_parts_there_are_nor_who_chose_them(method, num_parts):
    graph = larger_graph()
    for frontier, local_part in (("all", None), ("new", num_parts - 1)):
        parts = dist_graph_of(graph, book_by(method, graph, num_parts), new_root(), local_part)
        pipe = larger_items().dist_sample_neighbor(parts, [-1, 5, 3], frontier=frontier, **OPTIONS)
        assert digests(pipe) == expected_of_larger(frontier)
        parts.close()


# --- what is asked


def asked_by(graph: DistGraph, seeds: torch.Tensor, fanouts, **options) -> list:
    start = dp.ItemSampler(dp.ItemSet(seeds), len(seeds))
    next(iter(start.dist_sample_neighbor(graph, fanouts, **options)))
    return graph.peers.asked


def test_a_part_without_rows_is_not_asked_and_no_row_is_asked_for_twice():
    graph = in_parts(small_graph(), torch.arange(40) // 10, 4)
    asked = asked_by(graph, torch.tensor([25, 21, 25]), [2])
    assert [(part, {of: ids.tolist() for of, ids in request.ids.items()}) for part, request in asked] == [
        (2, {None: [25, 21]})
    ]
    asked = asked_by(graph, torch.tensor([25, 21]), [2, 2], frontier="new")[1:]
    ids = [int(node) for _, request in asked for node in request.ids[None]]
    assert len(ids) == len(set(ids))
    assert ids[:2] == [25, 21]


def test_the_own_part_is_drawn_from_without_asking():
    graph = in_parts(small_graph(), torch.arange(40) % 2, 2, local_part=0)
    assert {part for part, _ in asked_by(graph, torch.arange(8), [2, 2])} == {1}


def test_relations_of_one_destination_type_share_the_ids_and_those_of_fanout_0_are_not_asked_for():
    graph = typed_parts(2, None)
    start = dp.ItemSampler(dp.HeteroItemSet({"paper": dp.ItemSet(torch.arange(6))}), 6)
    pipe = start.dist_sample_neighbor(graph, [{WRITES: 1, CITES: -1}, {WRITES: 2, REVIEWS: 3}])
    next(iter(pipe))
    inner = [request for _, request in graph.peers.asked[:2]]
    assert [(list(each.ids), [draw[:2] for draw in each.draws]) for each in inner] == [
        (["paper"], [(REVIEWS, 3), (WRITES, 2)])
    ] * 2
    assert sum(len(each.ids["paper"]) for each in inner) == 6


# --- what is refused


def test_a_seed_outside_the_graph_is_refused(refuses):
    for seed in (40, -1, 2**62):
        seeds = torch.tensor([0, seed])
        start = dp.ItemSampler(dp.ItemSet(1), 1).transform(
            lambda minibatch, seeds=seeds: minibatch.replace(seeds=seeds)
        )
        refuses(IndexError, next, iter(start.dist_sample_neighbor(small_parts(), [2])))


def changed(**new):
    """Return an answer with other tensors, each a function of the old one."""
    return lambda answer: answer._replace(**{name: of(getattr(answer, name)) for name, of in new.items()})


def with_last(value: int):
    return lambda tensor: torch.cat([tensor[:-1], tensor.new_tensor([value])])


def one_less(drawn: Drawn) -> Drawn:
    indptr = drawn.indptr.clone()
    indptr[indptr == indptr[-1]] -= 1
    return Drawn(indptr, drawn.neighbors[:-1], None)


def test_a_wrong_answer_ends_in_an_error_that_names_the_part_and_leaves_the_others_usable(refuses):
    graph = small_parts()
    peers = graph.peers
    pipe = items(batch_size=22).dist_sample_neighbor(graph, [2], **OPTIONS)
    for error, change in (
        (ValueError, changed(indptr=lambda t: t[:-1])),
        (ValueError, changed(indptr=lambda t: torch.cat([t, t[-1:]]))),
        (ValueError, changed(indptr=lambda t: t[:0])),
        (ValueError, changed(indptr=lambda t: t + 1)),
        (ValueError, changed(indptr=lambda t: torch.cat([t[:1], t[-1:] + 2**62, t[2:]]))),
        (ValueError, changed(indptr=lambda t: torch.cat([t[:1], t[:1] - 2**63, t[2:]]))),
        (ValueError, changed(indptr=lambda t: t.view(1, -1))),
        (ValueError, changed(neighbors=lambda t: t[1:])),
        (ValueError, changed(neighbors=with_last(40))),
        (ValueError, changed(neighbors=with_last(2**62))),
        (ValueError, changed(neighbors=with_last(-1))),
        (ValueError, changed(neighbors=lambda t: t.int())),
        (ValueError, changed(neighbors=lambda t: t.bfloat16())),
        (TypeError, changed(neighbors=lambda t: t.tolist())),
        (ValueError, changed(edge_ids=with_last(-1))),
        (ValueError, changed(edge_ids=lambda t: t[1:])),
        (ValueError, changed(edge_ids=lambda t: None)),
        (ValueError, lambda answer: Drawn(answer.indptr * 2, *(torch.cat([each, each]) for each in answer[1:]))),
        (TypeError, lambda answer: 7),
        (TypeError, lambda answer: [*answer]),
    ):
        graph.peers = ChangedPeers(peers, change, part=2)
        pipe.set_epoch(0)
        refuses(error, list, pipe)
        graph.peers = peers
        pipe.set_epoch(0)
        assert digests(pipe) == digests(items(batch_size=22).sample_neighbor(small_graph(), [2], **OPTIONS))
    graph.peers = ChangedPeers(peers, one_less, part=2)
    assert len(digests(items().dist_sample_neighbor(graph, [2]))) == 6  # the node may have one in-edge
    refuses(ValueError, list, items().dist_sample_neighbor(graph, [2], replace=True))


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 1, "worker_method": "thread"}], ids=str)
def test_the_error_of_a_part_reaches_the_caller_with_stage_minibatch_and_part(options):
    def fail(answer):
        raise OSError("the disk is gone")

    graph = small_parts()
    graph.peers = ChangedPeers(graph.peers, fail, part=2)
    pipe = items().dist_sample_neighbor(graph, [2])
    with dp.DataLoader(pipe, **options) as loader, pytest.raises(OSError, match="the disk") as caught:
        list(loader)
    notes = "\n".join(getattr(caught.value, "__notes__", ()))
    assert "asked of part 2" in notes
    assert "(dist_sample_neighbor), epoch 0, minibatch 0" in notes


# --- loops of one's own


def test_nodes_and_edges_are_sampled_as_the_stage_does(refuses):
    rng = dp.stages.RngKey(5, 0, 3, 1)
    nodes, pairs = torch.tensor([4, 9, 4]), torch.tensor([[4, 9], [9, 4], [1, 4]])
    typed = {"paper": nodes}, {WRITES: pairs[:2]}
    for start, graph, parts, fanouts, (of_nodes, of_pairs) in (
        (items(), small_graph(), small_parts(), [2, 3], (nodes, pairs)),
        (typed_items(), typed_graph(), typed_parts(), FANOUTS, typed),
    ):
        whole = start.sample_neighbor(graph, fanouts, **OPTIONS)
        pipe = start.dist_sample_neighbor(parts, fanouts, **OPTIONS)

        async def both(pipe=pipe, of_nodes=of_nodes, of_pairs=of_pairs):
            return await asyncio.gather(pipe.node_sample(of_nodes, rng), pipe.edge_sample(of_pairs, rng))

        for sample, seeds in zip(asyncio.run(both()), (of_nodes, of_pairs), strict=True):
            expected = whole.transform(dp.MiniBatch(seeds=seeds, rng=rng))
            made = dp.MiniBatch(
                seeds=seeds, input_nodes=sample.nodes, compacted_seeds=sample.local_seeds, blocks=sample.hops[::-1]
            )
            assert made.digest() == expected.replace(rng=None, labels=None).digest()
    plain = items().dist_sample_neighbor(small_parts(), [2, 3])
    with refuses(ValueError):
        asyncio.run(plain.node_sample(pairs, rng))
    with refuses(ValueError):
        asyncio.run(plain.edge_sample(nodes, rng))


@pytest.mark.parametrize("edge_ids", [False, True])
@pytest.mark.parametrize("fanout", [-1, 0, 2])
def test_one_hop_gives_the_in_edges_in_the_order_of_the_nodes(fanout, edge_ids):
    ids, key = torch.tensor([7, 3, 7, 30, 3]), 11
    for graph, edge_type, num_etypes in ((small_graph(), None, 1), (typed_graph(torch.int32), CITES, 5)):
        make = small_parts if edge_type is None else typed_parts
        start = items() if edge_type is None else typed_items()
        pipe = start.dist_sample_neighbor(make(graph=graph), [1], return_edge_ids=edge_ids)
        assert len(graph.edge_types) == num_etypes
        found = asyncio.run(pipe.sample_one_hop(ids, fanout=fanout, key=key, edge_type=edge_type))
        relation = graph.relation(edge_type)
        indptr, neighbors, positions = dp._core.sample_hop(
            relation.indptr.numpy(), relation.indices.numpy(), ids.numpy(), fanout=fanout, replace=False, key=key
        )
        assert found.indptr.tolist() == indptr.tolist()
        assert found.neighbors.tolist() == neighbors.tolist()
        assert found.neighbors.dtype == graph.index_dtype
        own = torch.arange(graph.num_edges_of(edge_type)) if relation.edge_ids is None else relation.edge_ids
        assert (None if not edge_ids else own[positions].tolist()) == (
            found.edge_ids.tolist() if edge_ids else found.edge_ids
        )


def test_one_hop_refuses_what_it_cannot_draw(refuses):
    pipe = typed_items().dist_sample_neighbor(typed_parts(), FANOUTS)
    ids = torch.tensor([1])
    for error, nodes, fanout, edge_type in (
        (ValueError, ids, 2, ("paper", "cite", "paper")),
        (IndexError, ids + 39, 2, CITES),
        (TypeError, [1], 2, CITES),
        (ValueError, ids, -2, CITES),
    ):
        with refuses(error):
            asyncio.run(pipe.sample_one_hop(nodes, fanout=fanout, key=0, edge_type=edge_type))
    assert EDGE_TYPES[2] == CITES


def test_a_local_part_that_is_changed_in_place_has_no_state(refuses):
    graph = small_parts(local_part=1)
    pipe = items().dist_sample_neighbor(graph, fanouts=[3, 2])
    pipe.state_dict()
    graph.local_part.relation().indices[0] += 0
    refuses(ValueError, pipe.state_dict)
    refuses(ValueError, copy.deepcopy, graph.local_part)


def test_the_repr_of_a_graph_in_parts_counts_its_types():
    graph = typed_graph()
    types = f"{len(graph.node_types)} node types, {len(graph.edge_types)} edge types"
    counts = f"{sum(graph.num_nodes.values())} nodes, {sum(graph.num_edges.values())} edges"
    assert repr(typed_parts(3)) == f"DistGraph(3 parts, part 1 is here, {types}, {counts})"
    plain = small_graph()
    counts = f"{plain.num_nodes} nodes, {plain.num_edges} edges"
    assert repr(small_parts(2, None)) == f"DistGraph(2 parts, all behind servers, {counts})"
