"""FlightPeers: answers as the part itself gives, errors by type, and what is asked again."""

import itertools
import pickle
from concurrent.futures import wait
from dataclasses import replace

import pyarrow
import pyarrow.flight as flight
import pytest
import torch
from partitions import source_of
from scripted_server import AsItIs, Dropped, ScriptedServer, raising
from wire_messages import plain

import datapipes as dp
from datapipes.distributed import Part, PartitionBook, requests
from datapipes.distributed.client.flight_peers import MOST_BYTES
from datapipes.distributed.partition_facts import PartitionFacts
from datapipes.distributed.requests.draw import Draw, DrawRequest
from datapipes.distributed.requests.edges import EdgesRequest
from datapipes.distributed.requests.rows import Rows, RowsRequest
from datapipes.distributed.wire.arrow_message import to_batches
from datapipes.distributed.wire.arrow_reading import BadMessage
from datapipes.distributed.wire.refusals import AnswerTooLarge
from datapipes.partition.native.native_write import write_native

WAIT_S = 60.0  # for what takes milliseconds
OWN = torch.arange(1, 60, 2)  # of part 1


def a_graph(rng_seed: int = 0) -> dp.CSCGraph:
    generator = torch.Generator().manual_seed(rng_seed)
    return dp.CSCGraph.from_edge_index(
        torch.randint(0, 60, (2, 400), generator=generator),
        60,
        node_attributes={"x": torch.rand(60, 3, generator=generator), "y": torch.arange(60)},
        edge_attributes={"w": torch.rand(400, generator=generator)},
    )


def write(root, graph) -> Part:
    root.mkdir()
    book = PartitionBook(2, torch.arange(60) % 2)
    write_native(root, source_of(graph), book, node_time_attr=None, about={}, progress=lambda *_: None)
    return Part.open(root, 1)


@pytest.fixture(scope="module")
def part(tmp_path_factory):
    return write(tmp_path_factory.mktemp("parts") / "root", a_graph())


def a_draw(ids=OWN) -> DrawRequest:
    return DrawRequest({None: ids}, (Draw(None, 3, 7),), edge_ids=True)


def some_rows(ids=OWN) -> RowsRequest:
    return RowsRequest((Rows("node", None, ("x", "y"), ids), Rows("node", None, ("y",), ids[:2])))


def some_pairs(ids=OWN) -> EdgesRequest:
    return EdgesRequest(None, ids, ids.flip(0))


def test_a_server_answers_as_the_part_does(part, peers_of):
    with ScriptedServer(part) as server:
        peers = peers_of(server.address)
        assert plain(peers.ask(1, a_draw()).result(WAIT_S)) == plain(a_draw().answered_by(part))
        assert plain(peers.ask(1, some_rows()).result(WAIT_S)) == plain(some_rows().answered_by(part))
        empty = torch.empty(0, dtype=torch.int32)
        assert plain(peers.ask(1, a_draw(empty)).result(WAIT_S)) == plain(a_draw(empty).answered_by(part))
        assert plain(peers.ask(1, some_rows(empty)).result(WAIT_S)) == plain(some_rows(empty).answered_by(part))
        assert peers.ask(1, RowsRequest(())).result(WAIT_S) == []
        for ids in (OWN, empty):
            assert plain(peers.ask(1, some_pairs(ids)).result(WAIT_S)) == plain(some_pairs(ids).answered_by(part))


OUTSIDE = "gone \x1b[2J\u202e\x9b of größe"


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (ValueError(OUTSIDE), ValueError),  # in the bytes beside the status
        (Dropped(OUTSIDE), dp.RemoteError),
        (flight.FlightUnauthorizedError(OUTSIDE), PermissionError),
        (flight.FlightUnauthenticatedError(OUTSIDE), PermissionError),
        (flight.FlightUnavailableError(OUTSIDE), dp.ServerUnavailable),
        (flight.FlightInternalError(OUTSIDE), dp.RemoteError),
    ],
    ids=lambda given: type(given).__name__,
)
def test_what_a_server_says_moves_no_cursor(part, peers_of, raised, kind):
    with ScriptedServer(part, draw=raising(itertools.repeat(raised))) as server, pytest.raises(kind) as caught:
        peers_of(server.address, 0.5).ask(1, a_draw()).result(WAIT_S)
    text = str(caught.value)
    assert text.isprintable()
    assert r"gone \x1b[2J\u202e\x9b of größe" in text


