"""Processes: how worker processes are started, watched and ended, and how they share memory."""


def __dir__() -> list[str]:
    return []
