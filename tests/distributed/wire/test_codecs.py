"""Requests and answers as messages: they come back whole, the form is fixed, and what is none is refused."""

import json
import re
from dataclasses import replace

import pytest
import torch
from wire_messages import (
    WRITES,
    a_draw,
    a_draw_by_time,
    a_draw_of_trees,
    digests_of_times,
    expect_equal,
    some_facts,
    some_pairs,
    some_rows,
)

from datapipes.base.rng import STREAM_VERSION
from datapipes.distributed.partition_facts import greeting_from_message, greeting_to_message, hello_to_message
from datapipes.distributed.requests.digests import DigestRequest
from datapipes.distributed.requests.draw import Drawn, DrawRequest
from datapipes.distributed.requests.edges import EdgesRequest
from datapipes.distributed.requests.rows import RowsRequest
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
from datapipes.graph.choice import UNIFORM, Choice
from datapipes.graph.graph import EarliestNode, FoundEdges
from datapipes.sampling.layer_neighbor_sampler import Numbered
from datapipes.sampling.neighbor_sampler import ByWeight

MEANT = Meant(1, "0123456789abcdef", "fedcba9876543210")
FACTS = some_facts()


def travelled(message: Message) -> Message:
    return from_bytes("other side", to_bytes("here", message), 2**20)


def test_a_draw_comes_back():
    request = a_draw()
    found = DrawRequest.from_message("server", travelled(request.to_message(MEANT)))
    assert (found.draws, found.replace, found.edge_ids) == (request.draws, True, True)
    expect_equal(found.ids, request.ids)


def test_a_draw_of_trees_comes_back():
    request = a_draw_of_trees()
    found = DrawRequest.from_message("server", travelled(request.to_message(MEANT)))
    expect_equal(found.ids, request.ids)
    expect_equal(found.streams, request.streams)
    plain = DrawRequest.from_message("server", travelled(a_draw().to_message(MEANT)))
    assert plain.streams is None


def test_a_draw_by_time_comes_back():
    for request in (a_draw_by_time(), replace(a_draw_by_time(), streams=None)):
        found = DrawRequest.from_message("server", travelled(request.to_message(MEANT)))
        assert (found.choice, found.streams is None) == (request.choice, request.streams is None)
        expect_equal(found.times, request.times)


def test_a_draw_by_weight_comes_back():
    request = replace(a_draw(), choice=ByWeight("größe"))
    message = request.to_message(MEANT)
    assert message.header["choice"] == {"by": "weight", "prob_name": "größe"}
    assert DrawRequest.from_message("server", travelled(message)).choice == request.choice


def test_a_draw_by_number_comes_back_and_needs_two_keys_for_each_draw():
    choice = Numbered(4, 2, (((1, 2), (3, 2**64 - 1)),))
    request = replace(a_draw(), choice=choice, replace=False)
    message = request.to_message(MEANT)
    assert message.header["choice"] == BY_NUMBER
    assert DrawRequest.from_message("server", travelled(message)).choice == choice
    for wrong, text in (
        (replace(request, choice=choice.at(0, [0])), "keys has 1 entries, for 2 draws"),
        (replace(request, replace=True), "are drawn without replacement"),
        (replace(a_draw_of_trees(), choice=choice, replace=False), "have no streams"),
    ):
        with pytest.raises(BadRequest, match=text):
            DrawRequest.from_message("server", wrong.to_message(MEANT))


def test_a_request_for_digests_and_its_answer_come_back():
    request = digests_of_times()
    assert DigestRequest.from_message("server", travelled(request.to_message(MEANT))) == request
    digests = [None, ["int64:" + "0123456789abcdef" * 2, "int64:" + "0" * 32]]
    assert request.answer_from_message("client", travelled(DigestRequest.answer_to_message(digests)), FACTS) == digests


def test_a_request_about_edges_and_its_answer_come_back():
    request = some_pairs()
    found = EdgesRequest.from_message("server", travelled(request.to_message(MEANT)))
    assert found.edge_type == request.edge_type
    expect_equal(vars(found) | {"edge_type": torch.ones(1)}, vars(request) | {"edge_type": torch.ones(1)})
    answer = FoundEdges(torch.tensor([0, 2, 1]), torch.tensor([-1, 5, 0]))
    expect_equal(
        request.answer_from_message("client", travelled(EdgesRequest.answer_to_message(answer)), FACTS)._asdict(),
        answer._asdict(),
    )
    no_types = replace(request, edge_type=None).to_message(MEANT)
    assert EdgesRequest.from_message("server", travelled(no_types)).edge_type is None


