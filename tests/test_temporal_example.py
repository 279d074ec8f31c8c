"""examples/temporal.py: what it prints, its negatives, that nothing later is seen, and the rules beside the model."""

import re
import sys
from pathlib import Path

import pytest
import torch
from example_data import EXAMPLES

import datapipes as dp


@pytest.fixture
def temporal(monkeypatch):
    """The module examples/temporal.py."""
    monkeypatch.syspath_prepend(EXAMPLES)
    import temporal

    return temporal


def messages_of(num_nodes: int, num_messages: int, num_times: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (messages [n, 2] between different nodes, ascending times)."""
    rng = torch.Generator().manual_seed(0)
    senders = torch.randint(num_nodes, (num_messages,), generator=rng)
    receivers = (senders + torch.randint(1, num_nodes, (num_messages,), generator=rng)) % num_nodes
    times = torch.randint(num_times, (num_messages,), generator=rng).sort().values
    return torch.stack([senders, receivers], dim=1), times


def write_pairs(path: Path, num_pairs: int, num_rounds: int) -> Path:
    """Write timed edges: node 2 i sends to node 2 i + 1 in each round, so who is next follows from the last message."""
    rows = [
        f"{2 * i} {2 * i + 1} {1_000_000 + (t * num_pairs + i) * 60}"
        for t in range(num_rounds)
        for i in range(num_pairs)
    ]
    path.write_text("\n".join(["src dst time", *rows]) + "\n", encoding="ascii")
    return path


@pytest.mark.usefixtures("same_threads")
def test_it_learns_to_rank_the_one_receiver_that_each_sender_has(tmp_path, temporal, monkeypatch, capsys):
    path = write_pairs(tmp_path / "pairs.txt", num_pairs=20, num_rounds=40)
    arguments = ["--data", str(path), "--epochs", "4", "--negatives", "9", "--fanouts", "2", "3"]
    arguments += ["--batch-size", "20", "--learning-rate", "0.01"]
    monkeypatch.setattr(sys, "argv", ["temporal.py", *arguments])
    temporal.main()
    output = capsys.readouterr().out
    found = {
        name: [float(value) for value in line]
        for name, *line in re.findall(r"^(.+?) +validation MRR (\S+)  test MRR (\S+)$", output, re.MULTILINE)
    }
    assert set(found) == {"last contact", "popularity", "model"}
    assert found["last contact"] == [1.0, 1.0]
    assert max(found["popularity"]) < 0.6  # half of the nodes have received equally much
    assert min(found["model"]) > 0.9
    assert len(re.findall(r"^epoch +\d  loss \S+  validation MRR \S+  \S+ s$", output, re.MULTILINE)) == 4


def test_data_without_times_is_refused(tmp_path, temporal, monkeypatch):
    monkeypatch.setattr(temporal.dp.datasets, "open", lambda _: dp.datasets.debian_packages())
    monkeypatch.setattr(sys, "argv", ["temporal.py", "--data", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"has no timed messages\. Pass a list of edges"):
        temporal.main()


def test_negatives_are_other_receivers_and_follow_from_seed_epoch_and_index_alone(temporal):
    messages, times = messages_of(30, 200, 50)
    items = dp.ItemSet((messages, times), names=("seeds", "timestamps"))
    loaders = [dp.DataLoader(temporal.AddReceivers(dp.ItemSampler(items, 50, seed=seed), 30, 40)) for seed in (0, 0, 1)]
    first, again, other = ([minibatch.seeds for minibatch in loader] for loader in loaders)
    for seeds, given in zip(first, messages.split(50), strict=True):
        assert seeds[:, :2].equal(given)
        assert not (seeds[:, 2:] == seeds[:, 1:2]).any()
        assert seeds[:, 2:].min() >= 0
        assert set(seeds[:, 2:].flatten().tolist()) == set(range(30))
    assert all(map(torch.equal, first, again))
    assert not any(map(torch.equal, first, other))
    assert not first[0].equal(next(iter(loaders[0])).seeds)  # of the next epoch
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("strategy", ["last", "uniform"])
def test_what_comes_later_changes_nothing(temporal, strategy):
    messages, times = messages_of(12, 400, 60)
    digests = []
    for known in (times < 100, times < 40):  # the second graph ends where the last seed stands
        data = edge_list_data(messages[known], times[known], num_nodes=12)
        graph, features, _ = temporal.both_ways(data)
        asked = (times >= 30) & (times < 40)
        items = dp.ItemSet((messages[asked], times[asked]), names=("seeds", "timestamps"))
        pipe = temporal.AddReceivers(dp.ItemSampler(items, 16), 12, 3)
        pipe = temporal.with_trees(pipe, graph, features, [3, 4], strategy)
        minibatches = list(pipe)
        for minibatch in minibatches:
            for block, held in zip(minibatch.blocks, minibatch.edge_features, strict=True):
                bound = minibatch.timestamps[minibatch.batch[block.edge_index[1]]]
                assert (held["time"] < bound).all()
        digests.append([minibatch.digest() for minibatch in minibatches])
    assert digests[0] == digests[1]


def edge_list_data(messages: torch.Tensor, times: torch.Tensor, num_nodes: int) -> dp.datasets.Dataset:
    items = dp.ItemSet((messages, times), names=("seeds", "timestamps"))
    empty = dp.ItemSet((messages[:0], times[:0]), names=("seeds", "timestamps"))
    graph = dp.CSCGraph.from_edge_index(messages.T, num_nodes)
    return dp.datasets.Dataset("made", graph, dp.FeatureStore({}), items, empty, empty, 0, (), task="link_prediction")


def test_the_rules_count_what_is_strictly_earlier(temporal):
    messages, times = messages_of(9, 150, 40)
    seeds = torch.cat([messages, (messages[:, 1:] + torch.arange(1, 9)) % 9], dim=1)
    minibatch = dp.MiniBatch(seeds=seeds, timestamps=times)
    contact = temporal.LastContact(messages, times)(minibatch)
    popularity = temporal.Popularity(messages, times)(minibatch)
    ranks = {time: rank for rank, time in enumerate(times.unique().tolist(), start=1)}
    for row, (sender, *receivers) in enumerate(seeds.tolist()):
        earlier = [
            (pair, time) for pair, time in zip(messages.tolist(), times.tolist(), strict=True) if time < times[row]
        ]
        for column, receiver in enumerate(receivers):
            met = [ranks[time] for pair, time in earlier if sorted(pair) == sorted([sender, receiver])]
            assert contact[row, column] == max(met, default=0)
            assert popularity[row, column] == sum(pair[1] == receiver for pair, _ in earlier)


def test_a_tie_counts_as_half_a_place(temporal):
    pipe = dp.ItemSampler(dp.ItemSet(3), batch_size=3)
    scores = torch.tensor([[5.0, 1, 2], [1.0, 1, 1], [0.0, 3, 4]])
    assert temporal.mrr_of(pipe, lambda _: scores) == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
