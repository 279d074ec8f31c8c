"""SamplerSender and SamplerReceiver: each minibatch once, epochs, ends and deaths of either side, strangers, limits."""

import contextlib
import gc
import multiprocessing
import os
import signal
import socket
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.flight as flight
import pytest
import torch
from amounts import amount
from pipelines import BOUND_S, digests, fetched, item_set, sampled, small_graph, wait_until
from proxy import Proxy

import datapipes as dp
from datapipes.base.errors import ServerUnavailable
from datapipes.distributed import (
    PartitionServer,
    SamplerReceiver,
    SamplerSender,
    connect,
    sampler_receiver,
    sampler_sender,
)
from datapipes.distributed.addresses import Address
from datapipes.distributed.client.connection import PushConnection
from datapipes.distributed.requests.chains import request_to_message
from datapipes.distributed.sampler_sender import JoinRequest, PushRequest
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.envelope import Meant, request_header
from datapipes.distributed.wire.refusals import BadRequest, OtherPartition, Unavailable, UnknownSender

SHORT_S = 0.3
TOKEN = "t" * 32
FORKSERVER = multiprocessing.get_context("forkserver")  # a child of the fork server has torch


@pytest.fixture
def addr():
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


@contextlib.contextmanager
def receiving(addr, num_sender, graph=None, **arguments):
    """A receiver that is made in a thread; a function that waits until it is there, and returns it."""
    arguments = {"timeout": BOUND_S, **arguments}
    with ThreadPoolExecutor(1) as threads:
        made = threads.submit(SamplerReceiver, graph, addr, num_sender, **arguments)
        try:
            yield made.result
        finally:
            with contextlib.suppress(Exception):
                made.result().close()


def sender_of(*addresses, **arguments):
    return SamplerSender(dict(enumerate(addresses)), **{"timeout": BOUND_S, **arguments})


@contextlib.contextmanager
def both(addr, num_sender=1, **arguments):
    """So many senders, and their receiver."""
    with receiving(addr, num_sender, **arguments) as receiver, contextlib.ExitStack() as stack:
        senders = [sender_of(addr) for _ in range(num_sender)]
        for sender in senders:
            stack.callback(sender._abandon)
        yield *senders, receiver()


def minibatches():
    return [*fetched()]


def send_all(sender, chosen, recv_id=0):
    for minibatch in chosen:
        sender.send(minibatch, recv_id)
    sender.signal(recv_id)


def process(work, *arguments):
    child = FORKSERVER.Process(target=work, args=arguments, daemon=True)
    child.start()
    return child


def ended(child):
    child.join(BOUND_S)
    return child.exitcode


# --- what arrives


def share(rank, num_items):
    return fetched(sampled(dp.DistributedItemSampler(item_set(num_items), 4, rank=rank, world_size=3, seed=3)))


def sends_its_share(addresses, rank, num_items):
    pipe, sender = share(rank, num_items), sender_of(*addresses, graph=small_graph())
    for _ in range(3):
        for minibatch in pipe:
            sender.send(minibatch, minibatch.index % len(addresses))
        for number in range(len(addresses)):
            sender.signal(number)


@pytest.mark.parametrize(("second", "minibatches_each"), [("127.0.0.1", amount(1112, 8)), ("[::1]", 8)])
def test_each_minibatch_of_all_senders_comes_once_to_its_receiver(addr, second, minibatches_each):
    num_items = 3 * 4 * minibatches_each
    port = addr.rpartition(":")[2]
    addresses = (addr, f"{second.replace('127.0.0.1', '127.0.0.2')}:{port}")
    children = [process(sends_its_share, addresses, rank, num_items) for rank in range(3)]
    shares = [share(rank, num_items) for rank in range(3)]
    with receiving(addresses[0], 3, small_graph()) as first, receiving(addresses[1], 3) as other:
        receivers = [first(), other()]
        for epoch in range(3):
            assert [receiver.epoch for receiver in receivers] == [epoch, epoch]
            expected = [minibatch for pipe in shares for minibatch in pipe]
            for number, receiver in enumerate(receivers):
                mine = [minibatch for minibatch in expected if minibatch.index % 2 == number]
                assert sorted(digests(receiver)) == sorted(digests(mine))
        assert [ended(child) for child in children] == [0, 0, 0]


def test_a_sender_that_is_ahead_waits_for_the_epoch(addr):
    made = minibatches()
    with both(addr, 2) as (ahead, behind, receiver):
        send_all(ahead, made[:2])
        send_all(ahead, made[2:4])
        send_all(behind, made[4:])
        assert digests(receiver) == digests([*made[:2], *made[4:]])
        behind.signal(0)
        assert digests(receiver) == digests(made[2:4])


