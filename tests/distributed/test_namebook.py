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


@pytest.mark.parametrize(
    ("namebook", "kind", "message"),
    [
        (None, TypeError, "namebook must be {0: .*got None"),
        (["a:1"], TypeError, "namebook must be"),
        ({0: "a"}, ValueError, "the address of part 0 is 'a', which has no port"),
        ({0: None}, TypeError, "the address of part 0 must be a text"),
        ({0: []}, ValueError, "no address for part 0"),
        ({0: ["a:1", "b:1", "a:1"]}, ValueError, "a:1 twice for part 0"),
        ({0: "0.0.0.0:1"}, ValueError, "0.0.0.0:1 for part 0; a server listens there, but no client finds it there"),
        ({-1: "a:1"}, ValueError, "has the key -1; keys are the numbers of parts"),
        ({True: "a:1"}, ValueError, "has the key True"),
        ({"0": "a:1"}, ValueError, "has the key '0'"),
        ({10**30: "a:1"}, ValueError, "has the key 10000"),
        ({0: "a:1", 3: ["b:1", "a:1"]}, ValueError, "a:1 for part 0 and for part 3; one address is of one part"),
    ],
)
def test_a_namebook_that_is_not_valid_is_refused_with_the_reason(namebook, kind, message):
    with pytest.raises(kind, match=f"here: .*{message}"):
        read_namebook("here", namebook)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not valid JSON"),
        ("[]", "must be a JSON object, got \\[\\]"),
        ('{"x": "a:1"}', "has the key 'x'"),
        ('{"0": 1.5}', "not valid JSON .*1.5"),
        ("[" * 10**5, "not valid JSON"),
    ],
)
def test_a_file_that_is_no_namebook_is_named(tmp_path, content, message):
    path = tmp_path / "book.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"here: the namebook .*book.json .*{message}"):
        read_namebook("here", path)


@pytest.mark.parametrize("kind", ["FIFO", "device", "large"])
def test_what_is_no_regular_file_of_a_namebooks_size_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "namebook.json"
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with open(path, "wb") as file:
            file.truncate(2**24 + 1)
    found = "has 16777217 bytes; at most 16777216" if kind == "large" else f"is a {kind}; a regular file"
    with pytest.raises(ValueError, match=f"connect: the namebook cannot be read: {path} {found}"):
        read_namebook("connect", path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"here: there is no namebook .*gone\.json"):
        read_namebook("here", tmp_path / "gone.json")


def test_holes_and_unknown_parts_are_named_and_the_local_part_needs_no_address():
    book = read_namebook("here", {0: "a:1", 1: "b:1", 3: "c:1"})
    assert check_complete("here", book, 4, local_part=2) == book
    assert [*check_complete("here", book, 4, local_part=2)] == [0, 1, 3]
    with pytest.raises(ValueError, match="no address of part 2; the partition has the parts 0 to 3"):
        check_complete("here", book, 4)
    with pytest.raises(ValueError, match=r"no address of part 2, 4.*part 5 is in this process, it needs none"):
        check_complete("here", book, 6, local_part=5)
    with pytest.raises(ValueError, match="no address of part 4, 5, 6, 7, 8, 9, 10, 11 and 88 more"):
        check_complete("here", {**book, 2: Replicas([Address("d", 1)])}, 100)
    with pytest.raises(ValueError, match="the namebook names part 3; the partition has the parts 0 to 2"):
        check_complete("here", book, 3)


def test_the_address_of_the_local_part_is_not_used():
    book = read_namebook("here", {0: "a:1", 1: "b:1"})
    assert check_complete("here", book, 2, local_part=1) == {0: (Address("a", 1),)}


# --- addresses through the store of torchrun


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


def test_two_servers_that_claim_one_part_are_refused(agent):
    publish_address(0, "node-1:7000")
    with pytest.raises(ValueError, match=r"two servers claim part 0: node-1:7000 was published, now node-2:7000"):
        publish_address(0, "node-2:7000")
    publish_address(0, "node-2:7000", moved=True)
    publish_address(0, "node-4:7000", replica=2)
    assert addresses_in("here", "torchrun", [0], WAIT_S) == {0: (Address("node-2", 7000),)}
    publish_address(0, "node-3:7000", replica=1)
    assert Published("here").addresses(0) == ["node-2:7000", "node-3:7000", "node-4:7000"]


def test_an_address_that_no_client_finds_is_refused(agent):
    with pytest.raises(ValueError, match=r"0\.0\.0\.0:7000 stands for all addresses of a machine"):
        publish_address(0, "0.0.0.0:7000")
    with pytest.raises(ValueError, match="address is 'node', which has no port"):
        publish_address(0, "node")
    with pytest.raises(ValueError, match="part must be in"):
        publish_address(-1, "node:1")


def test_parts_that_nobody_publishes_are_named_within_the_bound(agent):
    publish_address(0, "node-1:7000")
    with pytest.raises(
        TimeoutError, match=r"here: .* no address of part 1 within 0\.05 s \(.*none was published.*publish_address"
    ):
        addresses_in("here", "torchrun", [0, 1], SHORT_S)


def test_without_a_store_it_says_what_is_missing(monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match=r"MASTER_ADDR is not set\. Start with torchrun"):
        addresses_in("here", "torchrun", [0], SHORT_S)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(RuntimeError, match=r"init_process_group\W+first"):
        publish_address(0, "node-1:7000")
