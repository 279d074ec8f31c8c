"""States from anywhere: numbers of any size, and values of any type, end in an error that names what is wrong."""

import math
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pytest
import torch
from pipelines import fetched, items, keep_most, sampled
from torchdata.nodes import IterableWrapper

import datapipes as dp

LONG = 10**5000  # Python does not write it out

STAGES: dict[str, Callable[[], dp.Stage]] = {
    "item_sampler": items,
    "fetch_feature": fetched,
    "prefetch": lambda: items().prefetch(),
    "data_loader": lambda: dp.DataLoader(fetched(), 1, worker_method="thread", in_order=False),
    "after_a_loader": lambda: dp.DataLoader(sampled()).transform(keep_most),
}
VALUES = [
    *(LONG, -LONG, 2**64, -1, math.inf, math.nan, 1.5, True, "1", "9" * 5000, [LONG], {LONG: LONG}, Decimal(LONG)),
    *(np.arange(3), torch.arange(3), np.float64("nan"), b"1", (1,)),
]
KEYS = ("seed", "epoch", "next_index", "fingerprint", "ended", "ahead")


def refuse_to_load(stage: dp.Stage, state: object, named: str) -> None:
    with pytest.raises((TypeError, ValueError), match=named) as caught:
        stage.load_state_dict(state)
    assert "load_state_dict" in str(caught.value)
    assert "Exceeds the limit" not in str(caught.value)
    assert len(str(caught.value)) < 5000


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("name", STAGES)
def test_a_state_with_any_value_is_refused_and_the_key_named(name, key):
    stage = STAGES[name]()
    state = stage.state_dict()
    named = "fingerprint|another pipeline" if key == "fingerprint" else key
    for value in VALUES:
        refuse_to_load(stage, {**state, key: value}, named)
    stage.load_state_dict(state)
    next(iter(stage))
    stage.close()


@pytest.mark.parametrize("part", ["rank", "world_size", "indices"])
def test_what_was_delivered_ahead_may_not_be_anything(part):
    stage = STAGES["data_loader"]()
    state = stage.state_dict()
    for value in (*VALUES, [math.nan], ["3"], [3, LONG], [None], [True], [-1]):
        if part == "indices" and isinstance(value, tuple):
            continue  # which this rank reaches
        ahead = {"rank": 0, "world_size": 1, "indices": [3], part: value}
        refuse_to_load(stage, {**state, "ahead": ahead}, "ahead|in_order=False")
    stage.close()


def test_a_fingerprint_may_name_anything():
    stage = items()
    state = stage.state_dict()
    for key in (LONG, -LONG, math.nan, "x" * 10**5, (LONG,), None):
        for value in VALUES:
            refuse_to_load(stage, {**state, "fingerprint": {**state["fingerprint"], key: value}}, "another pipeline")
    refuse_to_load(stage, {LONG: 1}, "it lacks")


def test_a_node_without_seeds_has_positions_of_64_bits():
    stage = dp.FromNode(IterableWrapper([]))
    state = stage.state_dict()
    for value in (LONG, 2**63, -1, math.nan, True, "1"):
        refuse_to_load(stage, {**state, "next_index": value}, "next_index")
