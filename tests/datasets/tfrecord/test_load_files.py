"""A graph in files is loaded whole: with and without types, packed or not, by one rank and by several."""

import sys

import pytest
import torch
from tfrecord_loaders import Spec

import datapipes as dp
from datapipes.datasets import (
    SerializedGraphMetadata,
    SerializedTFRecordInfo,
    TFRecordDataLoader,
    TFRecordLoadError,
    load_torch_tensors_from_tf_record,
    write_tf_records,
)
from datapipes.datasets.tfrecord import children
from datapipes.datasets.tfrecord.data_loader import TFDatasetOptions
from datapipes.datasets.tfrecord.entity_task import EntityTask

LIKES, KNOWS = ("user", "likes", "item"), ("user", "knows", "user")


def floats(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


NODES = {"id": torch.arange(40), "x": floats(40, 3), "label": torch.arange(40) % 5 - 1}
EDGES = {"src": torch.arange(100) % 40, "dst": torch.arange(100) * 7 % 40, "w": floats(100), "f": floats(100, 2)}
PAIRS = {"src": torch.arange(6), "dst": torch.arange(6) + 30, "f": floats(6)}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    write_tf_records(folder / "nodes", NODES, 3)
    write_tf_records(folder / "edges", EDGES, 4, compress=True)
    write_tf_records(folder / "pairs", PAIRS, 1)
    return folder


def nodes(root, **fields):
    return SerializedTFRecordInfo(root / "nodes", ["x"], None, 3, "id", **{"label_keys": ["label"], **fields})


def edges(root, **fields):
    spec = {"f": Spec((2,), torch.float32), "w": Spec((), torch.float32)}
    return SerializedTFRecordInfo(
        root / "edges",
        **{"feature_keys": ["w", "f"], "feature_spec": spec, "feature_dim": 3, "entity_key": ("src", "dst"), **fields},
    )


def pairs(root):
    return SerializedTFRecordInfo(root / "pairs", ["f"], None, 1, ("src", "dst"))


def load(metadata, rank=0, world_size=1, **arguments):
    return load_torch_tensors_from_tf_record(TFRecordDataLoader(rank, world_size), metadata, True, rank, **arguments)


def assert_equal(found, wanted):
    assert found.dtype == wanted.dtype
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_the_shares_of_all_ranks_together_are_the_records(root, world_size):
    metadata = SerializedGraphMetadata(nodes(root), edges(root), pairs(root))
    loaded = [load(metadata, rank, world_size, weight_edge_feat_name="w") for rank in range(world_size)]
    wanted = {
        "node_ids": NODES["id"],
        "node_features": NODES["x"],
        "node_labels": NODES["label"][:, None],
        "edge_index": torch.stack([EDGES["src"], EDGES["dst"]]),
        "edge_features": EDGES["f"],
        "edge_weights": EDGES["w"],
        "positive_label": torch.stack([PAIRS["src"], PAIRS["dst"]]),
    }
    for name, tensor in wanted.items():
        along = int(name in ("edge_index", "positive_label"))
        assert_equal(torch.cat([getattr(each, name) for each in loaded], along), tensor)
    assert [(each._rank, each._num_ranks) for each in loaded] == [(rank, world_size) for rank in range(world_size)]
    if world_size > 1:
        with pytest.raises(ValueError, match=f"the share of rank 1 of {world_size}"):
            loaded[1].to_dataset()


def test_a_graph_with_types_goes_from_files_into_a_data_set(root):
    metadata = SerializedGraphMetadata(
        {"user": nodes(root, label_keys=[]), "item": nodes(root, feature_dtype=torch.float16)},
        {LIKES: edges(root), KNOWS: edges(root, feature_keys=["f"], feature_dim=2)},
    )
    data = load(metadata, weight_edge_feat_name={LIKES: "w"}).to_dataset()
    assert_equal(data.features["node", "item", "feat"].tensor, NODES["x"].half())
    assert_equal(data.features["edge", KNOWS, "feat"].tensor, EDGES["f"])
    relation = data.graph.relation(LIKES)
    assert_equal(relation.edge_attributes["weight"], EDGES["w"][relation.edge_ids])
    assert data.train_set.types == ("item",)
    assert len(data.train_set) == 32


def test_workers_make_the_same_minibatches_of_a_loaded_graph(root):
    data = load(SerializedGraphMetadata(nodes(root), edges(root))).to_dataset()
    chain = dp.ItemSampler(data.train_set, 8, shuffle=True, seed=0).sample_neighbor(data.graph, [2, 2])
    chain = chain.fetch_feature(data.features, node_feature_keys=["feat"])
    found = []
    for num_workers in (0, 2):
        with dp.DataLoader(chain, num_workers=num_workers) as loader:
            found.append([minibatch.digest() for minibatch in loader])
    assert found[0] == found[1]
    assert len(found[0]) == 4


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no notes")
def test_without_a_spec_a_weight_is_taken_for_one_value(tmp_path):
    write_tf_records(tmp_path / "nodes", {"id": torch.arange(3)})
    columns = {"src": torch.arange(2), "dst": torch.arange(2), "w": floats(2, 3), "x": floats(2, 2)}
    write_tf_records(tmp_path / "edges", columns)
    metadata = SerializedGraphMetadata(
        SerializedTFRecordInfo(tmp_path / "nodes", [], None, 0, "id"),
        edges(tmp_path, feature_keys=["w", "x"], feature_spec=None, feature_dim=5),
    )
    with pytest.raises(TFRecordLoadError, match=r"'w' was taken for one value of a record\. So 4 of the 5 columns"):
        load(metadata, weight_edge_feat_name="w")


def test_a_file_that_ends_too_early_is_named_with_entity_and_record(tmp_path):
    write_tf_records(tmp_path / "nodes", NODES, 2)
    write_tf_records(tmp_path / "edges", EDGES)
    file = tmp_path / "nodes" / "data-00001-of-00002.tfrecord"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(TFRecordLoadError, match="rank 0 could not load node") as caught:
        load(SerializedGraphMetadata(nodes(tmp_path), edges(tmp_path)))
    assert list(caught.value.failures) == ["node"]
    for text in (str(file), "record 19", "DatasetFormatError"):
        assert text in caught.value.failures["node"]


def test_a_name_of_a_file_that_is_none_to_print_is_escaped(tmp_path):
    write_tf_records(tmp_path / "nodes", NODES, 1)
    write_tf_records(tmp_path / "edges", EDGES)
    (file,) = (tmp_path / "nodes").iterdir()
    broken = file.rename(file.with_name("a\x1b[2J\u202e.tfrecord"))
    broken.write_bytes(broken.read_bytes()[:-1])
    info = nodes(tmp_path, tfrecord_uri_pattern=".*")
    with pytest.raises(dp.datasets.DatasetFormatError) as caught:
        TFRecordDataLoader(0, 1).load_as_torch_tensors(info)
    assert str(caught.value).isprintable()
    assert r"a\x1b[2J\u202e.tfrecord, record 39" in str(caught.value)


@pytest.mark.parametrize(("most", "shares"), [(1, [1, 1, 1]), (8, [5, 3, 1])])
def test_threads_are_shared_in_proportion_to_the_bytes(tmp_path, monkeypatch, most, shares):
    monkeypatch.setattr(torch, "get_num_threads", lambda: most)
    monkeypatch.setattr(children, "MOST_LOOKED_AT", 2)
    tasks = []
    for name, its, sizes in (("nodes", nodes, [100] * 6), ("edges", edges, [150, 150]), ("pairs", pairs, [100])):
        (tmp_path / name).mkdir()
        for number, size in enumerate(sizes):
            (tmp_path / name / f"{number}-of-{len(sizes)}.tfrecord").write_bytes(bytes(size))
        tasks.append(EntityTask(name, {None: its(tmp_path)}, TFDatasetOptions(), None, 0))
    assert children.thread_shares(tasks) == shares
    for file in (tmp_path / "pairs").iterdir():
        file.unlink()
    assert children.thread_shares(tasks) == [max(most // 3, 1)] * 3  # a size cannot be told
