"""All samplers over real servers: minibatches and fingerprints of one machine; errors of a part travel typed."""

import contextlib
from collections.abc import Callable

import pytest
import torch
from partitions import source_of

import datapipes as dp
from datapipes.distributed import DistGraph, PartitionBook, PartitionServer, ServerLimits, connect
from datapipes.distributed.requests.digests import DigestRequest
from datapipes.distributed.requests.draw import Draw, DrawRequest
from datapipes.distributed.server import guards, partition_server
from datapipes.distributed.server.guards import MemoryWatch
from datapipes.distributed.server.statistics import Statistics
from datapipes.distributed.server.tcp_connections import TcpConnections
from datapipes.distributed.wire.refusals import BadRequest
from datapipes.graph.choice import UNIFORM, Choice
from datapipes.graph.graph import Graph
from datapipes.partition.native.native_write import write_native
from datapipes.sampling.layer_neighbor_sampler import Numbered
from datapipes.sampling.neighbor_sampler import ByWeight
from datapipes.sampling.temporal_neighbor_sampler import ByTime

NUM_NODES, NUM_EDGES = 200, 2000
BOTH = {"edge_time_attr": "at", "node_time_attr": "since"}

SAMPLERS: dict[str, tuple[Callable[..., dp.Stage], Callable[..., dp.Stage]]] = {
    "trees": (
        lambda items, graph: items.sample_neighbor(graph, [4, 3], disjoint=True, return_edge_ids=True),
        lambda items, graph: items.dist_sample_neighbor(graph, [4, 3], disjoint=True, return_edge_ids=True),
    ),
    "weights": (
        lambda items, graph: items.sample_neighbor(graph, [4, 3], prob_name="w", replace=True),
        lambda items, graph: items.dist_sample_neighbor(graph, [4, 3], prob_name="w", replace=True),
    ),
    "in-subgraph": (
        lambda items, graph: items.sample_in_subgraph(graph),
        lambda items, graph: items.dist_sample_in_subgraph(graph),
    ),
    "times": (
        lambda items, graph: items.temporal_sample_neighbor(graph, [-1, 3], **BOTH),
        lambda items, graph: items.dist_temporal_sample_neighbor(graph, [-1, 3], **BOTH),
    ),
    "layers": (
        lambda items, graph: items.sample_layer_neighbor(graph, [4, 3], batch_dependency=2),
        lambda items, graph: items.dist_sample_layer_neighbor(graph, [4, 3], batch_dependency=2),
    ),
}


@pytest.fixture(scope="module")
def graph() -> dp.CSCGraph:
    made = torch.Generator().manual_seed(0)
    return dp.CSCGraph.from_edge_index(
        torch.randint(NUM_NODES, (2, NUM_EDGES), generator=made),
        NUM_NODES,
        node_attributes={"since": torch.randint(50, (NUM_NODES,), generator=made)},
        edge_attributes={
            "w": torch.rand(NUM_EDGES, generator=made),
            "bad": torch.rand(NUM_EDGES, generator=made) - 1,
            "at": torch.randint(50, (NUM_EDGES,), generator=made),
            "short": torch.zeros(NUM_EDGES, dtype=torch.int32),
        },
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory, graph):
    root = tmp_path_factory.mktemp("parts")
    book = PartitionBook(2, torch.arange(NUM_NODES) % 2)
    write_native(root, source_of(graph), book, node_time_attr="since", about={}, progress=lambda *_: None)
    return root


@pytest.fixture(scope="module")
def namebook(root):
    with PartitionServer(root, 0) as first, PartitionServer(root, 1) as second:
        yield {0: first.address, 1: second.address}


def items() -> dp.ItemSampler:
    seeds = torch.arange(NUM_NODES)
    return dp.ItemSampler(dp.ItemSet((seeds, seeds % 50), names=("seeds", "timestamps")), 32, shuffle=True, seed=3)


def digests(pipe: dp.Stage) -> list[str]:
    return [minibatch.digest() for minibatch in pipe]


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("local_part", [None, 1])
def test_servers_give_the_minibatches_and_the_fingerprint_of_one_machine(graph, root, namebook, name, local_part):
    of_whole, of_parts = SAMPLERS[name]
    parts = DistGraph.connect(root, namebook, local_part=local_part)
    try:
        whole, ours = of_whole(items(), graph), of_parts(items(), parts)
        assert digests(ours) == digests(whole)
        assert ours.fingerprint() == whole.fingerprint()
    finally:
        parts.close()


def test_a_partition_says_in_its_handshake_which_times_its_edges_have(root, namebook):
    with connect(namebook) as client:
        assert client.facts.node_time_attr == "since"


