"""The contract of ShmChannel: limits, timeouts, epochs, errors, counts, and what it refuses.

W1 to W14 are defects known from another system's queue in shared memory. A test that names one fails if ShmChannel has
that defect.
"""

import gc
import itertools
import math
import random
import resource
import threading
import time
import warnings
from contextlib import suppress

import numpy as np
import pytest
import torch
from channels import BOUND_S, HEAD, attached_again, in_thread, nested_tensor, number_of, numbered
from fake_registration import FakeRegistration
from pipelines import refused

import datapipes as dp
from datapipes.channel import pinning
from datapipes.device import runtime

KIB = 1024
LATE_S = 5.0  # a call that ends at its timeout ends within this, on a machine that stands still for a while


def full(channel: dp.ShmChannel) -> bool:
    try:
        channel.send(numbered(0), timeout=0)
    except dp.QueueTimeoutError:
        return True
    return False


# --- sizes


def test_a_message_larger_than_the_channel_is_refused_and_the_channel_goes_on(refuses):  # W1
    with dp.ShmChannel(4, KIB) as channel:
        for number in range(3):
            refuses(ValueError, channel.send, numbered(0, KIB), timeout=0)
            channel.send(numbered(number, KIB - HEAD), timeout=0)
            assert number_of(channel.recv(timeout=0)) == number
        with pytest.raises(dp.QueueTimeoutError):
            channel.recv(timeout=0)


def test_the_limit_does_not_depend_on_what_was_sent_before():  # W2
    rng = random.Random(2)
    with dp.ShmChannel(4, KIB) as channel:
        for number, num_bytes in enumerate([600, 600, *(rng.randint(1, KIB - HEAD) for _ in range(200))]):
            for size in (num_bytes, KIB - HEAD):
                channel.send(numbered(number, size), timeout=0)
                assert number_of(channel.recv(timeout=0)) == number % 251


def test_a_full_size_message_passes_after_small_ones_in_any_position():  # W2
    with dp.ShmChannel(8, KIB) as channel:
        for count in range(1, 8):
            for number in range(count):
                channel.send(numbered(number), timeout=0)
            assert [number_of(channel.recv(timeout=0)) for _ in range(count)] == list(range(count))
            channel.send(numbered(99, KIB - HEAD), timeout=0)
            assert number_of(channel.recv(timeout=0)) == 99


def test_sizes_are_read_as_people_write_them():
    for size, num_bytes in (("0.5 MiB", 512 * KIB), (" 1m ", KIB * KIB), (100, 128), (np.int64(64), 64)):
        with dp.ShmChannel(3, size) as channel:
            assert repr(channel) == f"ShmChannel(capacity=3, shm_size={num_bytes})"


# --- the two limits, and room


def at_capacity(channel: dp.ShmChannel) -> None:
    for number in range(4):
        channel.send(numbered(number), timeout=0)


def out_of_bytes(channel: dp.ShmChannel) -> None:
    for number in range(2):
        channel.send(numbered(number, 2 * KIB - HEAD), timeout=0)


@pytest.mark.parametrize("fill", [at_capacity, out_of_bytes])
def test_send_at_either_limit_times_out_on_time(fill, refuses):  # W3
    with dp.ShmChannel(4, 4 * KIB) as channel:
        fill(channel)
        for timeout in (0, 0.05, 0.25):
            began = time.monotonic()
            refuses(dp.QueueTimeoutError, channel.send, numbered(9), timeout=timeout)
            assert timeout <= time.monotonic() - began < timeout + LATE_S


@pytest.mark.parametrize("fill", [at_capacity, out_of_bytes])
def test_send_goes_on_when_a_message_is_received(fill):
    with dp.ShmChannel(4, 4 * KIB) as channel:
        fill(channel)
        assert full(channel)
        sent = in_thread(channel.send, numbered(9), BOUND_S)
        assert number_of(channel.recv(timeout=0)) == 0
        assert sent.result(BOUND_S) is True


def test_unread_messages_count_and_received_ones_do_not():
    with dp.ShmChannel(2, "64KB") as channel:
        held = []
        for number in range(10):
            channel.send(numbered(number), timeout=0)
            held.append(channel.recv(timeout=0))
        assert not full(channel)
        assert not full(channel)
        assert full(channel)
        assert [number_of(message) for message in held] == list(range(10))


