"""KeptRows: what choices have made of the rows of a graph or a part, each once; and Chosen, what one of them made.

Processes that a loader starts get it with the rows, in one memory; other copies make their own.
"""

from __future__ import annotations

import threading
from typing import Any

from torch import Tensor

from datapipes.graph.choice import Choice, Rows, version
from datapipes.processes.sharing import ForWorkers, Together

__all__: list[str] = []


class Chosen:
    """What a choice draws by in the rows of one edge type. Any thread may ask."""

    def __init__(self, choice: Choice, rows: Rows, made: list[Tensor], read: dict[str, Tensor | None]) -> None:
        self.made = made
        self._choice, self._rows, self._read = choice, rows, read
        self._versions = {what: version(values) for what, values in read.items()}
        self._argument: tuple[Any, list[int]] | None = None
        self._digests: tuple[list[str] | None] | None = None

    def argument(self) -> Any:
        """Return what the kernel takes; made again when the memory of a tensor has moved."""
        places = [tensor.data_ptr() for tensor in (*self.made, *self._read.values()) if tensor is not None]
        found = self._argument
        if found is None or found[1] != places:
            found = self._argument = self._choice.argument(self._rows, self.made), places
        return found[0]

    def digests(self) -> list[str] | None:
        """Return what names the values in a fingerprint; computed once."""
        found = self._digests
        if found is None:
            found = self._digests = (self._choice.digests(self._rows, self.made),)
        return found[0]

    def is_of(self, now: dict[str, Tensor | None]) -> bool:
        """Whether it was made of these attributes, and they were not changed in place since."""
        return all(
            now[what] is values and version(values) == self._versions[what] for what, values in self._read.items()
        )

    def refuse_change(self, where: str, now: dict[str, Tensor | None]) -> None:
        """Raise ValueError if the attributes are not those that it was made of, as they were then."""
        for what, values in self._read.items():
            if now[what] is not values:
                change, more = "replaced by another tensor", ""
            elif version(values) != self._versions[what]:
                change, more = "changed in place", " A change of a tensor that they are a view of counts too."
            else:
                continue
            raise ValueError(
                f"{where}: the {what} were {change} after the stage was built, which keeps what it made of them. Build "
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
        return {**self._came, **{key: each.made for key, each in [*self._kept.items()]}}

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the state with all tensors together, so that they reach workers in one memory; others get none."""
        with self._making:
            made = self._made()
        counts = {key: len(tensors) for key, tensors in made.items()}
        return _restored, (counts, ForWorkers([tensor for tensors in made.values() for tensor in tensors]))


def _restored(counts: dict[Any, int], given: Any) -> KeptRows:
    came = given.tensors if isinstance(given, Together) else given  # copy.copy pickles nothing
    tensors = iter(came)
    return KeptRows({key: [next(tensors) for _ in range(count)] for key, count in counts.items()} if came else {})
