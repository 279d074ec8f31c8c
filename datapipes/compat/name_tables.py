"""Tables: names from PyG, GraphBolt, DGL, GraphLearn and torch, and what to use here instead; see other_names.py.

Reading an attribute that is in these tables raises an error, and so does giving such a keyword to a constructor. Names
that this package has itself are not affected.
"""

from __future__ import annotations

Table = dict[str, dict[str, str]]

_BLOCKS = "each of minibatch.blocks has edge_index; all hops in one: minibatch.to_pyg().edge_index"
_EDGE_TYPES = "graph.edge_types, tuples (src, rel, dst) in sorted order"
_NODE_TYPES = "graph.node_types, names in sorted order"
_RELATION = "graph.relation(edge_type) has indptr and indices"
_TYPED = (
    "dp.HeteroCSCGraph has types: the nodes of each count from 0, and graph.relation(edge_type) has the edges of one"
)
_EXCLUDED = "pipe.exclude_seed_edges(), a stage behind the sampler"
_NEGATIVES = "pipe.sample_uniform_negative(graph, negative_ratio), a stage before the sampler"
_TEMPORAL = "pipe.temporal_sample_neighbor(graph, fanouts, node_time_attr=...), or with edge_time_attr=..."
_TEMPORAL_LAYER = "there is no temporal layer sampling; " + _TEMPORAL
_TIME_ATTR = "node_time_attr or edge_time_attr, the names of attributes of the graph"
_SEED_TIMES = "an item named timestamps in the dp.ItemSet"
_TO_PYG = "minibatch.to_pyg() has it"
_LOADER = "dp.ItemSampler(items, batch_size).sample_neighbor(graph, fanouts), then dp.DataLoader(pipe)"
_PYG_LOADERS = f"{_LOADER}; or with PyG's arguments and batches: from datapipes.pyg.loader import"
_LOADER_NAMES = ("NeighborLoader", "LinkNeighborLoader", "NodeLoader", "LinkLoader")
_WALKS = "pipe.sample_random_walk(graph, walk_length)"
_OF_WALKS = f"{_WALKS}; or under this name: from datapipes.pyg import"
_CLUSTERS = "pipe.sample_induced_subgraph(graph, clusters=dp.distributed.find_parts(graph, num_parts))"
_SAINT = f"{_WALKS}, then pipe.sample_induced_subgraph(graph)"
_SUBGRAPHS = {
    "ShaDowKHopSampler": "pipe.sample_shadow(graph, fanouts)",
    **dict.fromkeys(("ClusterData", "ClusterLoader"), _CLUSTERS),
    "RandomNodeLoader": "pipe.sample_induced_subgraph(graph)",
    **dict.fromkeys(("GraphSAINTNodeSampler", "GraphSAINTRandomWalkSampler"), _SAINT),
}
_SERVER = "dp.distributed.PartitionServer(root, part, chains=True, namebook=namebook).start(), or datapipes serve"
_PRODUCER = "client.create_producer(server_rank, pipe, worker_key, num_workers=...)"
_IN_DISTRIBUTED = "it stands in datapipes.distributed"
_DIST_LOADER = (
    "dp.DataLoader(pipe) over dp.distributed.DistNeighborSampler, a sampler of parts; "
    "or with PyG's arguments and batches: from datapipes.pyg.distributed import"
)
_IN_DATASETS = "it stands in datapipes.datasets"
_SEEDS = "minibatch.seeds, pairs [n, 2]"
_DGL_BLOCKS = "dgl.create_block of each of minibatch.blocks, as docs/migrate/graphbolt.md has it"
_CACHE = "dp.CPUCachedFeature(feature, max_bytes) and dp.GPUCachedFeature(feature, max_bytes), over any feature"
_COMPACT = "leave it out: samplers number the nodes; by hand torch.unique(ids, return_inverse=True)"
_YAML = "yaml.safe_load of its metadata.yaml; free fields of features are in dataset.metadata, of tasks in theirs"
_LOADED = "dataset = dp.datasets.OnDiskDataset(path).load() has it"
_TO_GPU = "dp.TensorFeature(tensor.cuda()) lies on the GPU; pin_memory_() of what lies in host memory lets GPUs read it"
_OF_PYG = "dp.datasets.Dataset.from_pyg(data), or dp.CSCGraph.from_pyg(data) and dp.HeteroCSCGraph.from_pyg(data)"
_BALANCED = "dp.ItemSampler(items, batch_size, weights=(1 / labels.bincount())[labels], replacement=True)"
_WHOLE_GRAPH = "features are in a dp.FeatureStore, labels and splits in a dp.ItemSet"

