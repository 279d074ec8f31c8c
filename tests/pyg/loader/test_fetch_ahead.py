"""Batches that threads fill before the loop asks for them: the same batches, and every change that torch tells of."""

import contextlib
import multiprocessing
import os
import random
import signal
import threading
import weakref

import numpy as np
import pytest
import torch
from amounts import amount
from pyg_cases import Data, OwnSampler, digest, digests, pyg, random_data, random_hetero, stores_of

import datapipes as dp
from datapipes.base import rows as base_rows
from datapipes.pyg.loader import LinkNeighborLoader, NeighborLoader, NodeLoader, batch_form
from datapipes.pyg.loader.view import View
from datapipes.pyg.sampler import NeighborSampler

pytestmark = pytest.mark.filterwarnings("ignore:.*positive links:UserWarning")  # these sample the links themselves

AT_NEXT = [{"num_workers": 0}, {"num_workers": 2, "fetch_ahead": False}]
AHEAD = [{"num_workers": 0, "fetch_ahead": True}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}]


def data_of_ones() -> Data:
    edge_index = random_data(1).edge_index
    ones = torch.ones(40, 1), torch.ones(edge_index.shape[1], 1)
    return Data(x=ones[0], edge_attr=ones[1], edge_index=edge_index, num_nodes=40)


def tensors_of(data):
    """The data without its arrays, which are always read at `next`."""
    for store in data.stores:
        for key in [key for key, value in store.items() if isinstance(value, np.ndarray)]:
            del store[key]
    return data


@pytest.fixture
def gathered_in(monkeypatch):
    """The threads that gathered rows, in order."""
    threads = []

    def noting(*args, **kwargs):
        threads.append(threading.current_thread())
        return base_rows.take_rows(*args, **kwargs)

    monkeypatch.setattr(batch_form, "take_rows", noting)
    return threads


def all_are_ahead(loader, gathered_in) -> bool:
    """Whether the loop gathers nothing itself, after its first batch."""
    iterator = iter(loader)
    next(iterator)
    del gathered_in[:]
    for _ in iterator:
        pass
    return len(gathered_in) > 0 and threading.main_thread() not in gathered_in


# --- the same batches


@pytest.mark.parametrize("options", AHEAD, ids=str)
@pytest.mark.parametrize(
    ("make", "data"),
    [
        (
            lambda data, **options: NeighborLoader(data, [3, 2], batch_size=6, shuffle=True, **options),
            tensors_of(random_data(1)),
        ),
        (lambda data, **options: LinkNeighborLoader(data, [3, 2], batch_size=9, **options), tensors_of(random_data(2))),
        (
            lambda data, **options: NeighborLoader(data, [3, 2], "paper", batch_size=6, disjoint=True, **options),
            tensors_of(random_hetero(1)),
        ),
    ],
    ids=["nodes", "links", "types"],
)
def test_batches_are_the_same_and_the_loop_gathers_nothing(make, data, options, gathered_in):
    expected = digests(make(data))
    assert threading.main_thread() in gathered_in
    loader = make(data, **options)
    assert digests(loader) == expected
    assert all_are_ahead(loader, gathered_in)


@pytest.mark.parametrize("options", AT_NEXT, ids=str)
def test_the_loop_gathers_the_rows_where_it_is_told_to(options, gathered_in):
    list(NeighborLoader(random_data(1), [2], batch_size=10, **options))
    assert {*gathered_in} == {threading.main_thread()}


def test_a_sampler_of_the_users_in_workers_gets_rows_ahead_too(gathered_in):
    data = tensors_of(random_data(1))
    own = OwnSampler(NeighborSampler(data, [3, 2], seed=1).sample_from_nodes)
    assert all_are_ahead(NodeLoader(data, own, batch_size=4, num_workers=2), gathered_in)


# --- changes in the loop


def add_one(data):
    data.x += 1
    data.edge_attr.add_(1)