def test_a_signal_ends_an_epoch_whatever_was_sent(addr):
    made = minibatches()
    with both(addr) as (sender, receiver):
        sender.signal(0)
        send_all(sender, made[:1])
        sender.signal(0)
        assert [digests(receiver) for _ in range(3)] == [[], digests(made[:1]), []]


def test_epochs_may_have_senders_of_their_own(addr):
    made = minibatches()
    with receiving(addr, 2) as receiver:
        for epoch in range(2):
            for rank in range(2):
                with sender_of(addr) as sender:
                    send_all(sender, made[3 * epoch + rank :: 2])
        # A third of the same epoch has no place until one has left.
        receiver = receiver()
        for epoch in range(2):
            found = digests([*receiver])
            assert sorted(found) == sorted(digests([*made[3 * epoch :: 2], *made[3 * epoch + 1 :: 2]]))


def test_close_ends_the_epoch_and_may_be_called_twice(addr):
    made = minibatches()
    with both(addr) as (sender, receiver):
        pid = os.fork()
        if pid == 0:
            signal.alarm(5)  # ends the child if Arrow waits
            receiver._end()  # as at its exit
            os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
        sender.send(made[0], 0)
        sender.close()
        sender.close()
        assert digests(receiver) == digests(made[:1])
        with pytest.raises(dp.ChannelClosed, match="was closed"):
            sender.send(made[0], 0)


def test_a_sender_that_is_collected_delivers_first(addr):
    made = minibatches()
    with receiving(addr, 1) as receiver:
        sender = sender_of(addr)
        send_all(sender, made)
        del sender
        gc.collect()
        assert digests(receiver()) == digests(made)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("datapipes-receiver")]


# --- ends and deaths


def test_a_sender_that_fails_is_told_though_its_process_lives(addr, monkeypatch):
    monkeypatch.setattr(sampler_receiver, "_GONE_S", SHORT_S)
    made = minibatches()
    with receiving(addr, 1) as receiver:
        sender = sender_of(addr)
        sender.send(made[0], 0)
        sender.__exit__(KeyError, KeyError(), None)
        found = []
        with pytest.raises(dp.PeerDied, match="in the middle of an epoch"):
            found.extend(receiver())
        assert digests(found) in ([], digests(made[:1]))
        with pytest.raises(dp.QueueTimeoutError, match=r"Epoch 0 ends when .*one in place of process"):
            receiver()._senders.next(SHORT_S)


def test_a_sender_that_ends_after_its_signal_is_no_error(addr, monkeypatch):
    monkeypatch.setattr(sampler_receiver, "_GONE_S", SHORT_S)
    made = minibatches()
    with both(addr) as (sender, receiver):
        send_all(sender, made)
        assert digests(receiver) == digests(made)
        sender._abandon()
        wait_until(lambda: not receiver._senders.places[0].is_here)
        with sender_of(addr) as another:
            send_all(another, made[:1])
        assert digests(receiver) == digests(made[:1])


def test_a_sender_that_stands_still_is_waited_for(addr, monkeypatch):
    monkeypatch.setattr(sampler_receiver, "_GONE_S", SHORT_S)
    with both(addr, timeout=4 * SHORT_S) as (_, receiver), pytest.raises(dp.QueueTimeoutError, match="Epoch 0 ends"):
        next(receiver)


def test_a_receiver_that_is_closed_is_an_error_of_the_sender(addr):
    with both(addr) as (sender, receiver):
        receiver.close()
        receiver.close()
        with pytest.raises(dp.ChannelClosed, match="was closed"):
            next(receiver)
        sender.send(minibatches()[0], 0)
        with pytest.raises(ServerUnavailable, match="nothing listens"):
            sender.close()


def test_who_never_comes_is_named(addr):
    with pytest.raises(ServerUnavailable, match=r"no answer .*Start .*SamplerReceiver\(graph, \"127"):
        sender_of(addr, timeout=SHORT_S)
    with receiving(addr, 2, timeout=1.0) as receiver, contextlib.suppress(ServerUnavailable), sender_of(addr) as sender:
        with pytest.raises(TimeoutError, match=rf"1 of 2 senders came within 1 s: \['process {os.getpid()} of"):
            receiver()
        sender._abandon()


def test_a_sender_too_many_waits_for_a_place(addr):
    with both(addr) as (sender, receiver):
        with pytest.raises(ServerUnavailable, match="all 1 senders are there already"):
            sender_of(addr, timeout=SHORT_S)
        with ThreadPoolExecutor(1) as threads:
            another = threads.submit(sender_of, addr)
            send_all(sender, minibatches()[:1])
            sender.close()
            with another.result() as sender:
                sender.signal(0)
        assert [len([*receiver]) for _ in range(2)] == [1, 0]


