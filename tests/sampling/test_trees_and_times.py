"""Trees and times beside the twin: drawn graphs with types and without, sorted rows and others, pairs, windows."""

from typing import Any

import numpy as np
import torch
import twin
from amounts import examples
from hypothesis import given, settings
from pipelines import items, small_graph
from tree_cases import Case, by_package, by_twin, can_be_sampled, cases
from twin_cases import as_hop
from twin_trees import PLAIN, Trees

import datapipes as dp


def expect_equal(found: dp.MiniBatch, expected: Trees, case: Case) -> None:
    def of_types(value: Any) -> dict[Any, Any]:
        return value if case.has_types else {"": value}

    assert {of: ids.tolist() for of, ids in of_types(found.input_nodes).items()} == expected.nodes
    if expected.batch is None:
        assert found.batch is None
    else:
        assert {of: rows.tolist() for of, rows in of_types(found.batch).items()} == expected.batch
        assert all(rows.dtype == torch.int64 for rows in of_types(found.batch).values())
    compacted = found.compacted_seeds if case.has_types else {next(iter(case.seeds)): found.compacted_seeds}
    for of, rows in expected.compacted_seeds.items():
        assert compacted[of].tolist() == np.array(rows).reshape(case.seeds[of].shape).tolist()
    for blocks, wanted in zip(found.blocks[::-1], expected.hops, strict=True):
        for of, block in (blocks if case.has_types else {PLAIN: blocks}).items():
            if not case.has_types and not wanted:
                wanted = {PLAIN: twin.Hop([0] * (block.num_dst + 1), [], [], block.num_src)}
            assert as_hop(block) == wanted[of]


@settings(deadline=None)
@given(cases(temporal=False).filter(can_be_sampled))
def test_trees_equal_the_twins(case):
    expect_equal(by_package(case), by_twin(case), case)


@examples(200)
@given(cases(temporal=True).filter(can_be_sampled))
def test_temporal_samples_equal_the_twins(case):
    expect_equal(by_package(case), by_twin(case), case)


def test_a_sampler_behind_trees_leaves_no_batch_of_theirs():
    trees = items().sample_neighbor(small_graph(), [2], disjoint=True)
    assert next(iter(trees)).batch is not None
    assert next(iter(trees.sample_neighbor(small_graph(), [2]))).batch is None
