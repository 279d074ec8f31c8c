"""The loaders over parts against those of one machine, field by field and bit by bit; how they iterate; wrong input.

What torch_geometric.distributed does wrong, and which test shows that it is right here:

* its loaders cannot be built, have no `rpc_timeout`, cannot draw negatives, and give other features than those of the
  nodes, by type too: test_batches_are_those_of_one_machine; rpc_timeout as a bound: test_meeting.py
* `e_id` is no edge id, and `edge_attr` that of another edge: test_edge_ids_are_those_of_the_whole_graph
* answers are matched to parts by position; kernels write out of bounds where there are fewer seeds than parts, or a
  part without seeds with -1: test_seeds_in_fewer_parts_than_there_are
* an error in a task of its loop is never seen: test_an_error_of_the_users_reaches_the_loop
* a directed graph makes METIS crash: test_a_directed_graph_is_cut_by_metis_and_loaded
* its folders with edge features cannot be loaded: test_a_partition_that_pyg_wrote_is_loaded
* a rank that ends early, or has fewer batches, breaks the others: test_scripts_that_close_nothing_end_by_themselves_...
  (test_meeting.py), test_batches_are_those_of_one_machine
* trees by time take a list of Python for each node: test_many_trees_by_time
* calls of several types at once mix: test_calls_of_several_types_at_once_do_not_mix (test_dist_neighbor_sampler.py)
* maps of 8 bytes for each node and edge: test_the_books_take_a_byte_for_each_node_and_edge
* seeds by position, most of another part: test_seeds_are_given_to_the_part_that_owns_them (test_dist_examples.py)
* no batch can be made again: test_a_batch_can_be_made_again_and_a_loop_resumed
"""

import copy
import gc
import inspect
import queue
import threading
import warnings
from functools import partial

