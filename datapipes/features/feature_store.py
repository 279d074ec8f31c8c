"""FeatureStore: features of nodes and edges, found by (domain, type, name). The domain is "node" or "edge"."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from torch import Tensor

from datapipes.base.checks import check_names, shown
from datapipes.base.errors import add_note
from datapipes.base.types import by_edge_type, check_edge_type, check_node_type
from datapipes.chain.asynchronous import off_loop
from datapipes.features.feature import Feature

__all__ = ["FeatureStore"]

FeatureKey = tuple[str, Any, str]  # ("node" or "edge", type or None, name); an edge type as a tuple
FeatureRequest = tuple[str, Any, str, Tensor]  # (domain, type, name, ids)
Keys = Sequence[str] | Mapping[Any, Sequence[str]]  # names of features to read, as given by a user
Names = list[str] | dict[Any, list[str]]  # the same, as `check_keys` returns them

_Self = TypeVar("_Self", bound="FeatureStore")


class FeatureStore(Mapping[FeatureKey, Feature]):
    """Features under keys ("node" or "edge", type or None, name).

    The type is None in a homogeneous graph, else a node type, or an edge type (src, rel, dst). The text "src:rel:dst"
    is accepted too; keys of the store have the tuple.

    `fetch_in_worker` tells the DataLoader to let its workers read the store. It is False for stores in this machine's
    memory, which the loader's own process reads.

    `reads_async` tells a FeatureFetcher to await `read_many_async` with up to `concurrency` minibatches in flight, for
    stores that wait for other machines. Such a store defines `read_many_async` besides `read_many`. A feature that
    waits sets its own attribute, Feature.reads_async.
    """

    fetch_in_worker: bool = False
    reads_async: bool = False
    concurrency: int = 8

    def __init__(self, features: Mapping[FeatureKey, Feature]) -> None:
        if not isinstance(features, Mapping):
            raise TypeError(
                f"FeatureStore: features must be a dict, got {type(features).__name__}. Pass {{(domain, type, name): "
                "feature}."
            )
        self._features: dict[FeatureKey, Feature] = {}
        for written, feature in features.items():
            key = _check_key(written)
            if not isinstance(feature, Feature):
                raise TypeError(
                    f"FeatureStore: {shown(written)} must be a Feature, got {type(feature).__name__}. Wrap a tensor: "
                    "dp.TensorFeature(tensor)."
                )
            if key in self._features:
                raise ValueError(
                    f"FeatureStore: {shown(key)} is given twice, with its type as tuple and as text. Give it once."
                )
            self._features[key] = feature

    @property
    def features(self) -> Mapping[FeatureKey, Feature]:
        """The features that the store was built from; fixed. For other features, build a new store."""
        return MappingProxyType(self._features)

    def __getitem__(self, key: FeatureKey) -> Feature:
        feature = self._features.get(key)
        if feature is None:
            with contextlib.suppress(ValueError):  # a text that is no edge type cannot be a key
                feature = self._features.get(_with_tuple(key))
        if feature is None:
            raise KeyError(
                f"FeatureStore: no feature {shown(key)}; the store has "
                f"{shown(sorted(self._features, key=shown))}. Add it."
            )
        return feature

    def __iter__(self) -> Iterator[FeatureKey]:
        return iter(self._features)

    def __len__(self) -> int:
        return len(self._features)

    def names(self, domain: str, type_: Any = None) -> list[str]:
        """Return the names of the features of a domain and type, sorted."""
        wanted = _with_tuple((domain, type_, ""))[:2]
        return sorted(key[2] for key in self if key[:2] == wanted)

    def types(self, domain: str) -> list[Any]:
        """Return the types that have features of a domain, sorted; None, for a graph without types, comes first."""
        return sorted({key[1] for key in self if key[0] == domain}, key=lambda type_: (type_ is not None, type_ or ""))

    def stats(self) -> Mapping[str, float]:
        """Return counts of reads, for `DataLoader.stats()`, from all features that count."""
        return {f"{feature_text(*key)}: {name}": count for key in self for name, count in self[key].stats().items()}

    def read(self, domain: str, type_: Any, name: str, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows of a feature at `ids`; see Feature.read."""
        feature = self[domain, type_, name]
        return feature.read(ids) if out is None else feature.read(ids, out=out)

    def update(self, domain: str, type_: Any, name: str, ids: Tensor, values: Tensor) -> None:
        """Set the rows of a feature at `ids`; see Feature.update."""
        feature = self[domain, type_, name]
        with naming(domain, type_, name):
            feature.update(ids, values)

    def read_many(self, requests: Sequence[FeatureRequest]) -> list[Tensor]:
        """Return the rows of each request (domain, type, name, ids), in order; by default by one `read` per request.

        A FeatureFetcher makes one call for a minibatch. A store whose rows lie in other processes overrides this
        method, so that each peer gets one request.

        Raises:
            IndexError: An id has no row; the message names the feature.
        """
        rows = []
        for domain, type_, name, ids in requests:
            with naming(domain, type_, name):
                rows.append(self.read(domain, type_, name, ids))
        return rows

    async def read_many_async(self, requests: Sequence[FeatureRequest]) -> list[Tensor]:
        """Return the result of `read_many` without blocking the event loop; by default it runs in another thread.

        Raises:
            IndexError: An id has no row; the message names the feature.
        """
        return await off_loop(self.read_many, requests)

    def pin_memory_(self: _Self) -> _Self:
        """Lock the rows of every feature in memory (see TensorFeature.pin_memory_); return this store.

        All or none: after an error the features are as they were before.

        Raises:
            TypeError: Some features have no `pin_memory_`; the message names them.
            ValueError: The rows of a feature lie on a GPU.
            RuntimeError, MemoryError: The errors of TensorFeature.pin_memory_; a note names the feature.
        """
        others = [key for key in self if not hasattr(self[key], "pin_memory_")]
        if others:
            raise TypeError(
                f"{type(self).__name__}.pin_memory_: the features {shown(sorted(others, key=shown))} have no memory of "
                "their own to lock. Call pin_memory_() on the other features, or move these to a store of their own."
            )
        pinned: list[Any] = []
        for key in self:
            feature: Any = self[key]
            try:
                if not feature.is_pinned():
                    feature.pin_memory_()
                    pinned.append(feature)
            except BaseException as error:
                add_note(error, f"This is the {feature_text(*key)}; no feature of the store was locked by this call.")
                for feature in pinned:
                    feature.unpin_memory_()
                raise
        return self

    def unpin_memory_(self: _Self) -> _Self:
        """Undo `pin_memory_` of every feature; return this store."""
        for key in self:
            if hasattr(self[key], "unpin_memory_"):
                self[key].unpin_memory_()  # type: ignore[attr-defined]  # the feature has it
        return self

    def is_pinned(self) -> bool:
        """Return whether every feature is pinned in this process."""
        features: list[Any] = [self[key] for key in self]
        return all(hasattr(feature, "is_pinned") and feature.is_pinned() for feature in features)

    def __repr__(self) -> str:
        return f"FeatureStore({self._features})"


