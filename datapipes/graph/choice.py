"""Choice: how the in-edges of a node are drawn. The base of all policies in sampling/, and the uniform policy itself.

A Choice has the user's arguments. For each minibatch it makes the random keys, and the Choice that requests carry. From
the in-edges of a graph or a part (`Rows`) it makes the kernel's arrays and their digests. docs/semantics.md, section 3.

KeptRows caches these arrays, as Chosen, so each array is made once. Worker processes of a loader get the arrays with
the graph, in one shared memory; other pickled copies of a graph make their own arrays.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor

from datapipes import _core
from datapipes.base.array_digest import version_of
from datapipes.base.checks import dtype_name, shown
from datapipes.base.codec import join_key
from datapipes.base.forms import RowForm, form_of
from datapipes.base.records import Form, from_json, to_json
from datapipes.base.rng import RngKey
from datapipes.base.threads import num_threads
from datapipes.graph.npy import to_numpy
from datapipes.processes.sharing import ForWorkers


class Attributed(Protocol):
    """What `Choice.check` may read of a graph or part: whether it has types; attributes' dtypes and row shapes only."""

    @property
    def is_heterogeneous(self) -> bool:
        """Whether nodes and edges have types."""

    _anew: str  # a sentence that errors append to the advice to change an attribute

    def forms(self) -> Mapping[tuple[str, Any, str], Any]:
        """Return {("node" or "edge", type or None, name): RowForm} of all attributes."""

    def _refuse_source_times(self, where: str, name: str) -> None:
        """Raise ValueError if it cannot read the node attribute `name` as the times of the sources of in-edges."""


class Edges(Protocol):
    """In-edges of one edge type in CSC arrays: for all nodes of a graph, or for the nodes that a part owns."""

    @property
    def indptr(self) -> Tensor:
        """int64 [num_rows + 1]: row i has the in-edges [indptr[i], indptr[i + 1]). In a graph, row i is node i."""

    @property
    def indices(self) -> Tensor:
        """int32 or int64 [num_edges], the source of each in-edge."""

    @property
    def edge_attributes(self) -> Mapping[str, Tensor]:
        """{name: values [num_edges, ...]}, in the order of `indices`."""


class Rows(Edges, Protocol):
    """In-edges, and the attributes of their sources: what a Choice reads to make the arrays for the kernel."""

    @property
    def node_ids(self) -> Tensor | None:
        """int64 [num_rows]: row i has the in-edges of the node node_ids[i]. None: row i is node i."""

    @property
    def num_source_values(self) -> int:
        """Length of what `source_attribute` returns: the number of source nodes in a graph, of in-edges in a part."""

    def source_attribute(self, name: str) -> Tensor | None:
        """Return the values of a node attribute for the sources: one value for each source node in a graph, one for
        each in-edge in a part. None: there is no such attribute.
        """

    def times_of_sources(self, name: str, out: Tensor | None = None) -> Tensor:
        """Return the time of each in-edge's source, int64 [num_edges], from a node attribute; in `out` if given."""


_CARRIED: dict[str, type[Choice]] = {}  # {by: class} of the choices that a request may carry


