"""How the loaders iterate: the same batches for all workers and after kills and resumes, order, epochs, options."""

import inspect
import logging
import os
import signal
import threading
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from amounts import SPAWN, amount
from pipelines import BOUND_S
from pyg_cases import Data, assert_same, digest, digests, fields, pyg, random_data, random_hetero
from scripts import run_program
from torch.utils.data import BatchSampler, SequentialSampler

import datapipes as dp
from datapipes.processes import unforkable
from datapipes.pyg import torch_geometric_names
from datapipes.pyg.loader import LinkLoader, LinkNeighborLoader, NeighborLoader, NodeLoader
from datapipes.pyg.sampler import NeighborSampler

pytestmark = pytest.mark.filterwarnings("ignore:.*positive links:UserWarning")  # these sample the links themselves

BOTH = [
    (NeighborLoader, pyg.loader.NeighborLoader),
    (LinkNeighborLoader, pyg.loader.LinkNeighborLoader),
    (NodeLoader, pyg.loader.NodeLoader),
    (LinkLoader, pyg.loader.LinkLoader),
]


def node_loader(data=None, **given):
    return NeighborLoader(
        random_data(1) if data is None else data, [3, 2], **{"batch_size": 6, "shuffle": True, **given}
    )


# --- PyG's class


@pytest.mark.parametrize(("ours", "theirs"), BOTH)
def test_the_signatures_are_pygs_with_a_few_more(ours, theirs):
    found, expected = (inspect.signature(each.__init__).parameters for each in (ours, theirs))
    more = ["time_window", "seed"] if "time_attr" in expected else ["seed"]
    assert [*found] == [*list(expected)[:-1], *more, "kwargs"]
    for name, parameter in expected.items():
        assert found[name].default == parameter.default, name
        assert found[name].kind == parameter.kind, name
    assert found["seed"].default == 0


def test_the_loaders_are_pygs_where_code_looks():
    loader = node_loader(num_workers=0)
    assert isinstance(loader, pyg.loader.NeighborLoader)
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert (str(loader), len(loader), loader.batch_size, loader.dataset) == ("NeighborLoader()", 7, 6, range(40))
    assert isinstance(loader.node_sampler, NeighborSampler)
    assert loader.input_data.node.tolist() == list(range(40))
    assert loader.input_nodes is None
    links = LinkNeighborLoader(random_data(1), [2], batch_size=8)
    assert isinstance(links, pyg.loader.LinkNeighborLoader)
    assert isinstance(links.link_sampler, NeighborSampler)
    assert links.neg_sampling is None
    assert len(links.input_data.row) == 160


def test_another_version_of_pyg_is_refused_by_name():
    torch_geometric_names.refuse_untested(pyg.__version__)
    for version in ("2.7.0", "2.9.0.dev20261001", "3.0"):
        with pytest.raises(ImportError, match=f"found torch_geometric {version}; tested are versions from 2.8 to"):
            torch_geometric_names.refuse_untested(version)


# --- the same batches


@pytest.mark.parametrize("links", [False, True])
def test_any_number_of_workers_and_any_place_of_the_filter_gives_the_same_batches(links):
    data = random_data(2)

    def made(**options):
        if links:
            ratio = {"neg_sampling_ratio": 1.0}
            return LinkNeighborLoader(data, [3, 2], batch_size=30, shuffle=True, seed=4, **ratio, **options)
        return node_loader(data, seed=4, **options)

    def own(batch):
        batch.drawn = torch.rand(3)  # seeded for each batch
        return batch

    expected = digests(made(transform=own))
    ways = [
        {"num_workers": 1},
        {"num_workers": 2, "filter_per_worker": True, "persistent_workers": True},
        {"num_workers": 2, "filter_per_worker": False},
        {"num_workers": 2, "transform_sampler_output": lambda out: out},
    ]
    for way in ways[: amount(4, 3)]:
        loader = made(transform=own, **way)
        assert digests(loader) == expected, way
        if way.get("persistent_workers"):
            assert digests(loader) != expected  # the next epoch
        loader.close()


