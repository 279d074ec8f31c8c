"""JSON of unknown origin: only numbers that are whole, short and finite."""

import pytest

from datapipes.base.strict_json import parse_strict


def test_what_is_strict_is_read():
    text = '{"a": [1, -2, 12345678901234567890], "b": null, "c": "1.5", "d": true}'
    assert parse_strict(text) == {"a": [1, -2, 12345678901234567890], "b": None, "c": "1.5", "d": True}
    assert parse_strict("[1.5, -2e3, 7]", floats=True) == [1.5, -2000.0, 7]


def test_numbers_that_are_not_whole_or_too_long_are_refused(refuses):
    for number in ("1.5", "1e3", "NaN", "Infinity", "-Infinity", "9" * 21, "-" + "9" * 5000):
        refuses(ValueError, parse_strict, f"[{number}]")
    for number in ("NaN", "Infinity", "1e999", "-1e999", "1." + "0" * 100, "9" * 21):
        refuses(ValueError, parse_strict, f"[{number}]", floats=True)


def test_what_is_no_json_is_refused():
    for text in ("", "{", "[1,]", "{'a': 1}"):
        with pytest.raises(ValueError):  # noqa: PT011  (of the parser, with the place)
            parse_strict(text)
