"""The `datapipes` command: build, partition, inspect, convert, report, bench, serve, status and completion.

docs/partition.md describes each command.
"""


def __dir__() -> list[str]:
    return []
