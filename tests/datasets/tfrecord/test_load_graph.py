"""A graph of several entities is loaded by a process for each; the result lies in memory that others map."""

import logging
import os
from types import SimpleNamespace

import pytest
import torch
import torch.multiprocessing
from tfrecord_loaders import Columns, Spec, edges, info

from datapipes.datasets import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    LoadedGraphTensors,
    SerializedGraphMetadata,
    TFDatasetOptions,
    TFRecordLoadError,
    load_torch_tensors_from_tf_record,
    share_memory,
)
from datapipes.processes.mappings import mapping_of
from datapipes.processes.sharing import pack

BUYS, SEES = ("user", "buys", "item"), ("user", "sees", "item")
MARK = []  # a process that is forked would have what the tests put here


def floats(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


PLAIN = Columns(
    {
        "nodes": {"id": torch.tensor([2, 0, 1]), "x": floats(3), "y": floats(3, 4), "label": torch.tensor([1, 0, -1])},
        "edges": {"src": torch.tensor([0, 1]), "dst": torch.tensor([1, 2]), "w": floats(2), "f": floats(2, seed=1)},
        "likes": {"src": torch.tensor([0]), "dst": torch.tensor([2]), "f": floats(1)},
        "none": {"src": torch.zeros(0, dtype=torch.int64), "dst": torch.zeros(0, dtype=torch.int64)},
    }
)
NODES = info(
    "nodes",
    "x",
    "y",
    labels=("label",),
    feature_spec={"x": Spec((), torch.float32), "y": Spec((4,), torch.float32), "label": Spec((), torch.int64)},
    feature_dim=5,
)


def load(metadata, in_parallel=True, **arguments):
    return load_torch_tensors_from_tf_record(PLAIN, metadata, in_parallel, **arguments)


def equal(found, wanted):
    return found.dtype == wanted.dtype and torch.equal(found, wanted)


def fields(loaded: LoadedGraphTensors) -> dict:
    names = [name for name in vars(loaded) if not name.startswith("_")]
    return {name: getattr(loaded, name) for name in names}


@pytest.mark.parametrize("in_parallel", [True, False])
def test_a_graph_without_types_comes_as_tensors(in_parallel):
    metadata = SerializedGraphMetadata(NODES, edges("edges", "f", "w"), edges("likes", "f"), edges("none"))
    loaded = load(metadata, in_parallel)
    nodes, own, likes = (PLAIN.folders[name] for name in ("nodes", "edges", "likes"))
    wanted = {
        "node_ids": nodes["id"],
        "node_features": torch.cat([nodes["x"][:, None], nodes["y"]], 1),
        "node_labels": nodes["label"][:, None],
        "edge_index": torch.stack([own["src"], own["dst"]]),
        "edge_features": torch.stack([own["f"], own["w"]], 1),
        "positive_label": torch.stack([likes["src"], likes["dst"]]),
        "negative_label": torch.zeros(2, 0, dtype=torch.int64),
    }
    found = fields(loaded)
    assert all(equal(found.pop(name), tensor) for name, tensor in wanted.items())
    assert found == dict.fromkeys(("edge_weights", "node_quantized_features", "edge_quantized_features"))


def test_a_graph_with_types_comes_as_dicts_of_the_types_that_have_a_field():
    columns = PLAIN.folders
    metadata = SerializedGraphMetadata(
        {"user": info("nodes", "x"), "item": info("nodes", labels=("label",))},
        {BUYS: edges("edges", "w"), SEES: edges("edges")},
        {SEES: edges("likes"), BUYS: None},
    )
    loaded = load(metadata, weight_edge_feat_name={BUYS: "w"})
    found = {name: list(value) if isinstance(value, dict) else value for name, value in fields(loaded).items()}
    assert found == {
        "node_ids": ["user", "item"],
        "node_features": ["user"],
        "node_labels": ["item"],
        "edge_index": [BUYS, SEES],
        "edge_features": None,  # the only one became the weight
        "positive_label": [SEES],
        "negative_label": None,
        "edge_weights": [BUYS],
        "node_quantized_features": None,
        "edge_quantized_features": None,
    }
    assert equal(loaded.edge_weights[BUYS], columns["edges"]["w"])
    assert equal(loaded.node_features["user"], columns["nodes"]["x"][:, None])


@pytest.mark.parametrize("named", ["w", {DEFAULT_HOMOGENEOUS_EDGE_TYPE: "w"}])
def test_a_feature_of_edges_becomes_their_weight(named):
    loaded = load(SerializedGraphMetadata(NODES, edges("edges", "w", "f")), weight_edge_feat_name=named)
    assert equal(loaded.edge_weights, PLAIN.folders["edges"]["w"])
    assert equal(loaded.edge_features, PLAIN.folders["edges"]["f"][:, None])


TYPED = SerializedGraphMetadata({"user": NODES, "item": NODES}, {BUYS: edges("edges", "w"), SEES: edges("edges", "f")})
WIDE = edges("edges", "w", feature_spec={"w": Spec((2,), torch.float32)}, feature_dim=2)


def test_weights_that_cannot_be_told_are_refused(refuses):
    for metadata, weights in (
        (TYPED, "w"),
        (TYPED, {("user", "has", "item"): "w"}),
        (TYPED, {SEES: "w"}),
        (SerializedGraphMetadata(NODES, WIDE), "w"),
    ):
        refuses(ValueError, load, metadata, weight_edge_feat_name=weights)
    refuses(TypeError, load, TYPED, weight_edge_feat_name=3)


def test_what_the_load_refuses_of_its_arguments(refuses):
    metadata = SerializedGraphMetadata(NODES, edges("edges"))
    refuses(ValueError, load, metadata, rank=-1)
    refuses(ValueError, load, metadata, rank_timeout_s=None)
    refuses(ValueError, load, SerializedGraphMetadata(NODES, edges("edges", labels=("f",))))
    refuses(TypeError, load, NODES)
    refuses(TypeError, load_torch_tensors_from_tf_record, PLAIN, metadata, 1)
    refuses(TypeError, load_torch_tensors_from_tf_record, "x", metadata, True)
    refuses(TypeError, load, metadata, node_tf_dataset_options=None)
    refuses(TypeError, load, metadata, edge_tf_dataset_options=5)
    with pytest.raises(TypeError, match=r"cannot be pickled, .*Define its class at the top of a module"):
        load_torch_tensors_from_tf_record(SimpleNamespace(load_as_torch_tensors=lambda: 0), metadata, True)


class Options(Columns):
    """Returns the batch size it was given instead of ids, whether it was forked, and its number of threads."""

    def load_as_torch_tensors(self, info, options):
        return torch.tensor([options.batch_size, len(MARK), torch.get_num_threads()]), None


def test_labels_take_the_options_of_edges_and_no_process_is_forked_from_this_one(monkeypatch):
    monkeypatch.setitem(globals(), "MARK", [1])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    metadata = SerializedGraphMetadata(NODES, edges("edges"), edges("likes"), edges("none"))
    options = TFDatasetOptions(batch_size=5), TFDatasetOptions(batch_size=6)
    loaded = load_torch_tensors_from_tf_record(Options({}), metadata, True, 0, *options)
    assert loaded.node_ids.tolist() == [5, 0, 2]
    assert loaded.edge_index.tolist() == loaded.positive_label.tolist() == loaded.negative_label.tolist() == [6, 0, 2]
    one_by_one = load_torch_tensors_from_tf_record(Options({}), metadata, False, 0, *options)
    assert one_by_one.node_ids.tolist() == [5, 0, 8]


def test_the_log_has_rank_place_shapes_and_seconds_in_the_order_of_loading(caplog):
    metadata = SerializedGraphMetadata(NODES, edges("edges", "f"), edges("likes"), edges("none"))
    with caplog.at_level(logging.INFO, "datapipes"):
        load(metadata, False, rank=3)
    lines = [record.getMessage().partition(": ")[2] for record in caplog.records if " loaded " in record.getMessage()]
    assert [line.rpartition(" in ")[0] for line in lines] == [
        "rank 3 loaded edge from edges: ids [2, 2], features [2, 1]",
        "rank 3 loaded node from nodes: ids [3], features [3, 5], labels [3, 1]",
        "rank 3 loaded positive_label from likes: ids [2, 1]",
        "rank 3 loaded negative_label from none: ids [2, 0]",
    ]
    assert all(line.endswith(" s") for line in lines)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({}, "edge, node, no positive_label, no negative_label"),
        ({"positive_label_entity_info": edges("likes")}, "edge, node, positive_label, no negative_label"),
    ],
)
def test_the_log_says_when_a_load_begins_and_what_labels_there_are(caplog, labels, said):
    with caplog.at_level(logging.INFO, "datapipes"):
        load(SerializedGraphMetadata(NODES, edges("edges"), **labels), False)
    assert caplog.records[0].getMessage() == f"load_torch_tensors_from_tf_record: rank 0 begins: {said}"


