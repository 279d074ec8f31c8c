"""Names from other libraries: using such a name raises an error that tells the name used here."""


def __dir__() -> list[str]:
    return []