@pytest.mark.parametrize(
    ("counts", "first_ids", "text"),
    [
        ([0, 1], [-1, 4], r"counts as int64 \[2\], expected was int64 \[3\]"),
        ([0, 1, 1], [-1, -1, 4], "contradict each other"),
        ([0, 0, 1], [-1, 3, 4], "contradict each other"),
        ([0, -1, 1], [-1, -1, 4], "contradict each other"),
    ],
)
def test_an_answer_about_edges_that_is_none_is_refused(counts, first_ids, text):
    message = EdgesRequest.answer_to_message(FoundEdges(torch.tensor(counts), torch.tensor(first_ids)))
    with pytest.raises(BadMessage, match=text):
        some_pairs().answer_from_message("client", message, FACTS)


def test_a_request_about_edges_that_is_none_is_refused():
    good = some_pairs().to_message(MEANT)
    for name, value in (("edge_type", 7), ("edge_type", ["a", "b"]), ("more", 1)):
        with pytest.raises(BadRequest, match=name.replace("_", " ")):
            EdgesRequest.from_message("server", Message({**good.header, name: value}, good.tensors))
    with pytest.raises(BadRequest, match="2 sources for 3 destinations"):
        EdgesRequest.from_message("server", Message(good.header, {**good.tensors, "ids.1": torch.tensor([1, 2])}))
    with pytest.raises(BadMessage, match="expected were"):
        some_pairs().answer_from_message("client", Message(good.header, {}), FACTS)


def test_facts_with_the_earliest_nodes_come_back():
    facts = replace(some_facts(), node_time_attr="at", earliest_nodes={"paper": EarliestNode(3, "int64:00")})
    assert greeting_from_message("client", travelled(greeting_to_message(2, facts))) == (2, facts)


def test_a_draw_without_types_comes_back():
    ids = {None: torch.tensor([], dtype=torch.int64)}
    request = DrawRequest(ids, (a_draw().draws[0]._replace(edge_type=None),))
    found = DrawRequest.from_message("server", travelled(request.to_message(Meant())))
    assert (found.draws, found.replace, found.edge_ids) == (request.draws, False, False)
    expect_equal(found.ids, ids)


def test_rows_come_back():
    request = some_rows()
    found = RowsRequest.from_message("server", travelled(request.to_message(MEANT)))
    assert [each[:3] for each in found.rows] == [each[:3] for each in request.rows]
    assert [each.ids.tolist() for each in found.rows] == [[4, 4, 0], [1]]


@pytest.mark.parametrize("edge_ids", [True, False])
def test_what_was_drawn_comes_back(edge_ids):
    request, drawn = drawn_of_a_draw(edge_ids)
    found = request.answer_from_message("client", travelled(DrawRequest.answer_to_message(drawn)), FACTS)
    expect_equal(DrawRequest.answer_columns(found), DrawRequest.answer_columns(drawn))


def test_answered_rows_come_back():
    rows = answered()
    found = some_rows().answer_from_message("client", travelled(RowsRequest.answer_to_message(rows)), FACTS)
    expect_equal(dict(enumerate(found)), dict(enumerate(rows)))


def test_the_facts_come_back():
    found = greeting_from_message("client", travelled(greeting_to_message(2, some_facts())))
    assert found == (2, some_facts())
    assert [*found[1].features] == [*some_facts().features]


def test_the_attribute_of_the_times_of_sources_comes_back_where_there_is_one():
    facts = replace(some_facts(), node_time_attr="since")
    message = greeting_to_message(2, facts)
    assert greeting_from_message("client", travelled(message)) == (2, facts)
    assert "node_time_attr" not in greeting_to_message(2, some_facts()).header["facts"]
    message.header["facts"]["node_time_attr"] = 0
    with pytest.raises(BadMessage, match="node_time_attr is 0, allowed are texts"):
        greeting_from_message("client", message)


def test_facts_without_types_come_back():
    facts = replace(some_facts(), num_nodes={None: 4}, num_edges={None: 0}, features={})
    assert greeting_from_message("client", travelled(greeting_to_message(0, facts))) == (0, facts)


