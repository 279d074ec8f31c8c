"""All samplers over real servers: minibatches and fingerprints of one machine; errors of a part travel typed."""

import contextlib
from collections.abc import Callable

import pytest
import torch
from partitions import source_of
from pipelines import digests

import datapipes as dp
from datapipes.distributed import PartitionBook, PartitionServer, ServerLimits, connect
from datapipes.distributed.requests.digests import DigestRequest
from datapipes.distributed.requests.draw import Draw, DrawRequest
from datapipes.distributed.server import guards, partition_server
from datapipes.distributed.server.guards import MemoryWatch
from datapipes.distributed.server.statistics import Statistics
from datapipes.distributed.server.tcp_connections import TcpConnections
from datapipes.graph.graph import Graph
from datapipes.partition.native.native_write import write_native
from datapipes.sampling.neighbor_sampler import ByWeight
from datapipes.sampling.temporal_neighbor_sampler import ByTime

NUM_NODES, NUM_EDGES = 200, 2000

SAMPLERS = {
    "sample_neighbor": ([[4, 3]], {"disjoint": True, "return_edge_ids": True}),
    "sample_in_subgraph": ([], {}),
    "temporal_sample_neighbor": ([[-1, 3]], {"edge_time_attr": "at", "node_time_attr": "since"}),
    "sample_layer_neighbor": ([[4, 3]], {"batch_dependency": 2}),
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


WEIGHTED = ([[4, 3]], {"prob_name": "w", "replace": True})


@pytest.mark.parametrize(("name", "arguments"), [*SAMPLERS.items(), ("sample_neighbor", WEIGHTED)], ids=str)
@pytest.mark.parametrize("local_part", [None, 1])
def test_servers_give_the_minibatches_and_the_fingerprint_of_one_machine(
    graph, root, namebook, connected, name, arguments, local_part
):
    fanouts, options = arguments
    whole = getattr(items(), name)(graph, *fanouts, **options)
    ours = getattr(items(), f"dist_{name}")(connected(root, namebook, local_part=local_part), *fanouts, **options)
    assert digests(ours) == digests(whole)
    assert ours.fingerprint() == whole.fingerprint()


WALKS = {"walks_per_node": 2, "prob_name": "w", "p": 2.0**-40, "q": 2.0, "return_edge_ids": True}
SUBGRAPHS = {
    "sample_random_walk": lambda graph: items().sample_random_walk(graph, 5, **WALKS),
    "sample_ppr": lambda graph: items().sample_ppr(graph, 9, subgraph_type="induced", disjoint=True),
    "sample_pinsage": lambda graph: items().sample_pinsage(graph, [3, 5], 4, 3, 0.2),
    "sample_shadow": lambda graph: items().sample_shadow(graph, [3, 2], return_edge_ids=True),
    "sample_induced_subgraph": lambda graph: items().sample_induced_subgraph(graph),
}


@pytest.mark.parametrize("name", SUBGRAPHS)
def test_servers_give_the_walks_and_subgraphs_of_one_machine(graph, root, namebook, connected, name):
    local_part = None if name < "sample_q" else 1
    whole, ours = (SUBGRAPHS[name](of) for of in (graph, connected(root, namebook, local_part=local_part)))
    assert digests(ours) == digests(whole)
    assert ours.fingerprint() == whole.fingerprint()


def test_a_partition_says_in_its_handshake_which_times_its_edges_have(root, namebook):
    with connect(namebook) as client:
        assert client.facts.node_time_attr == "since"


@pytest.mark.parametrize(
    ("choice", "error", "message"),
    [
        (ByWeight("bad"), ValueError, "the weight 'bad' is -"),
        (ByTime("short", None), TypeError, "must be int64, got int32"),
    ],
    ids=str,
)
def test_what_a_part_cannot_draw_by_is_a_typed_error_that_names_the_part(namebook, choice, error, message):
    ids = torch.tensor([0, 2, 4])
    times = {None: ids} if isinstance(choice, ByTime) else None
    draw = DrawRequest({None: ids}, (Draw(None, 2, 1),), times=times, choice=choice)
    with connect(namebook) as client:
        for request in (draw, DigestRequest((None,), choice)):
            with pytest.raises(error, match=rf"server 0 at {namebook[0]}: Part\..*{message}"):
                client._peers.ask(0, request).result(60)


def test_a_wrong_weight_names_stage_and_part(root, namebook, connected):
    pipe = items().dist_sample_neighbor(connected(root, namebook), [2], prob_name="bad")
    with pytest.raises(ValueError, match=r"part \d at .* the weight 'bad' is -.*position") as caught:
        next(iter(pipe))
    assert "(dist_sample_neighbor), epoch 0, minibatch" in "\n".join(getattr(caught.value, "__notes__", ()))


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
@pytest.mark.parametrize("local_part", [None, 1])
def test_links_over_servers_are_those_of_the_whole_graph(graph, namebook, root, connected, name, local_part):
    pairs = dp.ItemSet((dp.ItemSet.of_edges(graph)[:60][0], torch.arange(60)), names=("seeds", "timestamps"))

    def chain(over: Graph) -> dp.Stage:
        return LINKS[name](dp.ItemSampler(pairs, 16, shuffle=True, seed=3), over)

    parts = connected(root, namebook, local_part=local_part)
    assert digests(chain(parts)) == digests(chain(graph))
    assert chain(parts).fingerprint() == chain(graph).fingerprint()


def test_pairs_outside_the_graph_are_refused_by_the_owner_with_its_reason(namebook, root, connected):
    parts = connected(root, namebook)
    with pytest.raises(IndexError, match=r"has_edges: node id must be in \[0, 200\), got 999") as caught:
        parts.has_edges(torch.tensor([[1, 2], [999, 3]]))
    assert "asked of part 1" in caught.value.__notes__
    with pytest.raises(IndexError, match="200"):
        parts.has_edges(torch.tensor([[1, 999]]))
