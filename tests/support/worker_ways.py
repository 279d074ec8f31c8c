"""Ways to run a DataLoader with workers, what all of them must give, and the processes and threads of workers."""

import functools
import threading
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from typing import Any

from pipelines import digests
from worker_stages import EPOCHS, worker_chain

WITHOUT_SERVER = ["fork", "thread"]  # these start at once


def way(method: str, num_workers: int = 2, **options: Any) -> dict[str, Any]:
    """Options of a DataLoader with workers."""
    kind = {"worker_method": "thread"} if method == "thread" else {"multiprocessing_context": method}
    return {"num_workers": num_workers, **kind, **options}


@functools.cache
def digests_of_worker_chain() -> list[list[str]]:
    """The digests of the first epochs of `worker_chain()`, made without workers."""
    chain = worker_chain()
    return [digests(chain) for _ in range(EPOCHS)]


def workers() -> list[BaseProcess]:
    """The processes of workers that this process has started and that live."""
    return [child for child in active_children() if child.name.startswith("datapipes-worker")]


def worker_threads() -> list[threading.Thread]:
    """The threads that are workers, and those that read what worker processes send."""
    return [
        thread for thread in threading.enumerate() if thread.name.startswith(("datapipes-worker", "datapipes-inbox"))
    ]
