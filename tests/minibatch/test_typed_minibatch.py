"""MiniBatch where nodes and edges have types: views, message, digest, checks."""

import pytest
import torch
import twin
from hypothesis import given
from hypothesis import strategies as st
from pipelines import full_minibatch, sampled
from slow_hetero import (
    BY,
    CITES,
    NUM_EDGES,
    NUM_NODES,
    OF,
    WRITES,
    hetero_store,
    slow_sampled,
    typed_items,
)

import datapipes as dp

ODD = ["a", "a.b", "a:b", "%", "%3A", "100%25", "größe", "特徴", ":", ".", "::", "hop0", " "]

names = st.one_of(st.sampled_from(ODD), st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=5))
edge_types = st.tuples(names, names, names)


def full_typed(**arguments) -> dp.MiniBatch:
    """A minibatch of two node types as seeds, with every field set."""
    fields = {
        "labels": {"paper": [0, 1, 1, 0]},
        "indexes": {"paper": [0, 1, 2, 3], "author": [4]},
        "timestamps": {"author": [7]},
        "weight": {"paper": [0.5, 1, 2, 4], "author": [8.0]},
        "of.mine": {"author": [1]},
    }
    keys = {kind: ["feat"] for kind in NUM_NODES}, {kind: ["weight"] for kind in NUM_EDGES}
    chain = slow_sampled({"paper": [3, 0, 8, 5], "author": [2]}, fields=fields, **arguments)
    minibatch = next(iter(chain.fetch_feature(hetero_store(), *keys)))
    return minibatch.replace(batch={kind: torch.zeros_like(ids) for kind, ids in minibatch.input_nodes.items()})


def as_arrays(message):
    return {key: (str(tensor.dtype).removeprefix("torch."), tensor.numpy()) for key, tensor in message.items()}


def expect_the_same(one: dp.MiniBatch, other: dp.MiniBatch) -> None:
    """Equal fields, in the same order of their keys, and equal digests."""
    for field in dp.MiniBatch.__dataclass_fields__:
        before, after = getattr(one, field), getattr(other, field)
        for (path, value), (path_after, value_after) in zip(flat(before), flat(after), strict=True):
            assert path_after == path, field
            if isinstance(value, torch.Tensor):
                assert torch.equal(value_after, value)
                assert value_after.dtype == value.dtype
            else:
                assert value_after == value
    assert other.digest() == one.digest()


def flat(value, path=()):
    if isinstance(value, dp.Block):
        value = {"indptr": value.indptr, "indices": value.indices, "num_src": value.num_src, "ids": value.edge_ids}
    if isinstance(value, list):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, part in value.items():
            yield from flat(part, (*path, key))
    else:
        yield path, value


# --- views and copies


def test_subgraphs_have_the_original_ids_of_both_ends():
    minibatch = full_typed()
    graph = slow_sampled().graph
    for subgraphs, blocks in zip(minibatch.sampled_subgraphs, minibatch.blocks, strict=True):
        assert [*subgraphs] == [*blocks] == [*graph.edge_types]
        for (src, rel, dst), subgraph in subgraphs.items():
            block, relation = blocks[src, rel, dst], graph.relation((src, rel, dst))
            rows, columns = subgraph.original_row_node_ids, subgraph.original_column_node_ids
            assert rows.data_ptr() == minibatch.input_nodes[src].data_ptr()
            assert torch.equal(rows, minibatch.input_nodes[src][: block.num_src])
            assert torch.equal(columns, minibatch.input_nodes[dst][: block.num_dst])
            ids = {int(edge): place for place, edge in enumerate(relation.edge_ids)}
            for (row, column), edge in zip(block.edge_index.T.tolist(), block.edge_ids.tolist(), strict=True):
                place = ids[edge]
                assert int(relation.indices[place]) == int(rows[row])
                assert int(relation.indptr[columns[column]]) <= place < int(relation.indptr[columns[column] + 1])
            assert block.to_sparse().shape == (block.num_dst, block.num_src)


@pytest.mark.parametrize("made", [full_minibatch, full_typed])
def test_map_tensors_reaches_every_tensor_once(made):
    minibatch, seen = made(), []
    mapped = minibatch.map_tensors(lambda tensor: seen.append(id(tensor)) or tensor.clone())
    values = [value for field in minibatch.__dataclass_fields__ for _, value in flat(getattr(minibatch, field))]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    assert sorted(seen) == sorted(map(id, tensors))
    copies = [value for field in mapped.__dataclass_fields__ for _, value in flat(getattr(mapped, field))]
    assert not {id(value) for value in copies if isinstance(value, torch.Tensor)} & {*seen}
    expect_the_same(minibatch, mapped)


