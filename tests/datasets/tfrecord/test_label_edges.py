"""Labels as edges: names, directions and default types as in GiGL."""

import torch

from datapipes.datasets import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    LoadedGraphTensors,
)
from datapipes.processes.mappings import mapping_of

NODE, (_, TO, _) = DEFAULT_HOMOGENEOUS_NODE_TYPE, DEFAULT_HOMOGENEOUS_EDGE_TYPE
BUYS, SEES = ("user", "buys", "item"), ("user", "sees", "item")


def pairs(*ends):
    return torch.tensor(ends).T.contiguous()


def graph(**fields):
    given = dict.fromkeys(("node_features", "node_labels", "edge_features", "positive_label", "negative_label"))
    return LoadedGraphTensors(**{"node_ids": torch.arange(3), "edge_index": pairs((0, 1), (1, 2)), **given, **fields})


def typed(**fields):
    ids = {"user": torch.arange(2), "item": torch.arange(3)}
    edges = {BUYS: pairs((0, 2)), SEES: pairs((1, 1))}
    return graph(**{"node_ids": ids, "edge_index": edges, **fields})


def test_without_types_labels_and_all_fields_get_the_default_types():
    loaded = graph(
        node_features=torch.ones(3, 2),
        node_labels=torch.zeros(3, 1),
        edge_features=torch.ones(2, 4),
        edge_weights=torch.ones(2),
        positive_label=pairs((0, 2)),
        negative_label=pairs((1, 0), (2, 0)),
    )
    edges = loaded.edge_index
    loaded.treat_labels_as_edges("out")
    assert list(loaded.edge_index) == [
        DEFAULT_HOMOGENEOUS_EDGE_TYPE,
        (NODE, f"{TO}_gigl_positive", NODE),
        (NODE, f"{TO}_gigl_negative", NODE),
    ]
    assert loaded.edge_index[DEFAULT_HOMOGENEOUS_EDGE_TYPE] is edges
    assert loaded.edge_index[NODE, f"{TO}_gigl_positive", NODE].tolist() == [[0], [2]]
    assert loaded.edge_index[NODE, f"{TO}_gigl_negative", NODE].tolist() == [[1, 2], [0, 0]]
    assert [*loaded.node_ids] == [*loaded.node_features] == [*loaded.node_labels] == [NODE]
    assert [*loaded.edge_features] == [*loaded.edge_weights] == [DEFAULT_HOMOGENEOUS_EDGE_TYPE]
    assert loaded.positive_label is loaded.negative_label is None


def test_what_was_none_stays_none():
    loaded = graph(positive_label=pairs((0, 2)))
    loaded.treat_labels_as_edges("out")
    assert loaded.node_features is loaded.node_labels is loaded.edge_features is loaded.edge_weights is None


def test_in_reverses_type_and_rows():
    loaded = typed(positive_label={BUYS: pairs((1, 0), (0, 2))}, negative_label={SEES: pairs((1, 2))})
    loaded.treat_labels_as_edges("in")
    assert loaded.edge_index["item", "buys_gigl_positive", "user"].tolist() == [[0, 2], [1, 0]]
    assert loaded.edge_index["item", "sees_gigl_negative", "user"].tolist() == [[2], [1]]
    assert loaded.edge_index[BUYS].tolist() == [[0], [2]]
    assert mapping_of(loaded.edge_index["item", "buys_gigl_positive", "user"]) is not None  # workers map it


def test_a_tensor_of_labels_belongs_to_the_only_edge_type():
    loaded = typed(edge_index={BUYS: pairs((0, 2))}, positive_label=pairs((1, 1)))
    loaded.treat_labels_as_edges("out")
    assert loaded.edge_index["user", "buys_gigl_positive", "item"].tolist() == [[1], [1]]


def test_what_treat_labels_as_edges_refuses(refuses):
    loaded = typed(positive_label={BUYS: pairs((0, 0))}, negative_label=pairs((1, 1)))
    refuses(ValueError, loaded.treat_labels_as_edges, "out")
    assert list(loaded.edge_index) == [BUYS, SEES]  # nothing has changed
    assert list(loaded.positive_label) == [BUYS]
    refuses(ValueError, graph(negative_label=pairs((0, 1))).treat_labels_as_edges, "out")
    refuses(ValueError, graph(positive_label=pairs((0, 1))).treat_labels_as_edges, "both")
    edges = {BUYS: pairs((0, 1)), ("user", "buys_gigl_positive", "item"): pairs((0, 0))}
    loaded = typed(edge_index=edges, positive_label={BUYS: pairs((0, 1))})
    refuses(ValueError, loaded.treat_labels_as_edges, "out")
