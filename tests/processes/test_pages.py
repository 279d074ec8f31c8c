"""Huge pages are advice: values stay the same bits where the system refuses, and what it gives is told."""

import contextlib
import mmap
import os
import re
import threading

import numpy as np
import pytest
import torch
from channels import BOUND_S, descriptors_from_now

import datapipes as dp
from datapipes import _core
from datapipes.processes import mappings, pages
from datapipes.processes.copies import zeros_together
from datapipes.processes.mappings import LARGE, File, ask_for_huge_pages
from datapipes.processes.sharing import pack, share_memory

MIB = 2**20
ALL_FREE = 2**40  # more than any machine has reserved
SMAPS = """\
7f0000000000-7f0000800000 rw-s 00000000 00:01 {inode}                     /memfd:datapipes (deleted)
Size:               8192 kB
Rss:                {rss} kB
AnonHugePages:         0 kB
ShmemPmdMapped:     {huge} kB
FilePmdMapped:         0 kB
Shared_Hugetlb:        0 kB
Private_Hugetlb:    {reserved} kB
VmFlags: rd wr sh mr mw me ms hg
7f0000900000-7f0000a00000 r-xp 00001000 fe:00 77                          /usr/lib/lib - a.so
Rss:                1024 kB
"""


def numbers(count: int = LARGE // 4) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(5).integers(0, 2**63, count))


def join_threads() -> None:
    for thread in threading.enumerate():
        if thread.name == "datapipes-huge-pages":
            thread.join(BOUND_S)


def flags_and_rss(address: int) -> tuple[list[str], int]:
    """What /proc says of the mapping at an address: its flags ("hg": advised), and its bytes in memory."""
    inside, rss = False, 0
    with open("/proc/self/smaps", encoding="utf-8") as lines:
        for line in lines:
            name, *rest = line.split()
            if "-" in name:
                begin, end = (int(bound, 16) for bound in name.split("-"))
                inside = begin <= address < end
            elif inside and name == "Rss:":
                rss = int(rest[0]) * 1024
            elif inside and name == "VmFlags:":
                return rest, rss
    raise AssertionError("no such mapping")


def root_with(tmp_path, free: int = 0, promised: int = 0, **files: str) -> str:
    """A folder with proc and sys as a system might have them; files are settings of huge pages."""
    settings, reserved = tmp_path / pages._SETTINGS, tmp_path / pages._RESERVED
    settings.mkdir(parents=True)
    reserved.mkdir(parents=True)
    (reserved / "free_hugepages").write_text(f"{free}\n")
    (reserved / "resv_hugepages").write_text(f"{promised}\n")
    for name, text in files.items():
        (settings / name).write_text(f"{text}\n")
    return str(tmp_path)


def write_proc(tmp_path, process: int | str, name: str, text: str) -> None:
    (tmp_path / "proc" / str(process)).mkdir(parents=True)
    (tmp_path / "proc" / str(process) / name).write_text(text)


# --- shared memory


def test_every_mapping_of_a_memory_is_advised_and_has_the_same_bits():
    values = numbers()
    (memory,) = pack(values).memories
    again = _core.SharedMemory.attach(os.dup(memory.descriptor))  # as a worker does it
    for mapped in (memory, again):
        tensor = torch.frombuffer(mapped, dtype=torch.int64, count=len(values))
        assert torch.equal(tensor, values)
        assert {"hg", "ht"} & set(flags_and_rss(tensor.data_ptr())[0])  # advised, or of reserved huge pages
    join_threads()
    assert torch.equal(tensor, values)


def test_values_stay_while_others_write_and_the_memory_is_moved():
    values = numbers()
    (shared,) = zeros_together([(tuple(values.shape), values.dtype)])
    for part, given in zip(shared.split(10_000), values.split(10_000), strict=True):
        part.copy_(given)  # meanwhile a thread moves the pages
    join_threads()
    assert torch.equal(shared, values)


def test_without_enough_reserved_pages_ordinary_ones_are_taken():
    free = pages._free("/")
    num_bytes = free + 8 * MIB if free < 512 * MIB else 8 * MIB
    memory = _core.SharedMemory.create(num_bytes, "test", True)
    view = np.frombuffer(memory, np.uint8)
    assert len(memory) >= num_bytes
    assert not view.any()
    view[:] = 7
    again = _core.SharedMemory.attach(os.dup(memory.descriptor))
    assert len(again) == len(memory)
    assert (np.frombuffer(again, np.uint8) == 7).all()
    memory.use_huge_pages()
    assert (view == 7).all()


@pytest.mark.parametrize("huge_pages", [False, True])
def test_more_than_there_is_is_refused_and_leaves_nothing_behind(huge_pages):
    opened = descriptors_from_now()
    with pytest.raises(MemoryError, match=f"{ALL_FREE} bytes of shared memory were asked for"):
        _core.SharedMemory.create(ALL_FREE, "test", huge_pages)
    assert opened() == 0


@pytest.mark.skipif(pages._free("/") < 16 * MIB, reason="no huge pages are reserved: sysctl vm.nr_hugepages=8")
def test_reserved_pages_are_taken_where_they_are_free_and_given_back():
    free = pages._free("/")
    values = numbers()
    shared = share_memory(values)
    assert "ht" in flags_and_rss(shared.data_ptr())[0]
    assert pages._free("/") < free
    assert torch.equal(shared, values)
    join_threads()
    del shared
    assert pages._free("/") == free


# --- mapped files


class Refusing(mmap.mmap):
    """A mapping whose system takes no advice."""

    def madvise(self, *_: int) -> None:
        raise OSError(22, "Invalid argument")


def saved(folder, count: int = LARGE // 4) -> dp.CSCGraph:
    indices = numbers(count) % 100
    indptr = torch.cat([torch.zeros(100, dtype=torch.int64), torch.tensor([count])])
    graph = dp.CSCGraph(indptr, indices)
    graph.save(folder)
    return graph


def test_a_mapped_graph_is_advised_and_not_read_here_nor_by_who_maps_it_again(tmp_path):
    graph = saved(tmp_path / "graph")
    opened = dp.CSCGraph.open(tmp_path / "graph")
    again = pack(opened).unpack()
    for each in (opened, again):
        flags, rss = flags_and_rss(each.indices.data_ptr())
        assert "hg" in flags
        assert rss < each.indices.nbytes  # what was looked at, and no more
    assert opened.indices.data_ptr() != again.indices.data_ptr()
    assert opened.digest() == again.digest() == graph.digest()


def test_a_mapped_feature_is_advised(tmp_path):
    values = numbers().view(-1, 64)
    np.save(tmp_path / "x.npy", values.numpy())
    array = np.load(tmp_path / "x.npy", mmap_mode="r")
    feature = dp.TensorFeature(array)
    assert "hg" in flags_and_rss(array.ctypes.data)[0]
    ids = torch.tensor([0, 5, 5])
    assert torch.equal(feature.read(ids), values[ids])


@pytest.mark.parametrize("too_large", [False, True])
def test_small_files_and_those_too_large_for_memory_are_not_advised(too_large, tmp_path, monkeypatch):
    saved(tmp_path / "graph", LARGE // 4 if too_large else 1000)
    if too_large:
        monkeypatch.setattr(mappings._core, "memory_left", lambda: (3 * LARGE, "the test"))
    opened = dp.CSCGraph.open(tmp_path / "graph")
    assert "hg" not in flags_and_rss(opened.indices.data_ptr())[0]


def test_a_system_that_takes_no_advice_changes_nothing():
    with contextlib.closing(Refusing(-1, LARGE)) as memory:
        memory[:5] = b"hello"
        ask_for_huge_pages(memory)
        assert memory[:5] == b"hello"


# --- what is told


def test_large_shared_memory_is_told_as_the_system_counts_it():
    packed = pack([numbers(), torch.zeros(10_000)])
    join_threads()
    said = pages.of_shared(packed.memories, packed.files, [os.getpid()])
    assert re.fullmatch(r"in huge pages: \d+ of (8|10) MiB of shared memory( \(for more: .*\))?", said), said
    assert pages.of_shared([], [], [os.getpid()]) == "in huge pages: nothing, since nothing large is shared"


def test_the_process_that_has_touched_most_counts(tmp_path):
    root = root_with(tmp_path, shmem_enabled="always advise [never]")
    (memory,) = pack(numbers()).memories
    inode = os.fstat(memory.descriptor).st_ino
    write_proc(tmp_path, 1, "smaps", SMAPS.format(inode=inode, rss=4096, huge=4096, reserved=0))
    write_proc(tmp_path, 2, "smaps", SMAPS.format(inode=inode, rss=8192, huge=2048, reserved=0))
    write_proc(tmp_path, 3, "smaps", SMAPS.format(inode=inode, rss=0, huge=0, reserved=8192))
    assert pages.of_shared([memory], [], [1], root) == "in huge pages: 4 of 4 MiB of shared memory"
    assert pages.of_shared([memory], [], [1, 2, 99], root) == (
        "in huge pages: 2 of 8 MiB of shared memory (for more: sysctl vm.nr_hugepages=4 before the program starts, or "
        "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled, which is never)"
    )
    assert pages.of_shared([memory], [], [1, 3], root) == "in huge pages: 8 of 8 MiB of shared memory"
    assert pages.of_shared([memory], [], [99], root) == "in huge pages: 0 of 0 MiB of shared memory"


def test_files_are_told_beside_the_memory(tmp_path):
    root = root_with(tmp_path)
    write_proc(tmp_path, 1, "smaps", SMAPS.format(inode=5, rss=8192, huge=0, reserved=0))
    assert pages.of_shared([], [File("x", (0, 5, 0, 0))], [1], root) == (
        "in huge pages: 0 of 8 MiB of mapped files (for more: open them with mmap=False)"
    )


def test_the_files_of_what_is_packed_are_known(tmp_path):
    saved(tmp_path / "graph", 1000)
    opened = dp.CSCGraph.open(tmp_path / "graph")
    assert [file.path for file in pack([opened, opened]).files] == [str(tmp_path / "graph" / "arrays.npy")]


@pytest.mark.parametrize(
    ("can_collapse", "shmem", "free", "said"),
    [
        (True, "always [never]", 0, "shared memory, once it is made"),
        (False, "always [advise]", 0, "shared memory, once it is made"),
        (False, "[never]", 5, "shared memory, once it is made; 6 MiB of reserved pages are free"),
        (False, "[deny]", 2, "no shared memory (for more: sysctl vm.nr_hugepages=N before the program starts, or echo "
         "advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled, which is deny)"),
    ],
)  # fmt: skip
def test_before_the_workers_start_it_is_told_what_they_will_get(can_collapse, shmem, free, said, tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "_can_collapse", lambda: can_collapse)
    assert pages.of_coming(root_with(tmp_path, free, promised=2, shmem_enabled=shmem)) == f"in huge pages: {said}"


def test_without_settings_no_huge_pages_are_promised(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "_can_collapse", lambda: False)
    assert pages.of_coming(str(tmp_path)) == (
        "in huge pages: no shared memory (for more: sysctl vm.nr_hugepages=N before the program starts)"
    )


@pytest.mark.parametrize(("enabled", "remedy"), [("[madvise] never", ""), ("always [never]", "for more: echo madvise")])
def test_private_memory_is_told_for_threads_and_forks(enabled, remedy, tmp_path):
    root = root_with(tmp_path, enabled=enabled)
    text = "Rss: 9999999 kB\nAnonymous:   8192 kB\nAnonHugePages:  6144 kB\n"
    write_proc(tmp_path, "self", "smaps_rollup", text)
    said = pages.of_private(root)
    assert said.startswith("in huge pages: 6 of 8 MiB of the memory of this process")
    assert remedy in said
    assert ("for more" in said) == bool(remedy)


@pytest.mark.parametrize("way", [{"multiprocessing_context": "forkserver"}, {"multiprocessing_context": "fork"},
                                 {"worker_method": "thread"}, {}], ids=str)  # fmt: skip
def test_explain_tells_where_the_graph_of_workers_lies(way):
    graph = dp.CSCGraph(torch.arange(101) * (LARGE // 400), numbers(LARGE // 400 * 100) % 100)
    pipe = dp.ItemSampler(dp.ItemSet(100), batch_size=50).sample_neighbor(graph, [2])
    with dp.DataLoader(pipe, num_workers=1 if way else 0, **way) as loader:
        before = loader.explain()
        list(loader)
        after = loader.explain()
    told = [[line for line in text.splitlines() if "in huge pages: " in line] for text in (before, after)]
    assert list(map(len, told)) == [int(bool(way))] * 2
    if way == {"multiprocessing_context": "forkserver"}:
        assert "shared memory" in told[0][0]
        assert re.search(r"\d+ of \d+ MiB of shared memory", told[1][0])
    elif way:
        assert all("MiB of the memory of this process, which they read as it is" in lines[0] for lines in told)
