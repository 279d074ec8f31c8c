"""A state is refused over data that differ in one element, wherever it is; and data that change meanwhile are refused.

What is read: the topology, weights, times of edges and of nodes, seeds, labels and fields of the user's own.
"""

import copy
import itertools
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from amounts import examples, ranked
from hypothesis import given
from hypothesis import strategies as st
from pipelines import BOUND_S, NUM_NODES, item_set, items, sampled, small_graph

import datapipes as dp
from datapipes.base import array_digest as digests_of_arrays
from datapipes.chain import run
from datapipes.chain.stage_graph import StageGraph

EDGES, USER, PAPER = 200, "user", "paper"
READS = (USER, "reads", PAPER)


class Data:
    """All arrays that decide about a minibatch, by name, with types or without; and the chain over them."""

    def __init__(self, with_types: bool, index_dtype: torch.dtype = torch.int64) -> None:
        graph = small_graph(index_dtype)
        self.with_types = with_types
        self.arrays = {
            "indptr": graph.indptr,
            "indices": graph.indices,
            "edge_ids": graph.edge_ids,
            "weight": torch.arange(EDGES).remainder(9).double() + 1,
            "edge_time": torch.arange(EDGES) * 31 % 77,
            "node_time": torch.arange(NUM_NODES) * 17 % 41,
            "seeds": torch.arange(22) * 7 % NUM_NODES,
            "labels": torch.arange(22).float(),
            "timestamps": torch.arange(22) + 60,
            "own": torch.arange(66).view(22, 3).half(),
        }

    def state(self, time_window: int | None = 50) -> dict:
        arrays = self.arrays
        seeds = dp.ItemSet(
            tuple(arrays[name] for name in ("seeds", "labels", "timestamps", "own")),
            names=("seeds", "labels", "timestamps", "own"),
        )
        of_edges = {"w": arrays["weight"], "t": arrays["edge_time"]}
        of_nodes = {"t": arrays["node_time"]}
        topology = (arrays["indptr"], arrays["indices"])
        if self.with_types:
            graph = dp.HeteroCSCGraph(
                {READS: topology},
                {USER: NUM_NODES, PAPER: NUM_NODES},
                node_attributes={USER: of_nodes},
                edge_attributes={READS: of_edges},
                edge_ids={READS: arrays["edge_ids"]},
            )
            seeds = dp.HeteroItemSet({PAPER: seeds})
        else:
            graph = dp.CSCGraph(
                *topology, node_attributes=of_nodes, edge_attributes=of_edges, edge_ids=arrays["edge_ids"]
            )
        pipe = dp.ItemSampler(seeds, 4, shuffle=True, seed=1)
        pipe = pipe.sample_neighbor(graph, fanouts=[3], prob_name="w")
        pipe = pipe.temporal_sample_neighbor(
            graph, [2], node_time_attr="t", edge_time_attr="t", time_window=time_window
        )
        self.pipe = pipe
        return pipe.state_dict()


def changed(values: torch.Tensor, place: int) -> torch.Tensor:
    """Another tensor, in which one element differs; an offset or an id stays one that the graph may have."""
    found = values.clone()
    flat = found.view(-1)
    flat[place] = flat[place] - 1 if flat[place] > 0 else flat[place] + 1
    return found


@examples(120)
@given(st.data(), st.booleans(), st.sampled_from([torch.int32, torch.int64]))
def test_one_changed_element_anywhere_is_another_state(data, with_types, index_dtype):
    given_data = Data(with_types, index_dtype)
    state = given_data.state()
    name = data.draw(st.sampled_from(sorted(given_data.arrays)))
    values = given_data.arrays[name]
    inner = values.diff().nonzero().flatten() + 1 if name == "indptr" else torch.arange(values.numel())
    if name == "node_time":
        inner = given_data.arrays["indices"].unique()  # the time of a node that no edge comes from is never read
    place = int(inner[data.draw(st.integers(0, len(inner) - 1))])
    if name == "indptr" and place == values.shape[0] - 1:
        place = int(inner[0])
    given_data.arrays[name] = changed(values, place)
    assert given_data.state()["fingerprint"] != state["fingerprint"]
    with pytest.raises(ValueError, match=r"belongs to another pipeline: .*digest was"):
        given_data.pipe.load_state_dict(state)
    given_data.arrays[name] = values.clone()
    assert given_data.state() == state


