"""Drawn graphs, seeds and fanouts of types as samplers take them, and minibatches held against the plain twin's."""

from collections.abc import Sequence
from typing import Any

import torch
import twin
from hypothesis import strategies as st
from strategies import TypedGraph

import datapipes as dp


def typed_graph_of(arrays: TypedGraph, **attributes: Any) -> dp.HeteroCSCGraph:
    """The graph of drawn arrays; `attributes` are node_attributes and edge_attributes."""
    return dp.HeteroCSCGraph(
        {of: (indptr, indices) for of, (indptr, indices, _) in arrays.relations.items()},
        num_nodes=arrays.num_nodes,
        edge_ids={of: ids for of, (_, _, ids) in arrays.relations.items() if ids is not None},
        **attributes,
    )


def typed_set_of(seeds: dict) -> dp.HeteroItemSet:
    """Nodes of node types and pairs of edge types, as strategies.typed_seeds draws them."""
    shape = {of: (-1,) if isinstance(of, str) else (-1, 2) for of in seeds}
    return dp.HeteroItemSet(
        {of: dp.ItemSet(torch.tensor(ids, dtype=torch.int64).reshape(shape[of])) for of, ids in seeds.items()}
    )


def typed_fanouts(graph: dp.HeteroCSCGraph, most_hops: int = 3) -> st.SearchStrategy[list[Any]]:
    """Fanouts of one hop or more, each an int or by edge type; some edge type is drawn from."""
    hop = st.dictionaries(st.sampled_from(graph.edge_types), st.integers(-1, 4)) | st.integers(-1, 4)
    return st.lists(hop, min_size=1, max_size=most_hops).filter(lambda hops: any(map(draws_something, hops)))


def draws_something(fanout: Any) -> bool:
    return any(fanout.values()) if isinstance(fanout, dict) else fanout != 0


def by_hop(fanouts: Sequence[Any], edge_types: Sequence[Any]) -> list[dict[Any, int]]:
    """The twin's fanouts: in the order of the hops, by edge type."""
    return [fanout if isinstance(fanout, dict) else dict.fromkeys(edge_types, fanout) for fanout in reversed(fanouts)]


def as_hop(block: dp.Block) -> twin.Hop:
    return twin.Hop(block.indptr.tolist(), block.indices.tolist(), block.edge_ids.tolist(), block.num_src)


def expect_the_twin(minibatch: dp.MiniBatch, expected: twin.Neighborhood | twin.TypedNeighborhood) -> None:
    """Check that a sampler has found what the twin has, without types or with."""
    blocks = minibatch.blocks[::-1]
    if isinstance(expected, twin.TypedNeighborhood):
        assert {of: ids.tolist() for of, ids in minibatch.input_nodes.items()} == expected.nodes
        compacted = {of: ids.tolist() for of, ids in minibatch.compacted_seeds.items()}
        assert compacted == expected.compacted_seeds
        assert [[*of_types] for of_types in blocks] == [sorted(hop) for hop in expected.hops]
        assert [{of: as_hop(block) for of, block in of_types.items()} for of_types in blocks] == expected.hops
    else:
        assert minibatch.input_nodes.tolist() == expected.nodes
        assert minibatch.compacted_seeds.reshape(-1).tolist() == expected.compacted_seeds
        assert minibatch.compacted_seeds.shape == minibatch.seeds.shape
        assert [as_hop(block) for block in blocks] == expected.hops