def test_workers_that_are_started_anew_give_the_same_batches():
    data = random_data(3)
    expected = digests(node_loader(data))
    assert digests(node_loader(data, num_workers=2, multiprocessing_context=SPAWN, filter_per_worker=True)) == expected


def test_a_batch_is_made_again_after_its_worker_was_killed(tmp_path):
    data = random_data(4)
    expected = digests(node_loader(data))
    marker = tmp_path / "die"
    marker.touch()
    assert digests(node_loader(data, num_workers=2, worker_init_fn=partial(die_once, marker))) == expected
    assert not marker.exists()


def die_once(marker: Path, _: int) -> None:
    """The first worker to come here is killed."""
    try:
        marker.unlink()
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_epoch_has_the_same_rest_and_then_the_next_epoch(workers):
    data = random_data(5)
    whole = node_loader(data, seed=3)
    first, second = digests(whole), digests(whole)
    assert first != second
    stopped = node_loader(data, seed=3, num_workers=workers)
    iterator = iter(stopped)
    taken = [digest(next(iterator)) for _ in range(3)]
    state = stopped.state_dict()
    assert (state["epoch"], state["next_index"]) == (0, 3)
    resumed = node_loader(data, seed=3)
    resumed.load_state_dict(state)
    assert taken + digests(resumed) == first
    assert digests(resumed) == second
    with pytest.raises(ValueError, match="belongs to another pipeline"):
        NeighborLoader(data, [3, 1], batch_size=6, shuffle=True, seed=3).load_state_dict(state)
    with pytest.raises(TypeError, match="needs a dict"):
        resumed.load_state_dict(None)


def test_epochs_follow_each_other_and_can_be_named():
    loader, again = node_loader(), node_loader()
    epochs = [digests(loader) for _ in range(3)]
    next(iter(again))  # a loop that ends early is an epoch
    assert digests(again) == epochs[1]
    again.set_epoch(2)
    assert digests(again) == epochs[2]
    ended = again.state_dict()
    assert ended["ended"]
    last = node_loader()
    last.load_state_dict(ended)
    assert digests(last) == digests(loader)
    last.load_state_dict(ended)
    last.set_epoch(2)
    assert digests(last) == epochs[2]
    iter(loader)  # uses none up
    assert node_loader().state_dict()["epoch"] == 0
    two = iter(loader), iter(loader)
    assert digest(next(two[0])) != digest(next(two[1]))
    assert len(list(two[0])) == 6 == len(list(two[1]))  # loops do not end each other


def test_a_call_is_a_function_of_its_places():
    loader, other = node_loader(), node_loader()
    batch = loader([5, 1, 9])
    assert batch.input_id.tolist() == [5, 1, 9]
    list(loader)
    assert_same(batch, loader(torch.tensor([5, 1, 9])))
    assert_same(batch, other([5, 1, 9]))
    assert digest(batch) != digest(node_loader(seed=1)([5, 1, 9]))
    assert loader.collate_fn([3]).input_id.tolist() == [3]  # as other loaders call it: drawn by torch's generator
    loader.filter_per_worker = False
    out = loader.collate_fn([3])
    assert isinstance(out, pyg.sampler.SamplerOutput)
    assert loader.filter_fn(out).input_id.tolist() == [3]
    assert loader([]).num_nodes == 0


def test_one_batch_of_an_epoch_is_made_again():
    loader = node_loader(transform=lambda batch: batch.update({"drawn": torch.rand(2)}))
    epochs = [list(loader) for _ in range(2)]
    assert_same(loader.minibatch(1, 3), epochs[1][3])
    assert_same(node_loader(transform=loader.transform).minibatch(0, 6), epochs[0][6])
    with pytest.raises(ValueError, match="index"):
        loader.minibatch(0, 7)


