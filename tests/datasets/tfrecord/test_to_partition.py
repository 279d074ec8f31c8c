"""to_partition: what the ranks write together equals what one process writes that has all of the graph."""

import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from amounts import examples
from dist_graphs import LocalPeers
from hypothesis import given
from hypothesis import strategies as st
from shards import (
    BUYS,
    ITEM,
    LIKES,
    USER,
    cut,
    files_of,
    graph_with_types,
    graph_without_types,
    in_threads,
    loaded,
    write_whole,
)

import datapipes as dp
from datapipes.base import array_digest
from datapipes.datasets import SerializedTFRecordInfo, TFRecordDataLoader, write_tf_records
from datapipes.distributed import Part, Partitioner
from datapipes.distributed.dist_graph import DistGraph
from datapipes.distributed.partition_facts import PartitionFacts
from datapipes.partition.across_ranks import placed_rows

KINDS = ["all", "tasks", "links", "nothing"]


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_write_the_folder_of_one_process(tmp_path, num_ranks, kind):
    graph = graph_without_types(23, 90, rng_seed=num_ranks, kind=kind)
    expected = write_whole(graph, num_ranks, tmp_path / "whole")
    reports = in_threads(cut(graph, num_ranks), [tmp_path / "parts"] * num_ranks)
    assert files_of(tmp_path / "parts") == files_of(tmp_path / "whole")
    same = {"seconds": {}, "memory_bytes": 0}
    assert [replace(each, **same) for each in reports] == [replace(expected, **same)] * num_ranks


@given(
    st.integers(1, 5),
    st.tuples(*[st.integers(0, 9)] * 3),
    st.tuples(*[st.integers(0, 20)] * 2),
    st.integers(0, 99),
    st.sampled_from([(8, 1), (100, 20), (2**20, 2**20)]),
)
@examples(15)
def test_any_shards_give_the_folder_of_one_process(tmp_path_factory, num_ranks, counts, num_edges, rng_seed, windows):
    """Types that are empty or smaller than the number of ranks, ranks without anything, windows of a few rows, and
    pieces of digests of a few rows.
    """
    counts = (counts[0] + num_ranks, *counts[1:])
    graph = graph_with_types(counts, (num_edges[0] * (counts[1] > 0), num_edges[1]), rng_seed)
    root = tmp_path_factory.mktemp("any")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in zip(("SENT_BYTES", "LEAST_BYTES"), windows, strict=True):
            patch.setattr(placed_rows, name, value)
        patch.setattr(array_digest, "PIECE_BYTES", 24)
        write_whole(graph, num_ranks, root / "whole")
        in_threads(cut(graph, num_ranks, rng_seed), [root / "parts"] * num_ranks)
    assert files_of(root / "parts") == files_of(root / "whole")


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_alone_writes_what_a_partitioner_writes_of_its_data_set(tmp_path, kind):
    graph = graph_without_types(23, 90, kind=kind)
    graph.to_partition(tmp_path / "parts")
    Partitioner(graph.to_dataset(), 1, tmp_path / "whole", method="range", layouts=("native",)).generate_partition()
    assert files_of(tmp_path / "parts") == files_of(tmp_path / "whole")


def test_minibatches_over_the_parts_are_those_over_the_data_set(tmp_path):
    graph = graph_with_types([40, 12, 3], [160, 90])
    in_threads(cut(graph, 3), [tmp_path] * 3)
    data = graph.to_dataset()
    parts = [Part.open(tmp_path, number, fingerprint=data.graph) for number in range(3)]
    peers = LocalPeers(parts)
    over_parts = DistGraph(PartitionFacts.of(parts[0]), parts[0].book, peers, parts[1])
    keys = {"node_feature_keys": {USER: ["feat"], ITEM: ["feat"]}, "edge_feature_keys": {BUYS: ["feat"]}}
    digests = []
    for is_dist, given_graph in ((False, data.graph), (True, over_parts)):
        pipe = dp.ItemSampler(data.train_set, batch_size=5, shuffle=True, seed=3)
        if is_dist:
            pipe = pipe.dist_sample_neighbor(given_graph, fanouts=[3, 2], return_edge_ids=True)
            store = dp.distributed.DistFeatureStore(given_graph)
        else:
            pipe = pipe.sample_neighbor(given_graph, fanouts=[3, 2], return_edge_ids=True)
            store = data.features
        digests.append([minibatch.digest() for minibatch in pipe.fetch_feature(store, **keys)])
    peers.close()
    assert len(digests[0]) > 3
    assert digests[0] == digests[1]


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_files_that_ranks_share_give_the_parts_of_one_rank(tmp_path, num_ranks):
    """With four ranks one has no files of nodes."""
    given = graph_without_types(23, 90)
    given.edge_features = given.edge_features.float()
    sources, destinations = given.edge_index
    nodes = {"id": given.node_ids, "x": given.node_features, "label": given.node_labels}
    edges = {"src": sources, "dst": destinations, "w": given.edge_features}
    write_tf_records(tmp_path / "nodes", nodes, num_files=3)
    write_tf_records(tmp_path / "edges", edges, num_files=5, compress=True)
    of_nodes = SerializedTFRecordInfo(f"{tmp_path}/nodes", ["x"], None, 3, "id", label_keys=["label"])
    of_edges = SerializedTFRecordInfo(f"{tmp_path}/edges", ["w"], None, 2, ("src", "dst"))

    def load(rank, size):
        found = [TFRecordDataLoader(rank, size).load_as_torch_tensors(info) for info in (of_nodes, of_edges)]
        node, edge = found
        return loaded(
            node_ids=node.ids,
            node_features=node.features,
            node_labels=node.labels,
            edge_index=edge.ids,
            edge_features=edge.features,
        )

    in_threads([load(rank, num_ranks) for rank in range(num_ranks)], [tmp_path / "parts"] * num_ranks)
    data = load(0, 1).to_dataset()
    Partitioner(data, num_ranks, tmp_path / "whole", method="range", layouts=("native",)).generate_partition()
    assert files_of(tmp_path / "parts") == files_of(tmp_path / "whole")