@dataclass(frozen=True)
class Choice:
    """A policy for drawing in-edges. This base class is the uniform policy: each in-edge of a node is equally likely.

    A subclass says which attributes it reads, and what the kernel gets. A Choice is used in three ways: as the user's
    arguments; reduced to the names of attributes (`reads`), as a key of KeptRows; and in requests, to tell another
    server how to draw (`keyed`, `at`).

    Attributes:
        by: the name of the class in requests; "" if requests never carry it.
        of_times: whether each seed must have a time.
    """

    by: ClassVar[str] = ""
    of_times: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        name = vars(cls).get("by", "")
        if name in _CARRIED:
            raise TypeError(
                f"Choice: {name!r} names {_CARRIED[name].__name__} already. Give {cls.__name__} another name."
            )
        if name:
            _CARRIED[name] = cls

    @property
    def window_field(self) -> str | None:
        """The field of a minibatch that has a time window for each seed; None: seeds have no windows of their own."""
        return None

    @property
    def reads(self) -> Choice | None:
        """A Choice with only the names of the attributes that this one reads; a key of KeptRows. None: no attribute."""
        return None

    def check(self, where: str, graph: Attributed, edge_types: Sequence[Any], among: Any = None) -> None:
        """Raise TypeError or ValueError if `edge_types` lack what each needs, or `among` (None: they) what one must."""

    def attributes(self, rows: Rows) -> dict[str, Tensor | None]:
        """Return the attributes that this Choice reads, {name for errors: values}; the values are those in `rows`."""
        return {}

    def make(self, where: str, edge_type: Any, rows: Rows) -> list[Tensor]:
        """Return the arrays that the kernel needs besides the attributes; [] if this Choice reads no attribute.

        Time O(num_edges).

        Raises:
            TypeError, ValueError: A value is not allowed; the message names the first such value.
            MemoryError: The arrays exceed the memory that is left.
        """
        return []

    def argument(self, rows: Rows, made: list[Tensor]) -> Any:
        """Return what the kernel gets for one edge type; `made` is the result of `make`. None: no attribute is read."""
        return None

    def digests(self, rows: Rows, made: list[Tensor]) -> list[str] | None:
        """Return the rows_digest of each attribute that is read; `made` is the result of `make`. None: no digests."""
        return None

    def kernel(self, arguments: list[Any]) -> _core.Choice | None:
        """Return this policy as the C++ core takes it, given `argument` of each edge type. None: the uniform policy."""
        return None

    def keyed(
        self, rng: RngKey, num_hops: int, edge_numbers: Sequence[int], source_numbers: Sequence[int]
    ) -> tuple[list[list[int]], Choice]:
        """Return (keys, choice): a uint64 random key for each hop and edge type, and the Choice to send with this
        minibatch's requests to other parts.

        Args:
            rng: the random key of the stage at the minibatch.
            edge_numbers, source_numbers: for each sampled edge type, its position in `graph.edge_types`, and the
                position of its source type in `graph.node_types`.
        """
        return [[rng.hop_key(hop, number) for number in edge_numbers] for hop in range(num_hops)], self

    def at(self, hop: int, places: Sequence[int]) -> Choice:
        """Return the Choice to send with the requests of hop `hop`; `places` are the positions of its edge types."""
        return self

    def refuse_contradictions(self) -> None:
        """Raise ValueError if fields of this Choice, which came in a request, contradict each other."""

    def refuse_request(self, num_draws: int, *, replace: bool, has_streams: bool) -> None:
        """Raise ValueError if `num_draws`, `replace` or `has_streams` of the same request contradict this Choice."""

    def fingerprint(self, digests: Mapping[Any, list[str] | None]) -> dict[str, Any]:
        """Return what this Choice adds to a sampler's fingerprint; `digests` is {edge type: result of `digests`}."""
        return {}


UNIFORM = Choice()


def _read(name: str, value: Any) -> Choice:
    kind = value.get("by") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in _CARRIED:
        raise ValueError(f"{name} is {shown(value)}; it must be an object whose 'by' is one of {sorted(_CARRIED)}")
    choice = from_json(_CARRIED[kind], name, {key: field for key, field in value.items() if key != "by"})
    choice.refuse_contradictions()
    return choice


CHOICE = Form(_read, lambda choice: {"by": choice.by, **to_json(choice)})  # the JSON of a choice that a request carries


def forms_of(
    of_nodes: Mapping[Any, Mapping[str, Any]], of_edges: Mapping[Any, Mapping[str, Any]]
) -> dict[tuple[str, Any, str], RowForm]:
    """Return {("node" or "edge", type, name): RowForm} for the attributes {type: {name: values}} of nodes and edges."""
    return {
        (domain, type_, name): form_of(values)
        for domain, types in (("node", of_nodes), ("edge", of_edges))
        for type_, attributes in types.items()
        for name, values in attributes.items()
    }


def version(values: Any) -> int | None:
    """Return torch's count of in-place changes of an attribute. None: the attribute is no tensor."""
    return version_of(values) if isinstance(values, Tensor) else None


# --- the arrays that choices have made


class Chosen:
    """Arrays that a Choice made for the kernel, for one edge type, and the attributes that it read. Thread-safe."""

    def __init__(self, choice: Choice, rows: Rows, made: list[Tensor], read: dict[str, Tensor | None]) -> None:
        self.made = made
        self._choice, self._rows, self._read = choice, rows, read
        self._versions = {name: version(values) for name, values in read.items()}
        self._argument: tuple[Any, list[int]] | None = None
        self._digests: tuple[list[str] | None] | None = None

    def argument(self) -> Any:
        """Return the result of `Choice.argument`. It is cached, and made again if a tensor's memory has moved."""
        places = [tensor.data_ptr() for tensor in (*self.made, *self._read.values()) if tensor is not None]
        argument = self._argument
        if argument is None or argument[1] != places:
            argument = self._argument = self._choice.argument(self._rows, self.made), places
        return argument[0]

    def digests(self) -> list[str] | None:
        """Return the result of `Choice.digests`, computed once."""
        if self._digests is None:
            self._digests = (self._choice.digests(self._rows, self.made),)
        return self._digests[0]

    def is_of(self, now: dict[str, Tensor | None]) -> bool:
        """Whether the arrays were made from the attributes `now`, and none of these has changed in place since."""
        return all(
            now[name] is values and version(values) == self._versions[name] for name, values in self._read.items()
        )

    def refuse_change(self, where: str, rows: Rows) -> None:
        """Raise ValueError if the attributes were replaced or changed since the arrays were made."""
        now = self._choice.attributes(rows)
        for name, values in self._read.items():
            if now[name] is not values:
                change, more = "replaced by another tensor", ""
            elif version(values) != self._versions[name]:
                change, more = "changed in place", " A change of other tensors that share their memory counts too."
            else:
                continue
            raise ValueError(
                f"{where}: the {name} were {change} after the stage was built, but the stage draws from arrays that it "
                f"made of them then. Build the stage again.{more}"
            )


