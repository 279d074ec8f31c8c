"""Read files that other programs wrote: tables, arrays, archives and pickles, local or at URIs.

Also build graphs from such files, on disk and in bounded memory. Imported when a graph is built from files or a data
set is opened. No code of a file is run.
"""


def __dir__() -> list[str]:
    return []
