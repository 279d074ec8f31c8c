"""Choice: how the in-edges of a row are drawn. The base of the policies, which stand in sampling/, and the simplest.

A choice is a value, what the user asked for. For a minibatch it makes keys, and the record that a request carries. From
rows it makes what the kernel draws by, and what names it in a fingerprint; the rows may be those of a whole graph or of
a part (`Rows`). docs/semantics.md, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.array_digest import version_of
from datapipes.base.checks import shown
from datapipes.base.records import Form, from_json, to_json
from datapipes.base.rng import RngKey

__all__: list[str] = []


class RowForm(NamedTuple):
    """What a row of an attribute is; `dtype` is the Python type where the attribute is no tensor."""

    dtype: Any
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape) * int(self.dtype.itemsize)


class Attributed(Protocol):
    """A graph or a part, as far as a choice checks it: what attributes there are, not their values."""

    @property
    def is_heterogeneous(self) -> bool:
        """Whether nodes and edges have types."""

    _anew: str  # a sentence that errors append to the advice to change an attribute

    def forms(self) -> Mapping[tuple[str, Any, str], Any]:
        """Return {("node" or "edge", type or None, name): RowForm} of all attributes."""

    def _refuse_source_times(self, where: str, name: str) -> None:
        """Raise ValueError if the node attribute `name` cannot be read as times of the sources of in-edges."""


class Edges(Protocol):
    """In-edges along one edge type, by destination: those of all nodes of a graph, or of the nodes that a part owns."""

    @property
    def indptr(self) -> Tensor:
        """int64 [num_rows + 1]; in a graph each node of the destination type has a row."""

    @property
    def indices(self) -> Tensor:
        """int32 or int64 [num_edges], the source of each in-edge."""

    @property
    def edge_attributes(self) -> Mapping[str, Tensor]:
        """{name: [num_edges, ...]}, aligned with `indices`."""


class Rows(Edges, Protocol):
    """Edges, and what a choice reads beside them."""

    @property
    def node_ids(self) -> Tensor | None:
        """int64 [num_rows], the node of each row; None if it is the number of the row."""

    @property
    def num_source_values(self) -> int:
        """Rows of a `source_attribute`."""

    def source_attribute(self, name: str) -> Tensor | None:
        """Return the tensor that has a value of each source: by node, or by in-edge as a part stores it."""

    def source_times(self, name: str, out: Tensor | None = None) -> Tensor:
        """Return the times of the sources, int64 [num_edges], in `out` if given; what is stored so is not copied."""


class Keyed(NamedTuple):
    """What one minibatch draws with.

    Attributes:
        keys: uint64, of each hop, hop 0 first, and each edge type that is sampled.
        choice: the record that a request carries; see `Choice.keyed`.
    """

    keys: list[list[int]]
    choice: Choice


_CARRIED: dict[str, type[Choice]] = {}  # the records that a request may have, by their names


@dataclass(frozen=True)
class Choice:
    """How in-edges are drawn; this one draws all alike. A policy is a subclass: what it takes, it says once, here.

    Attributes:
        by: its name in a request; "" if no request names it.
        of_times: whether rows have times, at which they are drawn.
        every_type: whether each edge type that is sampled needs what is read, or one of them at least.
    """

    by: ClassVar[str] = ""
    of_times: ClassVar[bool] = False
    every_type: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        own = vars(cls).get("by", "")
        if own in _CARRIED:
            raise TypeError(
                f"Choice: {own!r} names {_CARRIED[own].__name__} already. Give {cls.__name__} another name."
            )
        if own:
            _CARRIED[own] = cls

    @property
    def reads(self) -> Choice | None:
        """The part of the choice that says which attributes are read, the key of KeptRows; None if nothing is read."""
        return None

    def check(self, where: str, graph: Attributed, edge_types: Sequence[Any]) -> None:
        """Raise TypeError or ValueError unless the edge types have what the choice reads."""

    def attributes(self, rows: Rows) -> dict[str, Tensor | None]:
        """Return the attributes that are read, by what they are called in errors, as the rows have them now."""
        return {}

    def make(self, where: str, edge_type: Any, rows: Rows) -> list[Tensor]:
        """Return the arrays that the kernel needs beside the attributes; [] if there is nothing to read. O(num_edges).

        Raises:
            TypeError, ValueError: The values cannot be drawn by; the message names the first wrong one.
            MemoryError: The arrays exceed the memory that is left.
        """
        return []

    def argument(self, rows: Rows, made: list[Tensor]) -> Any:
        """Return what the kernel takes of one edge type, given what `make` made; None if there is nothing to read."""
        return None

    def digests(self, rows: Rows, made: list[Tensor]) -> list[str] | None:
        """Return digests of the values that are read; those of parts add up. None if there is nothing to read."""
        return None

    def kernel(self, arguments: list[Any]) -> _core.Choice | None:
        """Return the choice as the kernels take it, given the argument of each edge type."""
        return None

    def keyed(self, rng: RngKey, num_hops: int, edge_types: Sequence[int], source_types: Sequence[int]) -> Keyed:
        """Return what a minibatch draws with.

        Args:
            rng: the random key of the stage at the minibatch.
            edge_types, source_types: of each edge type that is sampled: its place in `graph.edge_types`, and that of
                its source in `graph.node_types`.
        """
        return Keyed([[rng.hop_key(hop, number) for number in edge_types] for hop in range(num_hops)], self)

    def at(self, hop: int, places: Sequence[int]) -> Choice:
        """Return the record as a request carries it, of one hop and some of the edge types that are sampled."""
        return self

    def refuse_contradictions(self) -> None:
        """Raise ValueError if the fields of a record that came from elsewhere contradict each other."""

    def refuse_request(self, num_draws: int, *, replace: bool, has_streams: bool) -> None:
        """Raise ValueError if a request for so many draws says elsewhere what does not go with the choice."""

    def fingerprint(self, digests: Mapping[Any, list[str] | None]) -> dict[str, Any]:
        """Return what a sampler's fingerprint says of the choice, given the digests of each edge type."""
        return {}