import pytest
import torch
from amounts import amount
from plain_cuda import needs_gpu
from pyg_cases import CITES, WRITES, assert_same, digests, pyg
from pyg_ranks import (
    TIMEOUT_S,
    answers,
    compare,
    context_of,
    cut,
    in_ranks,
    nodes_of,
    plain_data,
    port_of_all,
    stores,
    typed_data,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch_geometric.distributed as upstream

from datapipes.processes.ranks import RankError
from datapipes.pyg import distributed
from datapipes.pyg.distributed import (
    DistLinkNeighborLoader,
    DistLoader,
    DistNeighborLoader,
    DistNeighborSampler,
    LocalFeatureStore,
    LocalGraphStore,
    Partitioner,
)
from datapipes.pyg.loader import NeighborLoader, NodeLoader

pytestmark = pytest.mark.filterwarnings("ignore:.*positive links:UserWarning")  # these sample the links themselves

NODES = [
    {"num_neighbors": [-1, -1]},
    {"num_neighbors": [3, 2]},
    {"num_neighbors": [3, 2], "replace": True},
    {"num_neighbors": [3, 2], "disjoint": True},
    {"num_neighbors": [3, 2], "subgraph_type": "bidirectional"},
    {"num_neighbors": [3, 2], "subgraph_type": "induced"},
    {"num_neighbors": [3, 2], "weight_attr": "edge_weight"},
    {"num_neighbors": [-1, -1], "time_attr": "time"},
    {"num_neighbors": [3, 2], "time_attr": "time", "times": True},
    {"num_neighbors": [2, 2], "time_attr": "time", "temporal_strategy": "last"},
    {"num_neighbors": [-1, 2], "time_attr": "edge_time", "times": True},
    {"num_neighbors": [-1, -1], "time_attr": "time", "times": True, "time_window": 7},
    {"num_neighbors": [2, 2], "time_attr": "edge_time", "temporal_strategy": "last", "times": True},
    {"num_neighbors": [3, 2], "weight_attr": "edge_weight", "time_attr": "edge_time", "times": True},
]
LINKS = [
    {"num_neighbors": [-1, -1]},
    {"num_neighbors": [3, 2], "neg_sampling": "binary"},
    {"num_neighbors": [3, 2], "neg_sampling": ("binary", 1.5), "labels": True, "disjoint": True},
    {"num_neighbors": [3, 2], "neg_sampling": ("triplet", 2)},
    {"num_neighbors": [2, 2], "time_attr": "time", "neg_sampling": ("triplet", 1)},
    {"num_neighbors": [2, 2], "time_attr": "edge_time", "temporal_strategy": "last"},
]
MANY = [(False, 2, "pyg"), (True, 3, "native")]  # in `make test`; together they have every kind of sampling


def cases_of(is_typed, loading):
    nodes = [(False, given, loading) for given in NODES]
    links = [(True, given, loading) for given in LINKS]
    if not is_typed:
        return nodes + links
    return nodes + [(True, {**given, "edge_type": of}, loading) for _, given, _ in links for of in (WRITES, CITES)]


@pytest.mark.parametrize(
    ("is_typed", "num_parts", "layout"),
    [
        pytest.param(typed, parts, layout, marks=() if (typed, parts, layout) in MANY else pytest.mark.full)
        for typed in (False, True)
        for parts in (1, 2, 3, 4)
        for layout in ("pyg", "native")
    ],
)
def test_batches_are_those_of_one_machine(tmp_path, is_typed, num_parts, layout):
    data = typed_data(3) if is_typed else plain_data(3)
    cut(tmp_path / "parts", data, num_parts, layout, node_time_attr="time")
    cases = cases_of(is_typed, {})
    if (is_typed, num_parts, layout) in MANY:
        cases = [*cases[1 : len(NODES) : 2], *cases[len(NODES) + 3 :: 4]] if is_typed else cases[::2]
    found = in_ranks(num_parts, compare, tmp_path / "parts", data, port_of_all(), cases)
    assert all(count > 0 for count in answers(found))


@pytest.fixture(scope="module")
def two_parts(tmp_path_factory):
    """Data without types, and the folder of its two parts."""
    data, root = plain_data(5), tmp_path_factory.mktemp("two")
    cut(root / "parts", data, 2)
    return data, root / "parts"


@pytest.fixture(scope="module")
def two_typed_parts(tmp_path_factory):
    data, root = typed_data(5), tmp_path_factory.mktemp("typed")
    cut(root / "parts", data, 2)
    return data, root / "parts"


def loader_of(rank, size, root, port, kind=DistNeighborLoader, num_neighbors=(2,), pair=None, **given):
    """The loader of a rank; `pair` are its stores where they are not those of the folder."""
    options = {"batch_size": 5, "rpc_timeout": TIMEOUT_S, **given}
    num_neighbors = num_neighbors if isinstance(num_neighbors, (dict, int)) else [*num_neighbors]
    return kind(pair or stores(root, rank), num_neighbors, "127.0.0.1", port, context_of(rank, size), **options)


def load(rank, size, root, port, what, num_neighbors=(3, 2), **given):
    """Return what `what` makes of the loader of a rank."""
    loader = loader_of(rank, size, root, port, num_neighbors=num_neighbors, **given)
    try:
        return what(loader)
    finally:
        loader.close()


def in_two(root, what, **given):
    """Return what `what` makes of the loaders of two ranks; each argument may be a function of the rank."""

    def work(rank, size, port):
        own = {name: value(rank) if inspect.isfunction(value) else value for name, value in given.items()}
        return load(rank, size, root, port, what, **own)

    return in_ranks(2, work, port_of_all())


# --- PyG's class


@pytest.mark.parametrize("name", ["DistNeighborLoader", "DistLinkNeighborLoader", "DistLoader", "DistNeighborSampler"])
def test_the_signatures_are_pygs_with_a_few_more(name):
    found, expected = (inspect.signature(getattr(each, name).__init__).parameters for each in (distributed, upstream))
    more = {
        "DistLoader": ["tls", "insecure"],
        "DistNeighborSampler": [],
    }.get(name, ["seed", "weight_attr", "time_window", "rpc_timeout", "tls", "insecure"])
    assert [*found] == [*[*expected][:-1], *more, "kwargs"]
    for each, parameter in expected.items():
        assert (found[each].default, found[each].kind) == (parameter.default, parameter.kind), each


@pytest.mark.parametrize("name", ["node_sample", "edge_sample", "sample_one_hop"])
def test_the_calls_of_the_sampler_have_pygs_signatures(name):
    ours, theirs = (getattr(each.DistNeighborSampler, name) for each in (distributed, upstream))
    assert inspect.iscoroutinefunction(ours)
    found, expected = (inspect.signature(each).parameters for each in (ours, theirs))
    assert [(each.name, each.default) for each in found.values()] == [
        (each.name, each.default) for each in expected.values()
    ]


def test_the_small_classes_are_pygs():
    ours, theirs = (each.DistContext(1, 1, 2, 2, "group") for each in (distributed, upstream.dist_context))
    assert (ours.worker_name, ours.role.name, vars(ours).keys()) == (theirs.worker_name, "WORKER", vars(theirs).keys())
    attr = distributed.LocalTensorAttr("paper", "x")
    assert (attr.index, isinstance(attr, pyg.data.TensorAttr)) == (None, True)
    assert issubclass(DistNeighborLoader, (DistLoader, pyg.loader.NodeLoader))
    assert issubclass(DistLinkNeighborLoader, pyg.loader.LinkLoader)


# --- how they iterate


@pytest.mark.full
def test_options_of_loading_change_no_bit(two_parts):
    data, root = two_parts
    ways = [{}, {"async_sampling": False}, {"num_workers": 1, "filter_per_worker": True}]
    ways += amount([{"concurrency": 3}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}], [])

    def work(rank, size, port):
        found = []
        for way in ways:
            given = {"input_nodes": nodes_of(data, rank, size), "shuffle": True, "seed": 3, **way}
            found.append(load(rank, size, root, port, digests, **given))
        return found

    first, second = answers(in_ranks(2, work, port_of_all()))
    assert first[0] != second[0]
    for found in (first, second):
        assert all(each == found[0] for each in found)


