"""Files of torch.save that would keep torch's loader busy for ever are told from others before it sees them."""

import pickle
import zipfile
from collections import OrderedDict, defaultdict

import pytest
import torch

from datapipes.partition.pyg import pickle_scan
from datapipes.partition.pyg.pickle_scan import refuse_endless
from datapipes.partition.pyg.torch_file import load_plain


def write(path, content: bytes, *, more=()):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/version", "3\n")
        for name in more:
            archive.writestr(name, content)


def nested(depth: int):
    """Tuples of tuples, each used twice: 2^depth values in a few bytes a level."""
    value = ("x",)
    for _ in range(depth):
        value = (value, value)
    return value


def endless(depth: int) -> bytes:
    """The pickle of {nested(depth): 1}; the key is put in by hand, since a dict here would hash it."""
    value = pickle.dumps(nested(depth), 2)
    return value[:2] + b"}" + value[2:-1] + b"K\x01s."


def test_a_key_that_takes_for_ever_to_hash_is_refused(tmp_path):
    path = tmp_path / "graph.pt"
    write(path, endless(200))
    with pytest.raises(ValueError, match=r"graph\.pt cannot be read as a file of torch\.save: .*more than 1024 values"):
        load_plain(path)


def test_the_key_of_this_test_is_one():
    assert pickle.loads(endless(3)) == {nested(3): 1}


@pytest.mark.parametrize(
    "value",
    [
        {"a": torch.arange(5), ("a", "r", "b"): {"size": (3, 4), "row": torch.zeros(0)}},
        defaultdict(dict, {("a", "r", "b"): {"feats": {"x": torch.rand(2, 2)}}}),
        OrderedDict(x=[1, 2.5, None, True, "text"], y=()),
        {f"t{i}": torch.zeros(1) for i in range(3000)},
        torch.arange(3),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_what_torch_saves_passes(tmp_path, value, protocol):
    path = tmp_path / "file.pt"
    torch.save(value, path, pickle_protocol=protocol)
    refuse_endless(path)


@pytest.mark.parametrize("more", [("other/data.pkl",), ("archive/sub/data.pkl",)])
def test_two_pickles_are_refused(tmp_path, more):
    write(tmp_path / "file.pt", pickle.dumps({}, 2), more=more)
    with pytest.raises(ValueError, match="not one pickle"):
        refuse_endless(tmp_path / "file.pt")


def test_a_pickle_of_any_size_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(pickle_scan, "MOST_BYTES", 100)
    write(tmp_path / "file.pt", pickle.dumps("x" * 200, 2))
    with pytest.raises(ValueError, match="up to 100 bytes"):
        refuse_endless(tmp_path / "file.pt")
