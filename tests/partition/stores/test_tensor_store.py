"""TensorStore: rows by global id, whatever their order, for several threads at once."""

import pickle

import pytest
import torch

from datapipes.distributed import LocalFeatureStore
from datapipes.partition.stores import local_store


def store_of(ids, dtype=torch.int64) -> LocalFeatureStore:
    store = LocalFeatureStore()
    store.put_global_id(torch.tensor(ids, dtype=dtype), "paper")
    store.put_tensor(torch.arange(len(ids)), "paper", "row")
    return store


def rows(store: LocalFeatureStore, *ids: int) -> list[int]:
    return store.get_tensor_from_global_id("paper", "row", torch.tensor(ids, dtype=torch.int64)).tolist()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("ids", [[], [4], [1, 3, 9], [9, 1, 3, 0], [10**9, 2, 0], [-(10**9), 5, 6]])
def test_the_row_of_each_id_and_whether_it_is_there(ids, dtype):
    store = store_of(ids, dtype)
    for _ in range(2):  # the second call finds what the first one made
        assert rows(store, *sorted(ids)) == [ids.index(number) for number in sorted(ids)]
        for missing in {*range(-1, 12)} - {*ids}:
            with pytest.raises(IndexError, match=f"does not have the id {missing} of 'paper'"):
                rows(store, *ids, missing)


def test_an_id_that_is_there_twice_is_refused(refuses):
    for ids in ([3, 1, 3], [10**9, 3, 3, 0], [3, 3]):
        refuses(ValueError, rows, store_of(ids), 3)


def test_a_thread_that_asks_while_another_makes_what_finds_rows_gets_its_rows(monkeypatch):
    store, answers = store_of([9, 1, 3, 0]), []

    def asked_meanwhile(ids):
        monkeypatch.undo()
        answers.append(rows(store, 9, 0))
        return made(ids)

    made = local_store.OwnRows
    monkeypatch.setattr(local_store, "OwnRows", asked_meanwhile)
    assert rows(store, 1, 9) == [1, 0]
    assert answers == [[0, 3]]


def test_a_store_that_was_asked_goes_to_another_process():
    store = store_of([9, 1, 3, 0])
    assert rows(pickle.loads(pickle.dumps(store)), 1) == rows(store, 1) == [1]
    assert rows(pickle.loads(pickle.dumps(store)), 0) == [3]
