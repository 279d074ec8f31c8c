"""What servers are asked: of parts, a module for each kind; chains.py, minibatches of whole chains."""


def __dir__() -> list[str]:
    return []
