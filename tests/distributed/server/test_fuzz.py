"""Malformed requests of a client: typed errors, the server lives and holds nothing. soak_server.py takes longer."""

import threading
from collections import Counter

import torch
from amounts import amount
from channels import descriptors_from_now
from pipelines import wait_until
from plain_clients import PlainClient, greeted, plain_graph
from ticket_fuzz import TOLD, TicketFuzz

import datapipes as dp
from datapipes.distributed import Part, PartitionServer


def expect_typed_errors(
    server: PartitionServer, client: PlainClient, fuzz: TicketFuzz, num_tickets: int, error: str
) -> None:
    """Send so many requests, some of which meet an error of the type `error`."""
    outcomes = Counter()
    for _ in range(num_tickets):
        try:
            client.ask_bytes(fuzz.next())
            outcomes["answered"] += 1
        except TOLD as refusal:
            outcomes[type(refusal).__name__] += 1
    numbers = server.statistics()
    assert (numbers["waiting"], numbers["working"], numbers["bytes_in_flight"]) == (0, 0, 0)
    assert {"answered", "BadRequest", "OtherPartition", error} <= {*outcomes}, outcomes


def test_malformed_requests_have_typed_errors_and_leave_nothing(root, caplog):
    with greeted(root) as (server, client):
        fuzz = TicketFuzz(Part.open(root, 1).node_ids(), client.meant, 0)
        for ticket in fuzz.tickets:
            client.ask_bytes(ticket)
        opened, threads = descriptors_from_now(), threading.active_count()
        expect_typed_errors(server, client, fuzz, 1500, "IndexError")
        for ticket in fuzz.tickets:
            client.ask_bytes(ticket)
        wait_until(lambda: threading.active_count() == threads and opened() == 0, "threads or descriptors were left")
    assert [record.message for record in caplog.records if record.exc_info] == []


def test_malformed_requests_of_producers_have_typed_errors_and_leave_nothing(caplog):
    graph, ids = plain_graph(), torch.arange(10)
    store = dp.FeatureStore({("node", None, "y"): dp.TensorFeature(graph.node_attributes["y"])})
    items = dp.ItemSet((ids, ids.float()))
    chain = dp.ItemSampler(items, 4).sample_neighbor(graph, [2, -1]).fetch_feature(store, ["y"])
    with PartitionServer(graph, chains=True, features=["y"]) as server, PlainClient(server.address) as client:
        client.hello()
        fuzz = TicketFuzz(ids, client.meant, 0, chain)
        expect_typed_errors(server, client, fuzz, amount(20_000, 1000), "ValueError")
        client.ask_bytes(fuzz.tickets[0])
        assert len(server.statistics()["producers"]) <= 64
    assert [record.message for record in caplog.records if record.exc_info] == []
