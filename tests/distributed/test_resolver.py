"""Resolvers and replicas: servers that move, die or stand still while others have the same part; the bits stay."""

import contextlib
import itertools
import json
import random
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from amounts import amount
from parts_on_disk import a_graph, batches, over, seeds, whole, write
from pipelines import BOUND_S, sampled, small_graph, wait_until
from pyarrow import flight
from warm_servers import Supervisor, WarmServer

import datapipes as dp
from datapipes.base.errors import ServerUnavailable
from datapipes.distributed import (
    DistGraph,
    PartitionServer,
    RemoteReceivingChannel,
    RemoteSource,
    Resolver,
    connect,
)
from datapipes.distributed.client.retry import Failures
from datapipes.distributed.wire.refusals import OtherPartition

SHORT_S = 0.6


class InFile(Resolver):
    """{part: addresses} of a JSON file, as it is when it is asked."""

    def __init__(self, path, **book):
        self.path = path
        self.tell(book)

    def tell(self, book):
        self.path.write_text(json.dumps({str(part): told for part, told in book.items()}))

    def addresses(self, part):
        return json.loads(self.path.read_text()).get(str(part), [])


class Answers(Resolver):
    """Answers whatever it was made with."""

    def __init__(self, answer):
        self.answer = answer

    def addresses(self, part):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def resolver(tmp_path):
    return InFile(tmp_path / "servers.json")


