"""PyG's loaders of whole subgraphs: ShaDow, Cluster-GCN, random parts and GraphSAINT. They are NodeLoaders.

A sampler of subgraph_samplers.py finds the nodes and edges, and the view makes the batch, which has the attributes of
the data and those that PyG's loader of this name adds.
"""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import check_int
from datapipes.base.folder import new_beside
from datapipes.base.progress import hidden
from datapipes.chain.stage import SeedStage
from datapipes.graph.csc_graph import CSCGraph
from datapipes.partition.partitioner import find_parts
from datapipes.pyg import torch_geometric_names
from datapipes.pyg.loader.loaders import NodeLoader
from datapipes.pyg.loader.view import View
from datapipes.pyg.subgraph_samplers import ClusterSampler, ShadowSampler, SubgraphSampler, WalkSampler
from datapipes.pyg.torch_geometric_names import Batch, Data, HeteroData, arguments_of
from datapipes.sampling.induced_subgraph_sampler import InducedSubgraphSampler, SubgraphNorms, measure_norms
from datapipes.sampling.random_walk_sampler import RandomWalkSampler
from datapipes.seeds.item_sampler import ItemSampler
from datapipes.seeds.item_set import ItemSet

__all__ = [
    "ClusterData",
    "ClusterLoader",
    "GraphSAINTNodeSampler",
    "GraphSAINTRandomWalkSampler",
    "RandomNodeLoader",
    "ShaDowKHopSampler",
]


class SubgraphView(View):
    """A View whose batches have the attributes of the data alone, as the subgraphs of PyG's loaders do."""

    def _set_sampled(self, batch: Any, out: Any, sampled: Any) -> None:
        """Set nothing."""

    def _set_seeds(self, batch: Any, metadata: Any) -> None:
        """Set nothing."""


class ShadowView(SubgraphView):
    """Makes a Batch of the subgraphs of the roots; `y` has a row for each root."""

    def _set_sampled(self, batch: Any, out: Any, sampled: Any) -> None:
        batch.batch, batch.root_n_id = out.batch, out.metadata[2]
        batch.ptr = torch.searchsorted(out.batch, torch.arange(len(batch.root_n_id) + 1))

    def sliced(self, out: Any) -> Any:
        batch = Batch(**super().sliced(out).to_dict())
        if "y" in self.data and self.data.is_node_attr("y"):
            batch.y = batch.y[batch.root_n_id]
        return batch


class SubgraphLoader(NodeLoader):
    """Base of the loaders in this module."""

    _view_class = SubgraphView
    _read_once = NodeLoader._read_once | {
        *("cluster_data", "depth", "node_idx", "num_parts", "num_steps", "sample_coverage", "walk_length"),
    }


def refuse_others(
    where: str, data: Any, options: dict[str, Any], kinds: tuple[type, ...] = (Data,), *names: str
) -> None:
    """Raise TypeError if `data` is of no class in `kinds`, or `options` has an argument that no subgraph reads.

    Args:
        names: further arguments of NodeLoader that this loader does not take.
    """
    if not isinstance(data, kinds):
        allowed = " or a ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{where}: data must be a {allowed}, got {type(data).__name__}. Convert it.")
    for name in ("input_time", "input_id", "custom_cls", *names):
        if options.get(name) is not None:
            raise TypeError(f"{where}: found the argument {name}, which subgraphs do not depend on. Leave it out.")


class ShaDowKHopSampler(SubgraphLoader):
    """torch_geometric.loader.ShaDowKHopSampler: a subgraph for each root, all edges among the nodes found from it.

    A batch has PyG's fields: the attributes of the data, `y` for the roots alone, `batch`, `ptr`, `root_n_id`.

    Args:
        data: a Data.
        depth, num_neighbors: hops, and in-edges drawn per node and hop, -1 for all.
        node_idx: the roots, ids or a mask; None: all nodes.
        replace: draw with replacement.
        other arguments: see NodeLoader.
    Raises:
        TypeError, ValueError, IndexError: An argument is not allowed; the message says what is allowed.
    """

    _view_class = ShadowView

    @arguments_of(torch_geometric_names.ShaDowKHopSampler, seed=0)
    def __init__(
        self, *, data: Any, depth: int, num_neighbors: int, node_idx: Any, replace: bool, **kwargs: Any
    ) -> None:
        where = type(self).__name__
        refuse_others(where, data, kwargs)
        self.depth = check_int(where, "depth", depth, 1)
        self.num_neighbors = check_int(where, "num_neighbors", num_neighbors, -1)
        self.node_idx, self.replace = node_idx, replace
        super().__init__(data, ShadowSampler(data, [num_neighbors] * depth, replace), node_idx, **kwargs)