def sends_and_exits(addr):
    sender = sender_of(addr)
    sender.__class__.kept = sender  # so that it ends with the process
    send_all(sender, minibatches())


def test_a_process_that_ends_without_close_delivers_first(addr):
    child = process(sends_and_exits, addr)
    with receiving(addr, 1) as receiver:
        assert digests(receiver()) == digests(minibatches())
    assert ended(child) == 0


# --- connections, and room


def test_connections_that_are_cut_lose_and_double_nothing(addr):
    made = minibatches() * amount(20, 4)
    proxy = Proxy(addr, stall=(0.02, 0.05))
    with contextlib.closing(proxy), receiving(addr, 1) as receiver, ThreadPoolExecutor(1) as threads:
        sender = sender_of(proxy.address)
        sending = threads.submit(send_all, sender, made)
        found = []
        for minibatch in receiver():
            found.append(minibatch)
            if len(found) % 6 == 0:
                proxy.tell("cut")
        sending.result()
        sender.close()
        assert digests(found) == digests(made)


@pytest.mark.full
def test_an_idle_sender_whose_connection_was_cut_is_not_taken_for_dead(addr, monkeypatch):
    monkeypatch.setattr(sampler_receiver, "_GONE_S", 2.0)
    made, proxy = minibatches(), Proxy(addr)
    with contextlib.closing(proxy), receiving(addr, 1) as receiver, sender_of(proxy.address) as sender:
        for minibatch in made[:2]:
            sender.send(minibatch, 0)
            assert next(receiver()).digest() == minibatch.digest()
            wait_until(lambda: sender._streams[0]._sent == sender._streams[0]._next)  # or it would be sent again
            proxy.tell("cut")
            with pytest.raises(dp.QueueTimeoutError):
                receiver()._senders.next(3.5)
        sender.signal(0)
        assert [*receiver()] == []


def test_what_is_not_received_is_bounded_and_the_sender_waits(addr, monkeypatch):
    made = minibatches() * 4
    monkeypatch.setattr(sampler_receiver, "_MOST_UNREAD", 2000)
    with receiving(addr, 1) as receiver, sender_of(addr, timeout=SHORT_S) as sender:
        sent, found = 0, []
        with pytest.raises(dp.QueueTimeoutError, match="had no room"):  # noqa: PT012
            for minibatch in made:
                sender.send(minibatch, 0)
                sent += 1
        assert len(receiver()._senders.places[0].items) == 1
        assert sent == 1 + sampler_sender.MOST_PENDING
        while sent < len(made):  # it goes on where it stood
            found.append(next(receiver()).digest())
            sender.send(made[sent], 0)
            sent += 1
        with ThreadPoolExecutor(1) as threads:
            rest = threads.submit(lambda: digests(receiver()))
            sender._streams[0]._timeout = BOUND_S
            sender.signal(0)
            assert found + rest.result() == digests(made)


def test_signals_take_room_too(addr, monkeypatch):
    monkeypatch.setattr(sampler_receiver, "_MOST_UNREAD", 2**20)
    with receiving(addr, 1) as receiver:
        sender = sender_of(addr, timeout=SHORT_S)
        with pytest.raises(dp.QueueTimeoutError, match="had no room"):  # noqa: PT012
            for _ in range(1000):
                sender.signal(0)
        assert len(receiver()._senders.places[0].items) == 64
        with pytest.raises(dp.QueueTimeoutError, match="had no room for the rest"):
            sender.close()


def test_a_sender_that_has_failed_is_collected(addr):
    with receiving(addr, 1) as receiver:
        sender = sender_of(addr)
        receiver().close()
    with pytest.raises(ServerUnavailable):
        send_all(sender, minibatches() * 10)
    known = weakref.ref(sender)
    del sender
    gc.collect()
    assert known() is None


def test_a_minibatch_larger_than_the_room_fits_alone(addr, monkeypatch):
    monkeypatch.setattr(sampler_receiver, "_MOST_UNREAD", 1)
    made = minibatches()
    with both(addr) as (sender, receiver), ThreadPoolExecutor(1) as threads:
        sending = threads.submit(send_all, sender, made)
        assert digests(receiver) == digests(made)
        sending.result()


# --- who may not, and what is no such thing


def test_two_receivers_on_one_address(addr):
    with both(addr), pytest.raises(OSError, match=f"cannot listen on {addr}"):
        SamplerReceiver(None, addr, 1)


def test_another_graph_or_version_is_refused(addr):
    other = small_graph(with_edge_ids=False)
    with receiving(addr, 1, small_graph()) as receiver:
        with pytest.raises(OtherPartition, match="its graph has the fingerprint"):
            sender_of(addr, graph=other)
        connection = PushConnection("here", Address(*split(addr)), None, 1)
        with pytest.raises(OtherPartition, match="protocol version"):
            connection.ask(join(protocol=0), BOUND_S)
        connection.close()
        with sender_of(addr) as sender:
            sender.signal(0)
        assert [*receiver()] == []


