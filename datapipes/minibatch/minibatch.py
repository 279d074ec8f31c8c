"""MiniBatch: the value that flows between stages. A stage returns a new minibatch and leaves its input unchanged.

Annotations: a field that is a tensor over a graph without types, and a dict of tensors over a graph with types, is a
`Tensor | Any`. With `Tensor | dict` a type checker would demand a test in every line, though the graph decides which of
the two it is. Over a graph with types, `isinstance(minibatch.seeds, dict)` informs the checker.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from datapipes.base.checks import dtype_name, refuse_other_keywords
from datapipes.base.codec import Message, digest_message
from datapipes.base.html import table_html
from datapipes.base.rng import RngKey
from datapipes.minibatch.block import Block, Movable, SampledSubgraph, TensorMap
from datapipes.minibatch.message import PLAIN_FIELDS, fields_of, to_message
from datapipes.minibatch.padding import Masks
from datapipes.minibatch.pyg_data import pyg_data
from datapipes.minibatch.sparse_rows import SparseRows

if TYPE_CHECKING:
    import torch_geometric.data

__all__ = ["MiniBatch"]

TensorOrDict = Tensor | Any  # a tensor, or {type: tensor}
Blocks = list[Block] | list[Any]  # one a hop: a Block, or {edge type: Block}
Subgraphs = list[SampledSubgraph] | list[Any]
_WITH_TENSORS = (*PLAIN_FIELDS, "extra", "blocks", "node_features", "edge_features")


@dataclass(slots=True, eq=False)
class MiniBatch(Movable):
    """One minibatch on its way through the stages; a field is None until a stage fills it.

    Node types are str, edge types tuples (src, rel, dst) of str. In a heterogeneous graph the fields are dicts in the
    order of the types. `seeds` and the fields aligned with them are {node type: tensor}, or for links {edge type:
    tensor}; all types of the item set are there, also those without a seed. `input_nodes` and `batch` are {node type:
    tensor}, with all node types of the graph. Each of `blocks` is {edge type: Block}, with the edge types that some hop
    draws from. Features have keys (type, name) in place of names.

    Attributes:
        seeds: ids [n], or [n, 2] pairs, or [n, k]: the nodes or links that the minibatch is built for. In pairs of an
            edge type, column 0 has nodes of type src and column 1 nodes of type dst.
        labels: [n, ...], aligned with the seeds.
        indexes: int64 [n], the query to which each seed belongs.
        compacted_seeds: the seeds as local ids, in the shape of `seeds`.
        input_nodes: ids [num_nodes], distinct, in the order of the local ids; the seeds come first. With disjoint
            trees the ids are distinct within each tree. A temporal sample may have a node once for each time.
        blocks: one Block a hop; `blocks[0]` is the input layer, `blocks[-1]` ends at the seeds.
        node_features: {name: [num_nodes, ...]}, rows aligned with `input_nodes`; a SparseFeature gives SparseRows.
        edge_features: one {name: [num_edges, ...]} for each of `blocks`, rows aligned with the edges of the block.
        timestamps: [n], the time of each seed.
        batch: int64 [num_nodes], for each input node the position in `seeds` of the seed in whose tree it is (disjoint
            sampling). With types the positions are counted over all types, type by type in sorted order.
        extra: {name: [n, ...]}, further named fields of the item set, aligned with the seeds; with types {name: {type:
            [n, ...]}}. {} if there are none.
        bucket: the number of the bucket to whose sizes `pad` has padded the minibatch; None: it is not padded.
            Minibatches with the same number have the same shapes.
        epoch, index: the position of this minibatch; with the ItemSampler's random seed they decide all its content.
        rng: random key of the stage that works on the minibatch; set by the runtime, not part of the message.
    """

    seeds: TensorOrDict | None = None
    labels: TensorOrDict | None = None
    indexes: TensorOrDict | None = None
    compacted_seeds: TensorOrDict | None = None
    input_nodes: TensorOrDict | None = None
    blocks: Blocks | None = None
    node_features: dict[Any, Tensor | Any] | None = None
    edge_features: list[dict[Any, Tensor | Any]] | None = None
    timestamps: TensorOrDict | None = None
    batch: TensorOrDict | None = None
    extra: dict[str, TensorOrDict] = field(default_factory=dict)
    bucket: int | None = None
    epoch: int = 0
    index: int = 0
    rng: RngKey | None = None

    def __post_init__(self) -> None:
        if self.extra is None:
            self.extra = {}

    @property
    def num_layers(self) -> int:
        """Number of hops."""
        return len(self.blocks or ())

    @property
    def masks(self) -> Masks:
        """Which seeds, nodes and edges are real: `masks.seeds`, `masks.nodes`, `masks.edges`. All are, unless `pad` has
        added padding.
        """
        return Masks(self)

    @property
    def sampled_subgraphs(self) -> Subgraphs | None:
        """One SampledSubgraph for each of `blocks`, with types {edge type: SampledSubgraph}; None before sampling."""
        nodes, blocks = self.input_nodes, self.blocks
        if blocks is None or nodes is None:
            return None
        if isinstance(nodes, dict):
            return [
                {
                    edge_type: SampledSubgraph(block, nodes[edge_type[0]], nodes[edge_type[2]])
                    for edge_type, block in hop.items()  # type: ignore[union-attr]  # a dict, as the nodes
                }
                for hop in blocks
            ]
        return [SampledSubgraph(block, nodes) for block in blocks]

    def replace(self, **changes: Any) -> MiniBatch:
        """Return a minibatch with some fields changed; this one stays as it is."""
        made = self._copied()
        for name, value in changes.items():
            if name not in self.__dataclass_fields__:
                refuse_other_keywords("replace", type(self), changes)
                names = ", ".join(self.__dataclass_fields__)
                raise TypeError(f"replace() got an unexpected keyword argument {name!r}. The fields are {names}.")
            setattr(made, name, value)
        made.__post_init__()
        return made

    def _kept_by_consumer(self) -> Callable[[], object]:
        """Return a function without arguments that tells whether the consumer of a loader still has this minibatch. It
        returns the object that the consumer got; or None, once that object is freed.
        """
        return weakref.ref(self)

    def _with_key(self, rng: RngKey | None) -> MiniBatch:
        """Return a copy with `rng`, the random key of the stage that gets the copy."""
        made = self._copied()
        made.rng = rng
        return made

    def _copied(self) -> MiniBatch:
        """Return a copy of this minibatch, with the same values. Each stage gets a copy, so this must be fast: a loop
        over the fields would take six times as long.
        """
        made = object.__new__(type(self))
        made.seeds = self.seeds
        made.labels = self.labels
        made.indexes = self.indexes
        made.compacted_seeds = self.compacted_seeds
        made.input_nodes = self.input_nodes
        made.blocks = self.blocks
        made.node_features = self.node_features
        made.edge_features = self.edge_features
        made.timestamps = self.timestamps
        made.batch = self.batch
        made.extra = self.extra
        made.bucket = self.bucket
        made.epoch = self.epoch
        made.index = self.index
        made.rng = self.rng
        if type(self) is not MiniBatch:  # a subclass with more fields
            for name in self.__dataclass_fields__:
                setattr(made, name, getattr(self, name))
        return made

    def map_tensors(self, fn: TensorMap) -> MiniBatch:
        """Return a minibatch with `fn` applied to each tensor."""
        changes: dict[str, Any] = {}
        for name in _WITH_TENSORS:
            value = getattr(self, name)
            if value is not None:
                changes[name] = fn(value) if type(value) is Tensor else _mapped(fn, value)
        return self.replace(**changes)

    def pin_memory(self) -> MiniBatch:
        """Return the minibatch in page-locked memory, so that copies to a GPU can be asynchronous. Needs CUDA.

        Raises:
            RuntimeError: torch has no CUDA device here.
        """
        try:
            return self.map_tensors(lambda tensor: tensor.pin_memory())
        except RuntimeError as error:
            if torch.cuda.is_available():
                raise
            raise RuntimeError(
                f"MiniBatch.pin_memory: this machine offers no CUDA device to torch {torch.__version__}, and only CUDA "
                "can lock pages. Leave pin_memory out; or install a CUDA build of torch, on a machine with a GPU."
            ) from error

    def numpy(self) -> dict[str, Any]:
        """Return {field: value}, with a NumPy array in place of each tensor, whose memory it shares: for NumPy, and for
        JAX, which takes the arrays by DLPack. Fields without a value are left out.

        A Block is {"indptr": array, "indices": array, "edge_ids": array}, without "edge_ids" if it has none; SparseRows
        are such dicts too, with "values". Features are by name, and fields by type. After `pad`, ids of padding are
        -1, and the last row of a block has the edges of padding.

        Raises:
            TypeError: A tensor has a dtype that NumPy lacks, such as bfloat16.
            ValueError: A tensor is not in host memory, or not dense.
        """
        fields = {name: getattr(self, name) for name in _WITH_TENSORS}
        return {name: _as_arrays(name, value) for name, value in fields.items() if value is not None and value != {}}

    def to_message(self) -> Message:
        """Return all fields as a flat `dict[str, Tensor]`; the keys are listed in docs/semantics.md, section 5.
        Copies nothing.
        """
        return to_message(self)

    @classmethod
    def from_message(cls, message: Mapping[str, Tensor]) -> MiniBatch:
        """Return the minibatch that `to_message` flattened. It shares the tensors of the message.

        Raises:
            TypeError: The value of a key is no tensor.
            ValueError: A key does not fit the grammar, a hop lacks a part, or only some keys have types; the message
                names the key or the part.
        """
        return cls(**fields_of(message))

    def digest(self) -> str:
        """Return 32 hexadecimal digits over the whole content, features included: equal digests mean equal bits."""
        return digest_message(self.to_message())

    def to_pyg(self) -> torch_geometric.data.Data | torch_geometric.data.HeteroData:
        """Return the minibatch as a `Data`, or with types as a `HeteroData`, as PyG's NeighborLoader returns them.
        Needs torch_geometric.

        Sample with `frontier="new"`: as in PyG, each node is then drawn for once, in the hop after the hop that found
        the node.

        * `edge_index`: int64 [2, num_edges], row 0 the source and row 1 the destination of each edge, as positions in
          `n_id`; so messages flow towards the seeds. The hop next to the seeds comes first.
        * `n_id`: the id of each node in the graph; `x` and all node features have the same rows. The seeds come first,
          row i for seed i. A seed that is given k times has k rows, all with the same in-edges (PyG draws anew for each
          of them), so `out[:batch_size]` has a row for each seed. In `blocks` such a seed has one row.
        * `e_id`: the id of each edge, if the blocks have edge ids. Edge features have the same rows.
        * `batch_size`: the number of seeds. `y`: the labels, a row for each seed; PyG has a row for each node, and
          `y[:batch_size]` is right in both. `input_id`: the `indexes` of the item set, if it has some. `seed_time`:
          the `timestamps` of the item set.
        * `batch`, after a sampler with `disjoint=True`: the position of the seed in whose tree a node is; for links, as
          in PyG, the position of the link. Both ends of a link have a tree. `n_id` has a node once for each tree.
        * `num_sampled_nodes`, `num_sampled_edges`: new nodes and edges of each hop, from the seeds outwards, for
          `torch_geometric.utils.trim_to_layer`. They are left out unless the sampler's `subgraph_type` is
          "directional". With types and seeds [n, k], they are also left out if the ids do not show which of the two
          node types the negatives have, as in tiny graphs.
        * If the seeds are pairs, there are `edge_label_index` [2, n], `edge_label` and `edge_label_time` in place of
          `batch_size`, `y` and `seed_time`, as from PyG's LinkNeighborLoader; each node has one row.
        * `seed_local_id`: the row of each seed, in the shape of `seeds`.

        After `pad`, all sizes are those of the bucket, also `batch_size`, `num_sampled_nodes` and `num_sampled_edges`;
        only a seed that is given twice adds a row. `n_id` and `e_id` of padding are -1: `data.n_id >= 0` is the mask of
        `x`. Fanouts of -1 with frontier="all" are refused then.

        The feature "feat" or "x" becomes `x`; other features and `extra` keep their names. SparseRows of nodes become a
        sparse CSR tensor. Absent fields are not set.

        With types, `data[node_type]` and `data[edge_type]` have the same attributes, for all node types and all edge
        types of the blocks, also empty ones. Attributes of the seeds are in the store of their type; pairs have an edge
        type. A minibatch may have seeds of several types. For each type, `num_sampled_nodes` has one entry more than
        hops, `num_sampled_edges` one entry a hop. So `torch_geometric.nn.to_hetero`, HeteroConv and
        `trim_to_layer` run on `x_dict`, `edge_index_dict`, `num_sampled_nodes_dict` and `num_sampled_edges_dict`.

        A model over this Data equals the same layers over `blocks` with `frontier="all"` and fanouts -1, or with one
        hop. Otherwise the two differ: with `frontier="new"` a block lacks the in-edges of older nodes, which Data has.

        Raises:
            ImportError: torch_geometric is not installed.
            TypeError: An edge feature is SparseRows.
            IndexError: A compacted seed is no destination of the hop at the seeds.
            ValueError: The minibatch was not sampled; or a later hop drew other in-edges for a node, which Data cannot
                hold (`frontier="all"` with a fanout below the in-degree, or with replacement); or the rows of seeds,
                labels or features do not belong together; or two features have one name.
        """
        return pyg_data(self)

    def _plain_fields(self) -> dict[str, TensorOrDict]:
        """Return {name: value} of those fields in PLAIN_FIELDS (fields that are a tensor, or a tensor for each type)
        that are set.
        """
        return {name: value for name in PLAIN_FIELDS if (value := getattr(self, name)) is not None}

    def __repr__(self) -> str:
        shown = [f"epoch={self.epoch}, index={self.index}"]
        if self.bucket is not None:
            shown.append(f"bucket={self.bucket}")
        shown += [f"{name}={_shape(value)}" for name, value in self._plain_fields().items()]
        if self.extra:
            shown.append(f"extra={ {name: _shape(value) for name, value in self.extra.items()} }")
        if self.blocks is not None:
            shown.append(f"blocks={self.blocks}")
        if self.node_features is not None:
            shown.append(f"node_features={ {name: list(value.shape) for name, value in self.node_features.items()} }")
        if self.edge_features is not None:
            shown.append(f"edge_features={[sorted(features) for features in self.edge_features]}")
        return f"MiniBatch({', '.join(shown)})"

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: a table of the tensors, with the names that they have in messages."""
        rows: list[tuple[object, ...]] = [("tensor", "dtype", "shape", "device")]
        for name, tensor in self.to_message().items():
            rows.append((name, dtype_name(tensor.dtype), str(list(tensor.shape)), str(tensor.device)))
        return table_html(f"MiniBatch {self.index} of epoch {self.epoch}", rows)


