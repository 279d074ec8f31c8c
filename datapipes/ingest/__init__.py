"""Files that other programs wrote: tables, arrays, archives, pickles, local or at URIs; and graphs built of them on the
disk, in bounded memory.

Loaded when a graph is built of files or a data set is opened. Nothing of a file is run.
"""


def __dir__() -> list[str]:
    return []
