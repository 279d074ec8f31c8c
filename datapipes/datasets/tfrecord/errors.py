"""TFRecordLoadError: a graph was not loaded; which entities, or which rank, failed, and how."""

from __future__ import annotations

from collections.abc import Mapping

from datapipes.partition.across_ranks.ranks import RankError

__all__ = ["TFRecordLoadError"]

WHERE = "load_torch_tensors_from_tf_record"


class TFRecordLoadError(RankError):
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
        super().__init__(message, failed_ranks)
        self.failures: dict[str, str] = dict(failures or {})
        self.args = message, self.failures, self.failed_ranks  # what a pickle makes it of

    @classmethod
    def of_entities(cls, rank: int, failures: Mapping[str, str], stopped: list[str]) -> TFRecordLoadError:
        """Return the error for entities that failed, of which others were stopped."""
        also = f" It has stopped the others: {', '.join(stopped)}." if stopped else ""
        texts = [f"{entity}: {text}" for entity, text in failures.items()]
        head = f"{WHERE}: rank {rank} could not load {', '.join(failures)}.{also} Correct what the texts below name."
        return cls("\n\n".join([head, *texts]), failures)
