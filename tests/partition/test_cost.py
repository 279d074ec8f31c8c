"""What a run costs: seconds by step, and private memory."""

import mmap

import numpy as np

from datapipes.partition.partition_report import Cost, private_bytes


def test_steps_add_up_and_memory_is_seen():
    with Cost() as cost:
        for name in ("read", "write", "read"):
            with cost.step(name):
                pass
    assert list(cost.seconds) == ["read", "write"]
    assert all(seconds > 0 for seconds in cost.seconds.values())


def test_memory_is_that_of_the_step():
    with Cost() as cost:
        with cost.step("small"):
            pass
        with cost.step("large"):
            held = np.frombuffer(mmap.mmap(-1, 2**26), np.uint8)  # malloc may give what the process held already
            held[:] = 1
    assert cost.memory_bytes["small"] < 2**26 <= cost.memory_bytes["large"] < 2**27
    assert held[0] == 1


def test_mapped_files_are_not_counted(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(2**26))
    before = private_bytes()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[::4096]) == 0
        assert private_bytes() - before < 2**23
