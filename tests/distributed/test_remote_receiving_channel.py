"""RemoteReceivingChannel: epochs, ranks, ends; and what GraphLearn's channel of this name gets wrong, one by one:

* a request that fails is logged and dropped, and recv waits for ever: test_fault_table.py, "a stage raises on a server"
  and "the server of a producer is lost, and there is none other, or all are lost"
* late answers of an epoch that was left are delivered in the next one: test_after_reset_nothing_stale_comes
* recv ends an epoch by StopIteration, which is a RuntimeError in a generator: test_epochs_end_and_follow_each_other
* a message goes to whoever asks first: test_ranks_share_an_epoch
* a worker that dies keeps a server's thread for ever: server/test_producers.py, test_a_chain_that_kills_its_workers_...
* one full buffer starves all others: test_a_client_that_does_not_read_holds_up_nobody
"""

import contextlib
import functools
import pickle
import queue
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from pipelines import BOUND_S, digests, sampled, small_graph, small_store, wait_until
from warm_servers import WarmServer

import datapipes as dp
from datapipes.chain.pool import Task
from datapipes.distributed import (
    PartitionServer,
    RemoteReceivingChannel,
    RemoteSource,
    connect,
    partition_client,
    server_pool,
)
from datapipes.distributed.wire.refusals import OtherPartition, UnknownProducer


def other_store():
    return dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(torch.ones(40, 3))})


@contextlib.contextmanager
def read_from(servers, pipe, **options):
    """A client of several servers, and a channel of what they make of a chain."""
    with connect({rank: server.address for rank, server in enumerate(servers)}) as client:
        producers = [client.create_producer(rank, pipe) for rank in range(len(servers))]
        yield client, RemoteReceivingChannel([*range(len(servers))], producers, client=client, **options)


class OnlyEven(dp.MiniBatchTransformer):
    def transform(self, minibatch):
        return minibatch if minibatch.index % 2 == 0 else None


@pytest.fixture(scope="module")
def server():
    with PartitionServer(small_graph(), chains=True, stages=[OnlyEven]) as running:
        yield running


@pytest.fixture
def client(server):
    with connect({3: server.address}) as connected:
        yield connected


@pytest.fixture
def channel(client):
    return RemoteReceivingChannel(3, client.create_producer(3, sampled()), client=client)


def received(channel):
    return [dp.MiniBatch.from_message(message).digest() for message in channel]


def of_epochs(count, pipe=None):
    pipe = pipe or sampled()
    return [digests(pipe) for _ in range(count)]


def test_epochs_end_and_follow_each_other(channel):
    first, second, third = of_epochs(3)
    assert received(channel) == first
    found = [dp.MiniBatch.from_message(channel.recv()).digest() for _ in range(6)]
    with pytest.raises(dp.EndOfEpoch, match="epoch 1 has ended"):
        channel.recv()
    assert found == second
    channel.reset()  # nothing of the next epoch was asked for, so it does nothing
    assert received(channel) == third


def test_after_reset_nothing_stale_comes(channel):
    expected = of_epochs(9)
    for epoch in range(6):
        assert dp.MiniBatch.from_message(channel.recv()).digest() == expected[epoch][0]
        channel.reset()
    assert received(channel) == expected[6]
    channel.reset(2)
    assert received(channel) == expected[2]
    for message in channel:
        assert dp.MiniBatch.from_message(message).digest() == expected[3][0]
        break
    channel.reset(8)
    assert received(channel) == expected[8]


@pytest.mark.parametrize("world_size", [2, 4, 7])
def test_ranks_share_an_epoch(client, world_size):
    producer, expected = client.create_producer(3, sampled()), of_epochs(1)[0]
    for rank in range(world_size):
        channel = RemoteReceivingChannel(3, producer, client=client, rank=rank, world_size=world_size)
        assert received(channel) == expected[rank::world_size]
        assert channel.num_steps == len(expected[rank::world_size])


@pytest.mark.parametrize("num_expected", [0, 1, 4, 6, 100])
def test_an_epoch_ends_after_what_is_expected(client, num_expected):
    channel = RemoteReceivingChannel(3, client.create_producer(3, sampled()), num_expected, client=client)
    assert [received(channel) for _ in range(2)] == [each[:num_expected] for each in of_epochs(2)]


def test_as_they_arrive(client):
    channel = RemoteReceivingChannel(3, client.create_producer(3, sampled()), client=client, in_order=False)
    assert [sorted(received(channel)) for _ in range(2)] == [sorted(each) for each in of_epochs(2)]


