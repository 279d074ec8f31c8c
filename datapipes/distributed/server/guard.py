"""Guard: a thread of a server that looks again and again, whatever goes wrong with a look."""

from __future__ import annotations

import threading
from collections.abc import Callable

from datapipes.base.log import logger

_RETRY_S = 0.5
_JOIN_S = 5.0  # for a look that is under way


class Guard:
    """Calls `look` until `close`.

    A look that fails by an OSError or a MemoryError is tried again; the log has one line for each kind of failure
    until a look succeeds. Any other error ends the guard: `died` is told, since a server must not go on without it.

    Args:
        where: the server, for the log.
        name: what it guards, for the log and as the name of its thread.
        look: returns the seconds until it is called again.
        died: takes the error that has ended the guard; called in its thread.
    """

    def __init__(self, where: str, name: str, look: Callable[[], float], died: Callable[[BaseException], None]) -> None:
        self._where, self._name, self._look, self._died = where, name, look, died
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"datapipes-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; it is not waited for without bound, nor by itself."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        pause, told = 0.0, ""
        while not self._stop.wait(pause):
            try:
                pause, told = self._look(), ""
            except (OSError, MemoryError) as error:
                pause, text = _RETRY_S, f"{type(error).__name__}: {error}"
                if text != told:
                    logger.error("%s: the %s has met %s; it goes on", self._where, self._name, text)
                told = text
            except BaseException as error:
                logger.critical("%s: the %s has died, so the server ends", self._where, self._name, exc_info=True)
                self._died(error)
                return
