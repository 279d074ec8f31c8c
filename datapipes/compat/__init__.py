"""Names of other libraries, such as PyG and DGL: using such a name here raises an error that tells our name for it."""


def __dir__() -> list[str]:
    return []