def test_send_goes_on_when_the_last_tensor_of_a_message_is_gone():
    with dp.ShmChannel(8, 4 * KIB) as channel:
        channel.send({"a": torch.ones(900, dtype=torch.uint8), "b": torch.ones(900, dtype=torch.uint8)}, timeout=0)
        message = channel.recv(timeout=0)
        view = message.pop("a")[10:20]
        large = numbered(5, 3 * KIB)
        for _ in range(2):
            with pytest.raises(dp.QueueTimeoutError):
                channel.send(large, timeout=0)
            message.clear()
        sent = in_thread(channel.send, large, BOUND_S)
        assert view.tolist() == [1] * 10
        del view
        assert sent.result(BOUND_S) is True
        assert number_of(channel.recv(timeout=0)) == 5


def test_a_large_message_is_not_starved_by_small_ones():
    with dp.ShmChannel(64, 4 * KIB) as channel:

        def send_small():
            with suppress(dp.ChannelClosed):
                while True:
                    channel.send(numbered(1), timeout=BOUND_S)

        small = [in_thread(send_small) for _ in range(3)]
        large = in_thread(channel.send, numbered(2, 4 * KIB - HEAD), BOUND_S)
        received = (number_of(channel.recv(timeout=BOUND_S)) for _ in range(100_000))
        assert 2 in received
        assert large.result(BOUND_S) is True
    for call in small:
        call.result(BOUND_S)


# --- what receivers keep


def test_all_messages_of_an_epoch_larger_than_the_channel_can_be_kept():  # W6
    with dp.ShmChannel(4, "64KB") as channel:

        def send_all():
            for number in range(100):
                channel.send(numbered(number, 8 * KIB), BOUND_S)
            channel.end_epoch(timeout=BOUND_S)

        sent = in_thread(send_all)
        kept = list(channel.messages(timeout=BOUND_S))
        sent.result(BOUND_S)
        assert [number_of(message) for message in kept] == list(range(100))
        assert channel.stats()["copied_out"] >= 100 - 64 // 8


