"""MiniBatch where nodes and edges have types: views, message, digest, checks."""

from types import SimpleNamespace

import pytest
import torch
import twin
from hypothesis import given
from hypothesis import strategies as st
from pipelines import items, refused, sampled
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
from datapipes.minibatch import aligned

ODD = ["a", "a.b", "a:b", "%", "%3A", "100%25", "größe", "特徴", ":", ".", "::", "hop0", " "]

names = st.one_of(st.sampled_from(ODD), st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=5))
edge_types = st.tuples(names, names, names)


def full_minibatch(**arguments) -> dp.MiniBatch:
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
    minibatch = full_minibatch()
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


def test_map_tensors_reaches_every_tensor_once():
    minibatch = full_minibatch()
    seen = []
    mapped = minibatch.map_tensors(lambda tensor: seen.append(id(tensor)) or tensor.clone())
    tensors = [value for field in minibatch.__dataclass_fields__ for _, value in flat(getattr(minibatch, field))]
    assert sorted(seen) == sorted(id(value) for value in tensors if isinstance(value, torch.Tensor))
    expect_the_same(minibatch, mapped)
    assert minibatch.to("cpu").input_nodes["paper"] is minibatch.input_nodes["paper"]


def test_the_repr_shows_the_shapes_of_each_type():
    text = repr(full_minibatch())
    for part in ("seeds={'author': [1], 'paper': [4]}", "'empty': [0]", "extra={'weight': {'author': [1]", "num_dst=4"):
        assert part in text


def test_replace_leaves_the_old_minibatch():
    old = full_minibatch()
    before = old.digest()
    new = old.replace(extra=None, labels={"author": torch.zeros(1)})
    assert (old.digest(), new.extra) == (before, {})
    assert new.blocks is old.blocks


# --- message


def test_the_keys_are_those_of_the_page():
    minibatch = full_minibatch()
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
    minibatches = [full_minibatch()] if seeds is None else [*slow_sampled(seeds, batch_size=1)]  # of one type, then
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


def changed(message, old, new):
    """The message with `old` in its keys replaced."""
    return {key.replace(old, new): value for key, value in message.items()}


def without(entries: dict, key) -> dict:
    return {name: value for name, value in entries.items() if name != key}


def plus(**more):
    return lambda message: message | {key: torch.ones(1) for key in more["keys"]}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (plus(keys=["seeds"]), "'seeds' has no type, but others"),
        (plus(keys=["node_features.feat"]), r"'node_features\.feat' has no type"),
        (plus(keys=["hop0.indptr"]), r"'hop0\.indptr' has no type"),
        (plus(keys=["hop1.edge_features.weight"]), "has no type"),
        (plus(keys=["extra.weight"]), "has no type"),
        (plus(keys=["seeds.paper:cites:paper"]), "belong to node types and to edge types"),
        (plus(keys=["extra.paper:cites:paper.w"]), "belong to node types and to edge types"),
        (plus(keys=["input_nodes.paper:cites:paper"]), r"key 'input_nodes\.paper:cites:paper' is not one"),
        (plus(keys=["node_features.a:r:b.w"]), "is not one"),
        (plus(keys=["seeds."]), r"key 'seeds\.' is not one"),
        (plus(keys=["seeds.a:b"]), "is not one"),
        (plus(keys=["seeds.a::b"]), "is not one"),
        (plus(keys=["hop0.indptr.paper"]), "is not one"),
        (plus(keys=["hop0.weights.a:r:b"]), "is not one"),
        (plus(keys=["hop00.indptr.a:r:b"]), "is not one"),
        (plus(keys=["seeds.%41"]), "'%' begins none"),
        (plus(keys=["epoch.paper"]), "is not one"),
        (plus(keys=["hop0.indptr.a:r:b"]), r"hop 1 of 2 lacks \['indptr', 'indices', 'num_src'\].*\('a', 'r', 'b'\)"),
        (plus(keys=["hop0.edge_features.a:r:b.w"]), r"lacks \['hop0.indptr.a:r:b'\]"),
        (
            lambda message: changed(message, "hop1.indices.field:of", "hop1.indices.x:of"),
            r"hop 1 .*\['indices'\].*'field'",
        ),
        (lambda message: without(message, "hop0.num_src.paper:by:author"), r"hop 0 of 2 lacks \['num_src'\]"),
        (lambda message: changed(message, "hop1", "hop2"), "hop 1 of 2 lacks"),
        (
            lambda message: {k: v for k, v in message.items() if not (k.startswith("hop0") and ":by:" in k)},
            r"hop 0 of 2 lacks \['indptr', .*'by'",
        ),
        (lambda message: message | {"hop0.num_src.field:of:paper": torch.ones(1)}, "num_src"),
        (lambda message: without(message, "epoch"), r"lacks \['epoch'\]"),
    ],
)
def test_mixtures_half_hops_and_other_keys_are_refused_by_name(change, named):
    message = change(full_minibatch().to_message())
    with pytest.raises(ValueError, match=f"(?s)MiniBatch.from_message: .*{named}"):
        dp.MiniBatch.from_message(message)
    with pytest.raises(ValueError, match=f"(?s)MiniBatch.from_message: .*{named}"):
        dp.MiniBatch.from_message(dict(reversed(message.items())))