RAISED = {  # what a server of Flight can raise; gRPC sends a code of each
    flight.FlightCancelledError("x"): dp.ServerUnavailable,
    flight.FlightServerError("x"): dp.RemoteError,
    pyarrow.ArrowInvalid("x"): dp.RemoteError,
    flight.FlightTimedOutError("x"): dp.ServerUnavailable,
    pyarrow.ArrowKeyError("x"): dp.RemoteError,
    flight.FlightUnauthorizedError("x"): PermissionError,
    pyarrow.ArrowCapacityError("x"): dp.RemoteError,
    pyarrow.ArrowIndexError("x"): dp.RemoteError,
    pyarrow.ArrowNotImplementedError("x"): ConnectionError,
    flight.FlightInternalError("x"): dp.RemoteError,
    flight.FlightUnavailableError("x"): dp.ServerUnavailable,
    flight.FlightUnauthenticatedError("x"): PermissionError,
    pyarrow.ArrowMemoryError("x"): dp.RemoteError,
    RuntimeError("x"): dp.RemoteError,
}


@pytest.mark.parametrize(("raised", "kind"), RAISED.items(), ids=lambda given: type(given).__name__)
def test_whatever_a_server_raises_ends_as_an_error_with_a_meaning(part, peers_of, raised, kind):
    with ScriptedServer(part, draw=raising(itertools.repeat(AsItIs(raised)))) as server:
        with pytest.raises(kind) as caught:
            peers_of(server.address, 0.5).ask(1, a_draw()).result(WAIT_S)
        said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
        assert f"part 1 at {server.address}" in said


def test_many_requests_are_in_flight_over_few_connections_and_each_is_greeted_once(part, peers_of):
    with ScriptedServer(part) as server:
        peers = peers_of(server.address)
        draws = [a_draw(OWN[: 1 + n % 20]) for n in range(100)]
        asked = [peers.ask(1, each) for each in draws]
        assert not wait(asked, WAIT_S).not_done
        for request, answer in zip(draws, asked, strict=True):
            assert plain(answer.result()) == plain(request.answered_by(part))
        assert 1 <= server.asked.count("hello") <= 4
        assert server.asked.count("draw") == 100


def test_large_requests_are_cut_and_put_together(part, peers_of, monkeypatch):
    with ScriptedServer(part) as server:
        peers = peers_of(server.address)
        monkeypatch.setattr(requests.rows, "ANSWER_BYTES", 7 * 20)  # a row of x and y has 20 bytes
        monkeypatch.setattr(requests.request, "MOST_IDS", 7)
        assert plain(peers.ask(1, some_rows()).result(WAIT_S)) == plain(some_rows().answered_by(part))
        assert server.asked.count("rows") == 6
        assert plain(peers.ask(1, a_draw()).result(WAIT_S)) == plain(a_draw().answered_by(part))
        assert server.asked.count("draw") == 5
        ids = OWN.repeat(2)
        trees = replace(a_draw(ids), streams={None: torch.arange(len(ids)).to(torch.uint32)})
        assert plain(peers.ask(1, trees).result(WAIT_S)) == plain(trees.answered_by(part))
        assert server.asked.count("draw") == 14
        assert plain(peers.ask(1, some_pairs(ids)).result(WAIT_S)) == plain(some_pairs(ids).answered_by(part))
        assert server.asked.count("edges") == 9


@pytest.mark.parametrize(
    ("request_", "kind", "message"),
    [
        (a_draw(torch.tensor([4])), IndexError, "node 4 is not in part 1. Ask part 0"),
        (a_draw(torch.tensor([60])), IndexError, "node 60 is outside the graph"),
        (DrawRequest({"a": OWN}, (Draw(("a", "r", "a"), 1, 0),)), ValueError, "the graph has no types"),
        (RowsRequest((Rows("node", None, ("z",), OWN),)), KeyError, "no node feature 'z' of the type None; the part"),
    ],
)
def test_errors_of_the_server_keep_type_and_reason_and_name_part_and_address(part, peers_of, request_, kind, message):
    with ScriptedServer(part) as server:
        with pytest.raises(kind, match=f"part 1 at {server.address}: .*{message}"):
            peers_of(server.address).ask(1, request_).result(WAIT_S)
        assert len(server.asked) == 2  # the greeting and the request: nothing is asked again


def test_peers_go_to_other_processes_by_their_arguments(part, peers_of):
    with ScriptedServer(part) as server:
        peers = peers_of(server.address)
        peers.ask(1, a_draw()).result(WAIT_S)
        copy = pickle.loads(pickle.dumps(peers))
        peers.close()
        assert plain(copy.ask(1, a_draw()).result(WAIT_S)) == plain(a_draw().answered_by(part))
        copy.close()
        copy.close()
        assert plain(copy.ask(1, a_draw()).result(WAIT_S)) == plain(a_draw().answered_by(part))
        copy.close()


