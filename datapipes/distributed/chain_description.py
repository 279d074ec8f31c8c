"""A chain of stages as a description that another process builds it from: JSON values and tensors, never code.

describe_chain writes it, build_chain reads it. It names stages and their arguments; graphs, item sets and feature
stores by the names under which the other process has them, or as the one graph and the one store that it has. It also
says the chain's fingerprint, so a chain that would give other minibatches is not built.

A value of an argument is null, a boolean, a number, a text, a list, or an object of one entry, whose key says what the
value is: {"tuple": [...]}, {"dict": [[key, value], ...]}, {"tensor": its name in the message}, {"graph": name or null},
{"features": [name or null, forms]}, {"items": name}, {"item_set": [items, names]}, {"item_sets": {"dict": ...}}.
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
from datapipes.base.errors import add_note
from datapipes.base.records import Count, Form, form_of, from_json, to_json
from datapipes.chain.functional import functional_name
from datapipes.chain.stage import Stage
from datapipes.chain.stage_base import CarrierBase, StageBase
from datapipes.chain.stage_graph import StageGraph
from datapipes.chain.state import differences, fingerprint
from datapipes.device.copy_to import CopyTo
from datapipes.distributed.facts import FeatureForms
from datapipes.distributed.wire.arrow_message import Message
from datapipes.features.feature_fetcher import FeatureFetcher
from datapipes.features.feature_store import FeatureStore, feature_text
from datapipes.graph.choice import RowForm
from datapipes.graph.graph import Graph
from datapipes.sampling.in_subgraph_sampler import InSubgraphSampler
from datapipes.sampling.layer_neighbor_sampler import LayerNeighborSampler
from datapipes.sampling.neighbor_sampler import NeighborSampler
from datapipes.sampling.node_values import NodeWeights
from datapipes.sampling.seed_edge_excluder import SeedEdgeExcluder
from datapipes.sampling.temporal_neighbor_sampler import TemporalNeighborSampler
from datapipes.sampling.uniform_negative_sampler import UniformNegativeSampler
from datapipes.seeds.distributed_item_sampler import DistributedItemSampler
from datapipes.seeds.hetero_item_set import HeteroItemSet
from datapipes.seeds.item_sampler import ItemSampler
from datapipes.seeds.item_set import ItemSet

__all__ = ["build_chain", "describe_chain"]

_DESCRIBE, _BUILD = "describe_chain", "build_chain"
_STAGES: dict[str, type[Stage]] = {
    functional_name(each): each
    for each in (
        *(ItemSampler, UniformNegativeSampler, NeighborSampler, LayerNeighborSampler, TemporalNeighborSampler),
        *(InSubgraphSampler, SeedEdgeExcluder, FeatureFetcher),
    )
}
_ELSEWHERE = {  # stages that are not described, and why
    DistributedItemSampler: "would cut the minibatches among ranks, which the channel does already: use an ItemSampler",
    CopyTo: "copies to the device of the process that trains: chain it behind the RemoteSource",
    CarrierBase: "carries minibatches on in one process: chain it behind the RemoteSource",
}
_OF_ONE_PROCESS = {"concurrency"}  # arguments that change no bit; who builds the chain decides
_MOST_NESTED = 8  # values within each other
_MOST_STAGES = 64  # each may keep a minibatch
_Named = Graph | ItemSet | HeteroItemSet | FeatureStore
_ANYTHING = Form(lambda name, value: value)
_FORMS = form_of(FeatureForms)


@dataclass(frozen=True)
class DescribedStage:
    """A stage: its functional name, the places of its sources in the list of stages, its other arguments."""

    stage: str
    sources: tuple[Count, ...]
    arguments: Mapping[str, Annotated[Any, _ANYTHING]]


@dataclass(frozen=True)
class DescribedChain:
    """The stages of a chain, sources before those that read them, and its fingerprint."""

    stages: tuple[DescribedStage, ...]
    fingerprint: Mapping[str, Annotated[Any, _ANYTHING]]


# --- writing


def describe_chain(pipe: Stage, names: Mapping[str, _Named] | None = None) -> Message:
    """Return what a chain is made of, for build_chain in another process.

    Tensors of item sets and of weights are part of it, so large ones should have a name there. `concurrency` is left
    out: it changes no bit, and the other process may have another kind of graph.

    Args:
        pipe: the last stage; stages that run where minibatches are used, such as `copy_to`, stand behind it.
        names: {name: graph, item set or feature store} that the other process has under this name. A graph or a store
            without a name stands for the one that it has; an item set without one goes along.
    Returns:
        `header`, JSON values, and `tensors`, {name: tensor}.
    Raises:
        TypeError, ValueError: A stage or an argument cannot be described, such as a function; a name is of nothing in
            the chain.
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
    found = DescribedChain(tuple(stages), json.loads(json.dumps(fingerprint(graph))))
    return Message(to_json(found), writing.tensors)


