"""View: makes the batches of a loader: calls the sampler, slices the data, and applies the transform.

It does what `filter_fn` of PyG's loaders does, field by field. The attributes `data`, `transform` and so on of a loader
are stored in its view, so the next batch sees a change; if workers slice, the next loop does.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch import Tensor

from datapipes.base.codec import join_key
from datapipes.base.rng import RngKey
from datapipes.base.types import of_type, values_of
from datapipes.features.feature_store import FeatureRequest, FeatureStore, feature_text
from datapipes.graph.convert import refuse_wrong_rows
from datapipes.minibatch import MiniBatch, SparseRows
from datapipes.pyg.loader.batch_form import BatchForm, SampledIds
from datapipes.pyg.loader.data_warnings import warn_of_lost, warn_of_whole
from datapipes.pyg.sampled import edge_index_of
from datapipes.pyg.sampler import NeighborSampler, seeded
from datapipes.pyg.seeds_of_types import SeedsOfTypes, inputs_by_type
from datapipes.pyg.torch_geometric_names import (
    Data,
    HeteroData,
    HeteroSamplerOutput,
    SamplerOutput,
)
from datapipes.sampling.neighborhoods import Neighborhoods
from datapipes.sampling.seed_ids import warn_of_empty_blocks
from datapipes.seeds.item_set import ItemSet

_ONE_AT_A_TIME = threading.Lock()  # held in calls of a user's sampler, which worker threads share


class View:
    """What a loader makes batches with: its sampler, its data and its transforms.

    Attributes that are not listed here are the arguments of NodeLoader and LinkLoader.

    Attributes:
        name: the name of the loader's class, for errors.
        sampler: the BaseSampler.
        is_link: whether the seeds are links.
        seed: together with epoch and index of a batch, it seeds the user's own code.
        features: a FeatureStore of attributes that batches get and the data does not have.
    """

    _data: Any = None
    sampler: Any
    _input_data: Any
    neg_sampling: Any = None
    transform: Any = None
    transform_sampler_output: Any = None
    custom_cls: Any = None

    def __init__(self, name: str, is_link: bool, seed: int) -> None:
        self.name, self.is_link, self.seed = name, is_link, seed
        self.looks = is_link  # for leaks, at the next batch
        self.features = FeatureStore({})
        self.forget()

    @property
    def data(self) -> Any:
        """The data from which batches are sliced. Setting it raises ValueError if its rows fit no nodes or edges."""
        return self._data

    @data.setter
    def data(self, data: Any) -> None:
        if isinstance(data, (Data, HeteroData)):
            refuse_wrong_rows(self.name, data)
            warn_of_whole(self.name, data, self.is_link)
        elif isinstance(data, tuple):
            warn_of_lost(self.name, data)
        self._data = data

    @property
    def input_data(self) -> Any:
        """The seeds with their ids, times and labels. Setting it raises ValueError if the lengths differ."""
        return self._input_data

    @input_data.setter
    def input_data(self, inputs: Any) -> None:
        by_type = inputs_by_type(inputs)
        names = {"time": "edge_label_time", "label": "edge_label"} if self.is_link else {"time": "input_time"}
        for group, of_group in by_type.items():
            count = len(of_group.row if self.is_link else of_group.node)
            for name, argument in {"input_id": "input_id", **names}.items():
                values = getattr(of_group, name)
                if values is not None and len(values) != count:
                    text = f"{argument}{of_type(group)}" if len(by_type) > 1 else argument
                    raise ValueError(
                        f"{self.name}: {text} has {len(values)} values for {count} seeds. Give one for each."
                    )
        neighborhoods = getattr(self.sampler, "neighborhoods", None)
        if isinstance(neighborhoods, Neighborhoods):
            warn_of_empty_blocks(self.name, neighborhoods.graph, [*by_type], neighborhoods.edge_types)
        self._input_data = inputs

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_form": None}  # a BatchForm has views of the data, which a pickle would copy

    def forget(self) -> None:
        """Drop what earlier batches have cached about the data; the next batch looks at the data again."""
        self._form: BatchForm | None = None  # made at an earlier batch
        self._of_edges: dict[str, bool] = {}  # {name of a tensor: _is_of_edges} of a feature store without types

    def look(self) -> None:
        """Prepare for the present data, so that threads can fill the first batches before the loop asks for them."""
        self._form_of(self.data)

    def _form_of(self, data: Any) -> BatchForm:
        form = self._form
        if form is None or not form.holds(data):
            form = BatchForm(data)
            self._form = form if form.is_kept else None
        return form

    def for_sampling(self) -> View:
        """Return a view that can only sample, for workers that do not slice: it has no data and no transforms."""
        view = type(self)(self.name, self.is_link, self.seed)
        view.sampler, view.input_data, view.neg_sampling = self.sampler, self.input_data, self.neg_sampling
        return view

    def key(self, minibatch: MiniBatch) -> RngKey:
        """Return the random key for `minibatch` that seeds the user's code after the sampler, such as the transform."""
        return RngKey(self.seed, minibatch.epoch, minibatch.index, 2)

    def sampled(self, index: Any, key: RngKey | None = None) -> Any:
        """Return the sampler's output for the seeds at positions `index`. If `key` is given, it decides the draws."""
        inputs, sampler = self.input_data[index], self.sampler
        if isinstance(sampler, NeighborSampler):
            if self.is_link:
                return sampler.sample_from_edges(inputs, self.neg_sampling, rng=key)
            return sampler.sample_from_nodes(inputs, rng=key)
        if isinstance(inputs, SeedsOfTypes):  # the sampler was replaced
            refuse_sampler_of_one_type(self.name, sampler)
        # The main thread is alone, so it needs no lock. In a forked worker it could find the lock taken for ever.
        is_main = threading.current_thread() is threading.main_thread()
        with nullcontext() if is_main else _ONE_AT_A_TIME, seeded(key):
            if self.is_link:
                return sampler.sample_from_edges(inputs, neg_sampling=self.neg_sampling)
            return sampler.sample_from_nodes(inputs)

    def input_digest(self) -> str:
        """Return a digest of all seeds, with their ids, times and labels."""
        digests = []
        for group, inputs in inputs_by_type(self.input_data).items():
            values = {name: value for name, value in vars(inputs).items() if isinstance(value, Tensor)}
            seeds = values.pop("row" if self.is_link else "node")
            digest = ItemSet((seeds, *values.values()), ("seeds", *values)).digest()
            digests.append(digest if group is None else f"{join_key(group)} {digest}")
        return " ".join(digests)

    def transformed(self, batch: Any) -> Any:
        """Apply the user's transform to the batch, and return the result."""
        return batch if self.transform is None else self.transform(batch)

    def fill_ahead(self, out: Any) -> None:
        """Fill the batch of `out`, a sampler's output, in a background thread; store it as `out.ahead`.

        If the batch cannot be filled here, or an error is raised, do nothing: `sliced` then fills it.
        """
        form = self._form
        if form is None or self.transform_sampler_output or not form.fits(out):
            return
        with suppress(Exception):  # the loop fills the batch then, and raises
            ahead = form.filled_ahead(self._sampled_in(out))
            self._finish(ahead.batch, out, ahead.sampled)
            out.ahead = ahead

    def feature_names(self, domain: str) -> Any:
        """Return the names of the features of nodes or edges; with types {type: names}; None if there are none."""
        types = self.features.types(domain)
        names = {key: self.features.names(domain, key) for key in types}
        return names.get(None) if None in names else names or None

    def requests_of(self, out: Any) -> list[FeatureRequest]:
        """Return the requests (domain, type, name, ids) for the features of a sampler's output."""
        requests: list[FeatureRequest] = []
        for domain, group, name in self.features:
            if domain == "edge" and out.edge is None:
                raise ValueError(
                    f"{self.name}: {feature_text(domain, group, name)} needs edge ids, which "
                    f"{type(self.sampler).__name__} does not give. Let it set `edge`, or leave this feature out."
                )
            ids = values_of(out.node if domain == "node" else out.edge, group)
            ids = ids if domain == "node" else self._edge_ids(group, ids)
            requests.append((domain, group, name, torch.empty(0, dtype=torch.int64) if ids is None else ids.cpu()))
        return requests

    def sliced(self, out: Any) -> Any:
        """Return the batch of `out`, a sampler's output, before the user's transform.

        If the batch was filled ahead, bring it up to date and return it; otherwise fill it now.
        """
        form, ahead = self._form, getattr(out, "ahead", None)
        if ahead is not None:
            del out.ahead
            if form is not None and ahead.form is form and form.holds(self.data):
                if form.catch_up(ahead):  # it may have overwritten what these two calls set
                    self._set_sampled(ahead.batch, out, ahead.sampled)
                    self._set_seeds(ahead.batch, out.metadata)
                return ahead.batch
        if self.transform_sampler_output:
            out = self.transform_sampler_output(out)
        if not isinstance(out, (SamplerOutput, HeteroSamplerOutput)):
            who = "transform_sampler_output" if self.transform_sampler_output else type(self.sampler).__name__
            raise TypeError(
                f"{who}: returned a {type(out).__name__}; a SamplerOutput or HeteroSamplerOutput is needed. Return one."
            )
        sampled, data = self._sampled_in(out), self.data  # read once: self.data may be replaced meanwhile
        kind = HeteroData if isinstance(out, HeteroSamplerOutput) else Data
        if isinstance(data, kind):
            batch = self._form_of(data).filled(sampled)
        else:
            batch = self._of_rows(kind, *self._read(out, sampled))
        self._finish(batch, out, sampled)
        return batch

    def _fill_features(self, batch: Any, out: Any) -> None:
        """Set the rows of the features in `batch`. If no stage has read them before, read them here."""
        read = getattr(out, "feature_rows", None)
        if read is None or self.transform_sampler_output:
            requests = self.requests_of(out)
            read = requests, self.features.read_many(requests)
        for (domain, group, name, _), rows in zip(*read, strict=True):
            store = batch if group is None else batch[group]
            if name in store:
                raise ValueError(
                    f"{self.name}: {name}{of_type(group)} was added to the data, but the loader has a {domain} feature "
                    "of this name. Delete it from the data."
                )
            store[name] = rows.csr() if isinstance(rows, SparseRows) else rows

    def _sampled_in(self, out: Any) -> SampledIds:
        nodes, cols = _by_type(out, out.node), _by_type(out, out.col)
        ends = {edge_type: (row, cols[edge_type]) for edge_type, row in _by_type(out, out.row).items()}
        edges = {edge_type: self._edge_ids(edge_type, ids) for edge_type, ids in _by_type(out, out.edge).items()}
        return SampledIds(nodes, ends, edges)

    def _finish(self, batch: Any, out: Any, sampled: SampledIds) -> None:
        """Set what a batch has besides the attributes of the data: sampled ids, features, and values of the seeds."""
        self._set_sampled(batch, out, sampled)
        if self.features:
            self._fill_features(batch, out)
        self._set_seeds(batch, out.metadata)

    def _set_sampled(self, batch: Any, out: Any, sampled: SampledIds) -> None:
        """Set in `batch` the ids of the sampled nodes and edges, the tree of each node, and the counts of each hop."""
        stores = {store._key: store for store in (*batch.node_stores, *batch.edge_stores)}  # batch[group] takes longer

        def store_of(group: Any) -> Any:
            return batch if group is None else stores[group] if group in stores else batch[group]

        for name, ids_by_type in (("n_id", sampled.nodes), ("e_id", sampled.edges)):
            for group, ids in ids_by_type.items():
                if ids is not None and name not in store_of(group):
                    setattr(store_of(group), name, ids)
        for name in ("batch", "num_sampled_nodes", "num_sampled_edges"):
            for group, value in _by_type(out, getattr(out, name)).items():
                setattr(store_of(group), name, value)
        if out.orig_row is not None and out.orig_col is not None:
            orig_cols = _by_type(out, out.orig_col)
            for group, row in _by_type(out, out.orig_row).items():
                store_of(group)._orig_edge_index = torch.stack((row, orig_cols[group]))

    def _of_rows(self, kind: type, counts: Any, ends: Any, rows: Any) -> Any:
        """Build a batch, of the class `kind` or `custom_cls`, from counts, ends and rows as `_read` returns them."""
        batch = (self.custom_cls or kind)()
        for group, count in counts.items():
            (batch if group is None else batch[group]).num_nodes = count
        for group, pair in ends.items():
            (batch if group is None else batch[group]).edge_index = edge_index_of(*pair)
        for (_, group, name), values in rows.items():
            (batch if group is None else batch[group])[name] = values
        return batch

    def _read(self, out: Any, sampled: SampledIds) -> tuple[Any, Any, Any]:
        """Read the nodes and edges of a batch from a pair of stores; for data that is neither a Data nor a HeteroData.

        Returns:
            (counts, ends, rows): {node type: number of nodes, None to leave it out}, {edge type: (row, col)}, {(domain,
            type, name): rows of the sampled nodes or edges}.
        """
        (features, graph), (nodes, ends, edges) = self.data, sampled
        attrs, counts = {}, {}
        for attr in features.get_all_tensor_attrs():
            group = None if None in nodes else attr.group_name
            domain, ids = ("edge", edges) if self._is_of_edges(attr) else ("node", nodes)
            attr.index = ids.get(group)
            if attr.index is not None:
                attrs[domain, group, attr.attr_name] = attr
                if domain == "node":
                    counts[group] = len(attr.index)
        edge_types = {attr.edge_type: None for attr in graph.get_all_edge_attrs()}
        rows = dict(zip(attrs, features.multi_get_tensor([*attrs.values()]), strict=True))
        for key, attr in attrs.items():
            if len(rows[key]) != len(attr.index):
                raise IndexError(
                    f"{type(features).__name__}: gave {len(rows[key])} rows of {attr.attr_name}"
                    f"{of_type(attr.group_name)} for {len(attr.index)} ids. Put a row for each."
                )
        return counts, {edge_type: ends[edge_type] for edge_type in edge_types if edge_type in ends}, rows

    def _is_of_edges(self, attr: Any) -> bool:
        """Return whether a tensor of a feature store belongs to edges.

        With types, its group is an edge type. Without types the group is None for nodes and edges, and the number of
        rows decides; if there are as many nodes as edges, the name decides, as in a Data.
        """
        group, name = attr.group_name, attr.attr_name
        if group is not None or not isinstance(self.sampler, NeighborSampler) or self.sampler.is_hetero:
            return isinstance(group, tuple)
        if name not in self._of_edges:
            num_edges, num_nodes = self.sampler.graph.num_edges, self.sampler.graph.num_nodes
            size = self.data[0].get_tensor_size(attr)
            self._of_edges[name] = size[0] == num_edges and (num_edges != num_nodes or "edge" in name)
        return self._of_edges[name]

    def _edge_ids(self, edge_type: Any, ids: Any) -> Any:
        """Convert the edge ids of a sampler's output to columns of `edge_index`. None stays None."""
        order = self.sampler.edge_permutation
        if isinstance(order, Mapping):
            order = order.get(edge_type)
        if ids is None:
            return None
        if ids.dtype != torch.int64:
            ids = ids.long()
        return ids if order is None else order[ids]

    def _set_seeds(self, batch: Any, metadata: Any) -> None:
        """Set the ids, times and labels of the seeds in a batch."""
        if isinstance(metadata[0], dict):  # of SeedsOfTypes
            for node_type, places in metadata[0].items():
                _set_node_seeds(batch[node_type], places, metadata[1][node_type])
            return
        group = self.input_data.input_type
        store = batch if group is None else batch[group]
        if not self.is_link:
            _set_node_seeds(store, *metadata[:2])
            return
        store.input_id = metadata[0]
        if self.neg_sampling is None or self.neg_sampling.is_binary():
            store.edge_label_index, store.edge_label, store.edge_label_time = metadata[1:4]
        else:
            src, dst = (batch, batch) if group is None else (batch[group[0]], batch[group[-1]])
            src.src_index = metadata[1]
            dst.dst_pos_index, dst.dst_neg_index = metadata[2:4]
            src.seed_time = dst.seed_time = metadata[4]
            if group is None or group in batch.edge_types:  # copied from the data; triplets have neither
                del store.edge_label_index
                del store.edge_label_time


def _by_type(out: Any, value: Any) -> dict[Any, Any]:
    """Return a field `value` of a sampler's output as {type: value}; without types as {None: value}."""
    return {**(value or {})} if isinstance(out, HeteroSamplerOutput) else {None: value}


def refuse_sampler_of_one_type(where: str, sampler: Any) -> None:
    """Raise TypeError if the sampler takes seeds of one node type only."""
    if getattr(type(sampler), "sample_from_nodes", None) is not NeighborSampler.sample_from_nodes:
        raise TypeError(
            f"{where}: input_nodes is a dict, but {type(sampler).__name__} samples for seeds of one type; only "
            "datapipes.pyg.sampler.NeighborSampler takes several. Pass it, or build a loader for each type."
        )


def _set_node_seeds(store: Any, places: Tensor, times: Tensor | None) -> None:
    store.input_id, store.seed_time, store.batch_size = places, times, places.size(0)