_OF_GRAPHS = {  # of CSCGraph and HeteroCSCGraph
    "number_of_nodes": "graph.num_nodes",
    "number_of_edges": "graph.num_edges",
    **dict.fromkeys(("x", "y", "train_mask", "ndata", "edata", "nodes"), _WHOLE_GRAPH),
    "edges": "graph.relation(edge_type) has indptr and indices; None is the edge type of a graph without types",
    "in_subgraph": "pipe.sample_in_subgraph(graph)",
    "sample_neighbors": "pipe.sample_neighbor(graph, fanouts)",
    "sample_layer_neighbors": "pipe.sample_layer_neighbor(graph, fanouts)",
    "temporal_sample_neighbors": _TEMPORAL,
    "temporal_sample_layer_neighbors": _TEMPORAL_LAYER,
    "sample_negative_edges_uniform": _NEGATIVES,
    "copy_to_shared_memory": "leave it out: workers share the graph; or graph.save(folder) and dp.CSCGraph.open",
    "to": "the graph stays in host memory, where graph.pin_memory_() locks it; put copy_to behind the sampling",
    "pin_memory": "graph.pin_memory_(), which locks the arrays where they are",
    **dict.fromkeys(("node_type_to_id", "ntypes"), _NODE_TYPES),
    **dict.fromkeys(("edge_type_to_id", "etypes", "canonical_etypes"), _EDGE_TYPES),
    "metadata": "graph.node_types and graph.edge_types",
    **dict.fromkeys(("node_type_offset", "type_per_edge", "node_type", "edge_type"), _TYPED),
}

