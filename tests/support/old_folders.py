"""The folder of a graph without types as version 1 had it: a .npy file for each array. Today's is written by `save`."""

import json
from pathlib import Path

import numpy as np

import datapipes as dp
from datapipes.base.checks import dtype_name
from datapipes.graph.graph_digest import written_digest
from datapipes.graph.npy import to_numpy


def save_in_files(graph: dp.CSCGraph, folder: Path) -> None:
    """Write `graph` as version 1; test_old_folders.py compares with a folder of that time."""
    named = [("indptr", "", graph.indptr), ("indices", "", graph.indices)]
    named += [] if graph.edge_ids is None else [("edge_ids", "", graph.edge_ids)]
    named += [("node_attributes", *each) for each in graph.node_attributes.items()]
    named += [("edge_attributes", *each) for each in graph.edge_attributes.items()]
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for number, (kind, name, values) in enumerate(named):
        file = f"{kind}-{number}.npy" if name else f"{kind}.npy"
        np.save(folder / file, to_numpy(values), allow_pickle=False)
        form = {"dtype": dtype_name(values.dtype), "shape": list(values.shape), "digest": written_digest(kind, values)}
        entries.append({"kind": kind, "name": name, "file": file, **form})
    counts = {"num_nodes": graph.num_nodes, "num_edges": graph.num_edges}
    header = {"format": "datapipes-csc-graph", "version": 1, **counts, "arrays": entries}
    (folder / "graph.json").write_text(json.dumps(header, indent=1))
