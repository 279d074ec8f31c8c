"""Files of torch.save that would keep torch's loader busy for ever are told from others before it sees them."""

import pickle
import zipfile
from collections import OrderedDict, defaultdict

import pytest
import torch
from scripts import run_script

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


def doubled(depth: int, empty: bytes, item: bytes) -> bytes:
    """Operations that make lists or dicts, each used twice by the next."""
    made = empty + b"q\x00"
    for level in range(depth):
        use = b"h" + bytes([level])
        made += empty + b"q" + bytes([level + 1]) + item.replace(b"1", use) + item.replace(b"1", use)
    return made


CALLED = b")R."  # the value is called: the loader's message has all of it


@pytest.mark.parametrize("ends", [b".", CALLED])
@pytest.mark.parametrize(
    "value",
    [
        doubled(100, b"]", b"1a"),
        doubled(100, b"}", b"(K\x001K\x011u"),
        doubled(40, b"]", b"(11e"),
        doubled(60, b"]", b"1\x85a"),  # in tuples of one
        b"ccollections\nOrderedDict\n)R" + doubled(100, b"]", b"1a") + b"b",
    ],
)
def test_lists_and_dicts_that_take_for_ever_to_write_out_are_refused(tmp_path, value, ends):
    path = tmp_path / "graph.pt"
    write(path, b"\x80\x02" + value + ends)
    with pytest.raises(ValueError, match=r"graph\.pt cannot be read .*more than (4194304|1024) values"):
        load_plain(path)


def test_lists_that_are_filled_after_they_are_used_are_counted(tmp_path):
    """From the outermost to the innermost: each is empty when the one around it is filled."""
    content = b"\x80\x02" + b"".join(b"]q" + bytes([level]) for level in range(60))
    stack = b"".join(b"0h" + bytes([level]) + (b"h" + bytes([level - 1]) + b"a") * 2 for level in range(59, 0, -1))
    path = tmp_path / "graph.pt"
    write(path, content + stack + b"0h" + bytes([59]) + CALLED)
    with pytest.raises(ValueError, match="more than 4194304 values"):
        load_plain(path)


def test_a_long_text_that_is_used_often_is_counted(tmp_path):
    text = b"X" + (2**20).to_bytes(4, "little") + b"x" * 2**20 + b"q\x00"
    write(tmp_path / "graph.pt", b"\x80\x02" + text + b"0](" + b"h\x00" * 1000 + b"e" + CALLED)
    with pytest.raises(ValueError, match="more than 4194304 values"):
        load_plain(tmp_path / "graph.pt")


def test_a_value_that_holds_itself_is_refused(tmp_path):
    write(tmp_path / "graph.pt", b"\x80\x02]q\x00h\x00a.")
    with pytest.raises(ValueError, match="holds itself"):
        load_plain(tmp_path / "graph.pt")


def test_compressed_entries_and_those_larger_than_the_file_are_refused(tmp_path):
    path = tmp_path / "graph.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps("x" * 10**6, 2))
    with pytest.raises(ValueError, match=r"graph\.pt cannot be read .*entries are compressed"):
        load_plain(path)
    write(path, pickle.dumps("x" * 1000, 2))
    with zipfile.ZipFile(path, "a") as archive:
        archive.filelist.extend(archive.filelist[:1] * 2)  # three names of the same bytes
        archive._didModify = True
    with pytest.raises(ValueError, match=r"graph\.pt cannot be read .*(entries are larger than the file|verlap)"):
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


def test_marks_without_end_are_walked_once(tmp_path):
    """Each mark lies above all tuples before it: a search for it among them would take minutes."""
    write(tmp_path / "file.pt", b"\x80\x02" + b"(t" * 2**19 + b".")
    script = "from pathlib import Path\nfrom datapipes.partition.pyg.pickle_scan import refuse_endless\n"
    ended = run_script(f"{script}refuse_endless(Path({str(tmp_path / 'file.pt')!r}))")
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("operations", "said"),
    [
        (b"}p123456789012345678901234567890\n.", "operation PUT, which torch.save does not write"),
        (b"}q\x00g0\n.", "operation GET, which torch.save does not write"),
        (b"}\x8a\x09" + b"\x01" * 9 + b"K\x01s.", "a number in it has more than 64 bits"),
        (b"}L" + b"1" * 30 + b"L\nK\x01s.", "a number in it has more than 64 bits"),
        (b"]K\x01(a.", "operation APPEND takes more values than there are"),
        (b"a.", "operation APPEND takes more values than there are"),
    ],
)
def test_operations_that_could_take_for_ever_or_take_what_is_not_there_are_refused(tmp_path, operations, said):
    write(tmp_path / "file.pt", b"\x80\x02" + operations)
    with pytest.raises(ValueError, match=rf"file\.pt cannot be read as a file of torch\.save: .*{said}"):
        load_plain(tmp_path / "file.pt")
