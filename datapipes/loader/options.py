"""The options of a DataLoader: checked once, frozen, and handed whole to every pass and to the workers.

Options that contradict each other are refused. With workers, an option other than `overlap` that has no effect in the
plan of the chain is refused, too. With num_workers=0 it is allowed, for sweeps of `num_workers`, and logged at level
INFO.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from datapipes.base.checks import INT64_MAX, check_bool, check_choice, check_int, check_positive_timeout, shown
from datapipes.base.log import logger
from datapipes.base.sizes import parse_size
from datapipes.chain.stage import Stage
from datapipes.channel import ChannelBase
from datapipes.device.gather import MAX_UVA_THREADS
from datapipes.processes.start import check_context

WHERE = "data_loader"  # how errors name the DataLoader
CHANNELS = ("shm", "mp")
LEAST_SHM_SIZE = 2**16  # bytes: room for errors too
MOST_AHEAD = 2**17  # minibatches that all workers may make ahead; a channel holds 2**20 messages
_BOUNDS = (
    *(("num_workers", 0, 4096), ("max_uva_threads", 1, INT64_MAX)),
    *(("prefetch_factor", 1, INT64_MAX), ("max_restarts", 0, INT64_MAX)),
)
OF_WORKERS = (
    *("persistent_workers", "worker_method", "in_order", "multiprocessing_context", "worker_init_fn", "channel"),
    *("shm_size", "max_restarts", "cut"),
)
OF_THREADS = ("overlap", "prefetch_factor", "timeout")
OF_PROCESSES = ("multiprocessing_context", "channel", "shm_size", "max_restarts")


@dataclass(frozen=True)
class LoaderOptions:
    """The arguments of DataLoader besides the chain. The docstring of DataLoader describes each of them.

    Raises:
        TypeError, ValueError: An option is not allowed, or cannot take effect beside the other options.
    """

    num_workers: int = 0
    persistent_workers: bool = True
    max_uva_threads: int = MAX_UVA_THREADS
    worker_method: str = "process"
    prefetch_factor: int = 2
    in_order: bool = True
    timeout: float | None = 120.0
    multiprocessing_context: Any = None
    worker_init_fn: Callable[[int], None] | None = None
    channel: str | ChannelBase = "shm"
    shm_size: int | str | None = None
    max_restarts: int = 3
    cut: str | type[Stage] = "fetch_feature"
    overlap: bool | None = None

    def __post_init__(self) -> None:
        for name, least, most in _BOUNDS:
            object.__setattr__(self, name, check_int(WHERE, name, getattr(self, name), least, most))
        ahead = self.num_workers * (self.prefetch_factor + 1)
        if ahead > MOST_AHEAD:
            raise ValueError(
                f"{WHERE}: num_workers={self.num_workers} with prefetch_factor={self.prefetch_factor} would make "
                f"{ahead} minibatches ahead; at most {MOST_AHEAD} are allowed. Lower one of them."
            )
        check_bool(WHERE, "persistent_workers", self.persistent_workers)
        check_choice(WHERE, "worker_method", self.worker_method, ("process", "thread"))
        check_bool(WHERE, "in_order", self.in_order)
        check_positive_timeout(WHERE, self.timeout)
        check_context(self.multiprocessing_context)
        if self.worker_init_fn is not None and not callable(self.worker_init_fn):
            raise TypeError(
                f"{WHERE}: worker_init_fn must be callable, got {type(self.worker_init_fn).__name__}. Pass a function "
                "of the worker's number."
            )
        if not isinstance(self.channel, ChannelBase):
            check_choice(WHERE, "channel", self.channel, CHANNELS)
        if self.shm_size is not None:
            size = check_int(WHERE, "shm_size", parse_size(WHERE, "shm_size", self.shm_size), LEAST_SHM_SIZE)
            object.__setattr__(self, "shm_size", size)
        if self.overlap is not None:
            check_bool(WHERE, "overlap", self.overlap)
        if self.shm_size is not None and self.channel != "shm":
            raise ValueError(
                f"{WHERE}: shm_size={self.shm_size} is the size of the channel 'shm', but channel is "
                f"{shown(self.channel)}. Leave one of them out."
            )
        of_processes = [name for name in self.changed() if name in OF_PROCESSES]
        if self.worker_method == "thread" and of_processes:
            raise ValueError(
                f"{WHERE}: {of_processes} belong to worker processes, but worker_method is 'thread'. Leave them out."
            )

    def changed(self) -> list[str]:
        """Return the names of the options that differ from their defaults."""
        return [option.name for option in fields(self) if getattr(self, option.name) != option.default]

    def has_no_effect(self, message: str, remedy: str) -> None:
        """Report an option that has no effect in this plan. With workers, raise ValueError with `message` and `remedy`;
        with num_workers=0, log `message`.
        """
        if self.num_workers > 0:
            raise ValueError(f"{message}. {remedy}.")
        logger.info("%s. With num_workers=0 this is allowed, and has no effect.", message)

    def log_unused(self) -> None:
        """If `num_workers` is 0, log the worker options that were set and so have no effect."""
        unused = [name for name in self.changed() if name in OF_WORKERS]
        if self.num_workers == 0 and unused:
            logger.info("%s: num_workers is 0, so %s have no effect", WHERE, unused)
