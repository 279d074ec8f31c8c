"""Requests and answers as messages: they come back whole, the form is fixed, and what is none is refused."""

import json
from dataclasses import replace

import pytest
import torch
from wire_messages import (
    WRITES,
    a_draw,
    a_draw_by_time,
    a_draw_of_trees,
    a_draw_with_windows,
    digests_of_times,
    plain,
    some_facts,
    some_pairs,
    some_rows,
    some_steps,
)

from datapipes.base.rng import STREAM_VERSION
from datapipes.distributed.partition_facts import greeting_from_message, greeting_to_message, hello_to_message
from datapipes.distributed.requests.digests import DigestRequest
from datapipes.distributed.requests.draw import Drawn, DrawRequest
from datapipes.distributed.requests.edges import EdgesRequest
from datapipes.distributed.requests.rows import RowsRequest
from datapipes.distributed.requests.steps import Steps, StepsRequest, WholeRowsRequest
from datapipes.distributed.server.service import kind_of
from datapipes.distributed.wire.arrow_message import Message, to_bytes
from datapipes.distributed.wire.arrow_reading import BadMessage, from_bytes
from datapipes.distributed.wire.envelope import PROTOCOL, Meant, check_meant, check_versions, request_header
from datapipes.distributed.wire.refusals import (
    MOST_BYTES,
    AnswerTooLarge,
    BadRequest,
    OtherPartition,
    Unavailable,
    error_from_bytes,
    error_to_bytes,
)
from datapipes.graph.choice import UNIFORM
from datapipes.graph.graph import EarliestNode, FoundEdges
from datapipes.sampling.layer_neighbor_sampler import Numbered
from datapipes.sampling.neighbor_sampler import ByWeight
from datapipes.sampling.temporal_neighbor_sampler import ByTime

MEANT = Meant(1, "0123456789abcdef", "fedcba9876543210")
FACTS = some_facts()


def travelled(message: Message) -> Message:
    return from_bytes("other side", to_bytes("here", message), 2**20)


BY_NUMBER = Numbered(4, 2, (((1, 2), (3, 2**64 - 1)),))
REQUESTS = {
    "draw": a_draw(),
    "draw without edge ids": replace(a_draw(), edge_ids=False),
    "draw of trees": a_draw_of_trees(),
    "draw by time": replace(a_draw_by_time(), streams=None),
    "draw by time of trees": a_draw_by_time(),
    "draw by weight": replace(a_draw(), choice=ByWeight("größe")),
    "draw by time and weight": replace(a_draw_by_time(), choice=ByTime("at", "since", prob_name="größe")),
    "draw by time and windows": a_draw_with_windows(),
    "draw by number": replace(a_draw(), choice=BY_NUMBER, replace=False),
    "draw without types": DrawRequest(
        {None: torch.tensor([], dtype=torch.int64)}, (a_draw().draws[0]._replace(edge_type=None),)
    ),
    "digests": digests_of_times(),
    "edges": some_pairs(),
    "edges without types": replace(some_pairs(), edge_type=None),
    "rows": some_rows(),
    "no rows": RowsRequest(()),
    "steps": some_steps(),
    "steps without weights and types": replace(some_steps(), choice=None, edge_type=None, edge_ids=False),
    "plain steps": replace(some_steps(), p=1.0, q=1.0, before=torch.empty(0, dtype=torch.int32)),
    "whole rows": WholeRowsRequest(
        WRITES, False, ByWeight("w"), torch.tensor([4, 0]), torch.tensor([], dtype=torch.int64)
    ),
    "whole rows, not of hubs": WholeRowsRequest(None, False, None, torch.tensor([4, 0]), torch.tensor([7, 2**40])),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_comes_back(name):
    request = REQUESTS[name]
    arrived = type(request).from_message("server", travelled(request.to_message(MEANT)))
    assert plain(vars(arrived)) == plain(vars(request))


@pytest.mark.parametrize("kind", ["draw", "draw without edge ids", "digests", "edges", "rows", "steps", "whole rows"])
def test_an_answer_comes_back(kind):
    request, answer = REQUESTS[kind], ANSWERS[kind]
    arrived = request.answer_from_message("client", travelled(request.answer_to_message(answer)), FACTS)
    assert type(arrived) is type(answer)
    assert plain(arrived) == plain(answer)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"node_time_attr": "since"},
        {"node_time_attr": "at", "earliest_nodes": {"paper": EarliestNode(3, "int64:00")}},
        {"num_nodes": {None: 4}, "num_edges": {None: 0}, "features": {}},
    ],
    ids=str,
)
def test_the_facts_come_back(changes):
    facts = replace(FACTS, **changes)
    message = greeting_to_message(2, facts)
    part, arrived = greeting_from_message("client", travelled(message))
    assert (part, arrived) == (2, facts)
    assert [*arrived.features] == [*facts.features]
    assert ("node_time_attr" in message.header["facts"]) == (facts.node_time_attr is not None)


