"""TFRecordLoadError: a graph was not loaded; which entities, or which rank, failed, and how."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["TFRecordLoadError"]

WHERE = "load_torch_tensors_from_tf_record"
MOST_TEXT = 10_000  # characters of each end of a text that goes to another process


class TFRecordLoadError(ValueError):
    """A graph was not loaded from its TFRecords. The processes that loaded it have ended, and their memory is free.

    The text has what `failures` has, with the tracebacks.

    Attributes:
        failures: {entity: how it failed}, for each of "node", "edge", "positive_label" and "negative_label" that failed
            by itself: the traceback of its process, or the signal that killed it.
        failed_ranks: {rank: how it failed}, where other ranks have failed and this one has stopped with them.
    """

    def __init__(
        self, message: str, failures: Mapping[str, str] | None = None, failed_ranks: Mapping[int, str] | None = None
    ) -> None:
        super().__init__(message, dict(failures or {}), dict(failed_ranks or {}))
        self.failures: dict[str, str] = self.args[1]
        self.failed_ranks: dict[int, str] = self.args[2]

    def __str__(self) -> str:
        return str(self.args[0])

    @classmethod
    def of_entities(cls, rank: int, failures: Mapping[str, str], stopped: list[str]) -> TFRecordLoadError:
        """Return the error for entities that failed, of which others were stopped."""
        also = f" It has stopped the others: {', '.join(stopped)}." if stopped else ""
        texts = [f"{entity}: {text}" for entity, text in failures.items()]
        head = f"{WHERE}: rank {rank} could not load {', '.join(failures)}.{also} Correct what the texts below name."
        return cls("\n\n".join([head, *texts]), failures)

    @classmethod
    def of_ranks(
        cls, rank: int, failed: Mapping[int, str], where: str = WHERE, how: str = "failed to load"
    ) -> TFRecordLoadError:
        """Return the error of a rank that stops since others have failed."""
        names = ", ".join(f"rank {each}" for each in failed)
        also = f", so rank {rank} has stopped too" if rank not in failed else ""
        head = f"{where}: {names} {how}{also}. Correct what the texts below name."
        return cls("\n\n".join([head, *(f"rank {each}: {text}" for each, text in failed.items())]), None, failed)


def ends_of(text: str) -> str:
    """Return a text for another process, short enough for a pipe to take at once: nobody waits for its rest."""
    return text if len(text) <= 2 * MOST_TEXT else f"{text[:MOST_TEXT]}\n...\n{text[-MOST_TEXT:]}"
