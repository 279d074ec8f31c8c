"""ShmChannel among processes: every way to start one, deaths at any moment, interrupts, exits, shortage.

W5, W7, W12 and W14 are defects known from another system's queue in shared memory.
"""

import gc
import multiprocessing
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
from contextlib import contextmanager, suppress

import channels
import pytest
import torch
from amounts import amount, ranked
from channels import BOUND_S, HEAD, Child, attached_again, in_thread, number_of, numbered
from pipelines import fetched, refused

import datapipes as dp
from datapipes import _core

KIB = 1024
METHODS = ["fork", "forkserver", "spawn"]

# From Python 3.12 on a fork of a process with threads warns; the children here set the number of threads first.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def died(channel: dp.ShmChannel) -> dp.PeerDied:
    """The PeerDied that a receiver gets after all messages."""
    with pytest.raises(dp.PeerDied) as caught:
        channel.recv(timeout=BOUND_S)
    return caught.value


# --- starting processes


@pytest.mark.parametrize("method", ranked(METHODS, 2))
def test_minibatches_go_to_another_process_and_back(method):
    with (
        dp.ShmChannel(4, "1MB") as requests,
        dp.ShmChannel(4, "1MB") as answers,
        Child(channels.echo, requests, answers, method=method) as child,
    ):
        for minibatch in fetched():
            requests.send(minibatch.to_message(), BOUND_S)
            got = dp.MiniBatch.from_message(answers.recv(BOUND_S))
            assert got.digest() == minibatch.digest()
        requests.close()
        assert child.result() == 6


@pytest.mark.parametrize("method", ranked(["fork", "spawn"], 1))
def test_a_channel_passes_through_a_queue(method):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    with (
        dp.ShmChannel(4, "64KB") as requests,
        dp.ShmChannel(4, "64KB") as answers,
        Child(channels.echo_from_queue, queue, method=method) as child,
    ):
        queue.put((requests, answers))
        requests.send(numbered(7), BOUND_S)
        assert number_of(answers.recv(BOUND_S)) == 7
        requests.close()
        assert child.result() == 1
    queue.close()
    queue.join_thread()


@pytest.mark.parametrize(("method", "then"), ranked([("fork", "fork"), ("fork", "spawn"), ("spawn", "forkserver")], 1))
def test_a_child_passes_the_channel_on_to_its_own_child(method, then):
    with (
        dp.ShmChannel(4, "64KB") as requests,
        dp.ShmChannel(4, "64KB") as answers,
        Child(channels.echo_in_a_child, requests, answers, then, method=method) as child,
    ):
        for number in range(3):
            requests.send(numbered(number), BOUND_S)
            assert number_of(answers.recv(BOUND_S)) == number
        requests.close()
        assert child.result() == 3


def test_a_raw_fork_can_use_the_channel_of_its_parent():
    with dp.ShmChannel(4, "64KB") as channel:
        pid = os.fork()
        if pid == 0:
            with suppress(BaseException):
                torch.set_num_threads(1)
                channel.send(numbered(7), BOUND_S)
            os._exit(3)
        assert number_of(channel.recv(BOUND_S)) == 7
        assert f"Process {pid}: it exited with code 3" in "".join(died(channel).__notes__)
        assert os.waitpid(pid, 0)[1] >> 8 == 3


def test_messages_of_several_processes_arrive_once_and_each_ones_in_order():
    count = 200
    with dp.ShmChannel(8, "16KB") as channel:
        senders = [Child(channels.send_numbers, channel, sender, count) for sender in range(3)]
        try:
            got = []
            for _ in range(3 * count):
                message = channel.recv(BOUND_S)
                got.append((int(message["sender"]), int(message["number"])))
        finally:
            for sender in senders:
                sender.kill()
        assert sorted(got) == [(sender, number) for sender in range(3) for number in range(count)]
        for sender in range(3):
            assert [number for of, number in got if of == sender] == list(range(count))


def test_a_forked_copy_says_that_its_parent_closed():
    def use(reader, writer):
        os.close(writer)
        os.read(reader, 1)  # until the parent has closed
        for call in (lambda: channel.send(numbered(1), 0), channel.recv, channel.end_epoch, channel.reset):
            with pytest.raises(dp.ChannelClosed, match=r"ShmChannel.* closed by its maker"):
                call()
        return channel.stats()["messages"]

    reader, writer = os.pipe()
    channel = dp.ShmChannel(4, "64KB")
    with Child(use, reader, writer) as child:
        os.close(reader)
        channel.close()
        os.close(writer)
        assert child.result() == 0


