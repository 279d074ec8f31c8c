"""What PyG's own sampler gives for full fanouts, slow and obvious."""

import datapipes as dp


def sampled_by_pyg(graph: dp.HeteroCSCGraph, seeds: dict[str, list[int]], num_hops: int) -> tuple[dict, ...]:
    """Return by type: the nodes, a row for each seed and then each new node once; the edges of each node in the hop
    after it was found, and their ids; the numbers of nodes and of edges that each hop adds.
    """
    nodes = {node_type: list(seeds.get(node_type, [])) for node_type in graph.node_types}
    rows = {node_type: {} for node_type in nodes}
    for node_type, ids in nodes.items():
        for row, node in enumerate(ids):
            rows[node_type].setdefault(node, row)
    edges = {edge_type: [] for edge_type in graph.edge_types}
    edge_ids = {edge_type: [] for edge_type in graph.edge_types}
    num_nodes = {node_type: [len(ids)] for node_type, ids in nodes.items()}
    num_edges = {edge_type: [] for edge_type in edges}
    begin = dict.fromkeys(nodes, 0)
    for _ in range(num_hops):
        end = {node_type: len(ids) for node_type, ids in nodes.items()}
        for src, rel, dst in graph.edge_types:
            relation, before = graph.relation((src, rel, dst)), len(edges[src, rel, dst])
            for row in range(begin[dst], end[dst]):
                node = nodes[dst][row]
                for place in range(int(relation.indptr[node]), int(relation.indptr[node + 1])):
                    source = int(relation.indices[place])
                    if source not in rows[src]:
                        rows[src][source] = len(nodes[src])
                        nodes[src].append(source)
                    edges[src, rel, dst].append([rows[src][source], row])
                    edge_ids[src, rel, dst].append(int(relation.edge_ids[place]))
            num_edges[src, rel, dst].append(len(edges[src, rel, dst]) - before)
        begin = end
        for node_type, ids in nodes.items():
            num_nodes[node_type].append(len(ids) - end[node_type])
    return nodes, edges, edge_ids, num_nodes, num_edges
