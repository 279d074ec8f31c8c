"""How a stage asks its graph: by a generator, so the same code serves graphs that answer at once and graphs in parts.

The generator yields questions (name of a method of the graph, arguments), is sent the answers, and returns a result.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from datapipes.chain.asynchronous import off_loop

T = TypeVar("T")

Asked = tuple[str, tuple[Any, ...]]  # (name of a method of the graph, arguments)
Asking = Generator[Asked, Any, T]


def answered(graph: Any, asking: Asking[T]) -> T:
    """Answer all questions to `graph`; return the result of the generator."""
    answer = None
    while True:
        (method, arguments), result = _advanced(asking, answer)
        if result:
            return result[0]
        answer = getattr(graph, method)(*arguments)


async def answered_async(graph: Any, asking: Asking[T]) -> T:
    """Return the result of `answered`, over a graph in parts, without blocking the event loop."""
    answer = None
    while True:
        (method, arguments), result = await off_loop(_advanced, asking, answer)
        if result:
            return result[0]
        answer = await getattr(graph, f"{method}_async")(*arguments)


def _advanced(asking: Asking[T], answer: Any) -> tuple[Asked, tuple[T] | None]:
    """Send the answer to the last question. Return (next question, None), at the end (("", ()), (result,))."""
    try:
        return asking.send(answer), None
    except StopIteration as end:
        return ("", ()), (end.value,)
