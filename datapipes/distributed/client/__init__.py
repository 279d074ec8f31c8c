"""The client side: connections to partition servers, deadlines and retries."""


def __dir__() -> list[str]:
    return []
