"""A ShmChannel returns the tensors that were sent, in aligned shared memory; it refuses damaged bytes."""

import ctypes
import fcntl
import math
import os
import random
import re
import struct
from pathlib import Path

import pytest
import torch
from channels import DTYPES, attached_again, number_of, numbered, random_tensor
from hypothesis import given
from hypothesis import strategies as st
from pipelines import refused
from scripts import SUPPORT, run_script

import datapipes as dp
from datapipes import _core

KIB = 1024


@pytest.fixture(scope="module")
def channel():
    with dp.ShmChannel(16, "4MB") as channel:
        yield channel


def sent(channel: dp.ShmChannel, message) -> dict[str, torch.Tensor]:
    assert channel.send(message, timeout=0) is True
    return channel.recv(timeout=0)


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The bytes of the values in row-major order, in the order of indexing."""
    flat = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return bytes(flat.as_subclass(torch.Tensor).reshape(-1).view(torch.uint8).tolist())


def assert_same(got, wanted) -> None:
    assert list(got) == list(wanted)
    for key, tensor in wanted.items():
        assert type(got[key]) is torch.Tensor
        assert (got[key].dtype, got[key].shape) == (tensor.dtype, tensor.shape)
        assert got[key].is_contiguous()
        assert not got[key].requires_grad
        assert bytes_of(got[key]) == bytes_of(tensor)


# --- the same tensors come out


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 4), max_size=5))
    return random_tensor(draw(st.sampled_from(DTYPES)), shape, draw(st.integers(0, 9)))


@given(st.dictionaries(st.text(max_size=8), tensors(), max_size=6))
def test_any_message_arrives_with_its_keys_in_order(message):
    with dp.ShmChannel(1, "64KB") as own:
        assert_same(sent(own, message), message)


@pytest.mark.parametrize("key", ["", "\0", "a\0b", "node.paper.feat", "é", "論文", "🦜" * 3, "k" * 70_000, "%2E:"])
def test_any_text_is_a_key(channel, key):
    message = {"before": torch.ones(1), key: torch.arange(3), "after": torch.zeros(2)}
    assert_same(sent(channel, message), message)


def test_five_thousand_tensors_travel_in_one_message(channel):
    message = {f"{i}.x": torch.full((i % 3, 2), i) for i in range(5000)}
    assert_same(sent(channel, message), message)


def test_messages_that_differ_in_shape_only_do_not_mix(channel):
    for rows in (3, 1, 0, 3, 2):
        message = {"x": torch.arange(2 * rows).reshape(rows, 2), "y": torch.ones(rows)}
        assert_same(sent(channel, message), message)


class Marked(torch.Tensor):
    """A subclass of Tensor, like those of libraries."""


SPECIAL = {  # W8: tensors that are not laid out row by row, or hold more than values
    "transposed": lambda: torch.arange(6).reshape(2, 3).T,
    "strided": lambda: torch.arange(20.0)[3::4],
    "column": lambda: torch.arange(12).reshape(3, 4)[:, 1],
    "part": lambda: torch.arange(12).reshape(3, 4)[1:, 1:3],
    "expanded": lambda: torch.tensor([1.0, 2.0]).expand(5, 2),
    "scalar expanded": lambda: torch.tensor(3).expand(4),
    "channels last": lambda: torch.arange(48.0).reshape(2, 2, 3, 4).contiguous(memory_format=torch.channels_last),
    "negative bit": lambda: torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
    "conjugate bit": lambda: torch.tensor([1 + 2j, 3 - 4j]).conj(),
    "overlapping": lambda: torch.arange(6).as_strided((3, 3), (1, 1)),
    "offset": lambda: torch.arange(9, dtype=torch.uint8)[5:],
    "odd strides of one": lambda: torch.arange(3).as_strided((1, 3), (77, 1)),
    "float8 transposed": lambda: torch.arange(6.0).reshape(2, 3).T.to(torch.float8_e5m2),
    "uint16 strided": lambda: torch.arange(8, dtype=torch.int16).view(torch.uint16)[::2],
    "requires grad": lambda: torch.ones(3, requires_grad=True),
    "of a graph": lambda: torch.ones(3, requires_grad=True) * 2,
    "parameter": lambda: torch.nn.Parameter(torch.ones(2, 2)),
    "subclass": lambda: torch.ones(3).as_subclass(Marked),
    "subclass transposed": lambda: torch.arange(6).reshape(2, 3).T.as_subclass(Marked),
    "inference": lambda: torch.inference_mode()(torch.ones)(3),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_a_tensor_of_any_layout_arrives_as_it_is_indexed(channel, kind):  # W8
    message = {"x": SPECIAL[kind](), "after": torch.arange(3)}
    assert_same(sent(channel, message), message)


def test_the_sender_can_change_a_tensor_once_it_was_sent(channel):
    tensor = torch.arange(3)
    channel.send({"x": tensor, "same": tensor}, timeout=0)
    tensor += 10
    got = channel.recv(timeout=0)
    got["x"] += 1
    assert (got["x"].tolist(), got["same"].tolist()) == ([1, 2, 3], [0, 1, 2])


# --- all dtypes and shapes: what arrives is what was sent, or `send` says why not

ALL_DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
HUGE = [(0, 2**62), (2**62, 0), (0, 2**60), (0, 2**63 - 1), (2**31, 2**31, 0), (1, 0, 2**61), (0,) * 64]
SHAPES = [*((1,) * dims for dims in (0, 1, 64, 65, 255, 256, 300)), (2,) + (1,) * 63, (2,) + (1,) * 64, *HUGE]


def raw_bytes(tensor: torch.Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.numel() else b""


def sent_or_refused(channel: dp.ShmChannel, tensor: torch.Tensor) -> bool:
    """Whether the tensor arrived, as it was sent; the tensors beside it always do."""
    before, after = torch.arange(3), torch.arange(5).half()
    try:
        channel.send({"before": before, "x": tensor, "after": after}, timeout=0)
    except (TypeError, ValueError) as error:
        assert re.search(r"ShmChannel\.send: 'x' .*\. [A-Z]\w+", str(error))  # noqa: PT017  either may happen
        channel.send({"before": before, "after": after}, timeout=0)
        got, arrived = channel.recv(timeout=0), False
    else:
        got, arrived = channel.recv(timeout=0), True
        assert (got["x"].dtype, got["x"].shape) == (tensor.dtype, tensor.shape)
        assert raw_bytes(got["x"]) == raw_bytes(tensor.contiguous())
    assert (got["before"].tolist(), got["after"].tolist()) == ([0, 1, 2], [0, 1, 2, 3, 4])
    assert channel.empty()
    return arrived


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_every_dtype_of_torch_arrives_with_its_bits(channel, dtype):
    raw = torch.arange(1, 1 + 6 * dtype.itemsize, dtype=torch.uint8)
    flat = (raw % 2 == 0) if dtype == torch.bool else raw.view(dtype)
    shapes = [(6,), (2, 3), (2, 1, 3), (1, 2, 1, 3, 1)]
    empty = [flat[:0].reshape(shape) for shape in ((0,), (3, 0), (0, 3))]
    for tensor in (*(flat.reshape(shape) for shape in shapes), *empty, flat[2], flat[:1], flat[:1].reshape(1, 1, 1)):
        assert sent_or_refused(channel, tensor)


@pytest.mark.parametrize("dtype", [d for d in ALL_DTYPES if d.itemsize == 1 and "int" in str(d) and "q" not in str(d)])
def test_small_integers_of_any_layout_arrive(channel, dtype):
    tensor = torch.arange(6, dtype=torch.uint8).view(dtype).reshape(2, 3).T
    channel.send({"x": tensor}, timeout=0)
    got = channel.recv(timeout=0)["x"]
    assert (got.dtype, got.shape, got.is_contiguous()) == (dtype, (3, 2), True)
    assert raw_bytes(got) == bytes([0, 3, 1, 4, 2, 5])


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_every_shape_of_every_dtype_arrives_or_is_refused_by_send(channel, dtype):
    arrived = {}
    for shape in SHAPES:
        wide = math.prod(max(size, 1) for size in shape) * dtype.itemsize >= 2**63
        try:
            tensor = torch.empty(shape, dtype=OF_SIZE[dtype.itemsize]).view(dtype)  # torch.empty warns of some dtypes
        except RuntimeError:  # torch cannot make it
            continue
        arrived[shape] = sent_or_refused(channel, tensor)
        assert arrived[shape] == (len(shape) <= 64 and not wide)
    assert len(arrived) > 10


def test_what_has_too_many_dimensions_or_bytes_is_refused(channel, refuses):
    for dims in (65, 255, 256, 300):
        for tensor in (torch.ones((1,) * dims), torch.ones((1,) * dims, requires_grad=True), torch.ones((0,) * dims)):
            refuses(ValueError, channel.send, {"x": tensor}, timeout=0)
    for size in (2**40, 2**61, 2**62):  # before they are copied
        refuses(ValueError, channel.send, {"x": torch.ones(1).expand(size)}, timeout=0)
    refuses(ValueError, channel.send, {"x": torch.empty(0, 2**62)}, timeout=0)  # its strides overflow
    assert channel.empty()


# --- where received tensors lie


def lies_in(channel: dp.ShmChannel, tensor: torch.Tensor) -> bool:
    address, num_bytes = channel._shared.memory
    return address <= tensor.data_ptr() and tensor.data_ptr() + tensor.nbytes <= address + num_bytes


def test_received_tensors_lie_aligned_in_the_shared_memory_and_can_be_written(channel):  # W9
    message = {f"{'k' * size}": torch.arange(size, dtype=torch.uint8) for size in (1, 3, 63, 64, 65, 100)}
    got = sent(channel, message)
    assert all(tensor.data_ptr() % 64 == 0 and lies_in(channel, tensor) for tensor in got.values())
    for tensor in got.values():
        tensor += 1
    assert [tensor.tolist() for tensor in got.values()] == [(t + 1).tolist() for t in message.values()]


def test_tensors_that_were_copied_out_are_aligned_too():  # W9
    with dp.ShmChannel(4, KIB) as own:
        got = sent(own, {"x": torch.arange(300, dtype=torch.uint8), "y": torch.ones(65)})
        assert own.stats()["copied_out"] == 1
        assert all(tensor.data_ptr() % 64 == 0 and not lies_in(own, tensor) for tensor in got.values())


def test_two_peers_see_the_same_memory(channel):
    other = attached_again(channel)
    channel.send({"x": torch.arange(3)}, timeout=0)
    assert lies_in(other, other.recv(timeout=0)["x"])


# --- tensors without memory to copy: the process must live

WITHOUT_MEMORY = {
    "freed": "x = torch.ones(300); x.untyped_storage().resize_(0)",
    "zero": "x = torch._efficientzerotensor((3,))",
    "fake": "from torch._subclasses import FakeTensorMode\nwith FakeTensorMode(): x = torch.ones(3)",
    "wrapper": """
