"""Files of records for the tests of TFRecords, written by the plain Python twin, and what they hold."""

import gzip
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import slow_tfrecord as twin

from datapipes.datasets import SerializedTFRecordInfo
from datapipes.datasets.tfrecord.reading import Reader

Example = Mapping[str, Any]


def spec(dtype: Any, *shape: int, **more: Any) -> SimpleNamespace:
    """A value of a feature spec, as `tf.io.FixedLenFeature` is one."""
    return SimpleNamespace(dtype=dtype, shape=list(shape), **more)


def write_file(folder: Path, number: int, of: int, examples: Sequence[Example], *, packed: bool = False) -> Path:
    """Write one file; `packed` ones by gzip, in two members."""
    content = twin.records(examples)
    path = folder / f"data-{number:05}-of-{of:05}.tfrecord{'.gz' if packed else ''}"
    half = len(content) // 3  # inside a record
    path.write_bytes(gzip.compress(content[:half]) + gzip.compress(content[half:]) if packed else content)
    return path


def write_files(folder: Path, examples: Sequence[Example], sizes: Sequence[int], *, packed: Sequence[int] = ()) -> None:
    """Write consecutive examples into files of these sizes; those of the numbers in `packed` by gzip."""
    begin = 0
    for number, size in enumerate(sizes):
        write_file(folder, number, len(sizes), examples[begin : begin + size], packed=number in packed)
        begin += size


def nodes(count: int) -> list[Example]:
    """Nodes with two float features, one of three values and one of one, an int feature and a label."""
    return [
        {
            "node_id": [7 * i - 3],
            "wide": [i + 0.5, -i / 3, 1e-3 * i],
            "age": [i % 90],
            "noise": [b"any bytes"],
            "one": [i / 7],
            "y": [i % 4 - 1],
        }
        for i in range(count)
    ]


NODE_SPEC = {"wide": spec("float32", 3), "age": spec("int64"), "one": spec("float32", 1), "y": spec("int64")}


def node_info(folder: Any, **changes: Any) -> SerializedTFRecordInfo:
    """The info of `nodes`, with other fields where they are given."""
    fields = {
        "tfrecord_uri_prefix": folder,
        "feature_keys": ["one", "wide", "age"],
        "feature_spec": NODE_SPEC,
        "feature_dim": 5,
        "entity_key": "node_id",
        "label_keys": ["y"],
    }
    return SerializedTFRecordInfo(**{**fields, **changes})


def edges(count: int) -> list[Example]:
    """Edges with a weight."""
    return [{"src": [i * i % 11], "dst": [3 * i % 7], "weight": [i / 4]} for i in range(count)]


def edge_info(folder: Any, **changes: Any) -> SerializedTFRecordInfo:
    """The info of `edges`, with other fields where they are given."""
    fields = {
        "tfrecord_uri_prefix": folder,
        "feature_keys": ["weight"],
        "feature_spec": {"weight": spec("float32")},
        "feature_dim": 1,
        "entity_key": ("src", "dst"),
    }
    return SerializedTFRecordInfo(**{**fields, **changes})


def columns(examples: Sequence[Example], keys: Sequence[str]) -> list[list[Any]]:
    """The values of some keys, a row for each example: slow and obvious."""
    return [[value for key in keys for value in example[key]] for example in examples]


def before_parsing(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Let something happen to files between counting their records and reading them."""
    parse = Reader.parse

    def parse_later(self: Reader, *arguments: Any) -> None:
        change()
        parse(self, *arguments)

    monkeypatch.setattr(Reader, "parse", parse_later)
