"""Ranks that die, stop, do not come, or come twice: the others raise within the bound, naming them; nothing is left."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import torch
from pyg_ranks import BOUND_S, answers, context_of, cut, free_port, in_ranks, plain_data, stores
from rank_group import RankGroup

from datapipes.base.errors import ServerUnavailable
from datapipes.processes.ranks import RankError
from datapipes.pyg.distributed import DistNeighborLoader, meeting
from datapipes.pyg.distributed.meeting import end_all

SHORT_S = 1  # for what nobody answers
GONE_S = 6  # for requests that are answered before


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    cut(folder / "parts", plain_data(9), 2)
    return folder / "parts"


def loader_of(rank, size, root, port, timeout_s=SHORT_S, group="test", **given):
    given = {"input_nodes": torch.arange(40), "batch_size": 5, **given}
    context = context_of(rank, size, group)
    return DistNeighborLoader(stores(root, rank), [-1], "127.0.0.1", port, context, rpc_timeout=timeout_s, **given)


# --- in processes


def begin(pipe, root, port, rank, timeout_s):
    """Load two batches, tell, and load on when told."""
    loader = loader_of(rank, 2, root, port, timeout_s, async_sampling=False)
    stream = iter(loader)
    next(stream), next(stream)
    pipe.send("began")
    pipe.recv()
    try:
        for _ in stream:
            pass
    except ServerUnavailable as error:
        began = time.monotonic()
        end_all()
        return f"{error} {' '.join(error.__notes__)}", time.monotonic() - began
    return "not a word", 0.0


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.full)])
def test_a_rank_that_is_gone_is_named_within_the_bound(root, how):
    bound_s = GONE_S if how == signal.SIGSTOP else 10 * BOUND_S  # nobody waits for one that was killed
    with RankGroup(2, own_store=False) as group:
        port = free_port()
        for rank in (0, 1):
            group.order([rank], begin, root, port, rank, bound_s)
        assert [group.answer(rank) for rank in (0, 1)] == ["began"] * 2
        os.kill(group.processes[1].pid, how)
        if how == signal.SIGKILL:
            group.processes[1].join(BOUND_S)
        group.tell(0, "go on")
        began = time.monotonic()
        text, exit_s = group.answer(0)
        assert "datapipes serve" not in text
        assert time.monotonic() - began < 4 * GONE_S
        assert exit_s < 3 * GONE_S
        assert "part 1 at 127.0.0.1" in text
        assert "part 1 is rank 1's, in the group 'test of 2'" in text
        group.kill(1)


SCRIPT = """
import sys, warnings
warnings.simplefilter("ignore")
import torch
torch.set_num_threads(1)
sys.path[:0] = [{support!r}]
from pyg_ranks import context_of, stores
from datapipes.pyg.distributed import DistNeighborLoader

if __name__ == "__main__":
    rank, root, port = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    nodes = torch.arange(10 if rank == 0 else 30)
    given = {{"batch_size": 5, "rpc_timeout": 30}}
    first, loader = (
        DistNeighborLoader(stores(root, rank), [2, 2], "127.0.0.1", port, context_of(rank, 2), nodes, **given)
        for _ in range(2)
    )
    print(len([*loader]), flush=True)
    if len(sys.argv) > 4:
        raise RuntimeError("an error of the script")
