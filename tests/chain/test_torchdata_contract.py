"""torchdata's contract: a torchdata Loader over a fresh chain that loads a state, saved anywhere, gives the rest.

After an epoch that was read to its end the rest is empty. A Loader that restarts skips the empty rest; one that does
not restart gives it as an empty epoch. Then the next epoch begins.

Of torchdata the package uses BaseNode alone. The last section holds the installed one, and the lines that would replace
it, to what stages need of it.
"""

import itertools
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Generic

import contract
import pytest
import torch
import torchdata.nodes as tn
from amounts import amount
from pipelines import as_it_is, fetched, sampled
from scripts import run_script

import datapipes as dp


def as_digest(minibatch: dp.MiniBatch) -> str:
    return minibatch.digest()


HOLDERS = {
    **{name: partial(contract.build, name) for name in contract.CHAINS},
    "from_node": lambda: fetched(dp.FromNode(tn.Mapper(sampled(), as_it_is))),
    "from_node_that_reads_ahead": lambda: fetched(dp.FromNode(tn.Prefetcher(sampled(), prefetch_factor=2))),
    "loader_of_a_node": lambda: dp.DataLoader(fetched(dp.FromNode(tn.Mapper(sampled(), as_it_is)))),
    "torchdata_mapper": lambda: tn.Mapper(fetched(), as_digest),
    "torchdata_mapper_of_loader": lambda: tn.Mapper(dp.DataLoader(fetched()), as_digest),
    "torchdata_parallel_mapper": lambda: tn.ParallelMapper(fetched(), as_digest, num_workers=2, method="thread"),
    "torchdata_prefetcher": lambda: tn.Prefetcher(fetched(), prefetch_factor=2),
    "torchdata_prefetcher_of_workers": lambda: tn.Prefetcher(dp.DataLoader(fetched(), 2, worker_method="thread"), 2),
}


def read(items) -> list[str]:
    return [item if isinstance(item, str) else item.digest() for item in items]


def close(node) -> None:
    """Close the stages in `node`; torchdata's own nodes have no close()."""
    while not isinstance(node, dp.Stage):
        node = node.source
    node.close()


@pytest.fixture(params=HOLDERS)
def build(request):
    built = []

    def build_one():
        built.append(HOLDERS[request.param]())
        return built[-1]

    yield build_one
    for node in built:
        close(node)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_state_leaves_the_rest_of_its_epoch_and_then_the_next_begins(build, restarts):
    loader = tn.Loader(build(), restart_on_stop_iteration=restarts)
    epochs = [read(loader) for _ in range(3)]
    assert len(epochs[0]) > 2
    assert len({digest for epoch in epochs for digest in epoch}) == sum(map(len, epochs))
    loader = tn.Loader(build(), restart_on_stop_iteration=restarts)
    cases = [(loader.state_dict(), epochs[:2])]  # of a chain that was never read
    assert read(loader) == epochs[0]  # so that the interrupted epoch is not the first
    iterator = iter(loader)
    for step in range(len(epochs[1]) + 1):
        cases.append((loader.state_dict(), [epochs[1][step:], epochs[2]]))
        assert read(itertools.islice(iterator, 1)) == epochs[1][step : step + 1]
    cases.append((loader.state_dict(), [[], epochs[2]]))
    for state, (rest, after) in cases[:: amount(1, 3)]:
        resumed = tn.Loader(build(), restart_on_stop_iteration=restarts)
        resumed.load_state_dict(json.loads(json.dumps(state)))
        expected = [after] if restarts and not rest else [rest, after]
        assert [read(resumed) for _ in expected] == expected


def test_a_stage_that_loads_the_state_of_an_epochs_end_goes_straight_to_the_next():
    chain = fetched()
    epochs = [read(chain), read(chain)]
    chain.set_epoch(0)
    assert read(chain) == epochs[0]
    end = chain.state_dict()
    chain.reset(end)
    assert chain.state_dict() == end
    with pytest.raises(StopIteration):
        chain.next()
    assert chain.state_dict() == end
    chain.load_state_dict(end)
    assert chain.state_dict() == end
    assert read(chain) == epochs[1]


def test_a_state_that_ended_in_the_middle_of_an_epoch_is_refused(refuses):
    chain = fetched()
    next(iter(chain))
    state = {**chain.state_dict(), "ended": True}
    refuses(ValueError, chain.load_state_dict, state)
    refuses(TypeError, chain.load_state_dict, {**state, "ended": 1})


def test_set_epoch_after_an_epochs_end_is_what_the_state_says():
    chain = fetched()
    read(chain)
    chain.set_epoch(10)
    state = chain.state_dict()
    assert (state["epoch"], state["next_index"], "ended" in state) == (10, 0, False)
    chain.close()
    assert chain.state_dict() == state
    resumed = fetched()
    resumed.load_state_dict(state)
    assert next(iter(resumed)).epoch == 10