def test_what_is_no_tensor_is_refused():
    with pytest.raises(TypeError, match=r"'seeds\.paper' must be a tensor, got list"):
        dp.MiniBatch.from_message(full_minibatch().to_message() | {"seeds.paper": [1]})


def test_further_fields_survive_the_message_without_types_too():
    minibatch = next(iter(sampled())).replace(extra={"weight": torch.ones(4), "a.b:c": torch.arange(4)})
    assert {"extra.weight", "extra.a%2Eb%3Ac"} <= minibatch.to_message().keys()
    expect_the_same(minibatch, dp.MiniBatch.from_message(minibatch.to_message()))
    assert "extra={'weight': [4]" in repr(minibatch)
    assert minibatch.digest() != minibatch.replace(extra=None).digest()


# --- rows that belong together


def cut(by_type: dict, kind) -> dict:
    return {**by_type, kind: by_type[kind][1:]}


MISALIGNED = {  # the field: (what a stage changes, what the error says)
    "labels": (lambda m: {"labels": cut(m.labels, "paper")}, r"labels\['paper'\] \(\[3\]\) and 4 seeds"),
    "labels_of_no_seeds": (lambda m: {"labels": {"field": m.seeds["author"]}}, r"labels names 'field', but seeds"),
    "indexes": (lambda m: {"indexes": cut(m.indexes, "author")}, r"indexes\['author'\]"),
    "timestamps": (lambda m: {"timestamps": {"author": torch.tensor(7)}}, r"timestamps\['author'\]"),
    "extra": (lambda m: {"extra": {"w": {"paper": torch.ones(3)}}}, r"extra\['w'\]\['paper'\]"),
    "seeds": (lambda m: {"seeds": cut(m.seeds, "paper")}, r"labels\['paper'\]"),
    "compacted": (lambda m: {"compacted_seeds": cut(m.compacted_seeds, "paper")}, r"compacted_seeds\['paper'\]"),
    "compacted_types": (
        lambda m: {"compacted_seeds": without(m.compacted_seeds, "author")},
        r"compacted_seeds\['author'\] \(None\)",
    ),
    "batch": (lambda m: {"batch": cut(m.batch, "paper")}, r"batch\['paper'\]"),
    "num_src": (
        lambda m: {"input_nodes": {**m.input_nodes, "field": torch.arange(9)}, "batch": None},
        r"blocks\[0\]\[\('field', 'of', 'paper'\)\] \(num_src=\d\) and 9 input_nodes",
    ),
    "hops": (
        lambda m: {"blocks": [m.blocks[0], without(m.blocks[1], OF)]},
        r"blocks\[1\] names \[.*blocks\[0\] has",
    ),
    "nodes": (
        lambda m: {"input_nodes": without(m.input_nodes, "field"), "batch": None},
        r"blocks\[0\] names \('field'",
    ),
    "node_features": (lambda m: {"node_features": cut(m.node_features, ("paper", "feat"))}, r"\('paper', 'feat'\)\]"),
    "node_type": (lambda m: {"node_features": {("papr", "feat"): torch.ones(1)}}, r"names \('papr', 'feat'\)"),
    "name_alone": (lambda m: {"node_features": {"feat": torch.ones(1)}}, r"names 'feat'.*\(type, name\)"),
    "edge_features": (
        lambda m: {"edge_features": [m.edge_features[0], cut(m.edge_features[1], (CITES, "weight"))]},
        r"edge_features\[1\]\[\(\('paper', 'cites', 'paper'\), 'weight'\)\]",
    ),
    "edge_type": (lambda m: {"edge_features": [{(BY, "w"): torch.ones(1)}, {("x", "w"): 1}]}, r"edge_features\[\d\]"),
    "edge_hops": (lambda m: {"edge_features": m.edge_features[1:]}, r"edge_features \(1\) and 2 blocks"),
    "kinds": (lambda m: {"seeds": {"paper": m.seeds["paper"], CITES: m.seeds["paper"]}}, "node types or edge types"),
}


