"""Namebooks: {part: address} as the user says it or as servers publish it, complete or refused."""

import datetime
import json
import os

import pytest
import torch.distributed as dist

from datapipes.distributed import publish_address
from datapipes.distributed.addresses import Address, Replicas, ask_resolver
from datapipes.distributed.namebook import Published, addresses_in, check_complete, read_namebook

SHORT_S, WAIT_S = 0.05, 30.0


def test_a_namebook_is_a_mapping_or_a_json_file_and_several_addresses_are_replicas(tmp_path):
    expected = {0: (Address("a", 1),), 2: (Address("::1", 2), Address("b", 1))}
    assert read_namebook("here", {2: ("[::1]:2", "b:1"), 0: "a:1"}) == expected
    assert read_namebook("here", {0: ["a:1"], 2: ["[::1]:2", "b:1"]}) == expected
    path = tmp_path / "book.json"
    path.write_text(json.dumps({"2": ["[::1]:2", "b:1"], "0": ["a:1"]}))
    assert read_namebook("here", path) == read_namebook("here", str(path)) == expected


def test_what_a_namebook_refuses(refuses, tmp_path):
    for namebook in (None, ["a:1"], {0: None}):
        refuses(TypeError, read_namebook, "here", namebook)
    for namebook in (
        {0: "a"},
        {0: []},
        {0: ["a:1", "b:1", "a:1"]},
        {0: "0.0.0.0:1"},
        {-1: "a:1"},
        {True: "a:1"},
        {"0": "a:1"},
        {10**30: "a:1"},
        {0: "a:1", 3: ["b:1", "a:1"]},
    ):
        refuses(ValueError, read_namebook, "here", namebook)
    path = tmp_path / "book.json"
    for content in ("[]", '{"x": "a:1"}'):
        path.write_text(content)
        refuses(ValueError, read_namebook, "here", path)
    refuses(FileNotFoundError, read_namebook, "here", tmp_path / "gone.json")
    for content in ("", '{"0": 1.5}', "[" * 10**5):  # Python says what is wrong
        path.write_text(content)
        with pytest.raises(ValueError, match=r"here: the namebook .*book.json .*not valid JSON"):
            read_namebook("here", path)


def test_what_is_no_regular_file_of_a_namebooks_size_is_refused_at_once(refuses, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "device").symlink_to("/dev/zero")
    with open(tmp_path / "large", "wb") as file:
        file.truncate(2**24 + 1)
    for name in ("fifo", "device", "large"):
        refuses(ValueError, read_namebook, "connect", tmp_path / name)


def test_holes_and_unknown_parts_are_named_and_the_local_part_needs_no_address(refuses):
    book = read_namebook("here", {0: "a:1", 1: "b:1", 3: "c:1"})
    assert check_complete("here", book, 4, local_part=2) == book
    assert [*check_complete("here", book, 4, local_part=2)] == [0, 1, 3]
    whole = {**book, 2: Replicas([Address("d", 1)])}
    assert [*check_complete("here", whole, 4, local_part=1)] == [0, 2, 3]
    refuses(ValueError, check_complete, "here", book, 4)
    refuses(ValueError, check_complete, "here", book, 6, local_part=5)
    refuses(ValueError, check_complete, "here", whole, 100)
    refuses(ValueError, check_complete, "here", book, 3)


# --- addresses through the store of torchrun


def test_what_a_rank_publishes_the_others_read_through_the_store_of_the_agent(agent):
    publish_address(1, "node-1:7000")
    publish_address(0, "[2001:db8::5]:7000")
    publish_address(0, "[2001:db8::5]:7000")
    expected = {0: (Address("2001:db8::5", 7000),), 1: (Address("node-1", 7000),)}
    assert addresses_in("here", "torchrun", [0, 1], WAIT_S) == expected


def test_after_a_restart_of_the_ranks_older_addresses_do_not_count(agent, monkeypatch):
    publish_address(0, "node-1:7000")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with pytest.raises(TimeoutError, match="no address of part 0"):
        addresses_in("here", "torchrun", [0], SHORT_S)
    publish_address(0, "node-2:7000")
    assert addresses_in("here", "torchrun", [0], WAIT_S) == {0: (Address("node-2", 7000),)}


def test_a_store_may_be_given_and_that_of_the_process_group_comes_first(agent):
    own = dist.HashStore()
    publish_address(0, "own:1", store=own)
    assert ask_resolver("here", Published("here", own), [0], WAIT_S) == {0: (Address("own", 1),)}
    dist.init_process_group(
        "gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=datetime.timedelta(seconds=30)
    )
    try:
        publish_address(0, "group:1")
        assert addresses_in("here", "torchrun", [0], WAIT_S) == {0: (Address("group", 1),)}
    finally:
        dist.destroy_process_group()
    with pytest.raises(TimeoutError):
        addresses_in("here", "torchrun", [0], SHORT_S)


def test_two_servers_that_claim_one_part_are_refused(agent, refuses):
    publish_address(0, "node-1:7000")
    refuses(ValueError, publish_address, 0, "node-2:7000")
    publish_address(0, "node-2:7000", moved=True)
    publish_address(0, "node-4:7000", replica=2)
    assert addresses_in("here", "torchrun", [0], WAIT_S) == {0: (Address("node-2", 7000),)}
    publish_address(0, "node-3:7000", replica=1)
    assert Published("here").addresses(0) == ["node-2:7000", "node-3:7000", "node-4:7000"]


def test_what_publish_address_and_its_readers_refuse(agent, refuses):
    refuses(ValueError, publish_address, 0, "0.0.0.0:7000")
    refuses(ValueError, publish_address, 0, "node")
    refuses(ValueError, publish_address, -1, "node:1")
    publish_address(0, "node-1:7000")
    refuses(TimeoutError, addresses_in, "here", "torchrun", [0, 1], SHORT_S)


def test_without_a_store_it_says_what_is_missing(monkeypatch, refuses):
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)
    refuses(RuntimeError, addresses_in, "here", "torchrun", [0], SHORT_S)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    refuses(RuntimeError, publish_address, 0, "node-1:7000")
