"""Hops over parts, by sample_neighbor: what a part is asked, answers that are wrong, and loops of one's own."""

import asyncio
import copy
import functools
from concurrent.futures import Future

import pytest
import strategies
import torch
from amounts import examples
from dist_graphs import dist_graph_of, in_parts, new_root, small_parts, typed_parts
from hypothesis import given
from hypothesis import strategies as st
from partitions import books, fanouts_of, graphs, item_sets_of
from pipelines import BOUND_S, assert_states_move, digests, items, refused, small_graph
from typed_pipelines import CITES, EDGE_TYPES, FANOUTS, REVIEWS, WRITES, typed_graph, typed_items

import datapipes as dp
from datapipes.distributed import DistGraph, PartitionBook, Partitioner, open_book
from datapipes.distributed.requests.draw import Drawn
from datapipes.partition.book import RangeMap

OPTIONS = {"return_edge_ids": True}


# --- the bits of the whole graph


@examples(40)
@given(st.data(), st.integers(0, 2**64 - 1))
def test_any_graph_in_any_parts_gives_the_minibatches_of_the_whole_one(data, seed):
    graph = data.draw(graphs().filter(lambda made: made.edge_types and any(map(made.num_nodes_of, made.node_types))))
    fanouts = data.draw(fanouts_of(graph))
    start = dp.ItemSampler(data.draw(item_sets_of(graph)), 4, shuffle=True, seed=seed)
    options = {
        "replace": data.draw(st.booleans()),
        "frontier": data.draw(st.sampled_from(["all", "new"])),
        "return_edge_ids": data.draw(st.booleans()),
    }
    book = data.draw(books(graph, 5))
    local_part = data.draw(st.one_of(st.none(), st.integers(0, book.num_parts - 1)))
    parts = dist_graph_of(graph, book, new_root(), local_part)
    try:
        pipe = start.dist_sample_neighbor(parts, fanouts, **options)
        expected = digests(start.sample_neighbor(graph, fanouts, **options))
        assert digests(pipe) == expected
    finally:
        parts.close()


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


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("links", [False, True])
@pytest.mark.parametrize("frontier", ["all", "new"])
def test_a_graph_with_types_gives_the_same_in_parts(dtype, links, frontier):
    graph = typed_graph(dtype)
    expected = digests(typed_items(links=links).sample_neighbor(graph, FANOUTS, frontier=frontier, **OPTIONS))
    for num_parts in (1, 2, 4):
        parts = typed_parts(num_parts, num_parts - 1, graph)
        pipe = typed_items(links=links).dist_sample_neighbor(parts, FANOUTS, frontier=frontier, **OPTIONS)
        assert digests(pipe) == expected


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


# --- states


def test_a_state_moves_between_the_whole_graph_and_any_parts():
    def pipes() -> list[dp.Stage]:
        return [
            items().sample_neighbor(small_graph(), [2, 3], **OPTIONS),
            items().dist_sample_neighbor(small_parts(3), [2, 3], **OPTIONS),
            items().dist_sample_neighbor(small_parts(2, None), [2, 3], concurrency=1, **OPTIONS),
        ]

    assert_states_move(pipes)
    expected = digests(pipes()[0])
    for saved in pipes():
        running = iter(saved)
        next(running), next(running)
        with dp.DataLoader(pipes()[1], 2, worker_method="thread") as loader:
            loader.load_state_dict(saved.state_dict())
            assert digests(loader) == expected[2:]


def test_a_state_of_another_graph_or_other_arguments_is_refused():
    state = items().sample_neighbor(small_graph(), [2, 3]).state_dict()
    with refused(ValueError, stage="sample_neighbor", found="frontier was 'all'", allowed="is 'new'"):
        items().dist_sample_neighbor(small_parts(), [2, 3], frontier="new").load_state_dict(state)
    other = small_parts(graph=dp.CSCGraph(*strategies.random_graph(40, 200, rng_seed=2)))
    with refused(ValueError, stage="sample_neighbor", found="graph_digest was", allowed="is"):
        items().dist_sample_neighbor(other, [2, 3]).load_state_dict(state)


# --- what is refused


@pytest.mark.parametrize("seed", [40, -1, 2**62])
def test_a_seed_outside_the_graph_is_refused(seed):
    start = dp.ItemSampler(dp.ItemSet(1), 1).transform(lambda given: given.replace(seeds=torch.tensor([0, seed])))
    with refused(IndexError, stage="dist_sample_neighbor", found=str(seed), allowed=r"\[0, 40\)"):
        next(iter(start.dist_sample_neighbor(small_parts(), [2])))


class Spoiled:
    """Peers whose part 2 answers something else."""

    def __init__(self, peers, spoil) -> None:
        self.peers, self.spoil = peers, spoil

    def ask(self, part, request):
        answer = self.peers.ask(part, request).result(BOUND_S)
        spoiled = Future()
        try:
            spoiled.set_result(self.spoil(answer) if part == 2 else answer)
        except OSError as error:
            spoiled.set_exception(error)
        return spoiled

    def close(self) -> None:
        self.peers.close()


