"""Checks on the program's main module when a loader is built: can worker processes import it, and what would they run?

A worker process that is not forked imports the main module again, as __mp_main__. It does not find names that were
typed into a notebook or at a prompt, or that are defined below `if __name__ == "__main__":`. It runs all other
statements again. Doubtful cases are not refused; the workers then raise.
"""

from __future__ import annotations

import ast
import functools
import gc
import os
import sys
import threading
from collections.abc import Iterator
from multiprocessing import process
from types import FrameType
from typing import Any

REMEDY = "use worker_method='thread' or multiprocessing_context='fork'."
NAMES = ("__main__", "__mp_main__")  # the main module, here and in a process that has imported it again
_Conditional = (ast.If, ast.While, ast.Match)


def refuse_missing_main(where: str = "data_loader", remedy: str = REMEDY) -> None:
    """Raise RuntimeError if workers would import the main module from a file that does not exist, such as "<stdin>".

    `remedy` is the last advice in the error.
    """
    path = _path()
    if path is not None and _module_name() is None and not os.path.exists(path):
        raise RuntimeError(
            f"{where}: worker processes import the main module again, but there is no file {path!r}; a program "
            f"read from stdin has none. Save the program as a file and run that, or {remedy}"
        )


def refuse_hidden(user: str, name: str) -> None:
    """Raise TypeError if workers will not find `name`, a class or function of the main module.

    Args:
        user: what the error calls the object that needs the class or function.
    """
    place = None
    if not _is_imported():
        place = "stands in a notebook, at a prompt or in a command (python -c), and workers cannot import these"
        remedy = f"Move it into a module and import that, or {REMEDY}"
    elif (line := _lines_below_guard(_source()).get(name.partition(".")[0])) is not None:
        place = f"stands below `if __name__ == '__main__':` (line {line}), which workers do not run"
        remedy = f"Move it above, or {REMEDY}"
    if place is not None:
        raise TypeError(f"data_loader: {user} cannot be passed on to a worker process: {name} {place}. {remedy}")


def refuse_repetition(
    *, is_building: bool, where: str = "data_loader", what: str = "the loader", remedy: str = REMEDY
) -> None:
    """Raise RuntimeError if workers would run again the statement of the main module that is running now.

    Args:
        is_building: whether a loader is being built, not iterated. Then a guard (a comparison with __name__) anywhere
            in the module is enough, since the epochs may begin below the guard.
        where, what, remedy: the caller, the object, and the last advice, for the error.
    """
    source = _source() if _is_imported() else ""
    line = _running_line()
    has_guard = any(map(_is_guard, ast.walk(_tree(source))))
    if line is None or (is_building and has_guard) or not _runs_always(source, line):
        return
    raise RuntimeError(
        f"{where}: worker processes import the main module again, and would run line {line} of {_path()} again, "
        f"with {what} in it. Put the statements that are to run once below `if __name__ == '__main__':`, or "
        f"{remedy}"
    )


# --- the main module of this process


def _main() -> Any:
    return sys.modules["__main__"]


def _module_name() -> str | None:
    """Return the name by which workers import the main module if it was run by `python -m`.

    None: it was run otherwise.
    """
    name: str | None = getattr(getattr(_main(), "__spec__", None), "name", None)
    return name


def _path() -> str | None:
    path = getattr(_main(), "__file__", None)
    return os.path.join(getattr(process, "ORIGINAL_DIR", None) or "", path) if isinstance(path, str) else None


def _is_imported() -> bool:
    """Return whether workers import the main module again. They do not import the __main__ of a package."""
    name = _module_name()
    return _path() is not None if name is None else name.rpartition(".")[2] != "__main__"


def _running_line() -> int | None:
    """Return the line of the main module that the main thread is running.

    None: it runs no line of it, as at a prompt.
    """
    frame = _frame_of_main_thread()
    while frame is not None:
        code = frame.f_code
        is_of_main = frame.f_globals is vars(_main()) and code.co_filename == getattr(_main(), "__file__", None)
        if is_of_main and code.co_name == "<module>":
            return frame.f_lineno
        frame = frame.f_back
    return None


