"""Admission: turns, limits and bytes in flight, without a network."""

import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest
import torch
from pipelines import wait_until

from datapipes.distributed.server.admission import Admission
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.refusals import Unavailable

BOUND_S = 20.0


class Gate:
    """Work that waits until it is let go; `begun` says that it has begun."""

    def __init__(self) -> None:
        self.begun, self.open = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self.open.wait(BOUND_S)
        return "done"


class Asking:
    """An Admission, and threads that ask it."""

    def __init__(self, concurrency: int = 1, max_waiting: int = 100, max_bytes: int = 1000) -> None:
        self.admission = Admission("server", concurrency, max_waiting, max_bytes)
        self.threads = ThreadPoolExecutor(50)

    def begun(self) -> tuple[Gate, Future]:
        """A gate, and a request that has begun and waits for it."""
        gate = Gate()
        request = self.threads.submit(self.admission.run, "busy", 0, gate, never)
        assert gate.begun.wait(BOUND_S)
        return gate, request

    def wait_asking(self, client: str, count: int, *arguments) -> list[Future]:
        """Requests that wait, one behind the other."""
        asked = []
        for _ in range(count):
            before = self.admission.num_waiting
            asked.append(self.threads.submit(self.admission.run, client, *arguments))
            self.until(lambda before=before: self.admission.num_waiting == before + 1)
        return asked

    def until(self, is_so) -> None:
        with self.admission._changed:
            for _ in range(int(BOUND_S * 100)):
                if is_so():
                    return
                self.admission._changed.wait(0.01)
        raise AssertionError("it did not come to this")

    def __enter__(self) -> "Asking":
        return self

    def __exit__(self, *_: object) -> None:
        self.admission.close(0.0)
        self.admission.join(BOUND_S)
        self.threads.shutdown()


def never() -> bool:
    return False


def test_clients_take_turns():
    done = []
    with Asking() as asking:
        gate, first = asking.begun()
        futures = []
        for client, count in (("a", 3), ("b", 1), ("c", 2)):
            for number in range(count):
                futures += asking.wait_asking(client, 1, 0, lambda name=f"{client}{number}": done.append(name), never)
        gate.open.set()
        for future in [first, *futures]:
            future.result(BOUND_S)
    assert done == ["a0", "b0", "c0", "a1", "c1", "a2"]


def test_so_many_are_worked_on_at_once():
    with Asking(concurrency=2) as asking:
        gates = [Gate() for _ in range(3)]
        futures = [asking.threads.submit(asking.admission.run, "a", 0, gate, never) for gate in gates[:2]]
        assert all(gate.begun.wait(BOUND_S) for gate in gates[:2])
        futures += asking.wait_asking("a", 1, 0, gates[2], never)
        assert (asking.admission.num_working, asking.admission.num_waiting) == (2, 1)
        assert not gates[2].begun.is_set()
        gates[0].open.set()
        assert gates[2].begun.wait(BOUND_S)
        for gate in gates:
            gate.open.set()
        assert [future.result(BOUND_S)[0] for future in futures] == ["done"] * 3


def test_a_full_server_refuses_and_a_client_with_few_requests_takes_the_place_of_one_with_many():
    with Asking(max_waiting=3) as asking:
        gate, first = asking.begun()
        many = asking.wait_asking("many", 3, 0, lambda: "many", never)
        with pytest.raises(Unavailable, match="server: the server is full: 3 requests wait"):
            asking.admission.run("many", 0, lambda: None, never)
        few = asking.threads.submit(asking.admission.run, "few", 0, lambda: "few", never)
        with pytest.raises(Unavailable, match="full"):
            many[2].result(BOUND_S)
        gate.open.set()
        assert [each.result(BOUND_S)[0] for each in [first, *many[:2], few]] == ["done", "many", "many", "few"]


