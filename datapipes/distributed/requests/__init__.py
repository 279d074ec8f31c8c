"""Requests to the owners of parts; each module is one kind."""


def __dir__() -> list[str]:
    return []
