"""The `datapipes` command: build, partition, inspect, convert, report, bench, serve, status, doctor and completion.

docs/partition.md describes each command.
"""


def __dir__() -> list[str]:
    return []
