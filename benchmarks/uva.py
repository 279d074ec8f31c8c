"""How near do gathers by a GPU's own threads come to a plain copy, from page-locked host memory (UVA) and from its own?

Rows at random ids of a table of 2 GiB, 256 MiB of them at once, read by gather (device/gather.py) from memory that
TensorFeature.pin_memory_ has page-locked; beside it a plain copy of as many bytes from page-locked memory. Over row
widths with the default cap of 10,240 threads, and over caps (16,384 are 8 SMs' worth) with rows of 512 and 400 bytes;
also with the ids as they come instead of sorted, over sizes of the table and few to many ids ("reach"); with rows of
400 bytes padded to 512, with the table in huge pages, and with rows of 128 values stored as float16 and int8, in rows
per second beside float32. Then the same widths gathered from device memory, beside a copy within the device. Then
messages of a ShmChannel copied to the GPU, page-locked and not. Times are of the GPU's own clock: work is queued while
it is kept busy, so that no launch is waited for. In alternation, median of 9. `--tiles` also tries other ways to cut
the work (TILES in device/gather.py). Without a GPU it says so, and is done.
Run: python benchmarks/uva.py [--tiles]
Result (NVIDIA H200, 16-core VM, commit 2451f37, ids sorted): a pinned copy 55.4 GB/s, a device copy 2,105. Rows of 512
bytes: 0.57 of the copy with 2,048 threads, 0.91 from 4,096 on (wanted: 0.85 with 16,384, and 0.95 with the default,
which is missed), 0.49 with the ids as they come; of 400 bytes 0.82 and 0.39, padded 0.84; of 64 bytes 0.75, of 4 bytes
0.06. By the size of the table, sorted and as they come: 65,536 ids 0.80 and 0.87 (0.25 GiB), 0.78 and 0.82 (1 GiB),
0.76 and 0.42 (4 GiB); 524,288 ids 0.96 and 0.85 (1 GiB), 0.89 and 0.37 (4 GiB); 4,096 ids 0.38 to 0.40 and 0.66 to
0.70. 1 GiB in huge pages 1.00, in others 0.96. As they come, float16 2.05 and int8 4.05 times the rows. From device
memory 0.90 of a copy (0.7 wanted), torch's indexing 0.40; rows of 128 bytes 0.85, of 4 bytes 0.06. Tiles for the host
differ by 0.02. Messages 40 GB/s, 7.5 where they are not page-locked.
"""

from __future__ import annotations

import itertools
import mmap
import os
import time
from collections.abc import Callable

import torch
from common import Figures, alternate, lacks_gpu, parser, report_parts
from torch import Tensor

import datapipes as dp
from datapipes.device import gather