NEIGHBORS = torch.tensor([4, 0, 4, 3])  # of two authors, then of three papers
DRAWN = Drawn(torch.tensor([0, 1, 1, 1, 3, 4]), NEIGHBORS.int(), NEIGHBORS)
ROWS = [torch.ones(3, 4, 2).bfloat16(), torch.arange(3.0), torch.zeros(1, 0, dtype=torch.bool)]
NO_SUMS, SUMS = torch.empty(0).double(), torch.tensor([0, 0.5, 9]).double()
STEPS = Steps(torch.tensor([1, 0, 2]), NEIGHBORS[:3].int(), NEIGHBORS[:3], torch.tensor([0, 1, 3]).byte(), NO_SUMS)
ROWS_OF_WALKS = Steps(torch.tensor([0, 3]), NEIGHBORS[:3].int(), NEIGHBORS[:0], torch.empty(0).byte(), SUMS)
ANSWERS = {
    "steps": STEPS,
    "whole rows": ROWS_OF_WALKS,
    "draw": DRAWN,
    "draw without edge ids": DRAWN._replace(edge_ids=None),
    "digests": [None, ["int64:" + "0123456789abcdef" * 2, "int64:" + "0" * 32]],
    "edges": FoundEdges(torch.tensor([0, 2, 1]), torch.tensor([-1, 5, 0])),
    "rows": ROWS,
}


# --- the form does not change silently


