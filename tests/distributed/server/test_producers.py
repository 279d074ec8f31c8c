"""Producers: chains that a server makes minibatches of: the same bits, claims, limits, what a client can do."""

import contextlib
import gc
import json
import multiprocessing
import os
import signal
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from amounts import amount
from partitions import source_of
from pipelines import BOUND_S, digests, fetched, item_set, items, sampled, small_graph, small_store, wait_until
from plain_clients import PlainClient
from typed_pipelines import typed_fetched, typed_graph, typed_store
from worker_ways import workers

import datapipes as dp
from datapipes.distributed import PartitionBook, PartitionServer, ServerLimits, connect, describe_chain
from datapipes.distributed.requests.chains import CreateRequest, MinibatchRequest, request_to_message
from datapipes.distributed.server import guards
from datapipes.distributed.server import producers as producers_module
from datapipes.distributed.server.guards import MemoryWatch
from datapipes.distributed.wire.arrow_message import Message, to_bytes
from datapipes.distributed.wire.refusals import BadRequest, UnknownProducer
from datapipes.partition.native.native_write import write_native


@contextlib.contextmanager
def served(graph, **options):
    """A server of a whole graph, and a client that calls it server 3."""
    with PartitionServer(graph, chains=True, **options) as server, connect({3: server.address}) as client:
        yield server, client


def numbered(seed, seeds=40):
    """One of several chains."""
    return dp.ItemSampler(dp.ItemSet(seeds), 4, seed=seed).sample_neighbor(small_graph(), [2])


def made(client, producer, count, epoch=0, rank=3):
    """The digests of the first minibatches of an epoch, all asked for at once."""
    answers = [client.minibatch(rank, producer, epoch, index) for index in range(count)]
    return [answer.result(BOUND_S).digest() for answer in answers]


# --- the same bits


@pytest.mark.parametrize("is_typed", [False, True])
def test_features_travel_with_the_minibatch(is_typed):
    graph, store, pipe = (
        (typed_graph(), typed_store(), typed_fetched()) if is_typed else (small_graph(), small_store(), fetched())
    )
    with served(graph, features=store) as (_, client):
        assert made(client, client.create_producer(3, pipe), len(pipe)) == digests(pipe)


