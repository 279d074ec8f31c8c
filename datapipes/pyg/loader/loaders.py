"""NodeLoader, NeighborLoader, LinkLoader and LinkNeighborLoader: PyG's names, arguments and batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from datapipes.pyg import torch_geometric_names
from datapipes.pyg.graph_of import data_of
from datapipes.pyg.loader.arguments import (
    labels_of_seeds,
    link_seeds,
    node_seeds,
    node_seeds_by_type,
    refuse_half_of_times,
    refuse_time_alone,
    refuse_wrong_class,
    refuse_wrong_features,
    refuse_wrong_sampler,
    sampler_of,
    types_of,
    values_of_seeds,
)
from datapipes.pyg.loader.iterating import Iterating
from datapipes.pyg.seeds_of_types import SeedsOfTypes
from datapipes.pyg.torch_geometric_names import BaseSampler, arguments_of

__all__ = ["LinkLoader", "LinkNeighborLoader", "NeighborLoader", "NodeLoader"]


class NodeLoader(Iterating, torch_geometric_names.NodeLoader):  # type: ignore[misc]  # PyG comes without types
    """torch_geometric.loader.NodeLoader for any BaseSampler. Workers, order and saved state are those of this package.

    The arguments are PyG's. `dataset` and `collate_fn` of torch's DataLoader are ignored, as in PyG.

    Args:
        filter_per_worker: whether workers make the whole batch. None: they do if `transform` or
            `transform_sampler_output` is given or the data is a pair of stores; otherwise this process gathers the
            rows, so no row is sent between processes.
        fetch_ahead: (keyword only) whether threads of this process fill batches before the loop asks for them. None:
            True if there are workers, unless the data has a class of your own or an `adj_t`; without workers batches
            are filled on demand, as in PyG. Batches have the current values of attributes that were set or deleted,
            that need a gradient, or that an in-place function of torch has changed (the tensor, a view or its
            `detach()`). Batches may have older values after changes that torch does not see: by NumPy, DLPack, a fused
            optimizer, a collective of torch.distributed, another process, a `non_blocking` copy from a GPU, or a tensor
            that shares memory by `.data`. Do not move a tensor during a loop (`share_memory_`, sending the data to a
            process): torch frees the old memory at once.
        features: (keyword only) attributes that the data does not have: features that lie in a file, have a cache, are
            sparse or have fewer bits. Give {(domain, type, name): feature}, where domain is "node" or "edge"; or {name:
            feature} for nodes without types; or a FeatureStore. Rows of edges are in the order of `edge_index`. The
            data then needs `num_nodes`. A stage reads the rows, mostly ahead of the loop; `stats()` has the counts of
            the features' caches.
        input_nodes: as in PyG; or seeds of several types, {node type: ids, a mask, or None for all nodes}. With several
            types, `input_time` and `input_id` are dicts by node type, too. Positions of seeds run across the types, in
            the order of the dict. A batch may have seeds of any type, and has `input_id`, `batch_size` and `seed_time`
            for each.
        generator: a torch.Generator, whose `initial_seed()` is used as `seed`.
        sampler, batch_sampler: give the order of an epoch. The order is drawn whole, in this process, when the epoch
            begins. Workers do not persist then.
        num_workers: number of worker processes, by default forked. If a fork is not safe (CUDA is initialised, Arrow
            Flight has clients), workers are threads, and the log says so. Threads call a sampler of your own for one
            batch at a time, unseeded.
        worker_method: "process" or "thread"; threads take no `multiprocessing_context`.
        seed: the random seed, in [0, 2**64). It decides order and draws, together with the epoch and the index of the
            batch. It also seeds the generators of torch, NumPy and Python for a sampler or transform of your own.
    Raises:
        TypeError, ValueError: An argument is not allowed; the message says what is allowed.
    """

    @arguments_of(torch_geometric_names.NodeLoader, seed=0)
    def __init__(
        self,
        *,
        data: Any,
        node_sampler: BaseSampler,
        input_nodes: Any,
        input_time: Any,
        input_id: Any,
        **kwargs: Any,
    ) -> None:
        self._set_up(False, kwargs)
        where, data = type(self).__name__, data_of(data)
        refuse_wrong_sampler(where, "node_sampler", "sample_from_nodes", node_sampler)
        refuse_wrong_features(where, data, node_sampler, self.view.features)
        refuse_wrong_class(where, data, kwargs["custom_cls"])
        seeds: SeedsOfTypes | None = None
        seeding: dict[str, Any]
        if isinstance(input_nodes, Mapping) and types_of(where, data)[0] is not None:
            seeds = node_seeds_by_type(where, data, node_sampler, input_nodes, input_id, input_time)
            # PyG's constructor takes a single type, and only counts the seeds.
            seeding = {"input_nodes": (next(iter(seeds.by_type)), torch.zeros(1, dtype=torch.int64).expand(len(seeds)))}
        else:
            seeding = node_seeds(where, data, node_sampler, input_nodes, input_id)
            seeding |= values_of_seeds(where, input_time=input_time)
        torch_geometric_names.NodeLoader.__init__(self, data, node_sampler, **seeding, **kwargs)
        self.__dict__["input_nodes"] = input_nodes
        if seeds is not None:
            self.__dict__.update(input_time=input_time, input_id=input_id)
            self.input_data = seeds


class NeighborLoader(NodeLoader, torch_geometric_names.NeighborLoader):  # type: ignore[misc]  # PyG comes without types
    """torch_geometric.loader.NeighborLoader: the same arguments and batches, from this package's samplers.

    Args:
        data: Data, HeteroData, a pair (FeatureStore, GraphStore); or a CSCGraph or HeteroCSCGraph, whose attributes are
            sliced too.
        num_neighbors, input_nodes, input_time, replace, subgraph_type, disjoint, temporal_strategy, time_attr,
            weight_attr, is_sorted, directed: see torch_geometric; docs/migrate/pyg.md has the differences.
        time_window: see datapipes.pyg.sampler.NeighborSampler.
        neighbor_sampler: a datapipes.pyg.sampler.NeighborSampler, instead of a new one.
        other arguments: see NodeLoader.
    Raises:
        TypeError, ValueError, IndexError: An argument is not allowed, or the data does not fit; the message says what
            is allowed.
    """

    @arguments_of(torch_geometric_names.NeighborLoader, time_window=None, seed=0)
    def __init__(
        self, *, data: Any, neighbor_sampler: Any, time_attr: str | None, input_time: Any, **kwargs: Any
    ) -> None:
        where = type(self).__name__
        refuse_time_alone(where, input_time, time_attr, neighbor_sampler)
        sampler = sampler_of(where, neighbor_sampler, data, time_attr, kwargs)
        super().__init__(data, sampler, input_time=input_time, **kwargs)


class LinkLoader(Iterating, torch_geometric_names.LinkLoader):  # type: ignore[misc]  # PyG comes without types
    """torch_geometric.loader.LinkLoader for any BaseSampler. Workers, order and saved state are those of this package.

    The arguments are PyG's; for the arguments of torch's DataLoader and `seed` see NodeLoader.
    """

    @arguments_of(torch_geometric_names.LinkLoader, seed=0)
    def __init__(
        self,
        *,
        data: Any,
        link_sampler: BaseSampler,
        edge_label_index: Any,
        edge_label: Any,
        edge_label_time: Any,
        neg_sampling: Any,
        neg_sampling_ratio: float | None,
        input_id: Any,
        **kwargs: Any,
    ) -> None:
        self._set_up(True, kwargs)
        where, data = type(self).__name__, data_of(data)
        refuse_wrong_sampler(where, "link_sampler", "sample_from_edges", link_sampler)
        refuse_wrong_features(where, data, link_sampler, self.view.features)
        refuse_wrong_class(where, data, kwargs["custom_cls"])
        torch_geometric_names.LinkLoader.__init__(
            self,
            data,
            link_sampler,
            edge_label_index=link_seeds(where, data, edge_label_index),
            **labels_of_seeds(where, edge_label, edge_label_time, neg_sampling, neg_sampling_ratio),
            **values_of_seeds(where, input_id=input_id),
            **kwargs,
        )
        self.__dict__["edge_label_index"] = edge_label_index


class LinkNeighborLoader(LinkLoader, torch_geometric_names.LinkNeighborLoader):  # type: ignore[misc]  # PyG comes without types
    """torch_geometric.loader.LinkNeighborLoader: the same arguments and batches, from this package's samplers.

    Negatives are drawn by the random key, so `seed` decides them, too.

    Args:
        data, neighbor_sampler, time_window: see NeighborLoader.
        num_neighbors, edge_label_index, edge_label, edge_label_time, replace, subgraph_type, disjoint,
            temporal_strategy, neg_sampling, neg_sampling_ratio, time_attr, weight_attr, is_sorted, directed: see
            torch_geometric; docs/migrate/pyg.md has the differences.
        other arguments: see NodeLoader.
    Raises:
        TypeError, ValueError, IndexError: An argument is not allowed, or the data does not fit; the message says what
            is allowed.
    """

    @arguments_of(torch_geometric_names.LinkNeighborLoader, time_window=None, seed=0)
    def __init__(
        self, *, data: Any, neighbor_sampler: Any, time_attr: str | None, edge_label_time: Any, **kwargs: Any
    ) -> None:
        where = type(self).__name__
        sampler = sampler_of(where, neighbor_sampler, data, time_attr, kwargs)
        refuse_half_of_times(where, edge_label_time, sampler.time_attr)
        super().__init__(data, sampler, edge_label_time=edge_label_time, **kwargs)
