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

from datapipes.base.checks import check_int, check_within
from datapipes.base.files import written_whole
from datapipes.base.progress import hidden
from datapipes.chain.stage import SeedStage
from datapipes.chain.stage_graph import StageGraph
from datapipes.chain.state import differences, fingerprint
from datapipes.graph.csc_graph import CSCGraph
from datapipes.partition.partitioner import find_parts
from datapipes.pyg import torch_geometric_names
from datapipes.pyg.loader.arguments import ids_or_mask
from datapipes.pyg.loader.iterating import OfView
from datapipes.pyg.loader.loaders import NodeLoader
from datapipes.pyg.loader.view import View
from datapipes.pyg.subgraph_samplers import ClusterSampler, ShadowSampler, SubgraphSampler, WalkSampler
from datapipes.pyg.torch_geometric_names import Batch, Data, HeteroData, Partition, arguments_of
from datapipes.sampling.induced_subgraph_sampler import InducedSubgraphSampler, SubgraphNorms, measure_norms
from datapipes.sampling.random_walk_sampler import RandomWalkSampler
from datapipes.seeds.item_sampler import ItemSampler
from datapipes.seeds.item_set import ItemSet

_ANEW = "Delete it, or choose another save_dir."

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
    """Makes a Batch of the subgraphs of the roots; if `y` is of nodes, it has a row for each root."""

    def _set_sampled(self, batch: Any, out: Any, sampled: Any) -> None:
        batch.batch, batch.root_n_id = out.batch, out.metadata[2]
        batch.ptr = torch.searchsorted(out.batch, torch.arange(len(batch.root_n_id) + 1))

    def sliced(self, out: Any) -> Any:
        batch = Batch(**super().sliced(out).to_dict())
        if ("y" in self.data and self.data.is_node_attr("y")) or ("node", None, "y") in self.features:
            batch.y = batch.y[batch.root_n_id]
        return batch


class SaintView(SubgraphView):
    """Makes batches that have `num_nodes` and the norms.

    Attributes:
        node_norm, edge_norm: the norms of all nodes and edges; None: batches have none.
    """

    node_norm: Tensor | None = None
    edge_norm: Tensor | None = None

    def _set_sampled(self, batch: Any, out: Any, sampled: Any) -> None:
        batch.num_nodes = len(out.node)
        if self.node_norm is not None and self.edge_norm is not None:
            batch.node_norm, batch.edge_norm = self.node_norm[out.node], self.edge_norm[sampled.edges[None]]


class SubgraphLoader(NodeLoader):
    """Base of the loaders in this module."""

    _view_class = SubgraphView
    _read_once = NodeLoader._read_once | {
        *("cluster_data", "depth", "node_idx", "num_parts", "num_steps", "sample_coverage", "walk_length"),
    }


def refuse_wrong_data(where: str, data: Any, *kinds: type) -> None:
    """Raise TypeError if `data` is of no class in `kinds`."""
    if not isinstance(data, kinds):
        allowed = " or a ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{where}: data must be a {allowed}, got {type(data).__name__}. Convert it.")


def refuse_unread(where: str, options: dict[str, Any], *names: str) -> None:
    """Raise TypeError if `options` has an argument of NodeLoader that no subgraph reads, or one of `names`."""
    for name in ("input_time", "input_id", "custom_cls", *names):
        if options.get(name) is not None:
            raise TypeError(f"{where}: found the argument {name}, which this loader does not read. Leave it out.")


def read_saved(where: str, path: Path, kind: type, device: Any = "cpu") -> Any:
    """Return the object of the class `kind` that torch has saved in a file, of plain values and tensors on `device`.

    Raises:
        ValueError: The file is broken, or has something else. No code of it was run.
    """
    allowed = [*torch.serialization.get_safe_globals()]  # torch 2.4 gives its own list
    torch.serialization.add_safe_globals([kind])
    try:
        saved = torch.load(path, device, weights_only=True)
    except OSError:
        raise
    except Exception as error:  # of nearly any class
        raise ValueError(f"{where}: {path} is broken, or has more than plain values and tensors. {_ANEW}") from error
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(allowed)
    if not isinstance(saved, kind):
        raise ValueError(f"{where}: {path} has {type(saved).__name__}, needed is {kind.__name__}. {_ANEW}")
    return saved