class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (3,), dtype=torch.float32)
    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(function)
x = Wrapper()
""",
}
SEND_IT = """
import torch
import datapipes as dp
{make}
channel = dp.ShmChannel(4, "64KB")
try:
    channel.send({{"x": x}}, timeout=0)
except (TypeError, ValueError, RuntimeError) as error:
    print("refused:", error)
    assert channel.empty()
else:
    print("sent:", channel.recv(timeout=0)["x"].tolist())
channel.send({{"good": torch.ones(1)}}, timeout=0)
assert channel.recv(timeout=0)["good"].tolist() == [1]
"""


@pytest.mark.parametrize("kind", WITHOUT_MEMORY)
def test_a_tensor_without_memory_does_not_crash_the_sender(kind):
    ended = run_script(SEND_IT.format(make=WITHOUT_MEMORY[kind]))
    assert ended.returncode == 0, ended.stderr
    assert "refused:" in ended.stdout or ended.stdout == "sent: [0.0, 0.0, 0.0]\n"


# --- damaged bytes


class Frame:
    """The bytes of an unread message in the shared memory; its key "needle" tells where they are."""

    SCHEMA, KEY = 16, 24  # offsets of the schema, and of the first key in it

    def __init__(self, channel: dp.ShmChannel, key: str = "needle") -> None:
        address, num_bytes = channel._shared.memory
        self.memory = (ctypes.c_ubyte * num_bytes).from_address(address)
        found = bytes(self.memory).find(key.encode())
        assert found >= 0
        self.begin = found - self.KEY

    def write(self, at: int, data: bytes) -> None:
        self.memory[self.begin + at : self.begin + at + len(data)] = list(data)


def u32(number: int) -> bytes:
    return struct.pack("<I", number)


HOSTILE = {  # of {"needle": int64 [2, 3]}: head 0..16, schema 16..30, sizes 32..48
    "length of the head": (0, u32(2**32 - 1)),
    "no head": (0, u32(0)),
    "version": (4, u32(9)),
    "number of tensors": (8, u32(2**31)),
    "no tensors": (8, u32(0)),
    "length of the schema": (12, u32(2**32 - 1)),
    "schema ends early": (12, u32(9)),
    "length of the key": (16, u32(2**31)),
    "length of the dtype": (20, b"\xff"),
    "code": (21, b"\x03"),
    "width of a value": (22, b"\x00"),
    "an odd width": (22, b"\x03"),
    "number of dimensions": (23, b"\xff"),
    "key that is no text": (24, b"\xff\xfe"),
    "negative size": (32, struct.pack("<q", -1)),
    "large size": (32, struct.pack("<q", 2**61)),
    "sizes that overflow": (32, struct.pack("<2q", 2**32, 2**32)),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_damaged_message_is_refused_and_the_channel_goes_on(kind, refuses):
    with dp.ShmChannel(4, "64KB") as own:
        own.send({"needle": torch.arange(6).reshape(2, 3)}, timeout=0)
        own.send(numbered(5), timeout=0)
        Frame(own).write(*HOSTILE[kind])
        refuses(ValueError, own.recv, timeout=0)
        assert number_of(own.recv(timeout=0)) == 5
        assert own.stats()["held"] == 0


def test_sizes_that_overflow_beside_a_zero_do_not_crash_the_receiver():
    """Runs in another process, since the failure would be an abort."""
    script = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parent), SUPPORT]}
import torch, datapipes as dp
from test_shm_channel_messages import Frame, struct
for sizes in ((0, 2**62, 2**62), (2**62, 2**62, 0), (2**62, 0, 2**62)):
    channel = dp.ShmChannel(4, "64KB")
    channel.send({{"needle": torch.empty(0, 2, 3)}}, timeout=0)
    Frame(channel).write(32, struct.pack("<3q", *sizes))
    try:
        assert channel.recv(timeout=0)["needle"].nbytes == 0
    except ValueError:
        pass
    print("lives")
"""
    ended = run_script(script)
    assert (ended.returncode, ended.stdout) == (0, "lives\n" * 3), ended.stderr