def test_the_form_of_requests_does_not_change():
    """Another form needs another PROTOCOL."""
    assert (PROTOCOL, STREAM_VERSION) == (2, 1)
    ids = '"partition_id":"0123456789abcdef","content_id":"fedcba9876543210"'
    common = '{"protocol":2,"stream":1,"kind":"%s","part":1,' + ids
    draw = (
        common
        % "draw"
        + ',"ids":["author","paper"],"draws":[[["author","knows","author"],-1,0],[["author","writes","paper"],5,'
        '18446744073709551615]],"replace":true,"edge_ids":true}'
    )
    by_time = (
        ',"columns":["ids","streams","times"],"choice":{"by":"time","edge_time_attr":"at","node_time_attr":null,'
        '"strategy":"uniform","inclusive":true,"time_window":9223372036854775807}}'
    )
    digests = (
        common % "digest" + ',"edge_types":[["author","knows","author"],["author","writes","paper"]],"choice":'
        '{"by":"time","edge_time_attr":"at","node_time_attr":"since","strategy":"uniform","inclusive":false,'
        '"time_window":null}}'
    )
    rows = (
        common % "rows" + ',"rows":[["node","paper",["x","gr\\u00f6\\u00dfe \\ud83d\\udca1"]],'
        '["edge",["author","writes","paper"],["w"]]]}'
    )
    steps = (
        ',"edge_type":["author","writes","paper"],"number":3,"key":18446744073709551615,"end_below":4294967296,"p":0.25,'
        '"q":4.0,"edge_ids":true,"choice":{"by":"weight","prob_name":"gr\\u00f6\\u00dfe"}}'
    )
    for message, text in (
        (a_draw().to_message(MEANT), draw),
        (a_draw_of_trees().to_message(MEANT), draw.removesuffix("}") + ',"columns":["ids","streams"]}'),
        (a_draw_by_time().to_message(MEANT), draw.removesuffix("}") + by_time),
        (digests_of_times().to_message(MEANT), digests),
        (some_rows().to_message(MEANT), rows),
        (some_pairs().to_message(MEANT), common % "edges" + ',"edge_type":["author","writes","paper"]}'),
        (hello_to_message(MEANT), common % "hello" + "}"),
        (some_steps().to_message(MEANT), common % "steps" + steps),
    ):
        assert json.dumps(message.header, separators=(",", ":")) == text
    assert [*a_draw().to_message(MEANT).tensors] == [*some_rows().to_message(MEANT).tensors] == ["ids.0", "ids.1"]
    assert [*a_draw_of_trees().to_message(MEANT).tensors] == ["ids.0", "ids.1", "streams.0", "streams.1"]
    by_weight = REQUESTS["draw by weight"].to_message(MEANT)
    assert by_weight.header["choice"] == {"by": "weight", "prob_name": "größe"}
    windowed = a_draw_with_windows().to_message(MEANT)
    assert windowed.header["columns"] == ["ids", "streams", "times", "windows"]
    assert windowed.header["choice"] == {**CHOSEN_BY_TIME, "window_field": "recent"}
    assert [*windowed.tensors][-2:] == ["windows.0", "windows.1"]
    by_both = REQUESTS["draw by time and weight"].to_message(MEANT).header["choice"]
    assert by_both == {**CHOSEN_BY_TIME, "node_time_attr": "since", "prob_name": "größe"}
    assert REQUESTS["draw by number"].to_message(MEANT).header["choice"] == CHOSEN_BY_NUMBER
    by_number_and_weight = replace(REQUESTS["draw by number"], choice=replace(BY_NUMBER, prob_name="w"))
    assert by_number_and_weight.to_message(MEANT).header["choice"] == {**CHOSEN_BY_NUMBER, "prob_name": "w"}


def test_the_form_of_answers_does_not_change():
    drawn, rows = DrawRequest.answer_to_message(DRAWN), RowsRequest.answer_to_message(ROWS)
    assert drawn.header == {"protocol": 2, "stream": 1, "kind": "draw"}
    assert [*drawn.tensors] == ["indptr", "neighbors", "edge_ids"]
    assert rows.header == {"protocol": 2, "stream": 1, "kind": "rows"}
    assert [*rows.tensors] == ["0", "1", "2"]
    header = greeting_to_message(2, some_facts()).header
    assert (header["kind"], header["part"]) == ("hello", 2)
    assert json.dumps(header["facts"], separators=(",", ":")) == (
        '{"num_parts":3,"num_nodes":[["author",5],["paper",9]],"num_edges":[[["author","knows","author"],2],'
        '[["author","writes","paper"],11]],"index_dtype":"int32","fingerprint":"ffffffffffffffffffffffffffffffff",'
        '"partition_id":"0123456789abcdef","content_id":"fedcba9876543210","features":[["node","paper","x","bfloat16",'
        "[4,2]],"
        '["node","paper","gr\\u00f6\\u00dfe \\ud83d\\udca1","float32",[]],["edge",["author","writes","paper"],"w",'
        '"bool",[0]]]}'
    )


# --- what is none


def changed(message: Message, **header: object) -> Message:
    return Message({**message.header, **header}, message.tensors)


KNOWS = ["author", "knows", "author"]


