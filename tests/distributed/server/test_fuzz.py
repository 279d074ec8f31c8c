"""Malformed requests of an client: typed errors, the server lives and holds nothing. soak_server.py takes longer."""

import threading
from collections import Counter

from channels import descriptors_from_now
from plain_clients import PlainClient, in_parts, plain_graph
from ticket_fuzz import TOLD, TicketFuzz

from datapipes.distributed import Part, PartitionServer

TICKETS = 1500


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
        assert threading.active_count() == threads
        assert opened() == 0
        numbers = server.statistics()
        assert (numbers["waiting"], numbers["working"], numbers["bytes_in_flight"]) == (0, 0, 0)
    assert {"answered", "BadRequest", "OtherPartition", "IndexError"} <= {*outcomes}, outcomes
    assert [each.message for each in caplog.records if each.exc_info] == []