@contextlib.contextmanager
def naming(domain: str, type_: Any, name: str) -> Iterator[None]:
    """Context manager: put a feature's name in front of an IndexError, which means that an id has no row."""
    try:
        yield
    except IndexError as error:
        raise IndexError(f"{feature_text(domain, type_, name)}: {error}") from error


def feature_text(domain: str, type_: Any, name: str) -> str:
    """Return the name of a feature as errors write it."""
    return f"{domain} feature {name!r}" + ("" if type_ is None else f" of the type {type_!r}")


def _with_tuple(key: FeatureKey) -> FeatureKey:
    """Return `key` with the edge type as a tuple (src, rel, dst), also if it was given as the text "src:rel:dst"."""
    match key:
        case ("edge", str(type_), name):
            return "edge", check_edge_type("FeatureStore", type_), name
    return key


def _check_key(key: Any) -> FeatureKey:
    if not (isinstance(key, tuple) and len(key) == 3 and key[0] in ("node", "edge") and isinstance(key[2], str)):
        raise ValueError(
            f"FeatureStore: a key must be ('node' or 'edge', type or None, name), got {shown(key)}. Write it so."
        )
    domain, type_, name = key
    if type_ is not None:
        type_ = check_edge_type("FeatureStore", type_) if domain == "edge" else check_node_type("FeatureStore", type_)
    return domain, type_, name


# --- the names of features that a FeatureFetcher reads: a list, or {type: names} where the graph has types


def check_keys(domain: str, keys: Any) -> Names:
    """Return a user's names of features as a list, or as {type: names} in the order of the types, with edge types as
    tuples. None gives an empty list.
    """
    where, argument = "fetch_feature", f"{domain}_feature_keys"
    if not isinstance(keys, Mapping):
        return [] if keys is None else check_names(where, argument, keys)
    if domain == "edge":
        keys = by_edge_type(where, keys)
    else:
        for type_ in keys:
            check_node_type(where, type_)
    return {type_: check_names(where, f"{argument}[{type_!r}]", keys[type_]) for type_ in sorted(keys)}


def store_keys(domain: str, names: Names) -> dict[Any, FeatureKey]:
    """Return {key in a minibatch: key in the store} for some names, in the order in which the features are read.

    A key in a minibatch is the name of the feature, or (type, name).
    """
    by_type = names if isinstance(names, dict) else {None: names}
    return by_name({(domain, type_, name): (domain, type_, name) for type_ in by_type for name in by_type[type_]})


def by_name(values: Mapping[FeatureKey, Any]) -> dict[Any, Any]:
    """Return {key in a minibatch: value}, from {key in the store: value}; the new key is the name, or (type, name)."""
    return {name if type_ is None else (type_, name): value for (_, type_, name), value in values.items()}


def other_form(domain: str, keys: Names, owner: str, types: Sequence[Any] | None) -> ValueError:
    """Return the error for feature names in the wrong form: a list though the graph has types, or {type: names} though
    it has none.

    Args:
        keys: the names that the user gave, a list or {type: names}.
        owner: what has the types, "the minibatch" or "the sampled graph".
        types: the types of `owner`; None without types.
    """
    if types is None:
        has, needed = "no types", "a list of names"
        write: Any = sorted({name for names in keys.values() for name in names}) if isinstance(keys, dict) else keys
    else:
        has, needed = f"the {domain} types {shown([*types])}", "{type: names}"
        write = f"{ {type_: [*keys] for type_ in types[:1]} } .."
    return ValueError(
        f"fetch_feature: {domain}_feature_keys is {shown(keys)}, but {owner} has {has}; {needed} is needed. Write "
        f"{write}."
    )
