"""Starting processes: what they need is looked at before."""

import errno
import os
import resource

import pytest

from datapipes.processes.start import DESCRIPTORS, require_descriptors


def test_too_few_descriptors_are_told_with_their_number_and_the_limit():
    before = sorted(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)  # the lowest number that is free
    os.close(free)
    require_descriptors("here")
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 2, hard))
        with pytest.raises(
            OSError, match=rf"here: it needs {DESCRIPTORS} file descriptors, and \d+ are left"
        ) as caught:
            require_descriptors("here")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.errno == errno.EMFILE
    assert f"may open {free + 2}" in str(caught.value)
    assert "ulimit -n" in str(caught.value)
    assert sorted(os.listdir("/proc/self/fd")) == before