def replace(data):
    data.x, data.edge_attr = data.x + 1, data.edge_attr + 1


def replace_memory(data):
    data.x.data, data.edge_attr.data = data.x + 1, data.edge_attr + 1


def add_to_whole(data):
    """Through the tensor that the attribute is a view of."""
    data.x[:].add_(1)
    data.edge_attr.view(-1)[:] += 1


@pytest.mark.parametrize("options", [*AT_NEXT, *AHEAD], ids=str)
@pytest.mark.parametrize("change", [add_one, replace, replace_memory, add_to_whole])
def test_a_batch_has_the_values_of_the_moment_it_is_asked_for(change, options):
    data = data_of_ones()
    for step, batch in enumerate(NeighborLoader(data, [-1], batch_size=2, **options)):
        assert batch.x.unique().tolist() == [1 + step]
        assert batch.edge_attr.unique().tolist() in ([], [1 + step])
        change(data)
    assert step == 19


def test_rows_are_gathered_anew_after_the_tensor_was_moved():
    """Moved while no thread reads: torch frees the memory where the values were at once."""
    data = data_of_ones()
    loader = NeighborLoader(data, [-1], batch_size=2)
    view = loader.view
    view.look()
    out = view.sampled(torch.arange(2))
    view.fill_ahead(out)
    behind = data.x.clone()
    data.x.share_memory_()
    out.ahead.batch.x.fill_(7)
    assert torch.equal(view.sliced(out).x, behind[out.node])


@pytest.mark.parametrize("change", [lambda x: x.t_(), lambda x: setattr(x, "data", x.data.view(torch.int32))])
def test_rows_follow_a_tensor_whose_form_changes(change):
    data = Data(x=torch.rand(40, 40), edge_index=random_data(1).edge_index)
    for options in (*AT_NEXT, *AHEAD):
        for batch in NeighborLoader(data, [-1], batch_size=10, **options):
            assert torch.equal(batch.x, data.x[batch.n_id])
            change(data.x)
        data.x = torch.rand(40, 40)


@pytest.mark.parametrize("options", [*AT_NEXT, *AHEAD], ids=str)
def test_a_batch_has_the_attributes_of_the_moment_it_is_asked_for(options):
    data = data_of_ones()
    loader = NeighborLoader(data, [-1], batch_size=2, **options)
    for step, batch in enumerate(loader):
        assert ("x" in batch) == (step % 4 < 2)
        assert ("more" in batch) == (step % 3 == 1)
        if step % 4 == 1:
            del data.x
        if step % 4 == 3:
            data.x = torch.rand(40, 3)
        if "more" in batch:
            assert torch.equal(batch.more, batch.n_id + step)
            del data.more
        if step % 3 == 0:
            data.more = torch.arange(40) + step + 1
    assert step == 19


@pytest.mark.parametrize("options", [*AT_NEXT, *AHEAD], ids=str)
def test_a_batch_has_what_belongs_to_the_whole_graph_at_the_moment_it_is_asked_for(options):
    """Also attributes that begin with "_", which PyG keeps apart."""
    data = random_hetero(1)
    for step, batch in enumerate(NeighborLoader(data, [2], "paper", batch_size=8, **options)):
        now = [step] * 2 if step else [None] * 2
        assert [batch.get("year"), getattr(batch["paper"], "_year", None)] == now
        data.year = data["paper"]._year = step + 1
    assert step > 2


@pytest.mark.parametrize("options", AHEAD, ids=str)
def test_a_number_that_each_step_sets_costs_no_batch_that_was_filled_ahead(options, gathered_in):
    data = tensors_of(random_data(1))
    data.step = 0
    for step, batch in enumerate(NeighborLoader(data, [2], batch_size=4, **options)):
        assert batch.step == step
        data.step = step + 1
        if step == 0:
            del gathered_in[:]
    assert threading.main_thread() not in gathered_in


