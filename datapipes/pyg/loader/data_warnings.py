"""Warnings about a loader's data: tensors that every batch has whole, lost edge attributes, seed links among edges."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes.base.log import users_frame
from datapipes.base.types import ends_of, of_type
from datapipes.graph.graph import Graph
from datapipes.loader.leaks import Leaks, look
from datapipes.pyg.torch_geometric_names import Batch, Data, HeteroData


def warn_of_whole(where: str, data: Any, is_link: bool) -> None:
    """Warn of tensors that every batch has whole, since their rows fit neither nodes nor edges. Warn of a Batch, too.

    There is no warning for a tensor with one row, which belongs to the whole graph in PyG; for `edge_label`, which
    belongs to links; and for tensors that the loader sets itself.
    """
    num_graphs = data.num_graphs if isinstance(data, Batch) else None
    whole: list[str] = []
    by_graph = ["ptr"]
    for store in (*data.node_stores, *data.edge_stores) if isinstance(data, HeteroData) else (data._store,):
        for name, value in store.items():
            dim = store._parent().__cat_dim__(name, value, store)
            if not isinstance(value, (Tensor, np.ndarray)) or value.ndim == 0 or not isinstance(dim, int):
                continue
            is_named = name in ("edge_index", "seed_time", "input_id", "ptr") or "edge_label" in name
            if is_named or value.shape[dim] == 1 or store.is_node_attr(name) or store.is_edge_attr(name):
                continue
            words = f"{name}{of_type(store._key)} {list(value.shape)}"
            (by_graph if value.shape[dim] == num_graphs else whole).append(words)
    if num_graphs is not None:
        counts = "" if is_link else "its batch_size is the number of seeds, "
        warnings.warn(
            f"{where}: data is a Batch of {num_graphs} graphs, and each minibatch is a "
            f"{class_of_graphs(data).__name__}: {counts}it has no num_graphs and no get_example, and holds "
            f"the whole of {', '.join(by_graph)}. Look up the graphs of its nodes: "
            "data.batch[minibatch.n_id].",
            stacklevel=users_frame()[0],
        )
    if whole:
        warnings.warn(
            f"{where}: each minibatch holds the whole of {', '.join(whole)}, whose rows fit neither nodes nor edges. "
            "Give one row for each node or edge; or, if a tensor belongs to the whole graph, keep it outside of data.",
            stacklevel=users_frame()[0],
        )


def warn_of_lost(where: str, data: Any) -> None:
    """Warn of edge attributes that batches lack: a HeteroData in a pair of stores gives tensors of nodes only."""
    stores = data[0].edge_stores if isinstance(data[0], HeteroData) else ()
    lost = [f"{name}{of_type(store._key)}" for store in stores for name in store.edge_attrs() if name != "edge_index"]
    if lost:
        warnings.warn(
            f"{where}: no minibatch holds {', '.join(lost)}: as a feature store, a HeteroData has tensors of nodes "
            "alone. Pass it as the data itself, not as a pair.",
            stacklevel=users_frame()[0],
        )


def class_of_graphs(batch: Any) -> type:
    """Return the class of the graphs from which PyG made `batch`, a Batch."""
    return type(batch).__bases__[-1]


def warn_of_leaks(view: Any, batch: Any) -> None:
    """Warn if the seed links of a batch are among its edges, where a model sees what it is to predict.

    Only the first batch of each view is checked.
    """
    if not view.looks:
        return
    view.looks = False
    leaks = _leaks_in(view, batch) if isinstance(batch, (Data, HeteroData)) else Leaks(0, 0)
    if leaks.found + leaks.reversed == 0:
        return
    count, back = max(leaks.found, leaks.reversed), of_type(leaks.types[1])
    have, split = "are", "disjoint_train_ratio=0.3"
    if leaks.reversed > 0:
        have, split = f"have their reverse{back}", "rev_edge_types=[...]" if back else "is_undirected=True"
    warnings.warn(
        f"{view.name}: {count} of the first {leaks.looked_at} positive links {have} among the edges that are sampled "
        "for them, so a model is shown what it is to predict. Take edge_label_index and a graph without them from "
        f"one split, RandomLinkSplit({split}) or dp.random_link_split; or take them out of each minibatch, by "
        "exclude_seed_edges() in a chain of datapipes. If it is meant so, filter this warning.",
        UserWarning,
        stacklevel=users_frame()[0],  # the loop over the loader
    )


def _leaks_in(view: Any, batch: Any) -> Leaks:
    link_type, sampler = view.input_data.input_type, view.sampler
    nodes = {store._key: store for store in batch.node_stores}
    edges = {store._key: store for store in batch.edge_stores}
    (src, dst), graph = ends_of(link_type), getattr(sampler, "graph", None)
    first, last, links = nodes.get(src, {}), nodes.get(dst, {}), edges.get(link_type, {})
    if "edge_label_index" in links:
        ends, labels, times = links["edge_label_index"], links.get("edge_label"), links.get("edge_label_time")
    elif "src_index" in first:
        ends, labels, times = (first["src_index"], last["dst_pos_index"]), None, first.get("seed_time")
    else:
        return Leaks(0, 0)
    data = view.data
    has_own = isinstance(data, (Data, HeteroData)) and "n_id" in (data if link_type is None else data[src])
    if has_own or any("n_id" not in store for store in nodes.values()):
        return Leaks(0, 0)  # the global ids are unknown
    timed = times is not None and getattr(sampler, "_has_edge_time", False)  # a link: the edge of that time

    def rows(ends: Any, edge_type: Any, times: Any) -> NDArray[np.int64]:
        ids = [nodes[end]["n_id"][row] for row, end in zip(ends, ends_of(edge_type), strict=True)]
        return torch.stack([*ids, times] if timed else ids, 1).long().cpu().numpy()

    def edges_of(edge_type: Any) -> Iterator[NDArray[np.int64]]:
        store = edges[edge_type]
        if isinstance(store.get("edge_index"), Tensor) and (not timed or sampler.time_attr in store):
            yield rows(store["edge_index"], edge_type, store[sampler.time_attr] if timed else None)

    is_seed = torch.ones(len(ends[0]), dtype=torch.bool)
    if isinstance(labels, Tensor) and labels.shape == ends[0].shape:
        is_seed = labels > 0
    seeds = rows([row[is_seed] for row in ends], link_type, times[is_seed] if timed else None)
    return look({link_type: seeds}, edges_of, edges, graph if isinstance(graph, Graph) else None, {})