# {class or package: {missing name: what to use}}. A class has the rows of its bases, too.
ATTRIBUTES: Table = {
    "MiniBatch": {
        # PyG
        "x": 'minibatch.node_features["x"], under the name it was fetched by',
        "y": "minibatch.labels, a row for each seed",
        **dict.fromkeys(("n_id", "node", "input_node", "node_ids", "get_input_nodes"), "minibatch.input_nodes"),
        **dict.fromkeys(("e_id", "edge", "edge_ids", "get_original_edge_ids"), "each of minibatch.blocks has edge_ids"),
        **dict.fromkeys(("edge_index", "row", "col"), _BLOCKS),
        "adj_t": "each of minibatch.blocks has to_sparse()",
        "edge_attr": "minibatch.edge_features, a dict for each block",
        "batch_size": "len(minibatch.seeds)",
        "num_nodes": "len(minibatch.input_nodes)",
        **dict.fromkeys(
            ("num_sampled_nodes", "num_sampled_edges", "num_sampled_nodes_dict", "num_sampled_edges_dict"), _TO_PYG
        ),
        "input_id": "minibatch.indexes, if the dp.ItemSet has some",
        **dict.fromkeys(("seed_time", "edge_label_time"), "minibatch.timestamps"),
        "edge_label": "minibatch.labels, a row for each pair",
        "edge_label_index": "minibatch.compacted_seeds, [n, 2]",
        **dict.fromkeys(("src_index", "dst_pos_index", "dst_neg_index"), "minibatch.compacted_seeds, [n, k]"),
        "train_mask": "the dp.ItemSet of the chain says what the seeds are",
        "x_dict": "minibatch.node_features, {(type, name): rows}",
        "y_dict": "minibatch.labels, {type: a row for each seed}",
        "n_id_dict": "minibatch.input_nodes, {type: ids}",
        "edge_attr_dict": "minibatch.edge_features, {(edge type, name): rows} for each hop",
        "edge_index_dict": _TO_PYG + "; each of minibatch.blocks is {edge type: block}, and a block has edge_index",
        "node_types": "minibatch.input_nodes is {type: ids} and has all of the graph",
        "edge_types": "each of minibatch.blocks is {edge type: block}",
        "metadata": "graph.node_types and graph.edge_types",
        # GraphBolt
        "node_feature": "minibatch.node_features, {name: rows}",
        "edge_feature": "minibatch.edge_features, a dict for each block",
        "sampled_subgraph": "minibatch.sampled_subgraphs, one for each hop",
        "block": "minibatch.blocks, one for each hop",
        "label": "minibatch.labels",
        **dict.fromkeys(("seed", "seed_nodes", "output_nodes"), "minibatch.seeds"),
        **dict.fromkeys(
            ("node_pairs", "positive_node_pairs", "negative_node_pairs", "negative_srcs", "negative_dsts"), _SEEDS
        ),
        "node_pairs_with_labels": "minibatch.compacted_seeds, pairs [n, 2], and minibatch.labels",
        **dict.fromkeys(
            ("compacted_node_pairs", "compacted_negative_srcs", "compacted_negative_dsts"), "minibatch.compacted_seeds"
        ),
        "get_num_layers": "minibatch.num_layers",
        "to_dgl": _DGL_BLOCKS,
        "to_pyg_data": "minibatch.to_pyg()",
        "is_pinned": "minibatch.seeds.is_pinned()",
        "set_node_features": "minibatch.replace(node_features=...)",
        "set_edge_features": "minibatch.replace(edge_features=...)",
    },
    "Block": {
        "srcdata": "minibatch.node_features; the sources are its first block.num_src rows",
        "dstdata": "minibatch.node_features; the destinations are its first block.num_dst rows",
        "ndata": "minibatch.node_features",
        "edata": "minibatch.edge_features, a dict for each block",
        **dict.fromkeys(("num_src_nodes", "number_of_src_nodes"), "block.num_src"),
        **dict.fromkeys(("num_dst_nodes", "number_of_dst_nodes"), "block.num_dst"),
        "edges": "block.edge_index",
        "adj": "block.to_sparse()",
        "adj_tensors": "block.indptr, block.indices",
        "sampled_csc": "minibatch.sampled_subgraphs have it; here block.indptr, block.indices",
        "original_edge_ids": "block.edge_ids",
        **dict.fromkeys(("original_row_node_ids", "original_column_node_ids"), "minibatch.sampled_subgraphs have it"),
    },
    "SampledSubgraph": {
        **dict.fromkeys(("edge_index", "node_pairs"), "subgraph.block has edge_index"),
        "to_pyg": "minibatch.to_pyg() makes all hops one Data",
    },
    "Stage": {
        "temporal_sample_layer_neighbor": _TEMPORAL_LAYER,
        "sample_subgraph": "pipe.sample_induced_subgraph(graph); or derive a sampler from dp.stages.Sampler",
        "sample_labor": "pipe.sample_layer_neighbor(graph, fanouts)",
        "random_walk": _WALKS,
        "map": "pipe.transform(fn)",
        "filter": "pipe.transform(fn): a function that returns None drops the minibatch",
        "batch": "dp.ItemSampler(items, batch_size)",
        "shuffle": "dp.ItemSampler(items, batch_size, shuffle=True)",
        "collate": "pipe.transform(fn)",
        "to_dgl": _DGL_BLOCKS,
        "sharding_filter": "dp.DataLoader shards by itself; for ranks dp.DistributedItemSampler",
        "buffer": "pipe.prefetch(depth)",
        "wait": "leave it out",
        "to_graph": "pipe and dp.DataLoader(pipe) have to_svg(path) and explain()",
    },
    "ItemSet": {
        "items": "item_set.take(positions)",
    },
    "CSCGraph": {
        **_OF_GRAPHS,
        "csc_indptr": "graph.indptr",
        "total_num_nodes": "graph.num_nodes",
        "total_num_edges": "graph.num_edges",
        "edge_index": "graph.indptr and graph.indices: the in-edges of v come from indices[indptr[v]:indptr[v + 1]]",
        "adj_t": "graph.indptr and graph.indices",
    },
    "HeteroCSCGraph": {
        **_OF_GRAPHS,
        **dict.fromkeys(("csc_indptr", "indptr", "indices", "edge_index", "edge_index_dict", "adj_t_dict"), _RELATION),
        **dict.fromkeys(("x_dict", "y_dict"), _WHOLE_GRAPH),
        "num_nodes_dict": "graph.num_nodes, {type: number}",
        "num_edges_dict": "graph.num_edges, {edge type: number}",
        "total_num_nodes": "the sum of graph.num_nodes over the types",
        "total_num_edges": "the sum of graph.num_edges over the types",
        "to_homogeneous": "samplers take it as it is: pipe.sample_neighbor(graph, fanouts)",
    },
    "FeatureStore": {
        "size": "store[domain, type, name].shape, the shape of one row",
        "count": "store[domain, type, name].count, the number of rows",
        "metadata": "keep it beside the store",
        "get_tensor": "store.read(domain, type, name, ids)",
        "put_tensor": "store.update(domain, type, name, ids, values) sets rows of a feature that is there",
        "read_async": "store.read_many_async(requests), which a fetch_feature calls by itself",
        "__setitem__": "a new store: dp.FeatureStore({**store, key: feature})",
        "__delitem__": "a new store: dp.FeatureStore({key: store[key] for key in store if key != left_out})",
        "to": _TO_GPU,
        "pin_memory": "store.pin_memory_(), which locks the rows where they are",
    },
    "Feature": {
        "size": "feature.shape, the shape of one row",
        "metadata": "keep it beside the feature",
        "read_async": "define transform_async in a dp.MiniBatchTransformer of your own",
        "read_into_memory": "dp.TensorFeature(torch.as_tensor(array))",
        "to": _TO_GPU,
        "pin_memory": "feature.pin_memory_() of a dp.TensorFeature, which locks the rows where they are",
    },
    "OnDiskDataset": {
        "yaml_data": _YAML,
        **dict.fromkeys(("graph", "feature", "tasks", "all_nodes_set"), _LOADED),
        "dataset_name": "dataset = dp.datasets.OnDiskDataset(path).load() has it as dataset.name",
    },
    "Dataset": {
        "yaml_data": _YAML,
        "dataset_name": "dataset.name",
        "load": "leave it out: dp.datasets.open(path) has loaded it",
        "val_set": "dataset.validation_set",
        "train_mask": "dataset.train_set",
        "val_mask": "dataset.validation_set",
        "test_mask": "dataset.test_set",
        "edge_index": "dataset.graph",
        "x": 'dataset.features["node", None, name]',
        "y": "dataset.train_set, dataset.validation_set and dataset.test_set have the labels",
        **dict.fromkeys(("num_features", "num_node_features"), 'dataset.features["node", None, name].shape'),
    },
    "datapipes": {
        **{name: f"{_PYG_LOADERS} {name}" for name in _LOADER_NAMES},
        **{name: f"{chain}; or from datapipes.pyg.loader import {name}" for name, chain in _SUBGRAPHS.items()},
        **{name: f"{_OF_WALKS} {name}" for name in ("random_walk", "Node2Vec", "MetaPath2Vec")},
        "node2vec_random_walk": _WALKS,
        "SAINTSampler": _SAINT,
        "ClusterGCNSampler": _CLUSTERS,
        "PinSAGESampler": "pipe.sample_pinsage(graph, num_neighbors, num_walks, walk_length, restart_prob)",
        "LaborSampler": "dp.LayerNeighborSampler",
        "DistNeighborLoader": _DIST_LOADER,
        "DistNeighborSampler": "dp.distributed.DistNeighborSampler; pipe.dist_sample_neighbor(dist_graph, fanouts)",
        "HGTLoader": "there is no HGT sampling; " + _LOADER + ": the graph may be a dp.HeteroCSCGraph",
        **dict.fromkeys(("Data", "HeteroData"), _OF_PYG),
        **dict.fromkeys(
            ("FusedCSCSamplingGraph", "fused_csc_sampling_graph", "CSCSamplingGraph", "from_csc"),
            "dp.CSCGraph(indptr, indices), or dp.HeteroCSCGraph, by edge type",
        ),
        "SamplingGraph": "dp.CSCGraph",
        "from_dglgraph": "dp.CSCGraph.from_edge_index(torch.stack(g.edges()), g.num_nodes())",
        "load_from_shared_memory": "dp.CSCGraph.open(folder)",
        "BasicFeatureStore": "dp.FeatureStore",
        "TorchBasedFeatureStore": "dp.FeatureStore of dp.TensorFeature",
        "TorchBasedFeature": "dp.TensorFeature",
        "FeatureKey": "a tuple (domain, type, name)",
        "cpu_cached_feature": "dp.CPUCachedFeature(feature, max_bytes)",
        "gpu_cached_feature": "dp.GPUCachedFeature(feature, max_bytes)",
        **dict.fromkeys(("CPUFeatureCache", "GPUFeatureCache", "GPUCache"), _CACHE),
        "GPUGraphCache": "leave it out: sampling is on the CPU",
        "etype_str_to_tuple": 'tuple(text.split(":")); arguments take both forms, results have tuples',
        "etype_tuple_to_str": '":".join(edge_type); arguments take both forms, results have tuples',
        "ORIGINAL_EDGE_ID": "graph.edge_ids; each of minibatch.blocks has edge_ids",
        "isin": "torch.isin(elements, test_elements)",
        "expand_indptr": "torch.repeat_interleave(indptr.diff()), of a block block.edge_index[1]",
        "CSCFormatBase": "dp.Block, which has indptr and indices",
        **dict.fromkeys(("unique_and_compact", "unique_and_compact_csc_formats", "compact_csc_format"), _COMPACT),
        "preprocess_ondisk_dataset": "leave it out: dp.datasets.OnDiskDataset(path).load() builds what is missing",
        "DiskBasedFeature": "dp.DiskFeature(path)",
        "ItemSetDict": "dp.HeteroItemSet({type: dp.ItemSet(...)})",
        "SubgraphSampler": "dp.stages.Sampler",
        "SampledSubgraphImpl": "dp.SampledSubgraph",
        "TemporalLayerNeighborSampler": "there is no temporal layer sampling; dp.TemporalNeighborSampler",
        **dict.fromkeys(("OnDiskDataset", "BuiltinDataset", "Dataset", "Task"), _IN_DATASETS),
        **dict.fromkeys(("OnDiskTask", "LegacyDataset"), "dp.datasets has Task and open(path)"),
        "functional_datapipe": "dp.register_stage",
        "traverse_dps": "dp.stages.StageGraph(pipe).walk()",
        "find_dps": "dp.stages.StageGraph(pipe).find(cls), or pipe[cls]",
        "replace_dp": "dp.stages.StageGraph(pipe).replace(old, new), or pipe.replaced(name, fn)",
        **dict.fromkeys(("PrefetcherIterDataPipe", "Bufferer"), "dp.Prefetcher"),
        **dict.fromkeys(("RemoteReceivingChannel", "RemoteSource"), _IN_DISTRIBUTED),
        "seed": "dp.ItemSampler(items, batch_size, seed=...)",
        "WeightedRandomSampler": "dp.ItemSampler(items, batch_size, weights=weights, replacement=True)",
        "ImbalancedSampler": _BALANCED,
    },
    "datapipes.distributed": {
        **dict.fromkeys(("DistNeighborLoader", "DistLoader", "DistDataLoader"), _DIST_LOADER),
        "DistContext": "leave it out: dp.DistributedItemSampler knows rank and world_size",
        **dict.fromkeys(("init_server", "DistServer", "wait_and_shutdown_server"), _SERVER),
        **dict.fromkeys(("init_client", "DistClient"), "client = dp.distributed.connect(namebook)"),
        "shutdown_client": "client.close(); servers go on",
        **dict.fromkeys(("RemoteDistSamplingWorkerOptions", "create_sampling_producer"), _PRODUCER),
        "MpDistSamplingWorkerOptions": "dp.DataLoader(pipe, num_workers=...)",
        **dict.fromkeys(("async_request_server", "request_server"), "nothing: a client cannot run code on a server"),
        "node_split": "dist_graph.local_items(), the seeds of the part in this process",
        "DistDataset": "dp.distributed.DistGraph.connect(root, namebook, local_part=rank) and DistFeatureStore(graph)",
    },
    "datapipes.datasets": {"OnDiskTask": "dp.datasets.Task", "LegacyDataset": "dp.datasets.open(path)"},
    "datapipes.channel": {"RemoteReceivingChannel": _IN_DISTRIBUTED},
}