def changed(**new):
    """Return an answer with other tensors, each a function of the old one."""
    return lambda answer: answer._replace(**{name: of(getattr(answer, name)) for name, of in new.items()})


def with_last(value: int):
    return lambda tensor: torch.cat([tensor[:-1], tensor.new_tensor([value])])


WRONG = {
    "fewer nodes": (changed(indptr=lambda t: t[:-1]), "indptr of [0-9]+ entries", "are needed, for [0-9]+ rows"),
    "more nodes": (changed(indptr=lambda t: torch.cat([t, t[-1:]])), "indptr of [0-9]+ entries", "are needed"),
    "no indptr": (changed(indptr=lambda t: t[:0]), "indptr of 0 entries", "are needed"),
    "from 1": (changed(indptr=lambda t: t + 1), "indptr from 1", "from 0 to the number of neighbors"),
    "fewer neighbors": (changed(neighbors=lambda t: t[1:]), "indptr from 0 to", "from 0 to the number of neighbors"),
    "descends": (changed(indptr=lambda t: torch.cat([t[:1], t[-1:] + 2**62, t[2:]])), "as the picks of", "ascend"),
    "below 0": (changed(indptr=lambda t: torch.cat([t[:1], t[:1] - 2**63, t[2:]])), "as the picks of", "ascend"),
    "above the fanout": (
        lambda answer: Drawn(answer.indptr * 2, *(torch.cat([each, each]) for each in answer[1:])),
        "as the picks of node",
        "at most 2 a node",
    ),
    "outside": (changed(neighbors=with_last(40)), "the neighbor 40", r"\[0, 40\)"),
    "far outside": (changed(neighbors=with_last(2**62)), f"the neighbor {2**62}", r"\[0, 40\)"),
    "negative": (changed(neighbors=with_last(-1)), "the neighbor -1", r"\[0, 40\)"),
    "negative edge": (changed(edge_ids=with_last(-1)), "a negative edge id", "0 or more"),
    "fewer edge ids": (changed(edge_ids=lambda t: t[1:]), "edge ids", "are needed"),
    "no edge ids": (changed(edge_ids=lambda t: None), "0 edge ids", "are needed"),
    "narrow": (changed(neighbors=lambda t: t.int()), "neighbors of int32", "must be int64"),
    "floats": (changed(neighbors=lambda t: t.bfloat16()), "neighbors of bfloat16", "must be int64"),
    "two dimensions": (changed(indptr=lambda t: t.view(1, -1)), r"indptr of int64 \[1, ", "1 dimension"),
    "lists": (changed(neighbors=lambda t: t.tolist()), "got list", "as a tensor"),
    "a number": (lambda answer: 7, "got int", "answer Drawn"),
    "tensors": (lambda answer: [*answer], "got list", "answer Drawn"),
}


@pytest.mark.parametrize("wrong", sorted(WRONG))
def test_a_wrong_answer_ends_in_an_error_that_names_the_part_and_leaves_the_others_usable(wrong):
    spoil, found, allowed = WRONG[wrong]
    graph = small_parts()
    peers, graph.peers = graph.peers, Spoiled(graph.peers, spoil)
    pipe = items(batch_size=22).dist_sample_neighbor(graph, [2], **OPTIONS)
    with refused((TypeError, ValueError), stage="dist_sample_neighbor: part 2", found=found, allowed=allowed) as caught:
        list(pipe)
    assert "stage 1 (dist_sample_neighbor), epoch 0, minibatch 0" in "".join(getattr(caught.value, "__notes__", ()))
    graph.peers = peers
    pipe.set_epoch(0)
    assert digests(pipe) == digests(items(batch_size=22).sample_neighbor(small_graph(), [2], **OPTIONS))


@pytest.mark.parametrize("replace", [False, True])
def test_with_replacement_a_node_has_none_or_all_of_its_picks(replace):
    graph = small_parts()
    graph.peers = Spoiled(graph.peers, _one_less)
    pipe = items().dist_sample_neighbor(graph, [2], replace=replace)
    if not replace:  # the node may have one in-edge
        assert len(digests(pipe)) == 6
        return
    with refused(ValueError, stage="part 2", found="as the picks of node", allowed="by 0 or 2 a node"):
        list(pipe)


def _one_less(drawn: Drawn) -> Drawn:
    indptr = drawn.indptr.clone()
    indptr[indptr == indptr[-1]] -= 1
    return Drawn(indptr, drawn.neighbors[:-1], None)


def test_the_error_of_a_part_reaches_the_caller_with_stage_minibatch_and_part():
    def fail(answer):
        raise OSError("the disk is gone")

    for num_workers in (0, 1):
        graph = small_parts()
        graph.peers = Spoiled(graph.peers, fail)
        pipe = items().dist_sample_neighbor(graph, [2])
        options = {"worker_method": "thread"} if num_workers else {}
        with dp.DataLoader(pipe, num_workers, **options) as loader, pytest.raises(OSError, match="the disk") as caught:
            list(loader)
        notes = "\n".join(getattr(caught.value, "__notes__", ()))
        assert "asked of part 2" in notes
        assert "(dist_sample_neighbor), epoch 0, minibatch 0" in notes