def test_ranks_with_disks_of_their_own_get_their_parts_there(tmp_path):
    """Ranks 0 and 2 share a disk."""
    graph = graph_with_types([17, 5, 2], [60, 20])
    roots = [tmp_path / "one" / "parts", tmp_path / "other" / "parts", tmp_path / "one" / "parts"]
    in_threads(cut(graph, 3), roots)
    write_whole(graph, 3, tmp_path / "whole")
    whole = files_of(tmp_path / "whole")
    for root, missing in ((roots[0], ["part_1/"]), (roots[1], ["part_0/", "part_2/"])):
        expected = {name: content for name, content in whole.items() if not name.startswith(tuple(missing))}
        assert files_of(root) == expected
        assert [each.name for each in root.parent.iterdir()] == ["parts"]
    assert [Part.open(root, rank).content_id for rank, root in enumerate(roots)] == [
        Part.open(tmp_path / "whole", 0).content_id
    ] * 3


# --- what is refused, and nothing is written


def change_id(shards, kind, old, new):
    for shard in shards:
        ids = shard.node_ids[kind]
        ids[ids == old] = new


def wider(shards):
    shards[1].node_features[ITEM] = torch.zeros(shards[1].node_ids[ITEM].shape[0], 3).half()


def other_dtype(shards):
    shards[2].edge_weights[BUYS] = shards[2].edge_weights[BUYS].double()


def no_labels(shards):
    shards[1].node_labels = None


def other_types(shards):
    del shards[2].edge_index[LIKES]


def unknown_source(shards):
    shards[0].edge_index[LIKES][0, 1] = 17


def unknown_destination(shards):
    shards[1].edge_index[BUYS][1, 0] = -5


def wrong_rows(shards):
    shards[0].node_features[USER] = torch.zeros(1, 3)


WRONG = {
    "node_features of item is float16 [n, 3] on rank 1, float16 [n, 2] on rank 0; all ranks must have the same": wider,
    "edge_weights of user:buys:item is float64 [n] on rank 2, float32 [n] on rank 0; all ranks": other_dtype,
    "node_labels of user is missing on rank 1, int64 [n, 1] on rank 0": no_labels,
    "edge_index of user:likes:user is missing on rank 2, int64 [2, n] on rank 0": other_types,
    "node 17 of user of rank {} is outside; the 17 nodes of user of all ranks must have the ids 0 to 16": partial(
        change_id, kind=USER, old=9, new=17
    ),
    "node -1 of item of rank {} is outside; the 5 nodes of item of all ranks must have the ids 0 to 4": partial(
        change_id, kind=ITEM, old=2, new=-1
    ),
    "edge 1 of user:likes:user of rank 0 has the source 17; the ids of nodes of user are in [0, 17)": unknown_source,
    "edge 0 of user:buys:item of rank 1 has the destination -5; the ids of nodes of item are": unknown_destination,
    "node_features of user: found rows of shape [1, 3] for {} ids": wrong_rows,
}
TWICE = "node (9 of user is missing|16 of user is there 2 times, on the ranks .*); the 17 nodes of user"


@pytest.mark.parametrize("text", [*WRONG, TWICE])
def test_shards_that_make_no_graph_are_refused(tmp_path, text):
    shards = cut(graph_with_types([17, 5, 2], [60, 20]), 3)
    if text == TWICE:
        change_id(shards, USER, 9, 16)
    else:
        WRONG[text](shards)
    errors = [each for each in in_threads(shards, [tmp_path / "parts"] * 3) if isinstance(each, ValueError)]
    pattern = text if text == TWICE else re.escape(text).replace(r"\{\}", r"\d+")
    assert errors
    assert all(re.search(pattern, str(each)) for each in errors), errors
    assert not any(tmp_path.iterdir())


def test_fewer_nodes_than_ranks_are_refused(tmp_path):
    errors = in_threads(cut(graph_without_types(2, 3), 3), [tmp_path / "parts"] * 3)
    assert {str(each) for each in errors if isinstance(each, ValueError)} == {  # others may see that a thread has left
        "to_partition: 2 nodes for 3 ranks; each part needs one. Use at most 2 ranks."
    }


def test_a_folder_that_holds_something_else_is_refused(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "mine").touch()
    errors = in_threads(cut(graph_without_types(9, 9), 2), [tmp_path / "parts"] * 2)
    assert any(
        isinstance(each, FileExistsError) and "holds 'mine', which is not overwritten" in str(each) for each in errors
    )
    assert [each.name for each in (tmp_path / "parts").iterdir()] == ["mine"]


def test_an_older_partition_is_replaced(tmp_path):
    graph = graph_without_types(9, 9)
    write_whole(graph_without_types(12, 5), 3, tmp_path / "parts")
    write_whole(graph, 2, tmp_path / "whole")
    (tmp_path / ".parts.datapipes-rank-0123456789abcdef").touch()  # of a rank that was killed
    in_threads(cut(graph, 2), [tmp_path / "parts"] * 2)
    assert files_of(tmp_path / "parts") == files_of(tmp_path / "whole")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["parts", "whole"]


def test_a_shard_without_its_ranks_is_refused(tmp_path, refuses):
    shard = cut(graph_without_types(9, 9), 2)[0]
    refuses(ValueError, shard.to_partition, tmp_path / "parts")
    refuses(ValueError, shard.to_partition, tmp_path / "parts", rank_timeout_s=None)
    assert not any(tmp_path.iterdir())