def at_most_ten(message, answer):
    if sum(ids.shape[0] for ids in message.tensors.values()) > 10:
        raise AnswerTooLarge("10 ids at most")
    return answer


def test_a_draw_that_is_too_large_is_halved_until_the_server_takes_it(part, peers_of):
    with ScriptedServer(part, draw=at_most_ten) as server:
        peers = peers_of(server.address)
        assert plain(peers.ask(1, a_draw()).result(WAIT_S)) == plain(a_draw().answered_by(part))
        assert server.asked.count("draw") == 7  # 30, 15, 8, 7, 15, 8, 7


# --- rows that are taken as they arrive


def taken(peers, request, facts):
    """The rows of an answer, put together from what arrives."""
    forms = [
        (each.ids.shape[0], facts.features[each.domain, each.type, name])
        for each in request.rows
        for name in each.names
    ]
    whole = [torch.empty(count, *form.shape, dtype=form.dtype) for count, form in forms]

    def take(number, first, rows):
        table = whole[number].view(torch.uint8).view(whole[number].shape[0], -1)
        table[first : first + rows.shape[0]] = rows

    assert peers.ask(1, replace(request, take=take)).result(WAIT_S) == []
    return whole


def test_rows_that_are_taken_as_they_arrive_are_those_of_the_answer(part, peers_of, monkeypatch):
    facts = PartitionFacts.of(part)
    for changes in ({}, {"rows": at_most_ten}):
        with ScriptedServer(part, **changes) as server:
            peers = peers_of(server.address)
            assert plain(taken(peers, some_rows(), facts)) == plain(some_rows().answered_by(part))
    with ScriptedServer(part) as server:
        peers = peers_of(server.address)
        monkeypatch.setattr(requests.rows, "ANSWER_BYTES", 7 * 20)  # a row of x and y has 20 bytes
        assert plain(taken(peers, some_rows(), facts)) == plain(some_rows().answered_by(part))
        monkeypatch.setattr(to_batches, "__defaults__", (64,))
        assert plain(taken(peers, some_rows(), facts)) == plain(some_rows().answered_by(part))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda tensors: {**tensors, "0": tensors["0"][:-1]}, r"the rows of 'x' as float32 \[29, 3\]"),
        (lambda tensors: {**tensors, "0": tensors["0"].double()}, "the rows of 'x' as float64"),
        (lambda tensors: {"0": tensors["0"]}, r"expected were \['0', '1', '2'\]"),
    ],
)
def test_nothing_is_taken_of_an_answer_to_something_else(part, peers_of, change, found):
    def changed(_, answer):
        return answer._replace(tensors=change(answer.tensors))

    seen = []
    request = replace(some_rows(), take=lambda *given: seen.append(given))
    with ScriptedServer(part, rows=changed) as server, pytest.raises(ValueError, match=found):
        peers_of(server.address).ask(1, request).result(WAIT_S)
    assert seen == []


@pytest.mark.parametrize("make", [a_draw, some_rows])
def test_an_answer_larger_than_the_request_can_give_is_refused_by_its_size(part, peers_of, make):
    def enlarged(_, answer):
        return answer._replace(tensors={**answer.tensors, [*answer.tensors][-1]: torch.zeros(2**20)})

    message = "part 1 at .*: found tensors of 4[0-9]{6} bytes; at most [0-9]{5} are allowed"
    with ScriptedServer(part, draw=enlarged, rows=enlarged) as server, pytest.raises(BadMessage, match=message):
        peers_of(server.address).ask(1, make()).result(WAIT_S)


def test_a_draw_with_all_edges_or_of_several_types_is_bounded_by_its_own_size(part):
    facts = PartitionFacts.of(part)
    edge_bytes = facts.index_dtype.itemsize
    assert a_draw().num_bytes(facts, MOST_BYTES) == 8 * 31 + 30 * 3 * (edge_bytes + 8)
    twice = DrawRequest({None: OWN}, (Draw(None, 3, 7), Draw(None, 2, 8)), replace=True)
    assert twice.num_bytes(facts, MOST_BYTES) == 8 * 61 + 30 * (3 + 2) * edge_bytes
    assert twice.num_bytes(facts, 100) is None
    assert DrawRequest({None: OWN}, (Draw(None, -1, 7),)).num_bytes(facts, MOST_BYTES) is None
