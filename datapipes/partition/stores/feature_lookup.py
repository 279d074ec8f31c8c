"""Requests rows of a feature from the parts that own them, and puts the answers together in the order of the ids."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.futures import Future

from datapipes.base.checks import dtype_name
from datapipes.base.errors import add_note
from datapipes.base.rows import bits_of

__all__ = ["FeatureClient"]

_WHERE = "lookup_features"


@runtime_checkable
class FeatureClient(Protocol):
    """The interface by which a LocalFeatureStore gets rows that other parts own. PartitionClient implements it."""

    def fetch(self, part: int, ids: Tensor, *, is_node_feat: bool, input_type: Any, attr_name: str) -> Future[Tensor]:
        """Ask another part for rows of a feature; return a future at once.

        The process that has the part answers with `store.lookup_features(ids, is_node_feat, input_type,
        attr_name=attr_name)`.

        Args:
            part: the part that owns all of `ids`.
            ids: int64 [n], global ids; repeats are possible. n is 0 if only dtype and width are asked for.
            is_node_feat: True: `ids` are ids of nodes; False: of edges.
            input_type: the node type or edge type; None without types.
            attr_name: the name of the attribute.
        Returns:
            A future. Its value is the rows [n, ...], in the order of `ids`. If the request fails, the future has the
            error.
        """
        ...


def joined(
    client: FeatureClient,
    ids: Tensor,
    places: Mapping[int, Tensor],
    own: tuple[Tensor, Tensor | None],
    **attribute: Any,
) -> Future[Tensor]:
    """Ask other parts for their rows; return a future of the rows of all `ids`, [len(ids), ...], this part's included.

    The first error of a part becomes the error of the future; later answers are dropped.

    Args:
        places: {part: int64 [n]}, the positions in `ids` of the ids that the part owns; at least one part.
        own: (positions in `ids` of the ids that this part owns, their rows); the rows are None if this part has no
            tensor of the type.
        attribute: the keyword arguments for `client.fetch`.
    Raises:
        TypeError: The client returned no Future.
    """
    futures = {}
    for part, at in places.items():
        futures[part] = client.fetch(part, ids[at], **attribute)
        if not isinstance(futures[part], Future):
            raise TypeError(
                f"{_WHERE}: the client returned {type(futures[part]).__name__} for part {part}; a torch.futures.Future "
                "is needed. Return one."
            )
    result: Future[Tensor] = Future()
    rows: dict[int, Tensor] = {}
    lock = threading.Lock()  # answers come in threads of the client
    ended = False

    def take(part: int, future: Future[Tensor]) -> None:
        nonlocal ended
        error: Exception | None = None
        try:
            answer = _answer(part, future)
            with lock:
                rows[part] = answer
                if len(rows) < len(futures):
                    return
            together = _put_together(len(ids), places, rows, own)
        except Exception as raised:
            error = raised
        with lock:
            if ended:
                return
            ended = True
        # Only one thread gets here, and it holds no lock: the user's callbacks may wait for other answers.
        if error is None:
            result.set_result(together)
        else:
            result.set_exception(error)  # type: ignore[arg-type]  # torch's annotation is that of a result

    for part, future in futures.items():
        # Use `future`, not the argument of the callback, which lacks an exception that Python code has set.
        future.add_done_callback(lambda _, part=part, future=future: take(part, future))  # type: ignore[misc]
    return result


def _put_together(
    count: int, places: Mapping[int, Tensor], rows: Mapping[int, Tensor], own: tuple[Tensor, Tensor | None]
) -> Tensor:
    own_places, own_rows = own
    like = next(iter(rows.values())) if own_rows is None else own_rows
    for part, answer in rows.items():
        expected = [places[part].shape[0], *like.shape[1:]]
        if list(answer.shape) != expected or answer.dtype != like.dtype:
            raise ValueError(
                f"{_WHERE}: part {part} answered {dtype_name(answer.dtype)} {list(answer.shape)}; "
                f"{dtype_name(like.dtype)} {expected} is needed. All parts must be of one partition."
            )
    result = torch.empty((count, *like.shape[1:]), dtype=like.dtype)
    bits = bits_of(result)
    if own_rows is not None:
        bits[own_places] = bits_of(own_rows)
    for part, answer in rows.items():
        bits[places[part]] = bits_of(answer)
    return result


def _answer(part: int, future: Future[Tensor]) -> Tensor:
    try:
        answer = future.value()
    except Exception as error:
        add_note(error, f"while part {part} was asked for features")
        raise
    if not isinstance(answer, Tensor):
        raise TypeError(f"{_WHERE}: part {part} answered {type(answer).__name__}; a tensor is needed. Return its rows.")
    return answer
