"""What must not be forked: it refuses workers by fork while it exists, and children may not use it, but end."""

import gc

import pytest
from scripts import run_script

from datapipes.processes import unforkable
from datapipes.processes.start import context_of, refuse_unsafe_fork
from datapipes.processes.unforkable import Unforkable, must_not_be_forked, refuse_if_inherited


class Thing:
    """What a library with threads makes."""


KIND = Unforkable("has a thing", "give it back before")


@pytest.fixture(autouse=True)
def no_things(monkeypatch):
    monkeypatch.setattr(unforkable, "_names", {"another"})  # so that the hook of these tests does not stay
    monkeypatch.setattr(unforkable, "_things", type(unforkable._things)())


def test_a_fork_for_workers_is_refused_as_long_as_the_thing_exists(refuses):
    refuse_unsafe_fork(context_of("fork"))
    thing = Thing()
    must_not_be_forked(thing, "things", KIND)
    refuses(RuntimeError, refuse_unsafe_fork, context_of("fork"))
    refuse_unsafe_fork(context_of("forkserver"))
    refuse_unsafe_fork(context_of("spawn"))
    del thing
    gc.collect()
    refuse_unsafe_fork(context_of("fork"))
    refuse_if_inherited("here", "things", "a thing was used")


CHILD = """
import ctypes, os
from datapipes.processes.unforkable import Unforkable, must_not_be_forked, refuse_if_inherited

class Thing:
    def __del__(self):
        os.write(1, f"destroyed in {'child' if os.getpid() != parent else 'parent'}\\n".encode())

parent = os.getpid()
BEFORE
child = os.fork()
if child == 0:
    thing = None
    try:
        refuse_if_inherited("here", "things", "a thing was used")
        os.write(1, b"not refused\\n")
    except RuntimeError as error:
        assert f"here: a thing was used in process {parent}, from which this one, {os.getpid()}, was" in str(error)
        os.write(1, b"refused\\n")
    ctypes.pythonapi.Py_Exit(0)  # ends as a script does, not as a child of multiprocessing
os.waitpid(child, 0)
refuse_if_inherited("here", "things", "a thing was used")
"""


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("thing = Thing(); must_not_be_forked(thing, 'things', Unforkable('', ''))", "refused\n"),
        ("thing = Thing(); must_not_be_forked(thing, 'things', Unforkable('', '')); del thing", "refused\n"),
        ("thing = Thing()", "destroyed in child\nnot refused\n"),
    ],
    ids=["it exists", "it existed", "it is of no kind"],
)
def test_a_forked_child_may_not_use_the_thing_and_never_destroys_it(before, expected):
    script = CHILD.replace("BEFORE", before)
    ended = run_script(script)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.replace("destroyed in parent\n", "") == expected
