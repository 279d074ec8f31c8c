"""Node types and edge types: how they are written, and how an unknown one is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipelines import refused

from datapipes.base.types import (
    by_edge_type,
    check_edge_type,
    check_node_type,
    known_edge_type,
    known_node_type,
    type_text,
)

names = st.text(st.characters(exclude_characters=":", exclude_categories=["Cs"]), min_size=1, max_size=5)


@given(names, names, names)
def test_a_text_of_three_parts_is_the_tuple(src, rel, dst):
    assert check_edge_type("here", f"{src}:{rel}:{dst}") == check_edge_type("here", (src, rel, dst)) == (src, rel, dst)
    assert type_text((src, rel, dst)) == f"{src}:{rel}:{dst}"


def test_a_tuple_may_hold_any_characters_and_a_node_type_too():
    iri = "http://example.org/a:b"
    assert check_edge_type("here", (iri, "is", iri)) == (iri, "is", iri)
    assert check_node_type("here", iri) == type_text(iri) == iri


@pytest.mark.parametrize(
    ("check", "value", "error", "found", "allowed"),
    [
        (check_node_type, "", ValueError, "an empty name of a node type", "at least one character"),
        (check_node_type, None, TypeError, "None", "must be a str"),
        (check_node_type, ("a", "r", "b"), TypeError, "'a', 'r', 'b'", "must be a str"),
        (check_edge_type, "a:r:b:c", ValueError, "more than one way", r"the tuple \(src, rel, dst\)"),
        (check_edge_type, "http://x:r:b", ValueError, "more than one way", r"the tuple \(src, rel, dst\)"),
        (check_edge_type, "a:r", ValueError, "'a:r'", "three texts"),
        (check_edge_type, "", ValueError, "got ''", "three texts"),
        (check_edge_type, ("a", "r"), ValueError, r"\('a', 'r'\)", "three texts"),
        (check_edge_type, ("a", "r", 3), ValueError, r"\('a', 'r', 3\)", "three texts"),
        (check_edge_type, ["a", "r", "b"], TypeError, "list|'a'", "must be a tuple"),
        (check_edge_type, ("a", "", "b"), ValueError, "an empty name in the edge type", "at least one character"),
        (check_edge_type, "a::b", ValueError, "an empty name in the edge type 'a::b'", "at least one character"),
    ],
)
def test_what_is_no_type_is_refused(check, value, error, found, allowed):
    with refused(error, stage="^here: ", found=found, allowed=allowed):
        check("here", value)


def test_an_unknown_type_is_refused_with_the_nearest():
    nodes, edges = {"paper": 3, "author": 2}, {("author", "writes", "paper"): 1, ("paper", "cites", "paper"): 2}
    assert known_node_type("here", "paper", nodes) == "paper"
    assert known_edge_type("here", "paper:cites:paper", edges) == ("paper", "cites", "paper")
    known = r"known are \['author', 'paper'\]\. The nearest is 'author'"
    with refused(ValueError, stage="^here: ", found="no node type 'autor'", allowed=known):
        known_node_type("here", "autor", nodes)
    nearest = r"The nearest is \('paper', 'cites', 'paper'\)"
    for value in ("paper:cite:paper", ("paper", "cite", "paper")):
        with refused(ValueError, stage="^here: ", found="no edge type", allowed=nearest):
            known_edge_type("here", value, edges)
    with refused(ValueError, stage="^here: ", found="no node type 'a'", allowed=r"known are \[\]\. Use"):
        known_node_type("here", "a", {})


def test_types_as_keys_are_sorted_and_given_once():
    given_types = {"b:r:a": 1, ("a", "s", "b"): 2, ("a", "r", "b"): 3}
    assert list(by_edge_type("here", given_types).items()) == [
        (("a", "r", "b"), 3),
        (("a", "s", "b"), 2),
        (("b", "r", "a"), 1),
    ]
    with refused(ValueError, stage="^here: ", found=r"\('b', 'r', 'a'\) is given twice", allowed="once"):
        by_edge_type("here", {**given_types, ("b", "r", "a"): 4})


def test_long_names_cost_no_time():
    """The search for the nearest name takes the square of the length, and names may come from a file."""
    with refused(ValueError, stage="here", found="5000 characters", allowed="4096"):
        check_node_type("here", "x" * 5000)
    with refused(ValueError, stage="here", found="5000 characters", allowed="4096"):
        check_edge_type("here", ("a", "x" * 5000, "b"))
    known = [f"{i}{'y' * 4000}" for i in range(3000)]
    with refused(ValueError, stage="here", found="no node type", allowed="known are"):
        known_node_type("here", "x" * 4000, known)
