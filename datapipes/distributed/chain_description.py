"""Describe a chain of stages so that another process can build it. A description has JSON values and tensors, never
code.

describe_chain writes the description, build_chain reads it. The description lists the stages and their arguments.
Graphs, feature stores and named item sets are not sent: the description has the name that the object has in the other
process. The name is null if the other process has only one graph or store. The description also has the chain's
fingerprint. build_chain refuses a chain whose minibatches would differ from those of the described chain.

A value of an argument is null, a boolean, a number, a text, a list, or an object of one entry, whose key is the type:
{"tuple": [...]}, {"dict": [[key, value], ...]}, {"tensor": its name in the message}, {"graph": name or null},
{"features": [name or null, dtype and shape of a row of each feature that is read]}, {"items": name}, {"item_set":
[items, names]}, {"item_sets": {"dict": ...}}. Each tensor of the message is used exactly once.

The description may come from anybody. So only stages that this process offers are built, over its own graphs, items and
stores. The chain's memory is counted before it is allocated, since a chain may need more bytes than the message has.
For example, a mask has one byte for each node, but the ids made from the mask have eight bytes each.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast

import torch
from torch import Tensor

from datapipes.base.checks import dtype_name, shown
from datapipes.base.errors import add_note, sentence
from datapipes.base.forms import RowForm
from datapipes.base.records import Count, Form, form_of, from_json, to_json
from datapipes.chain.functional import functional_name
from datapipes.chain.stage import Stage
from datapipes.chain.stage_base import CarrierBase, StageBase
from datapipes.chain.stage_graph import StageGraph
from datapipes.chain.state import differences, fingerprint
from datapipes.device.copy_to import CopyTo
from datapipes.distributed.partition_facts import FeatureForms
from datapipes.distributed.wire.arrow_message import Message
from datapipes.features.feature_fetcher import FeatureFetcher
from datapipes.features.feature_store import FeatureStore, feature_text
from datapipes.graph.graph import Graph
from datapipes.minibatch.sparse_rows import SparseRows
from datapipes.sampling.historical_negative_sampler import HistoricalNegativeSampler
from datapipes.sampling.in_batch_negative_sampler import InBatchNegativeSampler
from datapipes.sampling.in_subgraph_sampler import InSubgraphSampler
from datapipes.sampling.induced_subgraph_sampler import BYTES_PER_NODE, InducedSubgraphSampler
from datapipes.sampling.layer_neighbor_sampler import LayerNeighborSampler
from datapipes.sampling.neighbor_sampler import NeighborSampler
from datapipes.sampling.node_values import NodeWeights
from datapipes.sampling.random_walk_sampler import RandomWalkSampler
from datapipes.sampling.seed_edge_excluder import SeedEdgeExcluder
from datapipes.sampling.shadow_sampler import ShadowSampler
from datapipes.sampling.temporal_neighbor_sampler import TemporalNeighborSampler
from datapipes.sampling.uniform_negative_sampler import UniformNegativeSampler
from datapipes.seeds.distributed_item_sampler import DistributedItemSampler
from datapipes.seeds.hetero_item_set import HeteroItemSet
from datapipes.seeds.item_sampler import BYTES_OF_ORDER, ItemSampler
from datapipes.seeds.item_set import ItemSet, kept_bytes
from datapipes.seeds.weights import BYTES_PER_WEIGHT, Weights

__all__ = ["build_chain", "describe_chain"]

_DESCRIBE = "describe_chain"
_ELSEWHERE = {  # stages that are not described, and why
    DistributedItemSampler: "would cut the minibatches among ranks, which the channel does already: use an ItemSampler",
    CopyTo: "copies to the device of the process that trains: chain it behind the RemoteSource",
    CarrierBase: "passes minibatches on within one process: leave it out here; it may follow the RemoteSource",
}
_OF_ONE_PROCESS = {"concurrency"}  # arguments that change no minibatch; the process that builds the chain chooses them
_Named = Graph | ItemSet | HeteroItemSet | FeatureStore
_ANYTHING = Form(lambda name, value: value)
FORMS = form_of(FeatureForms)


@dataclass(frozen=True)
class DescribedStage:
    """A stage of a described chain.

    Attributes:
        stage: the functional name of the stage.
        sources: the index of each source in `DescribedChain.stages`.
        arguments: {name: described value} of all arguments except the sources.
    """

    stage: str
    sources: tuple[Count, ...]
    arguments: Mapping[str, Annotated[Any, _ANYTHING]]


@dataclass(frozen=True)
class DescribedChain:
    """The description of a chain: its stages, where a stage follows the stages it reads from, and the chain's
    fingerprint.
    """

    stages: tuple[DescribedStage, ...]
    fingerprint: Mapping[str, Annotated[Any, _ANYTHING]]


def describe_chain(pipe: Stage, names: Mapping[str, _Named] | None = None) -> Message:
    """Return the description of a chain, for build_chain in another process.

    The description contains the tensors of weights, and of item sets without a name; so name large item sets. It leaves
    out `concurrency`, which changes no minibatch and depends on how the other process stores the graph.

    Args:
        pipe: the last stage of the chain. Leave out stages that run where minibatches are used, such as `copy_to`;
            chain these after the RemoteSource.
        names: {name: graph, item set or feature store}, the names that the other process has for objects of this chain.
            A graph or store without a name means the only one of the other process; an item set without a name is sent
            along.
    Returns:
        A Message with `header` {name: JSON value} and `tensors` {name: tensor}.
    Raises:
        TypeError, ValueError: A stage or an argument cannot be described, such as a function; or the chain does not use
            an object in `names`.
    """
    if not isinstance(pipe, Stage):
        raise TypeError(f"{_DESCRIBE}: pipe must be a Stage, got {type(pipe).__name__}. Pass the last one of a chain.")
    graph: StageGraph[Stage] = StageGraph(pipe)
    writing = _Writing({} if names is None else names)
    places: dict[int, int] = {}
    stages = []
    for stage in graph:
        stages.append(writing.stage(stage, tuple(places[id(source)] for source in stage.sources)))
        places[id(stage)] = len(places)
    writing.refuse_unused()
    description = DescribedChain(tuple(stages), json.loads(json.dumps(fingerprint(graph))))
    return Message(to_json(description), writing.tensors)


class _Writing:
    """Writes the description of one chain, stage by stage, and collects the tensors that must be sent along."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        for name, value in names.items():
            if not isinstance(name, str) or not isinstance(value, _Named):
                raise TypeError(
                    f"{_DESCRIBE}: names must be {{name: graph, item set or feature store}}, got {shown(name)}: "
                    f"{type(value).__name__}. Name what the server was given."
                )
        self.tensors: dict[str, Tensor] = {}
        self._names = {id(value): name for name, value in names.items()}
        self._unused = {*names}
        self._own: dict[str, object] = {}  # {"graph" or "feature store": the only object without a name}

    def stage(self, stage: Stage, sources: tuple[int, ...]) -> DescribedStage:
        """Return the description of `stage`. `sources` are the indices of its source stages in
        `DescribedChain.stages`.
        """
        for kind, why in _ELSEWHERE.items():
            if isinstance(stage, kind):
                raise ValueError(f"{_DESCRIBE}: the stage {stage.name} {why}.")
        name, arguments = stage._state_name, {}
        for argument, value in _arguments_of(stage).items():
            if argument not in _OF_ONE_PROCESS:
                try:
                    described = self._features(stage, value) if isinstance(value, FeatureStore) else self._value(value)
                except (TypeError, ValueError) as error:
                    raise type(error)(f"{_DESCRIBE}: the argument {argument!r} of {stage.name} {error}") from None
                arguments["graph" if argument == "dist_graph" else argument] = described
        return DescribedStage(name, sources, arguments)

    def refuse_unused(self) -> None:
        """Raise ValueError if the user gave a name to an object that no stage of the chain uses."""
        if self._unused:
            raise ValueError(
                f"{_DESCRIBE}: names has {sorted(self._unused)}, which the chain does not use. Leave them out, or name "
                "the objects that its stages were given."
            )

    def _value(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, SparseRows):
            return {"lists": [self._value(value.indptr), self._value(value.indices), value.num_columns]}
        if isinstance(value, (NodeWeights, Weights)):
            return self._value(value.given)
        if isinstance(value, Mapping):
            return {"dict": [[self._value(key), self._value(element)] for key, element in value.items()]}
        if isinstance(value, tuple):
            return {"tuple": [self._value(element) for element in value]}
        if isinstance(value, list):
            return [self._value(element) for element in value]
        if isinstance(value, Graph):
            return {"graph": self._name_of("graph", value)}
        if isinstance(value, (ItemSet, HeteroItemSet)):
            return self._items(value)
        if type(value).__module__ == "numpy":
            return self._value(torch.as_tensor(value) if getattr(value, "ndim", 0) else value.item())
        raise TypeError(
            f"is of the type {type(value).__name__}, which cannot be described: no code is sent. Let the server offer "
            "a stage of its own (stages=[...]), or chain this one behind the RemoteSource."
        )

    def _tensor(self, tensor: Tensor) -> dict[str, str]:
        name = f"t{len(self.tensors)}"
        self.tensors[name] = tensor
        return {"tensor": name}

    def _items(self, items: ItemSet | HeteroItemSet) -> dict[str, Any]:
        if id(items) in self._names:
            return {"items": self._name_of("item set", items)}
        if isinstance(items, HeteroItemSet):
            return {"item_sets": self._value(items.item_sets)}
        return {"item_set": [self._value(items._values()), [*items.names]]}

    def _features(self, stage: Stage, store: FeatureStore) -> dict[str, Any]:
        read = [] if not isinstance(stage, FeatureFetcher) else stage.feature_keys
        return {"features": [self._name_of("feature store", store), FORMS.write(forms_in(store, read))]}

    def _name_of(self, kind: str, value: object) -> str | None:
        name = self._names.get(id(value))
        if name is not None:
            self._unused.discard(name)
        elif self._own.setdefault(kind, value) is not value:
            raise ValueError(
                f"is another {kind} without a name; only one can stand for the server's own. Name each {kind}: "
                "names={...}."
            )
        return name