class Reshuffled(torch.utils.data.Sampler):
    """Numbers of minibatches in another order each epoch, as torchdata's SamplerWrapper expects."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        return iter(torch.randperm(6, generator=torch.Generator().manual_seed(self.epoch)).tolist())


def node_chain() -> dp.FromNode:
    minibatches = list(fetched())
    return dp.FromNode(tn.Mapper(tn.SamplerWrapper(Reshuffled()), minibatches.__getitem__))


def test_a_node_goes_on_with_its_own_next_epoch_after_a_state_of_an_epochs_end():
    running = node_chain()
    first = read(running)
    states = [running.state_dict()]
    second = read(running)
    states.append(running.state_dict())
    third = read(running)
    assert len({tuple(first), tuple(second), tuple(third)}) == 3
    for state, expected in zip(states, (second, third), strict=True):
        resumed = node_chain()
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert read(resumed) == expected


# --- BaseNode itself: the installed one, and the one of docs/decisions/017-torchdata.md that would replace it

DECISION = (Path(__file__).parents[2] / "docs/decisions/017-torchdata.md").read_text(encoding="utf-8")
(REPLACEMENT,) = re.findall(r"```python\n(.*?)```", DECISION, re.DOTALL)


def replacement() -> type:
    names: dict = {}
    exec(REPLACEMENT, names)
    return names["BaseNode"]


@pytest.fixture(params=["installed", "replacement"])
def node(request):
    """A node that counts to three, over the installed BaseNode or over the other, and notes what it is called with."""

    class Counter(tn.BaseNode if request.param == "installed" else replacement()):
        def __init__(self):
            super().__init__()
            self.calls = []

        def reset(self, initial_state=None):
            super().reset(initial_state)
            self.calls.append(initial_state)
            self.given = initial_state or 0

        def next(self):
            if self.given == 3:
                raise StopIteration
            self.given += 1
            return self.given

        def get_state(self):
            return self.given

    return Counter()


def test_building_a_node_and_iter_reset_nothing_and_the_first_next_does(node):
    assert iter(node) is node
    assert node.calls == []
    assert (next(node), next(node), node.calls) == (1, 2, [None])


def test_a_state_of_a_node_that_was_never_read_resets_it_once(node):
    assert node.state_dict() == 0
    assert (next(node), node.state_dict(), node.calls) == (1, 1, [None])


def test_a_node_that_was_reset_to_a_state_is_not_reset_by_next(node):
    node.reset(2)
    assert (node.state_dict(), list(node), node.calls) == (2, [3], [2])
    assert list(node) == []  # its end does not reset it either
    node.reset()
    assert (list(node), node.calls) == ([1, 2, 3], [2, None])


def test_a_loader_needs_no_more_of_a_node(node):
    loader = tn.Loader(node)
    assert [list(loader), list(loader)] == [[1, 2, 3]] * 2
    assert next(iter(loader)) == 1
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert list(loader) == [2, 3]


def test_a_stage_takes_next_from_base_node_and_nothing_else():
    inherited = {name for name in dir(tn.BaseNode) if getattr(dp.Stage, name, None) is getattr(tn.BaseNode, name)}
    assert inherited - {*dir(Generic), *dir(Iterator)} == set()
    assert dp.Stage.__next__ is tn.BaseNode.__next__
    known = {"reset", "next", "get_state", "state_dict", "__next__", "__iter__", "__init__"}
    own = {name for name, value in vars(tn.BaseNode).items() if callable(value) or isinstance(value, property)}
    assert own <= known, "a new method of torchdata's: see that no stage has one of that name"


def test_the_package_imports_nothing_of_torchdata_but_base_node():
    package = Path(dp.__file__).parent
    lines = [line for path in package.rglob("*.py") for line in path.read_text(encoding="utf-8").splitlines()]
    imports = [line for line in lines if re.match(r"\s*(from|import) torchdata\b", line)]
    assert set(imports) == {"from torchdata.nodes import BaseNode"}


CHAIN = """
import datapipes as dp
import torch

edges = torch.randint(0, 30, (2, 200), generator=torch.Generator().manual_seed(0))
graph = dp.CSCGraph.from_edge_index(edges, num_nodes=30)
store = dp.FeatureStore({("node", None, "x"): dp.TensorFeature(torch.rand(30, 2, generator=torch.Generator()))})

def chain():
    seeds = dp.ItemSampler(dp.ItemSet(30), 4, shuffle=True, seed=0)
    return seeds.sample_neighbor(graph, [3, 2]).fetch_feature(store, ["x"])

def read(items):
    return [minibatch.digest() for minibatch in items]
"""

REPLACED = """
import json, sys
import torchdata.nodes as tn

class Replacing: pass
exec({replacement!r}, names := {{}})
Replacing.BaseNode = names["BaseNode"]
for name in [name for name in sys.modules if name.startswith("datapipes") and name != "datapipes._core"]:
    del sys.modules[name]
sys.modules["torchdata.nodes"] = Replacing
exec({chain!r})

assert issubclass(dp.Stage, Replacing.BaseNode) and not issubclass(dp.Stage, tn.BaseNode)
loader = tn.Loader(dp.DataLoader(chain()))
first = next(iter(loader)).digest()
resumed = tn.Loader(chain())
resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
print(json.dumps([[first, *read(resumed)], read(resumed), read(tn.Mapper(chain(), lambda minibatch: minibatch))]))
"""


def test_the_lines_of_the_decision_replace_torchdata_under_the_whole_package():
    lines = [line for line in REPLACEMENT.splitlines() if line]
    assert set(re.findall(r"(\d+) lines", DECISION)) == {str(len(lines))}
    exec(CHAIN, names := {})
    chain = names["chain"]()
    first, second = read(chain), read(chain)
    ended = run_script(REPLACED.format(replacement=REPLACEMENT, chain=CHAIN))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert json.loads(ended.stdout) == [first, second, first]
