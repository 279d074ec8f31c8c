"""Turn whatever a stage raises into an error that ends only the epoch."""

from __future__ import annotations

import threading

from datapipes.base.errors import LoaderTimeoutError, add_note, text_of


def as_error(
    raised: BaseException,
    raiser: str = "a stage",
    remedy: str = "Raise an error, or return None to drop the minibatch.",
) -> Exception:
    """Return `raised` as an error that ends only the epoch. `raiser` and `remedy` are used in its text.

    SystemExit, KeyboardInterrupt and GeneratorExit would end a worker or the consumer; StopIteration would end a loop
    or a coroutine. Each becomes a RuntimeError. The LoaderTimeoutError of a loader that `raiser` reads becomes a plain
    TimeoutError, since readers of `raiser` cannot go on waiting.
    """
    if isinstance(raised, LoaderTimeoutError):
        error: Exception = TimeoutError(*raised.args)
    elif isinstance(raised, Exception) and not isinstance(raised, StopIteration):
        return raised
    else:
        text = text_of(raised)
        error = RuntimeError(f"{raiser} raised {type(raised).__name__}{f': {text}' if text else ''}. {remedy}")
    error.__cause__ = raised
    for note in getattr(raised, "__notes__", []):
        add_note(error, note)
    return error


def as_seen_by_consumer(raised: BaseException) -> BaseException:
    """Return the error to raise in the consumer, which takes minibatches: `raised` itself, or `as_error(raised)`.

    It is `raised` itself if that is an Exception, or may come from a signal: in the main thread Ctrl-C raises
    KeyboardInterrupt, and a signal handler may call sys.exit(), also in a stage. GeneratorExit never comes from a
    signal. Passed on, it would silently end a generator around the consumer's loop.
    """
    may_be_a_signal = threading.current_thread() is threading.main_thread() and not isinstance(raised, GeneratorExit)
    return raised if isinstance(raised, Exception) or may_be_a_signal else as_error(raised)
