"""Find out whether a folder has a saved graph, and open it as a CSCGraph or HeteroCSCGraph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datapipes.graph.csc_graph import CSCGraph
from datapipes.graph.hetero_csc_graph import HeteroCSCGraph
from datapipes.graph.storage import HEADER, HETERO_FORMAT, header_in


def is_saved_graph(path: Path) -> bool:
    """Return whether `path` is a folder with a graph that `save` wrote."""
    return (path / HEADER).exists()


def open_graph(path: Path, **options: Any) -> CSCGraph | HeteroCSCGraph:
    """Open the graph in a folder that `save` wrote, of either class; `options` are arguments of CSCGraph.open.

    Raises:
        The errors of CSCGraph.open.
    """
    is_typed = header_in(path).get("format") == HETERO_FORMAT
    return HeteroCSCGraph.open(path, **options) if is_typed else CSCGraph.open(path, **options)
