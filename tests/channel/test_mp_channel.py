"""MpChannel: its queue with the errors of channels; epochs, resets, and a sender in another process."""

import ctypes
import gc
import itertools
import multiprocessing
import os
import re
import resource
import warnings

import numpy as np
import pytest
import torch
from amounts import SPAWN
from channels import descriptors_from_now
from pipelines import BOUND_S, refused, wait_until

import datapipes as dp
from datapipes.base.errors import RemoteTraceback

SHORT_S = 0.01  # for a wait that must time out
START_S = 100.0  # longest wait for a child that has to import torch first


@pytest.fixture
def make_channel():
    """Make channels that are closed at the end; unread messages are then dropped."""
    made = []

    def make(**arguments) -> dp.MpChannel:
        made.append(dp.MpChannel(**arguments))
        return made[-1]

    yield make
    for channel in made:
        channel.close()
        channel._queue.cancel_join_thread()


@pytest.fixture
def channel(make_channel):
    return make_channel()


def numbered(number: int) -> dict[str, torch.Tensor]:
    return {"number": torch.tensor(number)}


def number_of(message: dict[str, torch.Tensor]) -> int:
    return int(message["number"])


def numbers(messages) -> list[int]:
    return [number_of(message) for message in messages]


def received(channel: dp.MpChannel) -> list[int]:
    """The rest of an epoch."""
    return numbers(channel.messages(timeout=BOUND_S))


# --- messages


def test_messages_arrive_in_order_as_they_were_sent(channel):
    sent = {
        "ids": torch.arange(12).reshape(3, 4),
        "column": torch.arange(12).reshape(3, 4)[:, 1],  # not contiguous
        "half": torch.tensor([0.5, -1.0], dtype=torch.bfloat16),
        "flags": torch.tensor([True, False]),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "nothing": torch.zeros(0, 3, dtype=torch.int32),
        "": torch.tensor(1j),
    }
    channel.send(sent)
    channel.send({})
    got = channel.recv(timeout=BOUND_S)
    assert list(got) == list(sent)
    for key, tensor in sent.items():
        assert (got[key].dtype, got[key].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(got[key], tensor)
    assert channel.recv(timeout=BOUND_S) == {}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # torch says so once
def test_what_only_torch_can_send_arrives(channel):
    sparse = torch.eye(3).to_sparse()
    channel.send({"sparse": sparse})
    got = channel.recv(timeout=BOUND_S)["sparse"]
    assert got.layout == torch.sparse_coo
    assert torch.equal(got.to_dense(), torch.eye(3))


@pytest.mark.filterwarnings("ignore:B?Complex(Half|32) support:UserWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_every_dtype_and_shape_of_torch_arrives(channel):
    dtypes = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    sent = {name: (torch.arange(6 * dtype.itemsize) % 2).byte().view(dtype) for name, dtype in dtypes.items()}
    sent |= {f"{dims} dimensions": torch.ones((1,) * dims) for dims in (0, 1, 64, 65, 255, 256, 300)}
    sent |= {str(shape): torch.empty(shape) for shape in ((0, 2**62), (2**62, 0), (0, 2**63 - 1))}
    channel.send(sent)
    got = channel.recv(timeout=BOUND_S)
    assert list(got) == list(sent)
    for key, tensor in sent.items():
        assert (got[key].dtype, got[key].shape) == (tensor.dtype, tensor.shape)
        size = tensor.numel() * tensor.itemsize
        assert size == 0 or ctypes.string_at(got[key].data_ptr(), size) == ctypes.string_at(tensor.data_ptr(), size)


def nested() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype, says torch
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.strided)


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: torch.empty(3, device="meta"), "is on device meta"),
        (nested, "is nested and strided"),
        (lambda: torch._efficientzerotensor((3,)), "has no memory"),
    ],
    ids=["meta", "nested", "zero"],
)
def test_what_torch_loses_on_the_way_is_refused_by_send(channel, make, found):
    with refused(TypeError, stage="MpChannel.send: 'bad'", found=found, allowed="only tensors with values"):
        channel.send({"good": torch.ones(1), "bad": make()})
    channel.send(numbered(1))
    assert number_of(channel.recv(timeout=BOUND_S)) == 1