def test_a_batch_can_be_made_again_and_a_loop_resumed(two_parts):
    data, root = two_parts

    def work(loader):
        batches = [*loader]
        rank = loader.current_ctx.rank
        again = [loader.minibatch(0, step * 2 + rank) for step in range(len(batches))]
        stream = iter(loader)
        next(stream)
        state = loader.state_dict()
        rest = digests(stream)
        loader.load_state_dict(state)
        return digests(batches) == digests(again) and digests(loader) == rest

    assert answers(in_two(root, work, input_nodes=lambda rank: nodes_of(data, rank, 2), shuffle=True)) == [True, True]


def test_seeds_decide_the_draws_and_ranks_draw_differently(two_parts):
    data, root = two_parts
    ids = torch.arange(data.num_nodes)
    one, again, other = (answers(in_two(root, digests, input_nodes=ids, seed=seed)) for seed in (1, 1, 2))
    assert one == again
    assert one != other
    assert one[0] != one[1]


def test_input_nodes_in_every_form(two_parts, two_typed_parts):
    def ids(loader):
        return loader.input_data.node.tolist()

    data, root = two_parts
    mask = torch.arange(data.num_nodes) % 3 == 0
    for given, expected in ((None, range(40)), (mask, range(0, 40, 3)), ([3, 1], [3, 1]), (torch.tensor([5]), [5])):
        assert answers(in_two(root, ids, input_nodes=given)) == [[*expected]] * 2
    data, root = two_typed_parts
    mask = torch.arange(data["author"].num_nodes) < 4
    for given, expected in (("paper", range(30)), (("author", mask), range(4)), (("paper", torch.tensor([7])), [7])):
        assert answers(in_two(root, ids, input_nodes=given)) == [[*expected]] * 2


def test_links_of_this_part_are_the_default(two_parts):
    _, root = two_parts

    def ends(loader):
        assert loader.edge_label_index[0] is None
        return torch.stack([loader.input_data.row, loader.input_data.col])

    found = answers(in_two(root, ends, kind=DistLinkNeighborLoader))
    expected = [stores(root, rank)[1].get_edge_index(None, "coo") for rank in range(2)]
    assert all(map(torch.equal, found, expected))


