"""The process in which METIS runs: a script for `metis_parts.py`, with NumPy and pymetis only.

pymetis never lets go of the GIL, so METIS could not be interrupted in the caller's process. Standard input brings the
request as JSON; if it is empty, the caller has given up, and this process ends. The graph and the answer are in shared
memory, whose descriptor the request names. The caller reads what METIS and Python print. When the thread that started
this process ends, the kernel kills the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import signal
import sys
from pathlib import Path
from typing import Any

HEADER_BYTES = 64  # at the beginning of the memory, as int64: 1 if there is an answer; the peak of memory in bytes
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Read the request from standard input, run METIS, and write the answer to the memory that the request names."""
    text = sys.stdin.read()
    if not text:
        return
    request = json.loads(text)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != request["parent"]:  # the caller ended before the call above
        return
    with contextlib.suppress(OSError):  # if memory runs out, kill this process, not the caller
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    sys.path[:] = request["path"]
    run(request)


def run(request: dict[str, Any]) -> None:
    """Run METIS, and write the part of each node to the shared memory, with a header that says that it is there.

    `request` says where in the memory the parts go, and in which dtype.
    """
    import numpy as np
    import pymetis

    memory = mmap.mmap(request["memory"], 0)
    num_nodes, index = request["num_nodes"], np.dtype(request["index"])
    header: Any = np.ndarray(HEADER_BYTES // 8, np.int64, memory)
    xadj: Any = np.ndarray(num_nodes + 1, index, memory, HEADER_BYTES)
    weights: Any = np.ndarray(num_nodes, index, memory, request["weights_at"]) if request["weighted"] else None
    adjncy: Any = np.ndarray(request["entries"], index, memory, request["neighbors_at"])
    _, parts = pymetis.part_graph(
        request["num_parts"],
        pymetis.CSRAdjacency(xadj, adjncy),
        vweights=weights,
        recursive=request["recursive"],
        options=pymetis.Options(seed=request["seed"]),
        warn_on_copies=True,
    )
    np.ndarray(num_nodes, request["dtype"], memory, request["parts_at"])[:] = parts
    header[:2] = 1, peak_bytes()


def peak_bytes() -> int:
    """Return the peak of this process's private memory in bytes.

    Libraries and memory shared with the caller are left out.

    getrusage would count the caller's memory before exec.
    """
    lines = [line.split() for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines()]
    kib = {words[0]: int(words[1]) for words in lines if words[0] in ("VmHWM:", "RssFile:", "RssShmem:")}
    return 1024 * (kib["VmHWM:"] - kib["RssFile:"] - kib["RssShmem:"])


if __name__ == "__main__":
    main()