def test_what_a_draw_refuses(refuses):
    good = a_draw().to_message(MEANT)
    without_ids = Message({name: value for name, value in good.header.items() if name != "ids"}, good.tensors)
    refuses(BadRequest, DrawRequest.from_message, "server", without_ids)
    for header in (
        {"prob": "w"},
        {"ids": [1, "paper"]},
        {"ids": ["paper", "paper"]},
        {"ids": ["paper"]},
        {"ids": {"paper": 0}},
        {"draws": "x"},
        {"draws": [[KNOWS, 3]]},
        {"draws": [["author:knows:author", 3, 0]]},
        {"draws": [[["a", "b", "c"], 3, 0]]},
        {"draws": [[[*WRITES], -2, 0]]},
        {"draws": [[[*WRITES], 0, 0]]},
        {"draws": [[[*WRITES], 1, 0], [[*WRITES], 1, 0]]},
        {"draws": [[[*WRITES], 1, 0], [KNOWS, 1, 0]]},
        {"draws": [[None, 1, 0], [None, 1, 0]]},
        {"draws": [[[*WRITES], True, 0]]},
        {"draws": [[[*WRITES], 1, 2**64]]},
        {"draws": [[]] * 70_000},
        {"replace": 1},
        {"columns": None},
        {"columns": "streams"},
        {"columns": ["ids"]},
        {"columns": ["streams", "streams"]},
        {"columns": ["ids", "weights"]},
        {"columns": ["ids", "streams"]},
    ):
        refuses(BadRequest, DrawRequest.from_message, "server", changed(good, **header))
    for request in (
        replace(a_draw_by_time(), times=None),
        replace(a_draw_by_time(), choice=UNIFORM),
        replace(a_draw_with_windows(), windows=None),
        replace(a_draw_with_windows(), choice=a_draw_by_time().choice),
        replace(a_draw(), choice=BY_NUMBER.at(0, [0]), replace=False),
        replace(a_draw(), choice=BY_NUMBER),
        replace(a_draw_of_trees(), choice=BY_NUMBER, replace=False),
    ):
        refuses(BadRequest, DrawRequest.from_message, "server", request.to_message(MEANT))


def test_what_columns_of_a_request_refuse(refuses):
    for request, column, wrong in (
        (a_draw(), "ids.1", torch.ones(2)),
        (a_draw(), "ids.1", torch.tensor(1)),
        (some_rows(), "ids.1", torch.ones(2).bool()),
        (some_rows(), "ids.1", torch.ones(2, 1).long()),
        (a_draw_of_trees(), "streams.1", torch.zeros(2)),
        (a_draw_of_trees(), "streams.1", torch.zeros(3, 1).to(torch.uint32)),
        (a_draw_of_trees(), "streams.1", torch.zeros(2).to(torch.uint32)),
    ):
        message = request.to_message(MEANT)
        message.tensors[column] = wrong
        refuses(BadRequest, type(request).from_message, "server", message)


CHOSEN_BY_TIME = {
    "by": "time",
    "edge_time_attr": "at",
    "node_time_attr": None,
    "strategy": "uniform",
    "inclusive": False,
    "time_window": None,
}
CHOSEN_BY_NUMBER = {"by": "number", "dependency": 4, "until_next": 2, "keys": [[1, 2], [3, 2**64 - 1]]}


