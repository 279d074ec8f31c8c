"""The digest of an array: the hash that its header states, of every byte, whatever the strides, threads and pieces."""

import hashlib
import itertools
import math

import numpy as np
import pytest
import torch
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st

from datapipes import _core
from datapipes.base import array_digest as module
from datapipes.base.array_digest import HashingStopped, StreamedDigest, array_digest
from datapipes.base.threads import threads_of_kernels

P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
DTYPES = (torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float64)


def rotl(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) % 2**64


def xxh64(data: bytes, seed: int = 0) -> int:
    """XXH64, word by word, from its specification."""

    def mixed(total: int, word: int) -> int:
        return rotl((total + word * P2) % 2**64, 31) * P1 % 2**64

    def number(begin: int, size: int) -> int:
        return int.from_bytes(data[begin : begin + size], "little")

    if len(data) >= 32:
        lanes = [(seed + P1 + P2) % 2**64, (seed + P2) % 2**64, seed, (seed - P1) % 2**64]
        for stripe in range(0, len(data) // 32 * 32, 32):
            lanes = [mixed(lane, number(stripe + 8 * i, 8)) for i, lane in enumerate(lanes)]
        found = sum(rotl(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) % 2**64
        for lane in lanes:
            found = ((found ^ mixed(0, lane)) * P1 + P4) % 2**64
    else:
        found = (seed + P5) % 2**64
    found = (found + len(data)) % 2**64
    for word in range(len(data) // 32 * 32, len(data) // 8 * 8, 8):
        found = (rotl(found ^ mixed(0, number(word, 8)), 27) * P1 + P4) % 2**64
    at = len(data) // 8 * 8
    if len(data) - at >= 4:
        found = (rotl(found ^ number(at, 4) * P1 % 2**64, 23) * P2 + P3) % 2**64
        at += 4
    for each in data[at:]:
        found = rotl(found ^ each * P5 % 2**64, 11) * P1 % 2**64
    found = (found ^ found >> 33) * P2 % 2**64
    found = (found ^ found >> 29) * P3 % 2**64
    return found ^ found >> 32


def stated(values: torch.Tensor, piece_bytes: int) -> str:
    """The digest of an array as the module's docstring states it, in plain Python."""
    rows = values if values.ndim > 0 else values.reshape(1)
    row_bytes = math.prod(rows.shape[1:]) * rows.element_size()
    piece = max(piece_bytes // row_bytes, 1) if row_bytes else 1
    digest = hashlib.blake2b(f"{str(values.dtype)[6:]} {[*values.shape]};".encode(), digest_size=16)
    for begin in range(0, rows.shape[0] if row_bytes else 0, piece):
        data = rows[begin : begin + piece].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        digest.update(xxh64(data).to_bytes(8, "little"))
    return digest.hexdigest()


@pytest.mark.parametrize(
    ("count", "published"),  # of the test of xxHash's command line tool, seed 0
    [
        (0, 0xEF46DB3751D8E999),
        (1, 0xE934A84ADB052768),
        (4, 0x9136A0DCA57457EE),
        (14, 0x8282DCC4994E35C8),
        (222, 0xB641AE8CB691C174),
    ],
)
def test_pieces_have_the_published_hashes(count, published):
    data, state = bytearray(), 0x9E3779B1
    for _ in range(count):
        data.append(state >> 56)
        state = state * 0x9E3779B185EBCA8D % 2**64
    assert xxh64(bytes(data)) == published
    if count > 0:
        assert _core.piece_hashes(np.frombuffer(bytes(data), dtype=np.uint8), count).tolist() == [published]


@examples(80)
@given(st.data(), st.sampled_from(DTYPES), st.integers(8, 300))
def test_the_digest_is_the_one_that_is_stated(data, dtype, piece_bytes):
    shape = data.draw(st.lists(st.integers(0, 9), max_size=3))
    values = torch.from_numpy(np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 256, (2, *shape)))
    values = data.draw(st.sampled_from([values[0], values.transpose(0, -1), values.flip(-1)])).to(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE_BYTES", piece_bytes)
        patch.setattr(module, "_BYTES_AT_ONCE", data.draw(st.integers(1, 1500)))
        for threads in (1, 3):
            with threads_of_kernels(threads):
                assert array_digest(values) == stated(values, piece_bytes)
        ids = values.long()
        assert array_digest(ids.int(), as_int64=True) == array_digest(ids, as_int64=True)


def test_int32_ids_are_cut_where_int64_ones_are(monkeypatch):
    ids = torch.arange(60).reshape(20, 3)
    monkeypatch.setattr(module, "_BYTES_AT_ONCE", 1)
    for piece_bytes in range(8, 200, 4):
        monkeypatch.setattr(module, "PIECE_BYTES", piece_bytes)
        assert array_digest(ids.int(), as_int64=True) == array_digest(ids, as_int64=True)


@pytest.mark.parametrize("row_shape", [(), (2,), (0,)])
def test_rows_may_come_in_any_pieces(monkeypatch, row_shape):
    monkeypatch.setattr(module, "PIECE_BYTES", 24)  # 3 rows of one number
    rows = torch.arange(math.prod((12, *row_shape))).reshape(12, *row_shape)
    for counts in itertools.product(range(5), repeat=3):
        streamed, begin = StreamedDigest(rows.dtype, row_shape), 0
        for count in counts:
            streamed.take(rows[begin : begin + count])
            begin += count
        assert streamed.digest() == array_digest(rows[:begin])


def test_the_digest_of_this_array_never_changes():
    values = torch.arange(300_000) * 7919 - 10**9
    assert array_digest(values) == "98b04a57ffc963df210e73b78b378492"
    assert (
        array_digest(values.int(), as_int64=True)
        == array_digest(values, as_int64=True)
        == "82bd4399f5df98034fb638c1203c9534"
    )
    assert array_digest(torch.tensor(True)) == "d13d24fce9bd91715ab40ad646504f36"


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.uint8])
def test_one_changed_element_anywhere_gives_another_digest(dtype):
    """10,000 places in all, of arrays of one and of several pieces."""
    rng = np.random.default_rng(5)
    for shape, places in (((40, 7), 280), ((1500, 100), 3100)):
        values = torch.from_numpy(rng.integers(0, 100, shape)).to(dtype)
        before, seen = array_digest(values), set()
        flat = values.view(-1)
        for place in rng.choice(flat.shape[0], min(places, flat.shape[0]), replace=False).tolist():
            flat[place] += 1
            seen.add(array_digest(values))
            flat[place] -= 1
        assert len(seen | {before}) == min(places, flat.shape[0]) + 1
        assert array_digest(values) == before


def test_dtype_and_shape_count():
    zeros = torch.zeros(12, dtype=torch.int64)
    arrays = [
        zeros,
        zeros.double(),
        zeros.view(3, 4),
        zeros.view(4, 3),
        zeros[:11],
        zeros[:0],
        zeros.view(12, 1)[:, :0],
    ]
    assert len({array_digest(each) for each in arrays}) == len(arrays)


@pytest.mark.parametrize("shape", [(3,), (2, 2**24, 8)])
def test_hashing_ends_where_it_is_told_to_before_the_next_rows(shape):
    looks = iter([False, True])
    with pytest.raises(HashingStopped):
        array_digest(
            torch.zeros(1, dtype=torch.uint8).expand(shape), stop=lambda: next(looks) if len(shape) > 1 else True
        )
    assert list(looks) == ([] if len(shape) > 1 else [False, True])


def test_values_with_strides_are_copied_without_a_thread_of_torch(monkeypatch):
    values = torch.arange(100_000).view(100, 1000).T
    expected = array_digest(values.contiguous())
    monkeypatch.setattr(torch.Tensor, "contiguous", None)
    assert array_digest(values) == expected
    assert array_digest(values.int(), as_int64=True) == array_digest(values, as_int64=True)
