"""LocalFeatureStore: PyG's methods, over both layouts; every row is compared with the whole graph's."""

import pickle
import threading

import numpy as np
import pytest
import torch
from local_stores import LAYOUTS, book_of, partitioned, plain_graph, typed_graph
from pyg_layout import same
from torch.futures import Future

import datapipes as dp
from datapipes.base.types import ends_of
from datapipes.distributed import FeatureClient, LocalFeatureStore, Part, PartitionBook
from datapipes.partition.pyg.pyg_names import PygMisfit
from datapipes.partition.stores.local_feature_store import EDGES


def group_of(edge_type):
    return EDGES if edge_type is None else edge_type


def by_id(graph, edge_type, values):
    """The rows of an edge attribute in the order of edge ids."""
    ids = graph.relation(edge_type).edge_ids
    return values if ids is None else values[torch.argsort(ids)]


def groups_of(graph):
    """(group, is_node_feat, input_type, {name: rows by global id}) of every type."""
    for node_type in graph.node_types:
        yield node_type, True, node_type, graph.node_attributes_of(node_type)
    for edge_type in graph.edge_types:
        values = graph.relation(edge_type).edge_attributes
        yield (
            group_of(edge_type),
            False,
            edge_type,
            {name: by_id(graph, edge_type, each) for name, each in values.items()},
        )


def owners_of(graph, book, is_node_feat, input_type):
    """The part of each node, or of each edge by its id."""
    if is_node_feat:
        return book.nodes(input_type).dense().long()
    relation = graph.relation(input_type)
    dst = torch.repeat_interleave(torch.arange(len(relation.indptr) - 1), relation.indptr.diff())
    return by_id(graph, input_type, book.nodes(ends_of(input_type)[1]).part_of(dst))


class Peers:
    """A client over the stores of all parts in this process; it notes who was asked for what."""

    def __init__(self, stores):
        self.stores, self.asked = stores, []

    def fetch(self, part, ids, *, is_node_feat, input_type, attr_name):
        self.asked.append((part, ids.tolist()))
        return self.stores[part].lookup_features(ids, is_node_feat, input_type, attr_name=attr_name)


def stores_of(root, num_parts):
    stores = [LocalFeatureStore.from_partition(root, part) for part in range(num_parts)]
    for store in stores:
        store.client = Peers(stores)
    return stores


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("make", [plain_graph, typed_graph])
@pytest.mark.parametrize("num_parts", [1, 3])
def test_own_rows_by_global_id(tmp_path, make, layout, num_parts):
    graph = make()
    book = book_of(graph, num_parts)
    partitioned(tmp_path, graph, book, [layout])
    for part in range(num_parts):
        store = LocalFeatureStore.from_partition(tmp_path, part)
        assert (store.num_partitions, store.partition_idx, store.labels) == (num_parts, part, None)
        assert store.has_edge_attr()
        there = {(each.group_name, each.attr_name) for each in store.get_all_tensor_attrs()}
        for group, is_node_feat, input_type, expected in groups_of(graph):
            own = (owners_of(graph, book, is_node_feat, input_type) == part).nonzero().flatten()
            if len(own) == 0:
                continue
            assert sorted(store.get_global_id(group).tolist()) == own.tolist()
            for name, values in expected.items():
                assert (group, name) in there
                rows = store.get_tensor(group, name)
                assert same(rows, values[store.get_global_id(group)])
                assert store.get_tensor_size(group, name) == tuple(rows.shape)
                index = own.flip(0).repeat(2)
                found = store.get_tensor_from_global_id(group_name=group, attr_name=name, index=index)
                assert same(found, values[index])
                assert same(store.get_tensor_from_global_id(group, name, index.int()), values[index])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("make", [plain_graph, typed_graph])
