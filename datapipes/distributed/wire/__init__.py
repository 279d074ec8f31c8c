"""What travels between a client and a partition server: requests, answers, and how they are written."""


def __dir__() -> list[str]:
    return []