def test_a_transform_device_and_labels(two_parts, two_typed_parts):
    data, root = two_parts

    def work(rank, size, port, root, labels, **given):
        pair = stores(root, rank)
        pair[0].labels = labels
        loader = loader_of(rank, size, root, port, pair=pair, batch_size=4, **given)
        found = next(iter(loader))
        sent = copy.copy(loader.view)  # as a worker gets it: labels, and no stores
        assert sent.data is None
        assert sent.labels is labels
        loader.close()
        return found

    def doubled(batch):
        batch.twice = 2 * batch.y
        return batch

    labels = torch.arange(data.num_nodes) + 100
    given = {"input_nodes": torch.arange(9), "transform": doubled, "device": torch.device("cpu")}
    for batch in answers(in_ranks(2, partial(work, **given), port_of_all(), root, labels)):
        assert torch.equal(batch.y, labels[batch.n_id])
        assert torch.equal(batch.twice, 2 * batch.y)
    data, root = two_typed_parts
    papers = torch.arange(data["paper"].num_nodes) + 100
    for given in (papers, {"paper": papers}):
        for batch in answers(in_ranks(2, partial(work, input_nodes="paper"), port_of_all(), root, given)):
            assert torch.equal(batch["paper"].y, papers[batch["paper"].n_id])
            assert "y" not in batch["author"]


def on_device(rank, size, port, root, device):
    """The batches of a rank, whose tensors lie on a device, as they are in host memory."""
    loader = loader_of(rank, size, root, port, batch_size=4, input_nodes=torch.arange(9), device=device)
    batches = [*loader]
    loader.close()
    where = {value.device.type for batch in batches for _, value in batch if isinstance(value, torch.Tensor)}
    assert where == {torch.device("cpu" if device is None else device).type}
    return [batch.cpu() for batch in batches]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])])
def test_batches_lie_on_the_device(two_parts, device):
    _, root = two_parts
    expected, found = (answers(in_ranks(2, on_device, port_of_all(), root, where)) for where in (None, device))
    for batches, others in zip(found, expected, strict=True):
        assert len(batches) == len(others) > 0
        for batch, other in zip(batches, others, strict=True):
            assert_same(batch, other)


def test_an_error_of_the_users_reaches_the_loop(two_parts):
    def failing(batch):
        raise ArithmeticError("an error of the transform")

    def work(loader):
        with pytest.raises(ArithmeticError, match="an error of the transform"):
            list(loader)

    _, root = two_parts
    answers(in_two(root, work, input_nodes=torch.arange(9), transform=lambda rank: failing))


def test_labels_that_are_not_of_all_nodes_are_refused(two_parts, two_typed_parts):
    def refused(root, labels, match, **given):
        def work(rank, size, port):
            pair = stores(root, rank)
            pair[0].labels = labels
            loader = DistNeighborLoader(pair, [2], "127.0.0.1", port, context_of(rank, size), **given)
            with pytest.raises((TypeError, ValueError), match=match):
                next(iter(loader))
            loader.close()

        answers(in_ranks(2, work, port_of_all()))

    (_, plain), (_, typed) = two_parts, two_typed_parts
    refused(plain, torch.arange(20), r"labels has the shape \[20\], but the whole graph has 40")
    refused(plain, [*range(40)], "labels must be a tensor, got list")
    refused(typed, {"paper": torch.arange(29)}, "labels of paper has the shape", input_nodes="paper")
    refused(typed, {"venue": torch.arange(29)}, "there is no such type", input_nodes="paper")


def test_a_given_sampler_and_a_class_of_the_users(two_parts):
    _, root = two_parts

    class Counting(DistNeighborSampler):
        calls = 0

        async def node_sample(self, inputs):
            type(self).calls += 1
            return await super().node_sample(inputs)

    class OwnLoader(pyg.loader.NodeLoader, DistLoader):
        def __init__(self, pair, sampler, port, **given):
            DistLoader.__init__(
                self, sampler.current_ctx, "127.0.0.1", port, channel=sampler.channel, dist_sampler=sampler
            )
            pyg.loader.NodeLoader.__init__(
                self, pair, sampler, transform_sampler_output=self.channel_get, filter_per_worker=False, **given
            )

        def __repr__(self):
            return DistLoader.__repr__(self)

    def work(rank, size, port):
        pair = stores(root, rank)
        sampler = Counting(context_of(rank, size), pair, [-1])
        given = {"input_nodes": torch.arange(8), "batch_size": 4}
        loader = DistNeighborLoader(
            pair, None, "127.0.0.1", port, sampler.current_ctx, dist_sampler=sampler, rpc_timeout=TIMEOUT_S, **given
        )
        ours = [*loader]
        put = DistNeighborSampler(context_of(rank, size), pair, [-1], channel=queue.Queue())
        own = OwnLoader(pair, put, port, **given)
        theirs = [*own]
        loader.close()
        own.close()
        return ours, theirs, str(own)

    for ours, theirs, shown in answers(in_ranks(2, work, port_of_all())):
        assert shown.startswith("OwnLoader(pid=")
        for one, other in zip(ours, theirs, strict=True):
            for name in ("x", "edge_attr", "n_id", "e_id", "edge_index"):
                assert torch.equal(one[name], other[name]), name
    assert Counting.calls == 4


