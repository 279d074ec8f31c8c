"""IdRows: rows by id, whatever their order, for several threads at once."""

import pytest
import torch
from pipelines import refused

from datapipes.partition.stores.tensor_store import IdRows


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("ids", [[], [4], [1, 3, 9], [9, 1, 3, 0]])
def test_the_row_of_each_id_and_whether_it_is_there(ids, dtype):
    rows = IdRows("here", torch.tensor(ids, dtype=dtype))
    for _ in range(2):  # the second call finds them sorted
        places, found = rows.rows_of(torch.arange(12))
        assert found.tolist() == [each in ids for each in range(12)]
        assert [ids[place] for place in places[found].tolist()] == sorted(ids)


def test_an_id_that_is_there_twice_is_refused():
    with refused(ValueError, stage="here", found="the id 3 is there twice", allowed="each id may be there once"):
        IdRows("here", torch.tensor([3, 1, 3])).rows_of(torch.tensor([1]))


def test_a_thread_that_asks_while_another_sorts_gets_its_rows():
    answers = []

    class Watched(IdRows):
        """Is asked, as by another thread, whenever it has changed."""

        asks = False

        def __setattr__(self, name, value):
            super().__setattr__(name, value)
            if Watched.asks:
                Watched.asks, kept = False, dict(self.__dict__)
                answers.append(self.rows_of(torch.tensor([9, 0]))[0].tolist())
                self.__dict__.clear()
                self.__dict__.update(kept)  # as if the other had not asked
                Watched.asks = True

    rows = Watched("here", torch.tensor([9, 1, 3, 0]))
    Watched.asks = True
    rows.rows_of(torch.tensor([1]))
    assert answers
    assert {*map(tuple, answers)} == {(0, 3)}
