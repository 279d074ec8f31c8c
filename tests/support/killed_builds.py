"""Builds of graphs that a SIGKILL ends, and what they leave."""

import os
import re
import signal
from multiprocessing import get_context

from datapipes.ingest import build


def files_of(folder):
    """Return the content of each file; graph.json without the name of the files that a build has read."""
    files = {each.name: each.read_bytes() for each in sorted(folder.iterdir())}
    return {**files, "graph.json": re.sub(rb', "built_of": "[0-9a-f]{32}"', b"", files["graph.json"])}


def kill_a_build(work, times, of=build._State, name="save"):
    """Do `work`, and be killed when a method has ended so many times: by default a note of what is written."""
    process = get_context("fork").Process(target=_killed, args=(work, times, of, name))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def _killed(work, times, of, name):
    call, left = getattr(of, name), iter(range(times - 1))

    def killed(self, *arguments):
        call(self, *arguments)
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(of, name, killed)
    work()
