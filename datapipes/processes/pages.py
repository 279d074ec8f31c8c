"""Pages: how much of the memory that workers read lies in huge pages, and how to get more of them.

Sampling and gathers read at random addresses. With pages of 4 KiB, nearly every read misses the TLB as well as the
cache. The sizes come from /proc/PID/smaps, which counts only pages that the process has touched. If several processes
map a memory, the numbers of the process with the most bytes are reported.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from datapipes.processes.mappings import LARGE, File, Mapped

_TITLE = "in huge pages: "
_ENOUGH = 0.9  # share of the bytes; the end of a memory may not fill a huge page
_HUGE = 2**21
_COLLAPSE = 25  # MADV_COLLAPSE, Linux 6.1
_SETTINGS = "sys/kernel/mm/transparent_hugepage"
_RESERVED = "sys/kernel/mm/hugepages/hugepages-2048kB"
_RESERVED_PAGES = ("Shared_Hugetlb:", "Private_Hugetlb:")  # Rss does not count them
_HUGE_PAGES = ("AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:", *_RESERVED_PAGES)


class Held(NamedTuple):
    """How many bytes of some memory are in RAM, and how many of these bytes lie in huge pages."""

    num_bytes: int = 0
    huge: int = 0

    def __str__(self) -> str:
        return f"{self.huge / 2**20:.0f} of {self.num_bytes / 2**20:.0f} MiB"

    @property
    def is_enough(self) -> bool:
        """Whether no advice is needed: nearly all bytes are in huge pages, or there are few bytes."""
        return self.num_bytes < LARGE or self.huge >= _ENOUGH * self.num_bytes


def of_shared(memories: Sequence[Mapped], files: Iterable[File], processes: Iterable[int], root: str = "/") -> str:
    """Return a sentence on how much of the memory that worker processes share lies in huge pages, with advice for more.

    Args:
        memories, files: the shared memories and mapped files.
        processes: the pids of the processes that map them.
        root: the folder that contains proc and sys.
    """
    maps = [_held_by_inode(Path(root, "proc", str(process), "smaps")) for process in processes]

    def held_in(inodes: set[int]) -> Held:
        most = [max((held.get(inode, Held()) for held in maps), default=Held()) for inode in inodes]
        return Held(sum(held.num_bytes for held in most), sum(held.huge for held in most))

    parts = []
    if in_memory := {os.fstat(memory.descriptor).st_ino for memory in memories if len(memory) >= LARGE}:
        held = held_in(in_memory)
        parts.append(f"{held} of shared memory" + ("" if held.is_enough else f" ({_more(held, root)})"))
    if in_files := {file.identity[1] for file in files}:
        held = held_in(in_files)
        remedy = "" if held.is_enough else " (for more: open them with mmap=False)"
        parts.append(f"{held} of mapped files{remedy}")
    return _TITLE + (", ".join(parts) or "nothing, since nothing large is shared")


def of_private(root: str = "/") -> str:
    """Return a sentence on how much of this process's own memory lies in huge pages.

    Threads and forked workers read it.
    """
    counts = re.findall(
        r"^(Anonymous|AnonHugePages): +(\d+)", _read(Path(root, "proc/self/smaps_rollup")), re.MULTILINE
    )
    kib = {"Anonymous": 0, "AnonHugePages": 0} | {name: int(count) for name, count in counts}
    held = Held(1024 * kib["Anonymous"], 1024 * kib["AnonHugePages"])
    is_off = _setting("enabled", root) == "never"
    remedy = f" (for more: echo madvise > /{_SETTINGS}/enabled)" if is_off else ""
    return f"{_TITLE}{held} of the memory of this process, which they read as it is{remedy}"


def of_coming(root: str = "/") -> str:
    """Return a sentence on whether shared memory will get huge pages, before it is made."""
    if free := _free(root):
        return f"{_TITLE}shared memory, once it is made; {free / 2**20:.0f} MiB of reserved pages are free"
    if _can_collapse() or _setting("shmem_enabled", root) not in ("", "never", "deny"):
        return f"{_TITLE}shared memory, once it is made"
    return f"{_TITLE}no shared memory ({_more(Held(), root)})"


def _more(held: Held, root: str) -> str:
    """Return a clause of advice: how to get (more) huge pages for shared memory that is now as `held` says."""
    pages = -(-held.num_bytes // _HUGE) or "N"
    ways = [f"sysctl vm.nr_hugepages={pages} before the program starts"]
    if (setting := _setting("shmem_enabled", root)) in ("never", "deny"):
        ways.append(f"echo advise > /{_SETTINGS}/shmem_enabled, which is {setting}")
    return "for more: " + ", or ".join(ways)


def _held_by_inode(smaps: Path) -> dict[int, Held]:
    """Return {inode: Held} of the files and shared memories that one process maps; `smaps` is its file in /proc.

    {}: the file cannot be read.
    """
    by_inode: dict[int, Held] = {}
    inode = 0
    try:
        with smaps.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                words = line.split(maxsplit=5)
                if len(words) >= 5 and "-" in words[0]:
                    inode = int(words[4])
                elif words[0] in ("Rss:", *_HUGE_PAGES):
                    held, num_bytes = by_inode.get(inode, Held()), 1024 * int(words[1])
                    counts = words[0] in ("Rss:", *_RESERVED_PAGES), words[0] in _HUGE_PAGES
                    by_inode[inode] = Held(held.num_bytes + counts[0] * num_bytes, held.huge + counts[1] * num_bytes)
    except OSError:
        return {}
    return by_inode


def _setting(name: str, root: str) -> str:
    """Return the value of a kernel setting on huge pages: of the values in its file, the one in brackets.

    "": there is no file.
    """
    chosen = re.search(r"\[(\w+)\]", _read(Path(root, _SETTINGS, name)))
    return chosen[1] if chosen else ""


def _free(root: str) -> int:
    """Return how many bytes of huge pages are reserved by the administrator and still free."""
    free, promised = (int(_read(Path(root, _RESERVED, f"{name}_hugepages")) or 0) for name in ("free", "resv"))
    return max(free - promised, 0) * _HUGE


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


def _can_collapse() -> bool:
    """Return whether this kernel has MADV_COLLAPSE, which moves memory into huge pages whatever the settings are."""
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        try:
            memory.madvise(_COLLAPSE, 0, 0)  # of 0 bytes: tells only whether the kernel knows the advice
        except OSError:
            return False
    return True