def test_worker_processes_make_the_same_bits():
    pipe = fetched()
    with served(small_graph(), features=small_store(), limits=ServerLimits(max_workers=2)) as (_, client):
        producer = client.create_producer(3, pipe, num_workers=7)
        assert [(each.producer, each.num_workers) for each in client.list_producers(3)] == [(producer, 2)]
        assert made(client, producer, len(pipe)) == digests(pipe)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A graph with features, and the folder of its three parts."""
    graph = small_graph()
    feat = {"feat": torch.arange(120.0).view(40, 3)}
    graph = dp.CSCGraph(graph.indptr, graph.indices, edge_ids=graph.edge_ids, node_attributes=feat)
    root = tmp_path_factory.mktemp("parts")
    edges = torch.empty(200, dtype=torch.int64)
    edges[graph.edge_ids] = torch.repeat_interleave(torch.arange(40) % 3, graph.indptr.diff())
    book = PartitionBook(3, torch.arange(40) % 3, edges)
    write_native(root, source_of(graph), book, node_time_attr=None, about={}, progress=lambda *_: None)
    return graph, root


@contextlib.contextmanager
def three_servers(root, namebook, **options):
    """Servers of the three parts, each of which asks the others by a namebook that is written last."""
    options = {"chains": True, "features": ["feat"], "namebook": namebook, **options}
    with contextlib.ExitStack() as running:
        servers = [running.enter_context(PartitionServer(root, part, **options)) for part in range(3)]
        book = {part: server.address for part, server in enumerate(servers)}
        Path(namebook).write_text(json.dumps(book))
        yield servers


def over_parts(graph):
    store = dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(graph.node_attributes["feat"])})
    return items().sample_neighbor(graph, [3, 2]).fetch_feature(store, ["feat"])


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.full)])
def test_servers_of_parts_make_the_same_bits_and_cannot_wait_for_each_other(tmp_path, parts, num_workers):
    """With one thread for hops and one for minibatches, each server makes minibatches and answers the others."""
    graph, root = parts
    pipe = over_parts(graph)
    limits = ServerLimits(concurrency=1, max_workers=num_workers)
    with three_servers(root, tmp_path / "book.json", limits=limits) as servers:
        addresses = {10 + part: server.address for part, server in enumerate(servers)}
        with connect(addresses) as client:
            producers = {client.create_producer(rank, pipe, num_workers=num_workers) for rank in addresses}
            assert len(producers) == 1
            (producer,) = producers
            count = len(pipe)
            asked = [
                (index, client.minibatch(rank, producer, 0, index)) for index in range(count) for rank in addresses
            ]
            expected = digests(pipe)
            for index, answer in asked:
                assert answer.result(BOUND_S).digest() == expected[index]


def test_a_server_of_a_part_without_a_namebook_says_so(parts):
    server = PartitionServer(parts[1], 1, chains=True)
    with pytest.raises(ValueError, match=r"part 1 of 3, and no namebook of the others.*--namebook"):
        server.start()


# --- claims


def test_the_number_of_a_producer_is_that_of_its_chain(parts):
    graph, store = small_graph(), small_store()
    with served(graph, features=store) as (_, client), served(graph, features=store) as (_, other):
        producer = client.create_producer(3, fetched())
        assert 0 <= producer < 2**63
        assert client.create_producer(3, fetched(), num_workers=0) == producer == other.create_producer(3, fetched())
        assert client.create_producer(3, sampled()) != producer
    other_store = {**small_store(), ("node", None, "feat"): dp.TensorFeature(torch.ones(40, 3))}
    with served(graph, features=dp.FeatureStore(other_store)) as (_, client):
        assert client.create_producer(3, fetched()) != producer


def test_clients_have_claims_of_their_own():
    with served(small_graph()) as (server, one), connect({3: server.address}) as two:
        pipe = sampled()
        producer = one.create_producer(3, pipe, "train")
        with pytest.raises(UnknownProducer, match="not one of this client's"):
            two.minibatch(3, producer, 0, 0).result(BOUND_S)
        assert two.create_producer(3, pipe, "train") == producer
        assert [(each.producer, each.worker_key) for each in two.list_producers(3)] == [(producer, "train")]
        with pytest.raises(ValueError, match=f"worker_key 'train' is that of producer {producer}, which has another"):
            two.create_producer(3, sampled(frontier="new"), "train")
        reading = two.minibatch(3, producer, 0, 0)
        one.destroy_producer(3, producer)
        one.destroy_producer(3, producer)
        assert one.list_producers(3) == []
        expected = digests(pipe)
        assert reading.result(BOUND_S).digest() == expected[0]
        assert made(two, producer, 6, epoch=1) == digests(pipe)
        two.close()
        assert server.statistics()["producers"] == []
        assert made(two, producer, 6, epoch=0) == expected  # it creates it again
        two.destroy_producer(3, producer)
        other = one.create_producer(3, sampled(frontier="new"), "train")  # the key is free again
        assert other != producer
        assert one.num_batches(3, other) == 6


def test_a_server_that_was_started_again_goes_on(tmp_path):
    graph, pipe = small_graph(), sampled()
    first = PartitionServer(graph, chains=True)
    address = first.start()
    with connect({3: address}) as client:
        producer = client.create_producer(3, pipe, "train")
        before = made(client, producer, 3)
        first.stop(0.0)
        with PartitionServer(graph, address=address, chains=True):
            after = [client.minibatch(3, producer, 0, index).result(BOUND_S).digest() for index in range(3, 6)]
            assert before + after == digests(pipe)
            assert client.list_producers(3)[0].worker_key == "train"


def test_claims_that_nobody_uses_end(monkeypatch):
    with served(small_graph()) as (server, client):
        producer = client.create_producer(3, sampled())
        producers = server._service.producers
        producers.look()
        assert len(client.list_producers(3)) == 1
        monkeypatch.setattr(producers_module, "IDLE_S", -1.0)
        producers.look()
        assert client.list_producers(3) == []
        assert len(producers._kept) == 0
        assert made(client, producer, 1) == digests(sampled())[:1]  # the client creates it again


def test_a_graph_that_was_saved_is_served_from_its_folder(tmp_path):
    graph, store = small_graph(), small_store()
    graph = dp.CSCGraph(
        graph.indptr,
        graph.indices,
        edge_ids=graph.edge_ids,
        node_attributes={"feat": store["node", None, "feat"].read(torch.arange(40)), "secret": torch.ones(40)},
        edge_attributes={"weight": store["edge", None, "weight"].read(graph.edge_ids)},
    )
    graph.save(tmp_path / "graph")
    pipe = items().sample_neighbor(graph, [3, 2], return_edge_ids=True).fetch_feature(store, ["feat"], ["weight"])
    with served(tmp_path / "graph", features=["feat", "weight"]) as (_, client):
        assert made(client, client.create_producer(3, pipe), len(pipe)) == digests(pipe)
        secret = dp.FeatureStore({("node", None, "secret"): dp.TensorFeature(torch.ones(40))})
        with pytest.raises(LookupError, match=r"no feature .*'secret'"):
            client.create_producer(3, items().sample_neighbor(graph, [3]).fetch_feature(secret, ["secret"]))
        with pytest.raises(BadRequest, match="server of a whole graph: has no part"):
            client.fetch(0, torch.arange(3), is_node_feat=True, input_type=None, attr_name="feat").wait()


# --- what is not offered, and limits


def test_nothing_is_offered_by_default(parts):
    with (
        PartitionServer(parts[1], 0) as server,
        connect({0: server.address}) as client,
        pytest.raises(BadRequest, match=r"makes no minibatches of chains\. Start it with chains=True, or --chains"),
    ):
        client.create_producer(0, sampled())
    with served(small_graph()) as (_, client):
        with pytest.raises(ValueError, match="a feature store without a name, which is not offered"):
            client.create_producer(3, fetched())
        with pytest.raises(ValueError, match=r"stage 2 .'double'. is not offered"):
            client.create_producer(3, Double(sampled()))
        described = dp.distributed.describe_chain(dp.ItemSampler(own := item_set(), 4), {"train": own})
        with pytest.raises(ValueError, match="the item set 'train', which is not offered"):
            client.create_producer(3, described)
    with served(small_graph(), items={"train": item_set()}, stages=[Double]) as (_, client):
        pipe = dp.ItemSampler(own, 4).sample_neighbor(small_graph(), [2])
        producer = client.create_producer(3, dp.distributed.describe_chain(Double(pipe), {"train": own}))
        assert made(client, producer, 6) == digests(Double(pipe))


class Double(dp.MiniBatchTransformer):
    def transform(self, minibatch):
        return minibatch.replace(labels=minibatch.labels * 2)


class OnlyEven(dp.MiniBatchTransformer):
    def transform(self, minibatch):
        return minibatch if minibatch.index % 2 == 0 else None


class Fails(dp.MiniBatchTransformer):
    def transform(self, minibatch):
        raise ZeroDivisionError(f"at {minibatch.index}")


class KillsItself(dp.MiniBatchTransformer):
    """Ends the process that makes minibatch 1."""

    def transform(self, minibatch):
        if minibatch.index == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return minibatch


class KillsItselfLater(KillsItself):
    async def transform_async(self, minibatch):
        return self.transform(minibatch)


class KillsItselfSomeTimes(dp.MiniBatchTransformer):
    """Ends its worker at minibatch 3, and while the worker starts, as often as the two files have bytes."""

    def __init__(self, source, at_start, at_three):
        super().__init__(source)
        self.at_three = at_three
        if multiprocessing.current_process().name.startswith("datapipes-worker"):
            die_of(Path(at_start))

    def transform(self, minibatch):
        if minibatch.index == 3:
            die_of(Path(self.at_three))
        return minibatch


def die_of(file):
    if size := file.stat().st_size:
        os.truncate(file, size - 1)
        os.kill(os.getpid(), signal.SIGKILL)


class WaitsUntilTold(dp.MiniBatchTransformer):
    told: threading.Event

    def transform(self, minibatch):
        assert self.told.wait(BOUND_S)
        return minibatch


class WaitsForEver(dp.MiniBatchTransformer):
    """Never ends with minibatch 1."""

    def transform(self, minibatch):
        if minibatch.index == 1:
            threading.Event().wait()
        return minibatch


def test_what_stages_do_reaches_the_client_and_nobody_else():
    stages = [OnlyEven, Fails]
    with served(small_graph(), stages=stages) as (_, client):
        dropped = client.create_producer(3, OnlyEven(sampled()))
        assert client.minibatch(3, dropped, 0, 1).result(BOUND_S) is None
        fails = client.create_producer(3, Fails(sampled()))
        with pytest.raises(ZeroDivisionError, match="at 4") as raised:
            client.minibatch(3, fails, 0, 4).result(BOUND_S)
        assert "in stage 2 (fails), epoch 0, minibatch 4" in raised.value.__notes__
        assert "in transform" in str(raised.value.__cause__)
        assert client.minibatch(3, dropped, 0, 0).result(BOUND_S) is not None


@pytest.mark.parametrize("kind", [KillsItself, pytest.param(KillsItselfLater, marks=pytest.mark.full)])
def test_a_chain_that_kills_its_workers_is_charged_alone(kind):
    with served(small_graph(), stages=[kind]) as (_, client):
        kills = client.create_producer(3, kind(sampled()), num_workers=1)
        well = client.create_producer(3, sampled(), num_workers=1)
        asked = [client.minibatch(3, kills, 0, index) for index in range(6)]
        with pytest.raises(dp.PeerDied, match="4 workers died while they made minibatch 1 of epoch 0") as died:
            asked.pop(1).result(BOUND_S)
        assert len({*died.value.pids}) == 4
        whole = digests(sampled())
        assert [each.result(BOUND_S).digest() for each in asked] == [whole[0], *whole[2:]]
        assert made(client, well, 6) == whole


@contextlib.contextmanager
def dying(folder, at_start, at_three):
    """A client of a producer with one worker, which dies so often."""
    files = []
    for name, times in (("at_start", at_start), ("at_three", at_three)):
        files.append(str(folder / name))
        Path(files[-1]).write_bytes(times * b".")
    with served(small_graph(), stages=[KillsItselfSomeTimes]) as (_, client):
        yield client, client.create_producer(3, KillsItselfSomeTimes(sampled(), *files), num_workers=1)


def test_the_death_of_a_worker_that_waits_is_charged_to_no_minibatch(tmp_path):
    with dying(tmp_path, at_start=0, at_three=3) as (client, producer):
        got = [client.minibatch(3, producer, 0, 0).result(BOUND_S).digest()]
        (worker,) = workers()
        worker.kill()
        worker.join()
        got += [client.minibatch(3, producer, 0, index).result(BOUND_S).digest() for index in range(3, 6)]
        whole = digests(sampled())
        assert got == [whole[0], *whole[3:6]]
        assert (tmp_path / "at_three").read_bytes() == b""


@pytest.mark.parametrize("at_start", [3, 4])
def test_deaths_of_workers_that_start_are_charged_to_no_minibatch_and_bounded(tmp_path, at_start):
    with dying(tmp_path, at_start, at_three=3) as (client, producer):
        if at_start > 3:
            with pytest.raises(dp.PeerDied, match=r"producer: worker 0 \(pid \d+\) died while it started"):
                client.minibatch(3, producer, 0, 3).result(BOUND_S)
        assert client.minibatch(3, producer, 0, 3).result(BOUND_S).digest() == digests(sampled())[3]
        assert (tmp_path / "at_three").read_bytes() == b""


@pytest.mark.full
def test_a_minibatch_that_takes_too_long_ends(monkeypatch):
    with served(small_graph(), stages=[WaitsForEver]) as (_, client):
        monkeypatch.setattr(producers_module, "MAKING_S", 4.0)
        slow = client.create_producer(3, WaitsForEver(sampled()), num_workers=1)
        asked = [client.minibatch(3, slow, 0, index) for index in range(4)]
        with pytest.raises(TimeoutError, match=r"minibatch 1 of epoch 0 was not made within 4 s"):
            asked.pop(1).result(BOUND_S)
        assert [each.result(BOUND_S).index for each in asked] == [0, 2, 3]


@pytest.mark.parametrize("num_workers", [0, 1])
# Features are refused before they are read, hops and walks before they are drawn.
@pytest.mark.parametrize(
    ("most_bytes", "make", "error", "text"),
    [
        (
            1024,
            lambda _: sampled(fanouts=[-1, -1], return_edge_ids=False),
            ValueError,
            r"minibatch 0 of epoch 0 has \d+ bytes",
        ),
        (
            2**14,
            lambda store: sampled().fetch_feature(store, ["feat"]),
            ValueError,
            r"\d+000 bytes; .* most 16384",
        ),
        (2**20, lambda _: sampled(fanouts=[2, 10**9], replace=True), MemoryError, r"hop 0 .* 1000000000, .* 1048576"),
        (2**20, lambda _: items().sample_random_walk(small_graph(), 2**20), ValueError, r"33554464 bytes; .* 1048576"),
    ],
    ids=["minibatch", "features", "hop", "walks"],
)
def test_a_minibatch_that_is_too_large_is_refused(num_workers, most_bytes, make, error, text):
    store = dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(torch.zeros(40, 1000))})
    limits = ServerLimits(max_answer_bytes=most_bytes, max_bytes_in_flight=4 * most_bytes)
    with served(small_graph(), features=store, limits=limits) as (_, client):
        producer = client.create_producer(3, make(store), num_workers=num_workers)
        with pytest.raises(error, match=text):
            client.minibatch(3, producer, 0, 0).result(BOUND_S)


def test_what_a_failed_minibatch_has_made_is_freed_at_once():
    made = []

    class Fails(dp.MiniBatchTransformer):
        def transform(self, minibatch):
            made.append(weakref.ref(minibatch))
            raise ValueError("no")

    with served(small_graph(), stages=[Fails]) as (_, client):
        producer = client.create_producer(3, Fails(sampled()))
        gc.collect()
        gc.disable()
        try:
            with pytest.raises(ValueError, match="no"):
                client.minibatch(3, producer, 0, 0).result(BOUND_S)
            wait_until(lambda: made[0]() is None)
        finally:
            gc.enable()


def test_a_client_that_closes_with_minibatches_under_way_leaves_no_producer():
    with PartitionServer(small_graph(), chains=True) as server:
        for _ in range(amount(40, 10)):
            with connect({0: server.address}) as client:
                producer = client.create_producer(0, sampled())
                for epoch in range(4):
                    client.minibatch(0, producer, epoch, 0)
        wait_until(lambda: server.statistics()["producers"] == [])


def test_a_minibatch_over_parts_that_is_too_large_is_refused(tmp_path, parts):
    graph, root = parts
    limits = ServerLimits(max_answer_bytes="1KB", max_bytes_in_flight="4KB")
    servers_of = three_servers(root, tmp_path / "book.json", limits=limits)
    with servers_of as servers, connect({0: servers[0].address}) as client:
        producer = client.create_producer(0, items().sample_neighbor(graph, [-1, -1]))
        with pytest.raises(ValueError, match=r"minibatch 0 of epoch 0 has \d+ bytes; the server sends at most 1024"):
            client.minibatch(0, producer, 0, 0).result(BOUND_S)


def test_an_answer_that_its_client_does_not_read_holds_up_nobody_else():
    graph = dp.CSCGraph(*[each.clone() for each in (small_graph().indptr, small_graph().indices)])
    store = dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(torch.zeros(graph.num_nodes, 2**18))})
    pipe = dp.ItemSampler(dp.ItemSet(40), 10).sample_neighbor(graph, [-1]).fetch_feature(store, ["feat"])
    limits = ServerLimits(max_answer_bytes="64MB", max_bytes_in_flight="256MB", stall_s=BOUND_S, concurrency=2)
    with served(graph, features=store, limits=limits) as (server, client), PlainClient(server.address) as idle:
        idle.hello()
        request, token = describe_chain(pipe), "i" * 32
        create = CreateRequest(token, request.header, None, 0)
        idle.ask(request_to_message(create, idle.meant, request.tensors))
        producer = client.create_producer(3, pipe)
        asks = [request_to_message(MinibatchRequest(token, producer, 0, index), idle.meant) for index in range(4)]
        kept = []
        threads = [threading.Thread(target=opens, args=(idle, ask, kept), daemon=True) for ask in asks]
        for each in threads:
            each.start()
        wait_until(lambda: server.statistics()["producers"][0]["waiting"] >= 2)
        assert made(client, producer, 4) == digests(pipe)
        server.stop(0.0)
        for each in threads:
            each.join(BOUND_S)


def test_a_client_whose_minibatches_never_end_leaves_the_others_a_thread():
    with served(small_graph(), stages=[WaitsUntilTold], limits=ServerLimits(concurrency=1)) as (server, client):
        WaitsUntilTold.told = threading.Event()
        slow = client.create_producer(3, WaitsUntilTold(sampled()))
        waiting = [client.minibatch(3, slow, 0, index) for index in range(4)]
        try:
            wait_until(lambda: server.statistics()["producers"][0]["working"] == 1)
            with connect({3: server.address}) as other:
                assert made(other, other.create_producer(3, sampled()), 6) == digests(sampled())
        finally:
            WaitsUntilTold.told.set()
        assert [each.result(BOUND_S).index for each in waiting] == [0, 1, 2, 3]


def opens(idle, ask, kept):
    with contextlib.suppress(Exception):
        kept.append(idle.open(to_bytes("idle", ask)))  # a stream that is let go is cancelled


def test_clients_have_limits(monkeypatch):
    with served(small_graph()) as (server, client), connect({3: server.address}) as other:
        monkeypatch.setattr(producers_module, "NUM_PRODUCERS_EACH", 2)
        monkeypatch.setattr(producers_module, "TENSOR_BYTES", 2000)
        for seed in (1, 2, 2):
            client.create_producer(3, numbered(seed))
        with pytest.raises(BadRequest, match="would be 3 producers of one client; at most 2 are allowed"):
            client.create_producer(3, numbered(3))
        with pytest.raises(BadRequest, match="8000 bytes of tensors of one client; at most 500 are allowed"):
            other.create_producer(3, numbered(1, torch.arange(1000) % 40))
        assert len(digests(numbered(1))) == len(made(other, other.create_producer(3, numbered(1)), 10))
        with pytest.raises(BadRequest, match=r"has 10 minibatches in an epoch, asked was for 10"):
            client.minibatch(3, client.create_producer(3, numbered(1)), 0, 10).result(BOUND_S)


def of_mask(num_bytes):
    """A description whose seeds are a mask of so many True places."""
    described = describe_chain(sampled())
    arguments = described.header["stages"][0]["arguments"]
    arguments["item_set"] = {"item_set": [{"tensor": "mask"}, ["seeds"]]}
    return Message(described.header, {"mask": torch.ones(num_bytes, dtype=torch.bool)})


def test_a_mask_counts_as_what_the_chain_will_hold(monkeypatch):
    with served(small_graph(), limits=ServerLimits(max_workers=1)) as (server, client):
        producers = server._service.producers
        monkeypatch.setattr(producers_module, "TENSOR_BYTES", 4 * 8000)
        for described, num_workers, found in ((of_mask(1001), 0, 8008), (of_mask(501), 1, 8016)):
            with pytest.raises(BadRequest, match=f"{found} bytes of tensors of one client; at most 8000 are allowed"):
                client.create_producer(3, described, num_workers=num_workers)
        assert producers._building == []
        client.create_producer(3, numbered(1, torch.arange(500) % 40), num_workers=1)
        assert [each["held_bytes"] for each in server.statistics()["producers"]] == [8000]


def test_where_memory_is_short_the_largest_producers_end_first_and_stay_away(monkeypatch):
    monkeypatch.setattr(producers_module, "LEAST_ENDED", 1000)
    with served(small_graph()) as (server, client), connect({3: server.address}, deadline=0.5) as other:
        well = client.create_producer(3, sampled())
        small, large = (other.create_producer(3, numbered(seed, torch.arange(40).repeat(seed))) for seed in (5, 8))
        memory = iter([3000, 3000, 500])  # above the bound of 1000, until a producer has ended
        monkeypatch.setattr(guards, "own_memory", lambda statm=None: next(memory, 500))
        service = server._service
        watch = MemoryWatch(0, 1000, service.statistics, NoConnections(), end_producers=service.end_producers)
        watch.look()
        watch.close()
        assert {each["producer"] for each in server.statistics()["producers"]} == {well, small}
        assert server.statistics()["memory_sheds"] == 1
        with pytest.raises(dp.ServerUnavailable, match="was ended since the server's memory exceeded its bound"):
            other.minibatch(3, large, 0, 0).result(BOUND_S)
        assert made(client, well, 6) == digests(sampled())
        assert service.end_producers(10**9) == 1
        assert {each["producer"] for each in server.statistics()["producers"]} == {well}


class NoConnections:
    def end_all(self, port):
        pytest.fail("connections are ended")


def test_what_one_client_asks_too_much_is_refused_and_others_go_on():
    with (
        served(small_graph(), limits=ServerLimits(max_request_bytes="1MB")) as (server, client),
        connect({3: server.address}) as other,
    ):
        good = other.create_producer(3, sampled())
        seeds = torch.zeros(10**6, dtype=torch.int64)
        for pipe, error, match in (
            (dp.ItemSampler(dp.ItemSet(seeds), 4), BadRequest, "8[0-9]{6} bytes; at most 1048576 are allowed"),
            (nested(200), ValueError, "'fanouts' is nested more than 8 levels deep"),
        ):
            with pytest.raises(error, match=match):
                client.create_producer(3, pipe)
        many = dp.ItemSampler(dp.ItemSet(2**62), 4).sample_neighbor(small_graph(), [2**31 - 1, -1])
        producer = client.create_producer(3, many)
        with pytest.raises((IndexError, ValueError, MemoryError)):
            client.minibatch(3, producer, 0, 2**59).result(BOUND_S)
        all_of_them = dp.ItemSampler(dp.ItemSet(2**50), 2**49).sample_neighbor(small_graph(), [1])
        pairs = dp.ItemSampler(dp.ItemSet(torch.zeros(64, 2, dtype=torch.int64)), 64)
        for pipe in (all_of_them, pairs.sample_uniform_negative(small_graph(), 2_000_000)):
            with pytest.raises(ValueError, match=r"a minibatch has \d+ seeds, negatives counted too"):
                client.create_producer(3, pipe)
        for seed in range(40):
            with contextlib.suppress(BadRequest):
                client.create_producer(3, numbered(seed))
        assert len(client.list_producers(3)) == 16
        assert made(other, good, 6) == digests(sampled())


def nested(depth):
    """A description that nests lists."""
    described = dp.distributed.describe_chain(sampled())
    value: list = []
    for _ in range(depth):
        value = [value]
    described.header["stages"][1]["arguments"]["fanouts"] = value
    return described


def test_a_producer_that_ends_while_its_workers_start_leaves_none():
    with served(small_graph(), limits=ServerLimits(max_workers=2)) as (server, client):
        children = {each.pid for each in multiprocessing.active_children()}
        for seed in range(amount(8, 2)):
            producer = client.create_producer(3, numbered(seed), num_workers=2)
            asked = [client.minibatch(3, producer, 0, index) for index in range(4)]
            client.destroy_producer(3, producer)
            for answer in asked:
                assert isinstance(answer.exception(BOUND_S), (UnknownProducer, dp.ServerUnavailable, type(None)))
        assert server.statistics()["producers"] == []
    wait_until(lambda: {each.pid for each in multiprocessing.active_children()} <= children)


def test_a_producer_that_ends_while_it_asks_other_parts_is_unknown(tmp_path, parts):
    graph, root = parts
    with three_servers(root, tmp_path / "book.json") as servers, connect({0: servers[0].address}) as client:
        for _ in range(amount(20, 4)):
            producer = client.create_producer(0, over_parts(graph))
            asked = [client.minibatch(0, producer, 0, index) for index in range(6)]
            asked[0].result(BOUND_S)
            client.destroy_producer(0, producer)
            for answer in asked:
                assert isinstance(answer.exception(BOUND_S), (UnknownProducer, type(None)))


def test_of_two_chains_under_one_key_at_once_one_leaves_nothing():
    with served(small_graph(), stages=[Slow]) as (server, one), connect({3: server.address}) as two:
        Slow.both = threading.Barrier(2, timeout=BOUND_S)
        pipes = [Slow(sampled()), Slow(sampled(frontier="new"))]
        described = [dp.distributed.describe_chain(pipe) for pipe in pipes]
        Slow.meets = True
        try:
            with ThreadPoolExecutor(2) as threads:
                asked = [
                    threads.submit(client.create_producer, 3, each, "train")
                    for client, each in zip((one, two), described, strict=True)
                ]
                errors = [each.exception() for each in asked]
        finally:
            Slow.meets = False
        assert (
            sorted(map(type, errors), key=str) == [type(None), ValueError]
            or [*map(type, errors)].count(ValueError) == 1
        )
        for client in (one, two):
            for each in client.list_producers(3):
                client.destroy_producer(3, each.producer)
        assert server.statistics()["producers"] == []


class Slow(dp.MiniBatchTransformer):
    """Is built on a server when another one is too."""

    meets = False

    def __init__(self, source):
        super().__init__(source)
        if Slow.meets:
            Slow.both.wait()

    def transform(self, minibatch):
        return minibatch


def test_a_thousand_producers_leave_nothing_behind():
    before = threading.active_count()
    with served(small_graph()) as (server, client):
        for seed in range(amount(1000, 60)):
            client.destroy_producer(3, client.create_producer(3, numbered(seed)))
        assert server.statistics()["producers"] == []
    assert threading.active_count() <= before + 2


def test_what_a_server_of_chains_refuses(refuses):
    graph = small_graph()
    for error, options in (
        (TypeError, {"stages": [1]}),
        (TypeError, {"items": {"train": 5}}),
        (TypeError, {"features": 5}),
    ):
        refuses(error, PartitionServer, graph, chains=True, **options)
        refuses(ValueError, PartitionServer, graph, **options)
    refuses(ValueError, PartitionServer, graph, limits=ServerLimits(max_workers=1))
    refuses(ValueError, PartitionServer(graph).start)
    refuses(ValueError, PartitionServer, graph, 0, chains=True)
    with served(graph) as (_, client):
        refuses(TypeError, client.create_producer, 3, sampled(), 5)
        refuses(ValueError, client.create_producer, 3, sampled(), num_workers=-1)
        refuses(ValueError, client.create_producer, 4, sampled())
        refuses(ValueError, client.minibatch, 3, -1, 0, 0)
        with pytest.raises(UnknownProducer, match=r"producer 5 is not one of this client's\. Create it again"):
            client.minibatch(3, 5, 0, 0).result(BOUND_S)
        with pytest.raises(
            UnknownProducer, match=r"producer 5 is not one of this client's\. Call create_producer first"
        ):
            client.num_batches(3, 5)
