"""Places: the order in which replicas are asked, their shares of the time, and what a resolver tells later."""

import pyarrow.flight as flight
import pytest

from datapipes.distributed.addresses import Replicas, replicas_of
from datapipes.distributed.client import remote_part as module
from datapipes.distributed.client.remote_part import Places
from datapipes.distributed.wire.refusals import OtherPartition

ALL = replicas_of("test", "part 0", ["a:1", "b:1", "c:1"], "test")
MORE = replicas_of("test", "part 0", ["b:1", "d:1"], "test")


class Network:
    """Connects to what is `there`, and notes what was asked, with the time it had."""

    def __init__(self, *there, failure=None):
        self.there, self.asked = there, []
        self.failure = failure or flight.FlightUnavailableError("refused")

    def __call__(self, address, timeout):
        self.asked.append((address, timeout))
        if address not in self.there:
            raise self.failure
        return address


def test_each_has_its_share_of_the_time_until_one_connects():
    places = Places(ALL)
    first, second, third = places.all()
    network = Network(third)
    assert places.connect(network, 6.0) == third
    assert [address for address, _ in network.asked] == [first, second, third]
    assert [timeout for _, timeout in network.asked] == pytest.approx([2.0, 3.0, 6.0], abs=0.5)
    assert places.all() == (third, first, second)
    assert places.connect(network, 6.0) == third


def test_what_tells_more_than_that_it_cannot_be_reached_is_raised_at_once():
    places, network = Places(ALL), Network(failure=OtherPartition("other"))
    with pytest.raises(OtherPartition):
        places.connect(network, 6.0)
    assert len(network.asked) == 1


def test_clients_choose_by_a_hash_of_their_process(monkeypatch):
    firsts = set()
    for pid in range(50):
        monkeypatch.setattr(module, "_client", lambda pid=pid: f"host {pid}")
        assert Places(ALL).all() == Places(Replicas(reversed(ALL))).all()
        firsts.add(Places(ALL).all()[0])
    assert firsts == {*ALL}


def test_a_resolver_is_asked_when_none_can_be_reached():
    told = []

    def again():
        told.append(MORE)
        return MORE

    places, network = Places(ALL, again), Network(MORE[1])
    assert places.connect(network, 6.0) == MORE[1]
    assert [address for address, _ in network.asked][:3] == [*Places(ALL).all()]
    assert len(network.asked) == 4
    assert {*places.all()} == {*MORE}
    assert places.connect(network, 6.0) == MORE[1]
    assert told == [MORE]


@pytest.mark.parametrize("error", [OSError("no cluster"), SystemExit("no cluster")])
def test_what_prevents_asking_a_resolver_is_told_and_the_known_ones_stay(error):
    def again():
        raise error

    places, network = Places(ALL, again), Network()
    for _ in range(2):
        with pytest.raises(flight.FlightUnavailableError):
            places.connect(network, 6.0)
        assert places.complaint == f" The resolver was asked again: {type(error).__name__}: no cluster"
        assert {*places.all()} == {*ALL}
    assert len(network.asked) == 6


def test_one_that_fails_goes_to_the_end():
    places = Places(ALL)
    first, second, third = places.all()
    assert places.failed(first)
    assert places.all() == (second, third, first)
    assert not Places(Replicas(ALL[:1])).failed(ALL[0])
