"""Frames and networkx graphs become data sets without types, with names, features, labels and splits."""

import pandas as pd
import pytest
import torch

import datapipes as dp

EDGES = pd.DataFrame(
    {"who": ["b", "a", "c", "a"], "whom": ["a", "c", "c", "b"], "w": [1.0, 2, 3, 4], "at": [3, 1, 2, 4]}
)
NODES = pd.DataFrame({"id": ["c", "a", "b"], "age": [3, 1, 2], "y": ["x", None, "z"], "part": ["train", "", "test"]})


def pairs(graph):
    dst = torch.repeat_interleave(torch.arange(graph.num_nodes), graph.indptr.diff())
    rows = sorted(zip(graph.edge_ids.tolist(), graph.indices.tolist(), dst.tolist(), strict=True))
    return [(src, dst) for _, src, dst in rows]


def test_a_frame_of_edges():
    data = dp.datasets.from_pandas(EDGES, source="who", target="whom", time="at")
    assert [*data.node_names[None]] == ["b", "a", "c"]
    assert pairs(data.graph) == [(0, 1), (1, 2), (2, 2), (1, 0)]
    assert data.graph.edge_attributes["w"][data.graph.edge_ids.argsort()].tolist() == [1, 2, 3, 4]
    assert data.features["edge", None, "w"].read(torch.arange(4)).tolist() == [1, 2, 3, 4]
    assert [len(part) for part in (data.train_set, data.validation_set, data.test_set)] == [3, 0, 1]
    assert (data.training_graph.num_edges, data.task) == (3, "link_prediction")
    pipe = dp.ItemSampler(data.train_set, 4).sample_neighbor(data.training_graph, [2], prob_name="w")
    assert next(iter(pipe)).blocks[0].num_edges > 0


def test_frames_of_edges_and_nodes():
    data = dp.datasets.from_pandas(EDGES, NODES, source="who", target="whom", label="y", split="part")
    assert [*data.node_names[None]] == ["c", "a", "b"]
    assert pairs(data.graph) == [(2, 1), (1, 0), (0, 0), (1, 2)]
    assert [rows.tolist() for rows in data.train_set[:]] == [[0], [0]]
    assert [rows.tolist() for rows in data.test_set[:]] == [[2], [1]]
    assert (data.class_names, data.task) == (("x", "z"), "node_classification")
    assert data.features.names("node", None) == ["age"]


@pytest.mark.parametrize("directed", [True, False])
def test_a_networkx_graph(directed):
    networkx = pytest.importorskip("networkx")
    graph = networkx.DiGraph() if directed else networkx.Graph()
    graph.add_node("n", size=1.5, y=1)
    graph.add_node(7, size=2.5, y=0, part="test")
    graph.add_node((0, 1), y=1)
    graph.add_edge("n", 7, weight=3.0)
    graph.add_edge(7, 7)
    data = dp.datasets.from_networkx(graph, label="y", split="part", features={"nodes": ["size"], "edges": ["weight"]})
    assert data.node_names[None] == ("n", 7, (0, 1))
    assert pairs(data.graph) == [(0, 1), (1, 1)] + ([] if directed else [(1, 0)])
    weights = data.features["edge", None, "weight"]
    assert weights.read(torch.arange(weights.count)).tolist() == [3, 0] + ([] if directed else [3])
    assert data.features["node", None, "size_missing"].read(torch.arange(3)).tolist() == [False, False, True]
    assert [rows.tolist() for rows in data.test_set[:]] == [[1], [0]]
    assert dp.datasets.from_networkx(graph, label="y").train_set[:][1].tolist() == [1, 0, 1]


def test_rectangular_matrices(refuses):
    sparse = pytest.importorskip("scipy.sparse")
    reads = sparse.coo_matrix(([1.0, 2.0], ([0, 2], [1, 0])), (3, 2))
    graph = dp.HeteroCSCGraph.from_scipy({("user", "reads", "book"): reads, "book:read_by:user": reads.T})
    assert graph.num_nodes == {"book": 2, "user": 3}
    relation = graph.relation(("user", "reads", "book"))
    assert (relation.indptr.tolist(), relation.indices.tolist()) == ([0, 1, 2], [2, 0])
    assert relation.edge_attributes["weight"].tolist() == [2, 1]
    refuses(ValueError, dp.HeteroCSCGraph.from_scipy, {"user:reads:book": 3})
    refuses(
        ValueError, dp.HeteroCSCGraph.from_scipy, {"user:reads:book": reads, "user:knows:user": reads.tocsr()[:2, :2]}
    )
