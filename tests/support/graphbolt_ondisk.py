"""Runs in the interpreter of GraphBolt 2.1.0: lets it preprocess and read folders, and saves what it has read.

Standard input: a list in JSON of [FOLDER, include_original_edge_id, FILE]. A FILE holds plain tensors, numbers and
texts: the arrays of the fused graph, features, items, and the edges of a hop over all nodes with their features.
"""

import json
import sys

import dgl.graphbolt as gb
import torch


def items_of(items):
    """Return {type or None: {name: rows}} of a set; None if the task has none."""
    if items is None:
        return None
    parts = items._itemsets if isinstance(items, gb.ItemSetDict) else {None: items}
    return {of: dict(zip(each._names, each._items, strict=True)) for of, each in parts.items()}


def hop_of(data, features):
    """Return {type or None: (sources, destinations, {feature: rows, or None})} of all in-edges of all nodes."""
    of_edges = [(of, name) for domain, of, name in features if domain == "edge"]
    keys = {of: [name for kind, name in of_edges if kind == of] for of, _ in of_edges}
    pipe = gb.NeighborSampler(gb.ItemSampler(data.all_nodes_set, batch_size=10**6), data.graph, [-1])
    pipe = gb.FeatureFetcher(pipe, data.feature, edge_feature_keys=keys.get(None, keys))
    (minibatch,) = gb.DataLoader(pipe, num_workers=0)
    (subgraph,), (found,) = minibatch.sampled_subgraphs, minibatch.edge_features
    rows, columns = subgraph.original_row_node_ids, subgraph.original_column_node_ids
    sampled, hop = subgraph.sampled_csc, {}
    for of, part in (sampled if isinstance(sampled, dict) else {None: sampled}).items():
        ends = torch.arange(len(part.indptr) - 1).repeat_interleave(part.indptr.diff())
        source, _, destination = of.split(":") if of else (None, None, None)
        hop[of] = (
            (rows[source] if of else rows)[part.indices],
            (columns[destination] if of else columns)[ends],
            {name: found.get((of, name) if of else name) for name in keys.get(of, ())},
        )
    return hop


def read(folder, include_original_edge_id):
    """Return what GraphBolt reads of a folder."""
    data = gb.OnDiskDataset(folder, include_original_edge_id=include_original_edge_id).load()
    graph = data.graph
    features = {(key[0].value, *key[1:]): each.read() for key, each in data.feature._features.items()}
    return {
        "indptr": graph.csc_indptr,
        "indices": graph.indices,
        "type_per_edge": graph.type_per_edge,
        "node_type_offset": graph.node_type_offset,
        "node_types": graph.node_type_to_id,
        "edge_types": graph.edge_type_to_id,
        "node_attributes": graph.node_attributes or {},
        "edge_attributes": graph.edge_attributes or {},
        "num_nodes": graph.num_nodes,
        "features": features,
        "hop": hop_of(data, features),
        "tasks": [
            (each.metadata, [items_of(part) for part in (each.train_set, each.validation_set, each.test_set)])
            for each in data.tasks
        ],
    }


for folder, include_original_edge_id, file in json.load(sys.stdin):
    torch.save(read(folder, include_original_edge_id), file)
