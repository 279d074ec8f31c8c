"""Minibatches of tables as TensorFrames, which the encoders of relbench take."""

import numpy as np
import pytest
import torch

import datapipes as dp

frame = pytest.importorskip("torch_frame")
pytest.importorskip("torch_geometric")

from datapipes.pyg import column_stats, tensor_frames  # noqa: E402

TABLES = {
    "people": {
        "id": np.arange(6),
        "age": [30.0, None, 20.0, 50.0, 40.0, 10.0],
        "pieces": [1, 2, 3, 4, 5, 6],
        "city": ["Ulm", "Bonn", None, "Ulm", "Ulm", "Bonn"],
        "old": [True, False, True, True, False, False],
        "vector": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0], [9.0, 1.0], [2.0, 3.0]],
    },
    "visits": {"person": [0, 0, 1, 5], "at": [1, 2, 3, 4]},
}
COLUMNS = ["age", "pieces", "city", "old", "vector"]


@pytest.fixture
def data():
    return dp.datasets.from_tables(
        TABLES,
        keys={"people": "id"},
        links={"visits": {"person": "people"}},
        times={"visits": "at"},
        features={"people": COLUMNS},
    )


def minibatch_of(data, names):
    items = dp.HeteroItemSet({"people": dp.ItemSet(torch.tensor([5, 1, 2]))})
    pipe = dp.ItemSampler(items, 3).sample_neighbor(data.graph, [2]).fetch_feature(data.features, names)
    return next(iter(pipe))


def test_columns_have_the_values_of_the_table(data):
    minibatch = minibatch_of(data, {"people": [*COLUMNS, "age_missing"], "visits": ["time"]})
    frames = tensor_frames(data, minibatch)
    assert [*frames] == ["people"]  # visits have nothing but times
    people = frames["people"]
    assert people.col_names_dict == {
        frame.numerical: ["age", "pieces"],
        frame.categorical: ["city", "old"],
        frame.embedding: ["vector"],
    }
    assert people.num_rows == 3
    numbers = people.feat_dict[frame.numerical]
    assert torch.equal(numbers.nan_to_num(-1), torch.tensor([[10.0, 6], [-1, 2], [20, 3]]))
    assert people.feat_dict[frame.categorical].tolist() == [[1, 0], [1, 0], [-1, 1]]
    assert people.feat_dict[frame.embedding][:, 0].values.tolist() == [[2, 3], [3, 4], [5, 6]]


def test_encoders_take_frames_and_statistics(data):
    stats, stat = column_stats(data), frame.data.StatType
    assert stats["people"]["age"][stat.MEAN] == 30.0
    assert stats["people"]["city"][stat.COUNT][0] == ["Ulm", "Bonn"]
    people = tensor_frames(data, minibatch_of(data, {"people": [*COLUMNS, "age_missing"]}))["people"]
    encoder = frame.nn.StypeWiseFeatureEncoder(
        8,
        stats["people"],
        people.col_names_dict,
        {
            frame.numerical: frame.nn.LinearEncoder(na_strategy=frame.NAStrategy.MEAN),
            frame.categorical: frame.nn.EmbeddingEncoder(),
            frame.embedding: frame.nn.LinearEmbeddingEncoder(),
        },
    )
    rows, names = encoder(people)
    assert rows.shape == (3, 5, 8)
    assert not rows.isnan().any()
    assert sorted(names) == sorted(COLUMNS)


def test_minibatches_without_features_by_type_are_refused(data):
    with pytest.raises(ValueError, match="by type"):
        tensor_frames(data, dp.MiniBatch())