def write_saved(path: Path, value: Any) -> None:
    """Save a value by torch. Its file appears once it is whole."""
    with written_whole(path) as new:
        torch.save(value, new)


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
        refuse_wrong_data(where, data, Data)
        refuse_unread(where, kwargs, "input_nodes")
        self.depth = check_int(where, "depth", depth, 1)
        self.num_neighbors = check_int(where, "num_neighbors", num_neighbors, -1)
        self.node_idx, self.replace = node_idx, replace
        ids = None if node_idx is None else ids_or_mask(where, node_idx, data.num_nodes, "node_idx")
        if ids is not None and ids.dtype != torch.bool:
            check_within(where, "node_idx", ids, data.num_nodes, "Take the roots from the same data.")
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
        refuse_wrong_data(type(self).__name__, data, Data, HeteroData)
        refuse_unread(type(self).__name__, kwargs, "batch_size")
        self.num_parts = check_int(type(self).__name__, "num_parts", num_parts, 1)
        nodes = dict.fromkeys(data.node_types) if isinstance(data, HeteroData) else None
        batch_size = max(math.ceil(data.num_nodes / num_parts), 1)
        super().__init__(data, SubgraphSampler(data), nodes, batch_size=batch_size, **kwargs)


class ClusterData(torch_geometric_names.ClusterData):  # type: ignore[misc]  # PyG comes without types
    """torch_geometric.loader.ClusterData, by the METIS of this package's Partitioner. It needs pymetis.

    Arguments and attributes are PyG's. METIS balances the numbers of nodes, and no cluster is empty. A file that PyG's
    class has saved is read too.

    Raises:
        TypeError, ValueError: An argument is not allowed; or the file in `save_dir` is broken, or has clusters of
            another graph.
    """

    def __init__(
        self,
        data: Any,
        num_parts: int,
        recursive: bool = False,
        save_dir: str | None = None,
        filename: str | None = None,
        log: bool = True,
        keep_inter_cluster_edges: bool = False,
        sparse_format: str = "csr",
    ) -> None:
        refuse_wrong_data(type(self).__name__, data, Data)
        folder = Path(save_dir or "", f"part_{num_parts}{'_recursive' if recursive else ''}")
        path = folder / (filename or "metis.pt")
        if save_dir is not None and path.exists():
            self.num_parts, self.recursive, self.sparse_format = num_parts, recursive, sparse_format
            self.keep_inter_cluster_edges = keep_inter_cluster_edges
            self.partition = self._read(path, data)
            self.data = self._permute_data(data, self.partition)
            return
        if save_dir is not None:
            folder.mkdir(parents=True, exist_ok=True)
        super().__init__(data, num_parts, recursive, None, None, log, keep_inter_cluster_edges, sparse_format)
        if save_dir is not None:
            write_saved(path, self.partition)

    def _read(self, path: Path, data: Any) -> Any:
        """Return the Partition in a file. ValueError if it is not of this graph."""
        where, device = type(self).__name__, data.edge_index.device
        partition = read_saved(where, path, Partition, device)
        sizes = [*map(len, (partition.node_perm, partition.edge_perm, partition.partptr))]
        is_of_data = partition.sparse_format == self.sparse_format
        is_of_data &= sizes == [data.num_nodes, data.num_edges, self.num_parts + 1]
        if is_of_data:
            place = torch.empty_like(partition.node_perm)
            place[partition.node_perm] = torch.arange(len(place), device=device)
            is_of_data = torch.equal(place[data.edge_index][:, partition.edge_perm], edges_of(partition))
        if not is_of_data:
            raise ValueError(f"{where}: {path} has clusters of other edges, or another sparse_format. {_ANEW}")
        return partition

    def _metis(self, edge_index: Tensor, num_nodes: int) -> Tensor:
        graph = CSCGraph.from_edge_index(edge_index.cpu(), num_nodes)
        parts: Tensor = find_parts(graph, self.num_parts, recursive=self.recursive)
        return parts.to(edge_index.device)


def edges_of(partition: Any) -> Tensor:
    """Return the edges of a Partition of PyG, int64 [2, num_edges]."""
    begin = torch.repeat_interleave(partition.indptr.diff())
    return torch.stack((begin, partition.index) if partition.sparse_format == "csr" else (partition.index, begin))