@pytest.mark.parametrize("in_order", [False, True])
def test_several_servers_take_turns(server, in_order):
    other = PartitionServer(small_graph(), chains=True)
    other.start()
    with other, connect({3: server.address, 1: other.address}) as client:
        producers = [client.create_producer(rank, sampled()) for rank in (3, 1)]
        channel = RemoteReceivingChannel([3, 1], producers, client=client, in_order=in_order, prefetch_size=1)
        assert sorted(received(channel)) == sorted(of_epochs(1)[0])
        for rank in (3, 1):
            assert client.statistics(rank)["requests"]["minibatch"]["results"]["ok"] > 0


def test_minibatches_that_a_stage_drops_are_left_out(client):
    pipe = OnlyEven(sampled())
    channel = RemoteReceivingChannel(3, client.create_producer(3, pipe), client=client)
    assert [received(channel) for _ in range(2)] == of_epochs(2, pipe)


@pytest.mark.parametrize("in_order", [pytest.param(False, marks=pytest.mark.full), True])
def test_other_servers_take_over_what_a_lost_one_had(server, in_order):
    lost = PartitionServer(small_graph(), chains=True)
    with connect({3: server.address, 1: lost.start()}, deadline=10 * BOUND_S) as client:  # which is not waited for
        producers = [client.create_producer(rank, sampled()) for rank in (3, 1)]
        # No request is more than two minibatches ahead, so the lost server is asked again after it is lost.
        channel = RemoteReceivingChannel([3, 1], producers, client=client, in_order=in_order, prefetch_size=1)
        found = [dp.MiniBatch.from_message(channel.recv()).digest()]
        lost.stop(0.0)
        found += [dp.MiniBatch.from_message(channel.recv(timeout=BOUND_S)).digest() for _ in range(5)]
        assert sorted(found) == sorted(of_epochs(1)[0])
        assert channel._silent.answering() == [3]


@pytest.mark.parametrize("loaded", [False, True])
def test_servers_that_are_all_lost_are_waited_for(tmp_path, loaded):
    small_graph().save(root := tmp_path / "graph")
    with contextlib.ExitStack() as running:
        servers = [running.enter_context(WarmServer(root, None, "--chains")) for _ in range(2)]
        pipe = sampled()
        _, channel = running.enter_context(read_from(servers, pipe, prefetch_size=1))
        for server in servers:
            server.kill()
        with ThreadPoolExecutor(1) as threads:
            reader = dp.DataLoader(RemoteSource(pipe, channel)) if loaded else channel
            waiting = threads.submit(digests if loaded else received, reader)
            wait_until(lambda: channel._silent.silent == {0, 1})
            for server in servers:
                server.start()
            assert waiting.result(BOUND_S) == of_epochs(1)[0]


@pytest.mark.parametrize(("deadline", "asked"), [(BOUND_S, [False, False, True, True]), (0.0, [False, False, True])])
def test_where_all_servers_are_lost_each_is_waited_for_once(deadline, asked):
    """With a deadline of 0 s each has been waited for whenever it fails."""
    waits = []

    def made(server, *_, **options):
        waits.append(options["waits"])
        answer = partition_client.Future()
        answer.set_exception(dp.ServerUnavailable(f"server {server} is lost"))
        return answer

    client = SimpleNamespace(deadline=deadline, _made=made)
    silent = server_pool.SilentServers([0, 1], deadline, "the test")
    pool = server_pool.ServerPool(client, 7, [0, 1], silent, 1)
    for worker in (0, 1):
        pool.give(worker, Task(1, 0, worker))
    with pytest.raises(dp.ServerUnavailable, match="is lost"):
        pool.receive(BOUND_S)
    assert waits == asked
    assert silent.answering() == [0, 1]


class LosesAPart(dp.MiniBatchTransformer):
    """As a stage over a graph whose part 1 is lost, at minibatch 2."""

    def transform(self, minibatch):
        if minibatch.index == 2:
            raise dp.ServerUnavailable("part 1 at node1:7000: no answer within 30 s")
        return minibatch


