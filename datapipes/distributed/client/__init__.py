"""The client side: connections to partition servers, deadlines, and what is asked again."""


def __dir__() -> list[str]:
    return []
