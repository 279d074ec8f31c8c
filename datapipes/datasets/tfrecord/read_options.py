"""TFDatasetOptions: how the files of an entity are read."""

from __future__ import annotations

from dataclasses import dataclass

from datapipes.base.checks import check_bool, check_int, shown

__all__ = ["TFDatasetOptions"]

_PARALLEL_READS = 64
_RAM_BUDGET = 0.5
_LEAST_BUFFER = 16  # bytes; framing alone has as many


@dataclass(frozen=True)
class TFDatasetOptions:
    """How the files of an entity are read. Fields and defaults are GiGL's. No field changes the result.

    Attributes:
        batch_size: records per step of the progress log; see `log_every_n_batch`. Memory does not depend on it.
        file_buffer_size: bytes of the longest record that is read, framing included; a longer one is an error. The
            buffer of a reading thread begins with 256 KiB, or with this if it is less, and doubles for longer records;
            while it grows, the old one is held too.
        deterministic: the order of rows is always that of the files by name and of the records in them, so both
            values are met.
        use_interleave: read with as many threads as torch uses (`torch.get_num_threads()`), a file each.
        num_parallel_file_reads: number of these threads if `use_interleave` is False. With True it has no effect, so
            only its default is allowed then.
        ram_budget_multiplier: share of the memory that TensorFlow may use for its buffers. Here a thread has one
            buffer, so only the default is allowed.
        log_every_n_batch: log a line of INFO each `batch_size * log_every_n_batch` records.
    Raises:
        TypeError, ValueError: A field has a value that is not allowed, or that can have no effect.
    """

    batch_size: int = 10_000
    file_buffer_size: int = 100 * 2**20
    deterministic: bool = False
    use_interleave: bool = True
    num_parallel_file_reads: int = _PARALLEL_READS
    ram_budget_multiplier: float = _RAM_BUDGET
    log_every_n_batch: int = 1000

    def __post_init__(self) -> None:
        where = type(self).__name__
        check_int(where, "batch_size", self.batch_size, 1)
        check_int(where, "file_buffer_size", self.file_buffer_size, _LEAST_BUFFER)
        check_bool(where, "deterministic", self.deterministic)
        check_bool(where, "use_interleave", self.use_interleave)
        check_int(where, "num_parallel_file_reads", self.num_parallel_file_reads, 1)
        check_int(where, "log_every_n_batch", self.log_every_n_batch, 1)
        if self.use_interleave and self.num_parallel_file_reads != _PARALLEL_READS:
            raise ValueError(
                f"{where}: num_parallel_file_reads={self.num_parallel_file_reads} has no effect with "
                f"use_interleave=True, which takes as many threads as torch uses. Leave it at {_PARALLEL_READS}, or "
                "set use_interleave=False."
            )
        if self.ram_budget_multiplier != _RAM_BUDGET:
            raise ValueError(
                f"{where}: ram_budget_multiplier={shown(self.ram_budget_multiplier)} has no effect here; only "
                f"{_RAM_BUDGET} is allowed. Leave it out. file_buffer_size bounds the memory of a thread."
            )