def test_bytes_stay_in_flight_until_they_are_released():
    with Asking(max_bytes=1000) as asking:
        _, hold = asking.admission.run("a", 250, lambda: None, never)
        assert asking.admission.num_bytes == 250
        hold.recount(100)
        assert asking.admission.num_bytes == 100
        hold.recount(700)  # it has become more than was expected
        assert asking.admission.num_bytes == 700
        hold.release()
        hold.release()
        hold.recount(100)
        assert asking.admission.num_bytes == 0
        answer = Message({}, {"x": torch.zeros(700, dtype=torch.uint8)})
        _, hold = asking.admission.run("a", lambda: 250, lambda: answer, never)
        assert asking.admission.num_bytes == 700
        asking.admission.run("a", 0, lambda: "no bytes", never)
        hold.release()
        assert (asking.admission.num_bytes, asking.admission._held) == (0, {})


def test_a_thread_that_waits_holds_no_result():
    class Result:
        pass

    with Asking(max_bytes=1000) as asking:
        result, hold = asking.admission.run("a", 250, Result, never)
        hold.release()
        known = weakref.ref(result)
        del result
        wait_until(lambda: known() is None)


def test_a_client_that_holds_its_share_waits_while_others_go_on():
    with Asking(max_bytes=1000) as asking:
        _, slow = asking.admission.run("slow", 250, lambda: None, never)
        (more,) = asking.wait_asking("slow", 1, 1, lambda: "more", never)
        for _ in range(5):
            _, hold = asking.admission.run("other", 250, lambda: None, never)
            hold.release()
        assert not more.done()
        slow.release()
        assert more.result(BOUND_S)[0] == "more"


def test_the_connections_of_one_host_hold_half_and_those_of_others_go_on():
    with Asking(max_bytes=1000) as asking:
        slow = [asking.admission.run(f"ipv4:10.0.0.1:{port}", 250, lambda: None, never)[1] for port in range(2)]
        (large,) = asking.wait_asking("ipv4:10.0.0.1:3", 1, 250, lambda: "large", never)
        (medium,) = asking.wait_asking("ipv4:10.0.0.1:4", 1, 70, lambda: "medium", never)
        for port in range(5):
            asking.admission.run(f"ipv4:10.0.0.2:{port}", 250, lambda: None, never)[1].release()
        assert not large.done()
        assert not medium.done()  # it does not pass the large one of its own host
        slow[0].release()
        assert large.result(BOUND_S)[0] == "large"
        slow[1].release()
        medium.result(BOUND_S)[1].release()
        large.result(BOUND_S)[1].release()
        held = (asking.admission._held, asking.admission._held_by_hosts, asking.admission._held_by_owners)
        assert (asking.admission.num_bytes, *held) == (0, {}, {}, {})


@pytest.mark.parametrize("num_hosts", [1, 2])
def test_small_answers_do_not_wait_for_those_of_slow_readers(num_hosts):
    """Of one host they take what is kept above its half; of more, what is kept of all."""
    with Asking(max_bytes=1600) as asking:
        for port in range(2 * num_hosts - (num_hosts > 1)):
            slow = f"ipv4:10.0.0.{port % num_hosts}:{port}"
            asking.admission.run(slow, 400, lambda: None, never, f"slow {port}")
        (large,) = asking.wait_asking("ipv4:10.0.0.0:20", 1, 400, lambda: None, never, "slow 0")
        ask = partial(asking.admission.run, "ipv4:10.0.0.0:30", work=lambda: "small", is_cancelled=never)
        for _ in range(10):
            ask(num_bytes=80, owner="small")[1].release()
        kept = [ask(num_bytes=10, owner="small")[1] for _ in range(10)]
        (more,) = asking.wait_asking("ipv4:10.0.0.0:31", 1, 10, lambda: "more", never, "other")
        (least,) = asking.wait_asking("ipv4:10.0.0.0:32", 1, 1, lambda: "least", never, "another")
        assert not large.done()
        assert not more.done()  # what is kept is taken
        kept[0].release()
        more.result(BOUND_S)[1].release()
        least.result(BOUND_S)
        assert not large.done()


def test_what_an_owner_holds_on_all_its_connections_decides_whether_it_is_little():
    with Asking(max_bytes=1600) as asking:
        held = [asking.admission.run(f"ipv4:10.0.0.1:{port}", 50, lambda: None, never, "slow")[1] for port in range(2)]
        held[0].recount(400)
        held[1].recount(400)
        (small,) = asking.wait_asking("ipv4:10.0.0.1:9", 1, 1, lambda: "small", never, "slow")
        asking.admission.run("ipv4:10.0.0.1:8", 1, lambda: "other", never, "other")[1].release()
        assert not small.done()
        held[0].release()
        small.result(BOUND_S)