def test_a_state_without_a_rest_is_an_empty_loop_before_the_next_epoch():
    loader = node_loader()
    expected = [digests(loader) for _ in range(2)]
    again = node_loader()
    iterator = iter(again)
    for _ in range(7):
        next(iterator)
    state = again.state_dict()
    assert (state["next_index"], "ended" in state) == (7, False)
    resumed = node_loader()
    resumed.load_state_dict(state)
    assert list(resumed) == []
    assert digests(resumed) == expected[1]


def test_an_epoch_that_is_named_in_a_loop_and_nested_loops_are_epochs_of_their_own():
    loader, epochs = node_loader(), node_loader()
    expected = [digests(epochs) for _ in range(8)]
    for _ in loader:
        loader.set_epoch(7)
    assert digests(loader) == expected[7]
    nested, found = node_loader(batch_size=20), []
    for _ in nested:
        found.append(digests(nested))
    assert len(found) == 2
    assert found[0] != found[1]


def test_attributes_act_on_a_loop_that_goes_on_from_a_state():
    loader = node_loader()
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict(loader.state_dict())
    loader.transform = lambda batch: batch.batch_size
    assert list(loader) == [6, 6, 6, 6, 6, 4]
    with pytest.raises(TypeError, match="the order in a state must be two tensors, got 3"):
        NeighborLoader(random_data(1), [1], sampler=range(40)).load_state_dict({**loader.state_dict(), "order": 3})


ACT = {  # arguments of PyG's loaders and of torch's that the next loop reads
    *("data", "node_sampler", "link_sampler", "neg_sampling", "transform", "transform_sampler_output", "custom_cls"),
    *("filter_per_worker", "num_workers", "prefetch_factor", "timeout", "worker_init_fn", "multiprocessing_context"),
    *("pin_memory", "in_order"),
}


class OwnLoader(NeighborLoader):
    def __init__(self, data, num_neighbors, **kwargs):
        super().__init__(data, num_neighbors, **kwargs)
        self.num_neighbors = num_neighbors


@pytest.mark.parametrize("cls", [NeighborLoader, LinkNeighborLoader])
def test_an_argument_acts_on_the_next_loop_or_cannot_be_set_once_the_loader_is_built(cls):
    data = random_data(1)
    loader = cls(data, [3], batch_size=6)
    of_torch = inspect.signature(torch.utils.data.DataLoader.__init__).parameters
    names = {*inspect.signature(cls.__init__).parameters, *of_torch} - {"self", "kwargs"} - ACT
    for name in names:
        with pytest.raises(
            ValueError, match=f"^{name} attribute should not|^{cls.__name__}: {name} is fixed .* Build a new"
        ):
            setattr(loader, name, 5)
    own = OwnLoader(data, [3], batch_size=6)
    assert (own.num_neighbors, len(list(own))) == ([3], 7)


# --- what changes while the loop runs


def test_a_batch_has_the_values_of_the_moment_it_is_asked_for():
    data = Data(x=torch.nn.Parameter(torch.ones(40, 1)), edge_index=random_data(1).edge_index)
    for step, batch in enumerate(NeighborLoader(data, [-1], batch_size=4)):
        assert batch.x.requires_grad
        assert float(batch.x.detach().max()) == 1 + step
        with torch.no_grad():
            data.x += 1
            data.more = torch.arange(40) if step % 2 else None  # the data has other fields in each step
        assert ("more" in batch) == (step > 0 and step % 2 == 0)
    plain = random_data(1)
    loader = node_loader(plain)
    assert not loader([0]).x.requires_grad
    plain.x.requires_grad_()
    assert loader([0]).x.requires_grad
    with torch.no_grad():
        assert not next(iter(loader)).x.requires_grad


def test_methods_of_a_subclass_are_called_or_refused():
    class Own(NeighborLoader):
        def filter_fn(self, out):
            batch = super().filter_fn(out)
            batch.mine = 1
            return batch

    class Other(NeighborLoader):
        def collate_fn(self, index):
            return index

    for workers in (0, 2):
        loader = Own(random_data(1), [2], batch_size=20, num_workers=workers, filter_per_worker=True)
        assert [batch.mine for batch in loader] == [1, 1]
    assert loader([1]).mine == 1
    with pytest.raises(TypeError, match="Other: collate_fn is overridden"):
        Other(random_data(1), [2])


