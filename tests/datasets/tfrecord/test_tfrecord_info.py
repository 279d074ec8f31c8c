"""What is said of a graph in TFRecords: fields and defaults are GiGL's, and what can have no effect is refused."""

import dataclasses
import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pipelines import refused
from record_files import NODE_SPEC, edge_info, node_info, spec

from datapipes.datasets import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    SerializedGraphMetadata,
    SerializedTFRecordInfo,
    TFDatasetOptions,
)
from datapipes.datasets.tfrecord.spec import KeySpec, key_spec

INFO, OPTIONS, METADATA = "SerializedTFRecordInfo", "TFDatasetOptions", "SerializedGraphMetadata"


def defaults_of(kind: type) -> dict[str, object]:
    return {f.name: f.default for f in dataclasses.fields(kind) if f.default is not dataclasses.MISSING}


# --- fields and defaults


def test_fields_and_defaults_of_an_info():
    names = [field.name for field in dataclasses.fields(SerializedTFRecordInfo)]
    assert names[:5] == ["tfrecord_uri_prefix", "feature_keys", "feature_spec", "feature_dim", "entity_key"]
    assert defaults_of(SerializedTFRecordInfo) == {
        "label_keys": (),
        "tfrecord_uri_pattern": r".*-of-.*\.tfrecord(\.gz)?$",
        "packed_feature_key": None,
        "packed_feature_dim": 0,
        "feature_dtype": torch.float32,
    }


def test_fields_and_defaults_of_options():
    assert defaults_of(TFDatasetOptions) == {
        "batch_size": 10_000,
        "file_buffer_size": 100 * 1024 * 1024,
        "deterministic": False,
        "use_interleave": True,
        "num_parallel_file_reads": 64,
        "ram_budget_multiplier": 0.5,
        "log_every_n_batch": 1000,
    }


def test_fields_and_defaults_of_a_metadata():
    assert defaults_of(SerializedGraphMetadata) == {
        "positive_label_entity_info": None,
        "negative_label_entity_info": None,
        "node_quantization_metadata": None,
        "edge_quantization_metadata": None,
    }


def test_default_types():
    assert DEFAULT_HOMOGENEOUS_NODE_TYPE == "default_homogeneous_node_type"
    assert DEFAULT_HOMOGENEOUS_EDGE_TYPE == (DEFAULT_HOMOGENEOUS_NODE_TYPE, "to", DEFAULT_HOMOGENEOUS_NODE_TYPE)


@pytest.mark.parametrize("given", [node_info("x"), TFDatasetOptions()], ids=[INFO, OPTIONS])
def test_they_are_frozen_and_pickle(given):
    with pytest.raises(dataclasses.FrozenInstanceError):
        given.batch_size = given.feature_dim = 5
    assert pickle.loads(pickle.dumps(given)) == given


# --- SerializedTFRecordInfo


def test_a_uri_of_this_machine_is_its_path():
    assert node_info("file:///a/b").folder == "/a/b"


@pytest.mark.parametrize("as_uri", [str, lambda text: SimpleNamespace(uri=text)], ids=["text", "object"])
@pytest.mark.parametrize("text", ["gs://bucket/x", "s3://b/x", "hdfs:///x", "http://h/x", "memory://x"])
def test_a_uri_of_another_place_is_kept(text, as_uri):
    assert node_info(as_uri(text)).folder == text


@pytest.mark.parametrize("text", ["file://h/x", "simplecache::gs://b/x", "://x"])
def test_what_is_neither_a_uri_nor_a_path_is_refused(text):
    with refused(ValueError, stage=INFO, found=text, allowed="a path of this machine", remedy="mount their store"):
        node_info(text)


@pytest.mark.parametrize("prefix", ["a/b", Path("a/b"), SimpleNamespace(uri="a/b"), SimpleNamespace(uri=Path("a/b"))])
def test_a_folder_is_a_text_a_path_or_has_a_uri(prefix):
    assert node_info(prefix).folder == "a/b"


def test_a_str_means_nodes_and_two_mean_edges():
    assert (node_info("x").is_node_entity, node_info("x").entity_keys) == (True, ("node_id",))
    assert (edge_info("x").is_node_entity, edge_info("x").entity_keys) == (False, ("src", "dst"))
    assert edge_info("x", entity_key=["a", "b"]).entity_key == ("a", "b")


DTYPES = [
    ("int64", "int64"),
    (torch.int64, "int64"),
    (np.int64, "int64"),
    (np.dtype("int64"), "int64"),
    (SimpleNamespace(name="int64"), "int64"),  # as tf.int64 is
    (torch.float32, "float32"),
    (np.float32, "float32"),
    (SimpleNamespace(name="float32"), "float32"),
]


