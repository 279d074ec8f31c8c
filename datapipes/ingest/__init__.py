"""Read files that other programs wrote: tables, arrays, archives, pickles, local or at URIs. Build graphs from such
files on disk, in bounded memory.

Imported when a graph is built from files or a data set is opened. No code of a file is run.
"""


def __dir__() -> list[str]:
    return []