def test_stores_are_read_in_the_callers_thread_or_in_workers():
    class Store(pyg.testing.MyFeatureStore):
        def _get_tensor(self, attr):
            assert threading.current_thread() is threading.main_thread()
            return super()._get_tensor(attr)

    data = random_data(1)
    features, graph = Store(), pyg.testing.MyGraphStore()
    features.put_tensor(data.x, group_name=None, attr_name="x", index=None)
    graph.put_edge_index(tuple(data.edge_index), edge_type=None, layout="coo", size=(40, 40))
    given = {"input_nodes": torch.arange(40), "batch_size": 10}
    expected = digests(NeighborLoader((features, graph), [2], **given))
    assert digests(NeighborLoader((features, graph), [2], num_workers=2, **given)) == expected
    assert "pyg_slice" in NeighborLoader((features, graph), [2], num_workers=2, **given).explain()


# --- order


def test_torchs_samplers_give_the_order_which_is_drawn_here_and_stands_in_the_state():
    data = random_data(6)
    weights = torch.rand(40, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    sampler = torch.utils.data.WeightedRandomSampler(weights, 40)
    loader = NeighborLoader(data, [2], sampler=sampler, batch_size=9, num_workers=1)
    torch.manual_seed(7)
    expected = list(BatchSampler(sampler, 9, drop_last=False))
    torch.manual_seed(7)
    iterator = iter(loader)
    first = next(iterator)
    state = loader.state_dict()
    rest = [digest(batch) for batch in iterator]
    assert first.input_id.tolist() == expected[0]
    resumed = NeighborLoader(data, [2], sampler=sampler, batch_size=9)
    resumed.load_state_dict(state)
    assert digests(resumed) == rest
    assert [batch.input_id.tolist() for batch in resumed] != expected  # the next epoch is drawn
    batches = BatchSampler(SequentialSampler(range(40)), 15, drop_last=True)
    assert [batch.batch_size for batch in NeighborLoader(data, [2], batch_sampler=batches)] == [15, 15]
    endless = type("Endless", (), {"__iter__": lambda self: iter([3, -1, 0])})()  # a sampler without a length
    assert [batch.input_id.tolist() for batch in NeighborLoader(data, [2], sampler=endless)] == [[3], [39], [0]]
    with pytest.raises(IndexError, match=r"indices of the sampler must be in \[0, 40\), got 40"):
        next(iter(NeighborLoader(data, [2], sampler=[40], batch_size=1)))


def test_a_generator_gives_the_seed_and_drop_last_and_an_empty_set_are_as_in_torch():
    data = random_data(7)
    expected = digests(node_loader(data, seed=11))
    assert digests(node_loader(data, generator=torch.Generator().manual_seed(11))) == expected
    assert [batch.batch_size for batch in node_loader(data, drop_last=True)] == [6] * 6
    empty = NeighborLoader(data, [1], input_nodes=torch.empty(0, dtype=torch.int64))
    assert list(empty) == []
    assert "pyg_sample" in empty.explain()
    assert empty.state_dict()["epoch"] == 0
    assert list(node_loader(data, batch_size=41, drop_last=True)) == []


def test_arguments_of_torchs_loader_are_taken_dropped_or_refused(refuses):
    data = random_data(8)
    loader = node_loader(data, dataset=range(3), collate_fn=len, pin_memory=False, timeout=BOUND_S)
    assert len(list(loader)) == 7
    sampler = NeighborSampler(data, [3, 2])
    refuses(TypeError, node_loader, data, pin_memory_device="cuda")
    refuses(TypeError, node_loader, data, batch_size=None)
    refuses(ValueError, node_loader, data, num_workers=-1)
    refuses(ValueError, node_loader, data, seed=2**64)
    refuses(TypeError, node_loader, data, neighbor_sampler=3)
    refuses(ValueError, node_loader, data, neighbor_sampler=sampler, time_window=3)
    refuses(ValueError, node_loader, data, generator=torch.Generator(), seed=2)
    for name, value in (("prefetch_factor", 3), ("persistent_workers", True), ("num_of_workers", 2)):
        with pytest.raises((ValueError, TypeError), match=name):  # torch's own words
            node_loader(data, **{name: value})
    with pytest.raises(ValueError, match="time_attr is not"):  # PyG's
        node_loader(data, input_time=torch.arange(40))
    with pytest.raises(ValueError, match="'edge_label_time' is set while 'time_attr' is not set"):
        LinkNeighborLoader(data, [1], edge_label_time=data.edge_time)
    assert digests(node_loader(data, neighbor_sampler=sampler)) == digests(node_loader(data))


# --- workers


def test_workers_are_threads_where_a_fork_is_not_safe_and_the_log_says_so(monkeypatch, caplog):
    data = random_data(9)

    def own(batch):
        batch.drawn = torch.rand(2)
        return batch

    expected = digests(node_loader(data, transform=own))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert unforkable.why_not_to_fork() is not None
    loader = node_loader(data, transform=own, num_workers=2, filter_per_worker=True)
    with caplog.at_level(logging.WARNING, logger="datapipes"):
        assert digests(loader) == expected
        assert len(list(loader)) == 7
    assert [record.message for record in caplog.records] == [
        "NeighborLoader: this process has initialised CUDA, so its workers are threads"
    ]
    assert "2 worker threads" in loader.explain()


def test_workers_know_that_they_are_workers():
    def init(number):
        assert torch.utils.data.get_worker_info().id == number

    def tell(batch):
        batch.worker = torch.utils.data.get_worker_info().id
        return batch

    loader = node_loader(num_workers=2, worker_init_fn=init, transform=tell, persistent_workers=True)
    assert {batch.worker for batch in loader} <= {0, 1}
    running = loader._running
    assert len(list(loader)) == 7
    assert loader._running is running  # which persists
    assert torch.utils.data.get_worker_info() is None
    loader.close()


def test_a_sampler_of_the_users_is_called_once_at_a_time_in_threads(monkeypatch):
    class Stateful(pyg.sampler.BaseSampler):
        def sample_from_nodes(self, index, **kwargs):
            self.current = index.node
            for _ in range(100):
                torch.randn(50).sort()  # lets other threads run
            none = torch.empty(0, dtype=torch.int64)
            return pyg.sampler.SamplerOutput(self.current, none, none, None, metadata=(index.input_id, None))

        sample_from_edges = sample_from_nodes

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    loader = NodeLoader(random_data(1), Stateful(), batch_size=4, num_workers=2)
    assert "2 worker threads" in loader.explain()
    for batch in loader:
        assert torch.equal(batch.n_id, batch.input_id)


@pytest.mark.full
def test_a_script_without_a_guard_runs_with_workers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import warnings; warnings.simplefilter('ignore')\n"
        "import torch\n"
        "from torch_geometric.data import Data\n"
        "from datapipes.pyg.loader import NeighborLoader\n"
        "data = Data(x=torch.randn(50, 3), edge_index=torch.randint(0, 50, (2, 300)))\n"
        "loader = NeighborLoader(data, [3, 2], batch_size=10, num_workers=2, transform=lambda batch: batch)\n"
        "for epoch in range(2):\n"
        "    print(sum(batch.batch_size for batch in loader))\n"
        "print(next(iter(loader)).batch_size)\n"
    )
    done = run_program(script, folder=tmp_path, timeout_s=BOUND_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["50", "50", "10"]


def test_pygs_context_managers_act_on_workers():
    loader = node_loader(num_workers=1)
    core = min(os.sched_getaffinity(0))
    with loader.enable_cpu_affinity(loader_cores=[core]):
        assert len(list(loader)) == 7
    with pytest.raises(ValueError, match="at least one"), node_loader().enable_cpu_affinity():
        pass
    with loader.enable_memory_log():
        assert len(list(loader)) == 7


def test_the_chain_shows_itself(tmp_path):
    loader = node_loader(num_workers=2)
    assert isinstance(loader.datapipe, dp.Stage)
    text = loader.explain()
    assert "item_sampler" in text
    assert "pyg_sample" in text
    assert "NeighborSampler(CSCGraph(40 nodes, 160 edges" in text
    assert loader.stats() == {}
    list(loader)
    assert loader.stats()["1 pyg_sample"]["calls"] >= 7
    loader.report(tmp_path / "report.html")
    assert "1 pyg_sample" in (tmp_path / "report.html").read_text()
    loader.close()
    assert len(list(loader)) == 7


# --- a sampler of the user's


class Own(pyg.sampler.BaseSampler):
    """Draws by torch's generator, as samplers of PyG's users do."""

    def __init__(self, data: Data) -> None:
        self.num_nodes = data.num_nodes

    def sample_from_nodes(self, index, **kwargs):
        nodes = torch.cat((index.node, torch.randint(self.num_nodes, (3,))))
        none = torch.empty(0, dtype=torch.int64)
        return pyg.sampler.SamplerOutput(nodes, none, none, None, metadata=(index.input_id, index.time))

    def sample_from_edges(self, index, neg_sampling=None):
        out = self.sample_from_nodes(pyg.sampler.NodeSamplerInput(index.input_id, index.row))
        out.metadata = (index.input_id, torch.stack((index.row, index.col)), index.label, None)
        return out


def test_a_sampler_of_the_users_has_our_workers_order_and_resume():
    data = random_data(10)

    def made(**options):
        return NodeLoader(data, Own(data), batch_size=8, shuffle=True, seed=2, **options)

    torch.manual_seed(3)
    before = torch.get_rng_state()
    loader = made()
    expected = digests(loader)
    assert torch.equal(before, torch.get_rng_state())  # seeded, and set back
    assert digests(made(num_workers=2)) == expected
    assert digests(made(num_workers=1, filter_per_worker=True)) == expected
    iterator = iter(loader)
    second = [digest(next(iterator)) for _ in range(2)]
    resumed = made()
    resumed.load_state_dict(loader.state_dict())
    assert second + digests(resumed) == second + [digest(batch) for batch in iterator]
    links = LinkLoader(data, Own(data), batch_size=50, num_workers=1)
    assert digests(links) == digests(LinkLoader(data, Own(data), batch_size=50))


# --- our graphs


def test_our_graphs_give_batches_with_their_attributes():
    data = random_data(11)
    graph = dp.CSCGraph.from_edge_index(
        data.edge_index, 40, node_attributes={"x": data.x, "time": data.time}, edge_attributes={"w": data.edge_weight}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = NeighborLoader(graph, [3, 2], batch_size=6, weight_attr="w")
    for batch in loader:
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.w, data.edge_weight[batch.e_id])
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    links = LinkNeighborLoader(graph, [2], batch_size=40, time_attr="time", edge_label_time=data.edge_time)
    assert torch.equal(next(iter(links)).input_id, torch.arange(40))
    hetero = random_hetero(2)
    typed = dp.HeteroCSCGraph.from_pyg(hetero)
    ours, theirs = (NeighborLoader(each, [-1], input_nodes="paper", batch_size=30) for each in (typed, hetero))
    one, other = next(iter(ours)), next(iter(theirs))
    for of in hetero.edge_types:
        assert torch.equal(one[of].e_id, other[of].e_id)
        assert torch.equal(one[of].edge_attr, other[of].edge_attr)
    assert fields(one).keys() - fields(other).keys() == {("paper", "num_nodes"), ("author", "num_nodes")}
    ids = torch.arange(160) + 5
    with pytest.raises(ValueError, match="are not 0 to 159, each once"):
        NeighborLoader(dp.CSCGraph(graph.indptr, graph.indices, edge_ids=ids), [1])