def drawn_of_a_draw(edge_ids: bool = True) -> tuple[DrawRequest, Drawn]:
    neighbors = torch.tensor([4, 0, 4, 3])  # of two authors, then of three papers
    drawn = Drawn(torch.tensor([0, 1, 1, 1, 3, 4]), neighbors.int(), neighbors if edge_ids else None)
    return replace(a_draw(), edge_ids=edge_ids), drawn


def answered() -> list[torch.Tensor]:
    return [torch.ones(3, 4, 2).bfloat16(), torch.arange(3.0), torch.zeros(1, 0, dtype=torch.bool)]


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
    for message, text in (
        (a_draw().to_message(MEANT), draw),
        (a_draw_of_trees().to_message(MEANT), draw.removesuffix("}") + ',"columns":["ids","streams"]}'),
        (a_draw_by_time().to_message(MEANT), draw.removesuffix("}") + by_time),
        (digests_of_times().to_message(MEANT), digests),
        (some_rows().to_message(MEANT), rows),
        (some_pairs().to_message(MEANT), common % "edges" + ',"edge_type":["author","writes","paper"]}'),
        (hello_to_message(MEANT), common % "hello" + "}"),
    ):
        assert json.dumps(message.header, separators=(",", ":")) == text
    assert [*a_draw().to_message(MEANT).tensors] == [*some_rows().to_message(MEANT).tensors] == ["ids.0", "ids.1"]
    assert [*a_draw_of_trees().to_message(MEANT).tensors] == ["ids.0", "ids.1", "streams.0", "streams.1"]


def test_the_form_of_answers_does_not_change():
    assert DrawRequest.answer_to_message(drawn_of_a_draw()[1]).header == {"protocol": 2, "stream": 1, "kind": "draw"}
    names = ["indptr", "neighbors", "edge_ids"]
    assert [*DrawRequest.answer_to_message(drawn_of_a_draw()[1]).tensors] == names
    assert RowsRequest.answer_to_message(answered()).header == {"protocol": 2, "stream": 1, "kind": "rows"}
    assert [*RowsRequest.answer_to_message(answered()).tensors] == ["0", "1", "2"]
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


GONE = object()
WRONG_DRAWS = {
    "no ids": ({"ids": GONE}, "must have exactly"),
    "more": ({"prob": "w"}, "must have exactly"),
    "ids of a number": ({"ids": [1, "paper"]}, "the node type 1"),
    "ids twice": ({"ids": ["paper", "paper"]}, "has ids twice"),
    "fewer types": ({"ids": ["paper"]}, "the columns are ['ids.0', 'ids.1'], expected were ['ids.0']"),
    "types no list": ({"ids": {"paper": 0}}, "ids is {'paper': 0}, it must be a list"),
    "draws no list": ({"draws": "x"}, "draws is 'x', it must be a list"),
    "draw of two": ({"draws": [[["author", "knows", "author"], 3]]}, "it must have 3 entries"),
    "draw of a text": ({"draws": [["author:knows:author", 3, 0]]}, "the edge type 'author:knows:author'"),
    "draw without ids": ({"draws": [[["a", "b", "c"], 3, 0]]}, "there are no ids for the draw of ('a', 'b', 'c')"),
    "fanout": ({"draws": [[[*WRITES], -2, 0]]}, "fanout is -2, allowed are whole numbers in [-1, "),
    "fanout 0": ({"draws": [[[*WRITES], 0, 0]]}, "a fanout is 0, allowed are -1 and whole numbers above 0"),
    "draw twice": ({"draws": [[[*WRITES], 1, 0], [[*WRITES], 1, 0]]}, "each comes once, in sorted order"),
    "draws not sorted": (
        {"draws": [[[*WRITES], 1, 0], [["author", "knows", "author"], 1, 0]]},
        "each comes once, in sorted order",
    ),
    "draw of None twice": ({"draws": [[None, 1, 0], [None, 1, 0]]}, "each comes once, in sorted order"),
    "fanout true": ({"draws": [[[*WRITES], True, 0]]}, "fanout is True, allowed"),
    "key": ({"draws": [[[*WRITES], 1, 2**64]]}, "key is 18446744073709551616, allowed"),
    "replace": ({"replace": 1}, "replace and edge_ids are 1 and True"),
    "columns null": ({"columns": None}, "must have exactly"),
    "columns no list": ({"columns": "streams"}, "columns is 'streams', it must be a list"),
    "columns of ids alone": ({"columns": ["ids"]}, "allowed are two or more of"),
    "columns without ids": ({"columns": ["streams", "streams"]}, "allowed are two or more of"),
    "columns of another kind": ({"columns": ["ids", "weights"]}, "allowed are two or more of"),
    "columns that are not there": ({"columns": ["ids", "streams"]}, "expected were ['ids.0', 'ids.1', 'streams.0', "),
    "many draws": ({"draws": [[]] * 70_000}, "draws is a list of 70000, it must be a list of at most 65536"),
}


