"""MiniBatch, Block and SampledSubgraph: views, messages and digests."""

from dataclasses import dataclass

import pytest
import torch
import twin
from hypothesis import given
from hypothesis import strategies as st
from pipelines import fetched, full_minibatch, refused, sampled

import datapipes as dp
from datapipes.minibatch.block import _edges_on_a_device, edges_of

DTYPES = [torch.bool, torch.float16, torch.bfloat16, torch.uint8, torch.complex64, torch.int32, torch.float64]
ODD_NAMES = ["", ".", "%", ":", "a.b", "100%", "%2E", "%252E", "%25", "a:b:c", "größe", "特徴", "hop0", " "]


def block_of(num_dst: int, num_src: int, columns: list[list[int]]) -> dp.Block:
    indptr = torch.tensor([0, *map(len, columns)]).cumsum(0)
    assert len(columns) == num_dst
    return dp.Block(indptr, torch.tensor([u for column in columns for u in column], dtype=torch.int64), num_src)


def as_arrays(message):
    """The message in the form that the twin takes."""
    arrays = {}
    for key, tensor in message.items():
        name = str(tensor.dtype).removeprefix("torch.")
        arrays[key] = (name, tensor.view(torch.int16).numpy()) if name == "bfloat16" else (name, tensor.numpy())
    return arrays


# --- Block and SampledSubgraph


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@given(st.data())
def test_a_blocks_edges_equal_a_loop(data):
    num_src = data.draw(st.integers(1, 8))
    num_dst = data.draw(st.integers(0, num_src))
    columns = [data.draw(st.lists(st.integers(0, num_src - 1), max_size=5)) for _ in range(num_dst)]
    block = block_of(num_dst, num_src, columns)
    edges = [(u, v) for v, column in enumerate(columns) for u in column]
    assert block.edge_index.T.tolist() == [list(edge) for edge in edges]
    assert block.edge_index.shape == (2, len(edges))
    assert (block.num_dst, block.num_edges) == (num_dst, len(edges))
    x = torch.arange(2.0 * num_src).reshape(num_src, 2) + 1
    summed = torch.zeros(num_dst, 2)
    for u, v in edges:
        summed[v] += x[u]
    assert torch.equal(block.to_sparse() @ x, summed)


@given(st.data())
def test_the_edges_of_hops_equal_a_loop_on_the_cpu_and_as_on_a_device(data):
    hops, edges, ids, first = [], [], [], 0
    for _ in range(data.draw(st.integers(1, 3))):
        columns = data.draw(st.lists(st.lists(st.integers(0, 6), max_size=4), min_size=first, max_size=first + 4))
        block = block_of(len(columns), 7, columns)
        edge_ids = torch.arange(block.num_edges) * 3 + 100 * len(hops) if data.draw(st.booleans()) else None
        dtype = data.draw(st.sampled_from([torch.int32, torch.int64]))
        hops.append(dp.Block(block.indptr, block.indices.to(dtype), 7, edge_ids))
        edges += [(u, v) for v, column in enumerate(columns) for u in column if v >= first]
        ids += [] if edge_ids is None else edge_ids[int(block.indptr[first]) :].tolist()
        first = len(columns)
    has_ids = all(hop.edge_ids is not None for hop in hops)
    for found, of_edges in (edges_of(hops), _edges_on_a_device(hops, has_ids)):
        assert (found.dtype, found.shape) == (torch.int64, (2, len(edges)))
        assert [*zip(*found.tolist(), strict=True)] == edges
        assert (of_edges.tolist() == ids) if has_ids else of_edges is None


def test_edges_of_a_block_that_is_not_one_are_refused(refuses):
    indices = torch.tensor([1, 0])
    for indptr in ([0, 3], [0, 2, 1, 2], [-1, 2], []):
        refuses(ValueError, edges_of, [dp.Block(torch.tensor(indptr).long(), indices, 2)])
    refuses(ValueError, edges_of, [dp.Block(torch.tensor([0, 2]), indices, 2, torch.tensor([1]))])


