"""Objects packed for workers arrive equal; large tensors arrive as mappings of memory that all workers share."""

import gc
import io
import mmap
import multiprocessing
import os
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from amounts import ranked
from channels import BOUND_S, DTYPES, Child, descriptors_from_now, random_tensor
from hypothesis import given
from hypothesis import strategies as st
from strategies import random_graph

import datapipes as dp
from datapipes import _core
from datapipes.processes import sharing
from datapipes.processes.sharing import Packed, pack, share_memory

METHODS = ["forkserver", "spawn"]  # the start methods that pickle arguments
MEMFD = "/memfd:datapipes (deleted)"  # as /proc names it
ROWS, COLUMNS = 182, 190  # with one byte per value the tensor is larger than sharing.SMALL
WITHOUT_VALUES = {"is empty", "has no width", "is empty, of a large one"}


# --- values, and what a child sees of them


def large_tensor(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return random_tensor(dtype, (ROWS, COLUMNS))


def tensors() -> dict[str, torch.Tensor]:
    """One tensor of each form."""
    large, complex_ = large_tensor(), large_tensor(torch.complex64)
    return {
        **{f"has {dtype}": large_tensor(dtype) for dtype in DTYPES},
        **{f"has {dtype}, few": random_tensor(dtype, (3, 2)) for dtype in DTYPES},
        "is one value": torch.tensor(5),
        "is one value of a large one": large[3, 4],
        "is empty": torch.empty(0),
        "is empty, of a large one": large[:0],
        "has no width": torch.empty(5, 0, dtype=torch.int32),
        "is transposed": large.T,
        "has steps": large[1::2, 3::3],
        "is one row": large[7],
        "is one column": large[:, 7],
        "repeats itself": torch.arange(3.0).expand(50_000, 3),
        "is conjugated": complex_.conj(),
        "is conjugated, few": complex_[0].conj(),
        "is negated": complex_.conj().imag,
        "is negated, few": complex_.conj().imag[0],
        "requires a gradient": large_tensor().requires_grad_(),
        "requires a gradient, few": torch.zeros(3, requires_grad=True),
        "requires a gradient, few of many": large_tensor().requires_grad_()[0],
        "is a parameter": torch.nn.Parameter(torch.ones(ROWS, COLUMNS)),
        "is made in inference mode": torch.inference_mode()(torch.arange)(20_000),
        "is sparse": torch.eye(3).to_sparse_coo(),  # small: torch keeps the parts of each one it unpickles
    }


def arrays(folder: Path) -> dict[str, np.ndarray]:
    """One array of each form; maps the files of `write_arrays`."""
    large = large_tensor().numpy()
    read_only = large.copy()
    read_only.flags.writeable = False
    names = np.zeros(5000, [("a", "i4"), ("b", "f8")])
    mapped = np.load(folder / "large.npy", mmap_mode="r")
    return {
        "is contiguous": large,
        "has few values": large[0, :5].copy(),
        "is one value": np.array(5),
        "is empty": np.empty((0, 3)),
        "has steps": large[1::2, 3::3],
        "is transposed": large.T,
        "goes backwards": large[::-1],
        "is read-only": read_only,
        "repeats itself": np.broadcast_to(np.arange(3.0), (50_000, 3)),
        "has the other byte order": large.astype(">f4"),
        "has named columns": names,
        "is of dates": np.arange(5000).astype("datetime64[s]"),
        "has long doubles": np.arange(5000).astype(np.longdouble),
        "is of unsigned": np.arange(20_000, dtype=np.uint16),
        "is mapped": mapped,
        "is mapped, in part": mapped[5:9, ::7],
        "is mapped, and empty": mapped[:0],
        "is mapped from an odd place": np.memmap(folder / "raw.bin", np.int32, "r", 4999, (3, 5)),
        "is mapped, and may be written": np.load(folder / "large.npy", mmap_mode="c"),
    }


def write_arrays(folder: Path) -> Path:
    np.save(folder / "large.npy", random_tensor(torch.float64, (300, 40)).numpy())
    (folder / "raw.bin").write_bytes(np.random.default_rng(4).bytes(9000))
    return folder


def large_graph() -> dp.CSCGraph:
    """A graph whose arrays are all too large to travel by value."""
    indptr, indices = random_graph(5000, 20_000, rng_seed=1)
    weight = torch.arange(len(indices)).bfloat16()
    return dp.CSCGraph(indptr, indices, edge_attributes={"weight": weight})


def tensors_of(graph: dp.CSCGraph) -> dict[str, torch.Tensor]:
    return {"indptr": graph.indptr, "indices": graph.indices, **graph.edge_attributes}


def bytes_of(value: Any) -> bytes:
    """The bytes of the values in row-major order, in the order of indexing."""
    if isinstance(value, np.ndarray):
        return (value.astype(np.float64) if value.dtype == np.longdouble else value).tobytes()  # without its padding
    value = value.detach()
    if value.is_sparse:
        return bytes_of(value.coalesce().values()) + bytes_of(value.coalesce().indices())
    flat = value.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def form_of(value: Any) -> tuple:
    if isinstance(value, np.ndarray):
        return np.ndarray, value.dtype, value.shape
    return type(value), value.dtype, value.shape, value.layout, value.requires_grad


def different(got: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """The names whose values differ between `got` and `wanted` in any bit."""
    assert list(got) == list(wanted)
    return [name for name in wanted if not same(got[name], wanted[name])]


def same(got: Any, wanted: Any) -> bool:
    return form_of(got) == form_of(wanted) and bytes_of(got) == bytes_of(wanted)


def file_at(value: Any) -> str:
    """The file that /proc lists as mapped at the first value."""
    address = value.data_ptr() if isinstance(value, torch.Tensor) else value.ctypes.data
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        begin, end = line.split(maxsplit=1)[0].split("-")
        if int(begin, 16) <= address < int(end, 16):
            return " ".join(line.split(maxsplit=5)[5:])
    return ""


def num_memories() -> int:
    """The number of descriptors and mappings of shared memory in this process."""
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "datapipes-huge-pages":  # the thread keeps its memory
            thread.join(BOUND_S)
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    count = sum(line.endswith(MEMFD) for line in maps)
    for number in os.listdir("/proc/self/fd"):
        path = Path("/proc/self/fd", number)
        count += path.is_symlink() and os.readlink(path) == MEMFD  # the descriptor of listdir itself is gone by now
    return count


def everything(folder: Path) -> dict[str, Any]:
    opened = dp.CSCGraph.open(folder / "graph", mmap=True)
    return {"tensors": tensors(), "arrays": arrays(folder), "opened": opened, "made": large_graph()}


def look(packed: Packed, folder: Path) -> dict[str, Any]:
    """Runs in a child: return what differs from the child's own values, and where the arrays of the graphs lie."""
    got, wanted = packed.unpack(), everything(folder)
    found = {
        "differ": different(got["tensors"], wanted["tensors"]) + different(got["arrays"], wanted["arrays"]),
        "graphs": [got[key].digest() for key in ("opened", "made")],
        "opened": {name: file_at(tensor) for name, tensor in tensors_of(got["opened"]).items()},
        "made": {name: file_at(tensor) for name, tensor in tensors_of(got["made"]).items()},
        "mapped array": file_at(got["arrays"]["is mapped"]),
        "in use": num_memories() > 0,
    }
    del got, wanted
    packed.memories.clear()
    return {**found, "left": num_memories()}


def read_and_write(packed: Packed, connection: Any) -> list[int]:
    """Runs in a child: signal that the tensor has arrived, wait for the parent, write; return what the parent wrote."""
    tensor = packed.unpack()
    connection.send("here")
    connection.recv()
    read = tensor.tolist()
    tensor[1] = 8
    return read


# --- the object arrives equal


@pytest.mark.parametrize("method", ranked(METHODS, 1))
def test_a_child_gets_equal_values_and_maps_what_its_parent_maps(method, tmp_path):
    large_graph().save(write_arrays(tmp_path) / "graph")
    before = num_memories()
    packed = pack(everything(tmp_path))
    with Child(look, packed, tmp_path, method=method) as child:
        found = child.result()
    assert found["differ"] == []
    assert found["graphs"] == [large_graph().digest()] * 2
    names = ("indptr", "indices", "weight")
    assert found["opened"] == dict.fromkeys(names, str(tmp_path / "graph" / "arrays.npy"))
    assert found["made"] == dict.fromkeys(names, MEMFD)
    assert found["mapped array"] == str(tmp_path / "large.npy")
    assert (found["in use"], found["left"]) == (True, 0)
    del packed
    assert num_memories() == before  # starting a process leaves none behind either


@pytest.mark.parametrize("small", [0, sharing.SMALL], ids=["as handles", "small by value"])
def test_each_form_arrives_in_this_process_too(small, tmp_path, monkeypatch):
    monkeypatch.setattr(sharing, "SMALL", small)
    write_arrays(tmp_path)
    assert different(pack(tensors()).unpack(), tensors()) == []
    assert different(pack(arrays(tmp_path)).unpack(), arrays(tmp_path)) == []


@st.composite
def views(draw):
    """A view of random values: strides, offsets, permutations, repetitions."""
    tensor = torch.arange(210).reshape(5, 6, 7)
    for dim in range(3):
        first, step = draw(st.integers(0, 4)), draw(st.integers(1, 3))
        tensor = tensor.narrow(dim, first, draw(st.integers(0, tensor.shape[dim] - first)))
        tensor = tensor[(slice(None),) * dim + (slice(None, None, step),)]
    if draw(st.booleans()):
        tensor = tensor.unsqueeze(0).expand(3, *tensor.shape)
    return tensor.permute(draw(st.permutations(range(tensor.ndim))))


@given(views(), st.booleans(), st.booleans())
def test_any_view_arrives(view, by_value, as_array):
    value = view.numpy() if as_array else view
    with pytest.MonkeyPatch.context() as patch:
        if not by_value:
            patch.setattr(sharing, "SMALL", 0)
        assert same(pack(value).unpack(), value)
        if view.numel():
            shared = share_memory(view)
            assert same(shared, view)
            assert same(pack(shared[1:].mT).unpack(), shared[1:].mT)  # a view of a tensor in shared memory


@pytest.mark.parametrize("shape", [(2, 3), (ROWS, COLUMNS)], ids=["small", "large"])
def test_tensors_inside_other_objects_arrive_in_one_memory(shape):
    tensor = random_tensor(torch.float32, shape)
    array = np.empty(1, object)
    array[0] = tensor  # older numpy than 2 would read a tensor in a list as numbers
    holder = {"a": [tensor, (tensor,)], "b": SimpleNamespace(tensor=tensor), "c": array}
    got = pack(holder).unpack()
    found = [got["a"][0], got["a"][1][0], got["b"].tensor, got["c"][0]]
    assert all(same(each, tensor) for each in found)
    assert len({each.data_ptr() for each in found}) == 1


def test_what_cannot_be_pickled_is_refused():
    opened = descriptors_from_now()
    with pytest.raises(Exception, match="lambda"):
        pack([large_tensor(), lambda: None])
    gc.collect()
    assert opened() == 0


# --- large values travel as handles


@pytest.mark.parametrize("as_array", [False, True])
def test_ten_megabytes_are_not_in_the_pickle(as_array):
    tensor = torch.arange(1_250_000)
    packed = pack(tensor.numpy() if as_array else tensor)
    assert len(packed.data) < 10_000
    assert [len(memory) // 10_000_000 for memory in packed.memories] == [1]  # larger in reserved huge pages
    got = packed.unpack()
    assert file_at(got) == MEMFD
    assert np.array_equal(got, tensor)


@pytest.mark.parametrize("as_array", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("part", [slice(0, 10), slice(0, 0), slice(3, None, 200_000)])
def test_a_small_part_travels_without_the_rest(part, requires_grad, as_array):
    tensor = torch.arange(1_250_000.0, requires_grad=requires_grad)[part]
    packed = pack(tensor.detach().numpy() if as_array else tensor)
    assert len(packed.data) < 10_000
    assert packed.memories == []
    assert packed.unpack().tolist() == tensor.tolist()


@pytest.mark.parametrize("name", ["graph", "two words", "ünï", "a - b (deleted)", "link", "new\nline"])
def test_a_graph_in_files_needs_no_memory_and_no_room_in_the_pickle_whatever_its_folder_is_called(name, tmp_path):
    folder = tmp_path / name
    if name == "link":
        (tmp_path / "to").mkdir()
        folder.symlink_to(tmp_path / "to")
    large_graph().save(folder)
    graph = dp.CSCGraph.open(folder, mmap=True)
    packed = pack(graph)
    assert packed.memories == []
    assert len(packed.data) < 10_000
    assert packed.unpack().digest() == graph.digest() == large_graph().digest()
    assert len(pack(graph.indices[5:9]).data) < 10_000
    assert same(pack(graph.indices.numpy()[5:9]).unpack(), graph.indices.numpy()[5:9])


def test_what_a_child_would_write_does_not_reach_the_file(tmp_path):
    large_graph().save(tmp_path / "graph")
    graph = dp.CSCGraph.open(tmp_path / "graph", mmap=True)
    got = pack(graph).unpack()
    assert file_at(got.indices) == file_at(graph.indices) == str(tmp_path / "graph" / "arrays.npy")
    got.indices.zero_()
    assert same(graph.indices, large_graph().indices)
    assert same(dp.CSCGraph.open(tmp_path / "graph").indices, large_graph().indices)


# --- one copy, however many read it


def test_a_tensor_that_is_packed_twice_is_copied_once():
    tensor = large_tensor()  # NaN, which is not equal to itself, is among its values
    first, second = pack(tensor), pack({"again": [tensor, tensor[:]]})
    assert second.memories == first.memories
    assert len(first.memories) == 1
    numbers = [os.stat(f"/proc/self/fd/{packed.memories[0].descriptor}").st_ino for packed in (first, second)]
    assert numbers[0] == numbers[1]
    a, b = first.unpack(), second.unpack()["again"]
    a[0] = 5.0
    assert [value[0, 0].item() for value in b] == [5.0, 5.0]


def test_threads_that_pack_one_tensor_copy_it_once():
    tensor = large_tensor()
    before = num_memories()
    with ThreadPoolExecutor(4) as threads:
        packed = list(threads.map(pack, [tensor] * 8))
    assert len({id(memory) for each in packed for memory in each.memories}) == 1
    assert num_memories() == before + 2  # a mapping and its descriptor


def test_what_was_unpacked_is_packed_again_without_a_copy():
    packed = pack(large_tensor())
    got = packed.unpack()
    again = pack([got, got.T, got[3:, 5:]])
    assert [memory.descriptor for memory in again.memories] == [memory.descriptor for memory in packed.memories]
    assert different(dict(enumerate(again.unpack())), dict(enumerate([got, got.T, got[3:, 5:]]))) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor.fill_(-1),
        lambda tensor: tensor.numpy().fill(-1),
        lambda tensor: tensor.data.fill_(-1),
        lambda tensor: tensor[-1].fill_(-1),
        lambda tensor: tensor[0, 0].neg_(),  # 0.0 to -0.0
    ],
    ids=["in place", "through NumPy", "through .data", "in part", "in a sign"],
)
@pytest.mark.parametrize("as_array", [False, True])
def test_a_tensor_that_was_changed_in_between_is_copied_anew(change, as_array):
    tensor = torch.zeros(ROWS, COLUMNS)
    value = tensor.numpy() if as_array else tensor
    first = pack(value)
    change(tensor)
    second = pack(value)
    assert same(second.unpack(), value)
    assert not first.unpack().any()  # what was packed is as it was
    assert first.memories != second.memories
    assert pack(value).memories == second.memories


def test_what_a_worker_writes_is_not_packed_again():
    tensor = torch.zeros(ROWS, COLUMNS)
    first = pack(tensor)
    first.unpack().fill_(1)
    assert not tensor.any()
    assert not pack(tensor).unpack().any()


def test_another_tensor_at_the_same_address_is_copied_anew():
    memory = bytearray(4 * ROWS * COLUMNS)
    first = pack(torch.frombuffer(memory, dtype=torch.float32))
    memory[:4] = np.float32(9).tobytes()
    second = pack(torch.frombuffer(memory, dtype=torch.float32))
    assert (first.unpack()[0].item(), second.unpack()[0].item()) == (0.0, 9.0)
    third = pack(torch.frombuffer(memory, dtype=torch.int32))
    assert (third.unpack().dtype, third.unpack()[1].item()) == (torch.int32, 0)


# --- files that change


def rewrite(path: Path) -> None:
    """Write other values of the same size in place. Set the time of change, since the clock may not have advanced."""
    with path.open("r+b") as file:
        file.seek(-80, os.SEEK_END)
        file.write(bytes(80))
    os.utime(path, ns=(1, 1))


def replace(path: Path) -> None:
    rewritten = path.with_suffix(".new")
    rewritten.write_bytes(path.read_bytes())
    rewrite(rewritten)
    os.replace(rewritten, path)


def remove(path: Path) -> None:
    path.unlink()


CHANGES = pytest.mark.parametrize("change", [rewrite, replace, remove])


@pytest.fixture
def file(tmp_path) -> Path:
    """The file of the arrays of a graph."""
    large_graph().save(tmp_path / "graph")
    return tmp_path / "graph" / "arrays.npy"


@CHANGES
def test_all_arrays_of_a_file_changed_since_it_was_mapped_are_copied_as_this_process_sees_them(change, file):
    graph = dp.CSCGraph.open(file.parent, mmap=True)
    change(file)
    packed = pack(graph)
    assert sorted(map(len, packed.memories)) == sorted(each.nbytes for each in tensors_of(graph).values())
    copied = packed.unpack()
    assert all(same(each, tensors_of(graph)[name]) for name, each in tensors_of(copied).items())
    assert len(pack(graph.indices[:10]).data) < 10_000


@CHANGES
def test_an_array_whose_file_was_changed_before_it_was_ever_packed_arrives_as_this_process_sees_it(change, file):
    array = np.load(file, mmap_mode="r")
    change(file)
    packed = pack(array)
    assert same(packed.unpack(), array)
    assert len(packed.memories) == (change is not rewrite)  # all processes see what is written in place


@CHANGES
def test_a_file_changed_after_packing_is_refused(change, file):
    packed = pack(dp.CSCGraph.open(file.parent, mmap=True))
    opened = descriptors_from_now()
    change(file)
    if change is remove:
        with pytest.raises(FileNotFoundError, match=str(file)):
            packed.unpack()
    else:
        with pytest.raises(ValueError, match=f"datapipes.*{file} has changed.*new files"):
            packed.unpack()
    gc.collect()
    assert opened() == 0


# --- memory that is shared to be written to


def test_parent_and_child_see_what_the_other_writes():
    board = share_memory(torch.zeros(4, dtype=torch.int64))
    here, there = multiprocessing.Pipe()
    with here, there, Child(read_and_write, pack(board), there, method="forkserver") as child:
        assert here.poll(BOUND_S)
        board[0] = 7
        here.send("written")
        assert child.result() == [7, 0, 0, 0]
    assert board.tolist() == [7, 8, 0, 0]


@pytest.mark.parametrize("name", sorted(set(tensors()) - WITHOUT_VALUES - {"is sparse", "is a parameter"}))
def test_a_shared_copy_holds_the_same_values(name):
    tensor = tensors()[name]
    shared = share_memory(tensor)
    assert shared is not tensor
    assert (shared.dtype, shared.shape, bytes_of(shared)) == (tensor.dtype, tensor.shape, bytes_of(tensor))
    assert shared.is_contiguous()
    assert not shared.requires_grad
    assert file_at(shared) == MEMFD


def test_what_is_shared_already_or_has_no_values_is_returned_as_it_is(file):
    shared = share_memory(torch.arange(10))
    part = shared[3:]
    mapped = dp.CSCGraph.open(file.parent, mmap=True).indices
    for tensor in (shared, part, mapped, *(tensors()[name] for name in sorted(WITHOUT_VALUES))):
        assert share_memory(tensor) is tensor
    assert pack(part).unpack().tolist() == part.tolist()


def test_writes_to_a_shared_copy_reach_no_other_copy():
    tensor = torch.zeros(ROWS, COLUMNS)
    packed = pack(tensor)
    first, second = share_memory(tensor), share_memory(tensor)
    first.fill_(7)
    assert not tensor.any()
    assert not second.any()
    assert not packed.unpack().any()
    assert not pack(tensor).unpack().any()


# --- costs, and leftovers


def pack_and_unpack(value: Any) -> None:
    packed = pack(value)
    first, second = packed.unpack(), packed.unpack()
    assert pack([first, second]).memories == packed.memories


def test_no_descriptor_or_mapping_is_left(tmp_path):
    large_graph().save(write_arrays(tmp_path) / "graph")
    pack_and_unpack(torch.zeros(ROWS, COLUMNS))
    before, opened = num_memories(), descriptors_from_now()
    for value in (tensors()["is conjugated"], large_tensor().numpy(), large_graph()):
        pack(value).unpack()
    pack_and_unpack(large_tensor())
    pack_and_unpack(dp.CSCGraph.open(tmp_path / "graph", mmap=True))
    pack_and_unpack(arrays(tmp_path)["is mapped"])
    share_memory(share_memory(large_tensor())[1:])
    assert (num_memories(), opened()) == (before, 0)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text(encoding="utf-8")


def test_a_descriptor_lives_as_long_as_something_needs_it():
    before = num_memories()
    packed = pack(large_tensor())
    got = packed.unpack()
    del packed
    assert num_memories() == before + 2  # the mapping and its descriptor, kept for packing it again
    row = pack(got[3]).unpack()
    del got
    assert num_memories() == before + 2
    assert same(row, large_tensor()[3])
    del row
    assert num_memories() == before


def test_a_copy_does_not_keep_its_original_alive():
    memory = mmap.mmap(-1, 4 * ROWS * COLUMNS)
    alive = weakref.ref(memory)
    tensor = torch.frombuffer(memory, dtype=torch.float32)
    packed, shared = pack([tensor, tensor.numpy()]), share_memory(tensor)
    del memory, tensor
    gc.collect()
    assert alive() is None
    assert not packed.unpack()[0].any()
    assert not shared.any()


@pytest.mark.parametrize("make", [pack, share_memory])
def test_a_copy_for_which_there_is_no_room_is_refused(make):
    tensor = torch.zeros(1).expand(2**44)  # an expanded view, which does not use so much memory itself
    opened = descriptors_from_now()
    with pytest.raises(MemoryError, match=rf"datapipes.*{tensor.nbytes} bytes .* asked.* \d+ are left by"):
        make(tensor)
    gc.collect()
    assert opened() == 0


def test_what_needs_no_copy_needs_no_room(file, monkeypatch):
    shared = share_memory(large_tensor())
    monkeypatch.delattr(_core, "SharedMemory")  # makes copying impossible
    graph = dp.CSCGraph.open(file.parent, mmap=True)
    assert pack(graph).unpack().digest() == large_graph().digest()
    assert same(pack(shared).unpack(), shared)
    assert pack(torch.arange(3)).unpack().tolist() == [0, 1, 2]


def test_a_tensor_on_a_gpu_is_refused(refuses):
    on_gpu = SimpleNamespace(device=torch.device("cuda", 1), shape=torch.Size([2, 3]))  # a stand-in
    pickler = sharing._Pickler(io.BytesIO())
    refuses(TypeError, pickler._handle, on_gpu, False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_real_tensor_on_a_gpu_is_refused():
    with pytest.raises(TypeError, match=r"datapipes.*cuda:0, shape \[2\].*host memory"):
        pack([torch.zeros(2, device="cuda")])
    assert share_memory(torch.ones(2, device="cuda")).tolist() == [1, 1]


def test_other_threads_may_map_memory_while_a_tensor_is_looked_for():
    large = torch.arange(20_000)
    here = [share_memory(torch.ones(1)) for _ in range(100)]  # many mappings to search
    packed = pack(large)

    def map_and_unmap() -> None:
        for number in range(150):
            assert share_memory(torch.tensor([number])).item() == number

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as threads:
            mapping = [threads.submit(map_and_unmap) for _ in range(2)]
            while not all(future.done() for future in mapping):
                assert pack(large).memories == packed.memories
            assert [future.result() for future in mapping] == [None, None]
    finally:
        sys.setswitchinterval(interval)
    assert len(here) == 100
