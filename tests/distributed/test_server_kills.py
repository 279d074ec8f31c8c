"""Epochs over parts whose servers are killed: every minibatch comes once, with the bits of the undivided graph."""

import pytest
from amounts import ranked
from parts_on_disk import a_graph, over, whole, write
from pipelines import walked_and_ranked
from warm_servers import Supervisor, WarmServer, supervised

import datapipes as dp
from datapipes.distributed.wire.refusals import OtherPartition

WAIT_S = 60.0  # for what comes at once, on a busy machine
LOADERS = {
    "0 workers": {},
    "2 processes": {"num_workers": 2},
    "2 threads": {"num_workers": 2, "worker_method": "thread"},
}


@pytest.fixture(scope="module")
def servers(root):
    with supervised(root, 2) as servers:
        yield servers


def epoch_with_kills(loader, servers: list[Supervisor], every: int) -> list[str]:
    """The digests of an epoch during which one of the servers is killed after each `every` minibatches."""
    digests = []
    for minibatch in loader:
        digests.append(minibatch.digest())
        if len(digests) % every == 0:
            servers[len(digests) // every % len(servers)].kill()
    return digests


@pytest.mark.parametrize(
    ("loader", "local_part"),
    ranked([("2 processes", None), ("0 workers", None), ("2 threads", None), ("2 processes", 1)], 1),
)
def test_three_kills_in_an_epoch_change_nothing(graph, root, servers, connected, loader, local_part):
    dist_graph = connected(
        root, dict(enumerate(server.address for server in servers)), local_part=local_part, deadline=WAIT_S
    )
    used = [server for part, server in enumerate(servers) if part != local_part]
    kills = sum(server.kills for server in used)
    with dp.DataLoader(over(dist_graph), **LOADERS[loader]) as minibatches:
        assert epoch_with_kills(minibatches, used, every=26) == whole(graph)
    assert sum(server.kills for server in used) == kills + 3


def test_kills_change_no_walks_and_no_subgraphs(graph, root, servers, connected):
    addresses = dict(enumerate(server.address for server in servers))
    dist_graph = connected(root, addresses, deadline=WAIT_S)
    kills = sum(server.kills for server in servers)
    source = dp.ItemSampler(dp.ItemSet(120), 4, shuffle=True, seed=3)
    expected = [minibatch.digest() for minibatch in walked_and_ranked(source, graph)]
    source = dp.ItemSampler(dp.ItemSet(120), 4, shuffle=True, seed=3)
    assert epoch_with_kills(walked_and_ranked(source, dist_graph), servers, every=9) == expected
    assert sum(server.kills for server in servers) == kills + 3


@pytest.mark.parametrize("loader", ["0 workers", "2 processes"])
def test_a_server_that_is_restarted_with_other_data_ends_the_epoch_at_once(root, tmp_path, connected, loader):
    with WarmServer(root, 1) as server:
        dist_graph = connected(root, {1: server.address}, local_part=0, deadline=WAIT_S)
        with dp.DataLoader(over(dist_graph), **LOADERS[loader]) as epochs:
            minibatches = iter(epochs)
            next(minibatches)
            server.kill()
            server.root = write(tmp_path / "other", a_graph(feature_seed=1))
            server.start()
            with pytest.raises(OtherPartition, match=f"part 1 at {server.address}: .*content_id"):
                list(minibatches)
