"""Requests to servers: a module for each kind of request to a part; chains.py for minibatches of whole chains."""


def __dir__() -> list[str]:
    return []