def _arguments_of(stage: Stage) -> dict[str, Any]:
    """Return {name: value} of the arguments that were passed to the constructor of `stage`. The source stages are left
    out.
    """
    args, kwargs = stage.arguments
    bound = inspect.signature(type(stage)).bind(*args, **kwargs)
    kinds = {name: inspect.signature(type(stage)).parameters[name].kind for name in bound.arguments}
    if not {*kinds.values()} <= {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}:
        raise TypeError(f"{_DESCRIBE}: the constructor of {stage.name} takes *args or **kwargs. Name its arguments.")
    return {name: value for name, value in bound.arguments.items() if not _has_stage(value)}


def _has_stage(value: Any) -> bool:
    return isinstance(value, StageBase) or (isinstance(value, (list, tuple)) and any(map(_has_stage, value)))


def forms_in(store: FeatureStore, keys: Iterable[Any]) -> dict[Any, RowForm]:
    """Return {key: dtype and shape of a row} for the features of `store` that `keys` names."""
    return {key: RowForm(store[key].dtype, store[key].shape) for key in keys}


# --- building

_BUILD = "build_chain"
_STAGES: dict[str, type[Stage]] = {
    functional_name(cls): cls
    for cls in (
        *(ItemSampler, UniformNegativeSampler, InBatchNegativeSampler, HistoricalNegativeSampler),
        *(NeighborSampler, LayerNeighborSampler, TemporalNeighborSampler, InSubgraphSampler),
        *(RandomWalkSampler, ShadowSampler, InducedSubgraphSampler, SeedEdgeExcluder, FeatureFetcher),
    )
}
_MOST_NESTED = 8  # depth of values within values
_MOST_STAGES = 64  # bounded, since each stage may keep a minibatch in memory