def test_one_sampler_serves_loaders_one_after_the_other(two_parts):
    _, root = two_parts

    def work(rank, size, port):
        pair, context = stores(root, rank), context_of(rank, size)
        sampler = DistNeighborSampler(context, pair, [2])
        found = []
        for nodes in (torch.arange(9), torch.arange(9, 20)):
            given = {"dist_sampler": sampler, "batch_size": 5, "rpc_timeout": TIMEOUT_S}
            loader = DistNeighborLoader(pair, [2], "127.0.0.1", port, context, nodes, **given)
            found.append(len([*loader]))
            loader.close()
        for name, value in {
            "num_neighbors": [9],
            "replace": True,
            "time_attr": "time",
            "weight_attr": "w",
            "time_window": 3,
        }.items():
            other = {"num_neighbors": [2], **given, name: value, "input_time": torch.arange(3)}
            with pytest.raises(ValueError, match=f"{name} is .*, but the given dist_sampler has another value"):
                DistNeighborLoader(pair, other.pop("num_neighbors"), "127.0.0.1", port, context, **other)
        return found

    assert answers(in_ranks(2, work, port_of_all())) == [[2, 3]] * 2


def test_loaders_one_after_the_other_and_at_once(two_parts):
    _, root = two_parts

    def work(rank, size, port):
        found = []
        for _ in range(3):
            seeds = torch.arange(9), torch.arange(9, 20)
            train, val = (loader_of(rank, size, root, port, input_nodes=nodes) for nodes in seeds)
            found += [len([*train]), len([*val]), len([*zip(train, val, strict=False)])]
        return found

    assert answers(in_ranks(2, work, port_of_all())) == [[2, 3, 2] * 3] * 2
    gc.collect()


def test_a_closed_loader_says_so(two_parts):
    _, root = two_parts

    def work(loader):
        loader.close()
        with pytest.raises(RuntimeError, match="was closed"):
            next(iter(loader))
        with pytest.raises(RuntimeError, match="was closed"):
            loader([0])
        return True

    assert answers(in_two(root, work, input_nodes=torch.arange(4))) == [True, True]


def test_no_thread_is_left(two_parts):
    _, root = two_parts
    before = set(threading.enumerate())
    answers(in_two(root, digests, input_nodes=torch.arange(4)))
    for thread in set(threading.enumerate()) - before:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive(), thread


# --- the defects of torch_geometric.distributed that others do not show


def test_edge_ids_are_those_of_the_whole_graph(two_parts, two_typed_parts):
    data, root = two_parts
    for batches in answers(in_two(root, list, input_nodes=torch.arange(20))):
        for batch in batches:
            assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])
            assert torch.equal(data.edge_attr[batch.e_id], batch.edge_attr)
    data, root = two_typed_parts
    for batches in answers(in_two(root, list, input_nodes="author")):
        for batch in batches:
            for of in ("paper", "author"):
                assert torch.equal(data[of].x[batch[of].n_id], batch[of].x)
            for of in data.edge_types:
                assert torch.equal(data[of].edge_attr[batch[of].e_id], batch[of].edge_attr)


@pytest.mark.parametrize("num_neighbors", [[-1, -1], [3, 2]])
def test_seeds_in_fewer_parts_than_there_are(tmp_path, num_neighbors):
    data = plain_data(6)
    cut(tmp_path / "parts", data, 4)
    pb = stores(tmp_path / "parts", 0)[1].node_pb
    two = torch.cat([(pb == part).nonzero().flatten()[:1] for part in (1, 3)])

    def work(rank, size, port):
        given = {"num_neighbors": num_neighbors, "input_nodes": two, "batch_size": 2}
        return load(rank, size, tmp_path / "parts", port, list, **given)

    found = answers(in_ranks(4, work, port_of_all()))
    if num_neighbors == [-1, -1]:
        (expected,) = NeighborLoader(data, num_neighbors, input_nodes=two, batch_size=2)
        for batches in found:
            assert_same(batches[0], expected)
    assert [len(batches) for batches in found] == [1] * 4