def test_closing_in_a_child_does_not_close_the_channel():
    def use():
        channel.send(numbered(1), BOUND_S)
        channel.close()

    with dp.ShmChannel(4, "64KB") as channel, Child(use) as child:
        child.result()
        assert number_of(channel.recv(BOUND_S)) == 1
        channel.send(numbered(2), timeout=0)
        assert number_of(channel.recv(timeout=0)) == 2


def test_a_child_that_drops_what_its_parent_received_frees_nothing():
    def drop():
        assert number_of(kept[0]) == 7
        kept.clear()
        gc.collect()

    with dp.ShmChannel(4, 4 * KIB) as channel:
        channel.send(numbered(7, KIB), timeout=0)
        kept = [channel.recv(timeout=0)]
        with Child(drop) as child:
            child.result()
        for number in range(20):
            channel.send(numbered(number, KIB), timeout=0)
            channel.recv(timeout=0)
        assert number_of(kept[0]) == 7
        assert channel.stats()["held"] == 1


# --- deaths


def test_a_sender_killed_at_any_moment_is_named_and_the_others_go_on():  # W5
    rng, rounds = random.Random(5), amount(25, 6)
    with (
        dp.ShmChannel(4, "16KB") as channel,
        dp.ShmChannel(4, "64KB") as requests,
        Child(channels.echo, requests, channel) as other,
    ):
        for round_ in range(rounds):
            with Child(channels.send_until_closed, channel, rng.choice((64, 4 * KIB))) as victim:
                for _ in range(1 + rng.randrange(20)):
                    assert int(channel.recv(BOUND_S)["pid"]) == victim.pid
                os.kill(victim.pid, signal.SIGKILL)
                told = None
                while told is None:
                    try:
                        number_of(channel.recv(BOUND_S))  # received messages are whole
                    except dp.PeerDied as error:
                        told = error
                assert told.pids == (victim.pid,)
                assert f"process {victim.pid}" in str(told)
                assert "killed by SIGKILL" in "".join(told.__notes__)
            requests.send(numbered(round_), BOUND_S)
            assert number_of(channel.recv(BOUND_S)) == round_
        assert channel.stats()["deaths"] == rounds
        requests.close()
        assert other.result() == rounds


def test_a_sender_killed_while_it_waits_for_room_leaves_the_room():  # W5
    with dp.ShmChannel(2, "64KB") as channel:
        for _ in range(5):
            with Child(channels.send_until_closed, channel, 20 * KIB) as victim:
                while len(channel) < 2:  # two messages fill the channel
                    pass
                victim.kill()
                for number in range(2):
                    assert number_of(channel.recv(BOUND_S)) == number
                assert died(channel).pids == (victim.pid,)
            channel.send(numbered(9, 64 * KIB - HEAD), BOUND_S)
            assert number_of(channel.recv(timeout=0)) == 9


def test_what_a_killed_receiver_held_is_free_again():
    def hold():
        kept.append(channel.recv(BOUND_S))
        ready.send({}, BOUND_S)
        signal.pause()

    kept = []
    with dp.ShmChannel(4, 4 * KIB) as channel:
        for _ in range(3):
            channel.send(numbered(1, KIB), timeout=0)
            with dp.ShmChannel(1, "64KB") as ready, Child(hold) as victim:
                ready.recv(BOUND_S)
                assert channel.stats()["held"] == 1
                victim.kill()
                channel.send(numbered(2, 4 * KIB - HEAD), BOUND_S)
                assert number_of(channel.recv(timeout=0)) == 2
                channel.send(numbered(3), timeout=0)
                assert number_of(channel.recv(timeout=0)) == 3


def test_a_sender_learns_that_all_receivers_are_gone():
    def receive():
        channel.recv(BOUND_S)
        ready.send({}, BOUND_S)
        signal.pause()

    with (
        dp.ShmChannel(1, "64KB") as channel,
        dp.ShmChannel(4, "64KB") as ready,
        Child(receive) as victim,
    ):
        channel.send(numbered(1), BOUND_S)
        ready.recv(BOUND_S)
        victim.kill()
        channel.send(numbered(2), timeout=0)
        with refused(dp.PeerDied, stage="ShmChannel.send", found="no process is left", allowed="could receive"):
            in_thread(channel.send, numbered(3), None).result(BOUND_S)


@pytest.mark.parametrize("ends", ["close", "exit"])
def test_a_receiver_learns_that_all_senders_have_ended(ends):
    def send():
        channel.send(numbered(1), BOUND_S)
        if ends == "close":
            channel.close()

    with dp.ShmChannel(4, "64KB") as channel, Child(send) as child:
        child.result()
        assert number_of(channel.recv(timeout=0)) == 1
        error = dp.ChannelClosed if ends == "close" else dp.PeerDied
        with refused(error, stage="ShmChannel.recv", found="no process is left", allowed="could send"):
            in_thread(channel.recv, None).result(BOUND_S)