def build_chain(
    description: Message,
    *,
    graph: Graph | Mapping[str, Graph],
    items: Mapping[str, ItemSet | HeteroItemSet] | None = None,
    features: FeatureStore | Mapping[str, FeatureStore] | None = None,
    stages: Iterable[type[Stage]] = (),
) -> Stage:
    """Return the last stage of the described chain, with the graph, item sets and feature stores of this process.

    The description may come from anybody: only the classes in `stages`, and the stages of datapipes that suit servers,
    are built.

    Args:
        description: as describe_chain returned it.
        graph: the graph that stages sample, or {name: graph}.
        items: {name: item set} that the description may name.
        features: the store that FeatureFetchers read, or {name: store}.
        stages: further classes that may be built, such as a user's own samplers.
    Raises:
        ValueError: The description is invalid; a stage, an argument or a name is not offered; or a tensor is not read
            exactly once. Also if the chain would yield other minibatches than the described chain; the message then
            names the differences.
        TypeError: An argument has a type that the stage does not take.
    """
    return ChainBuilder(graph, items, features, stages).build(description)


def _by_name(name: str, noun: str, value: Any, kind: Any) -> dict[str | None, Any]:
    named = {None: value} if isinstance(value, kind) else value
    offers = named.values() if isinstance(named, Mapping) else [value]
    wrong = [offer for offer in offers if not isinstance(offer, kind)]
    if wrong:
        raise TypeError(f"{_BUILD}: {name} must be {noun}, or {{name: {noun}}}, got {type(wrong[0]).__name__}.")
    return {**named}


