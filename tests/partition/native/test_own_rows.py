"""OwnRows: the row of each id of a part, whatever the order of the ids."""

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from partitions import write

import datapipes as dp
from datapipes.distributed import Part, PartitionBook
from datapipes.partition.native import own_rows
from datapipes.partition.native.own_rows import OwnRows


def slow_rows(ids: list[int], wanted: list[int]) -> list[int]:
    return [ids.index(each) if each in ids else -1 for each in wanted]


@given(
    st.one_of(
        st.lists(st.integers(0, 300), max_size=40),  # repeats, any order
        st.lists(st.integers(-(2**62), 2**62), max_size=10),
        st.tuples(st.integers(0, 50), st.integers(0, 30)).map(lambda range_: [*range(range_[0], sum(range_))]),
        st.sets(st.integers(0, 300)).map(sorted),
    ),
    st.lists(st.integers(-5, 310), max_size=20),
    st.sampled_from([torch.int32, torch.int64]),
)
def test_rows_are_those_of_the_list(ids, wanted, dtype):
    found = OwnRows(torch.tensor(ids, dtype=torch.int64))
    some = wanted + [each for each in ids[:5] if dtype == torch.int64 or abs(each) < 2**31]
    assert found.rows(torch.tensor(some, dtype=dtype)).tolist() == slow_rows(ids, some)


@pytest.mark.parametrize(
    ("ids", "has"),
    [
        ([], "nothing"),
        ([4, 5, 6], "nothing"),
        ([1, 5, 9], "rank"),
        ([9, 5, 1], "order"),
        ([0, 10**12], "sorted"),
        ([5, -1], "sorted"),
    ],
)
def test_only_what_is_needed_is_made(ids, has):
    found = OwnRows(torch.tensor(ids, dtype=torch.int64))
    kind = {
        (True, False, False): "nothing",
        (False, True, False): "rank",
        (False, True, True): "order",
        (False, False, True): "sorted",
    }[found.first is not None, found.rank is not None, found.order is not None]
    assert kind == has


def test_many_ids_in_any_order(monkeypatch):
    monkeypatch.setattr(own_rows, "AT_ONCE", 1000)
    ids = torch.randperm(30_000, generator=torch.Generator().manual_seed(0))[:20_500]
    found = OwnRows(ids)
    assert torch.equal(found.rows(ids), torch.arange(20_500))
    others = torch.ones(30_000, dtype=torch.bool)
    others[ids] = False
    assert bool((found.rows(others.nonzero().flatten()) == -1).all())
    twice = torch.cat([ids, ids])
    assert torch.equal(OwnRows(twice).rows(ids), torch.arange(20_500))


def test_threads_that_ask_a_part_at_once_share_one_index(tmp_path, monkeypatch):
    made = []

    class Counted(OwnRows):
        def __init__(self, *arguments, **options):
            made.append(threading.current_thread())
            super().__init__(*arguments, **options)

    monkeypatch.setattr("datapipes.partition.native.part.OwnRows", Counted)
    edges = torch.randint(0, 500, (2, 20_000), generator=torch.Generator().manual_seed(0))
    graph = dp.CSCGraph.from_edge_index(edges, 500)
    part = Part.open(write(tmp_path / "parts", graph, PartitionBook(2, torch.arange(500) % 2)), 1)
    ids = part.relation().edge_ids
    start, right = threading.Barrier(8), []

    def ask():
        start.wait(20)
        right.append(torch.equal(part.edge_rows_of(ids), torch.arange(len(ids))))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert right == [True] * 8
    assert len(made) == 1
    with pytest.raises(IndexError, match=r"edge 20000 is not in part 1\. Ask the part that owns"):
        part.edge_rows_of(torch.tensor([20_000]))
