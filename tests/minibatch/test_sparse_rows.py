"""SparseRows in a minibatch: the tensors of its message and digest, back again, on a device, and in PyG's data."""

import pytest
import torch
import twin
from pipelines import items, sampled

import datapipes as dp
from datapipes.minibatch.aligned import NOTHING, check_aligned

ROWS = dp.SparseRows(torch.tensor([0, 2, 2, 3]), torch.tensor([1, 4, 0]), 5, torch.tensor([0.5, 2.0, -1.0]))
DENSE = torch.tensor([[0.0, 0.5, 0.0, 0.0, 2.0], [0.0] * 5, [-1.0, 0.0, 0.0, 0.0, 0.0]])
WITHOUT = dp.SparseRows(ROWS.indptr, ROWS.indices.int(), 5)
PARTS = ["indices", "indptr", "num_columns", "values"]


def expect_equal(found: dp.SparseRows, wanted: dp.SparseRows) -> None:
    assert found.num_columns == wanted.num_columns
    assert (found.values is None) is (wanted.values is None)
    for part, tensor in wanted._parts().items():
        assert found._parts()[part].dtype == tensor.dtype
        assert torch.equal(found._parts()[part], tensor)


def minibatch_of(rows: dp.SparseRows, **more) -> dp.MiniBatch:
    return dp.MiniBatch(input_nodes=torch.arange(3), node_features={"words": rows}, **more)


def test_rows_are_a_csr_tensor_and_a_bag():
    assert torch.equal(ROWS.csr().to_dense(), DENSE)
    assert torch.equal(WITHOUT.csr().to_dense(), (DENSE != 0).float())
    assert (ROWS.shape, ROWS.dtype, WITHOUT.dtype) == (DENSE.shape, torch.float32, torch.float32)
    weight = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    summed = torch.nn.EmbeddingBag.from_pretrained(weight, mode="sum")
    for rows in (ROWS, WITHOUT):
        assert torch.allclose(summed(*rows.bag()), rows.csr().to_dense() @ weight)
    mean = torch.nn.EmbeddingBag.from_pretrained(weight, mode="mean")
    assert torch.allclose(mean(*WITHOUT.bag())[0], (weight[1] + weight[4]) / 2)
    assert repr(ROWS) == "SparseRows([3, 5], 3 entries of float32)"


@pytest.mark.parametrize("ids", [[], [1], [2, 0, 2, 1]])
def test_chosen_rows_are_those_of_the_dense_rows(ids):
    wanted = torch.tensor(ids, dtype=torch.int64)
    assert torch.equal(ROWS[wanted].csr().to_dense(), DENSE[wanted])


@pytest.mark.parametrize("rows", [ROWS, WITHOUT], ids=["values", "ones"])
@pytest.mark.parametrize("name", ["words", "", "a.b:c%", "indptr"])
def test_rows_survive_the_message(rows, name):
    block = dp.Block(torch.tensor([0, 3]), torch.arange(3), 3)
    minibatch = dp.MiniBatch(
        input_nodes=torch.arange(3),
        blocks=[block, block],
        node_features={name: rows, "x": DENSE},
        edge_features=[{name: rows}, {name: DENSE}],
    )
    again = dp.MiniBatch.from_message(minibatch.to_message())
    assert [*again.node_features] == [name, "x"]
    expect_equal(again.node_features[name], rows)
    expect_equal(again.edge_features[0][name], rows)
    assert again.edge_features[1][name] is DENSE
    assert again.node_features[name].indices.data_ptr() == rows.indices.data_ptr()
    assert again.digest() == minibatch.digest()


def test_with_types_they_survive_too():
    of = ("package", "needs", "package")
    block = {of: dp.Block(torch.tensor([0, 3]), torch.arange(3), 3)}
    minibatch = dp.MiniBatch(
        input_nodes={"package": torch.arange(3)},
        blocks=[block],
        node_features={("package", "words"): ROWS},
        edge_features=[{(of, "words"): WITHOUT}],
    )
    again = dp.MiniBatch.from_message(minibatch.to_message())
    expect_equal(again.node_features["package", "words"], ROWS)
    expect_equal(again.edge_features[0][of, "words"], WITHOUT)
    assert "hop0.edge_features.package:needs:package.words:indices" in minibatch.to_message()