def test_lookups_of_all_parts_give_the_rows_of_the_whole_graph(tmp_path, make, layout):
    graph = make()
    book = book_of(graph, 3)
    partitioned(tmp_path, graph, book, [layout])
    stores = stores_of(tmp_path, 3)
    made = torch.Generator().manual_seed(1)
    for group, is_node_feat, input_type, expected in groups_of(graph):
        for name, values in expected.items():
            if len(values) == 0:
                continue
            index = torch.randint(len(values), (40,), generator=made)
            for store in stores:
                found = store.lookup_features(index, is_node_feat, input_type, attr_name=name).wait()
                assert same(found, values[index]), (group, name)
                if name == ("x" if is_node_feat else "edge_attr"):
                    assert same(store.lookup_features(index, is_node_feat, input_type).wait(), values[index])


def test_a_lookup_asks_each_part_once_for_what_it_owns_and_itself_never(tmp_path):
    graph = plain_graph()
    partitioned(tmp_path, graph, book_of(graph, 4), ["native"])
    stores = stores_of(tmp_path, 4)
    index = torch.tensor([3, 1, 5, 0, 7, 1, 2])
    assert same(stores[1].lookup_features(index).wait(), graph.node_attributes["x"][index])
    assert stores[1].client.asked == [(0, [0]), (2, [2]), (3, [3, 7])]
    assert isinstance(stores[1].client, FeatureClient)
    stores[1].client.asked.clear()
    assert same(stores[1].lookup_features(torch.tensor([9, 5])).wait(), graph.node_attributes["x"][[9, 5]])
    assert stores[1].client.asked == []
    empty = stores[1].lookup_features(torch.zeros(0, dtype=torch.int64)).wait()
    assert (empty.shape, empty.dtype) == ((0, 3), torch.float32)


def test_answers_that_come_in_any_order_go_to_their_places(tmp_path):
    graph = plain_graph()
    partitioned(tmp_path, graph, book_of(graph, 4), ["native"])
    stores = stores_of(tmp_path, 4)
    waiting = {}

    class Slow:
        def fetch(self, part, ids, **_):
            waiting[part] = (Future(), ids)
            return waiting[part][0]

    store = stores[0]
    store.client = Slow()
    index = torch.arange(12).flip(0)
    found = store.lookup_features(index)
    for part in (2, 3, 1):
        assert not found.done()
        future, ids = waiting[part]
        future.set_result(graph.node_attributes["x"][ids])
    assert same(found.wait(), graph.node_attributes["x"][index])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_part_without_rows_of_a_type_looks_them_up(refuses, tmp_path, layout):
    graph = typed_graph()
    book = PartitionBook(2, {each: torch.ones(count, dtype=torch.int64) for each, count in graph.num_nodes.items()})
    partitioned(tmp_path, graph, book, [layout])
    store, none = stores_of(tmp_path, 2)[0], torch.empty(0, dtype=torch.int64)
    for group, is_node_feat, input_type, expected in groups_of(graph):
        for name, values in expected.items():
            for index in (torch.arange(len(values)).flip(0), none) if len(values) > 0 else ():
                rows = store.lookup_features(index, is_node_feat, input_type, attr_name=name).wait()
                assert same(rows, values[index]), (group, name)
    refuses(KeyError, store.lookup_features, none, True, "paper", attr_name="other")
    if layout == "pyg":
        store.client = None
        refuses(ValueError, store.lookup_features, none, True, "paper")


