"""JSON of unknown origin: only numbers that are whole, short and finite."""

import pytest
from pipelines import refused

from datapipes.base.strict_json import parse_strict


def test_what_is_strict_is_read():
    text = '{"a": [1, -2, 12345678901234567890], "b": null, "c": "1.5", "d": true}'
    assert parse_strict(text) == {"a": [1, -2, 12345678901234567890], "b": None, "c": "1.5", "d": True}
    assert parse_strict("[1.5, -2e3, 7]", floats=True) == [1.5, -2000.0, 7]


@pytest.mark.parametrize("number", ["1.5", "1e3", "NaN", "Infinity", "-Infinity", "9" * 21, "-" + "9" * 5000])
def test_numbers_that_are_not_whole_or_too_long_are_refused(number):
    with refused(ValueError, stage="found the number", found=number[:20], allowed="of up to 20 digits", remedy=""):
        parse_strict(f"[{number}]")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "-1e999", "1." + "0" * 100, "9" * 21])
def test_numbers_that_are_not_finite_are_refused_with_floats_too(number):
    with refused(ValueError, stage="found the number", found=number[:20], allowed="allowed are", remedy=""):
        parse_strict(f"[{number}]", floats=True)


def test_what_is_no_json_is_refused():
    for text in ("", "{", "[1,]", "{'a': 1}"):
        with pytest.raises(ValueError):  # noqa: PT011  (of the parser, with the place)
            parse_strict(text)