@contextlib.contextmanager
def replicas_of(root, part, count=2, **options):
    """So many servers of a part in this process."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(PartitionServer(root, part, **options)) for _ in range(count)]


@pytest.mark.parametrize("num_workers", [pytest.param(0, marks=pytest.mark.full), 2])
def test_servers_that_start_elsewhere_are_found_again(graph, root, resolver, num_workers, connected):
    expected = whole(graph)
    with contextlib.ExitStack() as stack:
        first = [stack.enter_context(WarmServer(root, part).start()) for part in (0, 1)]
        resolver.tell({part: [server.address] for part, server in enumerate(first)})
        dist_graph = connected(root, resolver, deadline=BOUND_S)
        loader = stack.enter_context(dp.DataLoader(over(dist_graph), num_workers=num_workers))
        found = []
        for minibatch in loader:
            found.append(minibatch.digest())
            if len(found) in (10, 20):
                part = len(found) // 10 - 1
                moved = stack.enter_context(WarmServer(root, part).start())
                told = [first[0].address] if part == 1 else []
                resolver.tell({0: told or [moved.address], 1: [moved.address if part == 1 else first[1].address]})
                first[part].kill()
                first[part] = moved
        assert found == expected


class Late(InFile):
    """Tells the addresses of `first` until it was asked for them `times` times."""

    first, times = None, 2

    def addresses(self, part):
        if self.first is None or part not in self.first or self.times == 0:
            return super().addresses(part)
        self.times -= 1
        return self.first[part]


@pytest.mark.parametrize("stranger", ["no partition server", "another part"])
def test_a_port_that_another_program_has_taken_is_left(graph, root, tmp_path, stranger, connected):
    resolver = Late(tmp_path / "servers.json")
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(WarmServer(root, part).start()) for part in (0, 1)]
        addresses = [server.address for server in servers]
        resolver.tell(dict(enumerate(addresses)))
        dist_graph = connected(root, resolver, deadline=BOUND_S)
        found = []
        for minibatch in over(dist_graph):
            found.append(minibatch.digest())
            if len(found) == 10:
                moved = stack.enter_context(WarmServer(root, 0).start())
                resolver.tell({0: moved.address, 1: addresses[1]})
                resolver.first = {0: addresses[0]}
                servers[0].kill()
                if stranger == "another part":
                    stack.enter_context(PartitionServer(root, 1, addresses[0]))
                else:
                    stack.enter_context(flight.FlightServerBase(f"grpc://{addresses[0]}"))
        assert found == whole(graph)
        assert resolver.times == 0


def test_a_client_and_its_producer_go_on_where_the_server_starts_again(tmp_path, resolver):
    small_graph().save(root := tmp_path / "graph")
    with WarmServer(root, None, "--chains").start() as first, WarmServer(root, None, "--chains").start() as second:
        resolver.tell({0: first.address})
        with connect(resolver, deadline=BOUND_S) as client:
            producer = client.create_producer(0, sampled())
            source = RemoteSource(sampled(), RemoteReceivingChannel(0, producer, client=client, prefetch_size=1))
            found = []
            for minibatch in source:
                found.append(minibatch.digest())
                if len(found) == 2:
                    resolver.tell({0: [second.address]})
                    first.kill()
            assert found == batches(sampled())


@pytest.fixture
def timeouts(monkeypatch):
    """How often each request of this process timed out, of those that failed."""
    counted, add = Counter(), Failures.add

    def counting(failures, verdict, error):
        counted[failures] += verdict.slow
        return add(failures, verdict, error)

    monkeypatch.setattr(Failures, "add", counting)
    return counted


@pytest.mark.parametrize("how", [pytest.param("killed", marks=pytest.mark.full), "frozen"])
def test_another_replica_answers_within_an_attempt(graph, root, how, connected, timeouts):
    expected = whole(graph)
    with contextlib.ExitStack() as stack:
        servers = [[stack.enter_context(WarmServer(root, part).start()) for _ in range(2)] for part in (0, 1)]
        book = {part: [server.address for server in replicas] for part, replicas in enumerate(servers)}
        dist_graph = connected(root, book, deadline=6.0)  # an attempt has 2 s
        found = []
        for minibatch in over(dist_graph):
            found.append(minibatch.digest())
            if len(found) == 10:
                timeouts.clear()
                for replicas, first in zip(servers, first_choices(dist_graph), strict=True):
                    server = next(each for each in replicas if each.address == first)
                    server.kill() if how == "killed" else server.freeze()
        for server in itertools.chain(*servers):
            server.kill()
        assert found == expected
        assert {*timeouts.values()} == {how == "frozen"}  # no request waited for two attempts


def first_choices(dist_graph):
    return [str(dist_graph.peers._remote_part(part)._places.all()[0]) for part in (0, 1)]


def test_replicas_of_other_content_are_refused_when_they_are_met(tmp_path, root, connected):
    other = write(tmp_path / "other", a_graph(feature_seed=1))
    with replicas_of(root, 0) as good, replicas_of(root, 1, 1) as (last,), PartitionServer(other, 0) as bad:
        book = {0: [good[0].address, good[1].address], 1: last.address}
        batches(over(connected(root, book, deadline=BOUND_S)), 2)
        dist_graph = connected(root, {**book, 0: [good[0].address, bad.address]}, deadline=BOUND_S)
        good[0].stop(0.0)
        with pytest.raises(OtherPartition, match="content_id"):
            batches(over(dist_graph), 2)


def test_a_full_or_stopping_replica_sends_clients_to_the_other(root, connected):
    with replicas_of(root, 0) as servers, replicas_of(root, 1, 1) as (last,):
        dist_graph = connected(root, {0: [each.address for each in servers], 1: last.address}, deadline=BOUND_S)
        batches(over(dist_graph), 2)
        first = first_choices(dist_graph)[0]
        server = next(each for each in servers if each.address == first)
        server._service.is_stopping = True
        batches(over(dist_graph), 4)
        assert first_choices(dist_graph)[0] != first


def test_an_epoch_survives_kills_of_any_replica_with_producers_running(graph, root, tmp_path, connected):
    """Two replicas of each part, which make minibatches too; each asks the others."""
    kills, deadline, generator = amount(200, 4), 30.0, random.Random(7)
    book = tmp_path / "book.json"
    book.write_text("{}")
    options = ("--chains", "--namebook", book)
    expected = batches(seeds().sample_neighbor(graph, [4, 4]))
    with contextlib.ExitStack() as stack:
        servers = [[Supervisor(root, part, *options) for _ in range(2)] for part in (0, 1)]
        every = [*itertools.chain(*servers)]
        for server in every:
            stack.callback(server.close)
        addresses = {part: [server.address for server in replicas] for part, replicas in enumerate(servers)}
        book.write_text(json.dumps(addresses))
        dist_graph = connected(root, addresses, deadline=deadline)
        client = stack.enter_context(connect(addresses, deadline=deadline))
        pipe = seeds().sample_neighbor(dist_graph, [4, 4])
        producers = [client.create_producer(rank, pipe) for rank in (0, 1)]
        done, longest = 0, 0.0
        while done < kills:
            channel = RemoteReceivingChannel([0, 1], producers, client=client, prefetch_size=1)
            sources = (RemoteSource(pipe, channel), pipe)
            for source in sources:
                source.set_epoch(0)
                found, began = [], time.monotonic()
                for minibatch in source:
                    longest = max(longest, time.monotonic() - began)
                    found.append(minibatch.digest())
                    if len(found) % amount(1, 20) == 0 and done < kills:
                        generator.choice(every).kill()
                        done += 1
                    began = time.monotonic()
                assert found == expected
        for server in every:
            server.wait_until_ready()
        assert longest < deadline / 3


# --- what is told wrong


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        ([], TimeoutError, "gave no address of part 0 within {} s (it has none)"),
        (OSError("no cluster"), TimeoutError, "(OSError: no cluster)"),
        (["nowhere"], ValueError, "is 'nowhere', which has no port"),
        (3, TypeError, "must be a text"),
        ("127.0.0.1:1", ServerUnavailable, "no answer"),
        (["127.0.0.1:1"] * 2, ValueError, "127.0.0.1:1 twice for part 0"),
        (["10.9.8.7:1"], ValueError, "there is no TLS"),
    ],
)
def test_what_a_resolver_may_not_answer(root, answer, kind, text):
    text = text.replace("{}", f"{SHORT_S:g}")
    with pytest.raises(kind, match=re.escape(text)):
        DistGraph.connect(root, Answers(answer), deadline=SHORT_S)
    with pytest.raises(kind, match=re.escape(text)):
        connect(Answers(answer), deadline=SHORT_S)


def test_a_resolver_that_fails_later_is_named_and_the_known_servers_are_asked(graph, root, connected):
    with replicas_of(root, 0, 1) as (first,), replicas_of(root, 1, 1) as (second,), ThreadPoolExecutor(1) as threads:
        resolver, first_address = ByPart({0: first.address, 1: second.address}), first.address
        dist_graph = connected(root, resolver, deadline=1.5)
        resolver.book = None
        first.stop(0.0)
        with pytest.raises(ServerUnavailable, match=r"The resolver was asked again: .*gave no address of part 0"):
            dist_graph.peers.told(0, "health").result()
        found = threads.submit(batches, over(dist_graph), 3)
        wait_until(lambda: resolver.asked_in_vain)
        with PartitionServer(root, 0, first_address):
            assert found.result() == whole(graph, 3)


class ByPart(Resolver):
    def __init__(self, book):
        self.book, self.asked_in_vain = book, False

    def addresses(self, part):
        self.asked_in_vain = self.book is None
        return [self.book[part]]


def test_a_resolver_must_say_where_servers_are():
    with pytest.raises(TypeError, match="abstract"):
        Resolver()