def test_what_a_choice_refuses(refuses):
    draw, digests = a_draw_by_time().to_message(MEANT), digests_of_times().to_message(MEANT)
    refuses(BadRequest, DrawRequest.from_message, "server", changed(draw, choice=None))
    last = {**CHOSEN_BY_TIME, "strategy": "last"}
    refuses(BadRequest, DrawRequest.from_message, "server", changed(draw, choice=last))
    for choice in (
        "time",
        {},
        {"by": ["time"]},
        {"by": "chance"},
        {"by": "weight"},
        {"by": "number"},
        {"by": "time"},
        {**CHOSEN_BY_NUMBER, "dependency": 0},
        {**CHOSEN_BY_NUMBER, "dependency": 2**31},
        {**CHOSEN_BY_NUMBER, "until_next": 5},
        {**CHOSEN_BY_NUMBER, "keys": 3},
        {**CHOSEN_BY_NUMBER, "keys": [3]},
        {**CHOSEN_BY_NUMBER, "keys": [[3]]},
        {**CHOSEN_BY_NUMBER, "keys": [[3, 2**64]]},
        {**CHOSEN_BY_NUMBER, "dependency": 1, "until_next": 1},
        {**CHOSEN_BY_NUMBER, "prob_name": None},
        {**CHOSEN_BY_NUMBER, "prob_name": 3},
        {"by": "weight", "prob_name": None},
        {**CHOSEN_BY_TIME, "more": 1},
        {**CHOSEN_BY_TIME, "edge_time_attr": None},
        {**CHOSEN_BY_TIME, "node_time_attr": 3},
        {**CHOSEN_BY_TIME, "strategy": "first"},
        {**CHOSEN_BY_TIME, "strategy": ["last"]},
        {**CHOSEN_BY_TIME, "inclusive": 1},
        {**CHOSEN_BY_TIME, "time_window": -1},
        {**CHOSEN_BY_TIME, "time_window": 2**63},
        {**CHOSEN_BY_TIME, "time_window": True},
        {**CHOSEN_BY_TIME, "time_window": 3, "window_field": "recent"},
        {**CHOSEN_BY_TIME, "prob_name": None},
        {**CHOSEN_BY_TIME, "prob_name": "w", "strategy": "last"},
    ):
        refuses(BadRequest, DrawRequest.from_message, "server", changed(draw, choice=choice))
        refuses(BadRequest, DigestRequest.from_message, "server", changed(digests, choice=choice))


def test_what_requests_for_digests_and_edges_and_rows_refuse(refuses):
    digests, edges, rows = (made().to_message(MEANT) for made in (digests_of_times, some_pairs, some_rows))
    for header in (
        {"edge_types": "x"},
        {"edge_types": ["a:b:c"]},
        {"edge_types": [[*WRITES], [*WRITES]]},
        {"more": 1},
    ):
        refuses(BadRequest, DigestRequest.from_message, "server", changed(digests, **header))
    with_ids = Message(digests.header, {"ids.0": torch.tensor([1])})
    refuses(BadRequest, DigestRequest.from_message, "server", with_ids)
    for header in ({"edge_type": 7}, {"edge_type": ["a", "b"]}, {"more": 1}):
        refuses(BadRequest, EdgesRequest.from_message, "server", changed(edges, **header))
    one_less = Message(edges.header, {**edges.tensors, "ids.1": torch.tensor([1, 2])})
    refuses(BadRequest, EdgesRequest.from_message, "server", one_less)
    no_rows = ["node", None, []]
    for wrong in (
        [["node", "paper", ["x"]]],
        [["graph", None, []], no_rows],
        [["node", ["a", "b", "c"], []], no_rows],
        [["edge", "a", []], no_rows],
        [["node", None, [1]], no_rows],
        [["node", None, "x"], no_rows],
        [[["node"], None, []], no_rows],
        "x",
    ):
        refuses(BadRequest, RowsRequest.from_message, "server", changed(rows, rows=wrong))


def test_what_requests_for_steps_refuse(refuses):
    steps = some_steps().to_message(MEANT)
    for header in (
        {"number": -1},
        {"key": 2**64},
        {"end_below": 2**32 + 1},
        {"p": 0.0},
        {"p": 1.0, "q": 1.0},
        {"q": 5e-324},
        {"edge_ids": 1},
        {"q": "1"},
        {"choice": CHOSEN_BY_TIME},
        {"choice": {"by": "x"}},
        {"more": 1},
    ):
        refuses(BadRequest, StepsRequest.from_message, "server", changed(steps, **header))
    one_less = Message(steps.header, {**steps.tensors, "ids.2": torch.tensor([1, 2])})
    refuses(BadRequest, StepsRequest.from_message, "server", one_less)


