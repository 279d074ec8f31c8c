"""DistNeighborLoader and DistLinkNeighborLoader, under PyG's names, with its arguments and batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import check_edge_index, shown, tensor_of
from datapipes.base.types import ends_of, type_in
from datapipes.pyg import torch_geometric_names
from datapipes.pyg.distributed.dist_loader import IteratingOverParts
from datapipes.pyg.distributed.dist_neighbor_sampler import DistNeighborSampler
from datapipes.pyg.distributed.sampler_of_ranks import stores_of
from datapipes.pyg.loader.arguments import (
    ids_or_mask,
    labels_of_seeds,
    refuse_half_of_times,
    refuse_time_alone,
    typed_nodes,
    values_of_seeds,
)
from datapipes.pyg.torch_geometric_names import arguments_of

__all__ = ["DistLinkNeighborLoader", "DistNeighborLoader"]

# Further arguments, with their defaults.
_MORE = {"seed": 0, "weight_attr": None, "time_window": None, "rpc_timeout": 180, "tls": None, "insecure": False}


class DistNeighborLoader(IteratingOverParts, torch_geometric_names.NodeLoader):  # type: ignore[misc]  # PyG comes without types
    """The DistNeighborLoader of torch_geometric.distributed: the same arguments and batches, without PyG's faults.

    Batches come in the order of their index. Batch i of rank r is minibatch i * world_size + r of the epoch, the same
    bits for any number of workers and any `concurrency`. Ranks may have different numbers of batches.

    Args:
        data: (LocalFeatureStore, LocalGraphStore) of this rank's part. A batch has all attributes of nodes and edges
            that the parts have when the loader is built. A batch has `y` if `feature_store.labels` is set to the labels
            of all nodes of the graph: [num_nodes] or {type: [num_nodes]}.
        num_neighbors, replace, subgraph_type, disjoint, temporal_strategy, time_attr, transform: see NeighborLoader. A
            `time_attr` implies disjoint.
        master_addr, master_port, current_ctx, num_rpc_threads, rpc_timeout, tls, insecure: see DistLoader.
        input_nodes: the seeds of this rank, which may lie in any part: global ids, or a mask of all nodes of the graph.
            With types: (type, ids) or (type, mask). None, or a type alone: all nodes of the graph, on each rank.
        input_time: the time of each seed. By default it is the node's own time, from `time_attr`.
        dist_sampler: a DistNeighborSampler to use instead of a new one. Arguments that the sampler has already may be
            left out here; `num_neighbors` may then be None. A sampler may serve several loaders, and stays open when
            they are closed.
        concurrency: how many minibatches may wait for answers of other ranks at once, in each worker. With
            `async_sampling`, the default of 1 means 8.
        filter_per_worker: whether workers make the whole batch, `transform` included.
        async_sampling: False makes one minibatch at a time, when the loop asks for it; the bits are the same.
        device: the device of the batches; None: host memory.
        seed: the random seed, in [0, 2**64); decides the order of the seeds and the draws.
        weight_attr: the edge attribute that holds weights.
        time_window: see NeighborSampler.
        **kwargs: the arguments of torch's DataLoader, as for NodeLoader. Workers are processes of the fork server; if
            the main module cannot be imported again, they are threads, and the log says so.
    Raises:
        The errors of DistLoader; TypeError, ValueError, IndexError: an argument is not allowed.
    """

    @arguments_of(torch_geometric_names.DistNeighborLoader, **_MORE)
    def __init__(
        self,
        *,
        data: Any,
        input_nodes: Any,
        input_time: Any,
        dist_sampler: DistNeighborSampler | None,
        **kwargs: Any,
    ) -> None:
        where = type(self).__name__
        stores_of(where, data)
        refuse_time_alone(where, input_time, kwargs["time_attr"], dist_sampler)
        self._begin(False, data, dist_sampler, kwargs)
        node_type, ids = self._nodes(input_nodes)
        torch_geometric_names.NodeLoader.__init__(
            self,
            data,
            self.dist_sampler,
            input_nodes=ids if node_type is None else (node_type, ids),
            **values_of_seeds(where, input_time=input_time, input_id=kwargs.pop("input_id", None)),
            **kwargs,
        )

    def _nodes(self, input_nodes: Any) -> tuple[Any, Tensor]:
        """Check the loader's argument `input_nodes`, and return (node type or None, seeds).

        The seeds are int64 [n], global ids, or a mask bool [num_nodes]. Without given seeds they are all nodes of the
        type.
        """
        where, graph = type(self).__name__, self.dist_sampler.graph
        node_type, ids = typed_nodes(where, input_nodes, [*graph.node_types] if graph.is_heterogeneous else None)
        count = graph.num_nodes_of(node_type)
        if ids is None:
            return node_type, torch.arange(count)
        ids = ids_or_mask(where, tensor_of(where, "input_nodes", ids), count)
        if ids.dtype == torch.bool:
            return node_type, ids
        self._refuse_wrong_ids("input_nodes", node_type, ids)
        return node_type, ids.long()


class DistLinkNeighborLoader(IteratingOverParts, torch_geometric_names.LinkLoader):  # type: ignore[misc]  # PyG comes without types
    """The DistLinkNeighborLoader of torch_geometric.distributed: the same arguments and batches, without PyG's faults.

    Args:
        edge_label_index: the links of this rank, as pairs of global node ids: int64 [2, n] or (None, [2, n]) without
            types, (edge type, [2, n]) with types. An edge type alone, or None without types: all edges of this rank's
            part.
        edge_label, edge_label_time, neg_sampling, neg_sampling_ratio: see LinkNeighborLoader. Negatives are drawn among
            the nodes of the whole graph.
        other arguments: see DistNeighborLoader.
    Raises:
        The errors of DistNeighborLoader.
    """

    @arguments_of(torch_geometric_names.DistLinkNeighborLoader, **_MORE)
    def __init__(
        self,
        *,
        data: Any,
        edge_label_index: Any,
        edge_label: Any,
        edge_label_time: Any,
        neg_sampling: Any,
        neg_sampling_ratio: float | None,
        dist_sampler: DistNeighborSampler | None,
        **kwargs: Any,
    ) -> None:
        where = type(self).__name__
        stores_of(where, data)
        draws_by = kwargs["time_attr"] if dist_sampler is None else getattr(dist_sampler, "time_attr", None)
        refuse_half_of_times(where, edge_label_time, draws_by)
        self._begin(True, data, dist_sampler, kwargs)
        torch_geometric_names.LinkLoader.__init__(
            self,
            data,
            self.dist_sampler,
            edge_label_index=self._links(edge_label_index),
            **labels_of_seeds(where, edge_label, edge_label_time, neg_sampling, neg_sampling_ratio),
            **kwargs,
        )

    def _links(self, links: Any) -> tuple[Any, Tensor]:
        """Check the loader's argument `edge_label_index`, and return (edge type or None, ends).

        The ends are int64 [2, n], global ids. Without given ends they are all edges of the type in this rank's part.
        """
        where, graph, edge_type, ends = type(self).__name__, self.dist_sampler.graph, None, links
        length = len(links) if isinstance(links, (list, tuple)) else 0
        if length == 3 and all(isinstance(name, str) for name in links):
            edge_type, ends = links, None
        elif length == 2 and (links[0] is None or len(links[0]) == 3):
            edge_type, ends = links
        if edge_type is None and graph.is_heterogeneous:
            raise TypeError(
                f"{where}: edge_label_index must be an edge type, or (edge type, [2, n]), since the graph has "
                f"types, got {shown(links)}. Name one of {[*graph.edge_types]}."
            )
        edge_type = type_in(where, "edge", None if edge_type is None else tuple(edge_type), graph.edge_types)
        if ends is None:
            ends = self.dist_sampler.graph_store.get_edge_index(edge_type, "coo")
        ends = check_edge_index(where, "edge_label_index", ends)
        for ids, node_type in zip(ends, ends_of(edge_type), strict=True):
            self._refuse_wrong_ids("edge_label_index", node_type, ids)
        return edge_type, ends.long()