class Failing:
    def load_as_torch_tensors(self, info, options):
        raise OSError("the disk is gone")


def test_a_load_that_fails_is_a_value_error_as_in_gigl():
    with pytest.raises(ValueError, match="the disk is gone") as caught:
        load_torch_tensors_from_tf_record(Failing(), SerializedGraphMetadata(NODES, edges("edges")), False)
    assert isinstance(caught.value, TFRecordLoadError)


def add_one(tensor, packed):
    tensor += 1
    ids = packed.unpack()
    ids += 1


def test_the_result_lies_in_memory_that_passes_to_processes_without_a_copy():
    loaded = load(SerializedGraphMetadata(NODES, edges("edges", "f")))
    tensors = [loaded.node_ids, loaded.node_features, loaded.node_labels, loaded.edge_index, loaded.edge_features]
    assert all(tensor.is_shared() and mapping_of(tensor) is not None for tensor in tensors)
    features, ids = loaded.node_features.clone(), loaded.node_ids.clone()
    context = torch.multiprocessing.get_context("forkserver")
    process = context.Process(target=add_one, args=(loaded.node_features, pack(loaded.node_ids)))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert torch.equal(loaded.node_features, features + 1)  # by torch.multiprocessing
    assert torch.equal(loaded.node_ids, ids + 1)  # by a handle of ours


def inode(tensor):
    memory, _ = mapping_of(tensor)
    return os.fstat(memory.descriptor).st_ino


class Inodes(Columns):
    """Returns a tensor in shared memory, and what identifies that memory."""

    def load_as_torch_tensors(self, info, options):
        features = share_memory(floats(3, 4))
        return torch.tensor([inode(features)]), features


def test_what_a_loader_has_shared_is_taken_over_and_not_copied():
    loaded = load_torch_tensors_from_tf_record(Inodes({}), SerializedGraphMetadata(NODES, edges("edges")), True)
    assert inode(loaded.node_features) == int(loaded.node_ids)
    assert torch.equal(loaded.edge_features, floats(3, 4))


def test_many_types_take_several_messages_of_descriptors():
    kinds = [("node", f"r{number:03}", "node") for number in range(130)]
    metadata = SerializedGraphMetadata({"node": NODES}, {kind: edges("edges", "f") for kind in kinds})
    loaded = load(metadata, False)
    assert list(loaded.edge_features) == kinds
    assert all(torch.equal(each, PLAIN.folders["edges"]["f"][:, None]) for each in loaded.edge_features.values())