@pytest.mark.parametrize("name", WRONG_DRAWS)
def test_what_is_no_draw_is_refused(name):
    header, text = WRONG_DRAWS[name]
    message = changed(a_draw().to_message(MEANT), **header)
    message = Message({key: value for key, value in message.header.items() if value is not GONE}, message.tensors)
    with pytest.raises(BadRequest, match=re.escape(text)):
        DrawRequest.from_message("server", message)


@pytest.mark.parametrize("ids", [torch.ones(2), torch.ones(2).bool(), torch.tensor(1), torch.ones(2, 1).long()])
def test_what_are_no_ids_is_refused(ids):
    for message, read in (
        (a_draw().to_message(MEANT), DrawRequest.from_message),
        (some_rows().to_message(MEANT), RowsRequest.from_message),
    ):
        message.tensors["ids.1"] = ids
        with pytest.raises(BadRequest, match=r"ids.1 is torch.* allowed are int32 and int64 of 1 dimension"):
            read("server", message)


BY_TIME = {
    "by": "time",
    "edge_time_attr": "at",
    "node_time_attr": None,
    "strategy": "uniform",
    "inclusive": False,
    "time_window": None,
}


BY_NUMBER = {"by": "number", "dependency": 4, "until_next": 2, "keys": [[1, 2], [3, 2**64 - 1]]}


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        (None, "must have exactly"),
        ("time", "choice is 'time', it must be an object, by ALL"),
        ({}, "choice is {}, it must be an object"),
        ({"by": ["time"]}, "it must be an object"),
        ({**BY_TIME, "by": "chance"}, "it must be an object, by ALL"),
        ({"by": "weight"}, "it must have exactly"),
        ({"by": "number"}, "it must have exactly"),
        ({**BY_NUMBER, "dependency": 0}, "dependency is 0"),
        ({**BY_NUMBER, "dependency": 2**31}, "dependency is 2147483648"),
        ({**BY_NUMBER, "until_next": 5}, "until_next is 5, allowed are whole numbers in [1, 4]"),
        ({**BY_NUMBER, "keys": 3}, "keys is 3, it must be a list"),
        ({**BY_NUMBER, "keys": [3]}, "an entry of keys is 3, it must be a list"),
        ({**BY_NUMBER, "keys": [[3]]}, "it must have two keys for each draw"),
        ({**BY_NUMBER, "keys": [[3, 2**64]]}, "key is 18446744073709551616, allowed"),
        ({**BY_NUMBER, "dependency": 1, "until_next": 1}, "none if the dependency is 1"),
        ({"by": "weight", "prob_name": None}, "prob_name is None, allowed are texts"),
        ({"by": "time"}, "choice is [], it must have exactly"),
        ({**BY_TIME, "more": 1}, "it must have exactly"),
        ({**BY_TIME, "edge_time_attr": None}, "neither edges nor nodes have times"),
        ({**BY_TIME, "node_time_attr": 3}, "node_time_attr is 3, allowed are texts"),
        ({**BY_TIME, "strategy": "first"}, "strategy is 'first', allowed are uniform and last"),
        ({**BY_TIME, "strategy": ["last"]}, "strategy is ['last'], allowed are"),
        ({**BY_TIME, "inclusive": 1}, "inclusive is 1, allowed are booleans"),
        ({**BY_TIME, "time_window": -1}, "time_window is -1"),
        ({**BY_TIME, "time_window": 2**63}, "time_window is 9223372036854775808"),
        ({**BY_TIME, "time_window": True}, "time_window is True"),
        ({**BY_TIME, "strategy": "last"}, "the last in-edges cannot be drawn with replacement"),
    ],
    ids=str,
)
def test_what_is_no_choice_is_refused(choice, text):
    text = text.replace("by ALL", f"by {' or '.join(sorted(each.by for each in Choice.__subclasses__() if each.by))}")
    message = changed(a_draw_by_time().to_message(MEANT), choice=choice)
    with pytest.raises(BadRequest, match=re.escape(text)):
        DrawRequest.from_message("server", message)
    if choice is not None and "replacement" not in text:
        with pytest.raises(BadRequest, match=re.escape(text)):
            DigestRequest.from_message("server", changed(digests_of_times().to_message(MEANT), choice=choice))


