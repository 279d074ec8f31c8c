"""Malformed requests of an client: typed errors, the server lives and holds nothing. soak_server.py takes longer."""

import threading
from collections import Counter

import torch
from amounts import amount
from channels import descriptors_from_now
from pipelines import wait_until
from plain_clients import PlainClient, in_parts, plain_graph
from ticket_fuzz import TOLD, TicketFuzz

import datapipes as dp
from datapipes.distributed import Part, PartitionServer

TICKETS = 1500
CHAIN_TICKETS = amount(20_000, 1000)


def test_malformed_requests_have_typed_errors_and_leave_nothing(tmp_path, caplog):
    root = in_parts(tmp_path / "root", plain_graph())
    ids = Part.open(root, 1).node_ids()
    with PartitionServer(root, 1) as server, PlainClient(server.address) as client:
        client.hello()
        fuzz, outcomes = TicketFuzz(ids, client.meant, 0), Counter()
        for ticket in fuzz.tickets:
            client.ask_bytes(ticket)
        opened, threads = descriptors_from_now(), threading.active_count()
        for _ in range(TICKETS):
            try:
                client.ask_bytes(fuzz.next())
                outcomes["answered"] += 1
            except TOLD as error:
                outcomes[type(error).__name__] += 1
        for ticket in fuzz.tickets:
            client.ask_bytes(ticket)
        wait_until(lambda: threading.active_count() == threads and opened() == 0, "threads or descriptors were left")
        numbers = server.statistics()
        assert (numbers["waiting"], numbers["working"], numbers["bytes_in_flight"]) == (0, 0, 0)
    assert {"answered", "BadRequest", "OtherPartition", "IndexError"} <= {*outcomes}, outcomes
    assert [each.message for each in caplog.records if each.exc_info] == []


def test_malformed_requests_of_producers_have_typed_errors_and_leave_nothing(caplog):
    graph, ids = plain_graph(), torch.arange(10)
    store = dp.FeatureStore({("node", None, "y"): dp.TensorFeature(graph.node_attributes["y"])})
    items = dp.ItemSet((ids, ids.float()))
    chain = dp.ItemSampler(items, 4).sample_neighbor(graph, [2, -1]).fetch_feature(store, ["y"])
    server = PartitionServer(graph, chains=True, features=["y"])
    server.start()
    with server, PlainClient(server.address) as client:
        client.hello()
        fuzz, outcomes = TicketFuzz(ids, client.meant, 0, chain), Counter()
        for _ in range(CHAIN_TICKETS):
            try:
                client.ask_bytes(fuzz.next())
                outcomes["answered"] += 1
            except TOLD as error:
                outcomes[type(error).__name__] += 1
        client.ask_bytes(fuzz.tickets[0])
        assert len(server.statistics()["producers"]) <= 64
        numbers = server.statistics()
        assert (numbers["waiting"], numbers["working"], numbers["bytes_in_flight"]) == (0, 0, 0)
    assert {"answered", "BadRequest", "OtherPartition", "ValueError"} <= {*outcomes}, outcomes
    assert [each.message for each in caplog.records if each.exc_info] == []