@pytest.mark.parametrize("rng_seed", range(6))
def test_half_of_the_channel_finds_room_whatever_is_kept(rng_seed):  # W6
    rng = random.Random(rng_seed)
    held = {}
    with dp.ShmChannel(4, "16KB") as channel:
        for number in range(400):
            channel.send(numbered(number, rng.choice((1, 64, KIB, rng.randint(1, 8 * KIB - HEAD)))), timeout=0)
            held[number] = channel.recv(timeout=0)
            for other in rng.sample(sorted(held), rng.choice((0, 0, 1, 1, len(held) // 2))):
                assert number_of(held.pop(other)) == other % 251
            channel.send(numbered(5, 8 * KIB - HEAD), timeout=0)
            assert number_of(channel.recv(timeout=0)) == 5
        assert all(number_of(message) == number % 251 for number, message in held.items())


# --- several at both ends


def test_one_message_goes_to_one_of_many_and_the_others_time_out():  # W4
    consumers, rounds = 8, 300
    begin, end = threading.Barrier(consumers + 1), threading.Barrier(consumers + 1)
    outcomes = []
    with dp.ShmChannel(4, "64KB") as channel:

        def consume():
            for _ in range(rounds):
                begin.wait(BOUND_S)
                try:
                    outcomes.append(number_of(channel.recv(timeout=0.005)))
                except dp.QueueTimeoutError:
                    outcomes.append(None)
                end.wait(BOUND_S)

        calls = [in_thread(consume) for _ in range(consumers)]
        for number in range(rounds):
            channel.send(numbered(number), timeout=0)
            begin.wait(BOUND_S)
            end.wait(BOUND_S)
            assert sorted(outcomes, key=str) == [number % 251] + [None] * (consumers - 1)
            outcomes.clear()
        for call in calls:
            call.result(BOUND_S)


def test_a_timeout_covers_the_whole_call_whoever_else_receives():  # W3
    with dp.ShmChannel(4, "64KB") as channel:

        def receive():
            for _ in range(20):
                began = time.monotonic()
                try:
                    channel.recv(timeout=0.05)
                except dp.QueueTimeoutError:
                    assert time.monotonic() - began >= 0.05
                assert time.monotonic() - began < 0.05 + LATE_S

        calls = [in_thread(receive) for _ in range(6)]
        for number in range(60):  # half of the messages they ask for
            channel.send(numbered(number), timeout=BOUND_S)
        for call in calls:
            call.result(BOUND_S)


def test_each_message_arrives_once_and_those_of_one_sender_in_order():
    count = 300
    received = [[], [], []]
    with dp.ShmChannel(8, "16KB") as channel:

        def send(sender):
            for number in range(count):
                channel.send({"sender": torch.tensor(sender), "number": torch.tensor(number)}, BOUND_S)

        def receive(mine):
            for message in channel.messages(timeout=BOUND_S):
                mine.append((int(message["sender"]), int(message["number"])))

        receivers = [in_thread(receive, mine) for mine in received]
        for call in [in_thread(send, sender) for sender in range(3)]:
            call.result(BOUND_S)
        for _ in receivers:
            channel.end_epoch(timeout=BOUND_S)
        for call in receivers:
            call.result(BOUND_S)
    assert sorted(itertools.chain(*received)) == [(sender, number) for sender in range(3) for number in range(count)]
    for mine in received:
        for sender in range(3):
            numbers = [number for of, number in mine if of == sender]
            assert numbers == sorted(numbers)


# --- epochs


def send_epoch(channel: dp.ShmChannel, *numbers: int, **arguments) -> None:
    for number in numbers:
        channel.send(numbered(number), timeout=0, **arguments)
    channel.end_epoch(timeout=0, **arguments)


def numbers_in(messages) -> list[int]:
    return [number_of(message) for message in messages]


def test_a_sender_learns_that_its_epoch_was_left_behind():
    with dp.ShmChannel(16, "64KB") as channel:
        assert channel.send(numbered(1)) is True
        channel.recv(timeout=0)
        channel.reset()
        assert channel.send(numbered(2), timeout=0) is False
        channel.end_epoch(timeout=0)
        assert channel.send(numbered(3), timeout=0) is True
        assert len(channel) == 1


@pytest.mark.parametrize("fill", [at_capacity, out_of_bytes])
def test_a_reset_frees_a_blocked_sender(fill):
    with dp.ShmChannel(4, 4 * KIB) as channel:
        fill(channel)
        number_of(channel.recv(timeout=0))
        while not full(channel):
            pass
        sent = in_thread(channel.send, numbered(9), BOUND_S)
        channel.reset()
        assert sent.result(BOUND_S) is False
        assert channel.empty()
        assert channel.send(numbered(4, 2 * KIB), timeout=0, epoch=1) is True


def test_a_sender_of_epochs_goes_on_while_the_receiver_breaks_and_resets():
    with dp.ShmChannel(2, "64KB") as channel:

        def send():
            for epoch in range(20):
                for number in range(5):
                    channel.send(numbered(10 * epoch + number), BOUND_S)
                channel.end_epoch(timeout=BOUND_S)

        sent = in_thread(send)
        for epoch in range(20):
            numbers = numbers_in(itertools.islice(channel.messages(timeout=BOUND_S), 1 + epoch % 5))
            assert numbers == [10 * epoch + number for number in range(1 + epoch % 5)]
            channel.reset()
        sent.result(BOUND_S)
        assert channel.empty()


def test_a_reset_to_an_epoch_drops_all_before_it(refuses):
    with dp.ShmChannel(16, "64KB") as channel:
        for epoch in range(4):
            send_epoch(channel, epoch, epoch=epoch)
        channel.reset(epoch=2)
        assert channel.send(numbered(9), timeout=0, epoch=1) is False
        assert numbers_in(channel) == [2]
        refuses(ValueError, channel.reset, epoch=1)
        channel.reset(epoch=2)
        assert numbers_in(channel) == [3]


def test_a_sender_that_comes_later_begins_at_the_current_epoch():
    with dp.ShmChannel(16, "64KB") as channel:
        send_epoch(channel)
        send_epoch(channel)
        assert [numbers_in(channel) for _ in range(2)] == [[], []]
        late = attached_again(channel)
        late.end_epoch(timeout=0)
        with pytest.raises(dp.EndOfEpoch, match="epoch 2"):
            channel.recv(timeout=0)
        channel.reset(epoch=9)
        later = attached_again(channel)
        assert later.send(numbered(1), timeout=0) is True
        later.end_epoch(timeout=0)
        assert numbers_in(channel) == [1]


# --- errors of senders


def raised_here(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_an_error_in_a_tiny_channel_keeps_its_end():
    with dp.ShmChannel(1, KIB) as channel:
        channel.send_error(raised_here(ValueError("long" * 1000 + " and its end")), timeout=0)
        with pytest.raises(ValueError, match=r"and its end$") as caught:
            channel.recv(timeout=0)
        assert str(caught.value.__cause__).endswith("and its end\n")


# --- counts


def test_stats_say_what_the_channel_did():
    with dp.ShmChannel(16, "64KB") as channel:
        none = dict.fromkeys(channel.stats(), 0)
        assert channel.stats() == none
        channel.send(numbered(1, 100), timeout=0)
        sent = {**none, "messages": 1, "bytes": HEAD + 128}
        assert channel.stats() == {**sent, "unread": 1, "used_bytes": HEAD + 128}
        message = channel.recv(timeout=0)
        assert channel.stats() == {**sent, "held": 1, "held_bytes": HEAD + 128, "used_bytes": HEAD + 128}
        del message
        assert channel.stats() == sent
        channel.end_epoch(timeout=0)
        channel.reset(epoch=1)
        assert channel.stats() == {**sent, "messages": 2, "bytes": HEAD + 128 + 64, "dropped": 1}


def test_stats_count_what_was_copied_out():
    with dp.ShmChannel(16, "16KB") as channel:
        held = []
        for number in range(4):
            channel.send(numbered(number, 4 * KIB - HEAD), timeout=0)
            held.append(channel.recv(timeout=0))
        stats = channel.stats()
        assert (stats["held"], stats["held_bytes"], stats["copied_out"]) == (2, 8 * KIB, 2)
        assert numbers_in(held) == list(range(4))


def test_stats_count_calls_that_waited_and_their_seconds():
    with dp.ShmChannel(1, "64KB") as channel:
        deadline = time.monotonic() + BOUND_S
        while channel.stats()["recv_waits"] == 0 and time.monotonic() < deadline:
            received = in_thread(channel.recv, BOUND_S)
            channel.send(numbered(1), timeout=BOUND_S)
            received.result(BOUND_S)
        while channel.stats()["send_waits"] == 0 and time.monotonic() < deadline:
            channel.send(numbered(1), timeout=0)
            sent = in_thread(channel.send, numbered(2), BOUND_S)
            for _ in range(2):
                channel.recv(timeout=BOUND_S)
            sent.result(BOUND_S)
        stats = channel.stats()
        assert stats["recv_waits"] >= 1
        assert stats["send_waits"] >= 1
        assert stats["waits"] == stats["send_waits"] + stats["recv_waits"]
        assert 0 < stats["recv_wait_s"] < BOUND_S
        assert 0 < stats["send_wait_s"] < BOUND_S


# --- close


def test_what_was_sent_before_the_maker_closed_is_still_received():  # W13
    channel = dp.ShmChannel(4, "64KB")
    with attached_again(channel) as other:
        channel.send(numbered(1), timeout=0)
        channel.close()
        with pytest.raises(dp.ChannelClosed, match="closed by its maker"):
            other.send(numbered(2), timeout=0)
        with pytest.raises(dp.ChannelClosed, match="closed by its maker"):
            other.reset()
        assert number_of(other.recv(timeout=0)) == 1
        for _ in range(2):
            with pytest.raises(dp.ChannelClosed, match="closed by its maker"):
                other.recv(timeout=0)


def test_closing_wakes_whoever_waits():  # W13
    channel = dp.ShmChannel(1, "64KB")
    other, third = attached_again(channel), attached_again(channel)
    channel.send(numbered(1), timeout=0)
    calls = [in_thread(other.send, numbered(2), None), in_thread(third.send, numbered(3), BOUND_S)]
    channel.close()
    for call in calls:
        with pytest.raises(dp.ChannelClosed):
            call.result(BOUND_S)
    assert number_of(other.recv(timeout=0)) == 1
    third.close()
    other.close()


# --- what is refused


def goes_on(channel: dp.ShmChannel) -> None:
    assert channel.empty()
    channel.send(numbered(3), timeout=0)
    assert number_of(channel.recv(timeout=0)) == 3


def test_what_a_channel_in_shared_memory_refuses(refuses):
    for capacity in (0, -1, 2**21, 10**5000):
        refuses(ValueError, dp.ShmChannel, capacity)
    for capacity in (1.5, "4", True, math.nan, math.inf):
        refuses(TypeError, dp.ShmChannel, capacity)
    for size in ("12QB", "0", "0.2", "9" * 30, 0, 63, 10**5000):
        refuses(ValueError, dp.ShmChannel, 4, size)
    for size in (1.5, None, [1]):
        refuses(TypeError, dp.ShmChannel, 4, size)
    for descriptor in (-1, 2**31, 10**5000):
        refuses(ValueError, dp.ShmChannel.from_descriptor, descriptor)
    for descriptor in (True, "3", None, 2.0, math.nan):
        refuses(TypeError, dp.ShmChannel.from_descriptor, descriptor)


@pytest.mark.parametrize("size", ["100TB", 2**62 - 2**20])
def test_more_than_the_machine_has_is_refused_before_it_is_taken(size):  # W14
    with refused(MemoryError, stage="ShmChannel", found=r"\d{15,} bytes", allowed=r"\d+ are left by the memory"):
        dp.ShmChannel(4, size)


def quantized_tensor() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, says torch
        return torch.quantize_per_tensor(torch.ones(3), 1.0, 0, torch.qint8)


def test_what_is_no_dense_tensor_here_is_refused(refuses):
    not_dense = [
        *(torch.empty(3, device="meta"), torch.eye(3).to_sparse(), quantized_tensor()),
        *(nested_tensor(torch.strided), nested_tensor(torch.jagged)),
    ]
    with dp.ShmChannel(4, "64KB") as channel:
        for bad in not_dense:
            refuses(TypeError, channel.send, {"good": torch.ones(2), "bad": bad}, timeout=0)
        refuses(ValueError, channel.send, {"good": torch.ones(2), "\ud800": torch.ones(1)}, timeout=0)
        goes_on(channel)


def test_the_last_epoch_is_the_largest_int64(refuses):
    with dp.ShmChannel(4, "64KB") as channel:
        for call in (channel.end_epoch, channel.reset, lambda epoch: channel.send({}, epoch=epoch)):
            refuses(ValueError, call, 2**63)
        channel.end_epoch(2**63 - 1)
        for call in (channel.end_epoch, lambda: channel.send(numbered(1), timeout=0)):
            refuses(ValueError, call)
        with pytest.raises(dp.EndOfEpoch) as ended:
            channel.recv(timeout=0)
        assert ended.value.epoch == 2**63 - 1


# --- pinned memory, with a fake CUDA in Python


class FakeEvent:
    """An event that passes when the test says so, or when somebody waits for it."""

    made: list = None

    def __init__(self):
        self.passed, self.stream = False, None
        self.made.append(self)

    def record(self, stream):
        self.stream = stream

    def query(self):
        return self.passed

    def synchronize(self):
        self.passed = True


class FakeCuda(FakeRegistration):
    def __init__(self, refuses: int = 0):
        super().__init__(refuses)
        self.Event = type("Event", (FakeEvent,), {"made": []})

    def device(self, device):
        return torch.device("cuda", 0)

    def current_stream(self, device):
        return "current"

    def new_event(self):
        return self.Event()


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    monkeypatch.setattr(runtime, "_current", fake)
    yield fake
    gc.collect()
    assert fake.faults == []
    assert fake.registered == {}


def test_pinning_registers_the_segment_until_it_is_closed(cuda):  # W10
    channel = dp.ShmChannel(4, "64KB")
    channel.pin_memory()
    channel.pin_memory()
    address, num_bytes = channel._shared.memory
    assert cuda.registered == {address: (num_bytes, False)}
    channel.send(numbered(1), timeout=0)
    message = channel.recv(timeout=0)
    assert address <= message["x"].data_ptr() < address + num_bytes
    channel.close()
    assert cuda.registered == {}
    assert number_of(message) == 1


def test_a_pinned_message_is_kept_until_the_copies_from_it_are_done(cuda):  # W11
    with dp.ShmChannel(8, 4 * KIB) as channel:
        channel.pin_memory()
        channel.copies_on("mine")
        for number in range(5):
            channel.send(numbered(number, KIB - HEAD if number == 0 else 64), timeout=0)
        channel.recv(timeout=0)
        kept = [channel.recv(timeout=0)]  # records the events to wait for
        assert [event.stream for event in cuda.Event.made] == ["current", "mine"]
        for passed in range(2):
            assert channel.stats()["held_bytes"] == KIB + 128 * len(kept)
            cuda.Event.made[passed].passed = True
            kept.append(channel.recv(timeout=0))
        assert channel.stats()["held_bytes"] == 128 * len(kept)
        channel.send(numbered(5, KIB - HEAD), timeout=0)
        assert [number_of(message) for message in kept] == [1, 2, 3]


def test_a_receiver_that_would_wait_waits_for_the_copies_first(cuda):  # W11
    with dp.ShmChannel(4, "64KB") as channel:
        channel.pin_memory()
        channel.send(numbered(1), timeout=0)
        channel.recv(timeout=0)
        assert channel.stats()["held"] == 1
        with pytest.raises(dp.QueueTimeoutError):
            channel.recv(timeout=0)
        assert channel.stats()["held"] == 0


def test_closing_a_pinned_channel_waits_for_the_copies(cuda):  # W11
    channel = dp.ShmChannel(4, "64KB")
    channel.pin_memory()
    channel.send(numbered(1), timeout=0)
    channel.recv(timeout=0)
    with attached_again(channel) as other:
        channel.close()
        assert [event.passed for event in cuda.Event.made] == [True]
        assert other.stats()["held"] == 0


def test_several_receivers_of_a_pinned_channel_free_each_message_once(cuda):  # W11
    meet = threading.Barrier(2)

    def query(event):
        with suppress(threading.BrokenBarrierError):  # a thread that asks alone meets no other one
            meet.wait(0.2)
        return event.passed

    with dp.ShmChannel(8, "64KB") as channel:
        channel.pin_memory()
        for number in range(6):
            channel.send(numbered(number), timeout=0)
        for _ in range(3):
            channel.recv(timeout=0)  # records the events of the copies from the message before
        cuda.Event.made[0].passed = True
        cuda.Event.query = query
        calls = [in_thread(lambda: number_of(channel.recv(BOUND_S))) for _ in range(2)]
        assert sorted(call.result(BOUND_S) for call in calls) == [3, 4]
        channel.recv(timeout=0)
        with pytest.raises(dp.QueueTimeoutError):
            channel.recv(timeout=0)
        assert channel.stats()["held"] == 0


def test_copies_are_not_waited_for_where_nothing_is_pinned():
    with dp.ShmChannel(4, "64KB") as channel:
        channel.copies_on("mine")
        goes_on(channel)


@pytest.mark.parametrize(
    ("limit", "error", "allowed"),
    [
        (4096, MemoryError, r"limit of locked memory is 4096 bytes.*ulimit -l"),
        (2**40, RuntimeError, "cudaHostRegister"),
    ],
)
def test_a_refused_registration_is_an_error_and_the_channel_goes_on(cuda, monkeypatch, limit, error, allowed):  # W10
    cuda.refuse = 2
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    with dp.ShmChannel(4, "64KB") as channel:
        with refused(error, stage="ShmChannel.pin_memory", found=r"\d+ bytes.*error 2", allowed=allowed):
            channel.pin_memory()
        goes_on(channel)
        assert channel.stats()["held"] == 0


def test_without_cuda_there_is_one_warning_and_nothing_changes(monkeypatch):
    monkeypatch.setattr(runtime.Cuda, "device_count", lambda self: 0)
    monkeypatch.setattr(pinning, "_WARNED", False)
    with dp.ShmChannel(4, "64KB") as channel:
        with pytest.warns(UserWarning, match="no CUDA device") as caught:
            channel.pin_memory()
        assert caught[0].filename == __file__
        channel.pin_memory()
        goes_on(channel)
        assert channel.stats()["held"] == 0
