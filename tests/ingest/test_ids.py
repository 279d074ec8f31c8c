"""Numbers of ids: by first occurrence, for every kind of id that Arrow holds, in any batches, from several threads."""

import uuid
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pipelines import BOUND_S

from datapipes import _core
from datapipes.ingest.ids import Ids, Names, StoredIds, WrongCell

UUIDS = [uuid.UUID(int=number) for number in (5, 3)]


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        (pa.array(["b", "a", None, "b"]), ["b", "a"]),
        (pa.array(["b", "a", None, "b"], pa.large_string()), ["b", "a"]),
        (pa.array(["b", "a", None, "b"], pa.string_view()), ["b", "a"]),
        (pa.array(["b", "a", None, "b"]).dictionary_encode(), ["b", "a"]),
        (pa.array(["x", "b", "a", None, "b"])[1:], ["b", "a"]),
        (pa.array(np.array([7, 3, np.nan, 7], np.float16), from_pandas=False), [7, 3]),
        (pa.array([b"\xff", b"", None, b"\xff"]), [b"\xff", b""]),
        (pa.array([b"ab", b"cd", None, b"ab"], pa.binary(2)), [b"ab", b"cd"]),
        (pa.array([7, -(2**63), None, 7]), [7, -(2**63)]),
        (pa.array([7, 8, None, 7], pa.uint8()), [7, 8]),
        (pa.array([7.0, 8.0, float("nan"), 7.0]), [7, 8]),
        (pa.array([UUIDS[0].bytes, UUIDS[1].bytes, None, UUIDS[0].bytes], pa.uuid()), [*map(str, UUIDS)]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_ids_of_every_kind_are_numbered_by_first_occurrence(cells, names):
    ids = Ids()
    assert ids.number([cells], add=True).tolist() == [[0, 1, -1, 0]]
    assert list(Names(ids)) == names
    assert Names(ids).numbers(names[::-1]).tolist() == [1, 0]
    assert ids.number([cells], add=False).tolist() == [[0, 1, -1, 0]]


def test_columns_without_a_single_id_have_no_kind():
    ids = Ids()
    for empty in (pa.nulls(2), pa.array([None, None], pa.string()), pa.array([], pa.int64())):
        assert ids.number([empty], add=True).tolist() == [[-1] * len(empty)]
    assert (ids.kind, ids.count, list(Names(ids))) == ("", 0, [])
    assert ids.number([pa.nulls(2), pa.array([5, None])], add=True).tolist() == [[-1, -1], [0, -1]]


def test_numbers_are_those_of_pandas_whatever_the_batches():
    drawn = np.random.default_rng(0)
    texts = pa.array(np.char.add("id", drawn.integers(0, 30_000, 100_000).astype(str)))
    expected, names = pd.factorize(texts.to_numpy(zero_copy_only=False))
    ids, found, begin = Ids(), [], 0
    while begin < len(texts):
        size = int(drawn.integers(1, 5000))
        found.append(ids.number([texts[begin : begin + size]], add=True)[0])
        begin += size
    assert np.array_equal(np.concatenate(found), expected)
    assert list(Names(ids)) == names.tolist()
    assert Names(ids)[-1] == names[-1]
    assert Names(ids)[3:5] == Names(ids)[[3, 4]] == Names(ids)[np.array([3, 4])] == names[3:5].tolist()


def test_threads_may_share_the_numbering():
    numbers = _core.IdNumbers("integers", 1)
    ids = np.arange(200_000)
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(numbers.number, [(ids, None)], add=True) for _ in range(4)]
        found = [call.result(BOUND_S) for call in calls]
    assert numbers.count == len(ids)
    assert all(np.array_equal(found[0], each) for each in found)


def test_chosen_names_have_their_own_numbers():
    ids = Ids()
    ids.number([pa.array(["a", "b", "c", "d"])], add=True)
    names = Names(ids).chosen(np.array([2, 0]))
    assert (list(names), names[-1], len(names)) == (["c", "a"], "a", 2)
    assert names.numbers(["a", "b", "c", "e"]).tolist() == [1, -1, 0, -1]


def test_names_are_looked_up_by_tensors_and_those_that_are_no_uuid_are_not_there():
    ids, one = Ids(), uuid.UUID(int=5)
    ids.number([pa.array([one.bytes], pa.uuid())], add=True)
    assert Names(ids).numbers([str(one), "nobody", None]).tolist() == [0, -1, -1]
    assert Names(ids).numbers(pa.array(["nobody", str(one)])).tolist() == [-1, 0]
    numbers = Ids()
    numbers.number([pa.array([7, 9])], add=True)
    assert Names(numbers).numbers(torch.tensor([9, 8])).tolist() == [1, -1]
    assert Names(numbers)[torch.tensor([1, 0])] == [9, 7]


def test_what_is_no_id_is_refused(refuses):
    ids = Ids()
    ids.number([pa.array([1])], add=True)
    for cells in (pa.array(["a"]), pa.array([1, 2.5]), pa.array([2**63], pa.uint64()), pa.array([True])):
        refuses(WrongCell, ids.number, [cells], add=True)
    refuses(ValueError, Names(ids).numbers, ["a"])
    refuses(IndexError, Names(ids).__getitem__, 1)
    for place in (0.5, "0", np.array([True]), torch.tensor([True]), torch.tensor([1.0])):
        refuses(TypeError, Names(ids).__getitem__, place)
    refuses(ValueError, Names(ids).numbers, [2**63])
    refuses(ValueError, Names(ids).numbers, [object()])
    refuses(ValueError, Names(StoredIds("integers", [np.array([5, 5])])).numbers, [5])
    one, other = np.array([0, 1]), np.zeros(1, np.uint8)
    texts, integers = _core.IdNumbers("texts", 0), _core.IdNumbers("integers", 0)
    for numbers, columns in (
        (texts, [(one, None)]),
        (texts, [(np.array([1, 0]), other, None)]),
        (texts, [(np.array([0, 2]), other, None)]),
        (texts, [(np.array([], np.int64), other, None)]),
        (integers, [(one, None), (one[:1], None)]),
        (integers, [(one, other)]),
        (integers, []),
    ):
        refuses(ValueError, numbers.number, columns, add=True)
    refuses(ValueError, _core.IdNumbers, "floats", 0)
    refuses(IndexError, texts.ids, 0, 1)
