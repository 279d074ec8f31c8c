"""Feature.update of a DiskFeature: what the file holds, who else has changed it, and disks that fail."""

import errno
import fcntl
import pickle

import numpy as np
import pytest
import torch
from at_once import at_once
from pipelines import refused
from updated_features import COUNT, EVERYTHING, POLICIES, cached, first_rows, made, same_bits

import datapipes as dp
from datapipes.features import disk_feature


def test_a_file_holds_the_rows_and_other_features_of_it_see_a_change(tmp_path):
    feature = made("npy", tmp_path, first_rows((3,)))
    other, old = dp.DiskFeature(feature.path), pickle.dumps(feature)
    feature.update(torch.tensor([1, 2, 7]), torch.ones(3, 3))
    feature.flush()
    assert torch.equal(feature.read(EVERYTHING), torch.from_numpy(np.load(feature.path)))
    assert torch.equal(pickle.loads(pickle.dumps(feature)).read(EVERYTHING), feature.read(EVERYTHING))
    for call in (lambda: other.read(EVERYTHING), lambda: pickle.loads(old)):
        with refused(ValueError, stage="DiskFeature", found="has changed", allowed="it had", remedy="Make a new"):
            call()


@pytest.mark.parametrize("change", ["written", "cut", "replaced"])
def test_a_file_that_somebody_else_has_changed_is_not_written(tmp_path, change):
    feature = made("npy", tmp_path, first_rows((3,)))
    if change == "cut":
        with feature.path.open("r+b") as file:
            file.truncate(200)
    else:
        rows = first_rows((3,)) + 1
        np.save(tmp_path / "y.npy", rows.numpy())
        content = (tmp_path / "y.npy").read_bytes()
        if change == "written":
            feature.path.write_bytes(content)
        else:
            (tmp_path / "y.npy").replace(feature.path)
    before = feature.path.read_bytes()
    with refused(ValueError, stage="DiskFeature", found="has changed", allowed="it had", remedy="Make a new"):
        feature.update(torch.tensor([1]), torch.ones(1, 3))
    assert feature.path.read_bytes() == before


def test_a_read_during_an_update_says_to_wait_for_it(tmp_path, monkeypatch):
    path = made("npy", tmp_path, first_rows((3,))).path
    disk_feature.os.utime(path, ns=(0, 0))
    feature, write = dp.DiskFeature(path), disk_feature.os.pwrite

    def then_read(descriptor, data, at):
        written = write(descriptor, data, at)
        with refused(RuntimeError, stage="DiskFeature", found="another thread", allowed="no rows", remedy="Read"):
            feature.read(EVERYTHING)
        with pytest.raises(ValueError, match="has changed"):  # a copy is another feature
            pickle.loads(pickle.dumps(feature))
        return written

    monkeypatch.setattr(disk_feature.os, "pwrite", then_read)
    feature.update(torch.tensor([1]), torch.ones(1, 3))
    assert feature.read(torch.tensor([1])).tolist() == [[1, 1, 1]]


def test_threads_may_update_other_rows_of_one_file(tmp_path):
    feature = made("npy", tmp_path, first_rows((3,)))

    def update(number):
        for _ in range(20):
            feature.update(EVERYTHING[number::3].clone(), torch.full((10, 3), float(number)))

    at_once(update, 3)
    assert torch.equal(feature.read(EVERYTHING), (EVERYTHING % 3).float()[:, None].expand(-1, 3))


def test_a_disk_that_is_full_leaves_some_rows_and_the_feature_and_its_caches_know_them(tmp_path, monkeypatch):
    rows = first_rows((3,))
    feature = made("rows", tmp_path, rows)
    over = [cached(feature, policy, slots=COUNT) for policy in POLICIES[1:]]
    for each in over:
        each.read(EVERYTHING)
    write, calls = disk_feature.os.pwrite, []

    def full(descriptor, data, at):
        calls.append(at)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:5], at)  # as a system may: not all at once

    monkeypatch.setattr(disk_feature.os, "pwrite", full)
    with refused(
        OSError, stage="DiskFeature.update", found="No space", allowed="in part", remedy="Make room"
    ) as caught:
        feature.update(torch.tensor([3, 9]), torch.ones(2, 3))
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.undo()
    left = feature.read(EVERYTHING)
    assert not torch.equal(left[3], rows[3])
    assert torch.equal(left[9], rows[9])
    for each in over:
        assert same_bits(each.read(EVERYTHING), left)
    feature.update(torch.tensor([3, 9]), torch.ones(2, 3))
    assert feature.read(torch.tensor([3, 9])).eq(1).all()


def test_a_file_that_may_not_be_written(tmp_path, monkeypatch):
    feature, opened = made("npy", tmp_path, first_rows((3,))), disk_feature.os.open

    def refuse(path, flags, *rest, **options):
        if flags & disk_feature.os.O_WRONLY:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, flags, *rest, **options)

    monkeypatch.setattr(disk_feature.os, "open", refuse)
    with refused(PermissionError, stage="DiskFeature.update", found="x.npy", allowed="written", remedy="Allow it"):
        feature.update(torch.tensor([1]), torch.ones(1, 3))
    assert torch.equal(feature.read(EVERYTHING), first_rows((3,)))


def test_an_update_waits_a_while_for_another_one(tmp_path, monkeypatch):
    feature = dp.DiskFeature.write(tmp_path / "x.rows", torch.zeros(3, 2))
    monkeypatch.setattr(disk_feature, "_LOCK_S", 0)
    with (tmp_path / "x.rows").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        found = "another update of .*x.rows has not ended"
        with refused(BlockingIOError, stage="DiskFeature.update", found=found, allowed="0 s", remedy="Wait"):
            feature.update(torch.tensor([1]), torch.ones(1, 2))
    feature.update(torch.tensor([1]), torch.ones(1, 2))
    assert feature.read(torch.arange(3)).sum() == 2