def test_a_partition_that_pyg_wrote_is_loaded(tmp_path):
    from pyg_partitions import data_of, partitioned_by_pyg

    data = data_of()
    partitioned_by_pyg(data, 2, tmp_path)
    del data.y
    for batches in answers(in_two(tmp_path, list, num_neighbors=(-1, -1), input_nodes=torch.arange(9))):
        expected = NeighborLoader(data, [-1, -1], input_nodes=torch.arange(9), batch_size=5)
        for one, other in zip(batches, expected, strict=True):
            del other.num_nodes
            assert_same(one, other)


def test_a_directed_graph_is_cut_by_metis_and_loaded(tmp_path):
    data = plain_data(7)
    Partitioner(data, 2, tmp_path / "parts").generate_partition()

    def work(rank, size, port):
        own = stores(tmp_path / "parts", rank)[0].get_global_id(None)
        return load(rank, size, tmp_path / "parts", port, list, input_nodes=own, num_neighbors=(-1, -1))

    found = answers(in_ranks(2, work, port_of_all()))
    seeds = torch.cat([batch.n_id[: batch.batch_size] for batches in found for batch in batches])
    assert sorted(seeds.tolist()) == [*range(40)]
    for batches in found:
        for batch in batches:
            assert torch.equal(data.x[batch.n_id], batch.x)


def test_many_trees_by_time(two_parts):
    data, root = two_parts
    nodes, times = torch.arange(40).repeat(25), torch.arange(1000) % 31
    given = {"input_nodes": nodes, "input_time": times, "time_attr": "time", "batch_size": 1000}
    (expected,) = NeighborLoader(data, [-1, -1], **given)
    for (batch,) in answers(in_two(root, list, num_neighbors=(-1, -1), **given)):
        assert_same(batch, expected)


def test_the_books_take_a_byte_for_each_node_and_edge(two_parts):
    _, root = two_parts
    features, graph = stores(root, 0)
    assert {features.node_feat_pb.dtype, graph.node_pb.dtype, graph.edge_pb.dtype} == {torch.uint8}


# --- wrong input


def one_fails(root, match, kind=DistNeighborLoader, error=(ValueError, IndexError, TypeError), **given):
    """Check that rank 0 raises an error of its own, and rank 1 hears of it if the ranks had not met."""
    first, second = in_two(root, list, kind=kind, **given)
    assert isinstance(first, error), first
    assert match in str(first), str(first)
    return second


def test_wrong_arguments_are_refused(two_parts, two_typed_parts):
    (_, plain), (_, typed) = two_parts, two_typed_parts
    nodes = torch.arange(4)
    one_fails(plain, "[0, 40)", input_nodes=torch.tensor([40]))
    one_fails(plain, "no types", input_nodes="paper")
    one_fails(plain, "mask of shape [3]", input_nodes=torch.tensor([True, False, True]))
    one_fails(plain, "neither nodes nor edges", input_nodes=nodes, time_attr="when", input_time=nodes)
    one_fails(plain, "no edge types", input_nodes=nodes, num_neighbors={("a", "b", "c"): [1]})
    one_fails(plain, "num_neighbors must be a list", input_nodes=nodes, num_neighbors=5)
    one_fails(plain, "weight_attr is 'heavy'", input_nodes=nodes, weight_attr="heavy")
    one_fails(plain, "input_time has 3 values for 4 seeds", input_nodes=nodes, time_attr="time", input_time=nodes[:3])
    one_fails(typed, "venue", input_nodes="venue")
    one_fails(typed, "input_nodes must be a type", input_nodes=nodes)
    one_fails(typed, "cites", input_nodes="paper", num_neighbors={("paper", "likes", "paper"): [1]})
    one_fails(typed, "", input_nodes="paper", num_neighbors={WRITES: [1], CITES: [1, 2]})
    links = {"kind": DistLinkNeighborLoader}
    one_fails(plain, "edge_label has 1 values", edge_label_index=torch.ones(2, 2).long(), edge_label=nodes[:1], **links)
    one_fails(typed, "edge_label_index must be an edge type, or", edge_label_index=torch.ones(2, 2).long(), **links)
    one_fails(plain, "[0, 40)", edge_label_index=torch.tensor([[1], [41]]), **links)
    one_fails(plain, "must have shape [2, num_edges]", edge_label_index=torch.zeros(3, 2, dtype=torch.int64), **links)
    one_fails(typed, "likes", edge_label_index=(("paper", "likes", "paper"), torch.zeros(2, 1).long()), **links)


