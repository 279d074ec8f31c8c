"""A load that fails names every entity that failed, and leaves no process, thread, descriptor or memory behind."""

import multiprocessing
import os
import resource
import signal
import threading

import pytest
import torch
from tfrecord_loaders import Columns, Faulty, Once, edges, info, let_go, make_pipes, open_files, pid_of

from datapipes.datasets import SerializedGraphMetadata, TFRecordLoadError, load_torch_tensors_from_tf_record
from datapipes.datasets.tfrecord import children
from datapipes.datasets.tfrecord.children import Child, end_all, load_all, wait_for_all
from datapipes.datasets.tfrecord.data_loader import TFDatasetOptions
from datapipes.datasets.tfrecord.entity_task import EntityTask
from datapipes.processes import main_module
from datapipes.processes.endings import runs
from datapipes.processes.sharing import pack
from datapipes.processes.start import context_of, prepare_server

FOLDERS = {
    "nodes": {"id": torch.arange(3), "x": torch.rand(3)},
    **{name: {"src": torch.tensor([0, 1]), "dst": torch.tensor([1, 2])} for name in ("edges", "likes", "none")},
}
METADATA = SerializedGraphMetadata(info("nodes", "x"), edges("edges"), edges("likes"), edges("none"))


@pytest.fixture(autouse=True)
def nothing_is_left():
    prepare_server(context_of(None))  # these stay
    held, threads = open_files(), threading.active_count()
    yield
    assert multiprocessing.active_children() == []
    assert threading.active_count() <= threads
    assert open_files() <= held


def load(loader, in_parallel=True):
    return load_torch_tensors_from_tf_record(loader, METADATA, in_parallel)


def faulty(folder, **faults):
    make_pipes(folder, *faults)
    return Faulty(FOLDERS, faults=faults, pipes=str(folder))


def pids(folder, names):
    """Return the processes that wait, once all of them do."""
    return {name: pid_of(folder, name) for name in names}


def test_the_others_are_stopped_within_two_seconds_of_an_error():
    assert children.LOOK_S + children.GRACE_S + 2 * children.END_S < 2


def test_a_process_that_raises_is_named_with_its_traceback_and_the_others_are_stopped(tmp_path):
    loader = faulty(tmp_path, nodes="wait", edges="wait and raise", none="wait")

    def cause():
        found = pids(tmp_path, ["nodes", "none", "edges"])
        let_go(tmp_path, "edges")
        return found

    waiting = Once(cause)
    with pytest.raises(TFRecordLoadError, match=r"rank 0 could not load edge\. It has stopped the others") as caught:
        load(loader)
    assert list(caught.value.failures) == ["edge"]
    assert "at edge from edges: it raised an error" in caught.value.failures["edge"]
    for text in ("edges: record 12345 lacks the key 'age'", "Traceback", "in load_as_torch_tensors"):
        assert text in str(caught.value)
        assert text in caught.value.failures["edge"]
    assert not any(map(runs, waiting.end().values()))
    assert "node" in str(caught.value).partition("stopped the others: ")[2]


def test_a_process_that_is_killed_is_named_with_the_signal_and_the_others_are_stopped(tmp_path):
    loader = faulty(tmp_path, nodes="wait", edges="wait")

    def cause():
        found = pids(tmp_path, ["nodes", "edges"])
        os.kill(found["nodes"], signal.SIGKILL)
        return found

    killing = Once(cause)
    with pytest.raises(TFRecordLoadError) as caught:
        load(loader)
    found = killing.end()
    assert list(caught.value.failures) == ["node"]
    told = f"process {found['nodes']}, at node from nodes: it was killed by SIGKILL, probably out of memory."
    assert told in str(caught.value)
    assert not any(map(runs, found.values()))


def test_one_after_another_the_first_failure_begins_no_other(tmp_path):
    loader = faulty(tmp_path, edges="wait", nodes="wait")
    killing = Once(lambda: os.kill(pid_of(tmp_path, "edges"), signal.SIGKILL))
    with pytest.raises(TFRecordLoadError, match=r"could not load edge\. Correct"):
        load(loader, in_parallel=False)
    killing.end()  # nobody wrote into the pipe of nodes: this would have had to read it


def test_a_process_that_ends_without_a_word_is_named(tmp_path):
    with pytest.raises(TFRecordLoadError) as caught:
        load(faulty(tmp_path, none="exit"))
    assert "it exited with code 7 without a result" in caught.value.failures["negative_label"]