def test_steps_that_do_not_fit_are_refused(refuses):
    request = some_steps()
    for change in (
        {"counts": torch.tensor([1, 0, 1])},
        {"counts": torch.tensor([4, 0, -1])},
        {"counts": torch.tensor([3, 0])},
        {"sources": STEPS.sources.long()},
        {"sources": torch.tensor([4, 0, 5]).int()},
        {"edge_ids": torch.tensor([0, 1, -1])},
        {"counts": torch.tensor([2**63 - 1, 2**63 - 1, 5])},
        {"kinds": torch.tensor([0, 4, 3]).byte()},
        {"kinds": torch.tensor([0, 3, 3]).byte()},
        {"kinds": torch.tensor([0, 0, 1]).byte()},
        {"sums": SUMS},
    ):
        message = StepsRequest.answer_to_message(STEPS._replace(**change))
        refuses(BadMessage, request.answer_from_message, "client", message, FACTS)
    refuses(BadMessage, request.answer_from_message, "client", Message({}, {}), FACTS)
    plain_steps = REQUESTS["plain steps"]
    refuses(BadMessage, plain_steps.answer_from_message, "client", StepsRequest.answer_to_message(STEPS), FACTS)
    rows = REQUESTS["whole rows"]
    for change in ({"sums": NO_SUMS}, {"kinds": STEPS.kinds}, {"edge_ids": STEPS.edge_ids}, {"counts": STEPS.counts}):
        message = WholeRowsRequest.answer_to_message(ROWS_OF_WALKS._replace(**change))
        refuses(BadMessage, rows.answer_from_message, "client", message, FACTS)


def test_answers_that_do_not_fit_are_refused(refuses):
    edges = some_pairs()
    for counts, first_ids in (
        ([0, 1], [-1, 4]),
        ([0, 1, 1], [-1, -1, 4]),
        ([0, 0, 1], [-1, 3, 4]),
        ([0, -1, 1], [-1, -1, 4]),
    ):
        answer = FoundEdges(torch.tensor(counts), torch.tensor(first_ids))
        refuses(BadMessage, edges.answer_from_message, "client", edges.answer_to_message(answer), FACTS)
    refuses(BadMessage, edges.answer_from_message, "client", Message({}, {}), FACTS)
    for digests in (None, [], [None], [None, []], [None, "x"], [None, ["int64:0"]], [None, [7]]):
        message = DigestRequest.answer_to_message(digests)
        refuses(BadMessage, digests_of_times().answer_from_message, "client", message, FACTS)
    four = DigestRequest.answer_to_message([None, ["x:" + "0" * 32] * 4])
    refuses(BadMessage, digests_of_times().answer_from_message, "client", four, FACTS)
    indptr, neighbors, edge_ids = DRAWN
    for change in (
        {"indptr": indptr[:-1]},
        {"indptr": indptr + 1},
        {"indptr": torch.tensor([0, 2, 1, 1, 3, 4])},
        {"indptr": torch.tensor([0, 1, 1, 1, 3, 5])},
        {"indptr": indptr.int()},
        {"neighbors": neighbors.long()},
        {"edge_ids": neighbors},
        {"neighbors": neighbors + 1},
        {"neighbors": neighbors - 9},
        {"edge_ids": edge_ids - 9},
        {"edge_ids": None},
    ):
        message = DrawRequest.answer_to_message(DRAWN._replace(**change))
        refuses(BadMessage, a_draw().answer_from_message, "client", message, FACTS)
    for rows in (ROWS[:2], [ROWS[0].half(), *ROWS[1:]], [ROWS[0][:2], *ROWS[1:]]):
        message = RowsRequest.answer_to_message(rows)
        refuses(BadMessage, some_rows().answer_from_message, "client", message, FACTS)