_collection = threading.Lock()
# A child that is forked meanwhile would have neither the lock nor the collector back.
os.register_at_fork(before=_collection.acquire, after_in_parent=_collection.release, after_in_child=_collection.release)


def _frame_of_main_thread() -> FrameType | None:
    """Return the frame that the main thread is running. No garbage collection begins meanwhile.

    Python 3.10, and 3.11 before 3.11.9, hold a lock of the interpreter while they list the frames of other threads. A
    collection that begins then may delete a tensor, and torch releases the GIL for this. Another thread that takes the
    GIL may need the same lock, as every new thread does. It then holds the GIL for ever
    (https://github.com/python/cpython/issues/106883).
    """
    if threading.current_thread() is threading.main_thread():
        return sys._getframe()
    with _collection:
        collects = gc.isenabled()
        try:
            gc.disable()
            return sys._current_frames().get(threading.main_thread().ident or 0)
        finally:
            if collects:
                gc.enable()


def _source() -> str:
    """Return the source text of the main module; "" if it cannot be read."""
    try:
        with open(_path() or "", encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError):
        return ""


# --- the source of the main module


@functools.lru_cache(maxsize=1)
def _tree(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def _is_guard(node: ast.AST) -> bool:
    """Return whether the syntax node `node` compares __name__ with something."""
    compared = node.subject if isinstance(node, ast.Match) else node if isinstance(node, ast.Compare) else None
    return compared is not None and any(isinstance(e, ast.Name) and e.id == "__name__" for e in ast.walk(compared))


def _runs_always(source: str, line: int) -> bool:
    """Return whether every import of the module runs the statement at `line`.

    False: the statement is inside an `if`, `while` or `match`, or the top-level statement around it has a guard (a
    comparison with __name__).
    """
    for statement in _tree(source).body:
        if statement.lineno <= line <= (statement.end_lineno or 0):
            parts = list(ast.walk(statement))
            around = [part for part in parts if isinstance(part, _Conditional)]
            depends = any(part.lineno <= line <= (part.end_lineno or 0) for part in around)
            return not depends and not any(map(_is_guard, parts))
    return False


def _lines_below_guard(source: str) -> dict[str, int]:
    """Return {name: line} of the classes and functions that are defined only below `if __name__ == "__main__":`."""
    below: dict[str, int] = {}
    elsewhere: set[str] = set()
    for statement, is_guarded in _statements(_tree(source).body, False):
        if is_guarded and isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            below[statement.name] = statement.lineno
        elif not is_guarded:
            elsewhere.update(_bound_by(statement))
    return {} if "*" in elsewhere else {name: line for name, line in below.items() if name not in elsewhere}


def _statements(body: list[ast.stmt], is_guarded: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """Yield (statement, is_guarded) for all statements outside of functions and classes.

    is_guarded: whether the statement is below `if __name__ == "__main__":`.
    """
    for statement in body:
        yield statement, is_guarded
        if isinstance(statement, ast.If):
            yield from _statements(statement.body, is_guarded or _is_for_main(statement.test))
            yield from _statements(statement.orelse, is_guarded)
        elif not isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(statement, part, []), is_guarded)


def _is_for_main(test: ast.expr) -> bool:
    """Return whether the expression `test` is `__name__ == "__main__"`."""
    values = [node.value for node in ast.walk(test) if isinstance(node, ast.Constant)]
    is_equation = isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)
    return is_equation and _is_guard(test) and values == ["__main__"]


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement outside of functions defines. "*" stands for names that are not known."""
    if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        yield statement.name
    elif isinstance(statement, (ast.Import, ast.ImportFrom)):
        yield from ((alias.asname or alias.name).partition(".")[0] for alias in statement.names)
    elif not isinstance(statement, ast.If):
        for part in ast.walk(statement):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                yield part.id
            elif isinstance(part, ast.ExceptHandler):
                yield "*"  # `except ImportError:` may define what the guard defines again
            elif isinstance(part, ast.Name) and part.id in ("exec", "globals", "vars"):
                yield "*"