def test_all_that_failed_are_named(tmp_path):
    loader = faulty(tmp_path, nodes="exit", edges="raise", likes="wait")
    folders = {"node": info("nodes"), "edge": edges("edges"), "positive_label": edges("likes")}
    started = []
    try:
        for entity, its in folders.items():
            task = EntityTask(entity, {None: its}, TFDatasetOptions(), loader, 5)
            started.append(Child.started(context_of(None), task, pack(task), 1))
        assert all(child.watch.wait(60) for child in started[:2])  # both have failed before anybody looks
        with pytest.raises(
            TFRecordLoadError, match=r"rank 5 could not load node, edge\. .*others: positive_label\."
        ) as caught:
            wait_for_all(started, lambda: None)
    finally:
        end_all(started)
    assert list(caught.value.failures) == ["node", "edge"]
    assert not runs(started[2].pid)


def test_a_process_that_is_stopped_by_a_signal_is_killed(tmp_path):
    loader = faulty(tmp_path, nodes="wait", edges="wait")

    def cause():
        found = pids(tmp_path, ["nodes", "edges"])
        os.kill(found["nodes"], signal.SIGSTOP)
        os.kill(found["edges"], signal.SIGTERM)
        return found

    stopping = Once(cause)
    with pytest.raises(TFRecordLoadError, match="it was killed by SIGTERM without a result"):
        load(loader)
    assert not any(map(runs, stopping.end().values()))


def test_what_ends_the_caller_ends_the_processes(tmp_path):
    loader = faulty(tmp_path, nodes="wait")
    task = EntityTask("node", {None: info("nodes")}, TFDatasetOptions(), loader, 0)
    found = []

    def interrupt():
        found.append(pid_of(tmp_path, "nodes"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_all([task], in_parallel=True, go_on=interrupt)
    assert not runs(found[0])


def test_a_failure_after_others_have_loaded_lets_go_of_their_memory(tmp_path):
    loader = faulty(tmp_path, none="wait and raise")
    names = []
    held = open_files()

    def look():
        if not names and any("memfd" in each for each in open_files() - held):  # some tensors have come
            names.append(pid_of(tmp_path, "none"))
            let_go(tmp_path, "none")

    tasks = [
        EntityTask(entity, {None: its}, TFDatasetOptions(), loader, 0)
        for entity, its in (("edge", edges("edges")), ("negative_label", edges("none")))
    ]
    with pytest.raises(TFRecordLoadError):
        load_all(tasks, in_parallel=True, go_on=look)
    assert names


class Unpicklable(Columns):
    """Raises when it is unpickled, in the process that loads."""

    def __setstate__(self, state):
        raise ValueError("this loader cannot be rebuilt")


def test_without_descriptors_nothing_is_started():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 5, hard))
    try:
        with pytest.raises(OSError, match="cannot be started: it needs 16 file descriptors"):
            load(Columns(FOLDERS))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_loader_that_cannot_be_rebuilt_and_a_result_that_finds_no_descriptors_are_named(monkeypatch):
    def none_left(*args):
        raise OSError(24, "Too many open files")

    with pytest.raises(TFRecordLoadError, match="this loader cannot be rebuilt"):
        load(Unpicklable(FOLDERS))
    monkeypatch.setattr(children, "receive_tensors", none_left)
    with pytest.raises(TFRecordLoadError, match=r"its result could not be taken over: .*Too many open files"):
        load(Columns(FOLDERS))


def test_a_daemonic_process_and_a_program_without_a_guard_are_refused(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(multiprocessing.current_process()._config, "daemon", True)
        with pytest.raises(RuntimeError, match="this is a daemonic process, such as a worker"):
            load(Columns(FOLDERS))
    monkeypatch.setattr(main_module, "_running_line", lambda: 1)
    monkeypatch.setattr(main_module, "_is_imported", lambda: True)
    monkeypatch.setattr(main_module, "_source", lambda: "load()\n")
    with pytest.raises(RuntimeError, match=r"would run line 1 of .* again, with this call in it\. Put"):
        load(Columns(FOLDERS))


def test_an_error_can_be_pickled():
    error = TFRecordLoadError.of_ranks(1, {0: "it has ended", 2: "why"}, "load", "failed to load")
    again = pack(error).unpack()
    assert str(again) == str(error)
    assert again.failed_ranks == {0: "it has ended", 2: "why"}
    assert isinstance(again, ValueError)
