"""RemoteSource: a chain whose minibatches come from servers: the bits, length and state of the chain itself."""

import contextlib
import pickle
import random
from pathlib import Path

import pytest
import torch
from amounts import amount
from described_chains import CHAINS
from partitions import source_of
from pipelines import BOUND_S, digests, fetched, items, sampled, small_graph, small_store
from proxy import Proxy
from warm_servers import WarmServer

import datapipes as dp
from datapipes.distributed import (
    DistGraph,
    PartitionBook,
    PartitionServer,
    RemoteReceivingChannel,
    RemoteSource,
    connect,
)
from datapipes.partition.native.native_write import write_native

SHORT_S = 1.0
FEW = ["neighbors", "links", "typed"]


@contextlib.contextmanager
def remote(pipe, graph, num_servers=1, channel=None, deadline=30.0, **options):
    """`pipe` as servers make it."""
    with contextlib.ExitStack() as running:
        servers = [running.enter_context(PartitionServer(graph, chains=True, **options)) for _ in range(num_servers)]
        namebook = {rank: server.address for rank, server in enumerate(servers)}
        client = running.enter_context(connect(namebook, deadline=deadline))
        yield over(client, pipe, [*namebook], **(channel or {})), servers


def over(client, pipe, ranks, **channel):
    producers = [client.create_producer(rank, pipe) for rank in ranks]
    return RemoteSource(pipe, RemoteReceivingChannel(ranks, producers, client=client, **channel))


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FEW else pytest.mark.full) for name in CHAINS])
def test_the_bits_are_those_of_the_chain(name):
    make_graph, chain = CHAINS[name]
    pipe = chain(make_graph())
    with remote(chain(make_graph()), make_graph(), num_servers=2) as (source, _):
        assert len(source) == len(pipe)
        assert [digests(source) for _ in range(2)] == [digests(pipe) for _ in range(2)]


@pytest.mark.parametrize("features", ["on the wire", "here"])
def test_a_loader_goes_on_from_where_another_stood(features):
    """A state moves from a local loader to a remote one and back."""
    graph, store = small_graph(), small_store()
    expected = digests(dp.DataLoader(fetched()))
    with remote(fetched() if features == "on the wire" else sampled(), graph, 2, features=store) as (source, _):
        there = source if features == "on the wire" else source.fetch_feature(store, ["feat"], ["weight"])
        loaders = [dp.DataLoader(fetched()), dp.DataLoader(there), dp.DataLoader(fetched()), dp.DataLoader(there)]
        found, state = [], None
        for loader, count in zip(loaders, (1, 2, 1, 2), strict=True):
            if state is not None:
                loader.load_state_dict(state)
            stream = iter(loader)
            found += [next(stream).digest() for _ in range(count)]
            state = loader.state_dict()
            loader.close()
        assert found == expected


def test_ranks_share_an_epoch_and_its_state():
    expected = digests(sampled())
    graph = small_graph()
    with PartitionServer(graph, chains=True) as server, connect({0: server.address}) as client:
        ranks = [over(client, sampled(), [0], rank=rank, world_size=4) for rank in range(4)]
        assert [len(each) for each in ranks] == [2, 2, 1, 1]
        assert [digests(each) for each in ranks] == [expected[rank::4] for rank in range(4)]
        streams = [iter(dp.DataLoader(each)) for each in ranks]
        assert [next(stream).index for stream in streams] == [0, 1, 2, 3]
        state = dp.DataLoader(ranks[1]).state_dict()
        assert state["fingerprint"] == sampled().state_dict()["fingerprint"]
        copy = pickle.loads(pickle.dumps(ranks[3]))
        assert digests(copy) == expected[3::4]
        copy.channel.client.close()


def test_a_broken_epoch_leaves_nothing_for_the_next():
    expected = [digests(pipe := sampled()), digests(pipe), digests(pipe)]
    with remote(sampled(), small_graph(), 2) as (source, _):
        loader = dp.DataLoader(source)
        for minibatch in loader:
            assert minibatch.digest() == expected[0][0]
            break
        assert digests(loader) == expected[1]
        assert digests(loader) == expected[2]


def test_an_epoch_ends_within_a_deadline_where_all_servers_are_gone():
    with remote(sampled(items(400)), small_graph(), 3, {}, SHORT_S) as (source, servers):
        loader = dp.DataLoader(source, timeout=3 * SHORT_S)
        for server in servers:
            server.stop(0.0)
        with pytest.raises(dp.ServerUnavailable, match=r"server [012] at .*: no answer within 1 s"):
            digests(loader)


def test_servers_that_are_killed_lose_nothing(tmp_path):
    small_graph().save(root := tmp_path / "graph")
    with WarmServer(root, None, "--chains") as one, WarmServer(root, None, "--chains") as two:
        client = connect({0: one.address, 1: two.address})
        source = over(client, sampled(), [0, 1], prefetch_size=1)
        for epoch in range(amount(20, 1)):
            found = []
            for place, minibatch in enumerate(source):
                found.append(minibatch.digest())
                if place in (1, 3):
                    server = (one, two)[place == 3]
                    server.kill()
                    server.start()
            assert found == digests_of_epoch(epoch)
        client.close()


