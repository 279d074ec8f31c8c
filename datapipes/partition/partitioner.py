"""Partitioner: cuts a graph and all that belongs to it into parts, and writes them to a folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from datapipes.base.checks import check_bool, check_choice
from datapipes.base.folder import check_root, new_folder
from datapipes.base.progress import Progress, bars, nothing
from datapipes.graph.graph import Graph
from datapipes.partition.book import with_edge_map, wrong_edge_ids
from datapipes.partition.layouts import PARTITION
from datapipes.partition.methods.assign import BALANCED, assign, check_arguments, make_assignment
from datapipes.partition.native.native_write import write_native
from datapipes.partition.part_to_write import check_times
from datapipes.partition.partition_report import Cost, PartitionReport, measure
from datapipes.partition.pyg.pyg_names import PygMisfit
from datapipes.partition.pyg.pyg_write import check_pyg, pyg_bytes, write_pyg
from datapipes.partition.source import source_of

__all__ = ["Partitioner", "find_parts"]

_NAME = "Partitioner"
_LAYOUTS = ("native", "pyg")


def find_parts(
    graph: Graph,
    num_parts: int,
    *,
    method: str = "metis",
    recursive: bool = False,
    rng_seed: int = 0,
    balance: Mapping[str, float] | None = None,
) -> Any:
    """Return the part of each node, int64 [num_nodes], with types {type: [num_nodes]}; nothing is written.

    `sample_induced_subgraph(clusters=...)` takes them: many small parts, for Cluster-GCN.

    Args:
        graph: a CSCGraph or HeteroCSCGraph.
        num_parts, method, recursive, rng_seed: see Partitioner.
        balance: see Partitioner; by default only numbers of nodes are balanced. No part is empty.
    Raises:
        TypeError, ValueError, ModuleNotFoundError, MemoryError, MetisError: see Partitioner and its
            `generate_partition`.
    """
    if balance is None and method in BALANCED:
        balance = {"nodes": 1.0}
    options: dict[str, Any] = {"recursive": recursive, "rng_seed": rng_seed, "progress": nothing, "balance": balance}
    book = assign(source_of(graph, where="find_parts"), num_parts, method=method, **options)
    types = graph.node_types
    parts = {kind: book.nodes(kind).part_of(torch.arange(graph.num_nodes_of(kind))).long() for kind in types}
    return parts if graph.is_heterogeneous else parts[None]


class Partitioner:
    """Cut a graph into parts, and write them to a folder that servers and stores open.

    A part owns nodes and has all their in-edges, with the ids of the whole graph. So neighbors that a sampler draws for
    a node are the same from its part as from the whole graph. docs/partition.md is the guide;
    docs/decisions/012-partitions.md describes the folder.

    Args:
        data: CSCGraph, HeteroCSCGraph, a Dataset (its features become attributes, and its item sets of nodes become
            masks), PyG's Data or HeteroData. All attributes go into the parts.
        num_parts: 1 up to the number of nodes, at most 32,768.
        root: the folder to write, missing or empty. An older partition there is replaced once the new one is whole; a
            folder that holds anything else is refused.
        recursive: run METIS by recursive bisection instead of k-way: smaller cuts for few parts, but slower for many.
        method: "metis" cuts the fewest edges, and needs memory for an undirected copy of the graph and for METIS;
            "fennel" needs a few bytes a node; "range" gives each part contiguous ids; "random" deals the nodes
            in a random order.
        node_time_attr: name of a node attribute that holds times: each edge then has the time of its source, so that
            temporal sampling needs no other part. PyG's layout sorts the in-edges of a node by these times.
        rng_seed: the same seed gives the same parts, except with another version of METIS.
        balance: {measure: share} in the weight of a node; METIS and Fennel spread the weight evenly over the parts. The
            measures are nodes, edges and training nodes; the default is {"nodes": 1.0, "edges": 1.0, "train": 1.0}. A
            measure without a share, or with 0, is ignored. A part has at most 1.15 times the mean of each other
            measure, and of the nodes of each type, unless too many more edges would be cut.
        layouts: the layouts to write, "native" (memory-mapped, checked by hashes) and "pyg" (read by torch_geometric).
        edge_map: whether the native layout also has the part of each edge id, in one or two bytes an edge. A
            DistFeatureStore needs this map to read edge features. None: it is written if edges have attributes, and
            edge ids are 0 to the number of edges - 1, each once. The layout "pyg" needs the map: with "pyg" in
            `layouts` it is always written.
        progress: called with (name of the step, work done, total work), a few times a second; the total is 0 if it is
            not known. By default a terminal shows a bar.
    Raises:
        TypeError, ValueError: An argument has no allowed value, or types or times of the graph do not fit PyG's layout;
            the message says which.
        FileExistsError: `root` holds something that is not of a partition, or is no folder.
        PermissionError: The folder that is to hold `root` cannot be written to.
    """

    def __init__(
        self,
        data: Any,
        num_parts: int,
        root: str | Path,
        recursive: bool = False,
        *,
        method: str = "metis",
        node_time_attr: str | None = None,
        rng_seed: int = 0,
        balance: Mapping[str, float] | None = None,
        layouts: Sequence[str] = _LAYOUTS,
        edge_map: bool | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.source = source_of(data)
        self.method, self.rng_seed, self.balance = method, rng_seed, balance
        self._options: dict[str, Any] = {"recursive": recursive, "rng_seed": rng_seed, "balance": balance}
        check_arguments(self.source, num_parts, method=method, **self._options)
        self.root, self.num_parts = check_root(_NAME, root, replaced=PARTITION), num_parts
        check_times(_NAME, self.source.graph, node_time_attr)
        self.node_time_attr = node_time_attr
        self.layouts = _check_layouts(layouts)
        self.edge_map = None if edge_map is None else check_bool(_NAME, "edge_map", edge_map)
        self.progress = progress
        if "pyg" in self.layouts:
            self.edge_map = True  # whatever the argument: this layout needs the map
            check_pyg(self.source, node_time_attr)

    def generate_partition(self) -> PartitionReport:
        """Write the partition and return its report: cut, balance, halo nodes, seconds and memory.

        The partition appears whole or not at all: after an error, Ctrl-C or a kill, `root` is as it was before, or, at
        the very end, is the whole new partition.

        Raises:
            ValueError: The graph is corrupt, or its edge ids do not fit an edge map.
            FileExistsError: `root` holds something that is not of a partition.
            BlockingIOError: Another process is writing to `root`.
            OSError: The disk is full, or the folder cannot be written.
            ModuleNotFoundError: method "metis" without pymetis; the message says what to install.
            MetisError: METIS failed; the message says how it ended (a RuntimeError).
            MemoryError: The graph does not fit METIS's memory.
        """
        with (
            nullcontext(self.progress) if self.progress else bars() as progress,
            Cost() as cost,
            new_folder(_NAME, self.root, self._num_bytes(), replaced=PARTITION) as folder,
        ):
            with cost.step("validate"):
                graph = self.source.graph.validate()
                has_edge_map, why_not = self._has_edge_map(graph)  # its errors come before the work of METIS
            with cost.step("assign"):
                book, child_peak_bytes = make_assignment(
                    self.source, self.num_parts, method=self.method, progress=progress, **self._options
                )
                book = with_edge_map(book, graph) if has_edge_map else book
            with cost.step("measure"):
                report = measure(self.source, book, progress)
            if "pyg" in self.layouts:
                with cost.step("write pyg"):
                    write_pyg(folder, self.source, book, node_time_attr=self.node_time_attr, progress=progress)
            left_out = (*report.left_out, *why_not)
            report = dataclasses.replace(report, method=self.method, left_out=left_out, **_cost(cost, child_peak_bytes))
            if "native" in self.layouts:
                about = {"method": self.method, "rng_seed": self.rng_seed, "report": report.to_json()}
                if self.balance is not None:
                    about["balance"] = {name: float(share) for name, share in self.balance.items()}
                with cost.step("write native"):
                    write_native(
                        folder, self.source, book, node_time_attr=self.node_time_attr, about=about, progress=progress
                    )
        return dataclasses.replace(report, **_cost(cost, child_peak_bytes))

    def _has_edge_map(self, graph: Graph) -> tuple[bool, list[str]]:
        """Decide whether to write an edge map; return (decision, texts for the report's `left_out`).

        There is a text if a map would be written, but the edge ids do not fit one.

        Raises:
            ValueError: An edge map was asked for, and the edge ids do not fit one.
        """
        relations = {edge_type: graph.relation(edge_type) for edge_type in graph.edge_types}
        if self.edge_map is False or (self.edge_map is None and not any(r.edge_attributes for r in relations.values())):
            return False, []
        wrong = next(filter(None, (wrong_edge_ids(relation, kind) for kind, relation in relations.items())), None)
        if wrong is None:
            return True, []
        if "pyg" in self.layouts:
            raise PygMisfit(f"{wrong}, and this layout has an edge map", "Give the edges these ids")
        if self.edge_map:
            raise ValueError(f"{_NAME}: {wrong}. Leave the edge map out: edge_map=False.")
        return False, ["the part of each edge, since edge ids are not 0 to the number of edges - 1, each once"]

    def _num_bytes(self) -> int:
        """Return about how many bytes the layouts will take on the disk."""
        graph = self.source.graph
        relations = [graph.relation(edge_type) for edge_type in graph.edge_types]
        topology = sum(8 * relation.indptr.numel() + 16 * relation.indices.numel() for relation in relations)
        attributes = [graph.node_attributes_of(node_type) for node_type in graph.node_types]
        attributes += [relation.edge_attributes for relation in relations]
        values = sum(value.nbytes for of_type in attributes for value in of_type.values())
        of_layouts = {
            "native": topology + values,
            "pyg": pyg_bytes(self.source, self.num_parts, values, self.node_time_attr),
        }
        return sum(of_layouts[layout] for layout in self.layouts)


def _check_layouts(layouts: Any) -> tuple[str, ...]:
    names = (layouts,) if isinstance(layouts, str) else tuple(layouts)
    for name in names:
        check_choice(_NAME, "a layout", name, _LAYOUTS)
    if not names:
        raise ValueError(f"{_NAME}: layouts is empty; at least one of {list(_LAYOUTS)} is needed. Name one.")
    return tuple(layout for layout in _LAYOUTS if layout in names)


def _cost(cost: Cost, child_peak_bytes: int) -> dict[str, Any]:
    """Return a dict of the report's fields `seconds` and `memory_bytes`, from `cost` and the peak of METIS's child."""
    memory = dict(cost.memory_bytes)
    memory["assign"] += child_peak_bytes  # METIS's process ran in this step
    return {"seconds": dict(cost.seconds), "memory_bytes": max(memory.values())}