@pytest.mark.parametrize("loaded", [False, True])
def test_a_server_that_tells_of_another_lost_one_has_answered(loaded):
    pipe = LosesAPart(sampled())
    with contextlib.ExitStack() as running:
        options = {"chains": True, "stages": [LosesAPart]}
        servers = [running.enter_context(PartitionServer(small_graph(), **options)) for _ in range(2)]
        client, channel = running.enter_context(read_from(servers, pipe, prefetch_size=1))
        loader = dp.DataLoader(RemoteSource(pipe, channel))
        read = functools.partial(loader.minibatch, 0, 2) if loaded else functools.partial(received, channel)
        with pytest.raises(dp.ServerUnavailable, match="part 1 at node1:7000") as raised:
            read()
        if sys.version_info >= (3, 11):
            assert any(note.startswith("on server 0 at ") for note in raised.value.__notes__)
        assert channel._silent.answering() == [0, 1]
        assert loaded or len(received(channel)) == 3  # what comes after minibatch 2
        asked = [client.statistics(rank)["requests"]["minibatch"]["results"] for rank in (0, 1)[: 2 - loaded]]
        assert sum(results["ok"] for results in asked) == (1 if loaded else 6)


@pytest.mark.parametrize("loaded", [False, True])
def test_a_server_that_is_back_takes_over_what_another_loses(server, loaded, monkeypatch):
    monkeypatch.setattr(server_pool, "SILENT_S", 0.0)
    gone, pipe = dp.ServerUnavailable("gone"), sampled()
    with PartitionServer(small_graph(), chains=True) as other, connect({3: server.address, 1: other.address}) as client:
        channel = RemoteReceivingChannel([3, 1], [client.create_producer(rank, pipe) for rank in (3, 1)], client=client)
        assert channel._silent.add(1, gone)
        list(dp.DataLoader(RemoteSource(pipe, channel)) if loaded else channel)
        assert channel._silent.add(3, gone)
        assert not channel._silent.add(1, gone)


@pytest.mark.parametrize(
    ("features", "match"),
    [(other_store(), "is producer [0-9]+ there: that server has other data"), (None, "a feature store without a name")],
)
def test_a_server_that_makes_other_minibatches_is_refused(features, match):
    pipe = sampled().fetch_feature(small_store(), ["feat"])
    servers = [PartitionServer(small_graph(), chains=True, features=each) for each in (small_store(), features)]
    with servers[0] as one, servers[1] as other, connect({3: one.address, 1: other.address}) as client:
        producer = client.create_producer(3, pipe)
        with pytest.raises(ValueError, match=match):
            RemoteReceivingChannel([3, 1], producer, client=client)
        assert client.list_producers(1) == []


def test_a_client_that_does_not_read_holds_up_nobody(server, client):
    producer = client.create_producer(3, sampled())
    idle = [RemoteReceivingChannel(3, producer, client=client, prefetch_size=16) for _ in range(8)]
    for channel in idle:
        channel.recv()
    with connect({3: server.address}) as other:
        reading = RemoteReceivingChannel(3, other.create_producer(3, sampled()), client=other)
        assert [received(reading) for _ in range(5)] == of_epochs(5)
    for channel in idle:
        assert len(received(channel)) == 5


def test_destroyed_while_another_reads(server, client, channel):
    message = channel.recv()
    with connect({3: server.address}) as other:
        other.destroy_producer(3, other.create_producer(3, sampled()))
        assert [dp.MiniBatch.from_message(message).digest(), *received(channel)] == of_epochs(1)[0]
    client.destroy_producer(3, channel.producer_id)
    channel.reset()
    with pytest.raises(UnknownProducer, match=f"producer {channel.producer_id} is not one of this client's"):
        channel.recv()


def test_a_timeout_loses_nothing(channel, monkeypatch):
    asked: queue.SimpleQueue = queue.SimpleQueue()
    made = channel.client._made

    def held_back(*arguments, **_):
        future = partition_client.Future()
        asked.put((future, arguments))
        return future

    monkeypatch.setattr(channel.client, "_made", held_back)
    with pytest.raises(dp.QueueTimeoutError, match="no minibatch came within the timeout"):
        channel.recv(timeout=0.05)
    monkeypatch.setattr(channel.client, "_made", made)
    while not asked.empty():
        future, arguments = asked.get()
        future.set_result(made(*arguments).result(BOUND_S))
    assert received(channel) == of_epochs(1)[0]