def test_edge_index_is_int64_over_an_int32_block_and_made_once():
    block = dp.Block(torch.tensor([0, 2]), torch.tensor([1, 0], dtype=torch.int32), 2)
    assert block.edge_index.dtype == torch.int64
    assert block.edge_index is block.edge_index


def test_original_ids_are_prefixes_of_the_input_nodes_and_share_their_memory():
    minibatch = next(iter(sampled()))
    for subgraph, block in zip(minibatch.sampled_subgraphs, minibatch.blocks, strict=True):
        for ids, count in (
            (subgraph.original_row_node_ids, block.num_src),
            (subgraph.original_column_node_ids, block.num_dst),
        ):
            assert torch.equal(ids, minibatch.input_nodes[:count])
            assert ids.data_ptr() == minibatch.input_nodes.data_ptr()
        assert subgraph.sampled_csc.indptr is block.indptr
        assert subgraph.sampled_csc.indices is block.indices
        assert subgraph.original_edge_ids is block.edge_ids


def test_the_outermost_block_reads_all_input_nodes_and_blocks_fit_together():
    minibatch = next(iter(sampled()))
    outer, inner = minibatch.blocks
    assert outer.num_src == len(minibatch.input_nodes)
    assert outer.num_dst == inner.num_src
    assert inner.num_dst == len(minibatch.seeds.unique())


def test_subgraphs_are_none_before_sampling():
    assert dp.MiniBatch(seeds=torch.arange(3)).sampled_subgraphs is None


# --- MiniBatch


def test_replace_leaves_the_old_minibatch():
    old = full_minibatch()
    before = old.digest()
    new = old.replace(seeds=torch.zeros(2).long(), labels=None, extra=None)
    assert old.digest() == before
    assert (new.labels, new.extra) == (None, {})
    assert new.blocks is old.blocks


def test_a_copy_has_every_field_of_a_class_of_the_users_too():
    @dataclass(eq=False)
    class Own(dp.MiniBatch):
        weights: torch.Tensor | None = None

    for cls in (dp.MiniBatch, Own):
        values = {name: object() for name in cls.__dataclass_fields__}
        copied = cls(**values).replace()
        assert type(copied) is cls
        assert {name: getattr(copied, name) for name in values} == values


def test_replace_refuses_a_field_that_does_not_exist():
    with pytest.raises(TypeError, match="nonsense"):
        dp.MiniBatch().replace(nonsense=1)


def test_to_the_same_device_shares_the_tensors():
    minibatch = full_minibatch()
    there = minibatch.to("cpu")
    assert there is not minibatch
    assert there.digest() == minibatch.digest()
    assert there.node_features["feat"].data_ptr() == minibatch.node_features["feat"].data_ptr()
    assert there.blocks[0].to("cpu").indices.data_ptr() == minibatch.blocks[0].indices.data_ptr()


def test_num_layers_counts_the_hops():
    assert dp.MiniBatch().num_layers == 0
    assert full_minibatch().num_layers == 2


def test_the_repr_shows_the_shapes_of_what_is_set():
    text = repr(full_minibatch())
    for part in ("epoch=0, index=0", "seeds=[4]", "num_dst=4", "'feat': [", "edge_ids", "edge_features=[["):
        assert part in text
    assert repr(dp.MiniBatch()) == "MiniBatch(epoch=0, index=0)"
    assert repr(full_minibatch().sampled_subgraphs[0]).startswith("SampledSubgraph(Block(")


# --- message


def expect_a_round_trip(minibatch: dp.MiniBatch) -> None:
    message = minibatch.to_message()
    again = dp.MiniBatch.from_message(message).to_message()
    assert again.keys() == message.keys()
    for key, tensor in message.items():
        assert again[key].dtype == tensor.dtype
        assert again[key].shape == tensor.shape
        assert again[key].data_ptr() == tensor.data_ptr() or tensor.numel() < 2
    assert dp.MiniBatch.from_message(message).digest() == minibatch.digest()