@pytest.mark.parametrize(("time_window", "counts"), [(50, True), (None, False)])
def test_of_two_times_the_earlier_counts_only_with_a_window(time_window, counts):
    given_data = Data(with_types=False)
    found = []
    for earlier in (9, 40):  # than the time of any edge, so only the lower end of the window reads it
        given_data.arrays["node_time"] = torch.full((NUM_NODES,), earlier)
        given_data.arrays["edge_time"] = torch.arange(EDGES) % 15 + 45
        state = given_data.state(time_window)
        found.append((state, [each.digest() for each in given_data.pipe]))
    (before, minibatches), (after, others) = found
    assert (after != before) is counts
    assert (others != minibatches) is counts


@pytest.mark.parametrize("with_types", [False, True])
def test_the_states_of_this_data_never_change(with_types):
    digests = {key: value for key, value in Data(with_types).state()["fingerprint"].items() if key.endswith("digest")}
    assert digests == GOLDEN[with_types]


GOLDEN = {
    False: {
        "0.item_sampler.item_digest": "725c9a577cb557134155b5ccaca2d7a0",
        "1.sample_neighbor.graph_digest": "bf72cabc57e629191ab1a7b7ef28436a",
        "1.sample_neighbor.weights_digest": "float64:775f010bd95d98cd1c4488bd7fc4127e",
        "2.temporal_sample_neighbor.graph_digest": "bf72cabc57e629191ab1a7b7ef28436a",
        "2.temporal_sample_neighbor.times_digest": [
            "int64:229fb7822338da527cbe4b577844a324",
            "int64:85c9f18dffc2f9334508ca73633c5042",
        ],
    },
    True: {
        "0.item_sampler.item_digest": "2bc6658a1575d5843859f830b91a2fb5",
        "1.sample_neighbor.graph_digest": "5070397c008c0ffc87a8181ea5f6f1a5",
        "1.sample_neighbor.weights_digest": {"user:reads:paper": "float64:775f010bd95d98cd1c4488bd7fc4127e"},
        "2.temporal_sample_neighbor.graph_digest": "5070397c008c0ffc87a8181ea5f6f1a5",
        "2.temporal_sample_neighbor.times_digest": {
            "user:reads:paper": ["int64:229fb7822338da527cbe4b577844a324", "int64:85c9f18dffc2f9334508ca73633c5042"]
        },
    },
}


# --- data that change meanwhile


def small_pipe() -> tuple[dp.CSCGraph, dp.ItemSet, dp.Stage]:
    graph, given_items = small_graph(), item_set()
    return graph, given_items, sampled(dp.ItemSampler(given_items, 4, shuffle=True, seed=5), graph)


@pytest.mark.parametrize("what", ["indptr", "indices", "edge_ids", "seeds", "labels"])
def test_data_changed_in_place_after_the_first_minibatch_are_refused(what):
    graph, given_items, pipe = small_pipe()
    values = getattr(graph, what) if hasattr(graph, what) else given_items._hashed_arrays()[what][0]
    values[-1] += 0  # before the first minibatch it is no matter
    next(iter(pipe))
    values[-1] += 0
    with pytest.raises(ValueError, match=rf"^(CSCGraph|ItemSet): {what} was changed in place after .* Make a new"):
        pipe.state_dict()
    pipe.close()  # which needs no digest
    with pytest.raises(ValueError, match="changed in place"):
        pipe.state_dict()


def test_data_replaced_after_a_state_are_refused():
    graph, _, pipe = small_pipe()
    state = pipe.state_dict()
    graph.indices = graph.indices.clone()
    with pytest.raises(
        ValueError, match=r"^CSCGraph: indices was replaced by another tensor after .* Make a new CSCGr"
    ):
        pipe.load_state_dict(state)


def assign(stage, name, value):
    """A function of the user's that is called with a stage is none of its methods."""
    setattr(stage, name, value)


@pytest.mark.parametrize("built", [lambda pipe: pipe, dp.DataLoader], ids=["chain", "loader"])
def test_an_argument_of_a_built_stage_cannot_be_replaced(built):
    pipe = built(sampled())
    sampler, seeds = (StageGraph(pipe).find(cls)[0] for cls in (dp.NeighborSampler, dp.ItemSampler))
    new = {"graph": small_graph(), "fanouts": [1], "replace": True}
    for stage, name, value in [
        *((sampler, name, value) for name, value in new.items()),
        *((seeds, name, 3) for name in ("batch_size", "seed", "rng_seed")),
        *((pipe, name, 3) for name in ("num_workers", "timeout") if pipe is not sampler),
    ]:
        with pytest.raises(AttributeError, match=rf"^{stage.name}: {name} is fixed since the .* pipe\.replaced\("):
            setattr(stage, name, value)
    for name in ("batch_size", "shuffle", "seed", *(new if pipe is not sampler else ())):
        owner = "sample_neighbor" if name in new else "item_sampler"
        with pytest.raises(AttributeError, match=rf"^{pipe.name}: {name} is fixed since {owner}.*replaced\('{owner}'"):
            assign(pipe, name, value)
    pipe.note = "free"
    assert [each.index for each in pipe] == [0, 1, 2, 3, 4, 5]
    pipe.close()