def next_free_descriptor() -> int:
    """The least number that is free while the open ones are listed, so that only the list's own is free below it."""
    gc.collect()
    opened = {int(number) for number in os.listdir("/proc/self/fd")}
    return next(number for number in itertools.count() if number not in opened)


@pytest.mark.parametrize(
    ("limit", "most", "found"),
    [
        (resource.RLIMIT_FSIZE, lambda: 2**16, r"message of 1048576 bytes .*File too large"),  # as a full /dev/shm
        (resource.RLIMIT_NOFILE, next_free_descriptor, "Too many open files"),
    ],
    ids=["memory", "descriptors"],
)
def test_a_message_that_no_memory_takes_is_an_error_of_send_and_the_channel_goes_on(channel, limit, most, found):
    channel.send(numbered(0))  # starts the threads
    soft, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (most(), hard))
    try:
        with refused(OSError, stage="MpChannel.send", found=found, allowed="/dev/shm", remedy="Enlarge.*channel='shm'"):
            channel.send({str(number): torch.ones(2**16) for number in range(4)})
    finally:
        resource.setrlimit(limit, (soft, hard))
    channel.send(numbered(1))
    assert [number_of(channel.recv(timeout=BOUND_S)) for _ in range(2)] == [0, 1]


def test_messages_for_which_there_is_no_room_leave_no_descriptors(make_channel):
    channel = make_channel(maxsize=1)
    channel.send(numbered(0))
    opened = descriptors_from_now()
    for _ in range(3):
        with pytest.raises(dp.QueueTimeoutError):
            channel.send({"x": torch.ones(100), "y": torch.ones(100)}, block=False)
    wait_until(lambda: opened() <= 0)  # a thread of the standard library closes them


def test_a_tensor_with_a_history_arrives_without_it(channel):
    weight = torch.ones(2, requires_grad=True)
    channel.send({"scores": weight * 3})
    assert torch.equal(channel.recv(timeout=BOUND_S)["scores"].detach(), torch.full((2,), 3.0))


def test_a_minibatch_arrives_as_a_message(channel):
    minibatch = next(iter(dp.ItemSampler(dp.ItemSet(torch.arange(8)), 4, shuffle=True, seed=3)))
    channel.send(minibatch.to_message())
    assert dp.MiniBatch.from_message(channel.recv(timeout=BOUND_S)).digest() == minibatch.digest()


def test_keys_have_no_meaning_to_the_channel(channel):
    keys = ["#END_OF_EPOCH", "#ERROR.type", "#ERROR.text"]
    for key in keys:
        channel.send({key: torch.tensor([1, 2])})
    channel.end_epoch()
    assert [list(message) for message in channel.messages(timeout=BOUND_S)] == [[key] for key in keys]


# --- epochs


def test_recv_says_which_epoch_has_ended(channel):
    for epoch in (None, None, 7, None):
        channel.end_epoch(epoch)
    for epoch in (0, 1, 7, 8):
        with pytest.raises(dp.EndOfEpoch) as ended:
            channel.recv(timeout=BOUND_S)
        assert ended.value.epoch == epoch


def test_iterating_ends_with_the_epoch(channel):
    for epoch in range(3):
        for number in range(epoch):
            channel.send(numbered(10 * epoch + number))
        channel.end_epoch()
    assert [numbers(channel) for _ in range(3)] == [[], [10], [20, 21]]


def test_messages_waits_for_the_end_of_each_sender(channel):
    for number in range(3):
        channel.send(numbered(number), epoch=4)
        channel.end_epoch(4)
    channel.send(numbered(9))
    assert numbers(channel.messages(3, timeout=BOUND_S)) == [0, 1, 2]
    assert number_of(channel.recv(timeout=BOUND_S)) == 9


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
    assert received(channel) == [10, 11, 12, 13]


def test_a_reset_drops_what_is_sent_after_it(channel):
    channel.send(numbered(0))
    assert number_of(channel.recv(timeout=BOUND_S)) == 0
    channel.reset()
    channel.send(numbered(1))
    channel.send_error(ValueError("of the epoch that was left"))
    channel.end_epoch()
    channel.send(numbered(10))
    channel.end_epoch()
    assert received(channel) == [10]