class ClusterLoader(SubgraphLoader):
    """torch_geometric.loader.ClusterLoader: all edges among the nodes of some clusters.

    Nodes and edges, and so the rows of `features`, are in the order of `cluster_data.data`, sorted by cluster. `data`
    is a copy of that, made here, with the edges.

    Args:
        cluster_data: a ClusterData, ours or PyG's.
        other arguments: see NodeLoader; seeds are clusters.
    Raises:
        TypeError, ValueError: An argument is not allowed; the message says what is allowed.
    """

    @arguments_of(torch_geometric_names.ClusterLoader, seed=0)
    def __init__(self, *, cluster_data: Any, **kwargs: Any) -> None:
        refuse_wrong_data(type(self).__name__, cluster_data, torch_geometric_names.ClusterData)
        refuse_unread(type(self).__name__, kwargs)
        self.cluster_data, partition = cluster_data, cluster_data.partition
        data = copy.copy(cluster_data.data)
        data.edge_index = edges_of(partition)
        whole = Data(edge_index=data.edge_index, num_nodes=len(partition.node_perm))  # `data` may have no num_nodes
        super().__init__(data, ClusterSampler(whole, partition.partptr), torch.arange(len(cluster_data)), **kwargs)


class GraphSAINT(SubgraphLoader):
    """Base of GraphSAINT's loaders. An epoch has `num_steps` batches, whose seeds are drawn with replacement.

    With `sample_coverage` above 0, batches have the weights of `dp.measure_norms`, `node_norm` and `edge_norm`. These
    are kept in a file of `save_dir`, if it is given, and read from there the next time; ValueError if they are those of
    another graph or other arguments. The steps are alike, so `shuffle` and `drop_last` change nothing.
    """

    _view_class = SaintView
    node_norm, edge_norm = OfView("node_norm"), OfView("edge_norm")

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
        refuse_unread(where, kwargs, "sampler", "batch_sampler")
        self.num_steps = check_int(where, "num_steps", num_steps, 1)
        self.sample_coverage = check_int(where, "sample_coverage", sample_coverage, 0)
        if sample_coverage > 0 and ("node_norm" in data or "edge_norm" in data):
            raise ValueError(f"{where}: data has norms already, and sample_coverage asks for them. Delete them.")
        sampler = SubgraphSampler(data) if walk_length is None else WalkSampler(data, walk_length)
        NodeLoader.__init__(self, data, sampler, starts, batch_size=batch_size, **kwargs)
        if sample_coverage > 0:
            name = f"{where.lower()}_{batch_size}_{walk_length or 0}_{sample_coverage}.pt"
            self.node_norm, self.edge_norm = self._norms(None if save_dir is None else Path(save_dir, name), log)

    def _norms(self, path: Path | None, log: bool) -> SubgraphNorms:
        """Return the norms, from the file at `path` if it is there."""
        sampler = self.node_sampler
        walks: RandomWalkSampler | None = getattr(sampler, "walks", None)
        pipe: Any = self._steps(ItemSet(self.input_data.node))
        if walks is not None:
            pipe = RandomWalkSampler(pipe, walks.graph, walks.walk_length)
        pipe = InducedSubgraphSampler(pipe, sampler.graph, return_edge_ids=True)
        if path is not None and path.exists():
            saved = read_saved(type(self).__name__, path, dict)
            differing = differences(saved.pop("decides", {}), self._decides(pipe), "is")
            if differing:
                raise ValueError(f"{type(self).__name__}: {path} has other norms: {'; '.join(differing)}. {_ANEW}")
            return SubgraphNorms(**saved)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)  # before the work
        with nullcontext() if log else hidden():
            norms = measure_norms(pipe, self.sample_coverage)
        if path is not None:
            write_saved(path, {**norms._asdict(), "decides": self._decides(pipe)})
        return norms

    def _decides(self, pipe: Any) -> dict[str, Any]:
        """Return {name: value} of all on which the norms depend; `pipe` is the chain that is counted."""
        return {"seed": self.seed, "sample_coverage": self.sample_coverage, **fingerprint(StageGraph(pipe))}

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
        refuse_wrong_data(type(self).__name__, data, Data)
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
        refuse_wrong_data(type(self).__name__, data, Data)
        self.walk_length = walk_length
        self._set_up_steps(data, None, walk_length, **kwargs)