class Counting(dp.MiniBatchTransformer):
    def __init__(self, source: dp.Stage, step: float, table: torch.Tensor | None = None) -> None:
        super().__init__(source)
        self.step, self.table, self.seen = step, table, 0

    def transform(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        self.table = torch.zeros(1) if self.table is None else self.table
        self.seen += 1
        self.shuffle = self.seen  # its own, though an ItemSampler before it takes an argument of that name
        return minibatch


class OwnSampler(dp.NeighborSampler):
    def __init__(self, source: dp.Stage) -> None:
        self.configure()
        super().__init__(source, self.graph, [2])  # which sets the same one

    def configure(self) -> None:
        self.graph = small_graph()


def test_what_the_users_own_constructor_takes_is_free_and_what_ours_takes_is_fixed_in_a_subclass_too():
    pipe = Counting(items(), 2)
    pipe.step = 3.0
    assert (len(list(pipe)), pipe.seen, pipe.shuffle, pipe.step) == (6, 6, 6, 3.0)
    pipe.shuffle = False  # now that it has one
    sampler = OwnSampler(items())
    with pytest.raises(AttributeError, match="graph is fixed"):
        sampler.graph = small_graph()


def of_types(graph: dp.CSCGraph) -> dp.HeteroCSCGraph:
    return dp.HeteroCSCGraph({(USER, "reads", USER): (graph.indptr, graph.indices.clone())}, {USER: NUM_NODES})


ARRIVES = {
    "copy": lambda made, _: copy.copy(made),
    "deepcopy": lambda made, _: copy.deepcopy(made),
    "pickle": lambda made, _: pickle.loads(pickle.dumps(made)),
    "opened": lambda made, folder: (made.save(folder), type(made).open(folder))[1],
    "in memory": lambda made, folder: (made.save(folder), type(made).open(folder, mmap=False))[1],
}


@pytest.mark.parametrize("arrives", ARRIVES)
@pytest.mark.parametrize("make", [small_graph, lambda: of_types(small_graph())], ids=["plain", "typed"])
def test_a_copy_or_an_opened_graph_that_changes_before_its_first_use_has_another_digest(make, arrives, tmp_path):
    graph = make()
    expected = graph.digest()
    other = ARRIVES[arrives](graph, tmp_path / "graph")
    other.relation(other.edge_types[0]).indices[0] += 1
    assert other.digest() != expected
    if arrives == "copy":
        return  # it shares the arrays
    assert graph.digest() == expected
    graph.relation(graph.edge_types[0]).indices[0] += 1  # graph has been used, and refuses; a copy of it is another
    if arrives not in ("opened", "in memory"):
        assert ARRIVES[arrives](graph, tmp_path).digest() == other.digest()


@pytest.mark.parametrize("typed", [False, True])
def test_a_copy_of_items_that_changes_has_another_digest(typed):
    given_items = dp.HeteroItemSet({USER: item_set()}) if typed else item_set()
    expected = given_items.digest()
    other = copy.deepcopy(given_items)
    assert other.digest() == expected
    other = copy.deepcopy(given_items)
    (other.item_sets[USER] if typed else other)._tensors["labels"][3] = -1
    assert other.digest() != expected


@pytest.mark.parametrize("version", [1, None])
def test_a_state_with_other_digests_is_refused_by_name(version):
    pipe = sampled()
    state = pipe.state_dict()
    del state["fingerprint"]["digest_version"]
    state["fingerprint"] |= {} if version is None else {"digest_version": version}
    with pytest.raises(ValueError, match=rf"another pipeline: digest_version was .*({version}|absent)"):
        pipe.load_state_dict(state)


# --- digests are taken beside the minibatches


class Held:
    """Stands for array_digest: it waits until it is told to go on, or to stop."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.taken: list[str] = []
        self._array_digest = digests_of_arrays.array_digest

    def __call__(self, values: torch.Tensor, *, as_int64: bool, stop: Callable[[], bool], hashes: list) -> str:
        self.begun.set()
        while not stop():
            if self.go_on.wait(0.01):
                self.taken.append(threading.current_thread().name)
                return self._array_digest(values, as_int64=as_int64)
        raise digests_of_arrays.HashingStopped


@pytest.fixture
def held(monkeypatch) -> Held:
    found = Held()
    monkeypatch.setattr(digests_of_arrays, "array_digest", found)
    return found


def digest_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "datapipes-digests"]


@pytest.mark.parametrize("loader", [lambda pipe: pipe, dp.DataLoader], ids=["chain", "loader"])
def test_the_first_minibatches_wait_for_no_digest_and_a_state_for_all(held, loader):
    pipe = loader(sampled())
    stream = iter(pipe)
    assert [next(stream).index, next(stream).index] == [0, 1]
    assert held.begun.wait(BOUND_S)
    asked = []
    thread = threading.Thread(target=lambda: asked.append(pipe.state_dict()))
    thread.start()
    assert [each.index for each in stream] == [2, 3, 4, 5]  # no digest has been taken
    assert (held.taken, asked) == ([], [])
    held.go_on.set()
    thread.join(BOUND_S)
    assert asked[0]["fingerprint"] == sampled().state_dict()["fingerprint"]
    assert held.taken[:5] == ["datapipes-digests"] * 5  # indptr, indices, edge ids, seeds, labels: each once
    pipe.close()


def test_closing_waits_for_no_digest_and_the_state_afterwards_takes_it(held):
    pipe = sampled()
    next(iter(pipe))
    assert held.begun.wait(BOUND_S)
    pipe.close()
    assert (held.taken, digest_threads()) == ([], [])
    held.go_on.set()
    assert (pipe.state_dict()["next_index"], len(held.taken)) == (1, 5)


def test_a_digest_that_was_stopped_goes_on_where_it_stopped(monkeypatch):
    values = torch.arange(100_000)
    expected = digests_of_arrays.array_digest(values)
    monkeypatch.setattr(digests_of_arrays, "_BYTES_AT_ONCE", 1)
    given_items, looks = dp.ItemSet(values), itertools.count()
    with pytest.raises(digests_of_arrays.HashingStopped):
        given_items._array_digests(lambda: next(looks) == 0)
    hashed = []
    hashes_of = digests_of_arrays.hashes_of
    monkeypatch.setattr(
        digests_of_arrays, "hashes_of", lambda *args, **how: hashed.append(1) or hashes_of(*args, **how)
    )
    assert given_items._array_digests(lambda: next(looks) == 99) == {"seeds": expected}
    assert len(hashed) == 1


EXITS = """
import sys
import threading
import torch
import datapipes as dp
from datapipes.base import array_digest as module

def endless(values, *, as_int64, stop, hashes):
    while not stop():
        begun.set()
        some.clone()  # without the GIL: a daemon thread that wants it back while the interpreter ends aborts
    raise module.HashingStopped

begun, some = threading.Event(), torch.zeros(2**18)
module.array_digest = endless
graph = dp.CSCGraph(torch.tensor([0, 1, 2]), torch.tensor([1, 0]))
pipe = dp.ItemSampler(dp.ItemSet(torch.arange(2)), 1).sample_neighbor(graph, [2])
stream = iter(pipe)
next(stream)
print("has one", begun.wait(20), flush=True)
{end}
"""


@pytest.mark.full
@pytest.mark.parametrize(("end", "code"), ranked([("", 0), ("del graph, pipe, stream; sys.exit(3)", 3)], 1))
def test_a_process_ends_well_while_digests_are_taken(end, code):
    command = [sys.executable, "-c", EXITS.format(end=end)]  # an interpreter of its own, which is torn down as a whole
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "has one True\n", "")


def test_no_thread_begins_where_all_digests_are_known(monkeypatch):
    graph, given_items = small_graph(), item_set()
    graph.digest()
    given_items.digest()
    monkeypatch.setattr(run.threading, "Thread", None)
    with sampled(dp.ItemSampler(given_items, 4), graph) as pipe:
        next(iter(pipe))


def test_where_no_thread_can_start_a_state_takes_the_digests(monkeypatch):
    monkeypatch.setattr(run.threading.Thread, "start", lambda _: (_ for _ in ()).throw(RuntimeError("no thread")))
    with sampled() as pipe:
        assert next(iter(pipe)).index == 0
        monkeypatch.undo()
        assert pipe.state_dict()["fingerprint"] == sampled().state_dict()["fingerprint"]


def test_an_error_of_a_digest_is_that_of_the_state(monkeypatch):
    monkeypatch.setattr(digests_of_arrays, "array_digest", lambda *_, **__: 1 / 0)
    pipe = sampled()
    assert len(list(pipe)) == 6
    with pytest.raises(ZeroDivisionError):
        pipe.state_dict()
    pipe.close()


def test_items_that_are_a_range_have_no_arrays():
    a, b = (dp.ItemSampler(dp.ItemSet(n), 4).state_dict()["fingerprint"]["0.item_sampler.item_digest"] for n in (9, 10))
    assert a != b
    assert items().item_set.digest() == item_set().digest()
    assert np.unique([a, b, item_set().digest()]).shape == (3,)