@pytest.mark.parametrize("receive_first", [False, True])
def test_a_reset_between_epochs_drops_nothing(channel, receive_first):
    if receive_first:
        channel.send(numbered(0))
        channel.end_epoch()
        assert received(channel) == [0]
    channel.reset()
    channel.send(numbered(10))
    channel.end_epoch()
    assert received(channel) == [10]


def test_a_reset_goes_by_the_epoch_that_was_named(channel):
    for epoch in (5, 3, 5, 6, 4, 6):
        channel.send(numbered(epoch), epoch=epoch)
    assert number_of(channel.recv(timeout=BOUND_S)) == 5
    channel.reset()
    assert numbers(channel.recv(timeout=BOUND_S) for _ in range(2)) == [6, 6]


def test_naming_an_epoch_for_a_message_does_not_count_it(channel):
    channel.send(numbered(0), epoch=5)
    channel.end_epoch()
    assert number_of(channel.recv(timeout=BOUND_S)) == 0
    with pytest.raises(dp.EndOfEpoch) as ended:
        channel.recv(timeout=BOUND_S)
    assert ended.value.epoch == 0


# --- errors of a sender


def test_an_error_is_raised_where_it_is_received_with_the_senders_traceback(channel):
    def sample() -> None:
        raise ValueError("no such node")

    try:
        sample()
    except ValueError as error:
        channel.send_error(error)
    channel.send(numbered(1))
    with pytest.raises(ValueError, match=r"^no such node$") as caught:
        channel.recv(timeout=BOUND_S)
    cause = caught.value.__cause__
    assert isinstance(cause, RemoteTraceback)
    assert "in sample" in str(cause)
    assert f"process {os.getpid()}" in str(cause)
    assert number_of(channel.recv(timeout=BOUND_S)) == 1  # the channel still works


def test_an_error_ends_iterating(channel):
    class CustomError(Exception):
        pass

    channel.send(numbered(0))
    channel.send_error(CustomError("what"))
    iterator = channel.messages(timeout=BOUND_S)
    assert number_of(next(iterator)) == 0
    with pytest.raises(dp.RemoteError, match=r"^CustomError: what$"):
        next(iterator)


# --- block and timeout


def test_recv_waits_no_longer_than_its_timeout(channel):
    with refused(
        dp.QueueTimeoutError, stage=r"MpChannel\.recv", found="no message", allowed="within 0.01 s", remedy="longer"
    ) as caught:
        channel.recv(timeout=SHORT_S)
    assert isinstance(caught.value, TimeoutError)
    channel.send(numbered(1))
    assert number_of(channel.recv(timeout=BOUND_S)) == 1  # it still works


@pytest.mark.parametrize("arguments", [{"block": False}, {"block": False, "timeout": 100.0}, {"timeout": 0}], ids=str)
def test_recv_does_not_wait_when_it_is_told_so(channel, arguments):
    with pytest.raises(dp.QueueTimeoutError, match=r"no message (at once|within 0 s)"):
        channel.recv(**arguments)
    with pytest.raises(dp.QueueTimeoutError):
        next(channel.messages(**arguments))


@pytest.mark.parametrize("arguments", [{"block": False}, {"timeout": SHORT_S}, {"timeout": 0}], ids=str)
def test_there_is_room_for_maxsize_messages(make_channel, arguments):
    channel = make_channel(maxsize=2)
    channel.send(numbered(0), **arguments)
    channel.send(numbered(1), **arguments)
    calls = [
        lambda: channel.send(numbered(2), **arguments),
        lambda: channel.end_epoch(**arguments),
        lambda: channel.send_error(ValueError("x"), **arguments),
    ]
    for call in calls:
        with pytest.raises(dp.QueueTimeoutError, match="no room"):
            call()
    assert len(channel) == 2
    assert number_of(channel.recv(timeout=BOUND_S)) == 0
    channel.end_epoch(timeout=BOUND_S)  # the refused call did not count as an epoch
    assert number_of(channel.recv(timeout=BOUND_S)) == 1
    with pytest.raises(dp.EndOfEpoch) as ended:
        channel.recv(timeout=BOUND_S)
    assert ended.value.epoch == 0
    assert len(channel) == 0  # the refused call sent nothing