def test_a_whole_value_that_is_set_while_a_thread_fills_is_taken_anew(monkeypatch):
    data = data_of_ones()
    data.step = "before"
    view = NeighborLoader(data, [-1], batch_size=2).view
    view.look()
    fill = batch_form.BatchForm._fill

    def set_meanwhile(form, batch, slots, sampled):
        data.step = "meanwhile"
        assert form.holds(data)  # as the loop asks at its next batch
        fill(form, batch, slots, sampled)

    out = view.sampled(torch.arange(2))
    with monkeypatch.context() as patch:
        patch.setattr(batch_form.BatchForm, "_fill", set_meanwhile)
        view.fill_ahead(out)
    data.step = "now"
    assert view.sliced(out).step == "now"


@pytest.mark.filterwarnings("ignore:.*the whole of")
@pytest.mark.parametrize("options", [*AT_NEXT, *AHEAD], ids=str)
def test_values_that_are_deleted_after_the_loop_are_let_go(options):
    data = data_of_ones()
    data.whole = torch.ones(7, 1)
    loader = NeighborLoader(data, [2], batch_size=10, **options)
    list(loader)
    held = [weakref.finalize(values, lambda: None) for values in (data.x, data.whole)]
    del data.x, data.whole
    assert [values.alive for values in held] == [False] * 2


@pytest.mark.parametrize("options", [*AT_NEXT, *AHEAD], ids=str)
def test_what_the_loader_sets_is_not_overwritten_by_a_change_of_the_data(options):
    data = data_of_ones()
    data.batch = data.input_id = torch.zeros(40, dtype=torch.int64)
    for step, batch in enumerate(NeighborLoader(data, [-1], batch_size=2, **options)):
        assert batch.batch is None
        assert batch.input_id.tolist() == [2 * step, 2 * step + 1]
        data.batch += 1


@pytest.mark.parametrize("options", [*AT_NEXT, *AHEAD], ids=str)
def test_deleted_attributes_are_let_go(options):
    data = data_of_ones()
    data.more = np.ones((40, 1))
    iterator = iter(NeighborLoader(data, [2], batch_size=2, **options))
    next(iterator)
    held = [weakref.finalize(values, lambda: None) for values in (data.x, data.edge_attr, data.more)]
    del data.x, data.edge_attr, data.more
    for _ in range(12):  # those that were made before have rows of them
        next(iterator)
    assert [values.alive for values in held] == [False] * 3


@pytest.mark.parametrize("options", [*AT_NEXT, *AHEAD], ids=str)
def test_other_data_is_sliced_from_the_next_batch_on(options):
    loader = NeighborLoader(data_of_ones(), [-1], batch_size=2, **options)
    for step, batch in enumerate(loader):
        assert batch.x.unique().tolist() == [1 + step]
        other = data_of_ones()
        other.x += 1 + step
        loader.data = other


@pytest.mark.parametrize("options", [*AT_NEXT, *AHEAD], ids=str)
def test_a_parameter_is_read_at_next_with_its_gradient(options, gathered_in):
    data = data_of_ones()
    del data.edge_attr
    weight = data.x = torch.nn.Parameter(data.x)
    for step, batch in enumerate(NeighborLoader(data, [-1], batch_size=2, **options)):
        assert batch.x.requires_grad
        assert batch.x.detach().unique().tolist() == [1 + step]
        weight.grad = None
        batch.x.sum().backward()
        assert weight.grad.nonzero()[:, 0].tolist() == sorted(batch.n_id.tolist())
        with torch.no_grad():
            weight += 1
    assert gathered_in == []


@pytest.mark.parametrize("options", [*AT_NEXT, *AHEAD], ids=str)
def test_a_tensor_that_begins_to_need_a_gradient_has_it_in_the_next_batch(options):
    data = data_of_ones()
    for step, batch in enumerate(NeighborLoader(data, [-1], batch_size=2, **options)):
        assert batch.x.requires_grad == (step % 2 == 1)
        data.x.requires_grad_(step % 2 == 0)


