"""The names that PyG, GraphBolt and torch use for what has another name here: errors about them say which.

The tables are the one place for them. An attribute is one of the class that raises when it is read; a keyword is looked
up when a stage is built. Names that exist are not affected. docs/migrate/ has the whole story.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, NoReturn

Table = dict[str, dict[str, str]]

_BLOCKS = "each of minibatch.blocks has edge_index; all hops in one: minibatch.to_pyg().edge_index"
_HETERO = "heterogeneous graphs are not there yet"
_NEGATIVES = "there is no negative sampler yet: add pairs in a dp.MiniBatchTransformer"
_TEMPORAL = "there is no temporal sampling yet"
_TO_PYG = "minibatch.to_pyg() has it"
_WEIGHTED = "there is no weighted sampling yet: derive a sampler from dp.Sampler"
_LOADER = "dp.ItemSampler(items, batch_size).sample_neighbor(graph, fanouts), then dp.DataLoader(pipe)"
_UPDATE = "build a new dp.TensorFeature, dp.FeatureStore and chain"
_SEEDS = "minibatch.seeds, pairs [n, 2]"
_PINNED = "features are read from host memory; put copy_to after the fetch"
_WHOLE_GRAPH = "features are in a dp.FeatureStore, labels and splits in a dp.ItemSet"

# For each class (and "datapipes", the package): the name that is missing, and what to use. A class has the rows of its
# bases too.
ATTRIBUTES: Table = {
    "MiniBatch": {
        # PyG
        "x": 'minibatch.node_features["x"], under the name it was fetched by',
        "y": "minibatch.labels, a row for each seed",
        "n_id": "minibatch.input_nodes",
        "node": "minibatch.input_nodes",
        "e_id": "each of minibatch.blocks has edge_ids",
        "edge": "each of minibatch.blocks has edge_ids",
        "edge_index": _BLOCKS,
        "row": _BLOCKS,
        "col": _BLOCKS,
        "adj_t": "each of minibatch.blocks has to_sparse()",
        "edge_attr": "minibatch.edge_features, a dict for each block",
        "batch_size": "len(minibatch.seeds)",
        "num_nodes": "len(minibatch.input_nodes)",
        "num_sampled_nodes": _TO_PYG,
        "num_sampled_edges": _TO_PYG,
        "input_id": "minibatch.indexes, if the dp.ItemSet has some",
        "seed_time": "minibatch.timestamps",
        "edge_label": "minibatch.labels, a row for each pair",
        "edge_label_index": "minibatch.compacted_seeds, [n, 2]",
        "edge_label_time": "minibatch.timestamps",
        "src_index": "minibatch.compacted_seeds, [n, k]",
        "dst_pos_index": "minibatch.compacted_seeds, [n, k]",
        "dst_neg_index": "minibatch.compacted_seeds, [n, k]",
        "train_mask": "the dp.ItemSet of the chain says what the seeds are",
        # GraphBolt
        "node_feature": "minibatch.node_features, {name: rows}",
        "edge_feature": "minibatch.edge_features, a dict for each block",
        "sampled_subgraph": "minibatch.sampled_subgraphs, one for each hop",
        "input_node": "minibatch.input_nodes",
        "block": "minibatch.blocks, one for each hop",
        "label": "minibatch.labels",
        "seed": "minibatch.seeds",
        "seed_nodes": "minibatch.seeds",
        "node_pairs": _SEEDS,
        "positive_node_pairs": _SEEDS,
        "negative_node_pairs": _SEEDS,
        "negative_srcs": _SEEDS,
        "negative_dsts": _SEEDS,
        "compacted_node_pairs": "minibatch.compacted_seeds",
        "compacted_negative_srcs": "minibatch.compacted_seeds",
        "compacted_negative_dsts": "minibatch.compacted_seeds",
        "node_ids": "minibatch.input_nodes",
        "edge_ids": "each of minibatch.blocks has edge_ids",
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
        "num_src_nodes": "block.num_src",
        "num_dst_nodes": "block.num_dst",
        "number_of_src_nodes": "block.num_src",
        "number_of_dst_nodes": "block.num_dst",
        "edges": "block.edge_index",
        "adj": "block.to_sparse()",
        "adj_tensors": "block.indptr, block.indices",
        "sampled_csc": "minibatch.sampled_subgraphs have it; here block.indptr, block.indices",
        "original_edge_ids": "block.edge_ids",
        "original_row_node_ids": "minibatch.sampled_subgraphs have it",
        "original_column_node_ids": "minibatch.sampled_subgraphs have it",
    },
    "SampledSubgraph": {
        "edge_index": "subgraph.block has edge_index",
        "node_pairs": "subgraph.block has edge_index",
        "exclude_edges": "edges cannot be excluded yet",
        "to_pyg": "minibatch.to_pyg() makes all hops one Data",
    },
    "Stage": {
        "sample_layer_neighbor": "there is no layer-neighbor sampling yet; pipe.sample_neighbor",
        "temporal_sample_neighbor": _TEMPORAL,
        "temporal_sample_layer_neighbor": _TEMPORAL,
        "sample_in_subgraph": "pipe.sample_neighbor(graph, [-1])",
        "sample_subgraph": "derive a sampler from dp.Sampler",
        "sample_negative": _NEGATIVES,
        "sample_uniform_negative": _NEGATIVES,
        "exclude_seed_edges": "edges cannot be excluded yet",
        "map": "pipe.transform(fn)",
        "filter": "pipe.transform(fn): a function that returns None drops the minibatch",
        "batch": "dp.ItemSampler(items, batch_size)",
        "sharding_filter": "dp.DataLoader shards by itself; for ranks dp.DistributedItemSampler",
        "buffer": "pipe.prefetch(depth)",
        "wait": "leave it out",
        "mark_end": "leave it out",
        "to_graph": "dp.DataLoader(pipe) has to_svg(path) and explain()",
    },
    "ItemSet": {
        "items": "item_set.take(positions)",
    },
    "CSCGraph": {
        "csc_indptr": "graph.indptr",
        "total_num_nodes": "graph.num_nodes",
        "total_num_edges": "graph.num_edges",
        "number_of_nodes": "graph.num_nodes",
        "number_of_edges": "graph.num_edges",
        "edge_index": "graph.indptr and graph.indices: the in-edges of v come from indices[indptr[v]:indptr[v + 1]]",
        "adj_t": "graph.indptr and graph.indices",
        "x": _WHOLE_GRAPH,
        "y": _WHOLE_GRAPH,
        "train_mask": _WHOLE_GRAPH,
        "ndata": _WHOLE_GRAPH,
        "edata": _WHOLE_GRAPH,
        "in_subgraph": "pipe.sample_neighbor(graph, [-1])",
        "sample_neighbors": "pipe.sample_neighbor(graph, fanouts)",
        "sample_layer_neighbors": "there is no layer-neighbor sampling yet; pipe.sample_neighbor(graph, fanouts)",
        "temporal_sample_neighbors": _TEMPORAL,
        "temporal_sample_layer_neighbors": _TEMPORAL,
        "sample_negative_edges_uniform": _NEGATIVES,
        "copy_to_shared_memory": "leave it out: workers share the graph; or graph.save(folder) and dp.CSCGraph.open",
        "to": "the graph stays in host memory; put copy_to at the end of the chain",
        "pin_memory_": "the graph stays in host memory",
        "node_type_offset": _HETERO,
        "type_per_edge": _HETERO,
        "node_type_to_id": _HETERO,
        "edge_type_to_id": _HETERO,
        "metadata": _HETERO,
    },
    "FeatureStore": {
        "size": "store[domain, type, name].shape, the shape of one row",
        "count": "store[domain, type, name].count, the number of rows",
        "update": _UPDATE,
        "metadata": "keep it beside the store",
        "get_tensor": "store.read(domain, type, name, ids)",
        "put_tensor": _UPDATE,
        "pin_memory_": _PINNED,
        "to": _PINNED,
    },
    "Feature": {
        "size": "feature.shape, the shape of one row",
        "update": _UPDATE,
        "metadata": "keep it beside the feature",
        "read_async": "define transform_async in a dp.MiniBatchTransformer of your own",
        "read_into_memory": "dp.TensorFeature(torch.as_tensor(array))",
        "pin_memory_": _PINNED,
        "is_pinned": _PINNED,
        "to": _PINNED,
    },
    "Dataset": {
        "feature": "dataset.features",
        "tasks": "dataset.train_set, dataset.validation_set and dataset.test_set: there is one task",
        "metadata": "dataset.num_classes, dataset.class_names, dataset.name",
        "all_nodes_set": "dp.ItemSet(dataset.graph.num_nodes)",
        "load": "leave it out: dp.datasets.open(path) has loaded it",
        "val_set": "dataset.validation_set",
        "train_mask": "dataset.train_set",
        "val_mask": "dataset.validation_set",
        "test_mask": "dataset.test_set",
        "edge_index": "dataset.graph",
        "x": 'dataset.features["node", None, name]',
        "y": "dataset.train_set, dataset.validation_set and dataset.test_set have the labels",
        "num_features": 'dataset.features["node", None, name].shape',
        "num_node_features": 'dataset.features["node", None, name].shape',
    },
    "datapipes": {
        "NeighborLoader": _LOADER,
        "LinkNeighborLoader": _LOADER + "; the items are pairs [n, 2]",
        "NodeLoader": _LOADER,
        "LinkLoader": _LOADER + "; the items are pairs [n, 2]",
        "DistNeighborLoader": "partitions are not there yet; dp.DistributedItemSampler shares an epoch among ranks",
        "DistNeighborSampler": "partitions are not there yet",
        "HGTLoader": _HETERO,
        "Data": "dp.CSCGraph.from_pyg(data); " + _WHOLE_GRAPH,
        "FusedCSCSamplingGraph": "dp.CSCGraph(indptr, indices)",
        "fused_csc_sampling_graph": "dp.CSCGraph(indptr, indices)",
        "SamplingGraph": "dp.CSCGraph",
        "from_dglgraph": "dp.CSCGraph.from_edge_index(torch.stack(g.edges()), g.num_nodes())",
        "load_from_shared_memory": "dp.CSCGraph.open(folder)",
        "BasicFeatureStore": "dp.FeatureStore",
        "TorchBasedFeatureStore": "dp.FeatureStore of dp.TensorFeature",
        "TorchBasedFeature": "dp.TensorFeature",
        "FeatureKey": "a tuple (domain, type, name)",
        "DiskBasedFeature": 'dp.TensorFeature(np.load(path, mmap_mode="r"))',
        "CPUCachedFeature": "dp.TensorFeature",
        "GPUCachedFeature": "dp.TensorFeature",
        "ItemSetDict": "dp.HeteroItemSet({type: dp.ItemSet(...)})",
        "SubgraphSampler": "dp.Sampler",
        "SampledSubgraphImpl": "dp.SampledSubgraph",
        "LayerNeighborSampler": "there is no layer-neighbor sampling yet; dp.NeighborSampler",
        "TemporalNeighborSampler": _TEMPORAL,
        "TemporalLayerNeighborSampler": _TEMPORAL,
        "InSubgraphSampler": "dp.NeighborSampler with the fanouts [-1]",
        "NegativeSampler": _NEGATIVES,
        "UniformNegativeSampler": _NEGATIVES,
        "exclude_seed_edges": "edges cannot be excluded yet",
        "OnDiskDataset": "dp.datasets.open(path) reads Planetoid and npz files",
        "BuiltinDataset": "dp.datasets.open(path) reads files that you have",
        "functional_datapipe": "dp.register_stage",
        "traverse_dps": "dp.StageGraph(pipe).walk()",
        "find_dps": "dp.StageGraph(pipe).find(cls)",
        "replace_dp": "dp.StageGraph(pipe).replace(old, new), or pipe.replaced(cls, fn)",
        "PrefetcherIterDataPipe": "dp.Prefetcher",
        "Bufferer": "dp.Prefetcher",
        "seed": "dp.ItemSampler(items, batch_size, seed=...)",
    },
}

_FANOUTS = "fanouts, in the opposite order: the last entry is the hop next to the seeds"
_ITEMS = "the seeds are a dp.ItemSet, which dp.ItemSampler(items, batch_size) takes"
_TO_SAMPLER = "dp.ItemSampler takes it"
_TO_NEIGHBOR = "pipe.sample_neighbor takes it"
_OVERLAP = "dp.DataLoader(pipe, overlap=True) does it"

# For each class: the keyword that its constructor does not take, and what to use. A class has the rows of its bases.
KEYWORDS: Table = {
    "ItemSampler": {
        "minibatcher": "pipe.transform(fn) changes the minibatch",
        "input_nodes": "item_set, a dp.ItemSet(ids)",
        "items": "item_set",
        "generator": "seed, an int",
        "num_workers": "dp.DataLoader takes it",
        "drop_uneven_inputs": "dp.DistributedItemSampler takes it, as drop_uneven",
        "num_replicas": "dp.DistributedItemSampler takes it, as world_size",
    },
    "NeighborSampler": {
        "num_neighbors": _FANOUTS,
        "fanout": _FANOUTS,
        "data": "graph, a dp.CSCGraph: dp.CSCGraph.from_pyg(data)",
        "input_nodes": _ITEMS,
        "batch_size": _TO_SAMPLER,
        "shuffle": _TO_SAMPLER,
        "prob_name": _WEIGHTED,
        "weight_attr": _WEIGHTED,
        "deduplicate": "leave it out: each node is in input_nodes once",
        "subgraph_type": "leave it out: sampled edges run from neighbor to node",
        "directed": "leave it out: sampled edges run from neighbor to node",
        "disjoint": "there is no disjoint sampling yet",
        "time_attr": _TEMPORAL,
        "input_time": _TEMPORAL,
        "temporal_strategy": _TEMPORAL,
        "overlap_fetch": _OVERLAP,
        "asynchronous": _OVERLAP,
        "cooperative": "leave it out: there is no cooperative sampling",
        "num_gpu_cached_edges": "leave it out: sampling is on the CPU",
        "gpu_cache_threshold": "leave it out: sampling is on the CPU",
    },
    "FeatureFetcher": {
        "node_features": "node_feature_keys, a list of names",
        "edge_features": "edge_feature_keys, a list of names",
        "node_feature": "node_feature_keys, a list of names",
        "edge_feature": "edge_feature_keys, a list of names",
        "features": "feature_store, a dp.FeatureStore",
        "overlap_fetch": _OVERLAP,
        "cooperative": "leave it out: there is no cooperative fetching",
    },
    "MiniBatchTransformer": {
        "transformer": "fn",
        "datapipe": "source",
    },
    "Prefetcher": {
        "buffer_size": "depth",
        "prefetch_factor": "depth",
    },
    "DataLoader": {
        "batch_size": _TO_SAMPLER,
        "shuffle": _TO_SAMPLER,
        "drop_last": _TO_SAMPLER,
        "seed": _TO_SAMPLER,
        "generator": "dp.ItemSampler takes seed, an int",
        "dataset": "datapipe, the last stage of a chain that starts with dp.ItemSampler",
        "data": "datapipe, the last stage of a chain; pipe.sample_neighbor takes a dp.CSCGraph.from_pyg(data)",
        "sampler": "datapipe, the last stage of a chain that starts with dp.ItemSampler",
        "batch_sampler": "datapipe, the last stage of a chain that starts with dp.ItemSampler",
        "collate_fn": "pipe.transform(fn) changes the minibatch",
        "transform": "pipe.transform(fn) changes the minibatch",
        "pin_memory": "pipe.transform(dp.MiniBatch.pin_memory).copy_to(device)",
        "pin_memory_device": "pipe.copy_to(device)",
        "input_nodes": _ITEMS,
        "edge_label_index": "the seeds are pairs [n, 2] in a dp.ItemSet, which dp.ItemSampler(items, batch_size) takes",
        "num_neighbors": "pipe.sample_neighbor takes " + _FANOUTS,
        "fanouts": _TO_NEIGHBOR,
        "replace": _TO_NEIGHBOR,
        "neg_sampling": _NEGATIVES,
        "neg_sampling_ratio": _NEGATIVES,
        "disjoint": "there is no disjoint sampling yet",
        "subgraph_type": "leave it out: sampled edges run from neighbor to node",
        "filter_per_worker": "cut, which says what the workers do",
        "overlap_fetch": "overlap",
        "overlap_feature_fetch": "overlap",
        "overlap_graph_fetch": "overlap",
        "num_gpu_cached_edges": "leave it out: sampling is on the CPU",
        "gpu_cache_threshold": "leave it out: sampling is on the CPU",
    },
}


KEYWORDS["MiniBatch"] = ATTRIBUTES["MiniBatch"]  # of replace()


class OtherName:
    """An attribute that a class does not have, under the name of another library: reading it raises AttributeError.

    Each name is one such attribute of the class and not a case in `__getattr__`, which would make every attribute of
    the class slower to read.
    """

    def __init__(self, owner: str, name: str, ours: str) -> None:
        self._owner, self._name, self._ours = owner, name, ours

    def __get__(self, obj: object, cls: type | None = None) -> NoReturn:
        owner = self._owner if obj is None else type(obj).__name__
        raise AttributeError(attribute_text(owner, self._name, self._ours), name=self._name, obj=obj)


def add_other_names(cls: type, owner: str) -> None:
    """Give `cls` the rows of `owner` in ATTRIBUTES, but for names that it or a base of it has."""
    for name, ours in ATTRIBUTES.get(owner, {}).items():
        if not any(name in vars(base) for base in cls.__mro__):
            setattr(cls, name, OtherName(owner, name, ours))


class OtherNames:
    """Base of the classes in ATTRIBUTES. The error for such a name says what to use; all other errors are Python's."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith("datapipes."):
            add_other_names(cls, cls.__name__)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if type(inspect.getattr_static(self, name, None)) is not OtherName]


