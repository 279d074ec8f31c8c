"""How messages travel between a client and a server: headers, the bytes of Arrow, errors."""


def __dir__() -> list[str]:
    return []
