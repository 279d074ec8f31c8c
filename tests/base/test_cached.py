"""cached_property: computed once, kept, and no lock that a forked process could inherit."""

import os
import threading

from pipelines import BOUND_S

from datapipes.base.cached import cached_property


class Slow:
    """Computes a value when it is told to go on."""

    def __init__(self) -> None:
        self.began, self.goes_on, self.count = threading.Event(), threading.Event(), 0

    @cached_property
    def value(self) -> int:
        """The value."""
        self.count += 1
        self.began.set()
        assert self.goes_on.wait(BOUND_S)
        return 7


def test_a_value_is_computed_once_and_kept():
    one, other = Slow(), Slow()
    one.goes_on.set()
    assert (one.value, one.value, one.count) == (7, 7, 1)
    assert other.count == 0
    assert Slow.value.__doc__ == "The value."


def test_a_process_that_is_forked_during_a_computation_computes_for_itself():
    busy, other = Slow(), Slow()
    other.goes_on.set()
    thread = threading.Thread(target=lambda: busy.value)
    thread.start()
    assert busy.began.wait(BOUND_S)
    child = os.fork()
    if child == 0:
        os._exit(other.value)  # functools' lock would be held by a thread that is not here
    busy.goes_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