def test_a_connection_with_several_answers_holds_a_sixteenth():
    with Asking(max_bytes=1600) as asking:
        _, first = asking.admission.run("ipv4:10.0.0.1:1", 60, lambda: None, never)
        _, second = asking.admission.run("ipv4:10.0.0.1:1", 40, lambda: None, never)
        (third,) = asking.wait_asking("ipv4:10.0.0.1:1", 1, 1, lambda: None, never)
        asking.admission.run("ipv4:10.0.0.1:2", 400, lambda: None, never)[1].release()
        assert not third.done()
        second.release()
        third.result(BOUND_S)[1].release()
        first.release()


def test_a_large_answer_is_passed_by_small_ones_only_within_what_is_kept():
    with Asking(max_bytes=1000) as asking:
        holds = [asking.admission.run(f"c{number}", 230, lambda: None, never)[1] for number in range(4)]
        large, medium = (
            asking.wait_asking(client, 1, num_bytes, lambda: None, never)[0]
            for client, num_bytes in (("large", 400), ("medium", 63))
        )
        for number in range(2):
            asking.admission.run(f"small {number}", 31, lambda: None, never)
        (more,) = asking.wait_asking("more", 1, 1, lambda: None, never)
        holds[0].release()
        assert asking.admission.num_waiting == 3  # nobody passes the large one, which would wait for ever
        assert not medium.done()
        holds[1].release()
        large.result(BOUND_S)[1].release()
        medium.result(BOUND_S)
        more.result(BOUND_S)


def test_the_error_of_the_work_is_raised_and_its_bytes_are_free():
    def fails() -> None:
        raise KeyError("no feature")

    with Asking() as asking:
        with pytest.raises(KeyError, match="no feature"):
            asking.admission.run("a", 100, fails, never)
        assert (asking.admission.num_bytes, asking.admission._held) == (0, {})
        assert asking.admission.run("a", 100, lambda: "well", never)[0] == "well"


def test_what_the_client_has_given_up_is_not_worked_on():
    with Asking() as asking:
        with pytest.raises(Unavailable, match="the client has given up"):
            asking.admission.run("a", 100, lambda: pytest.fail("worked on"), lambda: True)
        assert asking.admission.num_bytes == 0


def test_closing_answers_what_is_under_way_within_the_grace():
    with Asking() as asking:
        gate, first = asking.begun()
        (waiting,) = asking.wait_asking("a", 1, 0, lambda: "waited", never)
        closing = asking.threads.submit(asking.admission.close, BOUND_S)
        asking.until(lambda: asking.admission._is_closing)
        with pytest.raises(Unavailable, match="the server stops"):
            asking.admission.run("b", 0, lambda: None, never)
        gate.open.set()
        assert [first.result(BOUND_S)[0], waiting.result(BOUND_S)[0]] == ["done", "waited"]
        assert closing.result(BOUND_S)


def test_closing_says_whether_work_and_answers_have_ended():
    with Asking() as idle:
        assert idle.admission.close(0.0)
    with Asking() as working:
        gate, request = working.begun()
        assert not working.admission.close(0.0)
        gate.open.set()
        request.result(BOUND_S)
    with Asking() as sending:
        _, hold = sending.admission.run("a", 1, lambda: None, never)
        assert not sending.admission.close(0.0)
        hold.release()


def test_closing_refuses_what_waits_when_the_grace_is_over():
    with Asking() as asking:
        gate, first = asking.begun()
        (waiting,) = asking.wait_asking("a", 1, 0, lambda: None, never)
        assert not asking.admission.close(0.0)
        with pytest.raises(Unavailable, match="the server stops"):
            waiting.result(BOUND_S)
        gate.open.set()
        assert first.result(BOUND_S)[0] == "done"
        asking.admission.join(BOUND_S)
        assert not any(thread.is_alive() for thread in asking.admission._threads)