def _mapped(fn: TensorMap, value: Any) -> Any:
    """Return the value of a field with `fn` applied to each tensor in it."""
    if isinstance(value, (Block, SparseRows)):
        return value.map_tensors(fn)
    if isinstance(value, dict):
        return {key: fn(part) if type(part) is Tensor else _mapped(fn, part) for key, part in value.items()}
    return [_mapped(fn, part) for part in value] if isinstance(value, list) else fn(value)


def _as_arrays(name: str, value: Any) -> Any:
    """Return the value of a field with NumPy arrays in place of tensors; see MiniBatch.numpy."""
    if isinstance(value, (Block, SparseRows)):
        parts = {part: getattr(value, part, None) for part in ("indptr", "indices", "edge_ids", "values")}
        return {part: _as_arrays(name, tensor) for part, tensor in parts.items() if tensor is not None}
    if isinstance(value, dict):
        return {key: _as_arrays(name, part) for key, part in value.items()}
    if isinstance(value, list):
        return [_as_arrays(name, part) for part in value]
    if value.device.type != "cpu" or value.layout is not torch.strided:
        raise ValueError(
            f"MiniBatch.numpy: {name} is {value.layout} on {value.device}; NumPy has dense arrays in host memory only. "
            "Call .to('cpu') or .to_dense(), or give JAX the tensors: jax.dlpack.from_dlpack(tensor)."
        )
    try:
        return value.detach().resolve_conj().resolve_neg().numpy()
    except TypeError:
        raise TypeError(
            f"MiniBatch.numpy: {name} has the dtype {dtype_name(value.dtype)}, which NumPy lacks. Convert it, or give "
            "JAX the tensor: jax.dlpack.from_dlpack(tensor)."
        ) from None


def _shape(value: TensorOrDict) -> Any:
    return {type_: _shape(rows) for type_, rows in value.items()} if isinstance(value, dict) else list(value.shape)
