"""DiskFeature: the bytes of a TensorFeature, for any form of the file, ids, and depth of its reads."""

import errno
import os
import pickle
from collections import namedtuple

import numpy as np
import pytest
import torch
from amounts import examples
from at_once import at_once
from hypothesis import given
from hypothesis import strategies as st
from pipelines import refused, sampled

import datapipes as dp
from datapipes.base import folder as folders
from datapipes.features import disk_feature

DTYPES = [torch.float32, torch.float16, torch.int8, torch.int64, torch.bool]


def rows_of(count, shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand((count, *shape), generator=generator) * 100 - 50).to(dtype)


@pytest.fixture(params=[False, True], ids=["page cache", "direct"])
def disk(request):
    """Opens a file as the parameter says; skips where the disk has no O_DIRECT."""
    direct = request.param

    def opened(path, **options):
        try:
            return dp.DiskFeature(path, direct=direct, **options)
        except OSError as error:
            if direct and error.errno == errno.EINVAL:
                pytest.skip("this disk cannot be read past the page cache")
            raise

    return opened


def saved(path, rows):
    np.save(path, rows.numpy())
    return path


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (100,), (128,), (2, 700), (0,)], ids=str)
def test_rows_of_npy_are_those_of_a_tensor(disk, tmp_path, dtype, shape):
    rows = rows_of(200, shape, dtype)
    feature, expected = disk(saved(tmp_path / "x.npy", rows)), dp.TensorFeature(rows)
    for ids in (
        torch.arange(200),
        torch.tensor([5, 5, 199, 0]),
        torch.empty(0, dtype=torch.int64),
        torch.tensor([7]).int(),
    ):
        found = feature.read(ids)
        assert found.dtype == dtype
        assert torch.equal(found, expected.read(ids))
        out = torch.empty_like(found)
        assert feature.read(ids, out) is out
        assert torch.equal(out, found)
    assert (feature.count, feature.shape, feature.dtype) == (200, shape, dtype)


@pytest.mark.parametrize("stored_as", [None, "float16", "bfloat16", "int8"])
@pytest.mark.parametrize("form", ["tensor", "pieces"])
def test_rows_of_a_stored_form_are_those_of_a_tensor(disk, tmp_path, stored_as, form):
    rows = rows_of(300, (5, 7))
    given = rows if form == "tensor" else lambda: (rows[begin : begin + 70] for begin in range(0, 300, 70))
    dp.DiskFeature.write(tmp_path / "x.rows", given, stored_as=stored_as)
    feature, expected = disk(tmp_path / "x.rows"), dp.TensorFeature(rows, stored_as=stored_as)
    ids = torch.randint(300, (500,), generator=torch.Generator().manual_seed(1))
    assert torch.equal(feature.read(ids), expected.read(ids))
    assert torch.equal(feature._read_stored(ids), expected._read_stored(ids))
    assert feature._stored_dtype == expected._stored_dtype
    out = torch.empty(500, 5, 7)
    assert torch.equal(feature.read(ids, out), expected.read(ids))
    assert [each.name for each in tmp_path.iterdir()] == ["x.rows"]


