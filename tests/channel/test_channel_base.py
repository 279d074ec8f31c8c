"""What every channel keeps to; ChannelBase, whose subclasses need two methods; errors of channels; sizes as text."""

import copy
import functools
import multiprocessing
import os
import pickle
import queue
import re
import select
import signal
import subprocess
import sys
from contextlib import contextmanager

import amounts
import numpy as np
import pytest
import torch
from channels import in_thread, number_of, numbered
from pipelines import BOUND_S, fetched, wait_until

import datapipes as dp
from datapipes.base.error_message import error_from_message, error_to_message
from datapipes.base.errors import RemoteTraceback
from datapipes.base.sizes import parse_size
from datapipes.processes.endings import how_it_ended

START_S = 100.0  # longest wait for a child that has to import torch first
SPAWN = multiprocessing.get_context(amounts.SPAWN)


class InProcess(dp.stages.ChannelBase):
    """A channel of two methods over a queue in this process."""

    def __init__(self) -> None:
        self.queue = queue.Queue()
        self.timeouts: list[float | None] = []  # arguments of `recv`

    def send(self, msg, **kwargs):
        self.queue.put(msg, **kwargs)

    def recv(self, timeout=None):
        self.timeouts.append(timeout)
        return self.queue.get(timeout=BOUND_S)


class BetweenProcesses(dp.stages.ChannelBase):
    """A channel of two methods over a pipe; tensors are copied into it."""

    def __init__(self) -> None:
        self.queue = SPAWN.SimpleQueue()

    def send(self, msg, **kwargs):
        self.queue.put({key: tensor.numpy() for key, tensor in msg.items()})

    def recv(self, timeout=START_S):
        reader = self.queue._reader
        if not reader.poll(timeout):
            raise dp.QueueTimeoutError("BetweenProcesses.recv: nothing came")
        return {key: torch.from_numpy(array) for key, array in self.queue.get().items()}

    def close(self):
        self.queue.close()


CHANNELS = {
    "in_process": InProcess,
    "between_processes": BetweenProcesses,
    "mp": dp.MpChannel,
    "shm": lambda: dp.ShmChannel(32, "64KB"),
}


@pytest.fixture(params=CHANNELS)
def channel(request):
    """Any channel; what is left unread is dropped at the end."""
    with CHANNELS[request.param]() as channel:
        yield channel
        if request.param == "mp":
            channel._queue.cancel_join_thread()


of_two_methods = pytest.mark.parametrize("channel", ["in_process", "between_processes"], indirect=True)
of_the_package = pytest.mark.parametrize("channel", ["mp", "shm"], indirect=True)


def numbers(messages) -> list[int]:
    return [number_of(message) for message in messages]


# --- messages