def test_times_of_pygs_layout_are_known_for_all_nodes(tmp_path):
    times = torch.arange(12) * 10
    graph = dp.CSCGraph.from_edge_index(torch.randint(12, (2, 60)), 12, node_attributes={"time": times})
    partitioned(tmp_path, graph, book_of(graph, 3), ["pyg"])
    store = LocalFeatureStore.from_partition(tmp_path, 2)
    index = torch.tensor([0, 11, 5, 0])
    assert store.get_tensor(None, "time").tolist() == times.tolist()
    assert store.get_tensor_from_global_id(None, "time", index).tolist() == times[index].tolist()
    assert store.lookup_features(index, attr_name="time").wait().tolist() == times[index].tolist()
    with pytest.raises(IndexError, match="does not have the id 12"):
        store.get_tensor_from_global_id(None, "time", torch.tensor([12]))
    store.put_tensor(torch.arange(4), None, "time")
    assert store.get_tensor_from_global_id(None, "time", torch.tensor([11])).tolist() == [3]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_store_of_either_layout_survives_pickling(tmp_path, layout):
    graph = typed_graph()
    partitioned(tmp_path, graph, book_of(graph), [layout])
    store = LocalFeatureStore.from_partition(tmp_path, 1)
    copy = pickle.loads(pickle.dumps(store))
    for attr in store.get_all_tensor_attrs():
        assert same(copy.get_tensor(attr), store.get_tensor(attr))
    ids = store.get_global_id("paper")
    assert same(copy.lookup_features(ids, True, "paper").wait(), store.lookup_features(ids, True, "paper").wait())


def test_a_store_of_an_open_part_shares_it(tmp_path):
    graph = plain_graph()
    partitioned(tmp_path, graph, book_of(graph))
    part = Part.open(tmp_path, 0)
    store = LocalFeatureStore.from_part(part)
    assert store.get_tensor(None, "x").data_ptr() == part.node_attributes_of()["x"].data_ptr()
    assert store.get_global_id(None).data_ptr() == part.node_ids().data_ptr()
    assert store.node_feat_pb.tolist() == [0, 1] * 6
    assert repr(store) == "LocalFeatureStore(part 0 of 2, 5 tensors)"


UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
TORCH_SAVES_UNSIGNED = not torch.__version__.startswith("2.4.")
OTHERS = [torch.complex64, torch.complex128, torch.bool, torch.bfloat16, torch.float8_e5m2]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", UNSIGNED + OTHERS)
def test_lookups_of_every_dtype(tmp_path, layout, dtype):
    x = torch.randint(0, 2, (12, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(4)).view(dtype)
    graph = dp.CSCGraph.from_edge_index(torch.randint(12, (2, 60)), 12, node_attributes={"x": x})
    if layout == "pyg" and dtype in UNSIGNED and not TORCH_SAVES_UNSIGNED:
        with pytest.raises(PygMisfit, match=f"cannot save a tensor: dtype {dtype}"):
            partitioned(tmp_path, graph, book_of(graph, 3), [layout])
        return
    partitioned(tmp_path, graph, book_of(graph, 3), [layout])
    index = torch.tensor([5, 0, 11, 5, 7])
    for store in stores_of(tmp_path, 3):
        for ids in (index, store.get_global_id(None).flip(0)):
            found, expected = store.lookup_features(ids).wait(), [x[each] for each in ids.tolist()]
            assert found.dtype == dtype
            assert [same(*each) for each in zip(found, expected, strict=True)] == [True] * len(ids)


@pytest.mark.parametrize("make", [torch.conj, lambda x: x.conj().imag, lambda x: x.t().contiguous().t(), torch.imag])
@pytest.mark.parametrize("remote", [False, True])
def test_tensors_of_any_form_that_the_user_puts_are_looked_up(make, remote):
    x = make(torch.rand(4, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(4)))
    store, other = (LocalFeatureStore.from_data(torch.arange(4), x=x) for _ in range(2))
    owners = torch.tensor([0, 1, 0, 1]) if remote else torch.zeros(4, dtype=torch.uint16)
    for part, each in enumerate((store, other)):
        each.partition_idx, each.node_feat_pb = part, owners
    store.client = Peers([store, other])
    found = store.lookup_features(torch.tensor([2, 1, 2])).wait()
    assert found.tolist() == [x[2].tolist(), x[1].tolist(), x[2].tolist()]


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_unsigned_features_with_gaps_between_values_are_looked_up(dtype):
    x = torch.arange(12).to(dtype).view(3, 4).t()
    store = LocalFeatureStore.from_data(torch.arange(4), x=x)
    store.node_feat_pb = torch.zeros(4, dtype=dtype)
    assert store.lookup_features(torch.tensor([3, 1])).wait().tolist() == [[3, 7, 11], [1, 5, 9]]


# --- what goes wrong


@pytest.fixture
def store(tmp_path):
    """Part 1 of 3 of a graph without types, without a client."""
    graph = plain_graph()
    partitioned(tmp_path, graph, book_of(graph, 3), ["native"])
    return LocalFeatureStore.from_partition(tmp_path, 1)


def test_what_a_lookup_refuses(refuses, store):
    refuses(IndexError, store.get_tensor_from_global_id, None, "x", torch.tensor([1, 5, 4]))
    refuses(IndexError, store.get_tensor_from_global_id, None, "x", torch.tensor([99]))
    refuses(ValueError, store.lookup_features, torch.tensor([1, 5, 4]))
    for no_node in (12, -1):
        refuses(IndexError, store.lookup_features, torch.tensor([1, no_node]))
    refuses(IndexError, store.lookup_features, torch.tensor([60]), False)
    refuses(KeyError, store.get_tensor, None, "z")
    refuses(KeyError, store.get_tensor_from_global_id, None, "z", torch.tensor([1]))
    refuses(KeyError, store.lookup_features, torch.tensor([1]), attr_name="z")
    refuses(ValueError, store.lookup_features, torch.tensor([1]), True, "paper")
    refuses(KeyError, store.get_tensor, "paper", "x")
    refuses(ValueError, store.get_tensor_from_global_id, None, "x")
    for read in (store.lookup_features, lambda index: store.get_tensor_from_global_id(None, "x", index)):
        refuses(TypeError, read, torch.tensor([True, False]))
        refuses(ValueError, read, torch.tensor([[1]]))


def test_lookups_without_owners_are_refused(refuses, tmp_path):
    store = LocalFeatureStore.from_data(torch.arange(3), x=torch.rand(3, 2))
    refuses(ValueError, store.lookup_features, torch.tensor([1]))
    refuses(ValueError, store.lookup_features, torch.tensor([1]), False)
    store.node_feat_pb = torch.zeros(3, dtype=torch.uint8)
    assert same(store.lookup_features(torch.tensor([2, 1])).wait(), store.get_tensor(None, "x")[[2, 1]])
    graph = plain_graph()
    partitioned(tmp_path, graph, book_of(graph), ["native"], edge_map=False)
    refuses(ValueError, LocalFeatureStore.from_partition(tmp_path, 0).lookup_features, torch.tensor([1]), False)


class Answers:
    """A client that answers, raises, or does what a test says."""

    def __init__(self, answer):
        self.answer = answer

    def fetch(self, part, ids, **_):
        future = Future()
        if isinstance(self.answer, Exception):
            future.set_exception(self.answer)
            return future
        if callable(self.answer):
            return self.answer(part, ids)
        future.set_result(self.answer)
        return future


def test_wrong_answers_and_errors_of_a_peer_are_in_the_future(refuses, store):
    for answer, error in (
        (torch.rand(2, 3), ValueError),
        (torch.rand(1, 4), ValueError),
        (torch.rand(1, 3).double(), ValueError),
        (None, TypeError),
        (ConnectionResetError("gone"), ConnectionResetError),
    ):
        store.client = Answers(answer)
        future = store.lookup_features(torch.tensor([1, 0, 4]))
        if error is ConnectionResetError:
            with pytest.raises(error, match="gone") as raised:
                future.wait()
            if hasattr(raised.value, "__notes__"):  # not in Python 3.10
                assert raised.value.__notes__ == ["while part 0 was asked for features"]
        else:
            refuses(error, future.wait)
    store.client = Answers(lambda part, ids: ids)
    refuses(TypeError, store.lookup_features, torch.tensor([0]))


def test_an_error_of_one_peer_comes_though_another_never_answers(store):
    silent, failed = Future(), Future()
    failed.set_exception(ConnectionResetError("gone"))
    store.client = Answers(lambda part, ids: {0: silent, 2: failed}[part])
    future = store.lookup_features(torch.tensor([1, 0, 2]))
    assert future.done()
    with pytest.raises(ConnectionResetError, match="gone"):
        future.wait()
    silent.set_result(torch.rand(1, 3))  # too late, and nothing happens
    with pytest.raises(ConnectionResetError, match="gone"):
        future.wait()


def test_a_callback_may_bring_a_late_answer(store):
    """Callbacks of the user run in the thread of the answer that ends a lookup; they would wait for its lock."""
    late, failed = Future(), Future()
    store.client = Answers(lambda part, ids: {0: late, 2: failed}[part])
    found = store.lookup_features(torch.tensor([1, 0, 2]))
    found.add_done_callback(lambda _: late.set_result(torch.zeros(1, 3)))
    thread = threading.Thread(target=lambda: failed.set_exception(ConnectionResetError("gone")), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert late.done()
    with pytest.raises(ConnectionResetError, match="gone"):
        found.wait()


def test_the_first_of_two_errors_counts(store, capfd):
    asked = {0: Future(), 2: Future()}
    store.client = Answers(lambda part, ids: asked[part])
    future = store.lookup_features(torch.tensor([1, 0, 2]))
    asked[2].set_exception(ConnectionResetError("first"))
    asked[0].set_exception(ConnectionResetError("second"))
    with pytest.raises(ConnectionResetError, match="first"):
        future.wait()
    assert capfd.readouterr() == ("", "")  # torch prints what a callback raises


def test_answers_may_come_in_other_threads(store):
    rows = torch.rand(12, 3)
    x = store.get_tensor(None, "x")

    def answer(part, ids):
        future = Future()
        threading.Thread(target=lambda: future.set_result(rows[ids])).start()
        return future

    store.client = Answers(answer)
    index = torch.arange(12)
    expected = rows.clone()
    expected[store.get_global_id(None)] = x
    for _ in range(20):
        assert same(store.lookup_features(index).wait(), expected)


# --- tensors that the user puts


def test_tensors_are_put_got_updated_and_removed():
    store = LocalFeatureStore()
    x = torch.rand(4, 2)
    assert store.put_tensor(x, group_name=None, attr_name="x")
    assert store.put_tensor(np.arange(4), "paper", "y")
    assert store.get_tensor(None, "x").data_ptr() == x.data_ptr()
    assert store.get_tensor("paper", "y", slice(1, 3)).tolist() == [1, 2]
    assert store.get_tensor({"group_name": "paper", "attr_name": "y", "index": torch.tensor([3, 0])}).tolist() == [3, 0]
    assert store.get_tensor("paper", "y", np.array([2]), convert_type=True).tolist() == [2]
    assert isinstance(store.get_tensor("paper", "y", np.array([2]), convert_type=True), np.ndarray)
    assert isinstance(store.get_tensor("paper", "y", np.array([2])), torch.Tensor)
    assert [(each.group_name, each.attr_name, each.index) for each in store.get_all_tensor_attrs()] == [
        (None, "x", None),
        ("paper", "y", None),
    ]
    assert store.get_tensor_size("paper", "y") == (4,)
    assert store.get_tensor_size("paper", "z") is None
    assert store.update_tensor(torch.zeros(2), "paper", "y")
    assert store.get_tensor("paper", "y").tolist() == [0, 0]
    for wrong, index in ((torch.ones(2), torch.tensor([0])), (torch.tensor(1.0), None)):
        with pytest.raises(ValueError, match="LocalFeatureStore"):
            store.update_tensor(wrong, "paper", "y", index)
        assert store.get_tensor("paper", "y").tolist() == [0, 0]
    assert store.remove_tensor("paper", "y")
    assert not store.remove_tensor("paper", "y")
    assert not store.has_edge_attr()
    store.put_tensor(torch.rand(1), ("a", "r", "a"), "edge_attr")
    assert store.has_edge_attr()


def test_tensors_that_are_none_are_refused(refuses):
    store = LocalFeatureStore()
    refuses(ValueError, store.put_tensor, torch.rand(2), "paper")
    refuses(ValueError, store.put_tensor, torch.rand(2), "paper", "x", torch.tensor([1]))
    refuses(ValueError, store.put_tensor, torch.tensor(2), "paper", "x")
    refuses(TypeError, store.put_tensor, [1, 2], "paper", "x")
    assert store.get_all_tensor_attrs() == []


@pytest.mark.parametrize("ids", [[2, 5, 9, 4000], [9, 2, 4000, 5], [7, 6, 5, 4], [4, 5, 6, 7]])
def test_global_ids_in_any_order_find_their_rows(ids):
    store, x = LocalFeatureStore(), torch.rand(4, 2)
    assert store.put_global_id(torch.tensor(ids), "paper")
    store.put_tensor(x, "paper", "x")
    assert store.get_global_id("paper").tolist() == ids
    for row, each in enumerate(ids):
        assert same(store.get_tensor_from_global_id("paper", "x", torch.tensor([each, ids[0]])), x[[row, 0]])
    for wrong in (-1, 3, 4001, 2**62):
        with pytest.raises(IndexError, match=f"does not have the id {wrong} of 'paper'"):
            store.get_tensor_from_global_id("paper", "x", torch.tensor([ids[1], wrong]))
    assert store.remove_global_id("paper")
    assert not store.remove_global_id("paper")
    assert store.get_global_id("paper") is None
    with pytest.raises(ValueError, match=r"\('paper', 'x'\) has 4 rows, and its group has no global ids"):
        store.get_tensor_from_global_id("paper", "x", torch.tensor([5]))


def test_global_ids_that_do_not_fit_are_refused(refuses):
    store, index = LocalFeatureStore(), torch.tensor([4])
    store.put_tensor(torch.rand(3), "paper", "x")
    store.put_global_id(torch.tensor([4, 2]), "paper")
    refuses(ValueError, store.get_tensor_from_global_id, "paper", "x", index)
    store.put_global_id(torch.tensor([4, 2, 4]), "paper")
    refuses(ValueError, store.get_tensor_from_global_id, "paper", "x", index)
    refuses(TypeError, store.put_global_id, torch.rand(3), "paper")


def test_from_data_and_from_hetero_data(refuses):
    x, y, w = torch.rand(3, 2), torch.arange(3), torch.rand(2, 1)
    ids, edge_ids = torch.tensor([5, 3, 9]), torch.tensor([7, 1])
    store = LocalFeatureStore.from_data(ids, x, y, edge_ids, w)
    assert same(store.get_tensor_from_global_id(None, "x", torch.tensor([3, 9])), x[[1, 2]])
    assert same(store.get_tensor_from_global_id(None, "y", torch.tensor([3])), y[[1]])
    assert same(store.get_tensor_from_global_id((None, None), "edge_attr", torch.tensor([1])), w[[1]])
    assert LocalFeatureStore.from_data(ids).get_all_tensor_attrs() == []
    refuses(ValueError, LocalFeatureStore.from_data, ids, edge_attr=w)
    likes = ("a", "likes", "a")
    store = LocalFeatureStore.from_hetero_data({"a": ids}, {"a": x}, {"a": y}, {likes: edge_ids}, {likes: w})
    assert same(store.get_tensor_from_global_id("a", "x", torch.tensor([9])), x[[2]])
    assert same(store.get_tensor_from_global_id(likes, "edge_attr", torch.tensor([7, 1])), w)
    refuses(ValueError, LocalFeatureStore.from_hetero_data, {"a": ids}, edge_attr_dict={likes: w})
