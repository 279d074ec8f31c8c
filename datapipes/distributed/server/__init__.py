"""The server of a part: what it answers, how it limits its clients, and what it tells of itself."""


def __dir__() -> list[str]:
    return []