@pytest.mark.full
def test_connections_that_are_cut_lose_nothing():
    numbers = random.Random(3)
    with PartitionServer(small_graph(), chains=True) as server, Proxy(server.address, delay=0.001) as proxy:
        client = connect({0: proxy.address})
        source = over(client, sampled(), [0])
        for epoch in range(15):
            found = []
            for minibatch in source:
                found.append(minibatch.digest())
                if numbers.random() < 0.5:
                    proxy.tell("cut")
            assert found == digests_of_epoch(epoch)
        client.close()


def digests_of_epoch(epoch):
    pipe = sampled()
    pipe.set_epoch(epoch)
    return digests(pipe)


def test_a_trainer_needs_no_graph(tmp_path):
    """The chain stands over a DistGraph that has facts alone."""
    graph = small_graph()
    book = PartitionBook(2, torch.arange(40) % 2)
    write_native(tmp_path, source_of(graph), book, node_time_attr=None, about={}, progress=lambda *_: None)
    namebook = Path(tmp_path / "namebook.json")
    options = {"chains": True, "namebook": namebook}
    with PartitionServer(tmp_path, 0, **options) as one, PartitionServer(tmp_path, 1, **options) as two:
        namebook.write_text(f'{{"0": "{one.address}", "1": "{two.address}"}}')
        facts_only = DistGraph.connect(tmp_path, namebook)
        with connect(namebook) as client, contextlib.closing(facts_only):
            pipe = items().sample_neighbor(facts_only, [3, 2], return_edge_ids=True, frontier="new")
            loader = dp.DataLoader(over(client, pipe, [0, 1]))
            expected = items().sample_neighbor(graph, [3, 2], return_edge_ids=True, frontier="new")
            assert digests(loader) == digests(expected)


def test_a_minibatch_is_made_again_by_a_server():
    expected = [*dp.DataLoader(fetched())]
    with remote(sampled(), small_graph()) as (source, servers):
        loader = dp.DataLoader(source.fetch_feature(small_store(), ["feat"], ["weight"]))
        assert [loader.minibatch(0, index).digest() for index in (4, 0)] == [expected[at].digest() for at in (4, 0)]
        assert servers[0].statistics()["requests"]["minibatch"]["results"] == {"ok": 2}
        with pytest.raises(ValueError, match=r"index must be"):
            loader.minibatch(0, 6)


@pytest.mark.parametrize("name", ["neighbors", "weights", "layers", "links", "typed", "typed weights"])
def test_a_trainer_needs_no_whole_graph_either(name):
    make_graph, chain = CHAINS[name]
    with PartitionServer(make_graph(), chains=True) as server, connect({0: server.address}) as client:
        facts_only = client.graph()
        source = over(client, chain(facts_only), [0])
        assert digests(source) == digests(chain(make_graph()))
        facts_only.close()


def test_it_is_shown_as_servers(tmp_path):
    with remote(sampled(), small_graph(), 2) as (source, servers):
        loader = dp.DataLoader(source.fetch_feature(small_store(), ["feat"]))
        list(loader)
        loader.report(tmp_path / "report.html")
        assert f"server 0 at {servers[0].address}" in (tmp_path / "report.html").read_text()
        text = loader.explain()
        assert (
            f"server 0 at {servers[0].address}, server 1 at {servers[1].address}, each up to 4 minibatches ahead"
            in text
        )
        assert repr(source).startswith("RemoteSource(servers=[0, 1], producer=")


def test_what_a_remote_source_refuses(refuses):
    with remote(sampled(), small_graph()) as (source, _):
        refuses(ValueError, dp.DataLoader, source, num_workers=1)
        refuses(TypeError, RemoteSource, sampled(), 5)
        for pipe in (
            sampled(items(batch_size=8)),
            sampled(items(seed=6)),
            fetched(),
            sampled().copy_to("cpu"),
            source,
        ):
            refuses(ValueError, RemoteSource, pipe, source.channel)
        short = RemoteReceivingChannel(0, source.channel.producer_id, 3, client=source.channel.client)
        refuses(ValueError, RemoteSource, sampled(), short)
        other = items().sample_neighbor(small_graph(), [1], return_edge_ids=True)
        refuses(ValueError, source.load_state_dict, other.state_dict())


def test_two_loaders_over_one_source_do_not_disturb_each_other():
    expected = digests(sampled())
    with remote(sampled(), small_graph()) as (source, _):
        one, two = dp.DataLoader(source, timeout=BOUND_S), dp.DataLoader(source, timeout=BOUND_S)
        stream = iter(one)
        found = [next(stream).digest()]
        assert digests(two) == expected
        assert found + [each.digest() for each in stream] == expected


def test_the_producer_is_created_on_servers_that_lack_it():
    with remote(sampled(), small_graph(), 3) as (source, servers):
        client = source.channel.client
        for rank in (1, 2):
            client.destroy_producer(rank, source.channel.producer_id)
        channel = RemoteReceivingChannel([0, 1, 2], source.channel.producer_id, client=client)
        assert digests(RemoteSource(sampled(), channel)) == digests(sampled())
        assert [len(server.statistics()["producers"]) for server in servers] == [1, 1, 1]