def attribute_text(owner: str, name: str, ours: str) -> str:
    """Return the text of the error for an attribute that is called something else here."""
    return f"{owner} has no {name!r}. Here: {ours}."


def missing_public_name(name: str) -> AttributeError:
    """Return the error for a name that the package `datapipes` does not have."""
    ours = ATTRIBUTES["datapipes"].get(name)
    text = f"module 'datapipes' has no attribute {name!r}" if ours is None else attribute_text("datapipes", name, ours)
    return AttributeError(text, name=name)


def refuse_other_keywords(where: str, cls: type, keywords: Iterable[str]) -> None:
    """Raise TypeError for a keyword of KEYWORDS that the constructor of `cls` does not take.

    Raises:
        TypeError: As Python would; the message says what to use.
    """
    for name in keywords:
        ours = _row(KEYWORDS, cls, name)
        if ours is None:
            continue
        parameters = inspect.signature(cls.__init__).parameters  # type: ignore[misc]  # of this very class
        if name not in parameters and not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            raise TypeError(f"{where}: {cls.__name__} takes no {name!r}. Here: {ours}.")


def _row(table: Table, cls: type, name: str) -> str | None:
    """Return what `table` says about a name of `cls` or of one of its bases."""
    for base in cls.__mro__:
        rows = table.get(base.__name__)
        if rows is not None and name in rows:
            return rows[name]
    return None
