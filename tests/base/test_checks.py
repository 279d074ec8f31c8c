"""Checks of arguments: a value of any size ends in an error that names the argument; making that error never fails."""

import math
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from pipelines import fetched, item_set, items, refused, sampled, small_graph, small_store

import datapipes as dp
from datapipes.base.checks import (
    INT64_MAX,
    MOST_SHOWN,
    check_bool,
    check_choice,
    check_int,
    check_positive_timeout,
    check_within,
    dtype_from_name,
    shown,
)
from datapipes.base.sizes import parse_size

LONG = 10**5000  # Python does not write it out


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "5"),
        (-5, "-5"),
        (True, "True"),
        ("x", "'x'"),
        (math.inf, "inf"),
        (2**256 - 1, str(2**256 - 1)),
        (LONG, "an int of 16610 bits"),
        (-LONG, "a negative int of 16610 bits"),
        ([LONG], "a list whose repr raises ValueError"),
        (Fraction(LONG, 3), "a Fraction whose repr raises ValueError"),
        (Unshowable(), "a Unshowable whose repr raises RuntimeError"),
        ("x" * 10**6, "'" + "x" * (MOST_SHOWN - 1) + "..."),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_value_has_a_short_text(value, text):
    assert shown(value) == text


HUGE = [
    *(LONG, -LONG, 10**400, 2**64, -(2**63) - 1, math.inf, -math.inf, math.nan, 1e300, np.float32("inf")),
    *(Decimal(10) ** 400, Fraction(LONG, 3), "9" * 5000, [LONG], {LONG: LONG}, Unshowable()),
]


@pytest.mark.parametrize("value", HUGE, ids=lambda value: type(value).__name__)
def test_a_check_of_any_value_ends_in_an_error_that_names_it(value):
    checks = [
        lambda: check_int("stage", "argument", value, 0),
        lambda: check_bool("stage", "argument", value),
        lambda: check_choice("stage", "argument", value, ("a", "b")),
        lambda: parse_size("stage", "argument", value),
    ]
    for check in checks:
        with pytest.raises((TypeError, ValueError), match=r"^stage: argument ") as caught:
            check()
        assert len(str(caught.value)) < 3 * MOST_SHOWN
        assert "Exceeds the limit" not in str(caught.value)


@pytest.mark.parametrize("value", [*HUGE, 0, -1, True, LONG, 2**63, 1e10], ids=lambda value: type(value).__name__)
def test_a_timeout_is_none_or_a_number_that_clocks_can_count(value):
    with refused(ValueError, stage="stage", found="got ", allowed="None or seconds above 0 and at most 9223372036"):
        check_positive_timeout("stage", value)


def test_timeouts_in_bounds_pass():
    assert [check_positive_timeout("stage", value) for value in (None, 1, 0.5, 1e9)] == [None, 1, 0.5, 1e9]


def test_the_name_of_a_dtype_imports_nothing(monkeypatch, refuses):
    def imports(name):
        raise AssertionError(f"torch was asked for {name}")

    monkeypatch.setattr(torch, "__getattr__", imports)
    assert dtype_from_name("here", "bfloat16") is torch.bfloat16
    for name in ("_dynamo", "onnx", "Tensor", 3, LONG, None):
        refuses(ValueError, dtype_from_name, "here", name)


# --- every argument that is a number, in every stage: the error names the argument


def loader(**options) -> dp.DataLoader:
    return dp.DataLoader(fetched(), **{"num_workers": 1, **options})


NUMBERS = {
    "seed": lambda value: items(seed=value),
    "batch_size": lambda value: dp.ItemSampler(item_set(), value),
    "rank": lambda value: dp.DistributedItemSampler(item_set(), 2, rank=value, world_size=2),
    "world_size": lambda value: dp.DistributedItemSampler(item_set(), 2, rank=0, world_size=value),
    "rank=": lambda value: dp.DistributedItemSampler(item_set(), 2, rank=value),
    "seeds": dp.ItemSet,
    "fanouts": lambda value: sampled(fanouts=[2, value]),
    "fanouts must": lambda value: sampled(fanouts=value),
    "depth": lambda value: items().prefetch(value),
    "prefetch: timeout": lambda value: items().prefetch(2, timeout=value),
    "epoch": lambda value: items().set_epoch(value),
    "minibatch: epoch": lambda value: loader().minibatch(value, 0),
    "minibatch: index": lambda value: loader().minibatch(0, value),
    "num_nodes": lambda value: dp.CSCGraph.from_edge_index(torch.zeros(2, 3).long(), value),
    "split": lambda value: dp.datasets.open("missing", split=value),
    "device": lambda value: items().copy_to(value),
    "direction": lambda value: dp.datasets.debian_packages(value),
    "index dtype": lambda value: small_graph().with_index_dtype(value),
    "node_feature_keys": lambda value: sampled().fetch_feature(small_store(), value),
    **{
        f"data_loader: {name}": lambda value, name=name: loader(**{name: value})
        for name in ("num_workers", "prefetch_factor", "timeout", "max_restarts", "shm_size", "cut", "channel")
    },
    "data_loader: multiprocessing_context": lambda value: loader(multiprocessing_context=value),
}


@pytest.mark.parametrize("argument", NUMBERS)
def test_numbers_beyond_all_bounds_are_refused_under_the_name_of_the_argument(argument):
    for value in (LONG, -LONG, 10**400, math.inf, math.nan, [LONG]):
        if argument == "fanouts must" and isinstance(value, list):
            continue
        with pytest.raises((TypeError, ValueError, KeyError), match=re.escape(argument)) as caught:
            NUMBERS[argument](value)
        assert "Exceeds the limit" not in str(caught.value)


def test_more_workers_or_minibatches_ahead_than_make_sense_are_refused_when_the_loader_is_built(refuses):
    refuses(ValueError, loader, num_workers=4097)
    refuses(ValueError, loader, num_workers=2**40, worker_method="thread")
    refuses(ValueError, loader, num_workers=64, prefetch_factor=2**40)
    refuses(ValueError, loader, num_workers=1, prefetch_factor=INT64_MAX)


def test_ids_within_a_count_pass_and_others_are_named(refuses):
    check_within("f", "ids", torch.tensor([[0, 4], [3, 1]]), 5, "Take others.")
    check_within("f", "ids", torch.empty(0, dtype=torch.int64), 0, "Take others.")
    for ids in ([0, 5, 7], [3, -1, 9]):
        refuses(IndexError, check_within, "f", "ids", torch.tensor(ids, dtype=torch.int32), 5, "Take others.")