def test_times_without_a_choice_and_a_choice_without_times_are_refused():
    for request in (replace(a_draw_by_time(), times=None), replace(a_draw_by_time(), choice=UNIFORM)):
        with pytest.raises(BadRequest, match="rows have times if they are drawn by time, and only then"):
            DrawRequest.from_message("server", request.to_message(MEANT))


def test_what_is_no_request_for_digests_is_refused():
    good = digests_of_times().to_message(MEANT)
    for header, text in (
        ({"edge_types": "x"}, "edge_types is 'x', it must be a list"),
        ({"edge_types": ["a:b:c"]}, "the edge type 'a:b:c'"),
        ({"edge_types": [[*WRITES], [*WRITES]]}, "each comes once, in sorted order"),
        ({"more": 1}, "must have exactly"),
    ):
        with pytest.raises(BadRequest, match=re.escape(text)):
            DigestRequest.from_message("server", changed(good, **header))
    with pytest.raises(BadRequest, match=re.escape("the columns are ['ids.0']")):
        DigestRequest.from_message("server", Message(good.header, {"ids.0": torch.tensor([1])}))


@pytest.mark.parametrize(
    "digests",
    [None, [], [None], [None, []], [None, "x"], [None, ["int64:0"]], [None, [7]], [None, ["x:" + "0" * 32] * 3]],
)
def test_what_are_no_digests_is_refused(digests):
    with pytest.raises(BadMessage, match="expected was one entry for each edge type"):
        digests_of_times().answer_from_message("client", DigestRequest.answer_to_message(digests), FACTS)


@pytest.mark.parametrize(
    ("streams", "text"),
    [
        (torch.zeros(2), "streams.1 is torch.float32 [2], allowed are uint32 of 1 dimension"),
        (torch.zeros(3, 1).to(torch.uint32), "streams.1 is torch.uint32 [3, 1]"),
        (torch.zeros(2).to(torch.uint32), "streams.1 has 2 rows, ids.1 has 3"),
    ],
)
def test_what_are_no_streams_is_refused(streams, text):
    message = a_draw_of_trees().to_message(MEANT)
    message.tensors["streams.1"] = streams
    with pytest.raises(BadRequest, match=re.escape(text)):
        DrawRequest.from_message("server", message)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([["node", "paper", ["x"]]], "expected were ['ids.0']"),
        ([["graph", None, []], ["node", None, []]], "domain is 'graph', allowed are node and edge"),
        ([["node", ["a", "b", "c"], []], ["node", None, []]], "the node type ['a', 'b', 'c']"),
        ([["edge", "a", []], ["node", None, []]], "the edge type 'a'"),
        ([["node", None, [1]], ["node", None, []]], "names is 1, allowed are texts"),
        ([["node", None, "x"], ["node", None, []]], "names is 'x', it must be a list"),
        ([[["node"], None, []], ["node", None, []]], "domain is ['node'], allowed are node and edge"),
        ("x", "rows is 'x', it must be a list"),
    ],
)
def test_what_are_no_rows_is_refused(rows, text):
    with pytest.raises(BadRequest, match=re.escape(text)):
        RowsRequest.from_message("server", changed(some_rows().to_message(MEANT), rows=rows))


def test_an_answer_that_does_not_fit_the_draw_is_refused():
    request, drawn = drawn_of_a_draw()
    indptr, neighbors, edge_ids = drawn
    wrong = [
        ({"indptr": indptr[:-1]}, "indptr is torch.int64 [5], expected was int64 [6]"),
        ({"indptr": indptr + 1}, "indptr does not begin at 0, or decreases"),
        ({"indptr": torch.tensor([0, 2, 1, 1, 3, 4])}, "indptr does not begin at 0, or decreases"),
        ({"indptr": torch.tensor([0, 1, 1, 1, 3, 5])}, "expected were 5 of torch.int32 and int64"),
        ({"indptr": indptr.int()}, "indptr is torch.int32"),
        ({"neighbors": neighbors.long()}, "expected were 4 of torch.int32"),
        ({"edge_ids": neighbors}, "expected were 4 of torch.int32 and int64"),
        ({"neighbors": neighbors + 1}, "found neighbors outside [0, 5)"),
        ({"neighbors": neighbors - 9}, "found neighbors outside [0, 5)"),
        ({"edge_ids": edge_ids - 9}, "found edge ids outside [0, "),
        ({"edge_ids": None}, "the answer has"),
    ]
    for change, text in wrong:
        answer = drawn._replace(**change)
        with pytest.raises(BadMessage, match=re.escape(text)):
            request.answer_from_message("client", DrawRequest.answer_to_message(answer), FACTS)