def test_messages_arrive_as_they_were_sent(channel):
    sent = {
        "a": torch.arange(6).reshape(2, 3),
        "column": torch.arange(12).reshape(3, 4)[:, 1],  # not contiguous
        "b.c": torch.zeros(0, 4),
        "": torch.tensor(True),
    }
    channel.send(sent)
    channel.send({})
    channel.end_epoch()
    got, nothing = channel
    assert list(got) == list(sent)
    for key, tensor in sent.items():
        assert (got[key].dtype, got[key].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(got[key], tensor)
    assert nothing == {}


@of_the_package
def test_minibatches_arrive_with_their_digests(channel):
    for minibatch in fetched():
        channel.send(minibatch.to_message())
        assert dp.MiniBatch.from_message(channel.recv(timeout=BOUND_S)).digest() == minibatch.digest()


@of_the_package
def test_views_that_conjugate_or_negate_arrive_as_their_values(channel):
    values = torch.tensor([1 + 2j, 3 - 4j]).conj()
    channel.send({"conjugated": values, "negated": values.imag})
    got = channel.recv(timeout=START_S)
    assert got["conjugated"].tolist() == [1 - 2j, 3 + 4j]
    assert got["negated"].tolist() == [-2, 4]


@of_the_package
def test_no_key_is_taken_for_the_end_of_an_epoch_or_an_error(channel):
    keys = ["#END_OF_EPOCH", "#ERROR.type", "#ERROR.text", "#ERROR"]
    for key in keys:
        channel.send({key: torch.tensor([1, 2])})
    channel.end_epoch()
    assert [list(message) for message in channel.messages(timeout=BOUND_S)] == [[key] for key in keys]


# --- iteration and epochs


def test_iterating_ends_with_the_epoch_which_may_be_empty(channel):
    for epoch, count in enumerate((4, 0, 0, 2)):
        for number in range(count):
            channel.send(numbered(10 * epoch + number))
        channel.end_epoch()
    assert [numbers(channel) for _ in range(4)] == [[0, 1, 2, 3], [], [], [30, 31]]


@pytest.mark.parametrize("num_senders", [1, 2, 5])
def test_messages_ends_when_all_senders_have_ended_their_epoch(channel, num_senders):
    for epoch in range(2):
        for _ in range(num_senders):
            channel.send(numbered(epoch))
            channel.end_epoch(epoch)
    channel.send(numbered(9))
    for epoch in range(2):
        assert numbers(channel.messages(num_senders, timeout=BOUND_S)) == [epoch] * num_senders
    assert number_of(channel.recv(timeout=BOUND_S)) == 9


def test_messages_passes_its_arguments_to_recv():
    channel = InProcess()
    channel.send(numbered(1))
    channel.end_epoch()
    assert numbers(channel.messages(timeout=3.5)) == [1]
    assert channel.timeouts == [3.5, 3.5]


def test_iterating_receives_no_more_than_it_yields(channel):
    for number in range(3):
        channel.send(numbered(number))
    channel.end_epoch()
    iterator = iter(channel)
    assert number_of(next(iterator)) == 0
    assert number_of(channel.recv()) == 1
    assert numbers(iterator) == [2]


@of_two_methods
def test_after_an_early_end_what_is_on_its_way_is_still_received(channel):
    for number in range(4):
        channel.send(numbered(number))
    channel.end_epoch()
    for message in channel:
        if number_of(message) == 1:
            break
    channel.reset()
    assert numbers(channel) == [2, 3]


def ended_epoch(channel: dp.stages.ChannelBase) -> int:
    """The epoch of the end mark that comes next."""
    with pytest.raises(dp.EndOfEpoch) as ended:
        channel._recv_checked(timeout=BOUND_S)  # in channels of the package it is `recv`
    return ended.value.epoch


def test_epochs_are_counted_from_0_unless_they_are_named(channel):
    for epoch in (None, None, 7, None, 3, None):
        channel.end_epoch(epoch)
    assert [ended_epoch(channel) for _ in range(6)] == [0, 1, 7, 8, 3, 4]
    other = InProcess()
    other.end_epoch()
    assert ended_epoch(other) == 0  # each sender counts its own epochs


@of_the_package
def test_naming_an_epoch_for_a_message_does_not_count_it(channel):
    channel.send(numbered(0), epoch=5)
    channel.end_epoch()
    assert number_of(channel.recv(timeout=BOUND_S)) == 0
    assert ended_epoch(channel) == 0


# --- reset


@of_the_package
def test_a_reset_drops_the_rest_of_the_epoch(channel):
    for epoch in range(2):
        for number in range(4):
            channel.send(numbered(10 * epoch + number))
        channel.end_epoch()
    for message in channel.messages(timeout=BOUND_S):
        if number_of(message) == 1:
            break
    channel.reset()
    channel.reset()  # a second call changes nothing
    assert numbers(channel.messages(timeout=BOUND_S)) == [10, 11, 12, 13]


@of_the_package
def test_a_reset_drops_what_is_sent_after_it(channel):
    channel.send(numbered(0))
    assert number_of(channel.recv(timeout=BOUND_S)) == 0
    channel.reset()
    channel.send(numbered(1))
    channel.send_error(ValueError("of the epoch that was left"))
    channel.end_epoch()
    channel.send(numbered(10))
    channel.end_epoch()
    assert numbers(channel.messages(timeout=BOUND_S)) == [10]


@of_the_package
@pytest.mark.parametrize("receive_first", [False, True])
def test_a_reset_between_epochs_drops_nothing(channel, receive_first):
    if receive_first:
        channel.send(numbered(0))
        channel.end_epoch()
        assert numbers(channel.messages(timeout=BOUND_S)) == [0]
    channel.send(numbered(10))
    channel.reset()
    channel.end_epoch()
    assert numbers(channel.messages(timeout=BOUND_S)) == [10]


@of_the_package
def test_a_reset_goes_by_the_epoch_that_was_named(channel):
    for epoch in (5, 3, 5, 6, 4, 6):
        channel.send(numbered(epoch), epoch=epoch)
    assert number_of(channel.recv(timeout=BOUND_S)) == 5
    channel.reset()
    assert numbers(channel.recv(timeout=BOUND_S) for _ in range(2)) == [6, 6]


# --- errors through a channel


def failed(error: BaseException) -> BaseException:
    """Raise and catch the error, so that it has a traceback."""
    try:
        raise error
    except BaseException as raised:
        return raised


def test_an_error_is_raised_where_it_is_received_with_the_senders_traceback(channel):
    channel.send(numbered(1))
    channel.send_error(failed(ValueError("no such node")))
    channel.send(numbered(2))
    channel.end_epoch()
    iterator = iter(channel)
    assert number_of(next(iterator)) == 1
    with pytest.raises(ValueError, match=r"^no such node$") as caught:
        next(iterator)
    cause = caught.value.__cause__
    assert isinstance(cause, RemoteTraceback)
    assert "in failed" in str(cause)
    assert f"In process {os.getpid()}, which sent it" in str(cause)
    assert numbers(channel) == [2]  # the channel still works


def test_the_cause_of_a_senders_error_is_in_its_traceback(channel):
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise RuntimeError("outer") from inner
    except RuntimeError as error:
        channel.send_error(error)
    with pytest.raises(RuntimeError, match="outer") as caught:
        next(iter(channel))
    assert re.search("KeyError: 'inner'.*direct cause.*RuntimeError: outer", str(caught.value.__cause__), re.DOTALL)


def test_a_stop_iteration_of_a_sender_does_not_end_the_epoch(channel):
    channel.send_error(failed(StopIteration(3)))
    with pytest.raises(dp.RemoteError, match=r"^StopIteration: 3$"):
        list(channel)


# --- timeouts, counts, close


@pytest.mark.parametrize(
    "timeout",
    [float("inf"), 3e6, 1e9, 1e300, np.float16("inf"), np.longdouble("1e4000"), np.int64(2**62)]
    + [pytest.param(10**digits, id=f"1e{digits}") for digits in (12, 400, 5000)],
)
@pytest.mark.parametrize("make", [lambda: dp.MpChannel(maxsize=1), lambda: dp.ShmChannel(1, "64KB")], ids=["mp", "shm"])
def test_a_timeout_longer_than_a_life_is_none(make, timeout):
    with make() as channel:
        for _ in range(2):  # one call of each may have to wait
            waiting = in_thread(lambda: channel.recv(timeout=timeout))
            channel.send(numbered(1), timeout=timeout)
            assert number_of(waiting.result(BOUND_S)) == 1
        channel.end_epoch(timeout=timeout)
        with pytest.raises(dp.EndOfEpoch):
            channel.recv(timeout=timeout)
        channel.send_error(ValueError("x"), timeout=timeout)
        with pytest.raises(ValueError, match="x"):
            channel.recv(timeout=timeout)


@of_the_package
def test_a_channel_counts_what_waits(channel):
    assert (len(channel), channel.empty(), bool(channel)) == (0, True, True)
    for number in range(3):
        channel.send(numbered(number))
        assert len(channel) == number + 1
    wait_until(lambda: not channel.empty())  # a thread of MpChannel's queue writes what was sent
    for number in range(3):
        assert number_of(channel.recv(timeout=BOUND_S)) == number
        assert len(channel) == 2 - number
    assert (channel.empty(), bool(channel)) == (True, True)


CALLS = {
    "send": lambda channel: channel.send(numbered(1)),
    "recv": lambda channel: channel.recv(),
    "end_epoch": lambda channel: channel.end_epoch(),
    "send_error": lambda channel: channel.send_error(ValueError()),
    "iter": lambda channel: next(iter(channel)),
    "reset": lambda channel: channel.reset(),
    "empty": lambda channel: channel.empty(),
}
CALLS_OF_SHM = {
    "stats": lambda channel: channel.stats(),
    "pin_memory": lambda channel: channel.pin_memory(),
    "copies_on": lambda channel: channel.copies_on(None),
    "__reduce__": pickle.dumps,
}


@of_the_package
@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
def test_what_a_closed_channel_refuses(channel, used, refuses):
    if used:
        channel.send(numbered(1))
        assert number_of(channel.recv(timeout=BOUND_S)) == 1
    channel.close()
    channel.close()  # a second call changes nothing
    if used and isinstance(channel, dp.MpChannel):
        channel._queue.join_thread()
    assert isinstance(channel, dp.MpChannel) or repr(channel) == "ShmChannel(closed)"
    for call in (CALLS | CALLS_OF_SHM if isinstance(channel, dp.ShmChannel) else CALLS).values():
        refuses(dp.ChannelClosed, call, channel)


# --- what is refused


def test_what_every_channel_refuses(channel, refuses):
    for num_senders in (0, -1, -(10**5000)):
        refuses(ValueError, channel.messages, num_senders)
    for num_senders in (True, 1.5, "2", float("nan"), float("inf")):
        refuses(TypeError, channel.messages, num_senders)
    refuses(ValueError, channel.end_epoch, -1)
    for epoch in (True, 1.5, "1", float("nan")):
        refuses(TypeError, channel.end_epoch, epoch)
    channel.end_epoch()
    assert ended_epoch(channel) == 0  # the refused calls did not count as epochs


@of_the_package
def test_what_channels_of_the_package_refuse(channel, refuses):
    for message in (None, [torch.tensor(1)], "x", torch.tensor(1)):
        refuses(TypeError, channel.send, message)
    for key in (1, b"x", None):
        refuses(TypeError, channel.send, {"good": torch.ones(2), key: torch.ones(1)})
    for value in ([1, 2], {"y": torch.tensor(1)}, 1.5, np.ones(3), None):
        refuses(TypeError, channel.send, {"good": torch.ones(2), "bad": value})
    refuses(ValueError, channel.send, {}, epoch=-1)
    refuses(TypeError, channel.send, {}, epoch=1.5)
    for timeout in (-1, float("-inf"), float("nan"), np.float32("nan"), np.int64(-1), -(10**400), -(10**5000)):
        refuses(ValueError, channel.recv, timeout=timeout)
    for timeout in ("1", True, [1], 1j):
        refuses(TypeError, channel.recv, timeout=timeout)
    with pytest.raises(TypeError, match="timeout must be a number of seconds"):
        channel.recv(timeout=np.complex64(1))
    send, send_error = functools.partial(channel.send, {}), functools.partial(channel.send_error, ValueError())
    for call in (channel.end_epoch, send, send_error):
        refuses(ValueError, call, timeout=-1)
        refuses(TypeError, call, timeout="1")
    assert len(channel) == 0
    channel.send(numbered(3))
    assert number_of(channel.recv(timeout=BOUND_S)) == 3
    channel.reset(epoch=2)
    for epoch in (1, -1, -(10**5000)):
        refuses(ValueError, channel.reset, epoch)
    for epoch in (1.5, "1", True):
        refuses(TypeError, channel.reset, epoch)


# --- the other defaults


def test_a_channel_that_defines_two_methods_has_all_the_others():
    channel = InProcess()
    channel.send(numbered(1))
    assert (len(channel), channel.empty()) == (0, True)  # this channel does not count messages
    assert bool(channel) is True
    for call in (channel.reset, channel.close):
        assert call() is None
        assert call() is None
    assert number_of(channel.recv()) == 1


def test_empty_follows_len():
    class Counting(InProcess):
        def __len__(self):
            return self.queue.qsize()

    channel = Counting()
    assert (len(channel), channel.empty(), bool(channel)) == (0, True, True)
    channel.send(numbered(1))
    assert (len(channel), channel.empty(), bool(channel)) == (1, False, True)


@pytest.mark.parametrize("error", [None, ValueError("inside")])
def test_leaving_the_context_closes_the_channel(error):
    class Closing(InProcess):
        closed = 0

        def close(self):
            self.closed += 1

    channel = Closing()

    def use():
        with channel as entered:
            assert entered is channel
            assert channel.closed == 0
            if error is not None:
                raise error

    if error is None:
        use()
    else:
        with pytest.raises(ValueError, match="inside"):
            use()
    assert channel.closed == 1


def test_a_channel_without_both_methods_cannot_be_made():
    def method(channel, *args, **kwargs):
        pass

    for methods, missing in (({}, "recv.*send"), ({"send": method}, "recv"), ({"recv": method}, "send")):
        with pytest.raises(TypeError, match=f"abstract.*{missing}"):
            type("Channel", (dp.stages.ChannelBase,), methods)()


def send_two_epochs(channel: dp.stages.ChannelBase) -> None:
    """Runs in another process."""
    for epoch in range(2):
        for number in range(3):
            channel.send(numbered(10 * epoch + number))
        channel.end_epoch()
    try:
        raise LookupError("nothing is left")
    except LookupError as error:
        channel.send_error(error)


def test_two_methods_are_enough_between_processes():
    with BetweenProcesses() as channel:
        channel.end_epoch()  # the sender counts on from here
        child = SPAWN.Process(target=send_two_epochs, args=(channel,))
        child.start()
        try:
            assert [numbers(channel) for _ in range(3)] == [[], [0, 1, 2], [10, 11, 12]]
            with pytest.raises(LookupError, match="nothing is left") as caught:
                next(iter(channel))
            assert f"process {child.pid}" in str(caught.value.__cause__)
            assert "send_two_epochs" in str(caught.value.__cause__)
            child.join(BOUND_S)
            assert child.exitcode == 0
        finally:
            child.kill()
            child.join(BOUND_S)


# --- errors as objects

ERRORS = [
    dp.QueueTimeoutError("no room within 3 s"),
    dp.ChannelClosed("closed"),
    dp.PeerDied("process 3 died", [3, 5]),
    dp.PeerDied("nobody is left"),
    dp.EndOfEpoch(7),
    dp.RemoteError("Custom: text"),
    RemoteTraceback("\n\nIn process 5"),
]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("duplicate", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_errors_can_be_pickled_and_copied(error, duplicate):
    other = duplicate(error)
    assert type(other) is type(error)
    assert (str(other), repr(other), vars(other)) == (str(error), repr(error), vars(error))


def test_what_errors_say():
    assert [str(error) for error in ERRORS[2:5]] == ["process 3 died", "nobody is left", "epoch 7 has ended"]
    assert [error.pids for error in ERRORS[2:4]] == [(3, 5), ()]
    assert ERRORS[4].epoch == 7


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have no notes before Python 3.11")
def test_notes_are_pickled_too():
    died = dp.PeerDied("process 3 died", [3])
    died.add_note("Process 3: it exited with code 7.")
    other = pickle.loads(pickle.dumps(died))
    assert (other.__notes__, other.pids) == (died.__notes__, (3,))


def test_errors_of_channels_have_the_expected_base_classes():
    assert issubclass(dp.QueueTimeoutError, TimeoutError)
    for error in (dp.ChannelClosed, dp.PeerDied, dp.RemoteError):
        assert issubclass(error, RuntimeError)
    assert not issubclass(dp.EndOfEpoch, (RuntimeError, StopIteration, StopAsyncIteration))


# --- errors as messages


class CustomError(Exception):
    pass


class TwoPartError(ValueError):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)


def round_trip(error: BaseException, **arguments) -> Exception:
    message = error_to_message(error, **arguments)
    assert all(tensor.dtype == torch.uint8 and tensor.ndim == 1 for tensor in message.values())
    return error_from_message(message)


@pytest.mark.parametrize(
    "error",
    [
        *(ValueError("a: b"), ValueError(), TypeError("größer \u2192 \U0001f600"), IndexError("x\ny")),
        *(KeyError("emb"), NotImplementedError("no"), TimeoutError("late"), MemoryError("full")),
        *(OSError("disk"), ZeroDivisionError("division by zero"), AssertionError(), EOFError("end")),
    ],
    ids=repr,
)
def test_a_built_in_error_comes_back_as_it_was(error):
    other = round_trip(failed(error))
    assert type(other) is type(error)
    assert str(other) == str(error)
    assert f"{type(error).__name__}" in str(other.__cause__)
    assert "in failed" in str(other.__cause__)


def test_a_system_error_keeps_its_kind_and_text():
    other = round_trip(FileNotFoundError(2, "No such file or directory", "graph.npz"))
    assert type(other) is FileNotFoundError
    assert str(other) == "[Errno 2] No such file or directory: 'graph.npz'"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (CustomError("what"), "CustomError: what"),
        (CustomError(), "CustomError: "),
        (TwoPartError(3, "x"), "TwoPartError: (3, 'x')"),
        (dp.QueueTimeoutError("late"), "QueueTimeoutError: late"),
        (dp.EndOfEpoch(4), "EndOfEpoch: epoch 4 has ended"),
        (dp.PeerDied("gone", [3]), "PeerDied: gone"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "why"), "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff"),
        (StopIteration("done"), "StopIteration: done"),
        (DeprecationWarning("old"), "DeprecationWarning: old"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
        (SystemExit(3), "SystemExit: 3"),
        (GeneratorExit(), "GeneratorExit: "),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_error_of_another_type_becomes_a_remote_error_that_names_it(error, text):
    other = round_trip(failed(error))
    assert type(other) is dp.RemoteError
    assert str(other).startswith(text)
    assert type(error).__name__ in str(other.__cause__)


def test_the_name_of_a_function_is_not_the_name_of_an_error():
    for name in ("print", "exit", "int", "__import__", "Ellipsis"):
        other = round_trip(type(name, (Exception,), {})("x"))
        assert (type(other), str(other)) == (dp.RemoteError, f"{name}: x")


def test_an_error_whose_text_cannot_be_made_is_sent_all_the_same():
    class MuteError(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    other = round_trip(failed(MuteError()))
    assert type(other) is dp.RemoteError
    assert "MuteError" in str(other)


def test_text_that_utf_8_cannot_write_does_not_hide_the_error():
    other = round_trip(ValueError("half \ud800 of a pair"))
    assert type(other) is ValueError
    assert str(other).startswith("half ")


def test_the_death_of_others_keeps_their_pids():
    message = error_to_message(dp.PeerDied("two workers died", [17, 4]))
    for kept in ([dp.PeerDied], [dp.PeerDied, dp.ServerUnavailable]):
        other = error_from_message(message, kept=kept)
        assert (type(other), str(other), other.pids) == (dp.PeerDied, "two workers died", (17, 4))
    for wrong in (b"", b"[17", b'["a"]', b"7"):
        message["pids"] = torch.tensor([*wrong], dtype=torch.uint8)
        assert error_from_message(message, kept=[dp.PeerDied]).pids == ()


def test_a_long_traceback_keeps_its_end():
    def deep(depth: int) -> None:
        if depth > 0:
            deep(depth - 1)
            return
        text = "the innermost line"
        raise ValueError(text)

    with pytest.raises(ValueError, match="innermost") as caught:
        deep(3)
    whole = error_to_message(caught.value)["traceback"]
    for most_bytes in (100, len(whole) - 1, len(whole), len(whole) + 1):
        message = error_to_message(caught.value, most_bytes=most_bytes)
        assert torch.equal(message["traceback"], whole[-most_bytes:])
    assert str(error_from_message(error_to_message(caught.value, most_bytes=100)).__cause__).endswith(
        "ValueError: the innermost line\n"
    )


def test_no_part_of_an_error_is_longer_than_was_asked():
    error = failed(CustomError("é" * 1000))
    for most_bytes in (0, 1, 2, 3, 101):
        message = error_to_message(error, most_bytes=most_bytes)
        assert max(map(len, message.values())) <= most_bytes
        other = error_from_message(message)
        assert type(other) is dp.RemoteError
        assert isinstance(other.__cause__, RemoteTraceback)
    assert "é" * 50 in str(error_from_message(error_to_message(error, most_bytes=101)))


# --- how a child ended


@contextmanager
def child_that(ends: str):
    """A process that runs `ends` when its input is closed; a SIGHUP that `nohup` ignores ends it all the same."""
    start = "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL); sys.stdin.read()"
    command = [sys.executable, "-c", f"{start}; {ends}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        try:
            yield child
        finally:
            child.kill()


def wait_unreaped(child: subprocess.Popen) -> None:
    """Wait until a child has ended, but do not collect its exit status."""
    descriptor = os.pidfd_open(child.pid)
    try:
        ended, _, _ = select.select([descriptor], [], [], BOUND_S)
    finally:
        os.close(descriptor)
    assert ended


@pytest.mark.parametrize(
    ("ends", "told", "code"),
    [
        ("sys.exit(0)", "it exited with code 0", 0),
        ("os._exit(7)", "it exited with code 7", 7),
        ("os.kill(os.getpid(), signal.SIGTERM)", "it was killed by SIGTERM", -signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGHUP)", "it was killed by SIGHUP", -signal.SIGHUP),
        ("os.kill(os.getpid(), 40)", "it was killed by 40", -40),  # a signal without a name
    ],
)
def test_how_a_child_ended_can_be_asked_until_it_is_waited_for(ends, told, code):
    with child_that(ends) as child:
        assert how_it_ended(child.pid) is None  # it still runs
        child.stdin.close()
        wait_unreaped(child)
        assert how_it_ended(child.pid) == told
        assert how_it_ended(child.pid) == told
        assert child.wait(BOUND_S) == code
        assert how_it_ended(child.pid) is None


def test_a_child_that_was_killed_may_have_used_all_memory():
    with child_that("sys.exit(0)") as child:
        child.kill()
        wait_unreaped(child)
        assert how_it_ended(child.pid) == "it was killed by SIGKILL, perhaps since memory ran out"


def test_how_a_stranger_ended_is_not_told():
    for pid in (1, os.getppid(), os.getpid(), 2**22 + 1):
        assert how_it_ended(pid) is None


# --- sizes


@pytest.mark.parametrize(
    ("size", "num_bytes"),
    [
        *((1, 1), (np.int64(4096), 4096), (2**62, 2**62), ("1", 1), ("4096", 4096), ("64B", 64)),
        *(("10K", 10 * 2**10), ("10KB", 10 * 2**10), ("10KiB", 10 * 2**10), ("256 MB", 2**28), ("  256mb\n", 2**28)),
        *(("1GB", 2**30), ("2g", 2**31), ("3TiB", 3 * 2**40)),
        *(("1.5GB", 3 * 2**29), ("0.5 KiB", 512), ("0.25MB", 2**18), ("007KB", 7 * 2**10), ("1.0001K", 1024)),
        ("9223372036854775807", 2**63 - 1),  # a float would round it
    ],
)
def test_a_size_is_a_number_of_bytes_or_has_a_unit(size, num_bytes):
    parsed = parse_size("ShmChannel", "shm_size", size)
    assert (parsed, type(parsed)) == (num_bytes, int)


def test_what_sizes_refuse(refuses):
    parse = functools.partial(parse_size, "ShmChannel", "shm_size")
    for text in ("", " ", "MB", ".5GB", "5.GB", "1,5GB", "1 000", "1_000", "1e9", "0x10", "+1GB", "-1GB"):
        refuses(ValueError, parse, text)
    for text in ("1PB", "1MBB", "1MB 2MB", "1 M B", "1Mi", "1bit", "inf", "nan", "\u0661MB", "1\u00a0MB", "256MB\0"):
        refuses(ValueError, parse, text)
    for size in (0, -1, "0", "0MB", "0.0GB", "0.0001K"):  # below 1
        refuses(ValueError, parse, size)
    for size in (2**63, "8388608TB", "9" * 30, "9" * 400 + ".5GB", 10**400, 10**5000, -(10**5000)):  # beyond 64 bits
        refuses(ValueError, parse, size)
    for size in (1.5, True, None, b"1MB", [1], torch.tensor(4096), float("nan"), float("inf")):
        refuses(TypeError, parse, size)