@examples(200)
@given(
    count=st.integers(1, 5000),
    width=st.sampled_from([1, 7, 128, 1024, 1500]),
    wanted=st.integers(0, 300),
    depth=st.integers(1, 256),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_ids_and_depth(tmp_path_factory, count, width, wanted, depth, seed):
    path = tmp_path_factory.mktemp("rows") / "x.npy"
    rows = torch.arange(count * width, dtype=torch.int32).reshape(count, width)
    np.save(path, rows.numpy())
    ids = torch.randint(count, (wanted,), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(dp.DiskFeature(path, num_threads=depth).read(ids), rows[ids])


def test_threads_may_read_at_once(disk, tmp_path):
    rows = rows_of(5000, (100,))
    feature = disk(saved(tmp_path / "x.npy", rows))

    def is_right(seed):
        ids = torch.randint(5000, (3000,), generator=torch.Generator().manual_seed(seed))
        return torch.equal(feature.read(ids), rows[ids])

    assert all(at_once(is_right, 8))
    assert feature.stats()["rows"] == 8 * 3000


def test_what_is_read_is_counted(tmp_path):
    feature = dp.DiskFeature(saved(tmp_path / "x.npy", rows_of(1000, (128,))), direct=False)
    feature.read(torch.tensor([0, 1, 2, 999]))
    assert feature.stats() == {"rows": 4, "row_bytes": 4 * 512, "reads": 2, "disk_bytes": 4096 + 8192}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_over_a_disk_gives_the_same_minibatches(tmp_path, num_workers):
    pipe = sampled()
    count = next(iter(pipe)).input_nodes.max() + 1000
    rows = rows_of(int(count), (16,))
    saved(tmp_path / "x.npy", rows)

    def digests(feature):
        store = dp.FeatureStore({("node", None, "x"): feature})
        with dp.DataLoader(sampled().fetch_feature(store, ["x"]), num_workers=num_workers) as loader:
            return [minibatch.digest() for minibatch in loader], loader.stats()

    found, stats = digests(dp.DiskFeature(tmp_path / "x.npy"))
    assert found == digests(dp.TensorFeature(rows))[0]
    assert any("node feature 'x': reads" in row for row in stats.values())


def test_a_copy_opens_the_file_anew(tmp_path):
    rows = rows_of(10, (3,))
    feature = dp.DiskFeature(saved(tmp_path / "x.npy", rows))
    assert torch.equal(pickle.loads(pickle.dumps(feature)).read(torch.arange(10)), rows)


# --- what is refused


def test_what_a_read_refuses(disk, tmp_path, refuses):
    feature = disk(saved(tmp_path / "x.npy", rows_of(10, (3,))))
    for outside in (-1, 10, 2**40):
        refuses(IndexError, feature.read, torch.tensor([0, outside]))
    refuses(ValueError, feature.read, torch.tensor([0]), torch.empty(2, 3))


def test_a_disk_that_fails_is_an_error_of_the_system(tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)  # reads of it fail
    options = {"begin": 0, "num_rows": 9, "row_bytes": 8, "block": 4096, "direct": False, "depth": 4}
    try:
        with pytest.raises(OSError, match="Is a directory"):
            disk_feature._core.read_rows(folder, np.arange(9), **options)
    finally:
        os.close(folder)


@pytest.mark.parametrize("change", ["cut", "grown", "written", "replaced"])
def test_a_file_that_has_changed(disk, tmp_path, change):
    path = saved(tmp_path / "x.npy", rows_of(1000, (128,)))
    feature, pickled = disk(path), pickle.dumps(dp.DiskFeature(path))
    if change == "replaced":
        saved(tmp_path / "y.npy", rows_of(1000, (128,), seed=1))
        os.replace(tmp_path / "y.npy", path)
        with refused(ValueError, stage="DiskFeature", found="has changed", allowed="it had", remedy="Make a new"):
            pickle.loads(pickled)
        return
    if change == "cut":
        os.truncate(path, 300_000)
    elif change == "grown":
        with path.open("ab") as file:
            file.write(b"more")
    else:
        os.utime(path, ns=(0, 0))
    for call in (lambda: feature.read(torch.tensor([999])), lambda: pickle.loads(pickled)):
        with refused(ValueError, stage="DiskFeature", found="has changed", allowed="it had", remedy="Make a new"):
            call()


def test_what_cannot_be_opened(tmp_path, refuses):
    with pytest.raises(FileNotFoundError):
        dp.DiskFeature(tmp_path / "nothing.npy")
    (tmp_path / "text.npy").write_bytes(b"hello")
    with refused(ValueError, stage="DiskFeature", found="no .npy file", allowed="", remedy="Write it with numpy.save"):
        dp.DiskFeature(tmp_path / "text.npy")
    for content in (b"hello", b""):
        (tmp_path / "text.rows").write_bytes(content)
        refuses(ValueError, dp.DiskFeature, tmp_path / "text.rows")
    np.save(tmp_path / "f.npy", np.asfortranarray(np.zeros((5, 3))))
    refuses(ValueError, dp.DiskFeature, tmp_path / "f.npy")
    path = saved(tmp_path / "x.npy", rows_of(10, (3,)))
    refuses(ValueError, dp.DiskFeature, path, num_threads=0)
    refuses(TypeError, dp.DiskFeature, path, num_threads="4")
    refuses(TypeError, dp.DiskFeature, path, direct=1)


def test_a_rows_file_that_was_cut_off_or_has_another_header(tmp_path, refuses):
    path = tmp_path / "x.rows"
    dp.DiskFeature.write(path, rows_of(100, (4,)), stored_as="int8")
    whole = path.read_bytes()
    for broken in (
        whole[:-1],
        whole + b"x",
        whole.replace(b'"version": 1', b'"version": 2', 1),
        whole.replace(b'"shape": [100', b'"shape": [101', 1),
        whole.replace(b'"stored_as": "int8"', b'"stored_as": "int9"', 1),
        whole.replace(b'"begin": ', b'"begin": 1', 1),
        whole[:100],
    ):
        path.write_bytes(broken)
        refuses(ValueError, dp.DiskFeature, path)


def test_what_cannot_be_written(tmp_path, monkeypatch, refuses):
    rows, path = rows_of(10, (3,)), tmp_path / "x.rows"
    refuses(ValueError, dp.DiskFeature.write, tmp_path / "x.npy", rows)
    refuses(ValueError, dp.DiskFeature.write, path, lambda: [rows, rows_of(5, (4,))])
    refuses(ValueError, dp.DiskFeature.write, path, list)
    refuses(TypeError, dp.DiskFeature.write, path, rows.double(), stored_as="int8")
    refuses(ValueError, dp.DiskFeature.write, path, rows.fill_(torch.nan), stored_as="int8")
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda _: namedtuple("usage", "free")(10))
    with pytest.raises(OSError, match="10 are left") as caught:
        dp.DiskFeature.write(path, rows)
    assert caught.value.errno == errno.ENOSPC
    assert [*tmp_path.iterdir()] == []