def test_an_answer_that_does_not_fit_the_rows_is_refused():
    rows = answered()
    for answer, text in (
        (rows[:2], "answered the tensors ['0', '1'], expected were ['0', '1', '2']"),
        ([rows[0].half(), *rows[1:]], "the rows of 'x' as float16 [3, 4, 2], expected was bfloat16"),
        ([rows[0][:2], *rows[1:]], "as bfloat16 [2, 4, 2], expected was bfloat16 [3, 4, 2]"),
    ):
        with pytest.raises(BadMessage, match=re.escape(text)):
            some_rows().answer_from_message("client", RowsRequest.answer_to_message(answer), FACTS)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("num_parts", 0, "num_parts is 0"),
        ("num_parts", True, "num_parts is True"),
        ("num_nodes", [["a", -1]], "num_nodes is -1"),
        ("num_nodes", [["a"]], "it must have 2 entries"),
        ("num_nodes", [[None, 3]], "partly without names"),
        ("num_nodes", [["paper", 3]], "an edge type ends at 'author', which is no node type"),
        ("index_dtype", "uint8", "index_dtype is 'uint8', allowed are int32 and int64"),
        (
            "num_nodes",
            [["author", 5], ["paper", 2**31]],
            "there are 2147483648 nodes of one type, and index_dtype is int32",
        ),
        ("content_id", None, "content_id is None, allowed are texts"),
        ("features", [["node", "nobody", "x", "float32", []]], "which is no node type"),
        ("features", [["node", "paper", "x", "qint8", []]], "has the dtype 'qint8'"),
        ("features", [["node", "paper", "x", "int8", [-1]]], "has the shape [-1]"),
    ],
)
def test_facts_that_cannot_be_are_refused(name, value, text):
    message = greeting_to_message(2, some_facts())
    message.header["facts"][name] = value
    with pytest.raises(BadMessage, match=re.escape(text)):
        greeting_from_message("client", message)


def test_a_part_beyond_the_last_is_refused():
    with pytest.raises(BadMessage, match=r"part is 3, allowed are whole numbers in \[0, 2\]"):
        greeting_from_message("client", greeting_to_message(3, some_facts()))


# --- who is meant


def test_another_server_is_refused_and_both_are_named():
    for theirs, text in (
        (MEANT._replace(part=0), "this server has the part 1, the client means 0"),
        (MEANT._replace(partition_id="x"), "the partition_id '0123456789abcdef', the client means 'x'"),
        (MEANT._replace(content_id="y"), "the content_id 'fedcba9876543210', the client means 'y'"),
        (MEANT._replace(part=True), "the client means True"),
    ):
        with pytest.raises(OtherPartition, match=text):
            check_meant("server", request_header("draw", theirs), MEANT)
    check_meant("server", request_header("draw", MEANT), MEANT)
    check_meant("server", request_header("hello", Meant()), MEANT)
    with pytest.raises(BadRequest, match="the header has no part"):
        check_meant("server", {}, MEANT)


def test_other_versions_are_refused_and_both_are_named():
    header = request_header("draw", MEANT)
    check_versions("server", header)
    for changes, text in (
        ({"protocol": 1}, "the protocol version of the other side is 1, here it is 2"),
        ({"stream": 0}, "the stream version of the other side is 0, here it is 1"),
        ({"stream": True}, "is True"),
        ({"stream": None}, "is None"),
    ):
        with pytest.raises(OtherPartition, match=text):
            check_versions("server", {**header, **changes})
    with pytest.raises(OtherPartition):
        check_versions("server", {})


def test_unknown_kinds_are_refused():
    assert kind_of("server", {"kind": "hello"}) == "hello"
    for kind in ("exec", None, ["draw"], {}):
        with pytest.raises(BadRequest, match="there is no request"):
            kind_of("server", {"kind": kind})


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


def test_a_request_without_rows_is_one():
    assert RowsRequest.from_message("server", travelled(RowsRequest(()).to_message(MEANT))).rows == ()
