"""Messages between a client and a server: headers, bytes of Arrow, errors."""


def __dir__() -> list[str]:
    return []