@pytest.mark.alone
def test_survivors_go_on_when_the_maker_is_killed_and_nothing_is_left():  # W7
    def make(there):
        made = dp.ShmChannel(4, "8MB"), dp.ShmChannel(4, "8MB")
        there.send(made)
        signal.pause()

    names, segments = os.listdir("/dev/shm"), system_v_segments()
    here, there = multiprocessing.get_context("fork").Pipe(duplex=False)
    with Child(make, there) as maker:
        assert here.poll(BOUND_S)
        requests, answers = here.recv()
        inodes = [channels.inode_of(channel) for channel in (requests, answers)]
        with Child(channels.echo, requests, answers) as other:
            requests.send(numbered(1), BOUND_S)
            assert number_of(answers.recv(BOUND_S)) == 1
            maker.kill()
            assert died(answers).pids == (maker.pid,)
            for number in range(20):
                requests.send(numbered(number), BOUND_S)
                assert number_of(answers.recv(BOUND_S)) == number
            other.kill()
            assert died(answers).pids == (other.pid,)
        assert sum(map(len, map(channels.who_has, inodes))) == 4  # mapped and open, here and nowhere else
    here.close()
    there.close()
    requests.close()
    answers.close()
    gc.collect()  # the tracebacks of errors keep frames alive
    assert [channels.who_has(inode) for inode in inodes] == [[], []]
    assert (os.listdir("/dev/shm"), system_v_segments()) == (names, segments)


def system_v_segments() -> str:
    with suppress(OSError), open("/proc/sysvipc/shm") as shm:
        return shm.read()
    return ""


def test_other_users_cannot_attach():  # W7
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")

    def attach(path):
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        with pytest.raises(PermissionError):
            os.open(path, os.O_RDWR)

    with dp.ShmChannel(4, "64KB") as channel:
        path = f"/proc/{os.getpid()}/fd/{channel._shared.descriptor}"
        assert stat.S_ISREG(os.stat(path).st_mode)
        with Child(attach, path) as child:
            child.result()


# --- threads that use and close at once


@pytest.mark.parametrize("rng_seed", range(8))
def test_threads_that_send_and_receive_while_the_channel_closes_end_with_typed_errors(rng_seed):  # W12
    rng = random.Random(rng_seed)
    channel = dp.ShmChannel(4, "16KB")

    def repeat(call):
        while True:
            with suppress(dp.QueueTimeoutError, dp.EndOfEpoch):
                call()

    calls = [
        lambda: channel.send(numbered(1, 2 * KIB), timeout=0.01),
        lambda: channel.send(numbered(1), timeout=BOUND_S),
        lambda: number_of(channel.recv(timeout=0.01)),
        lambda: number_of(channel.recv(timeout=BOUND_S)),
        lambda: channel.end_epoch(timeout=0.01),
        channel.stats,
        channel.reset,
        channel.__len__,
    ]
    ended = [in_thread(repeat, call) for call in calls]
    while channel.stats()["messages"] < rng.randrange(200):
        pass
    for closing in [in_thread(channel.close) for _ in range(3)]:
        closing.result(BOUND_S)
    for call in ended:
        with pytest.raises(dp.ChannelClosed):
            call.result(BOUND_S)


# --- interrupts and exits


