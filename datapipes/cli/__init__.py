"""The `datapipes` command: partition, inspect, convert, bench, serve, status and completion.

docs/partition.md describes each command.
"""


def __dir__() -> list[str]:
    return []
