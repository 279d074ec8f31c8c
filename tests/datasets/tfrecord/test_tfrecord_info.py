"""What is said of a graph in TFRecords: fields and defaults are GiGL's, and what can have no effect is refused."""

import dataclasses
import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from record_files import NODE_SPEC, edge_info, node_info, spec

from datapipes.datasets import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    SerializedGraphMetadata,
    SerializedTFRecordInfo,
    TFDatasetOptions,
)
from datapipes.datasets.tfrecord.spec import KeySpec, key_spec


def defaults_of(kind: type) -> dict[str, object]:
    return {f.name: f.default for f in dataclasses.fields(kind) if f.default is not dataclasses.MISSING}


# --- fields and defaults


def test_fields_and_defaults_are_those_of_gigl():
    names = [field.name for field in dataclasses.fields(SerializedTFRecordInfo)]
    assert names[:5] == ["tfrecord_uri_prefix", "feature_keys", "feature_spec", "feature_dim", "entity_key"]
    assert defaults_of(SerializedTFRecordInfo) == {
        "label_keys": (),
        "tfrecord_uri_pattern": r".*-of-.*\.tfrecord(\.gz)?$",
        "packed_feature_key": None,
        "packed_feature_dim": 0,
        "feature_dtype": torch.float32,
    }
    assert defaults_of(TFDatasetOptions) == {
        "batch_size": 10_000,
        "file_buffer_size": 100 * 1024 * 1024,
        "deterministic": False,
        "use_interleave": True,
        "num_parallel_file_reads": 64,
        "ram_budget_multiplier": 0.5,
        "log_every_n_batch": 1000,
    }
    assert defaults_of(SerializedGraphMetadata) == {
        "positive_label_entity_info": None,
        "negative_label_entity_info": None,
        "node_quantization_metadata": None,
        "edge_quantization_metadata": None,
    }
    assert DEFAULT_HOMOGENEOUS_NODE_TYPE == "default_homogeneous_node_type"
    assert DEFAULT_HOMOGENEOUS_EDGE_TYPE == (DEFAULT_HOMOGENEOUS_NODE_TYPE, "to", DEFAULT_HOMOGENEOUS_NODE_TYPE)


@pytest.mark.parametrize("given", [node_info("x"), TFDatasetOptions()], ids=["info", "options"])
def test_they_are_frozen_and_pickle(given):
    with pytest.raises(dataclasses.FrozenInstanceError):
        given.batch_size = given.feature_dim = 5
    assert pickle.loads(pickle.dumps(given)) == given


# --- SerializedTFRecordInfo


@pytest.mark.parametrize("text", ["gs://bucket/x", "s3://b/x", "hdfs:///x", "http://h/x", "memory://x"])
def test_a_uri_of_another_place_is_kept(text):
    for uri in (text, SimpleNamespace(uri=text)):
        assert node_info(uri).folder == text


@pytest.mark.parametrize("prefix", ["a/b", Path("a/b"), SimpleNamespace(uri="a/b"), SimpleNamespace(uri=Path("a/b"))])
def test_a_folder_is_a_text_a_path_or_has_a_uri(prefix):
    assert node_info(prefix).folder == "a/b"
    assert node_info("file:///a/b").folder == "/a/b"


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


def test_what_an_info_refuses(refuses):
    for changes in (
        {"tfrecord_uri_prefix": ""},
        {"tfrecord_uri_prefix": "file://h/x"},
        {"tfrecord_uri_prefix": "simplecache::gs://b/x"},
        {"tfrecord_uri_prefix": "://x"},
        {"feature_dim": 4},
        {"feature_dim": -1},
        {"feature_keys": []},
        {"label_keys": ["one"]},
        {"packed_feature_key": "q"},
        {"packed_feature_dim": 3},
        {"feature_dtype": "float32"},
        {"feature_dtype": torch.bool},
        {"feature_dtype": torch.int8},
    ):
        refuses(ValueError, node_info, **{"folder": "x", **changes})
    for changes in (
        {"tfrecord_uri_prefix": 5},
        {"feature_keys": "one"},
        {"entity_key": ("a", "b", "c")},
        {"feature_spec": [1]},
    ):
        refuses(TypeError, node_info, **{"folder": "x", **changes})
    with pytest.raises(ValueError, match=r"must be a regular expression, got '\*' "):
        node_info("x", tfrecord_uri_pattern="*")
    refuses(KeyError, node_info, "x", feature_keys=["two"], feature_dim=1)
    refuses(KeyError, node_info, "x", label_keys=["z"])
    for key, value in (
        ("node_id", spec("float32")),
        ("node_id", spec("int64", 2)),
        ("one", spec("string")),
        ("one", spec(torch.float64)),
        ("one", spec("float32", 0)),
        ("wide", spec("float32", 3, default_value=1e300)),
        ("wide", spec("float32", 3, default_value=[1, 2])),
    ):
        refuses(ValueError, node_info, "x", feature_spec={**NODE_SPEC, key: value})
    for key, value in (
        ("one", 5),
        ("one", spec("float32", None)),
        ("y", spec("int64", default_value=0.5)),
    ):
        refuses(TypeError, node_info, "x", feature_spec={**NODE_SPEC, key: value})


# --- TFDatasetOptions


def test_what_options_refuse(refuses):
    for changes in (
        {"batch_size": 0},
        {"file_buffer_size": 15},
        {"num_parallel_file_reads": 8},
        {"use_interleave": False, "num_parallel_file_reads": 0},
        {"ram_budget_multiplier": 0.7},
        {"log_every_n_batch": 0},
    ):
        refuses(ValueError, TFDatasetOptions, **changes)
    refuses(TypeError, TFDatasetOptions, deterministic=1)
    refuses(TypeError, TFDatasetOptions, use_interleave="no")


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


def test_what_a_metadata_refuses(refuses):
    nodes, edges = node_info("n"), edge_info("e")
    for infos in (
        ({}, edges),
        (edges, edges),
        (nodes, nodes),
        (nodes, edges, nodes),
        ({"a": nodes}, edges),
        (nodes, edges, {"a:to:a": edges}),
        ({"a": nodes}, {"a:to:a": edges}, edges),
        ({"a": nodes}, {"a:to:b": edges}),
        ({"a": nodes}, {"a:b": edges}),
    ):
        refuses(ValueError, SerializedGraphMetadata, *infos)
    refuses(TypeError, SerializedGraphMetadata, 5, edges)
    refuses(TypeError, SerializedGraphMetadata, {5: nodes}, {})
    refuses(ValueError, SerializedGraphMetadata, nodes, edges, node_quantization_metadata=1)
    refuses(ValueError, SerializedGraphMetadata, nodes, edges, edge_quantization_metadata=1)