@pytest.mark.parametrize(
    ("choice", "error", "message"),
    [
        (ByWeight("bad"), ValueError, "the weight 'bad' is -"),
        (ByWeight("nope"), ValueError, "no edge attribute 'nope'"),
        (ByWeight("at"), TypeError, "the weights 'at' must be one of bool, float16"),
        (ByTime("nope", None), ValueError, "edge_time_attr is 'nope', but the graph does not have it"),
        (ByTime("short", None), TypeError, "must be int64, got int32"),
        (ByTime(None, "when"), ValueError, "node_time_attr is 'when', but the graph does not have it"),
    ],
    ids=str,
)
def test_what_a_part_cannot_draw_by_is_a_typed_error_that_names_the_part(namebook, choice, error, message):
    ids = torch.tensor([0, 2, 4])
    times = {None: ids} if isinstance(choice, ByTime) else None
    with connect(namebook) as client:
        for asked in (
            client._peers.ask(0, DrawRequest({None: ids}, (Draw(None, 2, 1),), times=times, choice=choice)),
            client._peers.ask(0, DigestRequest((None,), choice)),
        ):
            with pytest.raises(error, match=rf"server 0 at {namebook[0]}: Part\..*{message}"):
                asked.result(60)


@pytest.mark.parametrize(
    ("choice", "columns"),
    [
        (ByTime("at", None), {}),
        (UNIFORM, {"times": {None: torch.tensor([0, 2])}}),
        (Numbered(2, 1), {}),
        (Numbered(), {"streams": {None: torch.tensor([0, 2]).to(torch.uint32)}}),
    ],
    ids=str,
)
def test_a_request_that_does_not_fit_its_choice_is_refused(namebook, choice: Choice, columns):
    request = DrawRequest({None: torch.tensor([0, 2])}, (Draw(None, 2, 1),), choice=choice, **columns)
    with connect(namebook) as client, pytest.raises(BadRequest):
        client.draw(0, request).result(60)


def test_a_wrong_weight_names_stage_and_part(root, namebook):
    parts: Graph = DistGraph.connect(root, namebook)
    try:
        with pytest.raises(ValueError, match=r"part \d at .* the weight 'bad' is -.*position") as caught:
            next(iter(items().dist_sample_neighbor(parts, [2], prob_name="bad")))
        assert "(dist_sample_neighbor), epoch 0, minibatch" in "\n".join(getattr(caught.value, "__notes__", ()))
    finally:
        parts.close()


def test_what_a_part_makes_for_its_draws_does_not_count_against_the_bound_of_its_clients(root, monkeypatch):
    watches, real = [], partition_server.MemoryWatch
    monkeypatch.setattr(partition_server, "MemoryWatch", lambda *given: watches.append(real(*given)) or watches[-1])
    with PartitionServer(root, 0, limits=ServerLimits(max_memory="auto")) as server, PartitionServer(root, 1) as other:
        assert watches[0].kept_bytes() == 0
        with connect({0: server.address, 1: other.address}) as client:
            client._peers.ask(0, DigestRequest((None,), ByWeight("w"))).result(60)
        assert watches[0].kept_bytes() >= 9 * server._service.part.relation().num_edges - 64
    monkeypatch.setattr(guards, "own_memory", lambda *_: 150)
    with contextlib.closing(TcpConnections()) as connections:
        watch = MemoryWatch(1, 100, statistics := Statistics(), connections, lambda: 50)
        with contextlib.closing(watch):
            watch.look()
            assert statistics.values()["memory_sheds"] == 0
            watch.kept_bytes = lambda: 49
            watch.look()
            assert statistics.values()["memory_sheds"] == 1


# --- links


LINKS: dict[str, Callable[..., dp.Stage]] = {
    "strict": lambda pairs, graph: pairs.sample_uniform_negative(graph, 3, strict=True).sample_neighbor(graph, [3]),
    "times": lambda pairs, graph: pairs.sample_uniform_negative(graph, 2, strict=True, node_time_attr="since"),
    "excluded": lambda pairs, graph: pairs.sample_neighbor(graph, [9, 9]).exclude_seed_edges(True),
    "induced": lambda pairs, graph: pairs.sample_neighbor(graph, [2, 2], subgraph_type="induced", return_edge_ids=True),
}


@pytest.mark.parametrize("name", LINKS)
def test_links_over_servers_are_those_of_the_whole_graph(graph, namebook, root, name):
    names = ("seeds", "timestamps")
    items = dp.ItemSet((dp.ItemSet.of_edges(graph)[:60][0], torch.arange(60)), names=names)

    def chain(over: Graph) -> dp.Stage:
        return LINKS[name](dp.ItemSampler(items, 16, shuffle=True, seed=3), over)

    expected = [minibatch.digest() for minibatch in chain(graph)]
    for local_part in (None, 1):
        with contextlib.closing(DistGraph.connect(root, namebook, local_part=local_part)) as parts:
            assert [minibatch.digest() for minibatch in chain(parts)] == expected
            assert chain(parts).fingerprint() == chain(graph).fingerprint()


def test_pairs_outside_the_graph_are_refused_by_the_owner_with_its_reason(namebook, root):
    with contextlib.closing(DistGraph.connect(root, namebook)) as parts:
        with pytest.raises(IndexError, match=r"has_edges: node id must be in \[0, 200\), got 999") as caught:
            parts.has_edges(torch.tensor([[1, 2], [999, 3]]))
        assert "asked of part 1" in caught.value.__notes__
        with pytest.raises(IndexError, match="200"):
            parts.has_edges(torch.tensor([[1, 999]]))