def test_block_and_timeout_may_be_given_by_position(make_channel):
    channel = make_channel(maxsize=1)
    channel.send(numbered(1), True, BOUND_S)
    with pytest.raises(dp.QueueTimeoutError):
        channel.send(numbered(2), False)
    assert number_of(channel.recv(True, BOUND_S)) == 1
    with pytest.raises(dp.QueueTimeoutError):
        channel.recv(False)


@pytest.mark.parametrize(
    "timeout", [float("inf"), 3e6, 1e9, np.float16("inf"), *(pytest.param(10**d, id=f"1e{d}") for d in (12, 400, 5000))]
)
def test_a_timeout_longer_than_a_life_is_none(channel, timeout):
    channel.send(numbered(1), timeout=timeout)
    assert number_of(channel.recv(timeout=timeout)) == 1


# --- the other calls


def test_len_counts_what_waits(channel):
    assert (len(channel), channel.empty(), bool(channel)) == (0, True, True)
    for number in range(3):
        channel.send(numbered(number))
        assert len(channel) == number + 1
    assert channel._queue._reader.poll(BOUND_S)  # the queue's thread has written one
    assert not channel.empty()
    for number in range(3):
        assert number_of(channel.recv(timeout=BOUND_S)) == number
        assert len(channel) == 2 - number
    assert (channel.empty(), bool(channel)) == (True, True)