def test_in_order_no_more_are_held_than_are_asked_for_ahead(client, monkeypatch):
    """While the first minibatch is late."""
    pipe = dp.ItemSampler(dp.ItemSet(40), 1).sample_neighbor(small_graph(), [1])
    channel = RemoteReceivingChannel(3, client.create_producer(3, pipe), client=client, prefetch_size=3)
    made, first, asked = client._made, partition_client.Future(), []

    def late(server, producer, epoch, index, **_):
        asked.append(index)
        return made(server, producer, epoch, index) if index > 0 else first

    monkeypatch.setattr(client, "_made", late)
    with pytest.raises(dp.QueueTimeoutError):
        channel.recv(timeout=0.5)
    assert asked == [0, 1, 2]
    first.set_result(made(3, channel.producer_id, 0, 0).result(BOUND_S))
    assert len(received(channel)) == 40


def test_a_request_that_cannot_be_made_is_not_waited_for(client, channel, monkeypatch):
    made = client._made
    monkeypatch.setattr(client, "_made", lambda *_, **__: pytest.fail("no thread is left"))
    for _ in range(2):
        with pytest.raises(pytest.fail.Exception, match="no thread is left"):
            channel.recv()
    monkeypatch.setattr(client, "_made", made)
    assert received(channel) == of_epochs(1)[0]


def test_close_wakes_who_waits(client, channel, monkeypatch):
    monkeypatch.setattr(client, "_made", lambda *_, **__: partition_client.Future())
    with ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(channel.recv)
        with pytest.raises(dp.QueueTimeoutError):
            threads.submit(channel.recv, timeout=0.05).result(BOUND_S)
        assert not waiting.done()
        channel.close()
        with pytest.raises(dp.ChannelClosed, match="was closed"):
            waiting.result(BOUND_S)


def test_it_only_receives_and_may_be_closed(channel):
    with pytest.raises(TypeError, match="it only receives"):
        channel.send({"seeds": torch.arange(3)})
    channel.recv()
    assert channel.empty() == (len(channel) == 0)
    channel.close()
    channel.close()
    with pytest.raises(dp.ChannelClosed, match="was closed"):
        channel.recv()


def test_a_copy_receives_for_itself(channel):
    channel.recv()
    copy = pickle.loads(pickle.dumps(channel))
    try:
        assert received(copy) == of_epochs(1)[0]
        assert len(received(channel)) == 5
    finally:
        copy.client.close()


def test_the_client_that_was_connected_last_is_the_default(server, client, monkeypatch):
    producer = client.create_producer(3, sampled())
    assert RemoteReceivingChannel(3, producer).client is client
    monkeypatch.setattr(partition_client, "_default", None)
    with pytest.raises(RuntimeError, match=r"Pass client=connect\(namebook\)"):
        RemoteReceivingChannel(3, producer)


def test_what_a_remote_receiving_channel_refuses(client, refuses):
    producer = client.create_producer(3, sampled())
    for servers, producers in ((4, producer), ([], producer), ([3, 3], producer), ([3], [producer, producer])):
        refuses(ValueError, RemoteReceivingChannel, servers, producers, client=client)
    refuses(TypeError, RemoteReceivingChannel, 3, "5", client=client)
    for error, options in (
        (ValueError, {"rank": 2, "world_size": 2}),
        (ValueError, {"world_size": 0}),
        (ValueError, {"num_expected": -1}),
        (ValueError, {"prefetch_size": 0}),
        (TypeError, {"in_order": 1}),
    ):
        refuses(error, RemoteReceivingChannel, 3, producer, client=client, **options)
    with pytest.raises(UnknownProducer, match=r"is not one of this client's\. Call create_producer first"):
        RemoteReceivingChannel(3, producer + 1, client=client)


def test_servers_of_other_data_are_refused(server):
    other = dp.CSCGraph(small_graph().indptr, small_graph().indices.flip(0), edge_ids=small_graph().edge_ids)
    with contextlib.ExitStack() as running:
        second = running.enter_context(PartitionServer(other, chains=True))
        one = running.enter_context(connect({3: server.address}))
        two = running.enter_context(connect({1: second.address}))
        assert one.create_producer(3, sampled()) != two.create_producer(1, sampled(graph=other))
        with pytest.raises(ValueError, match="the chain gives other minibatches here than where it was described"):
            two.create_producer(1, sampled())
        both = running.enter_context(connect({3: server.address, 1: second.address}))
        with pytest.raises(OtherPartition, match=r"server 3 at .*has the partition_id"):
            both.create_producer(3, sampled())
        with pytest.raises(ValueError, match="so the data or the chains of these servers differ"):
            RemoteReceivingChannel([3, 1], [5, 6], client=both)
