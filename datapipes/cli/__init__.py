"""The `datapipes` command: partition, inspect, convert, bench, serve, status and completion.

docs/partition.md says what each does.
"""


def __dir__() -> list[str]:
    return []