class RandomNodeLoader(SubgraphLoader):
    """torch_geometric.loader.RandomNodeLoader: all edges among the nodes of a random part.

    Args:
        data: a Data or HeteroData.
        num_parts: a batch has 1 / num_parts of the nodes, of all types together.
        other arguments: see NodeLoader; `shuffle=True` gives other parts in each epoch.
    Raises:
        TypeError, ValueError, IndexError: An argument is not allowed; the message says what is allowed.
    """

    @arguments_of(torch_geometric_names.RandomNodeLoader, seed=0)
    def __init__(self, *, data: Any, num_parts: int, **kwargs: Any) -> None:
        refuse_others(type(self).__name__, data, kwargs, (Data, HeteroData))
        self.num_parts = check_int(type(self).__name__, "num_parts", num_parts, 1)
        nodes = dict.fromkeys(data.node_types) if isinstance(data, HeteroData) else None
        batch_size = max(math.ceil(data.num_nodes / num_parts), 1)
        super().__init__(data, SubgraphSampler(data), nodes, batch_size=batch_size, **kwargs)


class ClusterData(torch_geometric_names.ClusterData):  # type: ignore[misc]  # PyG comes without types
    """torch_geometric.loader.ClusterData, by the METIS of this package's Partitioner. It needs pymetis.

    Arguments and attributes are PyG's. METIS balances the numbers of nodes, and no cluster is empty.
    """

    def _metis(self, edge_index: Tensor, num_nodes: int) -> Tensor:
        graph = CSCGraph.from_edge_index(edge_index.cpu(), num_nodes)
        parts: Tensor = find_parts(graph, self.num_parts, recursive=self.recursive)
        return parts.to(edge_index.device)


class ClusterLoader(SubgraphLoader):
    """torch_geometric.loader.ClusterLoader: all edges among the nodes of some clusters.

    Nodes are in the order of `cluster_data.data`, and `data` is a copy of that with the edges.

    Args:
        cluster_data: a ClusterData, ours or PyG's.
        other arguments: see NodeLoader; seeds are clusters.
    Raises:
        TypeError, ValueError: An argument is not allowed; the message says what is allowed.
    """

    @arguments_of(torch_geometric_names.ClusterLoader, seed=0)
    def __init__(self, *, cluster_data: Any, **kwargs: Any) -> None:
        refuse_others(type(self).__name__, cluster_data, kwargs, (torch_geometric_names.ClusterData,))
        self.cluster_data, partition = cluster_data, cluster_data.partition
        begin = torch.repeat_interleave(partition.indptr.diff())
        ends = (begin, partition.index) if partition.sparse_format == "csr" else (partition.index, begin)
        data = copy.copy(cluster_data.data)
        data.edge_index = torch.stack(ends)
        super().__init__(data, ClusterSampler(data, partition.partptr), torch.arange(len(cluster_data)), **kwargs)


