"""Padder: padding is where the twin has it, changes no value of a real row, and gives few shapes."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from dist_graphs import small_parts, typed_parts
from hypothesis import assume, given
from hypothesis import strategies as st
from link_chains import pairs_chain
from pipelines import (
    as_it_is,
    assert_no_bit_changes,
    digests,
    first,
    items,
    keep_most,
    refused,
    sampled,
    small_graph,
    small_store,
)
from strategies import ID_DTYPES, csc_graphs, random_graph, typed_graphs, typed_seeds
from timed_pipelines import temporal
from torchdata.nodes import IterableWrapper
from twin_cases import typed_fanouts, typed_graph_of, typed_set_of
from twin_padding import by_type, expect_padded, outputs_and_gradients
from typed_pipelines import CITES, NUM_NODES, WRITES, typed_graph, typed_items, typed_sampled

import datapipes as dp
from datapipes import _core
from datapipes.sampling.padder import _split

BUCKET = {"seeds": 9, "nodes": [12, 20, 30], "edges": [30, 60]}


def contract_chain() -> dp.Stage:
    return sampled().pad([BUCKET])


def contract_forms() -> tuple[dp.Stage, dp.Stage]:
    return contract_chain(), dp.Padder(sampled(), [BUCKET])


def pairs(**options: object) -> dp.Stage:
    return pairs_chain(labels=torch.arange(22) % 2).sample_neighbor(small_graph(), [3, 2], **options)


def rows_of_types(corrupt: str) -> dp.Stage:
    """Rows of source, destination and two negatives, of a type whose sources are no destinations."""
    pairs = typed_items(links=True).item_set.item_sets[WRITES][:][0]
    of_one_type = dp.ItemSampler(dp.HeteroItemSet({WRITES: dp.ItemSet(pairs)}), 4, shuffle=True, seed=5)
    return of_one_type.sample_uniform_negative(typed_graph(), 2, corrupt=corrupt, form="rows")


CHAINS = {
    "nodes": sampled,
    "without edge ids": lambda: sampled(return_edge_ids=False),
    "int32": lambda: sampled(graph=small_graph(torch.int32)),
    "new": lambda: sampled(frontier="new"),
    "one hop": lambda: sampled(fanouts=[4]),
    "five hops": lambda: sampled(fanouts=[1, 1, 2, 1, 2]),
    "trees": lambda: sampled(disjoint=True),
    "times": temporal,
    "induced": lambda: sampled(subgraph_type="induced"),
    "induced trees": lambda: sampled(subgraph_type="induced", disjoint=True),
    "bidirectional": lambda: sampled(subgraph_type="bidirectional", return_edge_ids=False),
    "layers": lambda: items().sample_layer_neighbor(small_graph(), [5, 5]),
    "in subgraph": lambda: items().sample_in_subgraph(small_graph()),
    "pairs": pairs,
    "pairs, excluded": lambda: pairs().exclude_seed_edges(),
    "negatives": lambda: pairs_chain().sample_uniform_negative(small_graph(), 2).sample_neighbor(small_graph(), [3, 2]),
    "types": typed_sampled,
    "types, new": lambda: typed_sampled(frontier="new"),
    "types, trees": lambda: typed_sampled(disjoint=True),
    "types, induced": lambda: typed_sampled(subgraph_type="induced"),
    "types, one of them drawn": lambda: typed_sampled(fanouts=[{WRITES: 3}, {WRITES: 2}]),
    "links of types": lambda: typed_sampled(typed_items(links=True)),
    "rows of types": lambda: typed_sampled(rows_of_types("dst"), fanouts=[{WRITES: 3}, {WRITES: 2}]),
    "rows of types, sources": lambda: typed_sampled(rows_of_types("src"), fanouts=[{WRITES: 3}, {WRITES: 2}]),
    "parts": lambda: sampled(graph=small_parts()),
    "two parts": lambda: sampled(graph=small_parts(2)),
    "types, parts": lambda: typed_sampled(graph=typed_parts()),
}
LAYERS = pytest.mark.parametrize("name", CHAINS)


# --- where padding lies


@LAYERS
@pytest.mark.parametrize("way", ["by the sampler", "behind a stage"])
def test_padding_lies_where_the_twin_has_it(name, way):
    pipe = CHAINS[name]()
    sizes = dp.measure_sizes(pipe, 6)
    chain = CHAINS[name]() if way == "by the sampler" else CHAINS[name]().transform(as_it_is)
    for before, after in zip(pipe, chain.pad(sizes), strict=True):
        expect_padded(before, after, sizes[0], negative_end=0 if "sources" in name else 2)
        assert after.bucket == 0
        for masks, minibatch in ((before.masks, before), (after.masks, after)):
            for of, is_real in by_type(masks.seeds).items():
                count = len(by_type(before.seeds)[of])
                assert is_real.tolist() == [row < count for row in range(len(by_type(minibatch.seeds)[of]))]
            for of, is_real in by_type(masks.nodes).items():
                assert by_type(minibatch.input_nodes)[of][is_real].tolist() == by_type(before.input_nodes)[of].tolist()
            for hop, real_hop, mask in zip(minibatch.blocks, before.blocks, masks.edges, strict=True):
                for of, is_real in by_type(mask).items():
                    num_real = by_type(real_hop)[of].num_edges
                    assert is_real.tolist() == [edge < num_real for edge in range(by_type(hop)[of].num_edges)]


@given(st.data(), csc_graphs(min_nodes=1))
def test_drawn_minibatches_are_padded_as_the_twin_has_it(data, arrays):
    graph = dp.CSCGraph(*arrays)
    ids = torch.tensor(data.draw(st.lists(st.integers(0, arrays.num_nodes - 1), min_size=1, max_size=6)))
    hops = data.draw(st.lists(st.integers(-1, 3), min_size=1, max_size=4))
    options = {"disjoint": data.draw(st.booleans()), "frontier": data.draw(st.sampled_from(["all", "new"]))}
    pipe = dp.ItemSampler(dp.ItemSet(ids), 3, seed=1).sample_neighbor(graph, hops, return_edge_ids=True, **options)
    expect_drawn(data, pipe)


@given(st.data(), typed_graphs())
def test_drawn_minibatches_of_types_are_padded_as_the_twin_has_it(data, arrays):
    graph = typed_graph_of(arrays)
    seeds = data.draw(typed_seeds(arrays))
    assume(seeds and all(seeds.values()))
    pipe = dp.ItemSampler(typed_set_of(seeds), 3, seed=1)
    expect_drawn(data, pipe.sample_neighbor(graph, data.draw(typed_fanouts(graph)), disjoint=data.draw(st.booleans())))


def expect_drawn(data, pipe: dp.Stage) -> None:
    """Measure one minibatch of a chain, and pad all of them: the others take multiples of its sizes."""
    minibatches = list(pipe)
    if not minibatches:
        return
    (bucket,) = dp.measure_sizes(pipe, data.draw(st.integers(1, 2)), quantile=0.5)
    chain = pipe if data.draw(st.booleans()) else pipe.transform(as_it_is)
    for before, after in zip(minibatches, chain.pad([bucket]), strict=True):
        expect_padded(before, after, bucket, after.bucket + 1)
        assert dp.MiniBatch.from_message(after.to_message()).digest() == after.digest()


# --- what models make of it


@pytest.mark.parametrize("how", ["sum", "mean", "max", "attention"])
@pytest.mark.parametrize(
    "name",
    ["nodes", "trees", "times", "induced", "pairs", "negatives", "types", "links of types", "parts", "types, parts"],
)
def test_real_rows_have_the_values_and_gradients_of_a_minibatch_without_padding(name, how):
    num_nodes = NUM_NODES if "types" in name else {None: 40}
    padded = CHAINS[name]().pad(dp.measure_sizes(CHAINS[name](), 6))
    for before, after in zip(CHAINS[name](), padded, strict=True):
        expected, found = (outputs_and_gradients(given, num_nodes, how, torch.square) for given in (before, after))
        for one, other in zip(expected, found, strict=True):
            assert one.keys() == other.keys()
            for key in one:
                torch.testing.assert_close(other[key], one[key], rtol=1e-5, atol=1e-6)
    assert all(float(gradient.abs().sum()) > 0 for gradient in found[1].values() if gradient.numel())


def test_with_the_mask_norms_and_pooling_see_real_rows_only():
    pipe = sampled()
    for before, after in zip(
        pipe.fetch_feature(small_store(), ["feat"]),
        pipe.pad(dp.measure_sizes(pipe, 6)).fetch_feature(small_store(), ["feat"]),
        strict=True,
    ):
        x, m = after.node_features["feat"], after.masks.nodes[:, None]
        plain = before.node_features["feat"]
        mean = (x * m).sum(0) / m.sum()
        normed = (x - mean) / (((x - mean) ** 2 * m).sum(0) / m.sum() + 1e-5).sqrt()
        torch.testing.assert_close(normed[m[:, 0]], torch.nn.BatchNorm1d(3)(plain).detach())
        torch.testing.assert_close((x * m).sum(0) / m.sum(), plain.mean(0))


@LAYERS
def test_a_sampler_that_knows_the_buckets_gives_the_same(name):
    sizes = dp.measure_sizes(CHAINS[name](), 6, quantile=0.5, buckets=3)
    sizes = sizes[:2]
    expected = digests(CHAINS[name]().transform(as_it_is).pad(sizes))
    assert digests(CHAINS[name]().pad(sizes)) == expected
    buckets = [minibatch.bucket for minibatch in CHAINS[name]().pad(sizes)]
    assert all(number >= 0 for number in buckets)
    pipe = CHAINS[name]().pad(sizes)
    assert dp.measure_sizes(pipe, 6) == dp.measure_sizes(CHAINS[name](), 6)
    assert first(pipe.source).bucket is None


def test_a_padded_chain_is_rebuilt_over_other_stages():
    sizes = dp.measure_sizes(sampled(), 6)
    other = dp.ItemSampler(items().item_set, 4, shuffle=True, seed=8)
    expected = digests(
        other.sample_neighbor(small_graph(), [3, 2], return_edge_ids=True).transform(as_it_is).pad(sizes)
    )
    assert digests(sampled().pad(sizes).replaced(dp.ItemSampler, lambda _: other)) == expected
    assert digests(sampled().pad(sizes).with_sources(sampled().replaced(dp.ItemSampler, lambda _: other))) == expected
    for cut in ("pad", "sample_neighbor"):
        with dp.DataLoader(sampled().pad(sizes), 2, worker_method="thread", cut=cut) as loader:
            assert digests(loader) == digests(sampled().pad(sizes))


def test_a_sampler_with_several_readers_gives_all_of_them_the_same_nodes():
    sizes, pipe = dp.measure_sizes(sampled(), 6), sampled()

    def both(plain: dp.MiniBatch, padded: dp.MiniBatch) -> dp.MiniBatch:
        real = padded.input_nodes[padded.input_nodes >= 0]
        assert torch.equal(real, plain.input_nodes)
        return padded

    joined = dp.MiniBatchTransformer([pipe, pipe.pad(sizes)], both)
    assert digests(joined) == digests(sampled().pad(sizes))


def test_a_sampler_with_methods_of_its_own_is_asked_by_them():
    class OwnHops(dp.CSCGraph):
        def hops(self, plan, seeds, keys, choice, trees=None):
            return super().hops(plan, seeds.flip(0), keys, choice, trees)

    graph = small_graph()
    own_graph = OwnHops(graph.indptr, graph.indices)
    pipe = items().sample_neighbor(own_graph, [3, 2])
    sizes = dp.measure_sizes(pipe, 6)
    assert digests(pipe.pad(sizes)) == digests(pipe.transform(as_it_is).pad(sizes))
    changed = items().sample_neighbor(graph, [3, 2])
    changed.sample = lambda seeds, rng: dp.NeighborSampler.sample(changed, seeds.flip(0), rng)
    found = [minibatch.input_nodes for minibatch in changed.pad(sizes)]
    assert all(map(torch.equal, found, [minibatch.input_nodes for minibatch in pipe.pad(sizes)]))


def test_changed_weights_are_refused_behind_pad_too():
    graph = small_graph()
    graph.edge_attributes["w"] = torch.ones(graph.num_edges)
    pipe = items().sample_neighbor(graph, [3, 2], prob_name="w")
    sizes = dp.measure_sizes(pipe, 6)
    graph.edge_attributes["w"][0] = 5.0
    with pytest.raises(ValueError, match="changed in place"):
        first(pipe.pad(sizes))


def test_trees_are_those_of_the_types_in_any_order_of_the_seeds():
    def turned(minibatch: dp.MiniBatch) -> dp.MiniBatch:
        return minibatch.replace(seeds=dict(reversed(minibatch.seeds.items())))

    pipe = typed_items().transform(turned).sample_neighbor(typed_graph(), [3, 2], disjoint=True)
    for before, after in zip(pipe, pipe.pad(dp.measure_sizes(pipe, 6)), strict=True):
        seeds = {kind: len(ids) for kind, ids in sorted(after.seeds.items())}
        starts = dict(zip(seeds, itertools.accumulate([0, *seeds.values()]), strict=False))
        real = {kind: len(ids) for kind, ids in sorted(before.seeds.items())}
        flat = [starts[kind] + i for kind, count in real.items() for i in range(count)]
        for kind, trees in before.batch.items():
            masks = after.masks.nodes[kind]
            assert after.batch[kind][masks].tolist() == [flat[tree] for tree in trees.tolist()]


def test_large_minibatches_are_the_same_for_any_threads_and_any_way():
    graph = dp.CSCGraph(*map(torch.from_numpy, random_graph(3_000, 60_000, rng_seed=2)))

    def chain(frontier: str) -> dp.Stage:
        return dp.ItemSampler(dp.ItemSet(3_000), 900, seed=1).sample_neighbor(graph, [9, 10], frontier=frontier)

    for frontier in ("all", "new"):
        sizes = dp.measure_sizes(chain(frontier), 4, buckets=2)
        expected = digests(chain(frontier).transform(as_it_is).pad(sizes))
        assert_no_bit_changes(lambda frontier=frontier, sizes=sizes: chain(frontier).pad(sizes))
        assert digests(chain(frontier).pad(sizes)) == expected


class Backwards(dp.NeighborSampler):
    """A sampler of a user, with an order of seeds of its own."""

    def sample(self, seeds, rng, trees=None):
        return super().sample(seeds.flip(0), rng, trees)


def test_a_sampler_of_a_user_is_padded_too():
    pipe = Backwards(items(), small_graph(), [3, 2])
    sizes = dp.measure_sizes(pipe, 6)
    for before, after in zip(pipe, pipe.pad(sizes), strict=True):
        expect_padded(before, after, sizes[0])


def test_workers_and_threads_change_no_bit():
    sizes = dp.measure_sizes(typed_sampled(), 6)
    assert_no_bit_changes(lambda: typed_sampled().pad(sizes))
    assert digests(typed_sampled(graph=typed_parts()).pad(sizes)) == digests(typed_sampled().pad(sizes))


def test_a_dropped_minibatch_stays_dropped():
    sizes = dp.measure_sizes(sampled(), 6)
    kept = [minibatch.index for minibatch in sampled().transform(keep_most).pad(sizes)]
    assert kept == [0, 1, 3, 4, 5]
    assert len(dp.measure_sizes(sampled().transform(keep_most), 12, buckets=12)) > 1


# --- buckets


def shapes(minibatch: dp.MiniBatch) -> list[tuple[str, list[int]]]:
    return [(name, list(tensor.shape)) for name, tensor in minibatch.to_message().items()]


def test_minibatches_of_a_bucket_have_the_same_shapes_and_what_fits_none_takes_a_multiple_of_the_last():
    tiny = {"seeds": 2, "nodes": [2, 2, 2], "edges": [1, 1]}
    chains = [sampled().pad(dp.measure_sizes(sampled(), 6, quantile=0.5, buckets=3)), sampled().pad([tiny])]
    for pipe in chains:
        shapes_of: dict[int, list[object]] = {}
        for minibatch in itertools.chain(pipe, pipe):
            shapes_of.setdefault(minibatch.bucket, []).append(shapes(minibatch))
        assert len(shapes_of) > 1
        assert all(every == every[:1] * len(every) for every in shapes_of.values())
    for before, after in zip(sampled(), sampled().pad([tiny]), strict=True):
        expect_padded(before, after, tiny, after.bucket + 1)
        with pytest.raises(AssertionError):
            expect_padded(before, after, tiny, after.bucket)


def test_the_loader_counts_the_minibatches_of_each_bucket():
    sizes = [dp.measure_sizes(sampled(), 6, quantile=0.5, buckets=2)[0]]
    expected = {}
    for minibatch in sampled().pad(sizes):
        name = "minibatches of bucket 0" if minibatch.bucket == 0 else "minibatches beyond the last bucket"
        expected[name] = expected.get(name, 0) + 1
    assert len(expected) == 2
    for workers in (0, 2):
        with dp.DataLoader(sampled().pad(sizes), workers, worker_method="thread") as loader:
            assert digests(loader) == digests(sampled().pad(sizes))
            assert loader.stats()["padding"] == expected
            assert all(f"{count} {name}" in str(loader.stats()) for name, count in expected.items())


def test_the_loader_warns_once_if_most_minibatches_are_beyond_the_last_bucket():
    fitting, tiny = dp.measure_sizes(sampled(), 6), [{"seeds": 2, "nodes": [2, 2, 2], "edges": [1, 1]}]
    for sizes, warned in ((fitting, 0), (tiny, 1)):
        with warnings.catch_warnings(record=True) as caught, dp.DataLoader(sampled().pad(sizes)) as loader:
            warnings.simplefilter("always")
            for _ in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), 60):
                pass
        texts = [str(each.message) for each in caught if "bucket" in str(each.message)]
        assert len(texts) == warned
        assert not warned or "data_loader: 20 of 20 minibatches are larger than the last bucket" in texts[0]


def test_buckets_split_minibatches_so_that_there_is_least_padding():
    generator = np.random.default_rng(3)
    for count in (1, 2, 5, 9):
        counts = generator.integers(0, 30, (count, 3))
        ordered = counts[counts.sum(1).argsort(kind="stable")]
        largest = np.maximum.accumulate(ordered)
        for buckets in (1, 2, 3):
            cuts = itertools.combinations(range(count - 1), min(buckets, count) - 1)
            costs = []
            for cut in cuts:
                ends = [-1, *cut, count - 1]
                costs.append(sum((b - a) * largest[b].sum() for a, b in itertools.pairwise(ends)))
            found = _split(counts, buckets, 0.0)
            first_fit = [next(row for row in found if (size <= row).all()).sum() for size in ordered]
            assert sum(first_fit) <= min(costs)
            assert (np.diff(found, axis=0) >= 0).all()


def test_sizes_are_estimated_beyond_the_minibatches_that_were_measured_and_no_state_changes():
    pipe = sampled()
    before = pipe.state_dict()
    (half,), (most,) = dp.measure_sizes(pipe, 6, quantile=0.5), dp.measure_sizes(pipe, 6, quantile=0.9999)
    assert pipe.state_dict() == before
    # Every minibatch but the last has 4 seeds, and there is a row of padding.
    assert half["seeds"] == most["seeds"] == half["nodes"][0] == most["nodes"][0] == 5
    assert most["edges"][1] > half["edges"][1]
    assert dp.measure_sizes(pipe.pad([BUCKET]).fetch_feature(small_store(), ["feat"]), 6) == dp.measure_sizes(pipe, 6)
    for ahead in (dp.DataLoader(pipe), items().prefetch().sample_neighbor(small_graph(), [3, 2])):
        assert dp.measure_sizes(ahead, 6) == dp.measure_sizes(pipe, 6)
    assert len(dp.measure_sizes(pipe, 14, buckets=3)) == 3  # of the second epoch too
    typed = dp.measure_sizes(typed_sampled(), 6)
    (one_type,) = dp.measure_sizes(typed_sampled(fanouts=[{WRITES: 3}, {WRITES: 2}]), 6)
    assert [{*layer} for layer in one_type["nodes"]] == [{*NUM_NODES}, {"author"}, {"author"}]  # only what a hop finds
    assert CITES in typed[0]["edges"][0]
    texts = [{**one_type, "edges": [{":".join(WRITES): count for count in hop.values()} for hop in one_type["edges"]]}]
    assert typed_sampled().pad(texts).sizes == [one_type]


def test_all_ranks_measure_the_same():
    sizes = []
    for rank in range(2):
        items_of_rank = dp.DistributedItemSampler(dp.ItemSet(40), 4, rank=rank, world_size=2, shuffle=True, seed=5)
        sizes.append(dp.measure_sizes(items_of_rank.sample_neighbor(small_graph(), [3, 2]), 4))
    assert sizes[0] == sizes[1]


def test_measured_minibatches_are_spread_over_the_epoch():
    by_degree = small_graph().indptr.diff().argsort()
    pipe = dp.ItemSampler(dp.ItemSet(by_degree), 2).sample_neighbor(small_graph(), [-1])
    numbers = [minibatch.blocks[0].num_edges for minibatch in pipe]
    spread = [numbers[i * len(numbers) // 5] for i in range(5)]
    assert dp.measure_sizes(pipe, 5, quantile=0.5)[0]["edges"][0] == max(spread) + 8
    assert max(spread) > max(numbers[:5])


def test_a_sampler_says_whether_its_minibatches_have_one_layer():
    ring = dp.CSCGraph.from_edge_index(torch.tensor([[0, 1, 2, 3], [1, 0, 3, 4]]), 5)  # 0 and 1 find only each other
    pipe = dp.ItemSampler(dp.ItemSet(torch.tensor([0, 1, 3, 4])), 2).sample_neighbor(ring, [2])
    sizes = dp.measure_sizes(pipe, 1)
    for before, after in zip(pipe, pipe.pad(sizes), strict=True):
        expect_padded(before, after, sizes[0])


def test_compilations_are_as_many_as_buckets():
    compiled = []

    def count(module, inputs):
        compiled.append(module)
        return module.forward

    torch._dynamo.reset()
    weights = [torch.randn(3, 3, generator=torch.Generator().manual_seed(i)) for i in range(2)]

    @torch.compile(dynamic=False, backend=count)
    def step(rows, hops):
        for weight, (indptr, sources, destinations) in zip(weights, hops, strict=True):
            num_dst = indptr.shape[0] - 1
            summed = rows.new_zeros((num_dst, 3)).index_add(0, destinations, rows[sources])
            rows = (summed / indptr.diff().clamp(min=1).unsqueeze(1)) @ weight + rows[:num_dst]
        return rows

    for buckets in (1, 2):
        compiled.clear()
        torch._dynamo.reset()
        pipe = sampled(items(batch_size=3))
        sizes = dp.measure_sizes(pipe, 64, quantile=0.999999, buckets=buckets)
        pipe = pipe.pad(sizes).fetch_feature(small_store(), ["feat"])
        seen = set()
        for minibatch in itertools.chain.from_iterable(pipe for _ in range(5)):
            step(minibatch.node_features["feat"], [(block.indptr, *block.edge_index) for block in minibatch.blocks])
            seen.add(minibatch.bucket)
        assert len(compiled) == len(seen) == buckets


# --- what it refuses


def test_what_is_refused(refuses):
    pipe, graph = sampled(), small_graph()
    for sizes in (
        BUCKET,
        [],
        "nodes",
        None,
        [BUCKET, 5],
        [{"seeds": 9}],
        [{**BUCKET, "nodes": 4}],
        [{**BUCKET, "edges": []}],
    ):
        refuses(TypeError, pipe.pad, sizes)
    for bucket in ({**BUCKET, "seeds": 0}, {**BUCKET, "nodes": [1, -2, 3]}, {**BUCKET, "edges": [{("a", "b"): 3}]}):
        refuses(ValueError, pipe.pad, [bucket])
    refuses(ValueError, pipe.pad, [BUCKET, {**BUCKET, "edges": [30]}])
    refuses(ValueError, pipe.fetch_feature(small_store(), ["feat"]).pad, [BUCKET])
    refuses(ValueError, items().pad, [BUCKET])
    refuses(ValueError, pipe.pad, [{**BUCKET, "edges": [30, 60, 90]}])
    three = {"seeds": 9, "nodes": [12, 20, 30, 40], "edges": [30, 60, 90]}
    refuses(ValueError, first, pipe.pad([three]))
    refuses(ValueError, first, typed_sampled().pad([BUCKET]))
    refuses(ValueError, first, pipe.pad([{"seeds": 9, "nodes": [40], "edges": [60]}]))
    for behind in ("pad", "sample_neighbor", "exclude_seed_edges", "sample_uniform_negative"):
        arguments = {"pad": ([BUCKET],), "sample_neighbor": (graph, [2]), "sample_uniform_negative": (graph, 1)}
        refuses(ValueError, getattr(pairs().pad([BUCKET]), behind), *arguments.get(behind, ()))
    padded = first(pairs().pad(dp.measure_sizes(pairs(), 6)))
    for stage in (pairs(), pairs().exclude_seed_edges(), pairs().pad([BUCKET])):
        refuses(ValueError, stage.transform, padded)
    refuses(ValueError, pipe.pad, [BUCKET, BUCKET])
    refuses(ValueError, pipe.pad, [BUCKET, {**BUCKET, "seeds": 5}])
    with refused(MemoryError, stage="pad", found="nodes needs", allowed="are left by"):
        pipe.pad([BUCKET, {**BUCKET, "nodes": [12, 20, 2**50]}])
    given = first(pipe)
    refuses(ValueError, pipe.pad([BUCKET]).transform, given.replace(labels=torch.zeros(4, dtype=torch.uint8)))
    refuses(ValueError, pipe.pad([BUCKET]).transform, given.replace(blocks=[]))
    refuses(ValueError, first, pipe.copy_to("meta").pad([BUCKET]))
    given = first(pipe.fetch_feature(small_store(), ["feat"]))
    refuses(ValueError, pipe.pad([BUCKET]).transform, given)


def test_what_measure_sizes_refuses(refuses):
    pipe = sampled()
    refuses(TypeError, dp.measure_sizes, [1])
    refuses(ValueError, dp.measure_sizes, items())
    for arguments in ({"minibatches": 0}, {"buckets": 0}, {"quantile": 1}, {"quantile": 1.0}, {"quantile": 0.3}):
        refuses(ValueError, dp.measure_sizes, pipe, **arguments)
    refuses(ValueError, dp.measure_sizes, pipe.transform(lambda minibatch: None))
    refuses(ValueError, dp.measure_sizes, dp.FromNode(IterableWrapper([])))


@pytest.mark.parametrize("dtype", ID_DTYPES)
def test_the_kernel_refuses_blocks_and_sizes_that_do_not_fit(refuses, dtype):
    def padded(indptr=(0, 1, 2), indices=(0, 2), ids=None, to=((2,), (3,)), from_=((2, 1), (3, 2)), num_edges=4):
        numbers = np.array(indptr, np.int64), np.array(indices, dtype)
        return _core.pad_block(*numbers, None if ids is None else np.array(ids), to, from_, num_edges)

    indptr, indices, ids = padded()
    assert (indptr.tolist(), indices.tolist(), ids) == ([0, 1, 2, 4], [0, 3, 4, 4], None)
    refuses(ValueError, padded, indptr=(0, 1))
    refuses(ValueError, padded, indptr=(0, 1, 1))
    refuses(ValueError, padded, indptr=(1, 1, 2))
    refuses(ValueError, padded, ids=(1,))
    refuses(ValueError, padded, num_edges=1)
    refuses(ValueError, padded, to=((2,), (2,)))
    refuses(ValueError, padded, to=((), ()))
    refuses(ValueError, padded, to=((-1, 3), (3, 4)))
    refuses(ValueError, padded, from_=((2, 1), (3,)))
    refuses(IndexError, padded, indices=(0, 3))
    refuses(IndexError, padded, indices=(-1, 0))
    refuses(ValueError, _core.pad_values, np.zeros(3, dtype), ((2,), (3,)), -1)
