"""Starting processes: what they need is looked at before."""

import errno
import resource

import pytest
from channels import descriptors_from_now, limited, lowest_free_descriptor

from datapipes.processes.start import DESCRIPTORS, require_descriptors


def test_too_few_descriptors_are_told_with_their_number_and_the_limit():
    opened = descriptors_from_now()
    free = lowest_free_descriptor()
    require_descriptors("here")
    text = rf"here: it needs {DESCRIPTORS} file descriptors, and \d+ are left"
    with limited(resource.RLIMIT_NOFILE, free + 2), pytest.raises(OSError, match=text) as caught:
        require_descriptors("here")
    assert caught.value.errno == errno.EMFILE
    assert f"may open {free + 2}" in str(caught.value)
    assert "ulimit -n" in str(caught.value)
    assert opened() == 0
