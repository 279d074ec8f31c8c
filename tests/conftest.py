"""Settings for every test: Hypothesis draws the same examples in every run and keeps no database; children of the fork
server have torch when they begin; gc.collect looks only at what the tests make; Ctrl-C is not ignored; without a GPU,
Triton's interpreter runs its kernels.
"""

import gc
import multiprocessing
import os
import signal

import torch
from amounts import amount
from hypothesis import HealthCheck, settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # it is read when kernels are defined

settings.register_profile(
    "default",
    max_examples=amount(100, 20),
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("default")

# A shell starts what runs in its background with SIGINT ignored, and so would the processes be that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

multiprocessing.set_forkserver_preload(["__main__", "torch", "datapipes", "datapipes.processes.preload"])


def pytest_collection_finish() -> None:
    """Set the objects of torch and of the other modules apart: each of hundreds of gc.collect would visit them all."""
    gc.collect()
    gc.freeze()