def test_the_repr_shows_the_shapes_of_each_type():
    text = repr(full_typed())
    for part in ("seeds={'author': [1], 'paper': [4]}", "'empty': [0]", "extra={'weight': {'author': [1]", "num_dst=4"):
        assert part in text


# --- message


def test_the_keys_are_those_of_the_page():
    minibatch = full_typed()
    seeds = ["author", "paper"]
    keys = ["epoch", "index", "labels.paper", "timestamps.author", "extra.author.of%2Emine"]
    keys += [f"{field}.{kind}" for field in ("seeds", "indexes", "compacted_seeds") for kind in seeds]
    keys += [f"extra.{kind}.weight" for kind in seeds]
    for kind in NUM_NODES:
        keys += [f"input_nodes.{kind}", f"batch.{kind}", f"node_features.{kind}.feat"]
    for src, rel, dst in NUM_EDGES:
        for hop in (0, 1):
            keys += [f"hop{hop}.{part}.{src}:{rel}:{dst}" for part in ("indptr", "indices", "num_src", "edge_ids")]
            keys.append(f"hop{hop}.edge_features.{src}:{rel}:{dst}.weight")
    assert sorted(minibatch.to_message()) == sorted(keys)
    links = next(iter(slow_sampled({WRITES: [[1, 2]]}, fields={"w": {WRITES: [1]}}))).to_message()
    wanted = {"seeds.author:writes:paper", "compacted_seeds.author:writes:paper", "extra.author:writes:paper.w"}
    assert wanted <= links.keys()
    assert links["hop0.num_src.author:writes:paper"].shape == ()
    assert links["hop0.num_src.author:writes:paper"].dtype == torch.int64


@pytest.mark.parametrize(
    "seeds", [None, {CITES: [[1, 2], [2, 1]], OF: [[0, 0]]}, {"paper": [1], "field": [1]}], ids=str
)
def test_a_minibatch_survives_the_message_with_all_fields_and_has_the_twins_digest(seeds):
    minibatches = [full_typed()] if seeds is None else [*slow_sampled(seeds, batch_size=1)]  # of one type, then
    for minibatch in minibatches:
        message = minibatch.to_message()
        again = dp.MiniBatch.from_message(message)
        expect_the_same(minibatch, again)
        numbers = ("epoch", "index", "hop0.num_src", "hop1.num_src")
        kept = {key: tensor for key, tensor in message.items() if not key.startswith(numbers)}
        assert {key: id(tensor) for key, tensor in again.to_message().items() if key in kept} == {
            key: id(tensor) for key, tensor in kept.items()
        }
        assert minibatch.digest() == twin.digest(as_arrays(message))
    assert seeds is None or {len(ids) for ids in minibatches[0].seeds.values()} == {0, 1}


@st.composite
def typed_minibatches(draw) -> dp.MiniBatch:
    """Fields of any types, empty ones too; rows need not belong together, since a message does not ask."""
    count = iter(range(10**6))

    def tensor() -> torch.Tensor:
        return torch.tensor([next(count)] * draw(st.integers(0, 2)))

    def by(kinds, values=tensor):
        return {kind: values() for kind in sorted(draw(st.sets(kinds, max_size=3)))} or None

    of_seeds = draw(st.sampled_from([names, edge_types]))
    hop_types = sorted(draw(st.sets(edge_types, min_size=1, max_size=3)))
    num_hops = draw(st.integers(0, 3))
    hops = [
        {kind: dp.Block(tensor(), tensor(), next(count), tensor() if number else None) for kind in hop_types}
        for number in range(num_hops)
    ]

    def keyed(kinds):
        return {(kind, name): tensor() for kind in sorted(kinds) for name in sorted(draw(st.sets(names, max_size=2)))}

    of_edges = [keyed(hop_types) for _ in hops]
    extra = {name: rows for name in draw(st.sets(names, max_size=2)) if (rows := by(of_seeds))}
    return dp.MiniBatch(
        **{field: by(of_seeds) for field in ("seeds", "labels", "indexes", "timestamps", "compacted_seeds")},
        **{field: by(names) for field in ("input_nodes", "batch")},
        blocks=hops or None,
        node_features=keyed(draw(st.sets(names, max_size=2))) or None,
        edge_features=of_edges if any(of_edges) else None,
        extra=extra or None,
        epoch=next(count),
    )


