"""The pool behind the outputs: memory of a minibatch is reused by the next one, but never while a tensor needs it."""

import gc

import numpy as np
from scripts import run_script

from datapipes import _core

TABLE = np.arange(64 * 50_000, dtype=np.uint8).reshape(50_000, 64)
IDS = np.arange(40_000)


def test_an_output_that_is_let_go_is_used_again():
    _core.pool_trim()
    first = _core.gather_rows(TABLE, IDS)
    address = first.ctypes.data
    del first
    before = _core.pool_stats()
    second = _core.gather_rows(TABLE, IDS[:-10])
    after = _core.pool_stats()
    assert second.ctypes.data == address
    assert after["reused"] == before["reused"] + 1
    assert after["fresh"] == before["fresh"]
    assert after["in_use_bytes"] == before["in_use_bytes"] + before["idle_bytes"] - after["idle_bytes"]


def test_an_output_that_is_held_by_a_view_stays_as_it_is():
    view = _core.gather_rows(TABLE, IDS)[100:200]
    gc.collect()
    others = [_core.gather_rows(TABLE, IDS[::-1].copy()) for _ in range(3)]
    assert np.array_equal(view, TABLE[100:200])
    assert not any(np.shares_memory(view, other) for other in others)


def test_idle_memory_can_be_returned_to_the_system():
    _core.gather_rows(TABLE, IDS)
    assert _core.pool_stats()["idle_bytes"] > 0
    _core.pool_trim()
    assert _core.pool_stats()["idle_bytes"] == 0


CHILD = """
import numpy as np
from datapipes import _core
table, ids = np.zeros((50_000, 64), dtype=np.uint8), np.arange(40_000)
for count in range(10_000, 40_000, 3_000):
    held = [_core.gather_rows(table, ids[:count]) for _ in range(3)]
    del held
    stats = _core.pool_stats()
    most = 3 * max(64 * count * 9 // 8, 64 * count + 2**21)  # sizes are rounded by eighths, from 2 MiB on by huge pages
    assert 0 < stats["idle_bytes"] <= stats["peak_bytes"] <= most, stats
"""


def test_idle_memory_stays_below_what_was_in_use():
    child = run_script(CHILD)
    assert child.returncode == 0, child.stderr
