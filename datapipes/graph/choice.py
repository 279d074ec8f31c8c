"""Choice: how the in-edges of a node are drawn. The base of the policies in sampling/, and the uniform one.

A choice is a value, what the user asked for. For a minibatch it makes keys, and the record that a request carries. From
rows it makes what the kernel draws by, and what names it in a fingerprint; the rows may be those of a whole graph or of
a part (`Rows`). docs/semantics.md, section 3.

KeptRows keeps what choices have made of rows, each once, as Chosen. Processes that a loader starts get it with the
rows, in one memory; other copies make their own.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.array_digest import version_of
from datapipes.base.checks import dtype_name, shown
from datapipes.base.codec import join_key
from datapipes.base.records import Form, from_json, to_json
from datapipes.base.rng import RngKey
from datapipes.base.threads import num_threads
from datapipes.graph.npy import to_numpy
from datapipes.processes.sharing import ForWorkers, Together

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

    def times_of_sources(self, name: str, out: Tensor | None = None) -> Tensor:
        """Return the times of the sources, int64 [num_edges], in `out` if given; what is stored so is not copied."""


_CARRIED: dict[str, type[Choice]] = {}  # the records that a request may have, by their names


@dataclass(frozen=True)
class Choice:
    """How in-edges are drawn: the base of the policies, and itself the uniform one (each in-edge is equally likely).

    A subclass declares which attributes it reads, and how the kernel gets them. One class has three uses: what the user
    asked for; the part of it that names attributes (`reads`), by which prepared arrays are kept; and the record that a
    request carries (`keyed`, `at`).

    Attributes:
        by: its name in a request; "" if no request names it.
        of_times: whether each seed must have a time.
        every_type: True: each sampled edge type must have the attribute that is read; False: at least one must.
    """

    by: ClassVar[str] = ""
    of_times: ClassVar[bool] = False
    every_type: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        name = vars(cls).get("by", "")
        if name in _CARRIED:
            raise TypeError(
                f"Choice: {name!r} names {_CARRIED[name].__name__} already. Give {cls.__name__} another name."
            )
        if name:
            _CARRIED[name] = cls

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
        """Return the arrays that the kernel draws by, beside the attributes or in their place; [] if nothing is read.

        O(num_edges).

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

    def keyed(
        self, rng: RngKey, num_hops: int, edge_numbers: Sequence[int], source_numbers: Sequence[int]
    ) -> tuple[list[list[int]], Choice]:
        """Return what a minibatch draws with: a uint64 of each hop and edge type, and the record of requests.

        Args:
            rng: the random key of the stage at the minibatch.
            edge_numbers, source_numbers: of each edge type that is sampled: its place in `graph.edge_types`, and that
                of its source in `graph.node_types`.
        """
        return [[rng.hop_key(hop, number) for number in edge_numbers] for hop in range(num_hops)], self

    def at(self, hop: int, places: Sequence[int]) -> Choice:
        """Return the record as a request carries it, of one hop and some of the edge types that are sampled."""
        return self

    def refuse_contradictions(self) -> None:
        """Raise ValueError if the fields of a record that came from elsewhere contradict each other."""

    def refuse_request(self, num_draws: int, *, replace: bool, has_streams: bool) -> None:
        """Raise ValueError if `num_draws`, `replace` or `has_streams` of a request contradict the choice."""

    def fingerprint(self, digests: Mapping[Any, list[str] | None]) -> dict[str, Any]:
        """Return what a sampler's fingerprint says of the choice, given the digests of each edge type."""
        return {}


UNIFORM = Choice()


def _read(name: str, value: Any) -> Choice:
    kind = value.get("by") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in _CARRIED:
        raise ValueError(f"{name} is {shown(value)}, it must be an object, by {' or '.join(sorted(_CARRIED))}")
    choice = from_json(_CARRIED[kind], name, {key: field for key, field in value.items() if key != "by"})
    choice.refuse_contradictions()
    return choice


CHOICE = Form(_read, lambda choice: {"by": choice.by, **to_json(choice)})  # the JSON of a choice that a request carries


