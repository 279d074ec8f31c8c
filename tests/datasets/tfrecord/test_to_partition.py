"""to_partition: what the ranks write together equals what one process writes that has all of the graph."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shards import (
    cut,
    files_of,
    graph_with_types,
    graph_without_types,
    in_threads,
    write_whole,
)

from datapipes.base import codec
from datapipes.datasets.tfrecord.over_ranks import placement


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("kind", ["all", "tasks", "links", "nothing"])
def test_ranks_write_the_folder_of_one_process(tmp_path, num_ranks, kind):
    graph = graph_without_types(23, 90, rng_seed=num_ranks, kind=kind)
    expected = write_whole(graph, num_ranks, tmp_path / "whole")
    reports = in_threads(cut(graph, num_ranks), [tmp_path / "parts"] * num_ranks)
    assert files_of(tmp_path / "parts") == files_of(tmp_path / "whole")
    same = {"seconds": {}, "memory_bytes": 0}
    assert [replace(each, **same) for each in reports] == [replace(expected, **same)] * num_ranks


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_ranks_write_the_folder_of_one_process_with_types(tmp_path, num_ranks):
    graph = graph_with_types([17, 5, 2], [60, 20], rng_seed=num_ranks)
    write_whole(graph, num_ranks, tmp_path / "whole")
    in_threads(cut(graph, num_ranks), [tmp_path / "parts"] * num_ranks)
    assert files_of(tmp_path / "parts") == files_of(tmp_path / "whole")


@given(
    st.integers(1, 5),
    st.tuples(*[st.integers(0, 9)] * 3),
    st.tuples(*[st.integers(0, 20)] * 2),
    st.integers(0, 99),
    st.sampled_from([(8, 1), (100, 20), (2**20, 2**20)]),
)
@settings(max_examples=25)
def test_any_shards_give_the_folder_of_one_process(tmp_path_factory, num_ranks, counts, num_edges, rng_seed, windows):
    """Types that are empty or smaller than the number of ranks, ranks without anything, windows of a few rows; digests
    that read samples, of small arrays too.
    """
    counts = (counts[0] + num_ranks, *counts[1:])
    graph = graph_with_types(counts, (num_edges[0] * (counts[1] > 0), num_edges[1]), rng_seed)
    root = tmp_path_factory.mktemp("any")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in zip(("SENT_BYTES", "LEAST_BYTES"), windows, strict=True):
            patch.setattr(placement, name, value)
        patch.setattr(codec, "PROBED_WHOLE", 12)
        patch.setattr(codec, "PROBED_ROWS", 5)
        write_whole(graph, num_ranks, root / "whole")
        in_threads(cut(graph, num_ranks, rng_seed), [root / "parts"] * num_ranks)
    assert files_of(root / "parts") == files_of(root / "whole")