@pytest.mark.parametrize(("dtype", "kind"), DTYPES)
def test_a_dtype_of_any_library_is_read(dtype, kind):
    assert key_spec("x", {"k": spec(dtype, 3)}, "k") == KeySpec("k", kind, 3)


@pytest.mark.parametrize(("shape", "width"), [((), 1), ([], 1), ([5], 5), ((2, 3), 6), (torch.Size([4]), 4), (7, 7)])
def test_all_values_of_a_key_are_columns(shape, width):
    assert key_spec("x", {"k": SimpleNamespace(dtype="int64", shape=shape)}, "k").width == width


@pytest.mark.parametrize(
    ("default", "expected"), [(None, None), (3, (3, 3)), ([4, 5], (4, 5)), (np.array([[6], [7]]), (6, 7))]
)
def test_a_default_value_stands_for_all_columns_or_each(default, expected):
    assert key_spec("x", {"k": spec("int64", 2, default_value=default)}, "k").default == expected


BAD_INFO = {
    "prefix that is no path": ({"folder": 5}, TypeError, "got 5", r"path|\.uri"),
    "prefix that is empty": ({"folder": ""}, ValueError, "is empty", "folder"),
    "features as text": ({"feature_keys": "one"}, TypeError, "got 'one'", "list of names"),
    "feature without spec": ({"feature_keys": ["two"], "feature_dim": 1}, KeyError, "no key 'two'", "'one'"),
    "label without spec": ({"label_keys": ["z"]}, KeyError, "no key 'z'", "'one'"),
    "dim that is wrong": ({"feature_dim": 4}, ValueError, "feature_dim is 4.*5 values", "'wide': 3"),
    "dim that is negative": ({"feature_dim": -1}, ValueError, "got -1", r"in \[0, \d+\]"),
    "dim without features": ({"feature_keys": []}, ValueError, "feature_dim is 5", "0 values"),
    "entity of three": ({"entity_key": ("a", "b", "c")}, TypeError, "'c'", "two str"),
    "entity that is text": (
        {"feature_spec": {**NODE_SPEC, "node_id": spec("float32")}},
        ValueError,
        "float32",
        "one of",
    ),
    "entity of two values": (
        {"feature_spec": {**NODE_SPEC, "node_id": spec("int64", 2)}},
        ValueError,
        "2 values",
        "one",
    ),
    "key twice": ({"label_keys": ["one"]}, ValueError, r"\['one'\]", "each key is loaded once"),
    "pattern that is none": ({"tfrecord_uri_pattern": "*"}, ValueError, r"got '\*'", "regular expression"),
    "packed key": ({"packed_feature_key": "q"}, ValueError, "packed_feature_key='q'", "only None and 0"),
    "packed dim": ({"packed_feature_dim": 3}, ValueError, "packed_feature_dim=3", "only None and 0"),
    "dtype that is none": ({"feature_dtype": "float32"}, ValueError, "got 'float32'", "torch.float16"),
    "dtype that no row has": ({"feature_dtype": torch.bool}, ValueError, "got torch.bool", "torch.float16"),
    "integers of floats": ({"feature_dtype": torch.int8}, ValueError, "'one' holds float32", "float"),
    "spec that is none": ({"feature_spec": [1]}, TypeError, r"got \[1\]", "dict by key, or None"),
    "spec of a key": ({"feature_spec": {**NODE_SPEC, "one": 5}}, TypeError, "got 5", "shape and a dtype"),
    "dtype of a key": (
        {"feature_spec": {**NODE_SPEC, "one": spec("string")}},
        ValueError,
        "'string'",
        "int64 or float32",
    ),
    "double": (
        {"feature_spec": {**NODE_SPEC, "one": spec(torch.float64)}},
        ValueError,
        "torch.float64",
        "int64 or float32",
    ),
    "shape of a key": ({"feature_spec": {**NODE_SPEC, "one": spec("float32", 0)}}, ValueError, "got 0", "1 or more"),
    "shape that is none": ({"feature_spec": {**NODE_SPEC, "one": spec("float32", None)}}, TypeError, "got None", "()"),
    "default beyond float32": (
        {"feature_spec": {**NODE_SPEC, "wide": spec("float32", 3, default_value=1e300)}},
        ValueError,
        "1e\\+300",
        "float32",
    ),
    "default of a kind": (
        {"feature_spec": {**NODE_SPEC, "y": spec("int64", default_value=0.5)}},
        TypeError,
        "0.5",
        "int64",
    ),
    "default of a size": (
        {"feature_spec": {**NODE_SPEC, "wide": spec("float32", 3, default_value=[1, 2])}},
        ValueError,
        "2 values",
        "1 or 3",
    ),
}