WIDTHS = (4, 16, 64, 100, 128, 256, 400, 512, 1024, 2048, 4096)
CAPS = (512, 1024, 2048, 4096, 8192, 10_240, 16_384, 32_768, 65_536)
EIGHT_SMS = 16_384  # 2,048 threads each
TABLE_BYTES = 2**31
REACHES = (2**28, 2**30, 2**32, 2**34)  # bytes of a table
FEW_IDS, SOME_IDS, MANY_IDS = 2**12, 2**16, 2**19
READ_BYTES = 2**28
MOST_ROWS = 2**24  # of narrow rows, or the ids would be most of what is read
BUSY_CYCLES = 4_000_000  # 2 ms, in which the host queues what is measured
MESSAGE_BYTES = 2**25


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--tiles", action="store_true", help="also try other tiles")
    args = options.parse_args()
    if lacks_gpu("uva"):
        return
    values = torch.arange(TABLE_BYTES // 4, dtype=torch.int32)
    pinned = dp.TensorFeature(values).pin_memory_()  # its pages are those of all host tables below
    there = values.cuda()
    parts: dict[str, Callable[[], Figures]] = {
        "caps": lambda: cap_figures(values, args.repeats),
        "device memory": lambda: device_figures(there, args.repeats),
        "widths": lambda: width_figures(values, args.repeats),
        "reach": lambda: reach_figures(args.repeats),
        "pages": lambda: page_figures(values, args.repeats),
        "stored": lambda: stored_figures(args.repeats),
        "channel": lambda: channel_figures(args.repeats),
    }
    if args.tiles:
        parts["tiles"] = lambda: tile_figures(values, there, args.repeats)
    report_parts(parts, args.json, {"device": torch.cuda.get_device_name()})
    del pinned


Side = Callable[[int], float]


def rate(num_bytes: int, work: Callable[[], object]) -> Side:
    """Return a side for `alternate`: bytes per second of work of the GPU."""

    def measure(_: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(BUSY_CYCLES)
        begin.record()
        result = work()
        end.record()
        end.synchronize()
        del result
        return num_bytes / begin.elapsed_time(end) * 1e3

    return measure


def rows_of(values: Tensor, width: int) -> tuple[dp.TensorFeature, Tensor]:
    """Return the values as rows of so many bytes, and random ids on the GPU; what is read was compared."""
    feature = dp.TensorFeature(values[: values.numel() * 4 // width * width // 4].view(-1, width // 4))
    if not values.is_cuda:
        feature.pin_memory_()
    count = min(READ_BYTES // width, MOST_ROWS)
    ids = torch.randint(feature.count, (count,), generator=torch.Generator().manual_seed(width))
    on_gpu = ids.cuda()
    assert torch.equal(feature.read(on_gpu[:5000]).cpu(), feature.tensor[ids[:5000].to(values.device)].cpu())
    feature._finish_reads()
    return feature, on_gpu


def reads(feature: dp.TensorFeature, ids: Tensor, cap: int | None = None, sort_ids: bool | None = None) -> Side:
    """Return a side that reads all ids with a cap of threads, and the default without one."""
    feature_bytes = ids.numel() * feature.tensor[:1].nbytes

    def work() -> Tensor:
        with gather.limited_to(cap or gather.MAX_UVA_THREADS):
            return feature._device_rows.read(ids, feature.dtype, is_locked=True, scale=None, sort_ids=sort_ids)

    return rate(feature_bytes, work)


def pinned_copy() -> Side:
    source = torch.ones(READ_BYTES, dtype=torch.uint8).pin_memory()
    target = torch.empty_like(source, device="cuda")
    return rate(READ_BYTES, lambda: target.copy_(source, non_blocking=True))


def width_figures(values: Tensor, repeats: int) -> Figures:
    figures: Figures = {}
    plain = pinned_copy()
    for width in WIDTHS:
        rates = alternate({"copy": plain, "uva": reads(*rows_of(values, width))}, repeats)
        figures[f"UVA, rows of {width} B (GB/s)"] = rates["uva"] / 1e9
        figures[f"UVA, rows of {width} B: ratio to a pinned copy"] = rates["uva"] / rates["copy"]
        figures["pinned copy (GB/s)"] = rates["copy"] / 1e9
    return figures


def cap_figures(values: Tensor, repeats: int) -> Figures:
    figures: Figures = {}
    plain = pinned_copy()
    for width in (512, 400):
        rows = rows_of(values, width)
        sides = {"copy": plain, **{str(cap): reads(*rows, cap) for cap in CAPS}}
        sides["ids as they come"] = reads(*rows, sort_ids=False)
        rates = alternate(sides, repeats)
        for cap in CAPS:
            figures[f"UVA, rows of {width} B, {cap} threads: ratio to a pinned copy"] = rates[str(cap)] / rates["copy"]
        as_they_come = rates["ids as they come"] / rates["copy"]
        figures[f"UVA, rows of {width} B, ids as they come: ratio to a pinned copy"] = as_they_come
    return figures


def reach_figures(repeats: int) -> Figures:
    """Rows of 512 bytes at ids that are sorted first, and as they come, in tables that reach further and further.

    Left out are tables that take more than a sixth of the host's memory.
    """
    figures: Figures = {}
    plain = pinned_copy()
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 6
    sizes = [num_bytes for num_bytes in REACHES if num_bytes < most]
    values = torch.ones(max(sizes) // 4, dtype=torch.int32)
    pinned = dp.TensorFeature(values).pin_memory_()
    for num_bytes, num_ids in itertools.product(sizes, (FEW_IDS, SOME_IDS, MANY_IDS)):
        rows = dp.TensorFeature(values[: num_bytes // 4].view(-1, 128)).pin_memory_()
        ids = torch.randint(rows.count, (num_ids,), generator=torch.Generator().manual_seed(num_ids)).cuda()
        ways = {"sorted": True, "as they come": False}
        sides = {how: reads(rows, ids, sort_ids=sort_ids) for how, sort_ids in ways.items()}
        rates = alternate({"copy": plain, **sides}, repeats)
        for how in ways:
            name = f"UVA, {num_ids} ids {how} of a table of {num_bytes / 2**30:g} GiB"
            figures[f"{name}: ratio to a pinned copy"] = rates[how] / rates["copy"]
    del pinned
    return figures


def page_figures(values: Tensor, repeats: int) -> Figures:
    """Rows that begin at multiples of 128 bytes, and rows in huge pages."""
    figures: Figures = {}
    plain = pinned_copy()
    padded = dp.TensorFeature(values[: 2**28].view(-1, 128)[:, :100])
    huge = huge_pages(2**30)
    huge.copy_(values[: 2**28])
    held = dp.TensorFeature(huge).pin_memory_()
    ids = torch.randint(2**21, (READ_BYTES // 512,), generator=torch.Generator().manual_seed(1)).cuda()
    sides = {
        "copy": plain,
        "rows of 400 B, padded to 512 B": reads(padded, ids),
        "rows of 512 B of 1 GiB": reads(dp.TensorFeature(values[: 2**28].view(-1, 128)), ids),
        "rows of 512 B of 1 GiB in huge pages": reads(dp.TensorFeature(huge.view(-1, 128)), ids),
    }
    rates = alternate(sides, repeats)
    for name in list(sides)[1:]:
        figures[f"UVA, {name}: ratio to a pinned copy"] = rates[name] / rates["copy"]
    del held
    return figures


def huge_pages(num_bytes: int) -> Tensor:
    """Return host memory, int32, for which the system was asked for huge pages."""
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.int32)


def stored_figures(repeats: int) -> Figures:
    """Rows of 128 values, page-locked: float32 beside float16 and int8, which are decoded behind the link."""
    rows = torch.randn(2**20, 128)
    ids = torch.randint(len(rows), (2**19,)).cuda()
    features = {name: dp.TensorFeature(rows, stored_as=name).pin_memory_() for name in (None, "float16", "int8")}
    wanted = {name: features[name].read(ids[:5000].cpu()) for name in features}
    for name, feature in features.items():
        assert torch.equal(feature.read(ids[:5000]).cpu(), wanted[name])
    rates = alternate({str(name): rate(len(ids), lambda f=f: f.read(ids)) for name, f in features.items()}, repeats)
    return {
        f"UVA, 128 values stored as {name}: ratio to float32": rates[name] / rates["None"]
        for name in ("float16", "int8")
    }


def device_copy() -> Side:
    source = torch.ones(READ_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return rate(READ_BYTES, lambda: target.copy_(source))


def device_figures(values: Tensor, repeats: int) -> Figures:
    figures: Figures = {}
    plain = device_copy()
    for width in WIDTHS:
        feature, ids = rows_of(values, width)
        rates = alternate({"copy": plain, "gather": reads(feature, ids)}, repeats)
        figures["device copy (GB/s)"] = rates["copy"] / 1e9
        figures[f"device memory, rows of {width} B (GB/s)"] = rates["gather"] / 1e9
        figures[f"device memory, rows of {width} B: ratio to a device copy"] = rates["gather"] / rates["copy"]
    rows = feature_rows = values.view(-1, 128)
    ids = torch.randint(len(rows), (READ_BYTES // 512,)).cuda()
    rates = alternate({"copy": plain, "index": rate(READ_BYTES, lambda: feature_rows[ids])}, repeats)
    figures["torch's indexing, rows of 512 B: ratio to a device copy"] = rates["index"] / rates["copy"]
    return figures


def tile_figures(host: Tensor, device: Tensor, repeats: int) -> Figures:
    """Rows of 512 B with other tiles than those of TILES."""
    figures: Figures = {}
    before = dict(gather.TILES)
    for where, values, plain in (("host", host, pinned_copy()), ("device", device, device_copy())):
        rows = rows_of(values, 512)
        choices = [gather.Tile(*each, 8) for each in itertools.product((4, 8, 16), (32, 64, 128))]

        def with_tile(tile: gather.Tile, cap: int, where: str = where, rows: tuple = rows) -> Side:
            side = reads(*rows, cap)

            def measure(round_: int) -> float:
                gather.TILES[where] = tile
                try:
                    return side(round_)
                finally:
                    gather.TILES[where] = before[where]

            return measure

        caps = (gather.MAX_UVA_THREADS, EIGHT_SMS) if where == "host" else (None,)
        for cap in caps:
            sides = {"copy": plain, **{str(tile): with_tile(tile, cap or 0) for tile in choices}}
            rates = alternate(sides, repeats)
            of_cap = f", {cap} threads" if cap else ""
            for tile in choices:
                name = f"{where}{of_cap}, {tile.num_warps} warps, {tile.bytes_per_thread} B a thread"
                figures[f"tiles: {name}: ratio to a copy"] = rates[str(tile)] / rates["copy"]
    return figures


def channel_figures(repeats: int) -> Figures:
    """Messages of 32 MiB, from `recv` until the copies have arrived."""
    message = {f"part{i}": torch.ones(MESSAGE_BYTES // 16, dtype=torch.float32) for i in range(4)}
    channels = {name: dp.ShmChannel(capacity=4, shm_size="256MB") for name in ("page-locked", "as it is")}
    channels["page-locked"].pin_memory()

    def side(channel: dp.ShmChannel) -> Side:
        def measure(_: int) -> float:
            channel.send(message)
            began = time.perf_counter()
            received = channel.recv()
            copies = [tensor.to("cuda", non_blocking=True) for tensor in received.values()]
            torch.cuda.synchronize()
            del copies, received
            return MESSAGE_BYTES / (time.perf_counter() - began)

        return measure

    rates = alternate({name: side(channel) for name, channel in channels.items()}, repeats, warm_ups=6)
    for channel in channels.values():
        channel.close()
    figures: Figures = {f"messages, {name} (GB/s)": value / 1e9 for name, value in rates.items()}
    figures["messages: page-locked, ratio to as they are"] = rates["page-locked"] / rates["as it is"]
    return figures


if __name__ == "__main__":
    main()