class ChainBuilder:
    """Builds a chain from its description. Arguments other than `admit` are as for build_chain.

    Args:
        admit: function (num_bytes), called before each copy of received tensors; `num_bytes` is the memory of all
            copies so far, of the new copy, and of what stages compute from them. If `admit` raises an error, `build`
            stops with this error.
    """

    def __init__(
        self, graph: Any, items: Any, features: Any, stages: Any, admit: Callable[[int], None] = lambda held_bytes: None
    ) -> None:
        self._graph = _by_name("graph", "a graph", graph, Graph)
        self._items = _by_name("items", "an item set", {} if items is None else items, (ItemSet, HeteroItemSet))
        self._features = _by_name("features", "a FeatureStore", {} if features is None else features, FeatureStore)
        self._allowed = {**_STAGES, **{functional_name(cls): cls for cls in stages}}
        self._admit, self._held_bytes = admit, 0
        self._tensors: Mapping[str, Tensor] = {}
        self._read: set[str] = set()  # names of the tensors that were read

    def build(self, description: Message) -> Stage:
        """Build the chain of `description` and return its last stage. Call `build` only once."""
        if not isinstance(description, Message):
            raise TypeError(
                f"{_BUILD}: description must be what describe_chain returns, got {type(description).__name__}. Pass "
                "that."
            )
        self._tensors = description.tensors
        try:
            chain = from_json(DescribedChain, "the description", description.header)
        except ValueError as error:
            raise ValueError(f"{_BUILD}: {sentence(error)} Describe the chain with describe_chain.") from None
        if not 0 < len(chain.stages) <= _MOST_STAGES:
            raise ValueError(
                f"{_BUILD}: the description has {len(chain.stages)} stages; 1 to {_MOST_STAGES} are allowed."
            )
        built: list[Stage] = []
        for described in chain.stages:
            built.append(self._stage(described, built))
        unread = sorted(self._tensors.keys() - self._read)
        if unread:
            raise ValueError(
                f"{_BUILD}: the description has tensors that no stage reads: {shown(unread)}. Leave them out."
            )
        root: StageGraph[Stage] = StageGraph(built[-1])
        if len(root.walk()) != len(built):
            raise ValueError(f"{_BUILD}: the description has stages that the last one does not read. Leave them out.")
        differing = differences(chain.fingerprint, json.loads(json.dumps(fingerprint(root))), "here it is")
        if differing:
            raise ValueError(
                f"{_BUILD}: the chain gives other minibatches here than where it was described: "
                f"{'; '.join(differing)}. Use the same graph, items and version on both sides."
            )
        return root.root

    def _stage(self, described: DescribedStage, built: list[Stage]) -> Stage:
        where = f"{_BUILD}: stage {len(built)} ({shown(described.stage)})"
        cls = self._allowed.get(described.stage)
        if cls is None:
            raise ValueError(
                f"{where} is not offered; there are {sorted(self._allowed)}. Give it to the server: "
                "PartitionServer(..., stages=[...])."
            )
        if any(source >= len(built) for source in described.sources):
            raise ValueError(f"{where} has the sources {[*described.sources]}; they must stand before it.")
        parameters = {*inspect.signature(cls).parameters} - {"source"}
        unknown = sorted(described.arguments.keys() - parameters)
        if unknown:
            raise ValueError(f"{where} has no argument {shown(unknown[0])}; it has {sorted(parameters)}.")
        arguments = {
            name: self._value(f"{where}: the argument {name!r}", value) for name, value in described.arguments.items()
        }
        items = arguments.get("item_set")
        by_weight = cls is ItemSampler and arguments.get("weights") is not None
        if by_weight and isinstance(items, (ItemSet, HeteroItemSet)):  # the sums of a field, and the order
            self._hold((BYTES_PER_WEIGHT + BYTES_OF_ORDER) * len(items))
        sources = [built[source] for source in described.sources]
        args = () if not sources else (sources[0] if len(sources) == 1 else sources,)
        try:
            inspect.signature(cls).bind(*args, **arguments)
        except TypeError as error:
            raise ValueError(f"{where}: {sentence(error)} Describe it with all that it needs.") from None
        try:
            return cast("Callable[..., Stage]", cls)(*args, **arguments)
        except Exception as error:
            add_note(error, f"in {where}")
            raise

    def _value(self, where: str, value: Any, nested: int = 0) -> Any:
        """Turn `value`, as the description has it, into the argument of a stage. `nested` is the number of values
        around it, such as a list.
        """
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if nested == _MOST_NESTED:
            raise ValueError(f"{where} is nested more than {_MOST_NESTED} levels deep.")

        def all_of(values: Any) -> list[Any]:
            if not isinstance(values, list):
                raise ValueError(f"{where} has {shown(values)} where a list must be.")
            return [self._value(where, element, nested + 1) for element in values]

        if isinstance(value, list):
            return all_of(value)
        match value:
            case {"tuple": values, **others} if not others:
                return tuple(all_of(values))
            case {"dict": values, **others} if not others:
                return _dict_of(where, all_of(values))
            case {"tensor": str(name), **others} if not others:
                tensor = self._received(where, name)
                made = BYTES_PER_WEIGHT if tensor.is_floating_point() else BYTES_PER_NODE  # of weights, or clusters
                self._hold(tensor.nbytes + made * tensor.numel())
                return tensor.clone()
            case {"graph": name, **others} if not others:
                return _offered(where, "graph", self._graph, name)
            case {"items": str(name), **others} if not others:
                return _offered(where, "item set", self._items, name)
            case {"item_set": [items, names], **others} if not others:
                return self._item_set(where, items, self._value(where, names, nested + 1), nested + 1)
            case {"item_sets": sets, **others} if not others:
                return HeteroItemSet(self._value(where, sets, nested + 1))
            case {"lists": [indptr, indices, int(num_columns)], **others} if not others:
                offsets, columns = (self._value(where, part, nested + 1) for part in (indptr, indices))
                return SparseRows(offsets, columns, num_columns)  # the ItemSet checks it
            case {"features": [name, forms], **others} if not others:
                return self._store(where, name, forms)
        raise ValueError(f"{where} has {shown(value)}, which is no value of a description.")

    def _received(self, where: str, name: str) -> Tensor:
        """Return the received tensor `name`, without a copy. Raise ValueError if this tensor was read before."""
        tensor: Tensor = _offered(where, "tensor", self._tensors, name)
        if name in self._read:
            raise ValueError(f"{where} reads the tensor {shown(name)}, which was read before. Send it once for each.")
        self._read.add(name)
        return tensor

    def _hold(self, num_bytes: int) -> None:
        self._held_bytes += num_bytes
        self._admit(self._held_bytes)

    def _item_set(self, where: str, items: Any, names: Any, nested: int) -> ItemSet:
        """Return the ItemSet of the arrays `items` under their `names`; both are as the description has them. Received
        tensors are copied.
        """
        match items:
            case {"tuple": [*values], **others} if not others:
                received = tuple(self._item(where, value, nested) for value in values)
            case _:
                received = (self._item(where, items, nested),)
        self._hold(kept_bytes(received, names))
        return ItemSet(tuple(array.clone() if isinstance(array, Tensor) else array for array in received), names)

    def _item(self, where: str, value: Any, nested: int) -> Any:
        match value:
            case {"tensor": str(name), **others} if not others:
                return self._received(where, name)
        return self._value(where, value, nested)

    def _store(self, where: str, name: Any, forms: Any) -> FeatureStore:
        store: FeatureStore = _offered(where, "feature store", self._features, name)
        try:
            wanted = FORMS.read("its features", forms)
        except ValueError as error:
            raise ValueError(f"{where}: {sentence(error)} Describe the chain with describe_chain.") from None
        for key, here in forms_in(store, wanted).items():
            if here != wanted[key]:
                raise ValueError(
                    f"{where}: the {feature_text(*key)} has rows {dtype_name(here.dtype)} {[*here.shape]} here, "
                    f"described are {dtype_name(wanted[key].dtype)} {[*wanted[key].shape]}. Use the same features on "
                    "both sides."
                )
        return store


def _offered(where: str, kind: str, offers: Mapping[Any, Any], name: Any) -> Any:
    if isinstance(name, (str, type(None))) and name in offers:
        return offers[name]
    wanted = _called(kind, name)
    offered = ", ".join(_called(kind, offer) for offer in offers) or "none"
    raise ValueError(f"{where} is {wanted}, which is not offered; offered: {offered}. Offer {wanted}.")


def _called(kind: str, name: Any) -> str:
    return f"a {kind} without a name" if name is None else f"the {kind} {shown(name)}"


def _dict_of(where: str, entries: list[Any]) -> dict[Any, Any]:
    values: dict[Any, Any] = {}
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], (str, tuple)):
            raise ValueError(f"{where} has {shown(entry)} where a text or a tuple and its value must be.")
        if not all(isinstance(part, str) for part in entry[0]):
            raise ValueError(f"{where} has the key {shown(entry[0])}; a key must be a text or a tuple of texts.")
        if entry[0] in values:
            raise ValueError(f"{where} has the key {shown(entry[0])} twice.")
        values[entry[0]] = entry[1]
    return values