@pytest.mark.parametrize("options", [*AT_NEXT, *AHEAD], ids=str)
def test_arrays_and_tensors_of_inference_mode_tell_of_no_change_and_are_read_at_next(options, gathered_in):
    with torch.inference_mode():
        x = torch.ones(40, 1)
    data = Data(x=x, more=np.ones((40, 1)), edge_index=random_data(1).edge_index)
    for step, batch in enumerate(NeighborLoader(data, [-1], batch_size=2, **options)):
        assert batch.x.unique().tolist() == batch.more.unique().tolist() == [1 + step]
        with torch.inference_mode():
            data.x += 1
        data.more += 1
    assert {*gathered_in} == {threading.main_thread()}


def test_a_change_by_numpy_is_seen_by_what_is_gathered_after_it():
    data, behind = data_of_ones(), np.zeros((40, 1), np.float32)
    data.x = torch.from_numpy(behind)
    loader = NeighborLoader(data, [-1], batch_size=2, fetch_ahead=True)
    iterator = iter(loader)
    next(iterator)
    behind += 1  # torch does not know
    assert {*torch.cat([batch.x for batch in iterator]).unique().tolist()} <= {0.0, 1.0}
    assert torch.cat([batch.x for batch in loader]).unique().tolist() == [1]
    at_next = NeighborLoader(data, [-1], batch_size=2)
    for step, batch in enumerate(at_next):
        assert batch.x.unique().tolist() == [1 + step]
        behind += 1


def test_a_function_of_the_users_that_is_set_in_the_loop_gets_the_rows_of_its_own_output():
    data = random_data(1)
    loader = NeighborLoader(data, [-1], batch_size=2, fetch_ahead=True)

    def first_two(out):
        out.node, out.row, out.col, out.edge = out.node[:2], out.row[:0], out.col[:0], out.edge[:0]
        return out

    for step, batch in enumerate(loader):
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert step == 0 or len(batch.n_id) == 2
        loader.transform_sampler_output = first_two


@pytest.mark.parametrize("options", AHEAD, ids=str)
def test_a_loop_that_is_interrupted_at_its_first_batch_goes_on_from_its_state(options, monkeypatch):
    loader, before = (NeighborLoader(random_data(1), [2], batch_size=10, **options) for _ in range(2))
    first = iter(before)
    next(first)
    loader.load_state_dict(before.state_dict())
    look, interrupted = View.look, []

    def interrupt_once(view):
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        look(view)

    monkeypatch.setattr(View, "look", interrupt_once)
    iterator = iter(loader)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert digests(iterator) == digests(first)
    assert loader.state_dict()["epoch"] == 0


def test_fetch_ahead_may_be_set_between_loops_of_workers_that_persist(gathered_in):
    data = tensors_of(random_data(1))
    features = {"more": dp.TensorFeature(torch.rand(40, 2))}
    loader = NeighborLoader(data, [2], batch_size=2, num_workers=2, persistent_workers=True, features=features)
    assert all_are_ahead(loader, gathered_in)
    loader.fetch_ahead = False
    del gathered_in[:]
    list(loader)
    assert {*gathered_in} == {threading.main_thread()}
    loader.close()


# --- where nothing can be gathered ahead


class OwnFilter(NeighborLoader):
    def filter_fn(self, out):
        return super().filter_fn(out)


class OwnData(Data):
    pass


def same(value):
    return value


def test_fetch_ahead_is_refused_where_nothing_could_be_gathered(refuses):
    data = random_data(1)
    own = OwnData(**data.to_dict())
    for loader in (
        OwnFilter(data, [2], fetch_ahead=True),
        NeighborLoader(data, [2], transform_sampler_output=same, fetch_ahead=True),
        NodeLoader(data, OwnSampler(same), fetch_ahead=True),
        NeighborLoader(data, [2], num_workers=1, filter_per_worker=True, fetch_ahead=True),
        NeighborLoader(stores_of(data, node_names=()), [2], torch.arange(40), fetch_ahead=True),
        NeighborLoader(own, [2], fetch_ahead=True),
    ):
        refuses(ValueError, next, iter(loader))
        loader.fetch_ahead = False
        assert "pyg_fetch" not in loader.explain()
    refuses(TypeError, NeighborLoader, data, [2], fetch_ahead="yes")
    refuses(TypeError, setattr, loader, "fetch_ahead", "no")