def test_a_minibatch_survives_the_message_with_all_fields():
    minibatch = full_minibatch()
    expect_a_round_trip(minibatch)
    again = dp.MiniBatch.from_message(minibatch.to_message())
    assert (again.epoch, again.index, again.num_layers) == (minibatch.epoch, minibatch.index, 2)
    assert [block.num_src for block in again.blocks] == [block.num_src for block in minibatch.blocks]
    assert [sorted(features) for features in again.edge_features] == [["weight"], ["weight"]]


def test_the_keys_are_those_of_the_page():
    assert sorted(full_minibatch().to_message()) == sorted(
        ["epoch", "index", "seeds", "labels", "indexes", "compacted_seeds", "input_nodes", "timestamps", "batch"]
        + [f"hop{hop}.{part}" for hop in (0, 1) for part in ("indptr", "indices", "num_src", "edge_ids")]
        + ["node_features.feat", "hop0.edge_features.weight", "hop1.edge_features.weight"]
    )
    assert next(iter(sampled(fanouts=[0, -1]))).to_message()["hop1.indices"].numel() == 0  # hop 0 is next to the seeds


@pytest.mark.parametrize("name", ODD_NAMES)
def test_names_may_hold_any_text(name):
    minibatch = full_minibatch().replace(node_features={name: torch.ones(2), "other": torch.zeros(1)})
    minibatch = minibatch.replace(edge_features=[{name: torch.ones(3)}, {name: torch.ones(1)}])
    expect_a_round_trip(minibatch)
    again = dp.MiniBatch.from_message(minibatch.to_message())
    assert again.node_features.keys() == {name, "other"}
    assert [list(features) for features in again.edge_features] == [[name], [name]]


def test_only_the_characters_of_the_page_are_escaped():
    minibatch = dp.MiniBatch(node_features={"a.b:c%d é/": torch.ones(1)})
    assert "node_features.a%2Eb%3Ac%25d é/" in minibatch.to_message()


@given(st.lists(st.text(max_size=6), unique=True, max_size=5))
def test_different_names_stay_different(names):
    minibatch = dp.MiniBatch(node_features={name: torch.tensor(i) for i, name in enumerate(names)} or None)
    again = dp.MiniBatch.from_message(minibatch.to_message())
    found = {name: int(value) for name, value in (again.node_features or {}).items()}
    assert found == {name: i for i, name in enumerate(names)}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3)], ids=str)
def test_any_dtype_and_shape_survives_and_has_the_twins_digest(dtype, shape):
    minibatch = dp.MiniBatch(node_features={"x": torch.ones(shape, dtype=dtype)}, labels=torch.zeros(shape).to(dtype))
    expect_a_round_trip(minibatch)
    assert minibatch.digest() == twin.digest(as_arrays(minibatch.to_message()))


def without(message, key):
    return {name: value for name, value in message.items() if name != key}


def test_a_message_outside_the_grammar_is_refused(refuses):
    message, read = full_minibatch().to_message(), dp.MiniBatch.from_message
    for key in (
        *("nonsense", "hopx.indptr", "hop0.weights", "node_features", "rng", "hop00.indptr"),
        *("hop7.edge_features.weight", "hop0.num_src"),
    ):
        refuses(ValueError, read, message | {key: torch.ones(1)})
    for key in ("hop1.indptr", "hop0.num_src"):
        refuses(ValueError, read, without(message, key))
    refuses(ValueError, read, {key.replace("hop1", "hop2"): value for key, value in message.items()})
    refuses(ValueError, read, message | {"epoch": torch.ones(2, dtype=torch.int64)})
    refuses(ValueError, read, message | {"index": torch.ones((), dtype=torch.complex64)})


# --- copies


def test_a_dtype_is_no_device(refuses):
    minibatch = full_minibatch()
    for device in (torch.float16, torch.float64, torch.zeros(1, dtype=torch.float16)):
        refuses(TypeError, minibatch.to, device)
        refuses(TypeError, minibatch.blocks[0].to, device)
    for device in ("cpu", torch.device("cpu")):
        assert minibatch.to(device).seeds is minibatch.seeds