class KeptRows:
    """Cache of the arrays that policies made for the kernel. The keys are (`Choice.reads`, edge type)."""

    def __init__(self, came: dict[Any, list[Tensor]] | None = None) -> None:
        self._kept: dict[Any, Chosen] = {}
        self._came = came or {}  # arrays that the process that started this one has made
        self._making = threading.Lock()  # a server's threads share the arrays

    @property
    def num_bytes(self) -> int:
        """Bytes of all made arrays."""
        return sum(tensor.nbytes for made in self._made().values() for tensor in made)

    def __contains__(self, key: tuple[Choice, Any]) -> bool:
        """Whether the cache has arrays for (`Choice.reads`, edge type)."""
        return key in self._kept or key in self._came

    def get(self, where: str, reads: Choice, edge_type: Any, rows: Rows) -> Chosen:
        """Return the arrays for one edge type. If there are none, or the attributes have changed, make them, with the
        errors of `Choice.make`.

        Args:
            where: the caller, for errors.
            reads: `Choice.reads`: the policy with only the names of the attributes that it reads.
        """
        key, now = (reads, edge_type), reads.attributes(rows)
        kept = self._kept.get(key)
        if kept is not None and kept.is_of(now):
            return kept  # without the lock, which another thread may hold for long, while it makes arrays
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
        """Pickle all cached tensors as one, so that workers share one memory; a copy for another use has no cache."""
        with self._making:
            made = self._made()
        counts = {key: len(tensors) for key, tensors in made.items()}
        return _restored, (counts, ForWorkers([tensor for tensors in made.values() for tensor in tensors]))


def _restored(counts: dict[Any, int], made: Any) -> KeptRows:
    came = [*made]  # [] after a plain pickle or a deep copy
    tensors = iter(came)
    return KeptRows({key: [next(tensors) for _ in range(count)] for key, count in counts.items()} if came else {})


# --- digests of the values that are read


def rows_digest(values: Tensor, indptr: Tensor | None = None, *, node_ids: Tensor | None = None) -> str:
    """Return the digest "DTYPE:HEX" of the bits of `values`, of 1, 2, 4 or 8 bytes each. Time O(number of values).

    The digest is a sum over rows in any order (csrc/graph/rows_digest.h), so the digests of the parts of a graph add up
    to the digest of the whole graph: a state can be saved on one machine and resumed over parts.

    Args:
        values: with `indptr` [num_edges], row by row; without `indptr` [num_nodes].
        indptr: int64 [num_rows + 1], where the values of each row begin.
        node_ids: int64 [num_rows], the node of each row, for the rows of a part; None: row i is node i.
    """
    high, low = _core.rows_digest(
        None if indptr is None else indptr.numpy(),
        to_numpy(values),
        node_ids=None if node_ids is None else node_ids.numpy(),
        num_threads=num_threads(),
    )
    return _digest_text(dtype_name(values.dtype), high * 2**64 + low)


def sum_of_digests(digests: Iterable[str]) -> str:
    """Return the digest of the whole graph's values from the rows_digest of each part: one or more, of one dtype."""
    pairs = [digest.split(":") for digest in digests]
    names = {name for name, _ in pairs}
    if len(names) != 1:
        raise ValueError(
            f"rows_digest: the parts hold values of the dtypes {sorted(names)}; all must hold one dtype. Partition the "
            "graph again."
        )
    return _digest_text(names.pop(), sum(int(number, 16) for _, number in pairs))


def _digest_text(dtype: str, number: int) -> str:
    return f"{dtype}:{number % 2**128:032x}"


def by_text(digests: Mapping[Any, Any]) -> Any:
    """Return {type as text: digests} for a fingerprint. Without types return the digests alone."""
    return digests[None] if None in digests else {join_key(type_): values for type_, values in digests.items()}