@pytest.mark.parametrize("rng_seed", range(4))
def test_random_damage_is_refused_or_gives_other_values(rng_seed):
    rng = random.Random(rng_seed)
    message = {
        "needle": torch.arange(6).reshape(2, 3),
        "f8": torch.ones(4).to(torch.float8_e5m2),
        "0-d": torch.ones(()),
    }
    with dp.ShmChannel(8, "64KB") as own:
        for _ in range(300):
            own.send(message, timeout=0)
            frame = Frame(own)
            for _ in range(rng.choice((1, 1, 2, 4))):  # the key and the sizes stay; other tests change them
                frame.write(rng.choice((*range(24), *range(30, 50))), bytes([rng.choice((0, 1, 8, 128, 255))]))
            try:
                got = own.recv(timeout=0)
            except ValueError as error:
                assert "no sense" in str(error)  # noqa: PT017  either may happen
            else:
                assert all(tensor.nbytes < 64 * KIB for tensor in got.values())
                del got
            Frame(own).write(Frame.KEY, b"------")
            assert own.stats()["held"] == 0


def test_a_damaged_error_is_still_an_error():
    with dp.ShmChannel(4, "64KB") as own:
        own.send_error(ValueError("text"), timeout=0)
        Frame(own, "type").write(Frame.KEY, b"pyte")
        with pytest.raises(dp.RemoteError, match="text"):
            own.recv(timeout=0)