@pytest.mark.parametrize("name", MISALIGNED)
def test_a_stage_that_returns_rows_that_do_not_belong_together_is_named(name):
    change, found = MISALIGNED[name]
    source = FullMinibatch()
    with refused(ValueError, stage="transform: returned", found=found, allowed="equally many rows|only these|must be"):
        next(iter(source.transform(lambda minibatch: minibatch.replace(**change(minibatch)))))


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


IN_PLACE = {  # (the change, what the error says)
    "labels": (set_in("labels", "paper", lambda rows: rows[:1]), r"labels\['paper'\] \(\[1\]\) and 4 seeds"),
    "indexes": (set_in("indexes", "author", lambda rows: rows[:0]), r"indexes\['author'\] \(\[0\]\) and 1 seeds"),
    "timestamps": (set_in("timestamps", "field", lambda rows: torch.ones(1)), "timestamps names 'field', but seeds"),
    "extra": (cut_extra, r"extra\['weight'\]\['paper'\] \(\[1\]\) and 4 seeds"),
    "seeds": (set_in("seeds", "paper", lambda rows: rows[:1]), r"labels\['paper'\] \(\[4\]\) and 1 seeds"),
    "seeds_of_a_type": (set_in("seeds", "field", lambda rows: torch.arange(2)), r"compacted_seeds\['field'\] \(None\)"),
    "input_nodes": (
        set_in("input_nodes", "paper", lambda rows: rows[:2]),
        r"blocks\[0\]\[\('paper', 'by', 'author'\)\] \(num_src=\d+\) and 2 input_nodes",
    ),
    "blocks": (drop_from_a_hop, r"blocks\[1\] names \[.*blocks\[0\] has"),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_type_that_is_changed_in_place_is_refused_too(name):
    change, found = IN_PLACE[name]
    chain = FullMinibatch().transform(lambda minibatch: minibatch.replace(batch=None, node_features=None))
    chain = chain.transform(change).transform(lambda minibatch: minibatch.replace())
    with refused(
        ValueError,
        stage="transform: returned",
        found=found,
        allowed="equally many rows|only these",
        remedy="Change both",
    ):
        next(iter(chain))


def test_blocks_that_fit_are_told_from_those_that_have_to_be_looked_at():
    minibatch = full_minibatch()
    blocks, nodes = minibatch.blocks, minibatch.input_nodes
    assert aligned._blocks_fit(blocks, nodes)
    others = [
        [blocks[0], without(blocks[1], OF)],
        [blocks[0][CITES]] * 2,
        [{**blocks[0], OF: 3}, blocks[1]],
        [{**hop, ("field", "of", "nothing"): hop[OF]} for hop in blocks],
        [{**hop, "of": hop[OF]} for hop in blocks],
    ]
    for each in others:
        assert not aligned._blocks_fit(each, nodes)
        with pytest.raises((TypeError, ValueError), match="s: returned a minibatch whose blocks"):
            aligned._check_blocks(SimpleNamespace(name="s"), each, nodes)
    assert not aligned._blocks_fit(blocks, without(nodes, "field"))


class FullMinibatch(dp.stages.SeedStage):
    """Starts one minibatch that is sampled already."""

    rng_seed = 0
    num_steps = num_batches = 1

    def make_minibatch(self, rng):
        return full_minibatch()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda m: {"seeds": m.seeds["paper"]}, "seeds is a Tensor; a dict by type"),
        (lambda m: {"input_nodes": m.input_nodes["paper"]}, "input_nodes is a Tensor; a dict by type"),
        (lambda m: {"labels": m.labels["paper"]}, "labels is a Tensor; a dict by type"),
        (lambda m: {"labels": {"paper": [0] * 4}}, r"labels\['paper'\] is a list; a tensor"),
        (lambda m: {"seeds": {"paper": [0] * 4}}, r"seeds\['paper'\] is a list; a tensor"),
        (lambda m: {"extra": {"w": torch.ones(4)}}, r"extra\['w'\] is a Tensor; a dict by type"),
        (lambda m: {"blocks": [m.blocks[0][CITES]] * 2}, r"blocks\[0\] is a Block; a dict by type"),
        (lambda m: {"blocks": [m.blocks[0], m.blocks[1][CITES]]}, r"blocks\[1\] is a Block; a dict by type"),
    ],
)
def test_a_mixture_of_both_forms_is_refused(change, found):
    with refused(TypeError, stage="transform: returned", found=found, allowed="is needed"):
        next(iter(FullMinibatch().transform(lambda minibatch: minibatch.replace(**change(minibatch)))))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda m: {"labels": {"paper": m.labels}}, "labels is a dict; a tensor"),
        (lambda m: {"extra": {"w": {"paper": m.labels}}}, r"extra\['w'\] is a dict; a tensor"),
        (lambda m: {"compacted_seeds": {"paper": m.seeds}}, "compacted_seeds is a dict; a tensor"),
        (lambda m: {"blocks": [{CITES: block} for block in m.blocks]}, r"blocks\[0\] is a dict; a Block"),
        (lambda m: {"seeds": {"paper": m.seeds}}, "labels is a Tensor; a dict by type"),
        (lambda m: {"input_nodes": {"paper": m.input_nodes}}, "seeds is a Tensor; a dict by type"),
    ],
)
def test_types_in_a_minibatch_without_are_refused(change, found):
    with refused(TypeError, stage="transform: returned", found=found, allowed="is needed"):
        next(iter(sampled().transform(lambda minibatch: minibatch.replace(**change(minibatch)))))