def test_what_one_rank_has_wrong_is_told_to_all(two_parts):
    _, root = two_parts

    def work(rank, size, port, change):
        pair = stores(root, rank)
        change(rank, *pair)
        return loader_of(rank, size, root, port, pair=pair, input_nodes=torch.arange(4))

    def without_ids(rank, features, graph):
        if rank == 0:
            graph.remove_edge_id(None, "coo")

    first, second = in_ranks(2, work, port_of_all(), without_ids)
    assert "no ids of edges" in str(first)
    assert isinstance(second, RankError)
    assert "no ids of edges" in second.failed_ranks[0]


def test_contexts_and_parts_that_do_not_fit(two_parts, tmp_path):
    _, root = two_parts
    cut(tmp_path / "other", plain_data(6), 2)

    def work(rank, size, port, parts, world_size, roots):
        pair = stores(roots[rank], parts[rank])
        return loader_of(rank, world_size, None, port, pair=pair, input_nodes=torch.arange(4))

    for found in in_ranks(2, work, port_of_all(), [0, 1], 3, [root, root]):
        assert "world_size 3, but the graph is in 2 parts" in str(found)
    for found in in_ranks(2, work, port_of_all(), [1, 1], 2, [root, root]):
        assert "part 1 is there twice" in str(found)
    for found in in_ranks(2, work, port_of_all(), [0, 1], 2, [root, tmp_path / "other"]):
        assert "of different partitions" in str(found)


def test_other_stores_and_samplers_are_refused(two_parts):
    _, root = two_parts
    pair, context = stores(root, 0), context_of(0, 2)
    with pytest.raises(TypeError, match=r"must be \(LocalFeatureStore, LocalGraphStore\) of datapipes"):
        DistNeighborLoader((pair[1], pair[0]), [2], "127.0.0.1", 1, context)
    with pytest.raises(TypeError, match="dist_sampler must be a DistNeighborSampler"):
        DistLoader(context, "127.0.0.1", 1, dist_sampler=None)
    with pytest.raises(TypeError, match="unknown argument 'sampler_kind'"):
        DistNeighborSampler(context, pair, [2], sampler_kind=1)
    with pytest.raises(ValueError, match="input_time is given"):
        DistNeighborLoader(pair, [2], "127.0.0.1", 1, context, input_time=torch.arange(3))
    with pytest.raises(ValueError, match="'edge_label_time' is set while 'time_attr' is not set"):
        DistLinkNeighborLoader(pair, [2], "127.0.0.1", 1, context, edge_label_time=torch.arange(3))
    assert issubclass(DistNeighborLoader, DistLoader)
    assert not issubclass(DistNeighborLoader, NodeLoader)
    assert (LocalFeatureStore, LocalGraphStore) == (type(pair[0]), type(pair[1]))


def test_the_address_comes_from_the_environment(two_parts, monkeypatch):
    _, root = two_parts
    pair, context = stores(root, 0), context_of(0, 2)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="MASTER_ADDR is not set"):
        DistNeighborLoader(pair, [2], None, None, context)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(ValueError, match="MASTER_PORT is not set"):
        DistNeighborLoader(pair, [2], None, None, context)
    port = port_of_all()
    monkeypatch.setenv("MASTER_PORT", str(port - 1))

    def work(rank, size):
        loader = DistNeighborLoader(
            stores(root, rank), [2], None, None, context_of(rank, size), torch.arange(4), rpc_timeout=TIMEOUT_S
        )
        loader.close()
        return loader.master_addr, loader.master_port

    assert answers(in_ranks(2, work)) == [("127.0.0.1", port)] * 2
    with pytest.raises(ValueError, match="master_port"):
        DistNeighborLoader(pair, [2], "127.0.0.1", 70000, context)
    with pytest.raises(ValueError, match="rpc_timeout must be seconds above 0"):
        DistNeighborLoader(pair, [2], "127.0.0.1", port, context, rpc_timeout=0)