class GraphSAINT(SubgraphLoader):
    """Base of GraphSAINT's loaders. An epoch has `num_steps` batches, whose seeds are drawn with replacement.

    With `sample_coverage` above 0, batches have the weights of `dp.measure_norms`, `node_norm` and `edge_norm`. These
    are kept in a file of `save_dir`, if it is given, and read from there the next time. The steps are alike, so
    `shuffle` and `drop_last` change nothing.
    """

    def _set_up_steps(
        self,
        data: Any,
        starts: Any,
        walk_length: int | None,
        *,
        batch_size: int,
        num_steps: int,
        sample_coverage: int,
        save_dir: str | None,
        log: bool,
        **kwargs: Any,
    ) -> None:
        where = type(self).__name__
        self.num_steps = check_int(where, "num_steps", num_steps, 1)
        self.sample_coverage = check_int(where, "sample_coverage", sample_coverage, 0)
        data = copy.copy(data)
        data.num_nodes = data.num_nodes  # now an attribute, which each batch gets
        sampler = SubgraphSampler(data) if walk_length is None else WalkSampler(data, walk_length)
        NodeLoader.__init__(self, data, sampler, starts, batch_size=batch_size, **kwargs)
        if sample_coverage > 0:
            if "node_norm" in data or "edge_norm" in data:
                raise ValueError(f"{where}: data has norms already, and sample_coverage asks for them. Delete them.")
            name = f"{where.lower()}_{batch_size}_{walk_length or 0}_{sample_coverage}.pt"
            self.node_norm, self.edge_norm = self._norms(None if save_dir is None else Path(save_dir, name), log)
            data = copy.copy(data)
            data.node_norm, data.edge_norm = self.node_norm, self.edge_norm
            self.data = data

    def _norms(self, path: Path | None, log: bool) -> SubgraphNorms:
        sampler = self.node_sampler
        if path is not None and path.exists():
            norms = SubgraphNorms(*torch.load(path, weights_only=True))
            if [*map(len, norms)] != [sampler.graph.num_nodes, sampler.graph.num_edges]:
                raise ValueError(f"{type(self).__name__}: {path} has the norms of another graph. Delete it.")
            return norms
        walks: RandomWalkSampler | None = getattr(sampler, "walks", None)
        pipe: Any = self._steps(ItemSet(self.input_data.node))
        if walks is not None:
            pipe = RandomWalkSampler(pipe, walks.graph, walks.walk_length)
        pipe = InducedSubgraphSampler(pipe, sampler.graph, return_edge_ids=True)
        with nullcontext() if log else hidden():
            norms = measure_norms(pipe, self.sample_coverage)
        if path is not None:
            new = new_beside(path)  # a run that is ended leaves no part of the file
            torch.save(tuple(norms), new)
            new.replace(path)
        return norms

    def _steps(self, items: ItemSet) -> SeedStage:
        num_items = self.num_steps * self.batch_size
        return ItemSampler(items, self.batch_size, seed=self.seed, replacement=True, num_items=num_items)

    def _seeds(self) -> SeedStage:
        return self._steps(ItemSet(len(self.dataset)))

    def __len__(self) -> int:
        return self.num_steps


class GraphSAINTNodeSampler(GraphSAINT):
    """torch_geometric.loader.GraphSAINTNodeSampler: nodes in proportion to their out-edges, and all edges among them.

    Args:
        data: a Data.
        batch_size: nodes drawn for a batch, which has each once.
        num_steps, sample_coverage, save_dir, log: see GraphSAINT and torch_geometric.
        other arguments: see NodeLoader.
    Raises:
        TypeError, ValueError, IndexError: An argument is not allowed; the message says what is allowed.
    """

    @arguments_of(torch_geometric_names.GraphSAINTNodeSampler, seed=0)
    def __init__(self, *, data: Any, **kwargs: Any) -> None:
        refuse_others(type(self).__name__, data, kwargs, (Data,), "sampler", "batch_sampler")
        if not data.num_edges or data.edge_index is None:
            raise ValueError(f"{type(self).__name__}: data has no edge_index with edges, which are drawn. Set it.")
        self._set_up_steps(data, data.edge_index[0].cpu(), None, **kwargs)  # the source of an edge drawn uniformly


class GraphSAINTRandomWalkSampler(GraphSAINT):
    """torch_geometric.loader.GraphSAINTRandomWalkSampler: the nodes of walks along out-edges, and all edges among them.

    Args:
        data: a Data.
        batch_size: walks for a batch; their first nodes are drawn uniformly.
        walk_length: steps of a walk.
        num_steps, sample_coverage, save_dir, log: see GraphSAINT and torch_geometric.
        other arguments: see NodeLoader.
    Raises:
        TypeError, ValueError, IndexError: An argument is not allowed; the message says what is allowed.
    """

    @arguments_of(torch_geometric_names.GraphSAINTRandomWalkSampler, seed=0)
    def __init__(self, *, data: Any, walk_length: int, **kwargs: Any) -> None:
        refuse_others(type(self).__name__, data, kwargs, (Data,), "sampler", "batch_sampler")
        self.walk_length = walk_length
        self._set_up_steps(data, None, walk_length, **kwargs)
