"""The messages between client and server: their headers, how they become bytes of Arrow, and how errors are sent."""


def __dir__() -> list[str]:
    return []