def split(addr):
    host, _, port = addr.rpartition(":")
    return host, int(port)


def join(token=TOKEN, number=0, **header):
    message = request_to_message(JoinRequest(token, number, "me", None), Meant())
    return Message({**message.header, **header}, {})


def push(what, number, token=TOKEN, tensors=None):
    return request_to_message(PushRequest(token, number, what), Meant(), tensors)


def test_what_no_sender_pushes_is_refused_and_changes_nothing(addr):
    with receiving(addr, 1) as receiver:
        wait_until(lambda: Address(*split(addr)).is_heard(BOUND_S))
        connection = PushConnection("here", Address(*split(addr)), None, 1)
        refused = [
            (push("signal", 0), UnknownSender, "has no such sender"),
            (join(number=3), UnknownSender, "has no such sender"),
            (Message(request_header("hello", Meant()), {}), BadRequest, "there is no request 'hello'"),
            (join("short"), BadRequest, "texts of 32 characters"),
            (push("all", 0), BadRequest, "what"),
        ]
        for message, error, text in refused:
            with pytest.raises(error, match=text):
                connection.ask(message, BOUND_S)
        connection.ask(join(), BOUND_S)
        refused = [
            (push("signal", 1), BadRequest, "push 1 comes out of turn, 0 is next"),
            (push("minibatch", 0, tensors={"no": torch.ones(2)}), BadRequest, "the push is no minibatch"),
            (join("u" * 32), Unavailable, "all 1 senders are there"),
        ]
        for message, error, text in refused:
            with pytest.raises(error, match=text):
                connection.ask(message, BOUND_S)
        minibatch = minibatches()[0].to_message()
        for number, what, tensors in [(0, "minibatch", minibatch), (0, "minibatch", minibatch), (1, "signal", {})] * 2:
            connection.ask(push(what, number, tensors=tensors), BOUND_S)
        assert digests(receiver()) == digests(minibatches()[:1])
        connection.close()
        plain = flight.connect(f"grpc://{addr}")
        for ask in (
            lambda: plain.do_get(flight.Ticket(b"")).read_all(),
            lambda: plain.do_exchange(flight.FlightDescriptor.for_command(b""))[1].read_chunk(),
            lambda: push_batch(plain),
        ):
            with pytest.raises((flight.FlightUnauthorizedError, flight.FlightServerError), match=r"DoPut|metadata"):
                ask()
        plain.close()


def push_batch(client):
    table = pa.table({"a": [1]})
    writer, _ = client.do_put(flight.FlightDescriptor.for_command(b""), table.schema)
    with writer:
        writer.write_table(table)


def test_servers_and_receivers_are_not_each_other(addr):
    with both(addr), pytest.raises(PermissionError, match="requests come by DoPut"):
        connect({0: addr}, deadline=BOUND_S)
    with PartitionServer(small_graph(), chains=True) as server, pytest.raises(PermissionError, match="by DoGet"):
        sender_of(server.address)


def test_only_senders_of_the_authority_are_let_in(addr, ours, theirs):
    made = minibatches()
    with receiving(addr, 1, tls=ours.server) as receiver:
        for wrong in ({}, {"tls": theirs.client}):
            with pytest.raises((ServerUnavailable, PermissionError)):
                sender_of(addr, **{"timeout": 2 * SHORT_S, **wrong})
        with sender_of(addr, tls=ours.client) as sender:
            send_all(sender, made)
        assert digests(receiver()) == digests(made)


def test_what_senders_and_receivers_refuse(addr, refuses):
    with both(addr) as (sender, _):
        for receiver in (7, True, None, "0"):
            refuses(ValueError, sender.signal, receiver)
        refuses(TypeError, sender.send, 3, 0)
    near = "127.0.0.1:1"
    for namebook in ({}, {0: near, 1: near}, {-1: near}, {0: "10.1.2.3:7"}):
        refuses(ValueError, SamplerSender, namebook)
    refuses(TypeError, SamplerSender, 3)
    for error, options in (
        (ValueError, {"timeout": 0}),
        (TypeError, {"graph": 3}),
        (TypeError, {"insecure": 1}),
        (TypeError, {"tls": 1}),
    ):
        refuses(error, SamplerSender, {0: near}, **options)
        refuses(error, SamplerReceiver, **{"graph": None, "addr": near, "num_sender": 1, **options})
    refuses(ValueError, SamplerReceiver, None, near, 0)
    refuses(ValueError, SamplerReceiver, None, "127.0.0.1:0", 1)
    refuses(ValueError, SamplerReceiver, None, "0.0.0.0:80", 1)