class _Writing:
    """Turns arguments into values of a description, and collects the tensors."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        for name, each in names.items():
            if not isinstance(name, str) or not isinstance(each, _Named):
                raise TypeError(
                    f"{_DESCRIBE}: names must be {{name: graph, item set or feature store}}, got {shown(name)}: "
                    f"{type(each).__name__}. Name what the server was given."
                )
        self.tensors: dict[str, Tensor] = {}
        self._names = {id(each): name for name, each in names.items()}
        self._unused = {*names}
        self._own: dict[str, object] = {}  # what is without a name

    def stage(self, stage: Stage, sources: tuple[int, ...]) -> DescribedStage:
        """Return the description of a stage."""
        for kind, why in _ELSEWHERE.items():
            if isinstance(stage, kind):
                raise ValueError(f"{_DESCRIBE}: the stage {stage.name} {why}.")
        name, arguments = stage.state_name, {}
        for argument, value in _arguments_of(stage).items():
            if argument not in _OF_ONE_PROCESS:
                try:
                    described = self._features(stage, value) if isinstance(value, FeatureStore) else self._value(value)
                except (TypeError, ValueError) as error:
                    raise type(error)(f"{_DESCRIBE}: the argument {argument!r} of {stage.name} {error}") from None
                arguments["graph" if argument == "dist_graph" else argument] = described
        return DescribedStage(name, sources, arguments)

    def refuse_unused(self) -> None:
        """Raise ValueError if a name is of nothing in the chain."""
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
        if isinstance(value, NodeWeights):
            return self._value(value.given)
        if isinstance(value, Mapping):
            return {"dict": [[self._value(key), self._value(each)] for key, each in value.items()]}
        if isinstance(value, tuple):
            return {"tuple": [self._value(each) for each in value]}
        if isinstance(value, list):
            return [self._value(each) for each in value]
        if isinstance(value, Graph):
            return {"graph": self._name_of("graph", value)}
        if isinstance(value, (ItemSet, HeteroItemSet)):
            return self._items(value)
        if type(value).__module__ == "numpy":
            return self._value(torch.as_tensor(value) if getattr(value, "ndim", 0) else value.item())
        raise TypeError(
            f"is of {type(value).__name__}, which cannot be described: code does not travel. Let the server offer a "
            "stage of its own (stages=[...]), or chain this one behind the RemoteSource."
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
        arrays = items.hashed_arrays()
        given = tuple(arrays[name][0] if name in arrays else len(items) for name in items.names)
        return {"item_set": [self._value(given), [*items.names]]}

    def _features(self, stage: Stage, store: FeatureStore) -> dict[str, Any]:
        read = [] if not isinstance(stage, FeatureFetcher) else stage.feature_keys
        return {"features": [self._name_of("feature store", store), _FORMS.write(_forms(store, read))]}

    def _name_of(self, what: str, value: object) -> str | None:
        name = self._names.get(id(value))
        if name is not None:
            self._unused.discard(name)
        elif self._own.setdefault(what, value) is not value:
            raise ValueError(
                f"is another {what} without a name, but one is what stands for the server's own. Name them: "
                "names={...}."
            )
        return name


def _arguments_of(stage: Stage) -> dict[str, Any]:
    """Return {name: value} of what the constructor was given, but for the sources."""
    args, kwargs = stage.arguments
    bound = inspect.signature(type(stage)).bind(*args, **kwargs)
    kinds = {name: inspect.signature(type(stage)).parameters[name].kind for name in bound.arguments}
    if not {*kinds.values()} <= {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}:
        raise TypeError(f"{_DESCRIBE}: the constructor of {stage.name} takes *args or **kwargs. Name its arguments.")
    return {name: value for name, value in bound.arguments.items() if not _has_stage(value)}


def _has_stage(value: Any) -> bool:
    return isinstance(value, StageBase) or (isinstance(value, (list, tuple)) and any(map(_has_stage, value)))


def _forms(store: FeatureStore, keys: Iterable[Any]) -> dict[Any, RowForm]:
    """Return the forms of the rows of some features."""
    return {key: RowForm(store[key].dtype, store[key].shape) for key in keys}


# --- reading


def build_chain(
    description: Message,
    *,
    graph: Graph | Mapping[str, Graph],
    items: Mapping[str, ItemSet | HeteroItemSet] | None = None,
    features: FeatureStore | Mapping[str, FeatureStore] | None = None,
    stages: Iterable[type[Stage]] = (),
) -> Stage:
    """Return the chain of a description, over what this process has; its last stage.

    Only stages of datapipes that are fit for it are built, and those in `stages`. The description may come from
    anybody.

    Args:
        description: what describe_chain returned.
        graph: the graph that stages sample, or {name: graph}.
        items: {name: item set} that the description may name.
        features: the store that is read, or {name: store}.
        stages: further classes that may be built, such as a user's own samplers.
    Raises:
        ValueError: It is no description; a stage, an argument or a name is not offered; or the chain would give other
            minibatches than the described one: the message names what differs.
        TypeError: An argument is not what the stage takes.
    """
    if not isinstance(description, Message):
        raise TypeError(
            f"{_BUILD}: description must be what describe_chain returns, got {type(description).__name__}. Pass that."
        )
    offers = _Offers(
        graph=_by_name("graph", graph, Graph),
        items=_by_name("items", {} if items is None else items, (ItemSet, HeteroItemSet)),
        features=_by_name("features", {} if features is None else features, FeatureStore),
        tensors={name: each.clone() for name, each in description.tensors.items()},  # they view what was received
    )
    chain = from_json(DescribedChain, f"{_BUILD}: the description", description.header)
    if not 0 < len(chain.stages) <= _MOST_STAGES:
        raise ValueError(f"{_BUILD}: the description has {len(chain.stages)} stages; 1 to {_MOST_STAGES} are allowed.")
    allowed = {**_STAGES, **{functional_name(each): each for each in stages}}
    built: list[Stage] = []
    for place, each in enumerate(chain.stages):
        built.append(_built(place, each, allowed, built, offers))
    root: StageGraph[Stage] = StageGraph(built[-1])
    if len(root.walk()) != len(built):
        raise ValueError(f"{_BUILD}: the description has stages that the last one does not read. Leave them out.")
    differing = differences(chain.fingerprint, json.loads(json.dumps(fingerprint(root))), "here it is")
    if differing:
        raise ValueError(
            f"{_BUILD}: the chain gives other minibatches here than where it was described: {'; '.join(differing)}. "
            "Use the same graph, items and version on both sides."
        )
    return root.root


def _by_name(what: str, given: Any, kind: Any) -> dict[str | None, Any]:
    named = {None: given} if isinstance(given, kind) else given
    wrong = [each for each in named.values() if not isinstance(each, kind)] if isinstance(named, Mapping) else [given]
    if wrong:
        raise TypeError(f"{_BUILD}: {what} has {type(wrong[0]).__name__}, which is none. Pass one, or {{name: one}}.")
    return {**named}


def _built(
    place: int, described: DescribedStage, allowed: Mapping[str, type[Stage]], built: list[Stage], offers: _Offers
) -> Stage:
    where = f"{_BUILD}: stage {place} ({shown(described.stage)})"
    cls = allowed.get(described.stage)
    if cls is None:
        raise ValueError(f"{where} is not offered; there are {sorted(allowed)}. Offer it: stages=[...].")
    if any(source >= place for source in described.sources):
        raise ValueError(f"{where} has the sources {[*described.sources]}; they must stand before it.")
    parameters = {*inspect.signature(cls).parameters} - {"source"}
    unknown = sorted(described.arguments.keys() - parameters)
    if unknown:
        raise ValueError(f"{where} has no argument {shown(unknown[0])}; it has {sorted(parameters)}.")
    arguments = {}
    for name, value in described.arguments.items():
        arguments[name] = offers.value(f"{where}: the argument {name!r}", value)
    sources = [built[source] for source in described.sources]
    given = () if not sources else (sources[0] if len(sources) == 1 else sources,)
    try:
        inspect.signature(cls).bind(*given, **arguments)
    except TypeError as error:
        raise ValueError(f"{where}: {error}. Describe it with all that it needs.") from None
    try:
        return cast("Callable[..., Stage]", cls)(*given, **arguments)
    except Exception as error:
        add_note(error, f"in {where}")
        raise


@dataclass(frozen=True)
class _Offers:
    """What a description may name, and the tensors that came with it."""

    graph: Mapping[str | None, Graph]
    items: Mapping[str | None, ItemSet | HeteroItemSet]
    features: Mapping[str | None, FeatureStore]
    tensors: Mapping[str, Tensor]

    def value(self, where: str, value: Any, nested: int = 0) -> Any:
        """Return what a value of a description says."""
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if nested == _MOST_NESTED:
            raise ValueError(f"{where} nests more than {_MOST_NESTED} values.")

        def all_of(values: Any) -> list[Any]:
            if not isinstance(values, list):
                raise ValueError(f"{where} has {shown(values)} where a list must be.")
            return [self.value(where, each, nested + 1) for each in values]

        if isinstance(value, list):
            return all_of(value)
        match value:
            case {"tuple": values, **others} if not others:
                return tuple(all_of(values))
            case {"dict": values, **others} if not others:
                return _dict_of(where, all_of(values))
            case {"tensor": str(name), **others} if not others:
                return _offered(where, "tensor", self.tensors, name)
            case {"graph": name, **others} if not others:
                return _offered(where, "graph", self.graph, name)
            case {"items": str(name), **others} if not others:
                return _offered(where, "item set", self.items, name)
            case {"item_set": [items, names], **others} if not others:
                return ItemSet(self.value(where, items, nested + 1), self.value(where, names, nested + 1))
            case {"item_sets": sets, **others} if not others:
                return HeteroItemSet(self.value(where, sets, nested + 1))
            case {"features": [name, forms], **others} if not others:
                return self._store(where, name, forms)
        raise ValueError(f"{where} has {shown(value)}, which is no value of a description.")

    def _store(self, where: str, name: Any, forms: Any) -> FeatureStore:
        store: FeatureStore = _offered(where, "feature store", self.features, name)
        wanted = _FORMS.read(f"{where}: what it has of the features", forms)
        for key, here in _forms(store, wanted).items():
            if here != wanted[key]:
                raise ValueError(
                    f"{where}: the {feature_text(*key)} has rows {dtype_name(here.dtype)} {[*here.shape]} here, "
                    f"described are {dtype_name(wanted[key].dtype)} {[*wanted[key].shape]}. Use the same features on "
                    "both sides."
                )
        return store


def _offered(where: str, what: str, offers: Mapping[Any, Any], name: Any) -> Any:
    if isinstance(name, (str, type(None))) and name in offers:
        return offers[name]
    wanted = f"a {what} without a name" if name is None else f"the {what} {shown(name)}"
    there = [shown(each) if each is not None else "one without a name" for each in offers]
    raise ValueError(f"{where} is {wanted}, which is not offered; there is {', '.join(there) or 'none'}. Offer it.")


def _dict_of(where: str, entries: list[Any]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], (str, tuple)):
            raise ValueError(f"{where} has {shown(entry)} where a text or a tuple and its value must be.")
        if not all(isinstance(part, str) for part in entry[0]) or entry[0] in found:
            raise ValueError(f"{where} has the key {shown(entry[0])} twice, or it is no type.")
        found[entry[0]] = entry[1]
    return found
