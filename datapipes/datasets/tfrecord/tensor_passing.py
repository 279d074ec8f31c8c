"""Tensors in shared memory, passed from a process to its parent through the socket between them; nothing is copied.

A message with the forms of the tensors goes first, then the descriptors of their memories, as many at once as the
system takes. A descriptor that is on its way keeps its memory, so the sender may end as soon as it has sent all.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from datapipes.datasets.tfrecord.torch_memory import received_tensor, shared_tensor
from datapipes.processes.mappings import mapping_of

MOST_AT_ONCE = 250  # descriptors in one message; the system takes 253
WAIT_S = 10.0  # seconds within which announced descriptors must come; the sender has them ready


@dataclass(frozen=True)
class Form:
    """A tensor by its place: the number of its memory among those that are sent, None if it has no values."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    memory: int | None = None
    offset: int = 0  # bytes


def shared_forms(tensors: Sequence[Tensor], who: str) -> tuple[list[Form], list[int], list[Any]]:
    """Return the form of each tensor, the descriptors of their memories, and the tensors and what keeps these open.

    A tensor in ordinary memory, or one that is not contiguous, is copied into shared memory.
    """
    forms: list[Form] = []
    descriptors: list[int] = []
    shared = [shared_tensor(each.contiguous(), who) for each in tensors]
    kept: list[Any] = [*shared]
    for tensor in shared:
        form = Form(tensor.dtype, tuple(tensor.shape))
        if tensor.numel() > 0:
            found = mapping_of(tensor)
            assert found is not None
            memory, mapping = found
            kept.append(memory)
            if memory.descriptor not in descriptors:
                descriptors.append(memory.descriptor)
            number, offset = descriptors.index(memory.descriptor), tensor.data_ptr() - mapping.address
            form = Form(tensor.dtype, tuple(tensor.shape), number, offset)
        forms.append(form)
    return forms, descriptors, kept


def send_descriptors(pipe: Connection, descriptors: Sequence[int]) -> None:
    """Send descriptors through a pipe, which must be a socket; the receiver has been told their number."""
    with _socket_of(pipe) as channel:
        for begin in range(0, len(descriptors), MOST_AT_ONCE):
            socket.send_fds(channel, [b"D"], descriptors[begin : begin + MOST_AT_ONCE])


def receive_tensors(pipe: Connection, forms: Sequence[Form]) -> list[Tensor]:
    """Return the tensors of which `forms` came just before, in the memory of the sender.

    Raises:
        EOFError, OSError: The sender has ended, or this process may open no more descriptors.
    """
    count = 1 + max((form.memory for form in forms if form.memory is not None), default=-1)
    descriptors: list[int] = []
    try:
        with _socket_of(pipe) as channel:
            channel.settimeout(WAIT_S)
            while len(descriptors) < count:
                at_once = min(count - len(descriptors), MOST_AT_ONCE)
                said, found, _, _ = socket.recv_fds(channel, 1, at_once, socket.MSG_CMSG_CLOEXEC)
                descriptors.extend(found)
                if not said:
                    raise EOFError("the process ended before it had sent all")
                if len(found) < at_once:
                    raise OSError(f"{len(found)} of {at_once} descriptors arrived; raise the limit (ulimit -n)")
        return [_received(form, descriptors) for form in forms]
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _received(form: Form, descriptors: Sequence[int]) -> Tensor:
    if form.memory is None:
        return torch.empty(form.shape, dtype=form.dtype)
    return received_tensor(descriptors[form.memory], form.offset, form.shape, form.dtype)


@contextmanager
def _socket_of(pipe: Connection) -> Iterator[socket.socket]:
    with socket.socket(fileno=os.dup(pipe.fileno())) as channel:
        yield channel
