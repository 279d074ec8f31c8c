"""Servers that fail: asked again where it helps, and a typed error within the deadline where it does not.

No thread and no descriptor is left after any of it.
"""

import gc
import itertools
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import socket
import threading
import weakref
from concurrent.futures import wait

import pyarrow.flight as flight
import pytest
import torch
from channels import num_descriptors
from parts_on_disk import a_graph, write
from proxy import Proxy
from scripted_server import Dropped, ScriptedServer, raising
from warm_servers import WarmServer
from wire_messages import plain

import datapipes as dp
from datapipes.distributed import Part
from datapipes.distributed.addresses import replicas_of
from datapipes.distributed.client.flight_peers import FlightPeers
from datapipes.distributed.partition_facts import PartitionFacts
from datapipes.distributed.requests.draw import Draw, DrawRequest
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.arrow_reading import BadMessage
from datapipes.distributed.wire.refusals import OtherPartition, Unavailable, error_to_bytes

WAIT_S = 60.0  # for what comes at once, on a busy machine
SHORT_S = 0.6  # a deadline that a test waits for
OWN = torch.arange(1, 400, 2)  # the nodes of part 1
REQUEST = DrawRequest({None: OWN}, (Draw(None, 3, 7),), edge_ids=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write(tmp_path_factory.mktemp("parts") / "root", a_graph())


@pytest.fixture(scope="module")
def part(root):
    return Part.open(root, 1)


def own_threads() -> list[str]:
    """The threads of the client, and those of gRPC, which end a moment after its last channel."""
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("datapipes-part")]
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as file:
                names.append(file.read().strip())
        except OSError:  # it has just ended
            continue
    return [name for name in names if name.startswith(("datapipes-part", "event_engine", "grpc_", "lifeguard"))]


def settled(condition, bound=WAIT_S) -> bool:
    """Whether a condition comes true within the bound."""
    never = threading.Event()
    return any(condition() or never.wait(0.01) for _ in range(int(bound * 100)))


@pytest.fixture
def nothing_left():
    """The first use of Arrow Flight in a process keeps some descriptors; what comes after must give back all."""
    multiprocessing.forkserver.ensure_running()  # it keeps some, too
    multiprocessing.resource_tracker.ensure_running()
    gc.collect()  # servers and clients of other tests
    with pytest.raises(flight.FlightError):
        flight.FlightClient("grpc://127.0.0.1:1").do_get(flight.Ticket(b""), flight.FlightCallOptions(timeout=1))
    settled(lambda: own_threads() == [], 1.0)  # not where another test has had a server in this process
    before, threads = num_descriptors(), own_threads()
    yield
    assert settled(lambda: len(own_threads()) <= len(threads)), own_threads()
    assert not [name for name in own_threads() if name.startswith("datapipes-part")]
    assert settled(lambda: num_descriptors() <= before), (before, num_descriptors())


def expect_unavailable(future, address, reason="."):
    message = (
        rf"part 1 at {address}: no answer within {SHORT_S:g} s; it was asked \d+ times, .*{reason}.*datapipes serve"
    )
    with pytest.raises(dp.ServerUnavailable, match=message):
        future.result(SHORT_S + WAIT_S)


def expect_answer(future, part):
    assert plain(future.result(WAIT_S)) == plain(REQUEST.answered_by(part))


# --- no answer


def test_a_server_that_accepts_and_never_answers(nothing_left, peers_of):
    with socket.create_server(("127.0.0.1", 0)) as hole:
        address = f"127.0.0.1:{hole.getsockname()[1]}"
        peers = peers_of(address, SHORT_S)
        for future in [peers.ask(1, REQUEST) for _ in range(20)]:
            expect_unavailable(future, address)
        peers.close()


def test_nobody_listens(nothing_left, peers_of):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    peers = peers_of(address, SHORT_S)
    expect_unavailable(peers.ask(1, REQUEST), address, "Connection refused")
    peers.close()


def test_a_server_that_is_frozen_dies_comes_back_and_has_other_data(nothing_left, peers_of, root, part, tmp_path):
    with WarmServer(root, 1) as server:
        patient, hasty = peers_of(server.address), peers_of(server.address, SHORT_S)
        expect_answer(patient.ask(1, REQUEST), part)
        # Connected, if the machine is not too busy; if it is, the next one cannot connect, which ends alike.
        wait([hasty.ask(1, REQUEST)], WAIT_S)
        server.freeze()
        expect_unavailable(hasty.ask(1, REQUEST), server.address)
        server.thaw()
        expect_answer(patient.ask(1, REQUEST), part)
        server.kill()
        expect_unavailable(hasty.ask(1, REQUEST), server.address)
        waiting = [patient.ask(1, REQUEST) for _ in range(10)]
        server.start()
        for future in waiting:
            expect_answer(future, part)
        server.kill()
        server.root = write(tmp_path / "other", a_graph(feature_seed=1))
        server.start()
        theirs = Part.open(server.root, 1).content_id
        assert theirs != part.content_id
        with pytest.raises(OtherPartition, match=f"part 1 at {server.address}: .*{theirs}.*{part.content_id}"):
            patient.ask(1, REQUEST).result(WAIT_S)
        patient.close()
        hasty.close()


# --- the network


def test_cut_connections_lose_nothing(nothing_left, peers_of, root, part):
    with WarmServer(root, 1) as server, Proxy(server.address, delay=0.002) as proxy:
        peers = peers_of(proxy.address)
        for _ in range(5):
            asked = [peers.ask(1, REQUEST) for _ in range(30)]
            wait(asked[:5], WAIT_S)
            proxy.tell("cut")
            for future in asked:
                expect_answer(future, part)
        peers.close()


