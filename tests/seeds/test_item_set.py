"""ItemSet: seeds and the values of each seed, from tensors and arrays of any layout."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import datapipes as dp
from datapipes.seeds import item_set
from datapipes.seeds.item_set import as_fields


def taken(items: dp.ItemSet, positions=(2, 0)) -> dict[str, list]:
    return {name: rows.tolist() for name, rows in items.take(torch.tensor(positions, dtype=torch.int64)).items()}


def read_only(values) -> np.ndarray:
    array = np.array(values)
    array.setflags(write=False)
    return array


# --- what the items may be


@pytest.mark.parametrize(
    "seeds",
    [
        torch.tensor([5, 6, 7]),
        torch.tensor([5, 6, 7], dtype=torch.int32),
        torch.tensor([5, 0, 6, 0, 7])[::2],
        np.array([5, 6, 7]),
        np.array([5, 6, 7], dtype=np.int32),
        np.array([5, 0, 6, 0, 7])[::2],
        read_only([5, 6, 7]),
    ],
    ids=["int64", "int32", "strided", "numpy", "numpy_int32", "numpy_strided", "read_only"],
)
def test_ids_come_as_tensors_and_arrays_of_any_layout(seeds):
    items = dp.ItemSet(seeds)
    assert (len(items), items.names) == (3, ("seeds",))
    assert taken(items) == {"seeds": [7, 5]}
    rows = items.take(torch.tensor([0]))["seeds"]
    assert rows.is_contiguous()
    assert str(rows.dtype).endswith(str(seeds.dtype).removeprefix("torch."))


def test_an_int_stands_for_the_ids_below_it():
    items = dp.ItemSet(10)
    assert len(items) == 10
    assert taken(items) == {"seeds": [2, 0]}
    assert taken(dp.ItemSet((3, torch.tensor([7, 8, 9])))) == {"seeds": [2, 0], "labels": [9, 7]}
    assert taken(dp.ItemSet(np.int64(10))) == {"seeds": [2, 0]}


LISTS = dp.SparseRows(torch.tensor([0, 2, 2, 5]), torch.tensor([7, 1, 0, 8, 3]), 9)


def test_lists_of_different_lengths_are_padded_in_each_minibatch():
    items = dp.ItemSet((torch.tensor([5, 6, 7]), LISTS), ("seeds", "more"))
    assert taken(items) == {"seeds": [7, 5], "more": [[0, 8, 3], [7, 1, -1]]}
    assert taken(items, (1, 0, 1))["more"] == [[-1, -1], [7, 1], [-1, -1]]
    assert taken(items, (1,))["more"] == [[]]
    assert taken(items, ())["more"] == []
    seeds, more = items[2]
    assert (int(seeds), more.tolist()) == (7, [0, 8, 3])
    batches = [*dp.ItemSampler(items, 2)]
    assert [batch.extra["more"].tolist() for batch in batches] == [[[7, 1], [-1, -1]], [[0, 8, 3]]]
    other = dp.SparseRows(LISTS.indptr, LISTS.indices.flip(0), 9)
    assert items.digest() != dp.ItemSet((torch.tensor([5, 6, 7]), other), ("seeds", "more")).digest()


def test_lists_of_masked_and_typed_items():
    mask = torch.tensor([True, False, True])
    assert taken(dp.ItemSet((mask, LISTS), ("seeds", "more")), (1, 0)) == {
        "seeds": [2, 0],
        "more": [[0, 8, 3], [7, 1, -1]],
    }
    typed = dp.HeteroItemSet({kind: dp.ItemSet((3, LISTS), ("seeds", "more")) for kind in "ab"})
    (batch,) = dp.ItemSampler(typed, 6)
    assert {kind: rows.shape for kind, rows in batch.extra["more"].items()} == {"a": (3, 3), "b": (3, 3)}


def test_lists_that_are_none_are_refused(refuses):
    values = dp.SparseRows(LISTS.indptr, LISTS.indices, 9, torch.ones(5))
    descending = dp.SparseRows(torch.tensor([0, 4, 2, 5]), LISTS.indices, 9)
    for wrong, lists, name in (
        (ValueError, LISTS, "labels"),
        (ValueError, LISTS, "seeds"),
        (ValueError, values, "more"),
        (ValueError, descending, "more"),
        (IndexError, dp.SparseRows(LISTS.indptr, LISTS.indices, 8), "more"),
        (TypeError, dp.SparseRows(LISTS.indptr, LISTS.indices.float(), 9), "more"),
        (TypeError, dp.SparseRows([0, 5], LISTS.indices, 9), "more"),
        (ValueError, dp.SparseRows(LISTS.indptr[:3], LISTS.indices[:2], 9), "more"),
    ):
        refuses(
            wrong, dp.ItemSet, (torch.arange(3), lists), ("seeds", name) if name != "seeds" else ("labels", "seeds")
        )


def test_pairs_may_be_the_transposed_edge_index():
    edge_index = torch.tensor([[1, 2, 3], [4, 5, 6]])
    items = dp.ItemSet(edge_index.t())
    assert len(items) == 3
    assert taken(items) == {"seeds": [[3, 6], [1, 4]]}
    assert items.take(torch.arange(3))["seeds"].is_contiguous()


def test_a_memory_mapped_file_is_viewed(tmp_path):
    np.save(tmp_path / "ids.npy", np.arange(5))
    items = dp.ItemSet(np.load(tmp_path / "ids.npy", mmap_mode="r"))
    assert taken(items, [4, 1]) == {"seeds": [4, 1]}


def test_rows_taken_are_new_memory():
    ids = torch.arange(5)
    items = dp.ItemSet(ids)
    items.take(torch.arange(5))["seeds"].zero_()
    assert ids.tolist() == [0, 1, 2, 3, 4]


# --- names


def test_items_are_named_in_order_by_default():
    ids = torch.arange(2)
    assert dp.ItemSet((ids, ids, ids, ids)).names == ("seeds", "labels", "indexes", "timestamps")
    assert dp.ItemSet((ids,)).names == ("seeds",)
    assert dp.ItemSet(ids, names="seeds").names == ("seeds",)


def test_names_say_which_field_an_item_becomes():
    items = dp.ItemSet((torch.tensor([7, 8, 9]), torch.tensor([1, 2, 3])), names=("timestamps", "seeds"))
    assert taken(items) == {"timestamps": [9, 7], "seeds": [3, 1]}


def test_what_names_are_refused(refuses):
    def named(*names: object) -> dp.ItemSet:
        return dp.ItemSet((torch.arange(2), torch.arange(2)), names=names)

    for names in (("seeds",), ("seeds", "seeds"), ("labels", "timestamps")):
        refuses(ValueError, named, *names)
    refuses(ValueError, dp.ItemSet, (torch.arange(2), torch.arange(2)), names="seeds")
    for name in ("", 3, None):
        refuses(TypeError, named, "seeds", name)
    filled = {*dp.MiniBatch.__dataclass_fields__, "sampled_subgraphs"} - {"seeds", "labels", "indexes", "timestamps"}
    for name in sorted(filled):  # MiniBatch fills these itself
        refuses(ValueError, named, "seeds", name)


def test_a_name_of_the_users_own_is_taken_with_the_others_and_goes_into_extra():
    weights, mask = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5]), torch.tensor([False, True, True, False, True])
    items = dp.ItemSet((mask, weights), names=("seeds", "a.weight"))
    assert items.names == ("seeds", "a.weight")
    assert taken(items) == {"seeds": [4, 1], "a.weight": [weights[4].item(), weights[1].item()]}
    fields = as_fields(items.take(torch.tensor([0])))
    assert {name: type(value) for name, value in fields.items()} == {"seeds": torch.Tensor, "extra": dict}
    assert fields["extra"]["a.weight"].tolist() == [weights[1].item()]
    assert list(as_fields(dp.ItemSet((3, torch.arange(3))).take(torch.tensor([0])))) == ["labels", "seeds"]


# --- masks

MASK = [False, True, True, False, True]


@pytest.mark.parametrize("mask", [torch.tensor(MASK), np.array(MASK), torch.tensor(MASK * 2)[:5]], ids=["t", "n", "v"])
def test_a_mask_stands_for_the_ids_of_its_true_places(mask):
    items = dp.ItemSet(mask)
    assert len(items) == 3
    assert taken(items, (0, 1, 2)) == {"seeds": [1, 2, 4]}
    assert items.digest() == dp.ItemSet(torch.tensor([1, 2, 4])).digest()


@pytest.mark.parametrize("labels", [[10, 11, 12, 13, 14], [11, 12, 14]], ids=["of_all_nodes", "of_the_seeds"])
def test_items_of_a_masks_length_are_taken_at_its_true_places(labels):
    items = dp.ItemSet((torch.tensor(MASK), torch.tensor(labels)))
    assert taken(items, (0, 1, 2)) == {"seeds": [1, 2, 4], "labels": [11, 12, 14]}
    turned = dp.ItemSet((torch.tensor(labels), torch.tensor(MASK)), names=("labels", "seeds"))
    assert taken(turned, (2, 0)) == {"labels": [14, 11], "seeds": [4, 1]}


def test_a_mask_without_a_true_place_has_no_items_and_labels_may_be_bool():
    assert len(dp.ItemSet(torch.zeros(5, dtype=torch.bool))) == 0
    items = dp.ItemSet((torch.tensor([3, 4]), torch.tensor([True, False])))
    assert taken(items, (1, 0)) == {"seeds": [4, 3], "labels": [False, True]}


# --- refusals


def test_what_items_are_refused(refuses):
    seeds = torch.arange(3)
    refuses(ValueError, dp.ItemSet, -1)
    refuses(TypeError, dp.ItemSet, True)
    refuses(TypeError, dp.ItemSet, 3.0)
    refuses(ValueError, dp.ItemSet, torch.tensor(3))
    refuses(TypeError, dp.ItemSet, torch.ones(3))
    refuses(TypeError, dp.ItemSet, torch.ones(3, 2).bool())
    refuses(TypeError, dp.ItemSet, torch.ones(3).byte())
    refuses(ValueError, dp.ItemSet, (torch.ones(4).bool(), torch.ones(3)))
    refuses(ValueError, dp.ItemSet, torch.ones(3, 2, 2).long())
    refuses(ValueError, dp.ItemSet, torch.ones(3, 0).long())
    refuses(ValueError, dp.ItemSet, torch.ones(3, device="meta").long())
    refuses(TypeError, dp.ItemSet, torch.eye(3).long().to_sparse())
    refuses(TypeError, dp.ItemSet, np.array(["a", "b"]))
    refuses(TypeError, dp.ItemSet, np.array([None]))
    refuses(ValueError, dp.ItemSet, ())
    refuses(ValueError, dp.ItemSet, (seeds, torch.arange(2)))
    refuses(ValueError, dp.ItemSet, (3, torch.arange(2)))
    refuses(ValueError, dp.ItemSet, (seeds, torch.tensor(3)))
    refuses(TypeError, dp.ItemSet, (seeds, [1, 2, 3]))
    refuses(TypeError, dp.ItemSet, [1, 2, 3])
    refuses(TypeError, dp.ItemSet, {"paper": seeds})
    refuses(ValueError, dp.ItemSet, np.arange(3)[::-1])
    refuses(TypeError, dp.ItemSet, np.arange(3, dtype=">i8"))


def test_what_indices_of_items_are_refused(refuses):
    items = dp.ItemSet((torch.arange(3), torch.arange(3)))
    refuses(TypeError, items.__getitem__, "labels")
    refuses(TypeError, items.__getitem__, torch.ones(3, dtype=torch.bool))
    for place in (3, -4):
        refuses(IndexError, items.__getitem__, place)
        refuses(IndexError, dp.ItemSet(0).__getitem__, place)
    for take in (items.__getitem__, items.take, dp.ItemSet(3).take):
        for place in (3, -1):
            with pytest.raises(IndexError, match=r"ItemSet: positions must be in \[0, 3\)"):  # and torch's text
                take(torch.tensor([0, place]))


def test_a_stage_that_gives_a_mask_as_seeds_is_told_how_to_make_ids(refuses):
    chain = dp.ItemSampler(dp.ItemSet(5), 5).transform(lambda minibatch: minibatch.replace(seeds=torch.tensor(MASK)))
    chain = chain.sample_neighbor(dp.CSCGraph(torch.zeros(6).long(), torch.zeros(0).long()), [1])
    refuses(TypeError, next, iter(chain))


@pytest.mark.parametrize("dtype", [torch.bool, torch.float16, torch.bfloat16, torch.uint8, torch.complex64], ids=str)
def test_labels_may_be_of_any_dtype_and_width(dtype):
    for shape in ((4,), (4, 0), (4, 2, 3)):
        labels = torch.ones(shape, dtype=dtype)
        rows = dp.ItemSet((4, labels)).take(torch.tensor([3, 1]))["labels"]
        assert (rows.dtype, rows.shape) == (dtype, (2, *shape[1:]))


# --- one by one


def as_lists(item):
    return tuple(rows.tolist() for rows in item) if isinstance(item, tuple) else item.tolist()


@pytest.mark.parametrize(
    ("make", "items"),
    [
        (lambda: dp.ItemSet(5), [0, 1, 2, 3, 4]),
        (lambda: dp.ItemSet(torch.tensor([7, 5, 3])), [7, 5, 3]),
        (lambda: dp.ItemSet(torch.tensor([[7, 5], [3, 1]])), [[7, 5], [3, 1]]),
        (lambda: dp.ItemSet((torch.tensor([7, 5]), torch.ones(2, 0))), [(7, []), (5, [])]),
        (lambda: dp.ItemSet((torch.ones(2), 2), names=("labels", "seeds")), [(1.0, 0), (1.0, 1)]),
        (lambda: dp.ItemSet(0), []),
    ],
)
def test_an_item_is_a_row_of_each_tensor(monkeypatch, make, items):
    found = make()
    assert [as_lists(found[i]) for i in range(len(found))] == items
    assert [as_lists(found[i - len(found)]) for i in range(len(found))] == items
    for rows in (1, 2, 1024):
        monkeypatch.setattr(item_set, "ROWS", rows)
        assert [as_lists(item) for item in found] == items


@pytest.mark.parametrize(
    "index",
    [slice(None), slice(1, -1), slice(None, None, -2), slice(3, 1), [4, 0, 4], torch.arange(6)[::2], np.array([1])],
    ids=str,
)
def test_items_are_taken_by_slices_and_positions(index):
    seeds, labels = torch.arange(6) * 7, torch.rand(6, 2)
    place = torch.arange(6).numpy()[index]
    taken = dp.ItemSet((seeds, labels))[index]
    assert torch.equal(taken[0], seeds[place.copy()])
    assert torch.equal(taken[1], labels[place.copy()])
    assert torch.equal(dp.ItemSet(seeds)[index], taken[0])


# --- digest


@given(st.integers(1, 40), st.data())
def test_the_digest_sees_every_row_of_a_small_set(num_items, data):
    ids = torch.arange(num_items)
    place = data.draw(st.integers(0, num_items - 1))
    other = ids.clone()
    other[place] += 1
    assert dp.ItemSet(ids).digest() == dp.ItemSet(ids.clone()).digest()
    assert dp.ItemSet(ids).digest() != dp.ItemSet(other).digest()
    assert dp.ItemSet((ids, ids)).digest() != dp.ItemSet((ids, other)).digest()


def test_of_a_large_set_the_digest_reads_evenly_spaced_rows_and_the_ends():
    ids = torch.zeros(2**22, dtype=torch.int64)  # 32 MiB
    for place in (0, len(ids) - 1):
        other = ids.clone()
        other[place] = 1
        assert dp.ItemSet(ids).digest() != dp.ItemSet(other).digest()
    assert dp.ItemSet(ids).digest() != dp.ItemSet(ids[1:]).digest()
    wide = torch.zeros(1, 2**21 + 1)  # one row, which is read whole
    assert dp.ItemSet((1, wide)).digest() != dp.ItemSet((1, wide + 1)).digest()


def test_the_digest_depends_on_names_dtypes_and_length():
    ids = torch.arange(6)
    sets = [dp.ItemSet(6), dp.ItemSet(7), dp.ItemSet(ids), dp.ItemSet(ids.int()), dp.ItemSet(ids.reshape(6, 1))]
    sets += [dp.ItemSet((ids, ids)), dp.ItemSet((ids, ids), names=("seeds", "indexes"))]
    assert len({items.digest() for items in sets}) == len(sets)


def test_the_repr_says_how_many_items_of_which_names():
    assert repr(dp.ItemSet((3, torch.arange(3)))) == "ItemSet(3 items, names=('seeds', 'labels'))"


def test_rows_are_taken_at_positions_that_lie_apart():
    items = dp.ItemSet((torch.arange(20), torch.arange(20) * 2), names=("seeds", "labels"))
    assert items.take(torch.arange(20)[::2])["labels"].tolist() == list(range(0, 40, 4))


def test_items_that_torch_has_moved_are_taken_where_they_are_now():
    ids = torch.arange(300_000)
    items, positions = dp.ItemSet((ids, ids * 2.0)), torch.tensor([5, 299_999])
    assert items.take(positions)["seeds"].tolist() == [5, 299_999]
    for tensor in items._tensors.values():
        tensor.share_memory_()  # as passing the set to another process does: frees where the items were
    taken = items.take(positions)
    assert taken["seeds"].tolist() == [5, 299_999]
    assert taken["labels"].tolist() == [10.0, 599_998.0]