_FANOUTS = "fanouts, in the opposite order: the last entry is the hop next to the seeds"
_NODE_KEYS = "node_feature_keys, a list of names, or {type: names}"
_EDGE_KEYS = "edge_feature_keys, a list of names, or {type: names}"
_ITEMS = "the seeds are a dp.ItemSet, which dp.ItemSampler(items, batch_size) takes"
_TO_SAMPLER = "dp.ItemSampler takes it"
_TO_NEIGHBOR = "pipe.sample_neighbor takes it"
_DEDUPLICATE = "leave it out: a node is in input_nodes once, or once for each tree (disjoint=True) or time"
_TRANSFORM = "pipe.transform(fn) changes the minibatch; map(fn, loader) makes a dict or a tuple of it"
_CHAIN = "datapipe, the last stage of a chain that starts with dp.ItemSampler"
_IMPORTANCE = "leave it out: the sampler is LABOR-0, which has no importance sampling"

# {class: {keyword that its constructor does not take: what to use}}. A class has the rows of its bases, too.
KEYWORDS: Table = {
    "Stage": {
        "deduplicate": _DEDUPLICATE,
        **dict.fromkeys(("asynchronous", "overlap_fetch"), "dp.DataLoader(pipe, overlap=True) does it"),
        **dict.fromkeys(("neg_sampling", "neg_sampling_ratio"), _NEGATIVES),
        "exclude_seed_edges": _EXCLUDED,
        "subgraph_type": "leave it out, or use a sampler that takes it, such as sample_neighbor",
        **dict.fromkeys(("num_gpu_cached_edges", "gpu_cache_threshold"), "leave it out: sampling is on the CPU"),
    },
    "ItemSampler": {
        "minibatcher": "pipe.transform(fn) changes the minibatch",
        "input_nodes": "item_set, a dp.ItemSet(ids)",
        "items": "item_set",
        "generator": "seed, an int",
        "num_workers": "dp.DataLoader takes it",
        "drop_uneven_inputs": "dp.DistributedItemSampler takes it, as drop_uneven",
        "num_replicas": "dp.DistributedItemSampler takes it, as world_size",
        "num_samples": "num_items",
        "replace": "replacement",
    },
    "NeighborSampler": {
        **dict.fromkeys(("num_neighbors", "fanout"), _FANOUTS),
        "data": "graph: dp.CSCGraph.from_pyg(data), of a HeteroData dp.HeteroCSCGraph.from_pyg(data)",
        "input_nodes": _ITEMS,
        **dict.fromkeys(("batch_size", "shuffle"), _TO_SAMPLER),
        "weight_attr": "pass the name of an edge attribute as prob_name",
        "directed": "leave it out: sampled edges run from neighbor to node",
        **dict.fromkeys(("time_attr", "input_time", "temporal_strategy"), _TEMPORAL),
        "cooperative": "leave it out: there is no cooperative sampling",
        "is_sorted": "leave it out: in-edges may have any order",
    },
    "InSubgraphSampler": {
        "fanouts": "leave it out: all in-edges are kept; pipe.sample_neighbor takes fanouts",
        "replace": "leave it out: each in-edge is kept once",
        "prob_name": "leave it out: all in-edges are kept; pipe.sample_neighbor takes prob_name",
        "disjoint": "leave it out: pipe.sample_neighbor(graph, [-1], disjoint=True) keeps all in-edges of trees",
    },
    "LayerNeighborSampler": {
        **dict.fromkeys(("num_neighbors", "fanout"), _FANOUTS),
        "replace": "leave it out: a node picks each in-edge at most once",
        "weight_attr": "pass the name of an edge attribute as prob_name",
        **dict.fromkeys(("importance", "importance_sampling"), _IMPORTANCE),
        "disjoint": "leave it out: the nodes of a hop agree on what they pick, so there are no trees",
    },
    "FeatureFetcher": {
        **dict.fromkeys(("node_features", "node_feature"), _NODE_KEYS),
        **dict.fromkeys(("edge_features", "edge_feature"), _EDGE_KEYS),
        "features": "feature_store, a dp.FeatureStore",
        "cooperative": "leave it out: there is no cooperative fetching",
    },
    "MiniBatchTransformer": {"transformer": "fn", "datapipe": "source"},
    "Prefetcher": {"buffer_size": "depth", "prefetch_factor": "depth"},
    "DataLoader": {
        **dict.fromkeys(("batch_size", "shuffle", "drop_last", "seed"), _TO_SAMPLER),
        "generator": "dp.ItemSampler takes seed, an int",
        **dict.fromkeys(("dataset", "sampler", "batch_sampler"), _CHAIN),
        "data": "datapipe, the last stage of a chain; pipe.sample_neighbor takes a dp.CSCGraph.from_pyg(data)",
        **dict.fromkeys(("collate", "collate_fn", "transform"), _TRANSFORM),
        "pin_memory": "pipe.copy_to(device); the loader then reads features into page-locked memory",
        "pin_memory_device": "pipe.copy_to(device)",
        "input_nodes": _ITEMS,
        "edge_label_index": "the seeds are pairs [n, 2] in a dp.ItemSet, which dp.ItemSampler(items, batch_size) takes",
        "num_neighbors": "pipe.sample_neighbor takes " + _FANOUTS,
        **dict.fromkeys(("fanouts", "replace", "disjoint"), _TO_NEIGHBOR),
        **dict.fromkeys(("time_attr", "temporal_strategy"), _TEMPORAL),
        **dict.fromkeys(("input_time", "edge_label_time"), _SEED_TIMES),
        "filter_per_worker": "cut, which says what the workers do",
        **dict.fromkeys(("overlap_fetch", "overlap_feature_fetch", "overlap_graph_fetch"), "overlap"),
    },
}


