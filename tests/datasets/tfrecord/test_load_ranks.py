"""Ranks load together or not at all: one that fails, or is killed, ends the load of the others within the bound."""

import os
import re
import select

import pytest
import torch
from amounts import amount
from rank_group import BOUND_S, RankGroup
from tfrecord_loaders import Columns, Faulty, edges, info, make_pipes, pid_of

from datapipes.datasets import (
    SerializedGraphMetadata,
    SerializedTFRecordInfo,
    TFRecordDataLoader,
    TFRecordLoadError,
    load_torch_tensors_from_tf_record,
    write_tf_records,
)
from datapipes.processes.endings import runs

FOLDERS = {
    "nodes": {"id": torch.arange(3), "x": torch.arange(3.0)},
    "edges": {"src": torch.tensor([0, 1]), "dst": torch.tensor([1, 2])},
}
METADATA = SerializedGraphMetadata(info("nodes", "x"), edges("edges"))
LONG_S, SHORT_S = 60.0, amount(4.0, 2.0)
SILENT = r"it has (given no sign of life|not begun this load) for \d+ s"  # a rank may die before its first heartbeat


def load(pipe, loader, timeout_s):
    loaded = load_torch_tensors_from_tf_record(loader, METADATA, True, rank_timeout_s=timeout_s)
    return loaded.node_features.tolist(), loaded._rank, loaded._num_ranks


def has_ended(pid):
    """Wait until a process that is no child of this one has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], BOUND_S)[0])
    finally:
        os.close(descriptor)


def test_two_ranks_load_together_or_not_at_all(tmp_path):
    rows = [[0.0], [1.0], [2.0]]
    good = [Columns(FOLDERS, rank, 2) for rank in range(2)]
    with RankGroup(2) as group:
        for rank in range(2):
            group.order([rank], load, good[rank], LONG_S)
        assert [group.answer(rank) for rank in range(2)] == [(rows, 0, 2), (rows, 1, 2)]

        for folder in ("first", "second"):
            (tmp_path / folder).mkdir()
            make_pipes(tmp_path / folder, "nodes", "edges")
        group.order([0], load, Faulty(FOLDERS, 0, 2, {"nodes": "wait"}, str(tmp_path / "first")), LONG_S)
        waits = pid_of(tmp_path / "first", "nodes")
        group.order([1], load, Faulty(FOLDERS, 1, 2, {"edges": "raise"}), LONG_S)
        own, other = group.answer(1), group.answer(0)
        assert isinstance(own, TFRecordLoadError)
        assert list(own.failures) == ["edge"]
        assert "rank 1 could not load edge" in str(own)
        assert isinstance(other, TFRecordLoadError)
        assert str(other).startswith(
            "load_torch_tensors_from_tf_record: rank 1 failed to load, so rank 0 has stopped too."
        )
        assert "edges: record 12345 lacks the key 'age'" in other.failed_ranks[1]
        assert not runs(waits)

        for rank in range(2):  # the next load knows nothing of that
            group.order([rank], load, good[rank], LONG_S)
        assert [group.answer(rank)[0] for rank in range(2)] == [rows, rows]

        group.order([1], load, Faulty(FOLDERS, 1, 2, {"nodes": "wait"}, str(tmp_path / "second")), LONG_S)
        waits = pid_of(tmp_path / "second", "nodes")
        group.order([0], load, good[0], SHORT_S)
        group.kill(1)
        error = group.answer(0)
        assert isinstance(error, TFRecordLoadError)
        assert re.search(f"rank 1: {SILENT}", str(error))
        assert has_ended(waits)  # its children end with it


def load_files(pipe, folder, rank, world_size):
    write = SerializedTFRecordInfo(folder, [], None, 0, "id")
    pairs = SerializedTFRecordInfo(folder.parent / "edges", [], None, 0, ("src", "dst"))
    loader = TFRecordDataLoader(rank, world_size)
    loaded = load_torch_tensors_from_tf_record(loader, SerializedGraphMetadata(write, pairs), False)
    return loaded.node_ids.tolist()


@pytest.mark.full
def test_ranks_that_do_not_load_the_shares_of_one_set_of_files_are_told(tmp_path):
    write_tf_records(tmp_path / "nodes", {"id": torch.arange(4)}, 2)
    write_tf_records(tmp_path / "others", {"id": torch.arange(4)}, 4)
    write_tf_records(tmp_path / "edges", {"src": torch.arange(4), "dst": torch.arange(4)}, 2)
    with RankGroup(2) as group:

        def answers(*given):
            for rank, arguments in enumerate(given):
                group.order([rank], load_files, *arguments)
            return [group.answer(rank) for rank in range(2)]

        nodes, others = tmp_path / "nodes", tmp_path / "others"
        assert answers((nodes, 0, 2), (nodes, 1, 2)) == [[0, 1], [2, 3]]
        assert answers((nodes, 0, 1), (others, 0, 1)) == [[0, 1, 2, 3]] * 2  # each loads all, of its own
        for told, second in [
            ("ranks 0 and 1 both load the share 0", (nodes, 0, 2)),
            ("rank 1 has another world_size than rank 0", (nodes, 1, 3)),
            ("rank 1 has other files than rank 0", (others, 1, 2)),
        ]:
            for error in answers((nodes, 0, 2), second):
                assert isinstance(error, ValueError)
                assert told in str(error)
