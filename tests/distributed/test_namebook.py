"""Namebooks: {part: address} as the user says it, complete or refused."""

import json

import pytest

from datapipes.distributed.address import Address
from datapipes.distributed.namebook import check_complete, read_namebook


def test_a_namebook_is_a_mapping_or_a_json_file_and_a_list_of_one_address_is_that_address(tmp_path):
    expected = {0: Address("a", 1), 2: Address("::1", 2)}
    assert read_namebook("here", {2: "[::1]:2", 0: "a:1"}) == expected
    assert read_namebook("here", {0: ["a:1"], 2: ("[::1]:2",)}) == expected
    path = tmp_path / "book.json"
    path.write_text(json.dumps({"2": "[::1]:2", "0": ["a:1"]}))
    assert read_namebook("here", path) == read_namebook("here", str(path)) == expected


@pytest.mark.parametrize(
    ("namebook", "kind", "message"),
    [
        (None, TypeError, "namebook must be {0: .*got None"),
        (["a:1"], TypeError, "namebook must be"),
        ({0: "a"}, ValueError, "the address of part 0 is 'a', which has no port"),
        ({0: None}, TypeError, "the address of part 0 must be a text"),
        ({0: []}, ValueError, "0 addresses for part 0"),
        ({0: ["a:1", "b:1"]}, ValueError, "2 addresses for part 0: several replicas of a part are not supported yet"),
        ({0: "0.0.0.0:1"}, ValueError, "0.0.0.0:1 for part 0; a server listens there, but no client finds it there"),
        ({-1: "a:1"}, ValueError, "has the key -1; keys are the numbers of parts"),
        ({True: "a:1"}, ValueError, "has the key True"),
        ({"0": "a:1"}, ValueError, "has the key '0'"),
        ({10**30: "a:1"}, ValueError, "has the key 10000"),
        ({0: "a:1", 3: "a:1"}, ValueError, "a:1 for part 0 and for part 3; a server has one part"),
    ],
)
def test_a_namebook_that_is_not_valid_is_refused_with_the_reason(namebook, kind, message):
    with pytest.raises(kind, match=f"here: .*{message}"):
        read_namebook("here", namebook)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not valid JSON"),
        ("[]", "must be a JSON object, got \\[\\]"),
        ('{"x": "a:1"}', "has the key 'x'"),
        ('{"0": 1.5}', "not valid JSON .*1.5"),
        ("[" * 10**5, "not valid JSON"),
    ],
)
def test_a_file_that_is_no_namebook_is_named(tmp_path, content, message):
    path = tmp_path / "book.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"here: the namebook .*book.json .*{message}"):
        read_namebook("here", path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"here: there is no namebook .*gone\.json"):
        read_namebook("here", tmp_path / "gone.json")


def test_holes_and_unknown_parts_are_named_and_the_local_part_needs_no_address():
    book = read_namebook("here", {0: "a:1", 1: "b:1", 3: "c:1"})
    assert check_complete("here", book, 4, local_part=2) == book
    assert [*check_complete("here", book, 4, local_part=2)] == [0, 1, 3]
    with pytest.raises(ValueError, match="no address of part 2; the partition has the parts 0 to 3"):
        check_complete("here", book, 4)
    with pytest.raises(ValueError, match=r"no address of part 2, 4.*part 5 is in this process, it needs none"):
        check_complete("here", book, 6, local_part=5)
    with pytest.raises(ValueError, match="no address of part 4, 5, 6, 7, 8, 9, 10, 11 and 88 more"):
        check_complete("here", {**book, 2: Address("d", 1)}, 100)
    with pytest.raises(ValueError, match="the namebook names part 3; the partition has the parts 0 to 2"):
        check_complete("here", book, 3)


def test_the_address_of_the_local_part_is_not_used():
    book = read_namebook("here", {0: "a:1", 1: "b:1"})
    assert check_complete("here", book, 2, local_part=1) == {0: Address("a", 1)}