def check_form(
    name: str, form: RowForm, dtypes: Sequence[torch.dtype], size: Any, *, convert: str = "Convert it.", anew: str = ""
) -> None:
    """Refuse an attribute of another dtype, or with more than one number in a row; `size` says how many rows it has."""
    kind, shape = form
    if not isinstance(kind, torch.dtype):  # the graph made tensors of all when it was built
        raise TypeError(f"{name} must be a tensor, got {kind.__name__}. Set torch.as_tensor(values).")
    if kind not in dtypes:
        allowed = f"{'one of ' if len(dtypes) > 1 else ''}{', '.join(map(dtype_name, dtypes))}"
        raise TypeError(f"{name} must be {allowed}, got {dtype_name(kind)}. {convert}{anew}")
    if shape != ():
        sizes = ", ".join(map(str, (size, *shape)))
        raise ValueError(f"{name} must have shape [{size}], one number for each, got [{sizes}]. Give so.{anew}")


def check_values(
    name: str, values: Any, dtypes: Sequence[torch.dtype], count: int, *, convert: str = "Convert it."
) -> None:
    """Refuse values that are not `count` numbers in host memory, of one of the dtypes."""
    check_form(name, form_of(values)._replace(shape=()), dtypes, count, convert=convert)
    if tuple(values.shape) != (count,):
        raise ValueError(f"{name} must have shape [{count}], one number for each, got {list(values.shape)}. Give so.")
    if values.device.type != "cpu":
        raise ValueError(f"{name} must be in host memory, found it on {values.device}. Call .cpu().")


def form_of(values: Any) -> RowForm:
    """Return the form of the rows of an attribute, of which the user may have made anything."""
    return RowForm(values.dtype, tuple(values.shape[1:])) if isinstance(values, Tensor) else RowForm(type(values), ())


def forms_of(
    of_nodes: Mapping[Any, Mapping[str, Any]], of_edges: Mapping[Any, Mapping[str, Any]]
) -> dict[tuple[str, Any, str], RowForm]:
    """Return {("node" or "edge", type, name): RowForm}, given {type: {name: values}} of nodes and of edges."""
    return {
        (domain, type_, name): form_of(values)
        for domain, types in (("node", of_nodes), ("edge", of_edges))
        for type_, attributes in types.items()
        for name, values in attributes.items()
    }


def version(values: Any) -> int | None:
    """Return how often an attribute was changed in place; None if it is no tensor."""
    return version_of(values) if isinstance(values, Tensor) else None


# --- what choices have made


class Chosen:
    """What a choice draws by in the rows of one edge type. Any thread may ask."""

    def __init__(self, choice: Choice, rows: Rows, made: list[Tensor], read: dict[str, Tensor | None]) -> None:
        self.made = made
        self._choice, self._rows, self._read = choice, rows, read
        self._versions = {name: version(values) for name, values in read.items()}
        self._argument: tuple[Any, list[int]] | None = None
        self._digests: tuple[list[str] | None] | None = None

    def argument(self) -> Any:
        """Return what the kernel takes; made again when the memory of a tensor has moved."""
        places = [tensor.data_ptr() for tensor in (*self.made, *self._read.values()) if tensor is not None]
        argument = self._argument
        if argument is None or argument[1] != places:
            argument = self._argument = self._choice.argument(self._rows, self.made), places
        return argument[0]

    def digests(self) -> list[str] | None:
        """Return what names the values in a fingerprint; computed once."""
        if self._digests is None:
            self._digests = (self._choice.digests(self._rows, self.made),)
        return self._digests[0]

    def is_of(self, now: dict[str, Tensor | None]) -> bool:
        """Whether it was made of these attributes, and they were not changed in place since."""
        return all(
            now[name] is values and version(values) == self._versions[name] for name, values in self._read.items()
        )

    def refuse_change(self, where: str, rows: Rows) -> None:
        """Raise ValueError if the attributes are not those that it was made of, as they were then."""
        now = self._choice.attributes(rows)
        for name, values in self._read.items():
            if now[name] is not values:
                change, more = "replaced by another tensor", ""
            elif version(values) != self._versions[name]:
                change, more = "changed in place", " A change of a tensor that they are a view of counts too."
            else:
                continue
            raise ValueError(
                f"{where}: the {name} were {change} after the stage was built, which keeps what it made of them. Build "
                f"the stage again after the change.{more}"
            )


