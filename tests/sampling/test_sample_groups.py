"""Minibatches over groups of seeds, each of which has nodes of its own."""

from typing import Any

import numpy as np
import pytest
import twin
from strategies import ID_DTYPES, int64s, random_graph

from datapipes import _core

KEYS = [twin.hop_key(5, 0, 0, 1, hop, 0) for hop in range(2)]


def sample(graph, seeds, fanouts, groups: _core.Groups | None = None, **options: Any):
    indptr, indices = graph
    topology = _core.Topology([("", len(indptr) - 1)], [(0, 0, indptr, indices, None, "")])
    request = {"fanouts": [[fanout] for fanout in fanouts], "keys": [[key] for key in KEYS[: len(fanouts)]]}
    return _core.sample_neighbors(
        topology,
        [(0, int64s(seeds))],
        sampled=[0],
        replace=False,
        only_new=False,
        want_edge_ids=True,
        groups=groups,
        **request,
        **options,
    )


def edges_by_group(found) -> list[set[tuple[int, int, int]]]:
    """The (source, destination, edge id) of all hops, of each group."""
    (nodes,), _, hops, (groups,), _ = found
    edges: list[set[tuple[int, int, int]]] = [set() for _ in range(int(groups.max()) + 1)]
    for ((indptr, indices, edge_ids, _),) in hops:
        destinations = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        assert np.array_equal(groups[indices], groups[destinations])  # an edge stays in its group
        for source, destination, edge_id in zip(indices, destinations, edge_ids, strict=True):
            edges[groups[destination]].add((int(nodes[source]), int(nodes[destination]), int(edge_id)))
    return edges


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("direct_limit", [0, 2**20])
@pytest.mark.parametrize("dtype", ID_DTYPES)
def test_a_group_draws_what_it_draws_alone(dtype, direct_limit, threads):
    graph = random_graph(300, 6_000, rng_seed=1, dtype=dtype)
    seeds = [4, 7, 4, *range(200)]
    streams = np.array([3, 0, 9, *range(20, 220)], np.uint32)
    together = _core.Groups([np.arange(len(seeds))], count=len(seeds), streams=streams)
    found = sample(graph, seeds, (10, 12), together, direct_limit=direct_limit, num_threads=threads)
    assert len(found[2][1][0][1]) >= 2**14  # fewer are drawn by one thread
    alone = []
    for seed, stream in zip(seeds, streams, strict=True):
        one = _core.Groups([int64s([0])], count=1, streams=np.array([stream], np.uint32))
        alone += edges_by_group(sample(graph, [seed], (10, 12), one))
    assert edges_by_group(found) == alone
    assert found[0][0].dtype == found[1][0].dtype == dtype
    assert found[1][0].tolist() == list(range(len(seeds)))
    assert alone[0] != alone[2]  # of one node, in two streams


def test_one_group_without_a_stream_is_plain_sampling():
    graph, seeds = random_graph(300, 6_000, rng_seed=2), [4, 7, 4]
    plain = sample(graph, seeds, (3, 4))
    grouped = sample(graph, seeds, (3, 4), _core.Groups([int64s([0, 0, 0])], count=1))
    assert plain[0][0].tolist() == grouped[0][0].tolist()
    for (left,), (right,) in zip(plain[2], grouped[2], strict=True):
        assert [part.tolist() for part in left[:3]] == [part.tolist() for part in right[:3]]
    assert plain[3] == []
    assert not grouped[3][0].any()


def test_what_groups_are_refused(refuses):
    graph = random_graph(10, 40, rng_seed=3)
    refuses(ValueError, sample, graph, [1, 2], (2,), _core.Groups([int64s([0])], count=1))
    refuses(IndexError, sample, graph, [1, 2], (2,), _core.Groups([int64s([0, 1])], count=1))
    two_streams = _core.Groups([int64s([0])], count=1, streams=np.zeros(2, np.uint32))
    refuses(ValueError, sample, graph, [1], (2,), two_streams)
    refuses(ValueError, sample, graph, [1], (2,), _core.Groups([int64s([0])], count=2**60))
    refuses(ValueError, _core.Groups, [], count=-1)