CALLS = {
    "send": lambda channel: channel.send(numbered(1), timeout=BOUND_S),
    "recv": lambda channel: channel.recv(timeout=BOUND_S),
    "end_epoch": lambda channel: channel.end_epoch(timeout=BOUND_S),
    "send_error": lambda channel: channel.send_error(ValueError("x"), timeout=BOUND_S),
    "iter": lambda channel: next(iter(channel)),
    "empty": lambda channel: channel.empty(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
def test_a_closed_channel_says_so(make_channel, call, used):
    channel = make_channel()
    if used:
        channel.send(numbered(1))
        assert number_of(channel.recv(timeout=BOUND_S)) == 1
    channel.close()
    channel.close()  # a second call changes nothing
    if used:
        channel._queue.join_thread()
    with refused(dp.ChannelClosed, stage="MpChannel", found="was closed", allowed="in this process", remedy="new one"):
        CALLS[call](channel)


def test_leaving_the_context_closes_the_channel():
    with dp.MpChannel() as channel:
        channel.send(numbered(1))
        assert number_of(channel.recv(timeout=BOUND_S)) == 1
    with pytest.raises(dp.ChannelClosed):
        channel.send(numbered(2))


# --- what is refused


@pytest.mark.parametrize("arguments", [{"capacity": 4}, {"shm_size": "1MB"}, {"maxsize": 4, "ctx": None}], ids=str)
def test_the_queue_refuses_arguments_that_it_does_not_know(arguments):
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        dp.MpChannel(**arguments)


@pytest.mark.parametrize("maxsize", [-1, True, 1.5, "2", float("nan"), None, 2**31])
def test_maxsize_is_a_whole_number(maxsize):
    error = ValueError if type(maxsize) is int else TypeError
    with refused(error, stage="MpChannel", found=re.escape(f"got {maxsize!r}"), allowed="maxsize must be"):
        dp.MpChannel(maxsize=maxsize)


def test_arguments_are_given_by_name():
    with pytest.raises(TypeError, match="positional"):
        dp.MpChannel(4)


@pytest.mark.parametrize(
    ("message", "found", "allowed"),
    [
        (None, "got NoneType", "dict of tensors"),
        ([torch.tensor(1)], "got list", "dict of tensors"),
        (torch.tensor(1), "got Tensor", "dict of tensors"),
        ({1: torch.tensor(1)}, r"got 1 \(int\)", "key must be a str"),
        ({b"x": torch.tensor(1)}, r"got b'x' \(bytes\)", "key must be a str"),
        ({"x": [1, 2]}, "got list", "'x' must be a tensor"),
        ({"x": {"y": torch.tensor(1)}}, "got dict", "'x' must be a tensor"),
        ({"fine": torch.tensor(1), "x": 1.5}, "got float", "'x' must be a tensor"),
    ],
    ids=repr,
)
def test_what_is_no_message_is_refused(channel, message, found, allowed):
    with refused(TypeError, stage=r"MpChannel\.send", found=found, allowed=allowed):
        channel.send(message)
    assert len(channel) == 0
    channel.send(numbered(1))
    assert number_of(channel.recv(timeout=BOUND_S)) == 1


@pytest.mark.parametrize("name", ["send", "recv", "end_epoch", "send_error"])
@pytest.mark.parametrize(
    ("arguments", "error", "found", "allowed"),
    [
        ({"timeout": "1"}, TypeError, "got '1'", "number of seconds or None"),
        ({"timeout": True}, TypeError, "got True", "number of seconds or None"),
        ({"timeout": -1}, ValueError, "got -1", "0 or more seconds"),
        ({"timeout": float("nan")}, ValueError, "got nan", "0 or more seconds"),
        ({"timeout": -(10**400)}, ValueError, "got a negative int of 1329 bits", "0 or more seconds"),
        ({"timeout": 1j}, TypeError, "got 1j", "number of seconds or None"),
        ({"block": 1}, TypeError, "got 1", "block must be True or False"),
        ({"block": None}, TypeError, "got None", "block must be True or False"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_block_and_timeout_are_checked(channel, name, arguments, error, found, allowed):
    first = {"send": [numbered(1)], "send_error": [ValueError("x")]}.get(name, [])
    with refused(error, stage="MpChannel", found=found, allowed=allowed):
        getattr(channel, name)(*first, **arguments)
    assert len(channel) == 0


@pytest.mark.parametrize(("epoch", "error"), [(-1, ValueError), (0.0, TypeError), (False, TypeError), ("0", TypeError)])
@pytest.mark.parametrize("name", ["send", "end_epoch"])
def test_an_epoch_is_a_whole_number(channel, name, epoch, error):
    first = [numbered(1)] if name == "send" else []
    with refused(error, stage="MpChannel", found=re.escape(f"got {epoch!r}"), allowed="epoch must be"):
        getattr(channel, name)(*first, epoch=epoch)
    assert len(channel) == 0


# --- a sender in another process


def echo(requests: dp.MpChannel, replies: dp.MpChannel, done) -> None:
    """Send back the messages of an epoch, doubled; then an empty epoch; then an error."""
    try:
        for message in requests.messages(timeout=START_S):
            replies.send({key: tensor * 2 for key, tensor in message.items()}, timeout=BOUND_S)
        replies.end_epoch()
        replies.end_epoch()
        raise LookupError("no more requests")
    except Exception as error:
        replies.send_error(error)
    done.wait(START_S)  # a sender must live until its tensors were received


def test_a_channel_travels_to_a_spawned_process_and_carries_messages_both_ways(make_channel):
    requests, replies = make_channel(), make_channel(maxsize=2)
    context = multiprocessing.get_context(SPAWN)
    done = context.Event()
    child = context.Process(target=echo, args=(requests, replies, done))
    child.start()
    try:
        for number in range(6):
            requests.send({"number": torch.tensor(number), "rows": torch.full((300, 40), number)}, timeout=BOUND_S)
        requests.end_epoch()
        requests.close()  # messages that were sent still arrive
        got = list(replies.messages(timeout=START_S))
        assert numbers(got) == [0, 2, 4, 6, 8, 10]
        for number, message in enumerate(got):
            assert torch.equal(message["rows"], torch.full((300, 40), 2 * number))
        assert received(replies) == []
        with pytest.raises(LookupError, match="no more requests") as caught:
            replies.recv(timeout=BOUND_S)
        assert f"process {child.pid}" in str(caught.value.__cause__)
        assert "in echo" in str(caught.value.__cause__)
        done.set()
        child.join(BOUND_S)
        assert child.exitcode == 0
        assert torch.equal(got[5]["rows"], torch.full((300, 40), 10))  # its sender is gone
    finally:
        child.kill()
        child.join(BOUND_S)
