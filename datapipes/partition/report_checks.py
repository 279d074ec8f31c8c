"""What must hold of the numbers of a report that comes from a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from datapipes.base.checks import shown
from datapipes.partition.report import PartitionReport

_AGAIN = "Copy the partition again, or make it again."


def refuse_contradictions(where: str, report: PartitionReport) -> None:
    """Raise ValueError if the numbers of a report contradict each other. O(num_parts^2) if it has a matrix."""
    found = _contradiction(report)
    if found is not None:
        raise ValueError(f"{where}: the report contradicts itself: {found}. {_AGAIN}")


def _contradiction(report: PartitionReport) -> str | None:
    nodes, edges, matrix = report.nodes, report.edges, report.edge_matrix
    by_type = sum(count for count, _ in report.edges_by_type.values())
    if by_type != sum(edges):
        return f"{sum(edges)} edges in the parts, and {by_type} of all types"
    for kind, (count, cut) in report.edges_by_type.items():
        if cut > count:
            return f"{cut} cut edges of {shown(kind)}, which has {count}"
    for part, halos in enumerate(report.halo_nodes):
        if halos > min(sum(nodes) - nodes[part], edges[part]):
            return f"{halos} halo nodes of part {part}, for {edges[part]} edges and the nodes of other parts"
    for part, trained in enumerate(report.training_nodes or ()):
        if trained > nodes[part]:
            return f"{trained} training nodes in part {part}, which has {nodes[part]} nodes"
    if matrix is None:
        return None
    for part, row in enumerate(matrix):
        if sum(row) != edges[part]:
            return f"a row of the matrix with {sum(row)} edges, for part {part}, which has {edges[part]}"
    cut = sum(edges) - sum(row[part] for part, row in enumerate(matrix))
    if cut != report.cut_edges:
        return f"{cut} cut edges in the matrix, and {report.cut_edges} of all types"
    return None


def refuse_other_report(
    where: str, report: PartitionReport, num_parts: int, num_nodes: Mapping[Any, int], num_edges: Mapping[Any, int]
) -> None:
    """Raise ValueError if a report is not of a partition of so many parts, nodes and edges of each type."""
    of_report = (
        report.num_parts,
        {kind: sum(counts) for kind, counts in report.nodes_by_type.items()},
        {kind: count for kind, (count, _) in report.edges_by_type.items()},
    )
    for what, found, stated in zip(
        ("parts", "nodes", "edges"), of_report, (num_parts, dict(num_nodes), dict(num_edges)), strict=True
    ):
        if found != stated:
            raise ValueError(
                f"{where}: the report says {shown(found)} {what}, and the header {shown(stated)}. {_AGAIN}"
            )


def refuse_other_part(
    where: str, report: PartitionReport, part: int, num_nodes: Mapping[Any, int], num_edges: int
) -> None:
    """Raise ValueError if a report gives a part other numbers of nodes of each type, or of edges, than it has."""
    told = {kind: counts[part] for kind, counts in report.nodes_by_type.items()}
    if told != dict(num_nodes) or report.edges[part] != num_edges:
        raise ValueError(
            f"{where}: the report gives part {part} {shown(told)} nodes and {report.edges[part]} edges, and it has "
            f"{shown(dict(num_nodes))} and {num_edges}. {_AGAIN}"
        )
