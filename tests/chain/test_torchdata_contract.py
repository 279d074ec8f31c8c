"""torchdata's contract: a torchdata Loader over a fresh chain that loads a state, saved anywhere, gives the rest.

After an epoch that was read to its end the rest is empty. A Loader that restarts skips the empty rest; one that does
not restart gives it as an empty epoch. Then the next epoch begins.
"""

import itertools
import json
from functools import partial

import contract
import pytest
import torch
import torchdata.nodes as tn
from pipelines import as_it_is, fetched, refused

import datapipes as dp


def as_digest(minibatch: dp.MiniBatch) -> str:
    return minibatch.digest()


HOLDERS = {
    **{name: partial(contract.build, name) for name in contract.CHAINS},
    "from_node": lambda: dp.FromNode(tn.Mapper(fetched(), as_it_is)),
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
    for state, (rest, after) in cases:
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
    with pytest.raises(StopIteration):
        chain.next()
    assert chain.state_dict() == end
    chain.load_state_dict(end)
    assert chain.state_dict() == end
    assert read(chain) == epochs[1]


def test_a_state_that_ended_in_the_middle_of_an_epoch_is_refused():
    chain = fetched()
    next(iter(chain))
    state = {**chain.state_dict(), "ended": True}
    with refused(ValueError, stage="load_state_dict", found="next_index is 1", allowed="of 6"):
        chain.load_state_dict(state)
    with refused(TypeError, stage="load_state_dict", found="got 1", allowed="True or False"):
        chain.load_state_dict({**state, "ended": 1})


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


def test_a_state_of_an_epochs_end_keeps_saying_so_before_anything_is_read():
    chain = fetched()
    read(chain)
    end = chain.state_dict()
    other = fetched()
    other.reset(end)
    assert other.state_dict() == end


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
