"""Clones: a copy of a process that comes back to the package ends, and says why."""

import os

from datapipes.processes.child import end_if_clone


def test_a_clone_ends_and_says_why(capfd):
    here = os.getpid()
    end_if_clone(here)
    pid = os.fork()
    if pid == 0:
        try:
            end_if_clone(here)
        finally:
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    told = capfd.readouterr().err
    assert f"called os.fork() in process {here}" in told
    assert f"process {pid}, ends here. End it by os._exit()" in told
