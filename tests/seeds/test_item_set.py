"""ItemSet: seeds and the values of each seed, from tensors and arrays of any layout."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pipelines import refused

import datapipes as dp
from datapipes.seeds import item_set
from datapipes.seeds.item_set import as_fields


def taken(items: dp.ItemSet, positions=(2, 0)) -> dict[str, list]:
    return {name: rows.tolist() for name, rows in items.take(torch.tensor(positions)).items()}


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


def test_a_numpy_int_stands_for_the_ids_below_it_too():
    assert taken(dp.ItemSet(np.int64(10))) == {"seeds": [2, 0]}


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


@pytest.mark.parametrize(
    ("names", "found", "allowed"),
    [
        (("seeds",), r"2 items.*\['seeds'\]", "as many different names"),
        (("seeds", "seeds"), "'seeds', 'seeds'", "different names"),
        (("seeds", "blocks"), r"\['blocks'\]", "among .*'labels'.* or your own"),
        (("seeds", "extra"), r"\['extra'\]", "among .*'labels'.* or your own"),
        (("labels", "timestamps"), r"\['labels', 'timestamps'\]", "must be named 'seeds'"),
        ("seeds", r"2 items.*\['seeds'\]", "as many different names"),
    ],
)
def test_names_that_do_not_fit_are_refused(names, found, allowed):
    with refused(ValueError, stage="ItemSet", found=found, allowed=allowed):
        dp.ItemSet((torch.arange(2), torch.arange(2)), names=names)


def test_a_name_of_the_users_own_is_taken_with_the_others_and_goes_into_extra():
    weights, mask = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5]), torch.tensor([False, True, True, False, True])
    items = dp.ItemSet((mask, weights), names=("seeds", "a.weight"))
    assert items.names == ("seeds", "a.weight")
    assert taken(items) == {"seeds": [4, 1], "a.weight": [weights[4].item(), weights[1].item()]}
    fields = as_fields(items.take(torch.tensor([0])))
    assert {name: type(value) for name, value in fields.items()} == {"seeds": torch.Tensor, "extra": dict}
    assert fields["extra"]["a.weight"].tolist() == [weights[1].item()]
    assert list(as_fields(dp.ItemSet((3, torch.arange(3))).take(torch.tensor([0])))) == ["labels", "seeds"]


@pytest.mark.parametrize("name", sorted({*dp.MiniBatch.__dataclass_fields__, "sampled_subgraphs"}))
def test_a_field_that_minibatch_fills_itself_cannot_be_named(name):
    if name in ("seeds", "labels", "indexes", "timestamps"):
        return
    with refused(ValueError, stage="ItemSet", found=name, allowed="or your own"):
        dp.ItemSet((torch.arange(2), torch.arange(2)), names=("seeds", name))


@pytest.mark.parametrize("name", ["", 3, None])
def test_a_name_that_is_no_text_is_refused(name):
    with refused(TypeError, stage="ItemSet", found=repr(name), allowed="str of at least one character"):
        dp.ItemSet((torch.arange(2), torch.arange(2)), names=("seeds", name))


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


def test_a_stage_that_gives_a_mask_as_seeds_is_told_how_to_make_ids():
    chain = dp.ItemSampler(dp.ItemSet(5), 5).transform(lambda minibatch: minibatch.replace(seeds=torch.tensor(MASK)))
    chain = chain.sample_neighbor(dp.CSCGraph(torch.zeros(6).long(), torch.zeros(0).long()), [1])
    with refused(TypeError, stage="sample_neighbor", found="bool", allowed="int32 or int64", remedy=r"mask\.nonzero"):
        next(iter(chain))


# --- refusals


@pytest.mark.parametrize(
    ("items", "error", "found", "allowed"),
    [
        (-1, ValueError, "-1", "0 or more"),
        (True, TypeError, "True", "an int"),
        (3.0, TypeError, r"3\.0", "an int"),
        (torch.tensor(3), ValueError, "0-d tensor", "at least 1 dimension"),
        (torch.ones(3), TypeError, "float32", "int32 or int64"),
        (torch.ones(3, 2).bool(), TypeError, r"bool \[3, 2\]", r"or a bool mask \[num_nodes\].*mask\[:, 0\]"),
        (torch.ones(3).byte(), TypeError, "uint8", r"int32 or int64.*a mask with \.bool"),
        ((torch.ones(4).bool(), torch.ones(3)), ValueError, "'seeds': 4, 'labels': 3", "equally long"),
        (torch.ones(3, 2, 2).long(), ValueError, r"\[3, 2, 2\]", r"\[n\] or \[n, k\]"),
        (torch.ones(3, 0).long(), ValueError, r"\[3, 0\]", r"\[n\] or \[n, k\]"),
        (torch.ones(3, device="meta").long(), ValueError, "on meta", "host memory"),
        (torch.eye(3).long().to_sparse(), TypeError, "layout", "dense tensor"),
        (np.array(["a", "b"]), TypeError, "dtype <U1", "no tensor can hold"),
        (np.array([None]), TypeError, "dtype object", "no tensor can hold"),
        ((), ValueError, "empty tuple", "at least the seeds"),
        ((torch.arange(3), torch.arange(2)), ValueError, "'seeds': 3, 'labels': 2", "equally long"),
        ((3, torch.arange(2)), ValueError, "'seeds': 3", "equally long"),
        ((torch.arange(3), torch.tensor(3)), ValueError, "labels.*0-d", "at least 1 dimension"),
        ((torch.arange(3), [1, 2, 3]), TypeError, "labels.*list", "a tensor or an array"),
        ([1, 2, 3], TypeError, "list", "a tensor|an array"),
        (np.arange(3)[::-1], ValueError, "stride", "positive|contiguous"),
        (np.arange(3, dtype=">i8"), (TypeError, ValueError), "byte order", "native"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_items_that_are_no_seeds_are_refused(items, error, found, allowed):
    with refused(error, stage="ItemSet", found=found, allowed=allowed):
        dp.ItemSet(items)


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
    for place in (len(items), -len(items) - 1):
        with refused(IndexError, stage="ItemSet", found=f"position {place}", allowed=r"in \[-\d, \d\)|\[0, 0\)"):
            found[place]


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


def test_what_is_no_index_is_refused():
    items = dp.ItemSet((torch.arange(3), torch.arange(3)))
    with refused(TypeError, stage="ItemSet", found="got str", allowed="a tensor or an array"):
        items["labels"]
    with refused(TypeError, stage="ItemSet", found="got bool", allowed="int32 or int64", remedy=r"mask\.nonzero"):
        items[torch.ones(3, dtype=torch.bool)]
    with pytest.raises(IndexError, match=r"must be in \[0, 3\)"):
        items[torch.tensor([-1])]


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


def test_rows_are_taken_at_positions_that_lie_apart_and_refused_outside():
    items = dp.ItemSet((torch.arange(20), torch.arange(20) * 2), names=("seeds", "labels"))
    assert items.take(torch.arange(20)[::2])["labels"].tolist() == list(range(0, 40, 4))
    with pytest.raises(IndexError, match=r"ItemSet: positions must be in \[0, 20\)"):
        items.take(torch.tensor([0, 20]))


def test_items_that_torch_has_moved_are_taken_where_they_are_now():
    ids = torch.arange(300_000)
    items, positions = dp.ItemSet((ids, ids * 2.0)), torch.tensor([5, 299_999])
    assert items.take(positions)["seeds"].tolist() == [5, 299_999]
    for tensor in items._tensors.values():
        tensor.share_memory_()  # as passing the set to another process does: frees where the items were
    taken = items.take(positions)
    assert taken["seeds"].tolist() == [5, 299_999]
    assert taken["labels"].tolist() == [10.0, 599_998.0]
