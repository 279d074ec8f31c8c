"""Files of torch.save: what torch reads is read alike, and what would keep a reader busy for ever is refused."""

import pickle
import struct
import zipfile
from collections import OrderedDict, defaultdict

import pytest
import torch
from scripts import run_script

from datapipes.partition.pyg import torch_file
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


@pytest.fixture
def refused(refuses, tmp_path):
    """A function that writes a pickle into a file of torch.save, which is not read."""

    def refuse(content: bytes, *, more=()):
        write(tmp_path / "graph.pt", content, more=more)
        refuses(ValueError, load_plain, tmp_path / "graph.pt")

    return refuse


def doubled(depth: int, empty: bytes, item: bytes) -> bytes:
    """Operations that make lists or dicts, each used twice by the next."""
    made = empty + b"q\x00"
    for level in range(depth):
        use = b"h" + bytes([level])
        made += empty + b"q" + bytes([level + 1]) + item.replace(b"1", use) + item.replace(b"1", use)
    return made


CALLED = b")R."  # the value is called: a message with all of it would never end
ENDS = ((b"0", CALLED), (b"", CALLED), (b"", b"."))  # whether each value is popped, and the end


def test_what_takes_for_ever_to_hash_or_to_write_out_is_refused(refused):
    refused(endless(200))
    for value in (
        doubled(100, b"]", b"1a"),
        doubled(100, b"}", b"(K\x001K\x011u"),
        doubled(40, b"]", b"(11e"),
        doubled(60, b"]", b"1\x85a"),  # in tuples of one
    ):
        for ends in (b".", CALLED):
            refused(b"\x80\x02" + value + ends)
    refused(b"\x80\x02]q\x00h\x00a.")  # holds itself


@pytest.mark.parametrize("ends", [b".", CALLED])
def test_what_is_put_into_a_dict_as_its_state_is_refused(refused, ends):
    made = b"\x80\x02ccollections\nOrderedDict\n)R"
    refused(made + doubled(2, b"]", b"1a") + b"b" + ends)
    refused(made + doubled(100, b"]", b"1a")[:-6] + b"b" + ends)


def test_values_that_are_used_often_are_counted(refused):
    """Lists from the outermost to the innermost: each is empty when the one around it is filled. And a long text."""
    lists = b"".join(b"]q" + bytes([level]) for level in range(60))
    text = b"X" + (2**20).to_bytes(4, "little") + b"x" * 2**20 + b"q\x00"
    for pops, ends in ENDS:
        filled = [pops + b"h" + bytes([level]) + (b"h" + bytes([level - 1]) + b"a") * 2 for level in range(59, 0, -1)]
        refused(b"\x80\x02" + lists + b"".join(filled) + pops + b"h" + bytes([59]) + ends)
        refused(b"\x80\x02" + text + pops + b"](" + b"h\x00" * 1000 + b"e" + ends)


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
    load_plain(path)


def test_two_pickles_and_a_pickle_of_any_size_are_refused(refused, monkeypatch):
    for name in ("other/data.pkl", "archive/sub/data.pkl"):
        refused(pickle.dumps({}, 2), more=(name,))
    monkeypatch.setattr(torch_file, "MOST_BYTES", 100)
    refused(pickle.dumps("x" * 200, 2))


def test_marks_without_end_are_walked_once(tmp_path):
    """Each mark lies above all tuples before it: a search for it among them would take minutes."""
    write(tmp_path / "file.pt", b"\x80\x02" + b"(t" * 2**19 + b".")
    script = "from pathlib import Path\nfrom datapipes.partition.pyg.torch_file import load_plain\n"
    ended = run_script(f"{script}load_plain(Path({str(tmp_path / 'file.pt')!r}))")
    assert ended.returncode == 0, ended.stderr


def test_operations_that_could_take_for_ever_or_take_what_is_not_there_are_refused(refused):
    for operations in (
        b"}p123456789012345678901234567890\n.",
        b"}q\x00g0\n.",
        b"}\x8a\x09" + b"\x01" * 9 + b"K\x01s.",
        b"}L" + b"1" * 30 + b"L\nK\x01s.",
        b"]K\x01(a.",
        b"a.",
    ):
        refused(b"\x80\x02" + operations)


def test_a_key_whose_hash_a_file_could_choose_is_refused(refused):
    one = b"G" + struct.pack(">d", 1.0)
    for key in (b"K\x01\x85", b"K\x01\x85\x85", b"N", one, b"]", b"}", b"\x89\x85"):
        refused(b"\x80\x02}" + key + b"K\x01s.")


COUNTED = torch.arange(24).reshape(6, 4)
COMPLEX = torch.complex(COUNTED.float(), -COUNTED.float())
DTYPES = {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
PLAIN = sorted((each for each in DTYPES if not str(each).startswith(("torch.q", "torch.bits"))), key=str)


def bits(tensor):
    return tensor.resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", PLAIN, ids=str)
@pytest.mark.parametrize("order", ["little", "big"])
def test_a_tensor_of_any_dtype_and_byte_order_comes_back(tmp_path, dtype, order):
    size, path = dtype.itemsize, tmp_path / "file.pt"
    values = (torch.arange(6 * size) % 2).to(torch.uint8)  # such bytes are bools, too
    try:
        torch.save(values.view(dtype), path)
    except (RuntimeError, KeyError, NotImplementedError):
        pytest.skip(f"torch does not save {dtype}")
    if order == "big":
        with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "big.pt", "w") as new:
            for name in old.namelist():
                new.writestr(name, b"big" if name.endswith("byteorder") else old.read(name))
        path = tmp_path / "big.pt"
        unit = size // 2 if dtype.is_complex else size
        values = values.view(-1, unit).flip(1).flatten()
    found = load_plain(path)
    assert found.dtype == dtype
    assert torch.equal(found.view(torch.uint8), values)
    assert found.data_ptr() % size == 0


@pytest.mark.parametrize(
    "tensor",
    [
        COUNTED.t(),
        COUNTED[1:5:2, 1:3],
        COUNTED[0, 0],
        torch.arange(3).expand(2, 3),
        torch.zeros(0, 2),
        torch.zeros(2, requires_grad=True),
        COMPLEX.conj(),
        COMPLEX.conj().imag,
        COMPLEX.conj().imag[1:, ::2],
    ],
)
def test_a_tensor_is_what_torch_reads(tmp_path, tensor):
    torch.save({"a": tensor, "b": [tensor, tensor]}, tmp_path / "file.pt")
    found, expected = load_plain(tmp_path / "file.pt"), torch.load(tmp_path / "file.pt", weights_only=True)
    for one, other in ((found["a"], expected["a"]), (found["b"][1], expected["b"][1])):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        assert (one.is_conj(), one.is_neg(), one.requires_grad) == (other.is_conj(), other.is_neg(), False)
        assert torch.equal(bits(one), bits(other.detach()))