class KeptRows:
    """What choices have made of rows, by what they read and edge type."""

    def __init__(self, came: dict[Any, list[Tensor]] | None = None) -> None:
        self._kept: dict[Any, Chosen] = {}
        self._came = came or {}  # from the process that started this one
        self._making = threading.Lock()  # a server's threads share what is made

    @property
    def num_bytes(self) -> int:
        """Bytes of memory of what was made."""
        return sum(tensor.nbytes for made in self._made().values() for tensor in made)

    def __contains__(self, key: tuple[Choice, Any]) -> bool:
        """Whether something is made for what is read of an edge type."""
        return key in self._kept or key in self._came

    def get(self, where: str, reads: Choice, edge_type: Any, rows: Rows) -> Chosen:
        """Return what is made of the rows; made when the attributes are others than before, or were changed in place.

        Args:
            where: who asks, for errors.
            reads: `choice.reads`.
        Raises:
            As `Choice.make` does.
        """
        key, now = (reads, edge_type), reads.attributes(rows)
        kept = self._kept.get(key)
        if kept is not None and kept.is_of(now):
            return kept  # without the lock: others may be making something else, for long
        with self._making:
            kept = self._kept.get(key)
            if kept is None or not kept.is_of(now):
                made = self._came.pop(key, None)
                if made is None:
                    made = reads.make(where, edge_type, rows)
                kept = self._kept[key] = Chosen(reads, rows, made, now)
            return kept

    def _made(self) -> dict[Any, list[Tensor]]:
        return {**self._came, **{key: chosen.made for key, chosen in [*self._kept.items()]}}

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the state with all tensors together, so that they reach workers in one memory; others get none."""
        with self._making:
            made = self._made()
        counts = {key: len(tensors) for key, tensors in made.items()}
        return _restored, (counts, ForWorkers([tensor for tensors in made.values() for tensor in tensors]))


def _restored(counts: dict[Any, int], made: Any) -> KeptRows:
    came = made.tensors if isinstance(made, Together) else made  # copy.copy pickles nothing
    tensors = iter(came)
    return KeptRows({key: [next(tensors) for _ in range(count)] for key, count in counts.items()} if came else {})


# --- digests of what is read


def rows_digest(values: Tensor, indptr: Tensor | None = None, *, node_ids: Tensor | None = None) -> str:
    """Return the digest "DTYPE:HEX" of values of 1, 2, 4 or 8 bytes each; their bits count. O(number of values).

    It is a sum over rows in any order (csrc/graph/rows_digest.h), so the digests of the parts of a graph add up to that
    of the whole graph: a state can be saved on one machine and resumed over parts.

    Args:
        values: [num_edges] in the order of the rows; or, without `indptr`, [num_nodes].
        indptr: int64 [num_rows + 1], where the values of each row begin.
        node_ids: int64 [num_rows], the node of each row; by default its number. A part gives those of its own nodes.
    """
    high, low = _core.rows_digest(
        None if indptr is None else indptr.numpy(),
        to_numpy(values),
        node_ids=None if node_ids is None else node_ids.numpy(),
        num_threads=num_threads(),
    )
    return _digest_text(dtype_name(values.dtype), high * 2**64 + low)


def sum_of_digests(digests: Iterable[str]) -> str:
    """Return the digest of the whole, given those of its parts; they are of one dtype, and there is at least one."""
    pairs = [digest.split(":") for digest in digests]
    names = {name for name, _ in pairs}
    if len(names) != 1:
        raise ValueError(
            f"rows_digest: the parts hold values of the dtypes {sorted(names)}; all must hold one. Partition the graph "
            "again."
        )
    return _digest_text(names.pop(), sum(int(number, 16) for _, number in pairs))


def _digest_text(dtype: str, number: int) -> str:
    return f"{dtype}:{number % 2**128:032x}"


def by_text(digests: Mapping[Any, Any]) -> Any:
    """Return {type: digests} as a fingerprint has it: with types by their texts, else those of None."""
    return digests[None] if None in digests else {join_key(type_): values for type_, values in digests.items()}
