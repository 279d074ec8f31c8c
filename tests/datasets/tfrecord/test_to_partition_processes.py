"""to_partition in real processes over gloo: the same folder, and no rank that waits for one that has failed."""


import pytest
from gloo_ranks import run_ranks
from shards import cut, files_of, graph_with_types, graph_without_types, write_whole


def write(rank, shard, root, timeout_s=30.0):
    return shard.to_partition(root, timeout_s=timeout_s)


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("make", ["types", "no types"])
def test_processes_write_the_folder_of_one_process(tmp_path, num_ranks, make):
    graph = graph_with_types([17, 5, 2], [60, 20]) if make == "types" else graph_without_types(23, 90)
    shards = cut(graph, num_ranks)
    run_ranks(num_ranks, write, [(shard, tmp_path / "parts") for shard in shards])
    write_whole(graph, num_ranks, tmp_path / "whole")
    assert files_of(tmp_path / "parts") == files_of(tmp_path / "whole")
