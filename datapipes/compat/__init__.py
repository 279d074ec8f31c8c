"""What users of other libraries look for: their names, each with an error that says what it is called here."""


def __dir__() -> list[str]:
    return []
