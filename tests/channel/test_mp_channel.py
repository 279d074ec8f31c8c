"""MpChannel: what torch can send, its queue with the errors of channels, and a sender in another process."""

import ctypes
import functools
import multiprocessing
import resource

import pytest
import torch
from amounts import SPAWN
from channels import descriptors_from_now, limited, lowest_free_descriptor, nested_tensor, number_of, numbered
from pipelines import BOUND_S, wait_until

import datapipes as dp

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


def numbers(messages) -> list[int]:
    return [number_of(message) for message in messages]


def received(channel: dp.MpChannel) -> list[int]:
    """The rest of an epoch."""
    return numbers(channel.messages(timeout=BOUND_S))


# --- messages


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


def test_what_torch_loses_on_the_way_is_refused_by_send(channel, refuses):
    for bad in (torch.empty(3, device="meta"), nested_tensor(torch.strided), torch._efficientzerotensor((3,))):
        refuses(TypeError, channel.send, {"good": torch.ones(1), "bad": bad})
    channel.send(numbered(1))
    assert number_of(channel.recv(timeout=BOUND_S)) == 1


@pytest.mark.parametrize(
    ("limit", "most", "found"),
    [
        (resource.RLIMIT_FSIZE, lambda: 2**16, "message of 1048576 bytes .*File too large"),  # as a full /dev/shm
        (resource.RLIMIT_NOFILE, lowest_free_descriptor, "Too many open files"),
    ],
    ids=["memory", "descriptors"],
)
def test_a_message_that_no_memory_takes_is_an_error_of_send_and_the_channel_goes_on(channel, limit, most, found):
    channel.send(numbered(0))  # starts the threads
    text = rf"^MpChannel\.send: .*{found}.* Enlarge /dev/shm.*channel='shm'"
    with limited(limit, most()), pytest.raises(OSError, match=text):
        channel.send({str(number): torch.ones(2**16) for number in range(4)})
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


# --- block and timeout


WAITS = [{"timeout": SHORT_S}, {"block": False}, {"block": False, "timeout": 100.0}, {"timeout": 0}]


@pytest.mark.parametrize("arguments", WAITS, ids=str)
def test_recv_waits_no_longer_than_it_is_told(channel, arguments, refuses):
    refuses(dp.QueueTimeoutError, channel.recv, **arguments)
    refuses(dp.QueueTimeoutError, lambda: next(channel.messages(**arguments)))
    channel.send(numbered(1))
    assert number_of(channel.recv(timeout=BOUND_S)) == 1  # it still works


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


# --- what is refused


@pytest.mark.parametrize("arguments", [{"capacity": 4}, {"shm_size": "1MB"}, {"maxsize": 4, "ctx": None}], ids=str)
def test_the_queue_refuses_arguments_that_it_does_not_know(arguments):
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        dp.MpChannel(**arguments)


def test_what_a_channel_of_a_queue_refuses(channel, refuses):
    for maxsize in (-1, 2**31, 10**5000, -(10**5000)):
        refuses(ValueError, dp.MpChannel, maxsize=maxsize)
    for maxsize in (True, 1.5, "2", float("nan"), float("inf"), None):
        refuses(TypeError, dp.MpChannel, maxsize=maxsize)
    with pytest.raises(TypeError, match="positional"):
        dp.MpChannel(4)
    for block in (1, None):
        refuses(TypeError, channel.send, numbered(1), block=block)
        for call in (channel.recv, channel.end_epoch, functools.partial(channel.send_error, ValueError("x"))):
            refuses(TypeError, call, block=block)
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
        assert [int(message["number"]) for message in got] == [0, 2, 4, 6, 8, 10]
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