"""


@pytest.mark.full
def test_scripts_that_close_nothing_end_by_themselves_and_leave_no_port(root, tmp_path):
    program, port = tmp_path / "script.py", free_port()
    program.write_text(SCRIPT.format(support=os.path.dirname(sys.modules["pyg_ranks"].__file__)))
    command = [sys.executable, str(program)]
    ranks = [subprocess.Popen([*command, str(rank), str(root), str(port)], stdout=subprocess.PIPE) for rank in (0, 1)]
    assert [rank.communicate(timeout=BOUND_S)[0] for rank in ranks] == [b"2\n", b"6\n"]
    assert [rank.returncode for rank in ranks] == [0, 0]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)
    failing = [
        subprocess.Popen([*command, str(rank), str(root), str(port), "fail"], stderr=subprocess.PIPE) for rank in (0, 1)
    ]
    began = time.monotonic()
    told = [rank.communicate(timeout=BOUND_S)[1] for rank in failing]
    assert [rank.returncode for rank in failing] == [1, 1]
    assert any(b"an error of the script" in text for text in told)  # the first to fail may take the other with it
    assert time.monotonic() - began < 25  # no rank waits 30 s for another


# --- in threads


def test_a_rank_that_never_comes_is_named(root):
    port = free_port()
    with pytest.raises(RankError, match=f"it did not come for {SHORT_S} s") as raised:
        loader_of(0, 2, root, port)
    assert [*raised.value.failed_ranks] == [1]
    with pytest.raises(RankError, match="nothing listens at") as raised:
        loader_of(1, 2, root, free_port())
    assert [*raised.value.failed_ranks] == [0]


@pytest.mark.parametrize("is_late", [pytest.param(True, marks=pytest.mark.full), False])
def test_after_a_try_that_failed_on_one_rank_they_meet(root, is_late):
    """A cell of a notebook is run again: rank 1 had mistyped an argument, and comes while rank 0 waits, or later."""
    rank_0_has_failed = threading.Event()

    def work(rank, size, port):
        if rank == 1:
            with pytest.raises(ValueError, match="concurrency"):
                loader_of(rank, size, root, port, concurrency=0)
            assert not is_late or rank_0_has_failed.wait(BOUND_S)
        elif is_late:
            with pytest.raises(RankError, match="rank 1: it did not come"):
                loader_of(rank, size, root, port)
            rank_0_has_failed.set()
        found = []
        for _ in range(2):
            loader = loader_of(rank, size, root, port, GONE_S)
            found.append(len([*loader]))
            loader.close()
        return found

    assert answers(in_ranks(2, work, free_port())) == [[8, 8]] * 2


def test_a_host_that_nobody_knows_is_refused(root):
    for rank in (0, 1):
        with pytest.raises(ValueError, match="no machine of this name is known"):
            DistNeighborLoader(stores(root, rank), [1], "no.such.host.invalid", 1, context_of(rank, 2), rpc_timeout=0.1)


@pytest.mark.full
def test_a_second_job_on_one_port_is_refused_and_the_first_goes_on(root):
    port, both, second_has_failed = free_port(), threading.Barrier(3), threading.Event()

    def first(rank, size):
        loader = loader_of(rank, size, root, port, 20)
        both.wait(BOUND_S)
        assert second_has_failed.wait(BOUND_S)
        found = len([*loader])
        loader.close()
        return found

    found = []

    def second():
        both.wait(BOUND_S)
        command = f"""