def test_an_interrupt_ends_a_wait():
    with (
        dp.ShmChannel(4, "64KB") as ready,
        dp.ShmChannel(4, "64KB") as channel,
        Child(channels.wait_for_a_message, ready, channel) as child,
    ):
        ready.recv(BOUND_S)
        os.kill(child.pid, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            child.result()


ENDING = """
import atexit, os, sys, threading, torch, datapipes as dp
from contextlib import contextmanager, suppress

def in_threads(call, *arguments):
    def repeat():
        with suppress(dp.ChannelClosed):
            while True:
                call(*arguments)
    for _ in range(30):
        threading.Thread(target=repeat, daemon=True).start()

def threads_wait_for_messages():
    in_threads(channel.recv)
def threads_wait_for_room():
    in_threads(channel.send, message)
def tensors_are_held():
    channel.send(message)
    globals()["kept"] = channel.recv()
def it_is_used_at_exit():
    atexit.register(channel.send, message)

waiting = [threads_wait_for_messages, threads_wait_for_room] * int(sys.argv[1])
cases = [*waiting, tensors_are_held, it_is_used_at_exit]
children = {}
for case in cases:
    if (pid := os.fork()) == 0:
        torch.set_num_threads(1)
        channel, message = dp.ShmChannel(1, "64KB"), {"x": torch.ones(1)}
        case()
        break  # and ends as any program does
    children[pid] = case.__name__
for pid in children if pid else ():
    print(children[pid], os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_process_ends_in_order_whatever_its_threads_wait_for():
    times = amount(3, 1)
    ended = subprocess.run([sys.executable, "-c", ENDING, str(times)], capture_output=True, text=True, timeout=60)
    assert ended.stdout.splitlines() == [
        *["threads_wait_for_messages 0", "threads_wait_for_room 0"] * times,
        "tensors_are_held 0",
        "it_is_used_at_exit 0",
    ], ended.stderr
    assert (ended.returncode, ended.stderr) == (0, "")


# --- nothing is left


@contextmanager
def nothing_left(kept: int = 0):
    """Check that there are no more descriptors and mappings than before, but for so many memories that are kept."""
    opened, before = channels.descriptors_from_now(), channels.num_mappings()
    yield
    gc.collect()
    assert (opened(), channels.num_mappings() - before) == (kept, kept)


def test_channels_that_were_closed_or_forgotten_leave_no_descriptor_and_no_mapping():
    def use(number: int) -> None:
        with dp.ShmChannel(4, "64KB") as channel:
            other = attached_again(channel)
            other.send(numbered(number), timeout=0)
            assert number_of(channel.recv(timeout=0)) == number
            if number % 2:
                other.close()
        dp.ShmChannel(4, "64KB").send(numbered(number), timeout=0)

    use(1)  # makes everything that a process makes only once
    with nothing_left():
        for number in range(30):
            use(number)


def test_received_tensors_outlive_their_channel():
    with nothing_left():
        with nothing_left(kept=1):
            channel = dp.ShmChannel(4, "64KB")
            channel.send(numbered(7), timeout=0)
            message = channel.recv(timeout=0)
            channel.close()
            del channel
        assert number_of(message) == 7
        del message


def test_failed_attempts_leave_nothing():
    with nothing_left():
        for size in ("100TB", "0", 2**62):
            with pytest.raises((MemoryError, ValueError)):
                dp.ShmChannel(4, size)


# --- memory


@pytest.mark.full
def test_a_channel_does_not_need_room_in_dev_shm():  # W14
    if _core.memory_left()[0] < 3 * 2**30:
        pytest.skip("needs 3 GiB of memory")
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    mount = "mount -t tmpfs -o size=8m tmpfs /dev/shm"
    if subprocess.run([*unshare, "sh", "-c", mount], capture_output=True, timeout=60).returncode != 0:
        pytest.skip("mounts are not permitted here")
    script = """
import os, torch, datapipes as dp
at = os.statvfs("/dev/shm")
assert at.f_blocks * at.f_frsize == 2**23
with dp.ShmChannel(4, "1GB") as channel:
    channel.send({"x": torch.ones(2**25, dtype=torch.uint8)}, timeout=0)
    print(int(channel.recv(timeout=0)["x"].sum(dtype=torch.int64)))
"""
    ended = subprocess.run(
        [*unshare, "sh", "-c", f'{mount} && exec "$0" -c "$1"', sys.executable, script],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ended.returncode, ended.stdout) == (0, f"{2**25}\n"), ended.stderr


def test_a_shortage_is_an_error_that_says_how_much_there_is():  # W14
    left, limit = _core.memory_left()
    size = left - left // 32  # fits, but leaves too little for everything else
    with refused(MemoryError, stage="ShmChannel", found=r"\d{9,} bytes of shared memory", allowed=rf"left by {limit}"):
        dp.ShmChannel(4, size)


class Machine:
    """/proc and /sys of a fake machine, as files in a folder."""

    def __init__(self, root):
        self.root = root

    def write(self, path: str, text: object) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def memory(self, kib: int) -> None:
        self.write(
            "/proc/meminfo", f"MemTotal:       {2 * kib} kB\nMemFree: 1 kB\nMemAvailable:   {kib} kB\nCached: 9 kB"
        )

    def second(self, group: str, limit: object, used: int, idle: int | None = None) -> None:
        folder = f"/sys/fs/cgroup{group}"
        self.write(f"{folder}/memory.max", limit)
        self.write(f"{folder}/memory.current", used)
        if idle is not None:
            self.write(
                f"{folder}/memory.stat",
                f"anon 7\nfile 8\nactive_inactive_file 9\ninactive_file {idle - 1}\nslab 1\nactive_file 1",
            )

    def first(self, group: str, limit: object, used: int, idle: int | None = None) -> None:
        folder = f"/sys/fs/cgroup/memory{group}"
        self.write(f"{folder}/memory.limit_in_bytes", limit)
        self.write(f"{folder}/memory.usage_in_bytes", used)
        if idle is not None:
            self.write(f"{folder}/memory.stat", f"inactive_file 1\ntotal_inactive_file {idle - 1}\ntotal_active_file 1")

    def left(self) -> tuple[int, str]:
        return _core.memory_left(str(self.root))


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path)
    machine.memory(1000)
    return machine


def test_without_files_nothing_limits_memory(tmp_path):
    assert Machine(tmp_path).left() == (2**64 - 1, "nothing")


def test_the_machine_limits_memory(machine):
    assert machine.left() == (1000 * KIB, "the memory of this machine")


@pytest.mark.parametrize(
    ("groups", "version", "group"),
    [
        *(("0::/", "second", "/"), ("0::/a/b", "second", "/a/b")),
        *(("5:cpu,cpuacct:/x\n4:memory:/job\n0::/", "first", "/job"), ("4:cpu,memory:/a:b", "first", "/a:b")),
    ],
)
def test_a_cgroup_of_either_version_limits_memory(machine, groups, version, group):
    machine.write("/proc/self/cgroup", groups)
    limit = getattr(machine, version)
    limit("" if group == "/" else group, 500_000, 200_000)
    assert machine.left() == (300_000, f"the memory limit of cgroup {group}")
    limit("" if group == "/" else group, 500_000, 450_000, idle=100_000)  # pages of files that nobody uses are left
    assert machine.left()[0] == 150_000
    limit("" if group == "/" else group, 500_000, 450_000, idle=10**9)
    assert machine.left()[0] == 500_000
    limit("" if group == "/" else group, 500_000, 600_000, idle=1)
    assert machine.left() == (0, f"the memory limit of cgroup {group}")


@pytest.mark.parametrize("group", ["/a", "/"])
def test_a_cgroup_above_limits_memory(machine, group):
    machine.write("/proc/self/cgroup", "0::/a/b/c")
    machine.second("/a/b/c", 500_000, 0)
    machine.second("/a/b", "max", 0)
    machine.second("" if group == "/" else group, 100_000, 40_000)
    assert machine.left() == (60_000, f"the memory limit of cgroup {group}")


@pytest.mark.parametrize(
    "groups",
    ["", "nonsense", "0:", "::", "0::relative", "0::/gone/away", "4:memory:/gone", "\0" * 40, "4:memory:/\n0::/"],
)
def test_what_cannot_be_read_or_has_no_limit_leaves_the_memory_of_the_machine(machine, groups):
    machine.write("/proc/self/cgroup", groups)
    machine.second("", "max", 100)
    machine.first("", 2**63 - 4096, 100)
    assert machine.left() == (1000 * KIB, "the memory of this machine")


# --- leaving with a thread in send


def test_a_process_that_ends_with_a_thread_in_send_leaves_no_turn_behind():
    for _ in range(6):
        with dp.ShmChannel(1, "64KB") as channel:
            channel.send(numbered(0), timeout=0)
            with Child(channels.end_with_threads_in_send, channel, 64) as child:
                child.process.join(BOUND_S)
            for number in range(4):  # the messages that the threads sent meanwhile, then our own
                with suppress(dp.QueueTimeoutError):
                    channel.recv(timeout=0)
                channel.send(numbered(number), timeout=BOUND_S)
                channel.recv(timeout=0)


def test_a_process_that_ends_while_a_thread_copies_leaves_its_room():
    with dp.ShmChannel(4, "64MB") as channel:
        for _ in range(3):
            with Child(channels.end_with_threads_in_send, channel, 40 * 2**20) as child:
                child.process.join(BOUND_S)
            with suppress(dp.QueueTimeoutError, dp.PeerDied):
                while True:
                    channel.recv(timeout=0.3)
            channel.send(numbered(1, 60 * 2**20), timeout=BOUND_S)
            channel.recv(timeout=0)
        assert channel.stats()["used_bytes"] == 0


def test_a_pinned_channel_that_is_dropped_leaves_no_slot_behind():
    with dp.ShmChannel(4, "64KB") as channel:
        other = attached_again(channel)
        other._shared.release_in_two_steps(True)
        for number in range(3):
            channel.send(numbered(number), timeout=0)
            other.recv(timeout=0)
        assert channel.stats()["held"] == 3
        del other
        assert channel.stats()["held"] == 0