def test_a_connection_that_stands_still_holds_up_only_its_own_requests(nothing_left, peers_of, root, part):
    with WarmServer(root, 1) as server, Proxy(server.address) as proxy:
        peers = peers_of(proxy.address, deadline=3.0)
        expect_answer(peers.ask(1, REQUEST), part)
        proxy.tell("stall 1 3600")
        stuck = peers.ask(1, REQUEST)
        assert settled(lambda: proxy.stalled() == 1)
        proxy.tell("stall 0 0")
        for _ in range(20):
            expect_answer(peers.ask(1, REQUEST), part)
        assert not stuck.done()
        expect_answer(stuck, part)  # it is asked again on another connection
        peers.close()


# --- what a server says


def full(text: str) -> flight.FlightUnavailableError:
    return flight.FlightUnavailableError("", error_to_bytes(Unavailable(text)))


def test_a_server_that_is_full_is_asked_again_on_the_same_connection(peers_of, part):
    with ScriptedServer(part, draw=raising([full("full")] * 4)) as server:
        expect_answer(peers_of(server.address).ask(1, REQUEST), part)
        assert server.asked == ["hello", *["draw"] * 5]


def test_a_server_that_stays_full_is_given_up_with_its_own_words(peers_of, part):
    with ScriptedServer(part, draw=raising(itertools.repeat(full("256 requests wait")))) as server:
        expect_unavailable(peers_of(server.address, SHORT_S).ask(1, REQUEST), server.address, "256 requests wait")


def test_an_error_without_a_reason_is_asked_again_a_few_times(peers_of, part):
    with ScriptedServer(part, draw=raising([Dropped(), Dropped()])) as server:
        expect_answer(peers_of(server.address).ask(1, REQUEST), part)
    with ScriptedServer(part, draw=raising(itertools.repeat(Dropped()))) as server:
        with pytest.raises(dp.RemoteError, match=f"part 1 at {server.address}: "):
            peers_of(server.address).ask(1, REQUEST).result(WAIT_S)
        assert server.asked.count("draw") == 3


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tensors: {},
        lambda tensors: {**tensors, "indptr": tensors["indptr"] + 1},
        lambda tensors: {**tensors, "neighbors": tensors["neighbors"] - 10**6},
    ],
    ids=["nothing", "indptr", "neighbors"],
)
def test_an_answer_that_does_not_fit_is_refused_at_once(peers_of, part, spoil):
    with ScriptedServer(part, draw=lambda _, answer: answer._replace(tensors=spoil(answer.tensors))) as server:
        with pytest.raises(BadMessage, match=f"part 1 at {server.address}: "):
            peers_of(server.address).ask(1, REQUEST).result(WAIT_S)
        assert server.asked == ["hello", "draw"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("stream", 10**6, "stream version .* 1000000"), ("protocol", 0, "protocol version .* 0")],
)
def test_another_version_is_refused_in_the_greeting_with_both_versions(peers_of, part, name, value, message):
    def of_another_version(_, answer):
        return Message({**answer.header, name: value}, answer.tensors)

    with ScriptedServer(part, hello=of_another_version) as server:
        with pytest.raises(OtherPartition, match=rf"part 1 at {server.address}: .*{message}.*here it is \d"):
            peers_of(server.address).ask(1, REQUEST).result(WAIT_S)
        assert server.asked == ["hello"]


def test_the_server_of_another_part_is_refused_in_the_greeting(peers_of, root):
    with ScriptedServer(Part.open(root, 0)) as server:
        message = f"part 1 at {server.address}: the server has the part 0, expected is 1"
        with pytest.raises(OtherPartition, match=message):
            peers_of(server.address).ask(1, REQUEST).result(WAIT_S)


# --- closing


def test_requests_in_flight_end_when_the_client_is_closed(nothing_left, peers_of):
    with socket.create_server(("127.0.0.1", 0)) as hole:
        peers = peers_of(f"127.0.0.1:{hole.getsockname()[1]}", 3.0)
        futures = [peers.ask(1, REQUEST) for _ in range(40)]
        peers.close()
        for future in futures:
            with pytest.raises(RuntimeError, match=r"part 1 at .*: the connections were closed before the answer came"):
                future.result(WAIT_S)


def test_peers_that_nobody_holds_any_more_end_their_threads_and_connections(nothing_left, peers_of, root, part):
    with WarmServer(root, 1) as server:
        peers = FlightPeers(
            {1: replicas_of("test", "a part", server.address, "test")},
            PartitionFacts.of(part),
            tls=None,
            deadline=WAIT_S,
        )
        expect_answer(peers.ask(1, REQUEST), part)
        del peers


def test_peers_whose_server_could_not_be_reached_end_with_their_last_holder_too(nothing_left, part):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = replicas_of("test", "a part", f"127.0.0.1:{taken.getsockname()[1]}", "test")
    peers = FlightPeers({1: address}, PartitionFacts.of(part), tls=None, deadline=SHORT_S)
    wait([peers.ask(1, REQUEST) for _ in range(3)], WAIT_S)
    held = weakref.ref(peers)
    del peers
    assert settled(lambda: gc.collect() >= 0 and held() is None, 5.0)


def test_peers_that_are_closed_and_connect_again_keep_nothing_of_it(peers_of, part):
    with ScriptedServer(part) as server:
        peers = peers_of(server.address)
        before = len(weakref.finalize._registry)
        for _ in range(5):
            expect_answer(peers.ask(1, REQUEST), part)
            peers.close()
        gc.collect()
        assert len(weakref.finalize._registry) <= before
