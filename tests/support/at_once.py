"""Calls in several threads at once; their results and errors come to the test, and a call that hangs fails it."""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def at_once(call: Callable[[int], T], count: int, timeout_s: float = 120.0) -> list[T]:
    """Return what call(0), call(1) .. return, each in a thread of its own; raise the first error of them."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            results[number] = call(number)
        except BaseException as error:  # an assertion too
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
    if errors:
        raise errors[0]
    assert len(results) == count, f"the calls {[*range(count)]} but for {sorted(results)} have not ended"
    return [results[number] for number in range(count)]