def test_what_a_greeting_refuses(refuses):
    for name, value in (
        ("num_parts", 0),
        ("num_parts", True),
        ("num_nodes", [["a", -1]]),
        ("num_nodes", [["a"]]),
        ("num_nodes", [[None, 3]]),
        ("num_nodes", [["paper", 3]]),
        ("num_nodes", [["author", 5], ["paper", 2**31]]),
        ("index_dtype", "uint8"),
        ("content_id", None),
        ("node_time_attr", 0),
        ("features", [["node", "nobody", "x", "float32", []]]),
        ("features", [["node", "paper", "x", "int8", [-1]]]),
    ):
        message = greeting_to_message(2, FACTS)
        message.header["facts"][name] = value
        refuses(BadMessage, greeting_from_message, "client", message)
    refuses(BadMessage, greeting_from_message, "client", greeting_to_message(3, FACTS))
    message = greeting_to_message(2, FACTS)
    message.header["facts"]["features"] = [["node", "paper", "x", "qint8", []]]
    with pytest.raises(BadMessage, match="has the dtype 'qint8'; allowed are"):  # the list depends on torch
        greeting_from_message("client", message)


# --- who is meant


def test_who_is_not_meant_is_refused(refuses):
    for client_means in (
        MEANT._replace(part=0),
        MEANT._replace(partition_id="x"),
        MEANT._replace(content_id="y"),
        MEANT._replace(part=True),
    ):
        refuses(OtherPartition, check_meant, "server", request_header("draw", client_means), MEANT)
    refuses(BadRequest, check_meant, "server", {}, MEANT)
    check_meant("server", request_header("draw", MEANT), MEANT)
    check_meant("server", request_header("hello", Meant()), MEANT)


def test_other_versions_and_unknown_kinds_are_refused(refuses):
    header = request_header("draw", MEANT)
    check_versions("server", header)
    for changes in ({"protocol": 1}, {"stream": 0}, {"stream": True}, {"stream": None}):
        refuses(OtherPartition, check_versions, "server", {**header, **changes})
    refuses(OtherPartition, check_versions, "server", {})
    assert kind_of("server", {"kind": "hello"}) == "hello"
    for kind in ("exec", None, ["draw"], {}):
        refuses(BadRequest, kind_of, "server", {"kind": kind})


# --- errors


class Own(KeyError):
    """An error type of somebody's module."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("a"), (ValueError, "a")),
        (KeyError("no feature 'x'"), (KeyError, "no feature 'x'")),
        (AnswerTooLarge("b"), (AnswerTooLarge, "b")),
        (BadRequest("c"), (BadRequest, "c")),
        (OtherPartition("d"), (OtherPartition, "d")),
        (Unavailable("e"), (Unavailable, "e")),
        (Own("f"), (KeyError, "Own: f")),
        (FileNotFoundError(2, "gone"), (OSError, "FileNotFoundError: [Errno 2] gone")),
        (ZeroDivisionError("g"), (RuntimeError, "ZeroDivisionError: g")),
        (SystemExit(3), (RuntimeError, "SystemExit: 3")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_travels_as_type_and_text(error, expected):
    assert error_from_bytes(error_to_bytes(error)) == expected


@pytest.mark.parametrize(
    "data",
    [b"", b"x", b"[]", b"{}", b'{"type":"exit","text":"x"}', b'{"type":"ValueError","text":1}', None, b"\xff"],
)
def test_what_is_no_error_is_none(data):
    assert error_from_bytes(data) is None


def test_a_long_error_keeps_its_beginning_and_fits():
    for text in ("x" * 10_000, "\U0001f4a1" * 4000, '"' * 4000):
        data = error_to_bytes(ValueError(text))
        assert MOST_BYTES // 2 < len(data) <= MOST_BYTES
        kind, found = error_from_bytes(data)
        assert kind is ValueError
        assert found.endswith("...")
        assert text.startswith(found[:-3])