def test_without_cuda_pinning_says_what_it_needs(monkeypatch):
    def fails(tensor: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("as torch says it")

    monkeypatch.setattr(torch.Tensor, "pin_memory", fails)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refused(
        RuntimeError,
        stage=r"MiniBatch\.pin_memory",
        found="no CUDA device",
        allowed="only CUDA",
        remedy="Leave pin_memory",
    ):
        full_minibatch().pin_memory()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(RuntimeError, match=r"^as torch says it$"):
        full_minibatch().pin_memory()


@pytest.mark.parametrize("error", [AssertionError, RuntimeError])  # without CUDA in torch; without a GPU
def test_without_cuda_a_move_to_it_says_what_is_allowed(monkeypatch, error):
    def fails(tensor: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        raise error("as torch says it")

    minibatch = full_minibatch()
    monkeypatch.setattr(torch.Tensor, "to", fails)
    for name, moved in (("MiniBatch", minibatch), ("Block", minibatch.blocks[0])):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        for device in ("cuda", torch.device("cuda", 1)):
            with refused(ValueError, stage=rf"{name}\.to", found=f"device is '{device}'", allowed="here: 'cpu'"):
                moved.to(device)
        with pytest.raises(error, match=r"^as torch says it$"):
            moved.to("meta")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        with pytest.raises(error, match=r"^as torch says it$"):
            moved.to("cuda")


# --- digest


def test_the_digest_is_the_twins():
    for minibatch in fetched():
        assert minibatch.digest() == twin.digest(as_arrays(minibatch.to_message()))


def test_the_digest_depends_on_every_field():
    minibatch = full_minibatch()
    found = {minibatch.digest()}
    message = minibatch.to_message()
    for key, tensor in message.items():
        changed = tensor.clone()
        changed.view(-1)[:1] += 1
        found.add(dp.MiniBatch.from_message(message | {key: changed}).digest())
        if tensor.ndim > 0 and not key.startswith("hop"):
            found.add(dp.MiniBatch.from_message(without(message, key)).digest())
    optional = sum(tensor.ndim > 0 and not key.startswith("hop") for key, tensor in message.items())
    assert len(found) == 1 + len(message) + optional


def test_the_digest_depends_on_dtype_shape_and_name_but_not_on_strides():
    values = torch.arange(6, dtype=torch.int32).reshape(2, 3)

    def digest_of(tensor, name="x"):
        return dp.MiniBatch(node_features={name: tensor}).digest()

    same = {digest_of(values), digest_of(values.t().contiguous().t()), digest_of(values.repeat(1, 2)[:, :3])}
    assert len(same) == 1
    others = [values.float(), values.view(torch.float32), values.reshape(3, 2), values.reshape(6), values.long()]
    assert len(same | {digest_of(other) for other in others} | {digest_of(values, "y")}) == 1 + len(others) + 1


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.int64, torch.complex64], ids=str)
def test_a_strided_tensor_of_any_length_has_a_digest(dtype, step):
    for length in range(4):
        strided = torch.ones(12, dtype=dtype)[::step][:length]
        assert dp.MiniBatch(labels=strided).digest() == dp.MiniBatch(labels=strided.clone()).digest()
        column = torch.ones(length, 3, dtype=dtype)[:, :1]
        assert dp.MiniBatch(labels=column).digest() == dp.MiniBatch(labels=column.clone()).digest()


def test_the_digest_sees_conjugated_and_negated_views_as_their_values():
    values = torch.tensor([1 + 2j, 3 - 1j])
    lazy, plain = values.conj(), values.conj().resolve_conj().clone()
    assert dp.MiniBatch(labels=lazy).digest() == dp.MiniBatch(labels=plain).digest()
    assert dp.MiniBatch(labels=lazy.imag).digest() == dp.MiniBatch(labels=plain.imag.clone()).digest()


def test_the_random_key_is_no_part_of_the_message():
    minibatch = full_minibatch()
    assert minibatch.replace(rng=dp.stages.RngKey(1, 2, 3, 4)).digest() == minibatch.digest()