@given(typed_minibatches(), st.randoms(use_true_random=False))
def test_any_types_and_names_survive_the_message_in_any_order_of_its_keys(minibatch, random):
    keys = [*(message := minibatch.to_message())]
    random.shuffle(keys)
    again = dp.MiniBatch.from_message({key: message[key] for key in keys})
    assert again.digest() == minibatch.digest()
    assert again.to_message().keys() == message.keys()
    for field in ("seeds", "labels", "input_nodes", "batch"):
        before, after = getattr(minibatch, field), getattr(again, field)
        assert before is after is None or [*before] == [*after]
    assert dp.MiniBatch.from_message(again.to_message()).digest() == minibatch.digest()


@given(st.dictionaries(st.text(alphabet="ab.:%23AEhop0seds", max_size=12), st.just(torch.tensor(1)), max_size=4))
def test_keys_of_any_text_are_read_or_refused_by_name(keys):
    message = {"epoch": torch.tensor(0), "index": torch.tensor(0), **keys}
    try:
        minibatch = dp.MiniBatch.from_message(message)
    except ValueError:
        with pytest.raises(ValueError, match=r"MiniBatch\.from_message: "):
            dp.MiniBatch.from_message(message)
    else:
        assert minibatch.to_message().keys() == message.keys()


def without(entries: dict, key) -> dict:
    return {name: value for name, value in entries.items() if name != key}


def test_mixtures_half_hops_and_other_keys_are_refused(refuses):
    message = full_typed().to_message()

    def refused(changed: dict) -> None:
        for in_order in (changed, dict(reversed(changed.items()))):
            refuses(ValueError, dp.MiniBatch.from_message, in_order)

    for key in (
        *("seeds", "node_features.feat", "hop0.indptr", "hop1.edge_features.weight", "extra.weight"),  # no type
        *("seeds.paper:cites:paper", "extra.paper:cites:paper.w"),  # of edges beside those of nodes
        *("input_nodes.paper:cites:paper", "node_features.a:r:b.w", "hop0.indptr.paper"),  # nodes and edges confused
        *("seeds.", "seeds.a:b", "seeds.a::b", "seeds.%41", "epoch.paper"),
        *("hop0.weights.a:r:b", "hop00.indptr.a:r:b", "hop0.indptr.a:r:b", "hop0.edge_features.a:r:b.w"),
        "hop0.num_src.field:of:paper",
    ):
        refused(message | {key: torch.ones(1)})
    for key in ("hop0.num_src.paper:by:author", "epoch"):
        refused(without(message, key))
    for old, new in (("hop1.indices.field:of", "hop1.indices.x:of"), ("hop1", "hop2")):
        refused({key.replace(old, new): value for key, value in message.items()})
    refused({key: value for key, value in message.items() if not (key.startswith("hop0") and ":by:" in key)})
    refuses(TypeError, dp.MiniBatch.from_message, message | {"seeds.paper": [1]})


def test_further_fields_survive_the_message_without_types_too():
    minibatch = next(iter(sampled())).replace(extra={"weight": torch.ones(4), "a.b:c": torch.arange(4)})
    assert {"extra.weight", "extra.a%2Eb%3Ac"} <= minibatch.to_message().keys()
    expect_the_same(minibatch, dp.MiniBatch.from_message(minibatch.to_message()))
    assert "extra={'weight': [4]" in repr(minibatch)
    assert minibatch.digest() != minibatch.replace(extra=None).digest()


# --- rows that belong together


def cut(by_type: dict, kind) -> dict:
    return {**by_type, kind: by_type[kind][1:]}


