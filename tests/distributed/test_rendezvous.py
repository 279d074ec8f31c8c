"""Addresses through the store of torchrun."""

import datetime

import pytest
import torch.distributed as dist

from datapipes.distributed import publish_address
from datapipes.distributed.address import Address
from datapipes.distributed.rendezvous import published_addresses

SHORT_S, WAIT_S = 0.05, 30.0


@pytest.fixture
def agent(monkeypatch):
    """What torchrun's agent gives its ranks: a store that it hosts, and where it is."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    return store


def test_what_a_rank_publishes_the_others_read_through_the_store_of_the_agent(agent):
    publish_address(1, "node-1:7000")
    publish_address(0, "[2001:db8::5]:7000")
    publish_address(0, "[2001:db8::5]:7000")
    expected = {0: Address("2001:db8::5", 7000), 1: Address("node-1", 7000)}
    assert published_addresses("here", [0, 1], WAIT_S) == expected


def test_after_a_restart_of_the_ranks_older_addresses_do_not_count(agent, monkeypatch):
    publish_address(0, "node-1:7000")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with pytest.raises(TimeoutError, match="no address of part 0"):
        published_addresses("here", [0], SHORT_S)
    publish_address(0, "node-2:7000")
    assert published_addresses("here", [0], WAIT_S) == {0: Address("node-2", 7000)}


def test_a_store_may_be_given_and_that_of_the_process_group_comes_first(agent):
    own = dist.HashStore()
    publish_address(0, "own:1", store=own)
    assert published_addresses("here", [0], WAIT_S, store=own) == {0: Address("own", 1)}
    dist.init_process_group(
        "gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=datetime.timedelta(seconds=30)
    )
    try:
        publish_address(0, "group:1")
        assert published_addresses("here", [0], WAIT_S) == {0: Address("group", 1)}
    finally:
        dist.destroy_process_group()
    with pytest.raises(TimeoutError):
        published_addresses("here", [0], SHORT_S)


def test_two_servers_that_claim_one_part_are_refused(agent):
    publish_address(0, "node-1:7000")
    with pytest.raises(ValueError, match=r"two servers claim part 0: node-1:7000 was published, now node-2:7000"):
        publish_address(0, "node-2:7000")


def test_an_address_that_no_client_finds_is_refused(agent):
    with pytest.raises(ValueError, match=r"0\.0\.0\.0:7000 stands for all addresses of a machine"):
        publish_address(0, "0.0.0.0:7000")
    with pytest.raises(ValueError, match="address is 'node', which has no port"):
        publish_address(0, "node")
    with pytest.raises(ValueError, match="part must be in"):
        publish_address(-1, "node:1")


def test_parts_that_nobody_publishes_are_named_within_the_bound(agent):
    publish_address(0, "node-1:7000")
    with pytest.raises(TimeoutError, match=r"here: no address of part 1 was published within 0\.05 s.*publish_address"):
        published_addresses("here", [0, 1], SHORT_S)


def test_without_a_store_it_says_what_is_missing(monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match=r"MASTER_ADDR is not set\. Start with torchrun"):
        published_addresses("here", [0], SHORT_S)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(RuntimeError, match=r"init_process_group\W+first"):
        publish_address(0, "node-1:7000")