def test_where_nothing_can_be_gathered_ahead_workers_do_as_before():
    for loader in (OwnFilter(random_data(1), [2], num_workers=2), NeighborLoader(random_data(1), [2], num_workers=0)):
        assert "pyg_fetch" not in loader.explain()
    text = NeighborLoader(random_data(1), [2], num_workers=2).explain()
    assert text.index("pyg_sample") < text.index("thread 1") < text.index("pyg_fetch")


@pytest.mark.filterwarnings("ignore:.*the whole of")
@pytest.mark.parametrize("options", [*AT_NEXT, {"num_workers": 2}], ids=str)
def test_a_class_of_the_users_slices_along_its_own_dimension(options):
    class Transposed(pyg.data.Batch):
        def __cat_dim__(self, key, value, *args, **kwargs):
            return 1 if key == "columns" else super().__cat_dim__(key, value, *args, **kwargs)

    data = Transposed.from_data_list([data_of_ones(), data_of_ones()])
    data.columns = torch.rand(80, 80)
    for batch in NeighborLoader(data, [2], batch_size=8, **options):
        assert torch.equal(batch.columns, data.columns[:, batch.n_id])


def test_a_class_of_the_users_copies_itself_once_a_batch():
    copies = []

    class Own(Data):
        def __copy__(self):
            copies.append(self)
            copied = Own(**{name: value for name, value in self.to_dict().items() if name != "edge_attr"})
            return copied

    loader = NeighborLoader(Own(**data_of_ones().to_dict()), [2], batch_size=10)
    del copies[:]
    for batch in loader:
        assert torch.equal(batch.edge_attr, torch.ones(batch.num_edges, 1))
    assert len(copies) == len(loader)


# --- faults


@pytest.mark.parametrize("options", [*AT_NEXT, *AHEAD], ids=str)
def test_the_loop_goes_on_after_an_error_of_a_batch(options):
    data = data_of_ones()
    loader = NeighborLoader(data, [2], batch_size=2, features={"more": dp.TensorFeature(torch.rand(40, 2))}, **options)
    iterator = iter(loader)
    next(iterator)
    data.more = torch.rand(40, 1)
    with pytest.raises(ValueError, match="more was added to the data"):
        next(iterator)
    del data.more
    assert len([*iterator]) == 18


@pytest.mark.parametrize("options", AHEAD, ids=str)
def test_ids_without_a_row_are_an_error_of_their_batch(options):
    data = random_data(1)
    loader = NeighborLoader(data, [-1], batch_size=2, **options)
    iterator = iter(loader)
    next(iterator)
    data._store._mapping["x"] = data.x[:1]
    with pytest.raises(IndexError, match=r"found an id without a row in x \[1, .* build a new loader"):
        next(iterator)


def test_batches_are_the_same_while_forked_workers_are_killed():
    data, left, choice = random_data(3), amount(100, 5), random.Random(0)
    given = {"batch_size": 1, "shuffle": True}
    expected = digests(NeighborLoader(data, [3, 2], **given))
    while left > 0:
        got, before = [], left
        for batch in NeighborLoader(data, [3, 2], num_workers=2, **given):
            got.append(digest(batch))
            if len(got) % 8 == 1 and left > 0 and (alive := multiprocessing.active_children()):
                with contextlib.suppress(ProcessLookupError):  # it may have been reaped meanwhile
                    os.kill(choice.choice(alive).pid, signal.SIGKILL)
                    left -= 1
        assert got == expected
        assert left < before, "the workers are no processes: a server that an earlier test left forbids to fork"
