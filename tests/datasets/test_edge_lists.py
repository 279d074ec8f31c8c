"""Reading lists of edges: what their columns hold, order, split and times, the two real ones, and broken files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from published import published

from datapipes.datasets.edge_lists import TRAIN_SHARE, VALIDATION_SHARE, edge_list_in, read_edge_list
from datapipes.datasets.raw import DatasetFormatError
from datapipes.datasets.raw_hetero import RawHeteroDataset

TIMED, RATED = ("src", "dst", "time"), ("src", "dst", "rating", "time")


def read(folder: Path, content: str, name: str = "tiny.txt.gz", columns: object = ()) -> RawHeteroDataset:
    """Read a list whose columns are those of its suffix, or `columns`."""
    columns = (RATED if ".csv" in name else TIMED) if columns == () else columns
    path = folder / name
    path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    assert edge_list_in(folder) == edge_list_in(path) == path
    return read_edge_list(path, columns)


def original(raw: RawHeteroDataset) -> list[tuple[int, int]]:
    """Return the edges under the ids of the file."""
    return list(map(tuple, raw.node_attributes[None, "id"][raw.edges[None]].T.tolist()))


def test_nodes_are_renumbered_and_keep_their_ids(tmp_path):
    raw = read(tmp_path, "7 100 1\n100 5 2\n7 100 3\n")
    assert raw.name == "tiny"
    assert raw.num_nodes == {None: 3}
    assert raw.node_attributes[None, "id"].tolist() == [5, 7, 100]
    assert raw.edges[None].tolist() == [[1, 2, 1], [2, 0, 2]]  # the repeated edge stays
    assert raw.edge_features[None, "time"].tolist() == raw.edge_attributes[None, "time"].tolist() == [1, 2, 3]
    assert raw.task == "link_prediction"
    assert all(part[None].labels is None for part in raw.split)


@examples(60)
@given(times=st.lists(st.integers(0, 12), min_size=1, max_size=60))
def test_the_parts_follow_the_time_and_hold_each_edge_once(tmp_path_factory, times):
    lines = [f"{i} {i + 1000} {time}\n" for i, time in enumerate(times)]
    raw = read(tmp_path_factory.mktemp("t"), "".join(lines))
    by_time = sorted(range(len(times)), key=lambda i: times[i])  # a stable sort: the order of the file breaks ties
    assert original(raw) == [(i, i + 1000) for i in by_time]
    parts = [part[None] for part in raw.split]
    assert np.array_equal(np.concatenate([part.seeds for part in parts]), raw.edges[None].T)
    assert np.concatenate([part.timestamps for part in parts]).tolist() == sorted(times)
    for earlier, later in ((0, 1), (1, 2), (0, 2)):
        assert parts[earlier].timestamps.max(initial=-1) < parts[later].timestamps.min(initial=99)
    assert raw.num_training_edges == {None: len(parts[0].seeds)}
    assert len(parts[0].seeds) >= round(TRAIN_SHARE * len(times))
    assert len(parts[0].seeds) + len(parts[1].seeds) >= round((TRAIN_SHARE + VALIDATION_SHARE) * len(times))


def test_distinct_times_give_the_stated_shares(tmp_path):
    raw = read(tmp_path, "".join(f"1 2 {time}\n" for time in range(200)))
    assert [len(part[None].seeds) for part in raw.split] == [140, 30, 30]


@pytest.mark.parametrize("header", ["", "from,to,feature,time\n"])
def test_ratings_are_the_labels_of_an_edge_regression(tmp_path, header):
    raw = read(tmp_path, f"{header}6,2,4,10.5\n6,5,-10,9.25\n1,15,1,11\n", "tiny.csv.gz")
    assert raw.task == "edge_regression"
    assert original(raw) == [(6, 5), (6, 2), (1, 15)]
    assert raw.edge_features[None, "rating"].tolist() == [-10, 4, 1]
    assert raw.edge_features[None, "time"].tolist() == [9.25, 10.5, 11]
    assert np.concatenate([part[None].labels for part in raw.split]).tolist() == [-10, 4, 1]
    assert raw.split[0][None].labels.dtype == np.float32


@pytest.mark.parametrize("columns", [None, TIMED])
def test_an_empty_list_is_a_graph_without_nodes(tmp_path, columns):
    raw = read(tmp_path, "", "tiny.txt", columns)
    assert raw.num_nodes == {None: 0}
    assert [len(part[None].seeds) for part in raw.split] == [0, 0, 0]


SNAP = "# Directed graph: ca-GrQc\n# FromNodeId\tToNodeId\n7\t5\n5\t100\n# not the end\n7\t5"


@pytest.mark.parametrize(
    ("name", "content", "columns", "edges"),
    [
        ("ca.txt", SNAP, None, [(7, 5), (5, 100), (7, 5)]),
        ("ca.txt.gz", SNAP, ("dst", "src"), [(5, 7), (100, 5), (5, 7)]),
        ("a.txt", "7 5 0.5\n5 100 2\n", ("src", "dst", "weight"), [(7, 5), (5, 100)]),
        ("a.txt", "src dst weight\n7 5 .5\n5 100 2\n", None, [(7, 5), (5, 100)]),
        ("a.csv", "weight,dst,src\n.5,5,7\n2,100,5\n", None, [(7, 5), (5, 100)]),
        ("a.csv", "user,item\n7,5\n", None, [(7, 5)]),
        ("a.csv", '"src", dst, "weight"\n7,5,.5\n5,100,2\n', None, [(7, 5), (5, 100)]),
        ("a.txt", "7 5 2 .5\n5 100 1 2\n", ("src", "dst", "time", "weight"), [(5, 100), (7, 5)]),
        ("CollegeMsg.txt", "7 5 2\n5 100 1\n", None, [(5, 100), (7, 5)]),
        ("soc-sign-bitcoinotc.csv", "7,5,-1,2\n5,100,1,1\n", None, [(5, 100), (7, 5)]),
    ],
)
def test_columns_hold_what_somebody_says(tmp_path, name, content, columns, edges):
    raw = read(tmp_path, content, name, columns)
    assert original(raw) == edges
    has_times = (None, "time") in raw.edge_attributes
    assert raw.task == ("all_nodes", "edge_regression" if "bitcoin" in name else "link_prediction")[has_times]
    assert sum(len(part[None].seeds) for part in raw.split) == len(edges) * has_times
    weights = raw.edge_attributes.get((None, "weight"))
    assert (weights is not None) is ("weight" in content or (columns is not None and "weight" in columns))
    if weights is not None:
        assert weights.dtype == np.float32
        assert dict(zip(original(raw), weights.tolist(), strict=True)) == {(7, 5): 0.5, (5, 100): 2.0}


UNSAID = {  # what the columns hold
    "a.txt": ["0 1 0.5\n", "# u v t\n0 1 1082040961\n"],
    "a.txt.gz": ["u v w\n0 1 2\n"],
    "a.csv": ["src,dst,price\n0,1,2\n", "target,Source\n0,1\n", "1,2,3,4\n"],
    "CollegeMsg.csv": ["src,dst,weight\n0,1,2\n"],
}
BROKEN = {
    "a.txt": ["1 2\n", "-1 2 3\n", "1 2.5 3\n", "1 9007199254740992 3\n", "1 2 3 # a comment\n"],
    "a.csv": ["1,2,1e39,4\n", "1,2,3,4\nfrom,to,x,y\n"],
}


def test_what_read_edge_list_refuses(tmp_path, refuses):
    for files, columns in ((UNSAID, None), (BROKEN, ())):
        for name, contents in files.items():
            (tmp_path / name).mkdir(exist_ok=True)
            for content in contents:
                refuses(DatasetFormatError, read, tmp_path / name, content, name, columns)


def test_collegemsg_has_the_counts_of_its_readme():
    raw = read_edge_list(edge_list_in(published("collegemsg")))
    assert raw.num_nodes == {None: 1899}
    assert raw.edges[None].shape == (2, 59_835)
    assert raw.node_attributes[None, "id"].tolist() == list(range(1, 1900))
    assert raw.edge_features[None, "time"].dtype == np.int64
    sizes = [len(part[None].seeds) for part in raw.split]
    assert sum(sizes) == 59_835
    assert np.allclose(np.array(sizes) / 59_835, [0.70, 0.15, 0.15], atol=1e-3)
    assert original(raw)[:2] == [(1, 2), (3, 4)]


def test_bitcoin_otc_has_the_counts_of_its_readme():
    raw = read_edge_list(edge_list_in(published("bitcoin_otc")))
    assert raw.num_nodes == {None: 5881}
    assert raw.edges[None].shape == (2, 35_592)
    assert raw.node_attributes[None, "id"][[0, -1]].tolist() == [1, 6005]
    ratings = raw.edge_features[None, "rating"]
    assert (ratings.min(), ratings.max(), int((ratings < 0).sum())) == (-10, 10, 3563)
    assert raw.edge_features[None, "time"][0] == 1289241911.72836
    assert original(raw)[:2] == [(6, 2), (6, 5)]
    assert [len(part[None].seeds) for part in raw.split] == [24_914, 5339, 5339]
