"""LinkLoader and LinkNeighborLoader, under PyG's names, with its arguments and batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from datapipes.graph.csc_graph import CSCGraph
from datapipes.graph.hetero_csc_graph import HeteroCSCGraph
from datapipes.pyg import upstream
from datapipes.pyg.graph_of import data_of
from datapipes.pyg.loader.arguments import (
    labels_of_seeds,
    link_seeds,
    refuse_no_functions,
    refuse_wrong_class,
    refuse_wrong_sampler,
    values_of_seeds,
)
from datapipes.pyg.loader.iterating import Iterating, sampler_of
from datapipes.pyg.sampler import NeighborSampler
from datapipes.pyg.upstream import BaseSampler

__all__ = ["LinkLoader", "LinkNeighborLoader"]


class LinkLoader(Iterating, upstream.LinkLoader):  # type: ignore[misc]  # PyG comes without types
    """torch_geometric.loader.LinkLoader, iterated by a chain: any BaseSampler in our workers, our order and state.

    The arguments are PyG's; those of torch's DataLoader and `seed` are as NodeLoader has them.
    """

    def __init__(
        self,
        data: Any,
        link_sampler: BaseSampler,
        edge_label_index: Any = None,
        edge_label: Any = None,
        edge_label_time: Any = None,
        neg_sampling: Any = None,
        neg_sampling_ratio: float | None = None,
        transform: Callable[..., Any] | None = None,
        transform_sampler_output: Callable[..., Any] | None = None,
        filter_per_worker: bool | None = None,
        custom_cls: Any = None,
        input_id: Any = None,
        *,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        self._set_up(True, seed, filter_per_worker, kwargs)
        data = data_of(data) if isinstance(data, (CSCGraph, HeteroCSCGraph)) else data
        where = type(self).__name__
        refuse_wrong_sampler(where, "link_sampler", "sample_from_edges", link_sampler)
        functions = {"transform": transform, "transform_sampler_output": transform_sampler_output}
        refuse_no_functions(where, **functions)
        refuse_wrong_class(where, data, custom_cls)
        upstream.LinkLoader.__init__(
            self,
            data,
            link_sampler,
            edge_label_index=link_seeds(where, data, edge_label_index),
            **labels_of_seeds(where, edge_label, edge_label_time, neg_sampling, neg_sampling_ratio),
            **values_of_seeds(where, input_id=input_id),
            **functions,
            filter_per_worker=filter_per_worker,
            custom_cls=custom_cls,
            **kwargs,
        )
        self.__dict__["edge_label_index"] = edge_label_index


class LinkNeighborLoader(LinkLoader, upstream.LinkNeighborLoader):  # type: ignore[misc]  # PyG comes without types
    """torch_geometric.loader.LinkNeighborLoader: the same arguments and batches, from this package's samplers.

    Negatives are drawn by the random key; `seed` decides them too.

    Args:
        data, neighbor_sampler: as for NeighborLoader.
        num_neighbors, edge_label_index, edge_label, edge_label_time, replace, subgraph_type, disjoint,
            temporal_strategy, neg_sampling, neg_sampling_ratio, time_attr, weight_attr, is_sorted, directed: see
            torch_geometric; what differs stands in docs/migrate/pyg.md.
        other arguments: those of NodeLoader.
    Raises:
        TypeError, ValueError, IndexError: An argument is not allowed, or the data does not fit; the message says what
            is.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        edge_label_index: Any = None,
        edge_label: Any = None,
        edge_label_time: Any = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        neg_sampling: Any = None,
        neg_sampling_ratio: float | None = None,
        time_attr: str | None = None,
        weight_attr: Any = None,
        transform: Callable[..., Any] | None = None,
        transform_sampler_output: Callable[..., Any] | None = None,
        is_sorted: bool = False,
        filter_per_worker: bool | None = None,
        neighbor_sampler: NeighborSampler | None = None,
        directed: bool = True,
        *,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        if neighbor_sampler is not None:
            time_attr = sampler_of("LinkNeighborLoader", neighbor_sampler).time_attr
        if (edge_label_time is None) != (time_attr is None):
            given = ["set" if each is not None else "not set" for each in (edge_label_time, time_attr)]
            raise ValueError(
                f"LinkNeighborLoader: 'edge_label_time' is {given[0]} while 'time_attr' is {given[1]}; both are "
                "needed to sample by time. Pass both or neither."
            )
        sampler = sampler_of(
            "LinkNeighborLoader",
            neighbor_sampler,
            data,
            num_neighbors,
            subgraph_type=subgraph_type,
            replace=replace,
            disjoint=disjoint,
            temporal_strategy=temporal_strategy,
            time_attr=time_attr,
            weight_attr=weight_attr,
            is_sorted=is_sorted,
            directed=directed,
        )
        super().__init__(
            data,
            sampler,
            edge_label_index=edge_label_index,
            edge_label=edge_label,
            edge_label_time=edge_label_time,
            neg_sampling=neg_sampling,
            neg_sampling_ratio=neg_sampling_ratio,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            seed=seed,
            **kwargs,
        )
