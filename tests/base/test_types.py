"""Node types and edge types: how they are written, and how an unknown one is refused."""

from hypothesis import given
from hypothesis import strategies as st

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


def test_what_is_no_type_is_refused(refuses):
    refuses(ValueError, check_node_type, "here", "")
    for no_text in (None, ("a", "r", "b")):
        refuses(TypeError, check_node_type, "here", no_text)
    for no_three_texts in ("a:r:b:c", "http://x:r:b", "a:r", "", ("a", "r"), ("a", "r", 3), ("a", "", "b"), "a::b"):
        refuses(ValueError, check_edge_type, "here", no_three_texts)
    refuses(TypeError, check_edge_type, "here", ["a", "r", "b"])


def test_an_unknown_type_is_refused_with_the_nearest(refuses):
    nodes, edges = {"paper": 3, "author": 2}, {("author", "writes", "paper"): 1, ("paper", "cites", "paper"): 2}
    assert known_node_type("here", "paper", nodes) == "paper"
    assert known_edge_type("here", "paper:cites:paper", edges) == ("paper", "cites", "paper")
    refuses(ValueError, known_node_type, "here", "autor", nodes)
    for unknown in ("paper:cite:paper", ("paper", "cite", "paper")):
        refuses(ValueError, known_edge_type, "here", unknown, edges)
    refuses(ValueError, known_node_type, "here", "a", {})


def test_types_as_keys_are_sorted_and_given_once(refuses):
    given_types = {"b:r:a": 1, ("a", "s", "b"): 2, ("a", "r", "b"): 3}
    assert list(by_edge_type("here", given_types).items()) == [
        (("a", "r", "b"), 3),
        (("a", "s", "b"), 2),
        (("b", "r", "a"), 1),
    ]
    refuses(ValueError, by_edge_type, "here", {**given_types, ("b", "r", "a"): 4})


def test_long_names_cost_no_time(refuses):
    """The search for the nearest name takes the square of the length, and names may come from a file."""
    refuses(ValueError, check_node_type, "here", "x" * 5000)
    refuses(ValueError, check_edge_type, "here", ("a", "x" * 5000, "b"))
    known = [f"{i}{'y' * 4000}" for i in range(3000)]
    refuses(ValueError, known_node_type, "here", "x" * 4000, known)