KEYWORDS["TemporalNeighborSampler"] = {
    **KEYWORDS["NeighborSampler"],
    "time_attr": _TIME_ATTR,
    "node_timestamp_attr_name": "node_time_attr",
    "edge_timestamp_attr_name": "edge_time_attr",
    "temporal_strategy": "strategy",
    **dict.fromkeys(("input_time", "edge_label_time"), _SEED_TIMES),
}
KEYWORDS["NeighborSampler"] |= dict.fromkeys(("edge_time_attr", "node_time_attr"), _TEMPORAL)
KEYWORDS["RandomWalkSampler"] = {"length": "walk_length", "num_walks": "walks_per_node", "prob": "prob_name"}
KEYWORDS["PinSageSampler"] = {"num_traversals": "walk_length", "termination_prob": "restart_prob"}
KEYWORDS["PinSageSampler"]["return_edge_ids"] = "leave it out: its edges are not those of the graph"
KEYWORDS["PprSampler"] = {"topk": "num_neighbors", "epsilon": "eps"}
_PARTS = {"data": "graph: dp.distributed.DistGraph.connect(root, namebook), of a graph that was partitioned"}
KEYWORDS |= {"DistNeighborSampler": _PARTS, "DistTemporalNeighborSampler": _PARTS}
KEYWORDS["MiniBatch"] = ATTRIBUTES["MiniBatch"]  # keywords of MiniBatch.replace
KEYWORDS["SeedEdgeExcluder"] = {"assume_num_node_within_int32": "leave it out: ids of any width are compared"}
KEYWORDS["NegativeSampler"] = {
    "neg_sampling": _NEGATIVES,
    "amount": "negative_ratio",
    "mode": 'corrupt="both" draws both ends ("binary"); form="rows" gives each positive its negatives ("triplet")',
}
