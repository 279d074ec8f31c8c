"""Loaders for the tests of loading: they stand in for TFRecordDataLoader, and fail as the tests wish.

A process that loads an entity is held by a pipe with a name (a FIFO): it tells its number through one, and waits until
the test writes into another, or for ever. No test needs a clock for that.
"""

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes.datasets import SerializedTFRecordInfo

ENTITIES = ("node", "edge", "positive_label", "negative_label")


class Spec(NamedTuple):
    """A value of a feature spec."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class Loaded:
    """What a loader returns."""

    ids: Tensor
    features: Tensor | None
    labels: Tensor | None

    def __iter__(self) -> Iterator[Tensor | None]:
        return iter((self.ids, self.features))


@dataclass
class Columns:
    """Loads from tensors instead of files: `folders` has {folder: {key: [n] or [n, k]}}."""

    folders: dict[str, dict[str, Tensor]]
    rank: int = 0
    world_size: int = 1

    def load_as_torch_tensors(self, info: SerializedTFRecordInfo, options: Any) -> Loaded:
        columns = self.folders[info.folder]
        ids = [columns[key] for key in info.entity_keys]
        return Loaded(
            ids[0] if info.is_node_entity else torch.stack(ids),
            together([columns[key].to(info.feature_dtype) for key in info.feature_keys]),
            together([columns[key] for key in info.label_keys]),
        )


def together(columns: list[Tensor]) -> Tensor | None:
    return torch.cat([each.reshape(len(each), -1) for each in columns], dim=1) if columns else None


@dataclass
class Faulty(Columns):
    """Does something else first in the folders that `faults` names: "raise", "exit", "unpicklable" or "wait"."""

    faults: Mapping[str, str] = field(default_factory=dict)
    pipes: str = ""  # folder of the FIFOs

    def load_as_torch_tensors(self, info: SerializedTFRecordInfo, options: Any) -> Loaded:
        fault = self.faults.get(info.folder, "")
        if fault.startswith("wait"):
            say_and_wait(Path(self.pipes), info.folder)
        if fault.endswith("raise"):
            raise KeyError(f"{info.folder}: record 12345 lacks the key 'age'")
        if fault.endswith("exit"):
            os._exit(7)
        return super().load_as_torch_tensors(info, options)


def make_pipes(folder: Path, *names: str) -> None:
    for name in names:
        os.mkfifo(folder / f"{name}.pid")
        os.mkfifo(folder / f"{name}.go")


def say_and_wait(folder: Path, name: str) -> None:
    """Tell the number of this process, and wait until `let_go`."""
    (folder / f"{name}.pid").write_text(str(os.getpid()))
    (folder / f"{name}.go").read_text()


def pid_of(folder: Path, name: str) -> int:
    """Return the number of the process that waits, or wait for it."""
    return int((folder / f"{name}.pid").read_text())


def let_go(folder: Path, name: str) -> None:
    (folder / f"{name}.go").write_text("")


class Once(threading.Thread):
    """Does something in a thread while the test waits for a load; raises here what it raised."""

    def __init__(self, what: Any) -> None:
        super().__init__(daemon=True)
        self._what, self._error, self.result = what, None, None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._what()
        except BaseException as error:
            self._error = error

    def end(self) -> Any:
        self.join(60)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error
        return self.result


def info(folder: str, *keys: str, entity: Any = "id", labels: tuple[str, ...] = (), **fields: Any) -> Any:
    """An info whose feature keys have one float each; the folder is a name only."""
    spec = {key: Spec((), torch.float32) for key in keys} | {key: Spec((), torch.int64) for key in labels}
    given = {"feature_keys": keys, "feature_spec": spec, "feature_dim": len(keys), "label_keys": labels, **fields}
    return SerializedTFRecordInfo(folder, entity_key=entity, **given)


def edges(folder: str, *keys: str, **fields: Any) -> Any:
    return info(folder, *keys, entity=("src", "dst"), **fields)


def open_files() -> set[str]:
    """What this process holds that a load could leave: descriptors, and mappings of shared memory."""
    held = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            held.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
    maps = Path("/proc/self/maps").read_text().splitlines()
    return held | {line for line in maps if "memfd" in line or "/dev/shm" in line}