@pytest.mark.parametrize(("changes", "error", "found", "allowed"), BAD_INFO.values(), ids=BAD_INFO)
def test_a_bad_info_is_refused(changes, error, found, allowed):
    with refused(error, stage=INFO, found=found, allowed=allowed):
        node_info(**{"folder": "x", **changes})


# --- TFDatasetOptions

BAD_OPTIONS = {
    "no batch": ({"batch_size": 0}, ValueError, "batch_size must be 1 or more, got 0", "1 or more"),
    "little room": ({"file_buffer_size": 15}, ValueError, "file_buffer_size", "16 or more"),
    "truthy": ({"deterministic": 1}, TypeError, "deterministic", "True or False"),
    "interleave": ({"use_interleave": "no"}, TypeError, "use_interleave", "True or False"),
    "reads beside interleave": ({"num_parallel_file_reads": 8}, ValueError, "num_parallel_file_reads=8", "at 64"),
    "no reads": ({"use_interleave": False, "num_parallel_file_reads": 0}, ValueError, "got 0", "1 or more"),
    "memory": ({"ram_budget_multiplier": 0.7}, ValueError, "ram_budget_multiplier=0.7", r"only 0\.5"),
    "log": ({"log_every_n_batch": 0}, ValueError, "log_every_n_batch", "1 or more"),
}


@pytest.mark.parametrize(("changes", "error", "found", "allowed"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_bad_options_are_refused(changes, error, found, allowed):
    with refused(error, stage=OPTIONS, found=found, allowed=allowed):
        TFDatasetOptions(**changes)


def test_options_that_change_no_result_are_taken():
    TFDatasetOptions(deterministic=True, use_interleave=False, num_parallel_file_reads=3, batch_size=1)


# --- SerializedGraphMetadata


def test_types_are_kept_and_texts_of_edge_types_become_tuples():
    metadata = SerializedGraphMetadata(
        {"user": node_info("u"), "item": node_info("i")},
        {"user:buys:item": edge_info("b"), ("item", "of", "user"): edge_info("o")},
        {("user", "buys", "item"): edge_info("p"), ("item", "of", "user"): None},
        {("user", "buys", "item"): None},
    )
    assert list(metadata.node_entity_info) == ["user", "item"]
    assert set(metadata.edge_entity_info) == {("user", "buys", "item"), ("item", "of", "user")}
    assert set(metadata.positive_label_entity_info) == {("user", "buys", "item")}
    assert metadata.negative_label_entity_info is None


NODES, EDGES = node_info("n"), edge_info("e")
BAD_METADATA = {
    "nodes that are none": ((5, EDGES), {}, TypeError, "node_entity_info.*got 5", INFO),
    "no nodes": (({}, EDGES), {}, ValueError, "node_entity_info is an empty dict", "at least one"),
    "nodes with two keys": ((EDGES, EDGES), {}, ValueError, r"node_entity_info is \('src', 'dst'\)", "one str"),
    "edges with one key": ((NODES, NODES), {}, ValueError, "edge_entity_info is 'node_id'", "two str"),
    "labels with one key": (
        (NODES, EDGES, NODES),
        {},
        ValueError,
        "positive_label_entity_info is 'node_id'",
        "two str",
    ),
    "types on one side": (({"a": NODES}, EDGES), {}, ValueError, "the other is not", "both"),
    "labels with types": ((NODES, EDGES, {"a:to:a": EDGES}), {}, ValueError, "is a dict by type, and", "one info"),
    "labels without types": (
        ({"a": NODES}, {"a:to:a": EDGES}, EDGES),
        {},
        ValueError,
        "positive_label_entity_info is one info",
        "dict by edge type",
    ),
    "an end without nodes": (({"a": NODES}, {"a:to:b": EDGES}), {}, ValueError, r"a:to:b .*'b'.* has \['a'\]", "Add"),
    "type of a node": (({5: NODES}, {}), {}, TypeError, "got 5", "must be a str"),
    "type of an edge": (({"a": NODES}, {"a:b": EDGES}), {}, ValueError, "'a:b'", "src, rel, dst"),
    "quantised nodes": ((NODES, EDGES), {"node_quantization_metadata": 1}, ValueError, "node_q.*=1", "only None"),
    "quantised edges": ((NODES, EDGES), {"edge_quantization_metadata": 1}, ValueError, "edge_q.*=1", "only None"),
}


@pytest.mark.parametrize(("given", "more", "error", "found", "allowed"), BAD_METADATA.values(), ids=BAD_METADATA)
def test_a_bad_metadata_is_refused(given, more, error, found, allowed):
    with refused(error, stage=METADATA, found=found, allowed=allowed):
        SerializedGraphMetadata(*given, **more)
