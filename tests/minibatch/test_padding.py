"""Padded minibatches as messages, on the way to PyG, and their masks where nothing is padded."""

import numpy as np
import pytest
import torch
from link_chains import pairs_chain
from pipelines import fetched, first, sampled, small_graph, small_store
from twin_padding import by_type
from typed_pipelines import CITES, FANOUTS, NUM_NODES, typed_fetched, typed_sampled

import datapipes as dp

pyg_nn = pytest.importorskip("torch_geometric.nn")
trim_to_layer = pytest.importorskip("torch_geometric.utils").trim_to_layer


def padded(pipe: dp.Stage) -> dp.Stage:
    return pipe.pad(dp.measure_sizes(pipe, 6))


def test_a_message_has_the_bucket_and_only_of_a_padded_minibatch():
    minibatch = first(padded(sampled()).fetch_feature(small_store(), ["feat"]))
    message = minibatch.to_message()
    assert message["bucket"].tolist() == 0
    assert "bucket" not in first(sampled()).to_message()
    received = dp.MiniBatch.from_message(message)
    assert received.bucket == 0
    assert received.digest() == minibatch.digest() != minibatch.replace(bucket=1).digest()
    assert "bucket=0" in repr(minibatch)
    with pytest.raises(ValueError, match="must be one integer"):
        dp.MiniBatch.from_message({**message, "bucket": torch.zeros(2)})


def test_all_is_real_where_nothing_is_padded():
    for minibatch in (first(fetched()), first(typed_fetched())):
        masks = minibatch.masks
        for mask, ids in ((masks.seeds, minibatch.seeds), (masks.nodes, minibatch.input_nodes)):
            for of, is_real in by_type(mask).items():
                assert is_real.tolist() == [True] * len(by_type(ids)[of])
        for mask, hop in zip(masks.edges, minibatch.blocks, strict=True):
            for of, is_real in by_type(mask).items():
                assert is_real.tolist() == [True] * by_type(hop)[of].num_edges
    masks = dp.MiniBatch().masks
    assert (masks.seeds, masks.nodes, masks.edges) == (None, None, [])


@pytest.mark.parametrize("disjoint", [False, True], ids=["shared", "trees"])
def test_data_of_pyg_counts_padded_sizes_and_a_model_gives_real_seeds_the_same(disjoint):
    torch.manual_seed(0)
    model = pyg_nn.GraphSAGE(3, 8, 2, 5)
    pipe = sampled(frontier="new", disjoint=disjoint)
    sizes = dp.measure_sizes(pipe, 6)
    plain = pipe.fetch_feature(small_store(), ["feat"], ["weight"])
    for before, after in zip(plain, pipe.pad(sizes).fetch_feature(small_store(), ["feat"], ["weight"]), strict=True):
        given, data = before.to_pyg(), after.to_pyg()
        assert data.num_sampled_nodes == sizes[0]["nodes"]
        assert data.num_sampled_edges == sizes[0]["edges"]
        assert (data.batch_size, len(data.y)) == (5, 5)
        counts = {
            "num_sampled_nodes_per_hop": data.num_sampled_nodes,
            "num_sampled_edges_per_hop": data.num_sampled_edges,
        }
        expected = model(given.x, given.edge_index)[: given.batch_size]
        for found in (model(data.x, data.edge_index), model(data.x, data.edge_index, **counts)):
            torch.testing.assert_close(found[: given.batch_size], expected)


def test_data_of_links_and_types_have_the_same_shapes_in_all_minibatches():
    links = pairs_chain(labels=torch.arange(22) % 2).sample_neighbor(small_graph(), [3, 2], frontier="new")
    whole = typed_sampled(fanouts=FANOUTS, subgraph_type="induced")
    for pipe in (links, typed_sampled(frontier="new"), whole):
        shapes = set()
        for minibatch in padded(pipe):
            data = minibatch.to_pyg()
            tensors = {str(key): value for store in data.stores for key, value in store.items()}
            shapes.add(
                str({key: value.shape if isinstance(value, torch.Tensor) else value for key, value in tensors.items()})
            )
        assert len(shapes) == 1
        assert ("num_sampled_nodes" in shapes.pop()) == (pipe is not whole)
    assert {*NUM_NODES} == {*first(padded(whole)).to_pyg().node_types}
    assert CITES in first(padded(whole)).to_pyg().edge_types


# --- for NumPy and JAX


def test_arrays_share_the_memory_of_the_tensors():
    minibatch = first(padded(sampled()).fetch_feature(small_store(), ["feat"], ["weight"]))
    arrays = minibatch.numpy()
    assert {*arrays} == {
        *("seeds", "labels", "compacted_seeds", "input_nodes", "blocks", "node_features", "edge_features")
    }
    assert np.shares_memory(arrays["node_features"]["feat"], minibatch.node_features["feat"].numpy())
    for arrays_of_hop, weights, block in zip(arrays["blocks"], arrays["edge_features"], minibatch.blocks, strict=True):
        assert {part: values.tolist() for part, values in arrays_of_hop.items()} == {
            part: getattr(block, part).tolist() for part in ("indptr", "indices", "edge_ids")
        }
        assert len(weights["weight"]) == block.num_edges
    typed = first(typed_fetched()).numpy()
    assert {*typed["blocks"][0][CITES]} == {"indptr", "indices", "edge_ids"}
    assert typed["extra"]["weight"].keys() == typed["seeds"].keys()
    words = dp.SparseRows(torch.tensor([0, 1]), torch.tensor([2]), 3, torch.ones(1))
    assert {*dp.MiniBatch(node_features={"words": words}).numpy()["node_features"]["words"]} == {
        *("indptr", "indices", "values")
    }


def test_what_has_no_array_is_refused(refuses):
    refuses(TypeError, dp.MiniBatch(labels=torch.ones(2).bfloat16()).numpy)
    refuses(ValueError, dp.MiniBatch(labels=torch.ones(2, device="meta")).numpy)
    refuses(ValueError, dp.MiniBatch(labels=torch.ones(2).to_sparse()).numpy)
    turned = torch.ones(2, dtype=torch.complex64).conj()
    assert dp.MiniBatch(labels=turned).numpy()["labels"].tolist() == [1, 1]


def test_a_step_of_jax_is_traced_once():
    jax = pytest.importorskip("jax")
    traced = []

    @jax.jit
    def summed(arrays):
        traced.append(1)
        rows = arrays["node_features"]["feat"]
        for block in arrays["blocks"]:
            num_dst = len(block["indptr"]) - 1
            destinations = jax.numpy.repeat(
                jax.numpy.arange(num_dst), jax.numpy.diff(block["indptr"]), total_repeat_length=len(block["indices"])
            )
            rows = rows[:num_dst] + jax.numpy.zeros_like(rows[:num_dst]).at[destinations].add(rows[block["indices"]])
        return rows

    for minibatch in padded(sampled()).fetch_feature(small_store(), ["feat"]):
        found, rows = summed(minibatch.numpy()), minibatch.node_features["feat"]
        for block in minibatch.blocks:
            rows = rows[: block.num_dst] + block.to_sparse() @ rows
        assert torch.allclose(torch.tensor(found.tolist()), rows)
    assert len(traced) == 1