# --- descriptors of something else


def memory_file(content: bytes, *, sealed: bool = True) -> int:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    if sealed:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def assert_no_channel(fd: int) -> None:
    with refused(ValueError, stage="ShmChannel", found="channel", allowed=r"is not (that|the memory)|layout"):
        _core.ShmQueue.attach(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):  # the channel took it over and closed it
        os.fstat(fd)


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("content", [b"", b"x" * 100, bytes(2**16), b"\xff" * 2**16])
def test_memory_that_is_no_channel_is_refused(content, sealed):
    assert_no_channel(memory_file(content, sealed=sealed))


def test_a_descriptor_of_no_memory_is_refused(tmp_path):
    assert_no_channel(os.open(tmp_path, os.O_RDONLY))
    reader, writer = os.pipe()
    os.close(writer)
    assert_no_channel(reader)
    with pytest.raises(OSError, match="Bad file descriptor"):
        _core.ShmQueue.attach(-1)


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (0, b"NOTMINE!"),
        (8, u32(99)),  # version
        (12, u32(0)),  # capacity
        (12, u32(2**31)),
        (16, u32(1)),  # slots
        (16, u32(2**31)),
        (20, u32(2**31)),  # peers
        *((offset, struct.pack("<Q", value)) for offset in (24, 32, 40) for value in (1, 2**40, 2**64 - 64)),
        (48, struct.pack("<Q", 2**63)),  # bytes of the data
    ],
)
def test_a_header_that_does_not_fit_its_memory_is_refused(offset, value):
    with dp.ShmChannel(4, "64KB") as own:
        segment = bytearray(ctypes.string_at(*own._shared.memory))
    segment[offset : offset + len(value)] = value
    assert_no_channel(memory_file(bytes(segment)))