UNIFORM = Choice()


def _read(name: str, value: Any) -> Choice:
    kind = value.get("by") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in _CARRIED:
        raise ValueError(f"{name} is {shown(value)}, it must be an object, by {' or '.join(sorted(_CARRIED))}")
    found = from_json(_CARRIED[kind], name, {key: each for key, each in value.items() if key != "by"})
    found.refuse_contradictions()
    return found


CHOICE = Form(_read, lambda choice: {"by": choice.by, **to_json(choice)})  # the JSON of a choice that a request carries


def refuse_no_tensor(what: str, kind: Any) -> None:
    """Raise TypeError if the dtype of a form is that of no tensor; the graph made tensors of all when it was built."""
    if not isinstance(kind, torch.dtype):
        raise TypeError(f"{what} must be a tensor, got {kind.__name__}. Set torch.as_tensor(values).")


def refuse_elsewhere(what: str, values: Tensor) -> None:
    """Raise ValueError if an attribute lies on a device."""
    if values.device.type != "cpu":
        raise ValueError(f"{what} must be in host memory, found it on {values.device}. Call .cpu().")


def form_of(values: Any) -> RowForm:
    """Return the form of the rows of an attribute, of which the user may have made anything."""
    return RowForm(values.dtype, tuple(values.shape[1:])) if isinstance(values, Tensor) else RowForm(type(values), ())


def forms_of(
    of_nodes: Mapping[Any, Mapping[str, Any]], of_edges: Mapping[Any, Mapping[str, Any]]
) -> dict[tuple[str, Any, str], RowForm]:
    """Return {("node" or "edge", type, name): RowForm}, given {type: {name: values}} of nodes and of edges."""
    return {
        (domain, of, name): form_of(values)
        for domain, types in (("node", of_nodes), ("edge", of_edges))
        for of, attributes in types.items()
        for name, values in attributes.items()
    }


def version(values: Any) -> int | None:
    """Return how often an attribute was changed in place; None if it is no tensor."""
    return version_of(values) if isinstance(values, Tensor) else None
