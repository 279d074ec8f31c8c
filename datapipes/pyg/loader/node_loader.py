"""NodeLoader and NeighborLoader, under PyG's names, with its arguments and batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from datapipes.graph.csc_graph import CSCGraph
from datapipes.graph.hetero_csc_graph import HeteroCSCGraph
from datapipes.pyg import upstream
from datapipes.pyg.graph_of import data_of
from datapipes.pyg.loader.arguments import (
    node_seeds,
    refuse_no_functions,
    refuse_wrong_class,
    refuse_wrong_sampler,
    values_of_seeds,
)
from datapipes.pyg.loader.iterating import Iterating, sampler_of
from datapipes.pyg.sampler import NeighborSampler
from datapipes.pyg.upstream import BaseSampler

__all__ = ["NeighborLoader", "NodeLoader"]


class NodeLoader(Iterating, upstream.NodeLoader):  # type: ignore[misc]  # PyG comes without types
    """torch_geometric.loader.NodeLoader, iterated by a chain: any BaseSampler in our workers, our order and state.

    The arguments are PyG's. Of torch's DataLoader `dataset` and `collate_fn` are dropped, as PyG does.

    Args:
        filter_per_worker: whether workers make the whole batch. None: they do where `transform` or
            `transform_sampler_output` is given or the data is a pair of stores; otherwise `next` gathers the rows, so
            they cross no process.
        generator: its `initial_seed()` is the seed.
        sampler, batch_sampler: give the order of an epoch, which is drawn whole, in this process, when it begins. Such
            workers do not persist.
        num_workers: processes, by default forked; threads, with one line in the log, where a fork is not safe (CUDA is
            up, Arrow Flight has clients). There a sampler of the user's is called for one batch at a time, and is not
            seeded.
        worker_method: "process" or "thread"; threads take no `multiprocessing_context`.
        seed: in [0, 2**64); decides order and draws, with the numbers of epoch and batch. Draws of a sampler or
            transform of the user's from the generators of torch, NumPy and Python are seeded by it too.
    Raises:
        TypeError, ValueError: An argument is not allowed; the message says what is.
    """

    def __init__(
        self,
        data: Any,
        node_sampler: BaseSampler,
        input_nodes: Any = None,
        input_time: Any = None,
        transform: Callable[..., Any] | None = None,
        transform_sampler_output: Callable[..., Any] | None = None,
        filter_per_worker: bool | None = None,
        custom_cls: Any = None,
        input_id: Any = None,
        *,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        self._set_up(False, seed, filter_per_worker, kwargs)
        data = data_of(data) if isinstance(data, (CSCGraph, HeteroCSCGraph)) else data
        where = type(self).__name__
        refuse_wrong_sampler(where, "node_sampler", "sample_from_nodes", node_sampler)
        functions = {"transform": transform, "transform_sampler_output": transform_sampler_output}
        refuse_no_functions(where, **functions)
        refuse_wrong_class(where, data, custom_cls)
        upstream.NodeLoader.__init__(
            self,
            data,
            node_sampler,
            **node_seeds(where, data, node_sampler, input_nodes, input_id),
            **values_of_seeds(where, input_time=input_time),
            **functions,
            filter_per_worker=filter_per_worker,
            custom_cls=custom_cls,
            **kwargs,
        )
        self.__dict__["input_nodes"] = input_nodes


class NeighborLoader(NodeLoader, upstream.NeighborLoader):  # type: ignore[misc]  # PyG comes without types
    """torch_geometric.loader.NeighborLoader: the same arguments and batches, from this package's samplers.

    Args:
        data: Data, HeteroData, a pair (FeatureStore, GraphStore); or a CSCGraph or HeteroCSCGraph, whose attributes are
            sliced too.
        num_neighbors, input_nodes, input_time, replace, subgraph_type, disjoint, temporal_strategy, time_attr,
            weight_attr, is_sorted, directed: see torch_geometric; what differs stands in docs/migrate/pyg.md.
        neighbor_sampler: a datapipes.pyg.sampler.NeighborSampler, in place of one for these arguments.
        other arguments: those of NodeLoader.
    Raises:
        TypeError, ValueError, IndexError: An argument is not allowed, or the data does not fit; the message says what
            is.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        input_nodes: Any = None,
        input_time: Any = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
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
        if input_time is not None and time_attr is None and neighbor_sampler is None:
            raise ValueError(
                "NeighborLoader: input_time is given, but time_attr is not; times need both. Pass time_attr."
            )
        sampler = sampler_of(
            "NeighborLoader",
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
            input_nodes=input_nodes,
            input_time=input_time,
            transform=transform,
            transform_sampler_output=transform_sampler_output,
            filter_per_worker=filter_per_worker,
            seed=seed,
            **kwargs,
        )