def test_further_fields_belong_to_the_seeds_without_types_too():
    with refused(ValueError, stage="transform", found=r"extra\['w'\] \(\[3\]\)", allowed="4 seeds"):
        next(iter(items().transform(lambda minibatch: minibatch.replace(extra={"w": torch.ones(3)}))))


def test_features_of_seeds_by_type_belong_to_the_seeds():
    chain = typed_items({"paper": [1, 2]})
    for rows, allowed in ((torch.ones(2), None), (torch.ones(3), "2 seeds")):
        stage = chain.transform(lambda minibatch, rows=rows: minibatch.replace(node_features={("paper", "w"): rows}))
        if allowed is None:
            next(iter(stage))
        else:
            with refused(ValueError, stage="transform", found=r"\('paper', 'w'\)", allowed=allowed):
                next(iter(stage))


def test_copies_keep_types():
    minibatch = full_minibatch()
    message = next(iter(FullMinibatch().copy_to("meta"))).to_message()
    expected = minibatch.to_message()
    assert {tensor.device.type for tensor in message.values() if tensor.ndim > 0} == {"meta"}
    assert {key: tensor.shape for key, tensor in message.items()} == {key: t.shape for key, t in expected.items()}
    assert next(iter(FullMinibatch().copy_to("cpu"))).digest() == minibatch.digest()
