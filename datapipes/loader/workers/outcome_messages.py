"""Turn an outcome (a minibatch, a drop or an error) into messages of a worker process, and back.

An outcome is one message with a label, or several if it is too large for one. A label is a tensor of integers under a
key of its own, so that any channel can carry it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes.base.clock import CallRecord
from datapipes.base.codec import Message
from datapipes.base.error_message import error_from_message, error_to_message
from datapipes.chain.pool import Outcome, Task
from datapipes.minibatch import MiniBatch

LABEL = "#label"  # int64 [8]: see Label
CALLS = "#calls"  # float64 [calls, 6]: stage, began, seconds, minibatch, processor_seconds, disk_bytes
FORM = "#form"  # in the first message of an outcome in parts: JSON {key: shape}
PLACES = "#places"  # int64 [pieces, 2]: index of the piece's tensor in the form, index of its first value in the tensor

MADE, DROPPED, FAILED = range(3)
_OVERHEAD = 192  # bytes that a tensor takes in a channel beyond its values: its name, and rounding up


class Label(NamedTuple):
    """The label of a message: it says to which outcome (a minibatch, a drop or an error) the message belongs.

    Attributes:
        loader_id: A random number that tells this loader's messages from another loader's.
        life: How many workers had the index of the sending worker before it; 0 for the first one.
        generation, epoch, number: The fields of the Task; the field `index` of the Task is `number` here.
        last: Whether this is the last message of the outcome.
    """

    loader_id: int
    worker: int
    life: int
    generation: int
    epoch: int
    number: int
    kind: int
    last: int = True

    @property
    def task(self) -> Task:
        """The task (the minibatch to be made) to whose outcome the message belongs."""
        return Task(self.generation, self.epoch, self.number)


def to_messages(
    outcome: Outcome, loader_id: int, life: int, stages: Sequence[str], most_bytes: int | None
) -> Iterator[Message]:
    """Yield the messages that carry an outcome: a minibatch, a drop or an error.

    Args:
        loader_id: a random number that tells this loader's messages from another loader's.
        life: how often a worker of this index was started before.
        stages: the labels of the chain's stages; a message names a stage by its position here.
        most_bytes: the most bytes that a message takes in the channel. None: there is no limit.
    """
    kind, body = MADE, {}
    if outcome.error is not None:
        kind, body = FAILED, error_to_message(outcome.error)
    elif outcome.minibatch is None:
        kind = DROPPED
    else:
        body = outcome.minibatch.to_message()
    label = Label(loader_id, outcome.worker, life, *outcome.task, kind)
    numbers = {stage: number for number, stage in enumerate(stages)}
    calls = [[numbers[call.stage], call.began, call.seconds, *call[5:]] for call in outcome.calls]
    extra = {CALLS: torch.tensor(calls, dtype=torch.float64).reshape(-1, 6)}
    if most_bytes is None or num_bytes_of({**body, **extra}) <= most_bytes:
        yield {LABEL: torch.tensor(label), **extra, **body}
        return
    form = json.dumps({key: list(tensor.shape) for key, tensor in body.items()}).encode()
    extra[FORM] = torch.frombuffer(bytearray(form), dtype=torch.uint8)
    for number, (part, last) in enumerate(_parts(list(body.values()), most_bytes - num_bytes_of(extra))):
        yield {LABEL: torch.tensor(label._replace(last=last)), **(extra if number == 0 else {}), **part}


def num_bytes_of(message: Message) -> int:
    """Return an upper bound of the bytes that a message takes in a channel, its label included."""
    dense = {key: tensor for key, tensor in message.items() if tensor.layout == torch.strided}  # channels refuse others
    return _OVERHEAD + sum(tensor.nbytes + _OVERHEAD + len(key.encode()) for key, tensor in dense.items())


def _parts(tensors: list[Tensor], most_bytes: int) -> Iterator[tuple[Message, bool]]:
    """Split `tensors` into messages of at most about `most_bytes`. Yield (message, whether it is the last).

    A message has pieces of the flattened tensors under "0", "1", ..., and under PLACES the position of each piece.
    """
    part: Message = {}
    places: list[list[int]] = []
    left = most_bytes = max(most_bytes - 2 * _OVERHEAD, 4 * _OVERHEAD)
    for number, tensor in enumerate(tensors):
        flat = tensor.reshape(-1)
        first = 0
        while first < len(flat) or (first == 0 and len(flat) == 0):
            count = min(len(flat) - first, max(left - 2 * _OVERHEAD, 0) // tensor.element_size())
            if (count == 0 and len(flat) > 0) or left < 2 * _OVERHEAD:
                yield {PLACES: torch.tensor(places).reshape(-1, 2), **part}, False
                part, places, left = {}, [], most_bytes
                continue
            part[str(len(places))] = flat[first : first + count]
            places.append([number, first])
            left -= 2 * _OVERHEAD + count * tensor.element_size()
            first += count
            if len(flat) == 0:
                break
    yield {PLACES: torch.tensor(places).reshape(-1, 2), **part}, True


@dataclass
class _Whole:
    """An outcome whose message arrives in parts: the tensors that were put together so far."""

    life: int
    extra: Message
    shapes: dict[str, list[int]]
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def add(self, part: Message) -> None:
        keys = list(self.shapes)
        for number, (tensor, first) in enumerate(part[PLACES].tolist()):
            key, piece = keys[tensor], part[str(number)]
            if key not in self.tensors:
                self.tensors[key] = torch.empty(self.shapes[key], dtype=piece.dtype)
            self.tensors[key].reshape(-1)[first : first + len(piece)] = piece


class Opener:
    """Turns the messages of all workers back into outcomes: minibatches, drops and errors."""

    def __init__(self, loader_id: int, stages: Sequence[str]) -> None:
        self._loader_id = loader_id
        self._stages = list(stages)
        self._whole: dict[int, _Whole] = {}  # {worker: its incomplete outcome}

    def open(self, message: Message) -> tuple[Label, Outcome | None]:
        """Return (label, outcome) of a message. The outcome is None if further messages of it must come.

        Raises:
            RuntimeError: The message is not from a worker of this loader.
        """
        label = self._label_of(message)
        body = {key: value for key, value in message.items() if key != LABEL}
        if FORM in body:
            shapes = json.loads(bytes(body.pop(FORM).tolist()))
            self._whole[label.worker] = _Whole(label.life, {CALLS: body.pop(CALLS)}, shapes)
        if PLACES in body:
            whole = self._whole.get(label.worker)
            if whole is None or whole.life != label.life:
                return label, None  # its worker died before it had sent all parts
            whole.add(body)
            if not label.last:
                return label, None
            body = {**self._whole.pop(label.worker).tensors, **whole.extra}
        return label, self._outcome(label, body)

    def forget(self, worker: int) -> None:
        """Drop what has arrived of a worker's incomplete outcome, since the worker has died."""
        self._whole.pop(worker, None)

    def _label_of(self, message: Message) -> Label:
        tensor: Any = message.get(LABEL)
        if isinstance(tensor, Tensor) and tensor.dtype == torch.int64 and tuple(tensor.shape) == (8,):
            label = Label(*tensor.tolist())
            if label.loader_id == self._loader_id:
                return label
        raise RuntimeError(
            f"data_loader: found a message with keys {sorted(message)[:5]} in the channel, which no worker of this "
            "loader has sent. Give each loader a channel of its own."
        )

    def _outcome(self, label: Label, body: Message) -> Outcome:
        outcome = Outcome(label.worker, label.task)
        for number, began, seconds, index, *used in body.pop(CALLS).tolist():
            outcome.calls.append(CallRecord(self._stages[int(number)], began, seconds, 0, "", int(index), *used))
        if label.kind == FAILED:
            outcome.error = error_from_message(body, own_types=True)
        elif label.kind == MADE:
            outcome.minibatch = MiniBatch.from_message(body)
        return outcome
