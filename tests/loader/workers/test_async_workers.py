"""Workers with several minibatches in flight: the same bits in every way, and a death is charged to all of them."""

import functools
import itertools
import json
import random
import re

import pytest
import torch
import worker_stages as ws
from amounts import ranked
from pipelines import digests, fetched, items, keep_most, sampled, wait_until
from worker_ways import WITHOUT_SERVER, way, workers

import datapipes as dp
from datapipes.loader.workers.workers import Workers

pytestmark = pytest.mark.usefixtures("no_worker_stays")


@functools.cache
def expected() -> list[list[str]]:
    chain = fetched(sampled().transform(keep_most))
    return [digests(chain) for _ in range(2)]


@pytest.mark.parametrize("seed", ranked(range(3), 1))
def test_an_epoch_goes_on_with_other_workers_from_any_place(seed):
    choice = random.Random(seed)
    ways = [{"num_workers": 0}, *(way(method, 2, in_order=o) for method in WITHOUT_SERVER for o in (True, False))]
    state, got = None, []
    for _ in range(5):  # five loaders, each left early
        with dp.DataLoader(ws.asynchronous_chain(), **choice.choice(ways)) as loader:
            if state is not None:
                loader.load_state_dict(state)
            got += [minibatch.digest() for minibatch in itertools.islice(loader, choice.randrange(4))]
            state = json.loads(json.dumps(loader.state_dict()))
    with dp.DataLoader(ws.asynchronous_chain(), **choice.choice(ways)) as loader:
        loader.load_state_dict(state)
        while len(got) < 10:
            got += digests(loader)
    assert [sorted(got[:5]), sorted(got[5:])] == [sorted(epoch) for epoch in expected()]


def test_the_cut_lies_behind_a_fetch_in_the_workers_and_the_channel_holds_its_rows():
    with dp.DataLoader(ws.asynchronous_chain().transform(with_rows), **way("fork")) as loader:
        assert [stage.name for stage in loader.rewritten()][-3:] == ["fetch_feature", "transform", "workers"]
        messages = [minibatch.to_message() for minibatch in loader]
        pool = loader.rewritten().find(Workers)[0]._running.pool
        assert pool.tasks_each == 4 + 2  # those in flight, and prefetch_factor ahead
        num_bytes = sum(tensor.nbytes for message in messages for tensor in message.values())
        assert num_bytes > 5_000_000
        assert 2 * pool._channel.most_bytes_kept > num_bytes  # room for all that may wait, here the whole epoch


def with_rows(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    """Widen the rows that were fetched."""
    return minibatch.replace(node_features={"feat": torch.zeros(len(minibatch.input_nodes), 20_000)})


def test_a_death_is_charged_to_the_minibatches_that_were_in_flight(tmp_path, caplog):
    chain = ws.DieOnceTogether(sampled(), str(tmp_path / "mark"))
    with dp.DataLoader(chain, **way("fork", 1)) as loader:
        assert digests(loader) == digests(sampled())
    assert re.search(r"It was making minibatch \d of epoch 0 and [2-5] more; another takes its place", caplog.text)


def test_minibatches_that_are_in_flight_at_too_many_deaths_end_in_an_error_that_names_them(tmp_path):
    chain = ws.DieOnceTogether(sampled(), str(tmp_path / "mark"))
    with dp.DataLoader(chain, max_restarts=0, **way("fork", 1)) as loader, pytest.raises(dp.PeerDied) as caught:
        list(loader)
    told = r"1 workers died while they made minibatch (\d) of epoch 0, each time together with minibatch ([\d, ]+);"
    found = re.search(told, str(caught.value))
    assert {3, 4, 5} <= {int(found[1]), *map(int, found[2].split(", "))}  # earlier ones may not be sent yet


@pytest.mark.parametrize("method", WITHOUT_SERVER)
def test_workers_end_at_once_with_an_answer_that_never_comes(method):
    loader = dp.DataLoader(ws.NeverAnswers(sampled(items(80))), **way(method))
    assert next(iter(loader)).index == 0
    loader.close()
    wait_until(lambda: not workers())
