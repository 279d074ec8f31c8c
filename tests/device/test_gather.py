"""The gather of rows by a GPU's threads equals indexing, to the bit, for every width, dtype and way to lie in memory.

Without a GPU the kernels are run by Triton's interpreter, over memory of the CPU.
"""

import ast
import contextlib
import mmap
from pathlib import Path

import numpy as np
import pytest
import torch
from at_once import at_once
from plain_cuda import Place

import datapipes as dp
from datapipes.device.gather import MAX_UVA_THREADS, TILES, gather, limited_to, max_uva_threads
from datapipes.features.stored_values import decode, encode

WIDTHS = [*range(1, 34), 48, 63, 64, 65, 100, 128, 200, 256, 400, 401, 404, 408, 512, 1000, 1024, 2048, 4000]
WIDTHS += [4095, 4096]


def random_rows(count: int, row_bytes: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, row_bytes), dtype=torch.uint8, generator=generator)


def random_ids(count: int, n: int, dtype: torch.dtype, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, count, (n,), dtype=dtype, generator=torch.Generator().manual_seed(seed))


def twin(rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return the rows at ids, zeros for an id that has none: the slow and obvious."""
    found = torch.zeros((len(ids), *rows.shape[1:])).to(rows.dtype)
    for i, id_ in enumerate(ids.tolist()):
        if 0 <= id_ < len(rows):
            found[i] = rows[id_]
    return found


def bits(rows: torch.Tensor) -> list[int]:
    return rows.cpu().contiguous().reshape(-1).view(torch.uint8).tolist() if rows.numel() else []


def checked(place: Place, rows: torch.Tensor, ids: torch.Tensor, where: str = "host", **options) -> torch.Tensor:
    """Gather rows as they lie; compare them with the twin. Return what was gathered."""
    missing = place.missing(len(rows))
    got = gather(place.table(rows, where), place.ids(ids), missing=missing, **options)
    assert (got.dtype, got.shape) == (rows.dtype, (len(ids), *rows.shape[1:]))
    assert bits(got) == bits(twin(rows, ids))
    wrong = [id_ for id_ in ids.tolist() if not 0 <= id_ < len(rows)]
    if wrong:
        with pytest.raises(IndexError, match=rf"{len(wrong)} of the ids .* the smallest is {min(wrong)}; "):
            missing.finish()
    missing.finish()
    return got


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("width", WIDTHS)
def test_rows_of_every_width_equal_indexing(place: Place, width, where):
    ids = random_ids(11, 9, torch.int64 if width % 2 else torch.int32)
    checked(place, random_rows(11, width), ids, where)


DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    torch.float8_e4m3fn,
]


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_every_dtype_and_shape_keep_their_bits(place: Place, dtype, where):
    for shape in [(), (1,), (3,), (2, 5), (3, 0)]:
        num_bytes = int(np.prod(shape)) * dtype.itemsize
        plain = random_rows(7, num_bytes) if dtype != torch.bool else random_rows(7, num_bytes) % 2
        rows = plain.view(dtype).reshape(7, *shape) if num_bytes else torch.empty((7, *shape), dtype=dtype)
        checked(place, rows, torch.tensor([6, 0, 6, 7, 3]), where)


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize(
    "rows",
    [
        random_rows(20, 64)[::2],
        random_rows(20, 64)[3:9],
        random_rows(20, 96)[:, 16:80],
        random_rows(20, 100)[:, 1:99],
        random_rows(20, 112)[:, 4:104],
        random_rows(20, 60).view(torch.float32)[:, 1:4],
        random_rows(9, 3 * 32).reshape(9, 3, 32)[:, 1],
        random_rows(20, 40)[2:7, 3],
        random_rows(1, 40)[:, 8:24],
        random_rows(20, 7)[19:, 3:],
    ],
)
def test_rows_may_lie_apart_and_begin_anywhere(place: Place, rows, where):
    checked(place, rows, torch.arange(len(rows)).flip(0), where)
    checked(place, rows, torch.tensor([0, len(rows), 0, -1]), where)


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("width", [1, 4, 12, 100, 512])
def test_ids_outside_give_zeros_and_are_counted(place: Place, width, dtype, where):
    largest = torch.iinfo(dtype)
    ids = torch.tensor([0, 4, 5, 2, -1, largest.max, largest.min, 1], dtype=dtype)
    checked(place, random_rows(5, width), ids, where)


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("shape", [(0, 4), (0,), (0, 0), (5, 0)], ids=str)
def test_tables_without_values(place: Place, shape, where):
    rows = torch.empty(shape)
    checked(place, rows, torch.tensor([], dtype=torch.int64), where)
    checked(place, rows, torch.tensor([0, 3, 5, -2], dtype=torch.int32), where)
    checked(place, rows, torch.tensor([3] * 300), where)


def test_no_ids_launch_nothing(place: Place):
    checked(place, random_rows(5, 12), torch.tensor([], dtype=torch.int32))
    if not place.is_gpu:
        assert place.cuda.grids == []


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 500])
@pytest.mark.parametrize("width", [4, 400, 512])
def test_every_number_of_ids_whatever_the_tiles(place: Place, width, n):
    checked(place, random_rows(30, width), random_ids(30, n, torch.int64))


@pytest.mark.parametrize("max_threads", [1, 31, 32, 100, 512, 1000, 10_240])
@pytest.mark.parametrize("sort_ids", [False, True])
def test_few_threads_copy_as_much_in_turns(place: Place, max_threads, sort_ids):
    rows, ids = random_rows(50, 400), random_ids(50, 700, torch.int64)
    ids[::100] = -3
    checked(place, rows, ids, max_threads=max_threads, sort_ids=sort_ids)
    if not place.is_gpu:
        threads = place.cuda.grids[-1][0] * 32 * place.cuda.constants[-1]["num_warps"]
        assert threads <= max(32, max_threads)
        assert threads > min(max_threads, 9 * 512) / 2  # of the work there is


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("width", [1, 20, 512])
def test_sorted_reads_keep_the_order_of_the_ids(place: Place, width, dtype):
    ids = random_ids(40, 90, dtype)
    ids[5], ids[50] = 40, -7
    checked(place, random_rows(40, width), ids, sort_ids=True)


@pytest.mark.parametrize(
    ("where", "num_rows", "n", "is_sorted"),
    [("host", 30, 90, False), ("host", 31, 89, False), ("host", 31, 90, True), ("device", 31, 90, False)],
)
def test_many_ids_into_a_table_that_reaches_far_are_sorted(place: Place, monkeypatch, where, num_rows, n, is_sorted):
    calls: list[int] = []
    sort = torch.sort
    monkeypatch.setattr(torch, "sort", lambda ids: calls.append(len(ids)) or sort(ids))
    monkeypatch.setattr("datapipes.device.gather.SORTED_BEYOND", 30 * 64)
    monkeypatch.setattr("datapipes.device.gather.SORTED_FROM", 90)
    checked(place, random_rows(num_rows, 64), random_ids(num_rows, n, torch.int64), where)
    assert calls == [n] * is_sorted


@pytest.mark.parametrize(
    ("make", "unit"),
    [
        (lambda: aligned(10, 512), 16),
        (lambda: aligned(10, 400), 16),
        (lambda: aligned(10, 100), 4),
        (lambda: aligned(10, 104), 8),
        (lambda: aligned(10, 6), 2),
        (lambda: aligned(10, 5), 1),
        (lambda: aligned(10, 512)[:, :100], 4),
        (lambda: aligned(10, 520)[:, :512], 8),
        (lambda: aligned(10, 528)[:, 16:], 16),
        (lambda: aligned(10, 528)[:, 2:514], 2),
        (lambda: aligned(1, 16), 16),
    ],
)
def test_loads_are_as_wide_as_address_row_and_distance_allow(place: Place, make, unit):
    if place.is_gpu:
        pytest.skip("the constants of a launch are seen by the stand-in only")
    rows = make()
    checked(place, rows, torch.zeros(4, dtype=torch.int64))
    used = place.cuda.constants[-1]
    assert used["LANES"] * used["BITS"] == 8 * unit
    assert used["UNITS"] * unit == rows.shape[1]


def aligned(count: int, row_bytes: int) -> torch.Tensor:
    memory = torch.zeros(count * row_bytes + 64, dtype=torch.uint8)
    begin = -memory.data_ptr() % 64
    return memory[begin : begin + count * row_bytes].view(count, row_bytes)


def test_rows_lie_beyond_the_reach_of_32_bits(place: Place, tmp_path):
    if place.is_gpu:
        pytest.skip("the file would be page-locked as a whole")
    row_bytes, count = 401, 12_000_000  # 4.8 GB, of which the file takes three pages
    with (tmp_path / "rows").open("w+b") as file:
        file.truncate(row_bytes * count)
        with mmap.mmap(file.fileno(), 0) as memory:
            rows = torch.frombuffer(memory, dtype=torch.uint8).view(count, row_bytes)
            wanted = random_rows(2, row_bytes)
            rows[count - 1], rows[9_000_000] = wanted[0], wanted[1]
            for sort_ids in (False, True):
                ids = torch.tensor([count - 1, 9_000_000], dtype=torch.int32)
                got = gather(rows, ids, sort_ids=sort_ids, missing=place.missing(count))
                assert torch.equal(got, wanted)
            del rows


# --- values stored with fewer bits


def is_nan(rows: torch.Tensor) -> torch.Tensor:
    return rows.cpu().isnan()


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("width", [1, 2, 4, 32])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_16_bits_are_decoded_as_on_the_cpu(place: Place, dtype, width, where):
    rows = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype).view(-1, width)
    ids = torch.randperm(len(rows), generator=torch.Generator().manual_seed(2))
    got = gather(place.table(rows, where), place.ids(ids), dtype=torch.float32, missing=place.missing(len(rows)))
    wanted = decode(rows[ids], None)
    assert got.dtype == torch.float32
    assert torch.equal(is_nan(got), is_nan(wanted))
    assert bits(got.cpu().nan_to_num(7.0)) == bits(wanted.nan_to_num(7.0))
    assert torch.equal(got.cpu().signbit(), wanted.signbit())


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (4,), (5, 6), (100,), (128,)])
def test_int8_is_multiplied_by_the_scale_of_its_column(place: Place, shape, where):
    values = torch.randn(300, *shape, generator=torch.Generator().manual_seed(4)) * 1e3
    values *= torch.logspace(-44, 34, max(int(np.prod(shape)), 1)).view(shape)  # scales that are subnormal, too
    rows, scale = encode("test", values, torch.int8)
    ids = random_ids(300, 77, torch.int32)
    ids[3] = 300
    wanted = decode(twin(rows, ids), scale)
    on_device = scale.to(place.device)
    missing = place.missing(300)
    for sort_ids in (False, True):
        got = gather(
            *(place.table(rows, where), place.ids(ids)),
            scale=on_device,
            dtype=torch.float32,
            sort_ids=sort_ids,
            missing=missing,
        )
        assert bits(got) == bits(wanted)
    with pytest.raises(IndexError, match="2 of the ids"):
        missing.finish()


@pytest.mark.parametrize("begin", [0, 1, 2, 3])
def test_decoded_rows_may_begin_anywhere_and_lie_apart(place: Place, begin):
    for dtype in (torch.float16, torch.bfloat16, torch.int8):
        rows, scale = encode("test", torch.randn(12, 24, generator=torch.Generator().manual_seed(5)), dtype)
        rows = rows[::2, begin : begin + 20]
        scale = None if scale is None else scale[begin : begin + 20].contiguous()
        ids = torch.tensor([5, 0, 3])
        there = None if scale is None else scale.to(place.device)
        table = place.table(rows, "host")
        got = gather(table, place.ids(ids), scale=there, dtype=torch.float32, missing=place.missing(6))
        assert bits(got) == bits(decode(rows[ids], scale))


def test_a_table_of_the_dtype_asked_for_is_not_decoded(place: Place):
    rows = random_rows(6, 8).view(torch.float16)
    got = gather(place.table(rows, "host"), place.ids(torch.tensor([5])), dtype=torch.float16, missing=place.missing(6))
    assert bits(got) == bits(rows[5:])


# --- the kernels


def test_tiles_are_powers_of_two_as_triton_needs_them():
    for tile in TILES.values():
        for number in tile:
            assert number & (number - 1) == 0


def test_numbers_that_change_with_the_minibatch_make_no_new_kernel():
    source = ast.parse((Path(dp.__file__).parent / "device" / "kernels.py").read_text(encoding="utf-8"))
    for kernel in (node for node in source.body if isinstance(node, ast.FunctionDef) and node.name in KERNELS):
        fixed = {arg.arg for arg in kernel.args.args if arg.annotation is not None}
        unspecialized = {constant.value for constant in kernel.decorator_list[0].args}
        assert KERNELS[kernel.name] == {arg.arg for arg in kernel.args.args} - fixed - unspecialized


# What each kernel is specialized for: what belongs to the table, and memory that is always aligned.
KERNELS = {
    "gather_rows": {"table", "out", "places", "cached", "slots", "scale", "missing"},
    "check_ids": {"missing"},
    "look_up": {"keys", "stamps", "slots", "orders", "counts"},
    "choose_slots": {"orders", "keys", "stamps", "places"},
}


# --- the cap of GPU threads belongs to a thread and ends with its context


def test_a_cap_holds_in_its_context_and_contexts_nest():
    assert max_uva_threads() == MAX_UVA_THREADS == 10240
    with contextlib.suppress(KeyError), limited_to(512):
        with limited_to(64):
            assert max_uva_threads() == 64
        assert max_uva_threads() == 512
        raise KeyError
    assert max_uva_threads() == MAX_UVA_THREADS


def test_a_cap_does_not_reach_other_threads():
    with limited_to(512):
        assert at_once(lambda _: max_uva_threads(), 1) == [MAX_UVA_THREADS]
