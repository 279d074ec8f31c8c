"""The errors of loaders, channels and servers, and helpers for any error: its text, its notes, its remedy."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = [
    "ChannelClosed",
    "ChannelDamaged",
    "DatapipesDeprecationWarning",
    "EndOfEpoch",
    "LoaderTimeoutError",
    "PeerDied",
    "QueueTimeoutError",
    "RemoteError",
    "ServerUnavailable",
]

DISTRIBUTION = "gnn-datapipes"  # pyproject.toml's name; `datapipes` on the package index belongs to somebody else


class QueueTimeoutError(TimeoutError):
    """Within the timeout there was no room to send or no message to receive. The channel stays usable: call again."""


class LoaderTimeoutError(TimeoutError):
    """No minibatch came within the `timeout` of a loader or a Prefetcher.

    The epoch stays usable: the next call goes on waiting. A TimeoutError of another type comes from a stage, and ends
    the epoch as any error of a stage does.
    """


class ChannelClosed(RuntimeError):
    """The channel was closed, by this process or by the one that made it, and all its messages were received.

    This is final.
    """


class ChannelDamaged(RuntimeError):
    """The shared memory of a ShmChannel holds bytes that datapipes never writes: a process has overwritten it.

    All calls in all processes raise this from then on; make a new channel. Tensors that were received before may have
    been overwritten too.
    """


class PeerDied(RuntimeError):
    """A process at the other side of the channel ended without leaving the channel.

    If a DataLoader raises this, workers died that cannot be replaced any more. The loader has ended its epoch, and its
    `state_dict()` tells at which minibatch. A channel whose `recv` raised this stays usable while another process
    sends. Notes say how each process ended, where that is known.

    Attributes:
        pids: The processes that ended and were not reported before. If a server reports them, they are pids on the
            server's machine. Empty if no process is left at the other side.
    """

    def __init__(self, message: str, pids: Iterable[int] = ()) -> None:
        super().__init__(message, tuple(pids))
        self.pids: tuple[int, ...] = self.args[1]

    def __str__(self) -> str:
        return str(self.args[0])


class EndOfEpoch(Exception):
    """A sender has sent all of an epoch. This is not an error: iteration over a channel ends here.

    The next `recv` belongs to the next epoch.

    Attributes:
        epoch: The number of the epoch that ended.
    """

    def __init__(self, epoch: int) -> None:
        super().__init__(epoch)
        self.epoch = epoch

    def __str__(self) -> str:
        return f"epoch {self.epoch} has ended"


class RemoteError(RuntimeError):
    """An error of a sender, or of a stage in a worker process, whose type cannot be raised here.

    Its text begins with the name of that type. It has the notes of the original error; its `__cause__` is the traceback
    as text.
    """


class ServerUnavailable(ConnectionError):
    """The server of a part gave no answer within the deadline, however often it was asked.

    The text names the part, the address, how often it was asked, and how the last attempt ended. The request changed
    nothing: it can be made again.
    """


class DatapipesDeprecationWarning(FutureWarning):
    """A public name goes, or changes its meaning, in a coming release, which the text names beside what to use."""


def deprecated(what: str, instead: str, *, removal: str) -> None:
    """Warn the caller of a public function that `what` goes in the release `removal`, such as "0.4"."""
    text = f"{what} is deprecated and goes in release {removal}. Use {instead}."
    warnings.warn(text, DatapipesDeprecationWarning, stacklevel=3)


class RemoteTraceback(Exception):
    """The cause of an error that came through a channel: the traceback of the sender, as text."""


def text_of(error: BaseException) -> str:
    """Return the error's argument if it is a single text (str of a KeyError would quote it), otherwise str(error)."""
    if len(error.args) == 1 and isinstance(error.args[0], str):
        return error.args[0]
    try:
        return str(error)
    except BaseException as second:  # even SystemExit must not end this function
        return f"(its text cannot be made: {type(second).__name__})"


def sentence(error: BaseException) -> str:
    """Return the error's text, or its type if it has no text, as a sentence: a full stop is added if there is none."""
    text = text_of(error).rstrip() or type(error).__name__
    return text if text.endswith((".", "?", "!")) else f"{text}."


def pip_install(package: str, extra: str) -> str:
    """Return the pip command for an optional package, with a hint at the extra of this package that includes it."""
    return f"pip install {package} (in the extra [{extra}] of {DISTRIBUTION})"


def needed(package: str, extra: str, who: str, instead: str = "") -> Any:
    """Import and return an optional module. See `not_installed` for the other arguments.

    Args:
        package: the name of a package, or of a module in one.
    Raises:
        ModuleNotFoundError: The package is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise not_installed(package.split(".")[0], extra, who, instead, error) from error


def not_installed(
    package: str, extra: str, who: str, instead: str = "", error: ImportError | None = None
) -> ModuleNotFoundError:
    """Return the error for a package that is not installed, or cannot be imported.

    Args:
        extra: the extra of this package's distribution that includes `package`.
        who: the function, class or file format that needs `package`.
        instead: what to do instead. It is appended to a sentence, so it begins with punctuation; "" if there is no
            other way.
        error: the error that the import of `package` raised.
    """
    how = "is not installed. Install it"
    if error is not None and str(error) != f"No module named {package!r}":
        how = f"cannot be imported: {sentence(error)} If it is not installed"
    text = f"{who} needs {package}, which {how}: {pip_install(package, extra)}{instead}."
    return ModuleNotFoundError(text, name=package)


def raise_first(errors: Sequence[Exception]) -> None:
    """Raise the first of these errors with the others as notes; do nothing if there is none."""
    if errors:
        for other in errors[1:]:
            add_note(errors[0], str(other))
        raise errors[0]


def add_note(error: BaseException, note: str) -> None:
    """Attach `note` to an error, once. Python 3.10 has no notes; there the error stays as it is."""
    if hasattr(error, "add_note") and note not in getattr(error, "__notes__", ()):
        error.add_note(note)
