"""What several tests of the client start from."""

import pytest

from datapipes.distributed.addresses import replicas_of
from datapipes.distributed.client.flight_peers import FlightPeers
from datapipes.distributed.partition_facts import PartitionFacts


@pytest.fixture
def peers_of(part):
    """Makes peers of the server of part 1; they are closed in the end."""
    made = []

    def peers(address: str, deadline: float = 60.0) -> FlightPeers:
        addresses = {1: replicas_of("test", "a part", address, "test")}
        made.append(FlightPeers(addresses, PartitionFacts.of(part), tls=None, deadline=deadline))
        return made[-1]

    yield peers
    for client in made:
        client.close()
