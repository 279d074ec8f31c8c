"""The `datapipes` command: partition, inspect, convert, completion. docs/partition.md says what each does."""


def __dir__() -> list[str]:
    return []
