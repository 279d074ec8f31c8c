"""A small heterogeneous graph, and a sampler for it that is slow and obvious: what tests of typed minibatches run over.

It draws nothing at random: a fanout of k keeps the first k in-edges of a node. So these tests need no random key, and
say nothing about the picks of NeighborSampler.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

import datapipes as dp

NUM_NODES = {"author": 7, "empty": 0, "field": 4, "paper": 12}
BY = ("paper", "by", "author")
CITES = ("paper", "cites", "paper")
OF = ("field", "of", "paper")
WRITES = ("author", "writes", "paper")
NUM_EDGES = {WRITES: 20, OF: 8, BY: 12, CITES: 30}  # nothing points to fields; nothing joins "empty"


def hetero_graph(dtype: torch.dtype = torch.int64) -> dp.HeteroCSCGraph:
    """Four node types, one of them without nodes; edge ids that are not the positions."""
    rng = np.random.default_rng(3)
    relations, edge_ids = {}, {}
    for (src, rel, dst), count in NUM_EDGES.items():
        counts = np.bincount(rng.integers(0, NUM_NODES[dst], count), minlength=NUM_NODES[dst])
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        indices = torch.from_numpy(rng.integers(0, NUM_NODES[src], count)).to(dtype)
        relations[src, rel, dst] = (indptr, indices)
        edge_ids[src, rel, dst] = rng.permutation(count)
    return dp.HeteroCSCGraph(relations, NUM_NODES, edge_ids=edge_ids)


def hetero_store() -> dp.FeatureStore:
    """Node feature "feat", float64 [num_nodes, 3], of each type; edge feature "weight", float16 [num_edges]."""
    features: dict[Any, dp.Feature] = {}
    for number, (node_type, count) in enumerate(NUM_NODES.items()):
        rows = torch.sin(torch.arange(3.0 * count, dtype=torch.float64) + number).reshape(count, 3)
        features["node", node_type, "feat"] = dp.TensorFeature(rows)
    for number, (edge_type, count) in enumerate(NUM_EDGES.items()):
        features["edge", edge_type, "weight"] = dp.TensorFeature((torch.arange(count) + 100 * number).half())
    return dp.FeatureStore(features)


class SlowSampler(dp.stages.Sampler):
    """Sample `graph`, of any kind; `fanouts` has {edge type: int} for each hop, the last one next to the seeds."""

    def __init__(
        self, source, graph, fanouts: Sequence[Mapping[Any, int]], frontier: str = "new", return_edge_ids: bool = True
    ) -> None:
        dp.MiniBatchTransformer.__init__(self, source)
        self.graph, self.fanouts, self.frontier, self.return_edge_ids = graph, fanouts, frontier, return_edge_ids
        self.node_types = graph.node_types
        self.edge_types = tuple(sorted({edge_type for of_hop in fanouts for edge_type in of_hop if of_hop[edge_type]}))

    def transform(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        nodes: dict[str, dict[int, int]] = {node_type: {} for node_type in self.node_types}  # id -> local id

        def find(node_type: str, node: int) -> int:
            return nodes[node_type].setdefault(node, len(nodes[node_type]))

        compacted = {}
        for type_, seeds in minibatch.seeds.items():
            ends = (type_[0], type_[2]) if isinstance(type_, tuple) else (type_,)
            rows = seeds.reshape(len(seeds), len(ends)).tolist()
            local = [[find(end, node) for end, node in zip(ends, row, strict=True)] for row in rows]
            compacted[type_] = self._ids(local).reshape(seeds.shape)

        hops, drawn_before = [], dict.fromkeys(nodes, 0)
        for fanouts in reversed(self.fanouts):
            found_before = {node_type: list(ids) for node_type, ids in nodes.items()}
            hop = {}
            for src, rel, dst in self.edge_types:
                relation, fanout = self.graph.relation((src, rel, dst)), fanouts.get((src, rel, dst), 0)
                indptr, indices, edge_ids = [0], [], []
                for place, node in enumerate(found_before[dst]):
                    if self.frontier == "all" or place >= drawn_before[dst]:
                        begin, end = int(relation.indptr[node]), int(relation.indptr[node + 1])
                        for position in range(begin, end if fanout < 0 else min(begin + fanout, end)):
                            indices.append(find(src, int(relation.indices[position])))
                            edge_ids.append(position if relation.edge_ids is None else int(relation.edge_ids[position]))
                    indptr.append(len(indices))
                hop[src, rel, dst] = (torch.tensor(indptr), self._ids(indices), torch.tensor(edge_ids).long())
            blocks = {}
            for edge_type, (indptr, indices, edge_ids) in hop.items():
                num_src = len(nodes[edge_type[0]])
                blocks[edge_type] = dp.Block(indptr, indices, num_src, edge_ids if self.return_edge_ids else None)
            hops.append(blocks)
            drawn_before = {node_type: len(ids) for node_type, ids in found_before.items()}
        return minibatch.replace(
            input_nodes={node_type: self._ids(list(ids)) for node_type, ids in nodes.items()},
            compacted_seeds=compacted,
            blocks=hops[::-1],
        )

    def _ids(self, values: list) -> torch.Tensor:
        return torch.tensor(values, dtype=self.graph.index_dtype)


def every(fanout: int) -> dict[Any, int]:
    return dict.fromkeys(NUM_EDGES, fanout)


def typed_items(seeds: Mapping[Any, Any], batch_size: int | None = None, **fields: Mapping[Any, Any]) -> dp.ItemSampler:
    """The items of these seeds, in order, in minibatches of all of them by default; `fields` are aligned with them."""
    sets = {}
    for type_, values in seeds.items():
        names = ["seeds", *(name for name in fields if type_ in fields[name])]
        ids = torch.as_tensor(values, dtype=torch.int64).reshape(-1, 2) if isinstance(type_, tuple) else values
        rows = [torch.as_tensor(ids, dtype=torch.int64), *(torch.as_tensor(fields[name][type_]) for name in names[1:])]
        sets[type_] = dp.ItemSet(tuple(rows), names)
    items = dp.HeteroItemSet(sets)
    return dp.ItemSampler(items, batch_size or len(items))


def slow_sampled(seeds=None, fanouts=None, *, fields=None, batch_size: int | None = None, **arguments) -> SlowSampler:
    source = typed_items({"paper": [3, 0, 8, 5]} if seeds is None else seeds, batch_size, **(fields or {}))
    return SlowSampler(source, hetero_graph(), [every(2), every(3)] if fanouts is None else fanouts, **arguments)