def test_each_part_has_a_key_and_counts_in_the_digest():
    message = minibatch_of(ROWS).to_message()
    assert sorted(message) == ["epoch", "index", "input_nodes", *(f"node_features.words:{part}" for part in PARTS)]
    assert not [key for key in minibatch_of(WITHOUT).to_message() if key.endswith("values")]
    digest = minibatch_of(ROWS).digest()
    arrays = {key: (str(each.dtype).removeprefix("torch."), each.numpy()) for key, each in message.items()}
    assert digest == twin.digest(arrays) == "cc00b36af61f2fd9edb8993926fa2366"
    others = [WITHOUT, dp.SparseRows(ROWS.indptr, ROWS.indices, 6, ROWS.values)]
    others += [ROWS.map_tensors(lambda each, i=i: each + (each.data_ptr() == parts[i].data_ptr())) for i in range(3)]
    assert len({digest, *(minibatch_of(each).digest() for each in others)}) == 6


parts = [ROWS.indptr, ROWS.indices, ROWS.values]


def test_a_message_whose_parts_do_not_fit_is_refused(refuses):
    message, read = minibatch_of(ROWS).to_message(), dp.MiniBatch.from_message
    for part in ("indptr", "num_columns"):
        refuses(ValueError, read, {key: value for key, value in message.items() if not key.endswith(part)})
    for part, value in (
        ("indptr", torch.empty(0, dtype=torch.int64)),
        ("indices", torch.zeros(3, 1, dtype=torch.int64)),
        ("values", torch.ones(2)),
        ("num_columns", torch.tensor(-1)),
        ("num_columns", torch.ones(2)),
        ("weights", torch.ones(3)),
    ):
        refuses(ValueError, read, message | {f"node_features.words:{part}": value})
    for both in ({**message, "node_features.words": DENSE}, {"node_features.words": DENSE, **message}):
        refuses(ValueError, read, both)


def test_copies_carry_the_tensors(refuses):
    there = minibatch_of(ROWS).to("meta").node_features["words"]
    assert {part.device.type for part in (there.indptr, there.indices, there.values)} == {"meta"}
    assert (there.shape, there.device.type) == (ROWS.shape, "meta")
    assert minibatch_of(ROWS).to("cpu").node_features["words"].indices is ROWS.indices
    assert ROWS.to("cpu").indices is ROWS.indices
    refuses(TypeError, ROWS.to, torch.float16)
    (copied,) = dp.ItemSampler(dp.ItemSet(3), 3).transform(with_words).copy_to("meta")
    assert copied.node_features["words"].indices.device.type == "meta"


def with_words(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    return minibatch.replace(input_nodes=minibatch.seeds, node_features={"words": ROWS})


class Stage:
    name = "mine"


def test_there_is_a_row_for_each_node(refuses):
    check_aligned(Stage(), minibatch_of(ROWS), NOTHING)
    refuses(ValueError, check_aligned, Stage(), minibatch_of(ROWS).replace(input_nodes=torch.arange(4)), NOTHING)
    refuses(TypeError, check_aligned, Stage(), dp.MiniBatch(seeds=torch.arange(3), labels=ROWS), NOTHING)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_pygs_data_has_the_rows_of_nodes_as_a_csr_tensor(refuses):
    pytest.importorskip("torch_geometric", reason="to_pyg makes objects of torch_geometric: install the pyg extra")
    words = dp.SparseFeature.from_tensor(torch.eye(40).to_sparse_csr())
    store = dp.FeatureStore({("node", None, "feat"): words, ("edge", None, "kind"): words})
    for source in (items(), items().transform(repeated)):
        pipe = sampled(source, graph=few_edges(), frontier="new").fetch_feature(store, ["feat"])
        data = next(iter(pipe)).to_pyg()
        assert data.x.layout is torch.sparse_csr
        assert data.x.to_dense().tolist() == torch.eye(40)[data.n_id].tolist()
    (minibatch, *_) = pipe.fetch_feature(store, None, ["kind"])
    refuses(TypeError, minibatch.to_pyg)


def few_edges() -> dp.CSCGraph:
    return dp.CSCGraph(torch.arange(41), torch.arange(40).roll(3), edge_ids=torch.arange(40))


def repeated(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    return minibatch.replace(seeds=minibatch.seeds[[0, 1, 0]], labels=minibatch.labels[[0, 1, 0]])
