"""Connections: what the threads hear that wait while one of them connects."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from datapipes.base.errors import add_note
from datapipes.distributed.client.connection import Connections
from datapipes.distributed.wire.refusals import OtherPartition

WAIT_S = 60.0  # for what comes at once, on a busy machine


def test_each_thread_that_waited_gets_an_error_of_its_own():
    let_go = threading.Event()

    def connect(timeout: float):
        assert let_go.wait(timeout)
        raise OtherPartition("the server has other data") from KeyError("why")

    connections = Connections(connect, 4)
    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(connections.take, WAIT_S) for _ in range(3)]
        ends = time.monotonic() + WAIT_S
        while connections._waiting < 2 and time.monotonic() < ends:
            time.sleep(0)
        let_go.set()
        errors = [each.exception(WAIT_S) for each in asked]
    assert [(type(each), str(each)) for each in errors] == [(OtherPartition, "the server has other data")] * 3
    assert all(isinstance(each.__cause__, KeyError) for each in errors)
    for number, each in enumerate(errors):
        add_note(each, f"in minibatch {number}")
    assert [getattr(each, "__notes__", [f"in minibatch {number}"]) for number, each in enumerate(errors)] == [
        [f"in minibatch {number}"] for number in range(3)
    ]
