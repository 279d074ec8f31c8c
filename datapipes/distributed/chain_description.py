"""A chain of stages as a description that another process builds it from: JSON values and tensors, never code.

describe_chain writes it, build_chain (chain_building.py) reads it. It names stages and their arguments; graphs, item
sets and feature stores by the names under which the other process has them, or as the one graph and the one store that
it has. It also says the chain's fingerprint, so a chain that would give other minibatches is not built.

A value of an argument is null, a boolean, a number, a text, a list, or an object of one entry, whose key says what the
value is: {"tuple": [...]}, {"dict": [[key, value], ...]}, {"tensor": its name in the message}, {"graph": name or null},
{"features": [name or null, forms]}, {"items": name}, {"item_set": [items, names]}, {"item_sets": {"dict": ...}}. Each
tensor of the message stands in one place.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.records import Count, Form, form_of, to_json
from datapipes.chain.stage import Stage
from datapipes.chain.stage_base import CarrierBase, StageBase
from datapipes.chain.stage_graph import StageGraph
from datapipes.chain.state import fingerprint
from datapipes.device.copy_to import CopyTo
from datapipes.distributed.facts import FeatureForms
from datapipes.distributed.wire.arrow_message import Message
from datapipes.features.feature_fetcher import FeatureFetcher
from datapipes.features.feature_store import FeatureStore
from datapipes.graph.choice import RowForm
from datapipes.graph.graph import Graph
from datapipes.sampling.node_values import NodeWeights
from datapipes.seeds.distributed_item_sampler import DistributedItemSampler
from datapipes.seeds.hetero_item_set import HeteroItemSet
from datapipes.seeds.item_set import ItemSet

__all__ = ["describe_chain"]

_DESCRIBE = "describe_chain"
_ELSEWHERE = {  # stages that are not described, and why
    DistributedItemSampler: "would cut the minibatches among ranks, which the channel does already: use an ItemSampler",
    CopyTo: "copies to the device of the process that trains: chain it behind the RemoteSource",
    CarrierBase: "carries minibatches on in one process: chain it behind the RemoteSource",
}
_OF_ONE_PROCESS = {"concurrency"}  # arguments that change no bit; who builds the chain decides
_Named = Graph | ItemSet | HeteroItemSet | FeatureStore
_ANYTHING = Form(lambda name, value: value)
FORMS = form_of(FeatureForms)


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
    description = DescribedChain(tuple(stages), json.loads(json.dumps(fingerprint(graph))))
    return Message(to_json(description), writing.tensors)


class _Writing:
    """Turns arguments into values of a description, and collects the tensors."""

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
        self._own: dict[str, object] = {}  # what is without a name

    def stage(self, stage: Stage, sources: tuple[int, ...]) -> DescribedStage:
        """Return the description of a stage."""
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
        arrays = items._hashed_arrays()
        values = tuple(arrays[name][0] if name in arrays else len(items) for name in items.names)
        return {"item_set": [self._value(values), [*items.names]]}

    def _features(self, stage: Stage, store: FeatureStore) -> dict[str, Any]:
        read = [] if not isinstance(stage, FeatureFetcher) else stage.feature_keys
        return {"features": [self._name_of("feature store", store), FORMS.write(forms_in(store, read))]}

    def _name_of(self, kind: str, value: object) -> str | None:
        name = self._names.get(id(value))
        if name is not None:
            self._unused.discard(name)
        elif self._own.setdefault(kind, value) is not value:
            raise ValueError(
                f"is another {kind} without a name, but one is what stands for the server's own. Name them: "
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


def forms_in(store: FeatureStore, keys: Iterable[Any]) -> dict[Any, RowForm]:
    """Return the forms of the rows of some features."""
    return {key: RowForm(store[key].dtype, store[key].shape) for key in keys}