# --- loops of one's own


def test_nodes_and_edges_are_sampled_as_the_stage_does():
    rng = dp.stages.RngKey(5, 0, 3, 1)
    nodes, pairs = torch.tensor([4, 9, 4]), torch.tensor([[4, 9], [9, 4], [1, 4]])
    whole = items().sample_neighbor(small_graph(), [2, 3], **OPTIONS)
    parts = items().dist_sample_neighbor(small_parts(), [2, 3], **OPTIONS)

    async def both():
        return await asyncio.gather(parts.node_sample(nodes, rng), parts.edge_sample(pairs, rng))

    for found, seeds in zip(asyncio.run(both()), (nodes, pairs), strict=True):
        expected = whole.transform(dp.MiniBatch(seeds=seeds, rng=rng))
        assert torch.equal(found.nodes, expected.input_nodes)
        assert torch.equal(found.local_seeds, expected.compacted_seeds)
        for block, other in zip(found.hops, reversed(expected.blocks), strict=True):
            assert torch.equal(block.indices, other.indices)
            assert torch.equal(block.edge_ids, other.edge_ids)
    with refused(ValueError, stage="dist_sample", found=r"\[3, 2\]", allowed=r"nodes \[n\]", remedy="edge_sample"):
        asyncio.run(parts.node_sample(pairs, rng))
    with refused(ValueError, stage="dist_sample", found=r"\[3\]", allowed=r"\[n, 2\]", remedy="node_sample"):
        asyncio.run(parts.edge_sample(nodes, rng))


def test_nodes_and_edges_of_types_are_sampled_as_the_stage_does():
    rng = dp.stages.RngKey(5, 0, 3, 1)
    nodes, pairs = {"paper": torch.tensor([4, 9, 4])}, {WRITES: torch.tensor([[4, 9], [9, 4]])}
    whole = typed_items().sample_neighbor(typed_graph(), FANOUTS)
    parts = typed_items().dist_sample_neighbor(typed_parts(), FANOUTS)
    for sampled, seeds in ((parts.node_sample, nodes), (parts.edge_sample, pairs)):
        found = asyncio.run(sampled(seeds, rng))
        expected = whole.transform(dp.MiniBatch(seeds=seeds, rng=rng))
        made = dp.MiniBatch(
            seeds=seeds, input_nodes=found.nodes, compacted_seeds=found.local_seeds, blocks=found.hops[::-1]
        )
        assert made.digest() == expected.replace(rng=None, labels=None).digest()


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


def test_one_hop_refuses_what_it_cannot_draw():
    pipe = typed_items().dist_sample_neighbor(typed_parts(), FANOUTS)
    ids = torch.tensor([1])
    with refused(ValueError, stage="dist_sample_neighbor", found="'cite'", allowed="cites"):
        asyncio.run(pipe.sample_one_hop(ids, fanout=2, key=0, edge_type=("paper", "cite", "paper")))
    with refused(IndexError, stage="dist_sample_neighbor, paper", found="40", allowed=r"\[0, 40\)"):
        asyncio.run(pipe.sample_one_hop(ids + 39, fanout=2, key=0, edge_type=CITES))
    with refused(TypeError, stage="dist_sample_neighbor", found="ids.*list", allowed="."):
        asyncio.run(pipe.sample_one_hop([1], fanout=2, key=0, edge_type=CITES))
    with refused(ValueError, stage="dist_sample_neighbor", found="fanout.*-2", allowed="-1"):
        asyncio.run(pipe.sample_one_hop(ids, fanout=-2, key=0, edge_type=CITES))
    assert EDGE_TYPES[2] == CITES


def test_a_local_part_that_is_changed_in_place_has_no_state():
    graph = small_parts(local_part=1)
    pipe = items().dist_sample_neighbor(graph, fanouts=[3, 2])
    pipe.state_dict()
    graph.local_part.relation().indices[0] += 0
    with pytest.raises(
        ValueError, match=r"^Part: an array of part 1 was changed in place .* Partition the changed graph"
    ):
        pipe.state_dict()
    with pytest.raises(ValueError, match=r"^Part: an array of part 1 was changed in place"):
        copy.deepcopy(graph.local_part)


def test_the_repr_of_a_graph_in_parts_counts_its_types():
    graph = typed_graph()
    types = f"{len(graph.node_types)} node types, {len(graph.edge_types)} edge types"
    counts = f"{sum(graph.num_nodes.values())} nodes, {sum(graph.num_edges.values())} edges"
    assert repr(typed_parts(3)) == f"DistGraph(3 parts, part 1 is here, {types}, {counts})"
    plain = small_graph()
    counts = f"{plain.num_nodes} nodes, {plain.num_edges} edges"
    assert repr(small_parts(2, None)) == f"DistGraph(2 parts, all behind servers, {counts})"