MISALIGNED = [  # what a stage changes
    lambda m: {"labels": cut(m.labels, "paper")},
    lambda m: {"labels": {"field": m.seeds["author"]}},
    lambda m: {"indexes": cut(m.indexes, "author")},
    lambda m: {"timestamps": {"author": torch.tensor(7)}},
    lambda m: {"extra": {"w": {"paper": torch.ones(3)}}},
    lambda m: {"seeds": cut(m.seeds, "paper")},
    lambda m: {"compacted_seeds": cut(m.compacted_seeds, "paper")},
    lambda m: {"compacted_seeds": without(m.compacted_seeds, "author")},
    lambda m: {"batch": cut(m.batch, "paper")},
    lambda m: {"input_nodes": {**m.input_nodes, "field": torch.arange(9)}, "batch": None},
    lambda m: {"blocks": [m.blocks[0], without(m.blocks[1], OF)]},
    lambda m: {"blocks": [{**hop, ("field", "of", "nothing"): hop[OF]} for hop in m.blocks]},
    lambda m: {"blocks": [{**hop, "of": hop[OF]} for hop in m.blocks]},
    lambda m: {"input_nodes": without(m.input_nodes, "field"), "batch": None},
    lambda m: {"node_features": cut(m.node_features, ("paper", "feat"))},
    lambda m: {"node_features": {("papr", "feat"): torch.ones(1)}},
    lambda m: {"node_features": {"feat": torch.ones(1)}},
    lambda m: {"edge_features": [m.edge_features[0], cut(m.edge_features[1], (CITES, "weight"))]},
    lambda m: {"edge_features": [{(BY, "w"): torch.ones(1)}, {("x", "w"): 1}]},
    lambda m: {"edge_features": m.edge_features[1:]},
    lambda m: {"seeds": {"paper": m.seeds["paper"], CITES: m.seeds["paper"]}},
]
MIXED = [
    lambda m: {"seeds": m.seeds["paper"]},
    lambda m: {"input_nodes": m.input_nodes["paper"]},
    lambda m: {"labels": m.labels["paper"]},
    lambda m: {"labels": {"paper": [0] * 4}},
    lambda m: {"seeds": {"paper": [0] * 4}},
    lambda m: {"extra": {"w": torch.ones(4)}},
    lambda m: {"blocks": [m.blocks[0][CITES]] * 2},
    lambda m: {"blocks": [m.blocks[0], m.blocks[1][CITES]]},
    lambda m: {"blocks": [{**m.blocks[0], OF: 3}, m.blocks[1]]},
]
TYPED = [  # in a minibatch without types
    lambda m: {"labels": {"paper": m.labels}},
    lambda m: {"extra": {"w": {"paper": m.labels}}},
    lambda m: {"compacted_seeds": {"paper": m.seeds}},
    lambda m: {"blocks": [{CITES: block} for block in m.blocks]},
    lambda m: {"seeds": {"paper": m.seeds}},
    lambda m: {"input_nodes": {"paper": m.input_nodes}},
]


@pytest.mark.parametrize(
    ("chain", "changes", "error"),
    [
        (lambda: FullMinibatch(), MISALIGNED, ValueError),
        (lambda: FullMinibatch(), MIXED, TypeError),
        (sampled, TYPED, TypeError),
    ],
    ids=["misaligned", "mixed", "typed"],
)
def test_a_stage_that_returns_what_does_not_belong_together_is_named(chain, changes, error, refuses):
    for change in changes:
        changing = chain().transform(lambda minibatch, change=change: minibatch.replace(**change(minibatch)))
        refuses(error, next, iter(changing))


def set_in(by_type: str, kind, change):
    """A stage that changes the rows of a type in place."""

    def changed(minibatch: dp.MiniBatch) -> dp.MiniBatch:
        rows = getattr(minibatch, by_type)
        rows[kind] = change(rows.get(kind))
        return minibatch

    return changed


def cut_extra(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    minibatch.extra["weight"]["paper"] = minibatch.extra["weight"]["paper"][:1]
    return minibatch


def drop_from_a_hop(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    del minibatch.blocks[1][OF]
    return minibatch


IN_PLACE = [
    set_in("labels", "paper", lambda rows: rows[:1]),
    set_in("indexes", "author", lambda rows: rows[:0]),
    set_in("timestamps", "field", lambda rows: torch.ones(1)),
    cut_extra,
    set_in("seeds", "paper", lambda rows: rows[:1]),
    set_in("seeds", "field", lambda rows: torch.arange(2)),
    set_in("input_nodes", "paper", lambda rows: rows[:2]),
    drop_from_a_hop,
]


def test_a_type_that_is_changed_in_place_is_refused_too(refuses):
    source = FullMinibatch().transform(lambda minibatch: minibatch.replace(batch=None, node_features=None))
    for change in IN_PLACE:
        refuses(ValueError, next, iter(source.transform(change).transform(lambda minibatch: minibatch.replace())))


class FullMinibatch(dp.stages.SeedStage):
    """Starts one minibatch that is sampled already."""

    rng_seed = 0
    num_steps = num_batches = 1

    def make_minibatch(self, rng):
        return full_typed()


def test_features_of_seeds_by_type_belong_to_the_seeds(refuses):
    def with_rows(count):
        rows = {("paper", "w"): torch.ones(count)}
        next(iter(typed_items({"paper": [1, 2]}).transform(lambda minibatch: minibatch.replace(node_features=rows))))

    with_rows(2)
    refuses(ValueError, with_rows, 3)