import sys, warnings
warnings.simplefilter("ignore")
sys.path[:0] = [{os.path.dirname(sys.modules["pyg_ranks"].__file__)!r}]
from pyg_ranks import context_of, stores
from datapipes.pyg.distributed import DistNeighborLoader
DistNeighborLoader(stores({str(root)!r}, 0), [1], "127.0.0.1", {port}, context_of(0, 2), [1], rpc_timeout=5)
"""
        try:
            found.append(subprocess.run([sys.executable, "-c", command], capture_output=True, timeout=BOUND_S))
        finally:
            second_has_failed.set()

    other = threading.Thread(target=second)
    other.start()
    assert answers(in_ranks(2, first)) == [8, 8]
    other.join(BOUND_S)
    assert found[0].returncode == 1
    assert b"another process is rank 0 of the group 'test of 2'" in found[0].stderr
    assert b"another job uses this port" in found[0].stderr


def test_a_port_of_a_stranger_is_refused(root):
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        for rank in (0, 1):
            with pytest.raises(ValueError, match="no store of torch answers"):
                loader_of(rank, 2, root, port, 0.2)


TORCH_TRIES = 1.75  # times its timeout, at most: its last pause is half as long as what went before, and a half more


def test_torch_is_asked_to_connect_for_less_time_than_the_bound(root, monkeypatch):
    """A thread that returns from torch after its rank has raised, while Python ends, aborts the process."""
    bounds, timeouts = [], []

    def store(*_, timeout, **__):
        timeouts.append(timeout.total_seconds())
        raise RuntimeError("no store")

    bounded = meeting._bounded
    monkeypatch.setattr(meeting, "_bounded", lambda call, bound: bounds.append(bound) or bounded(call, bound))
    monkeypatch.setattr(meeting._c10d, "TCPStore", store)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        for timeout_s in (0.2, 5, 180):
            with pytest.raises(ValueError, match="no store of torch answers"):
                loader_of(1, 2, root, stranger.getsockname()[1], timeout_s)
    assert len(timeouts) == 3
    assert all(TORCH_TRIES * asked < bound for asked, bound in zip(timeouts, bounds, strict=True))


@pytest.mark.full
def test_processes_that_meet_a_stranger_end_with_the_error(root, tmp_path):
    program = tmp_path / "script.py"
    program.write_text(SCRIPT.format(support=os.path.dirname(sys.modules["pyg_ranks"].__file__)).replace("30}", "3}"))
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        threading.Thread(target=closes_all, args=(stranger,), daemon=True).start()
        command = [sys.executable, str(program)]
        ranks = [
            subprocess.Popen([*command, str(rank), str(root), str(stranger.getsockname()[1])], stderr=subprocess.PIPE)
            for rank in (0, 1)
        ]
        texts = [rank.communicate(timeout=BOUND_S)[1] for rank in ranks]
    assert all(b"no store of torch answers" in text for text in texts)
    assert [rank.returncode for rank in ranks] == [1, 1]


def closes_all(listens):
    with contextlib.suppress(OSError):
        while True:
            listens.accept()[0].close()


def test_a_store_that_is_there_already_is_shared(root):
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def work(rank, size):
        loader = loader_of(rank, size, root, store.port, 20)
        found = len([*loader])
        loader.close()
        return found

    assert answers(in_ranks(2, work)) == [8, 8]


def test_other_machines_need_certificates_or_leave(root, monkeypatch):
    from datapipes.distributed.addresses import Address

    monkeypatch.setattr(meeting, "_own_host", lambda place: "10.0.0.1")
    found = in_ranks(2, lambda rank, size, port: loader_of(rank, size, root, port, 10), free_port())
    assert any("there is no TLS" in str(each) for each in found)
    assert all(isinstance(each, ValueError) for each in found)
    place = meeting.place_of("here", "10.0.0.1", 1, timeout=1, num_threads=1, tls=None, insecure=False)
    assert (place.tls, place.insecure) == (None, False)
    monkeypatch.setenv("DATAPIPES_INSECURE", "1")
    place = meeting.place_of("here", "10.0.0.1", 1, timeout=1, num_threads=1, tls=None, insecure=False)
    assert place.insecure
    monkeypatch.setenv("DATAPIPES_TLS_CERT", "CERT.pem")
    with pytest.raises(ValueError, match="DATAPIPES_TLS_KEY is not set"):
        meeting.place_of("here", "10.0.0.1", 1, timeout=1, num_threads=1, tls=None, insecure=False)
    for name in ("CERT", "KEY", "CA"):
        monkeypatch.setenv(f"DATAPIPES_TLS_{name}", f"{name}.pem")
    place = meeting.place_of("here", "10.0.0.1", "1", timeout=1, num_threads=1, tls=None, insecure=False)
    assert (place.tls.cert, place.tls.key, place.tls.ca, place.insecure) == ("CERT.pem", "KEY.pem", "CA.pem", False)
    assert Address(place.host, place.port) == ("10.0.0.1", 1)
