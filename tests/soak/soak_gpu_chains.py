"""Run chains at random that copy to a GPU on the fake device, and check each against the CPU: gpu_chains.py has how.

One in fifty has its minibatches made by worker processes. The first chain that fails ends the run; its number is shown,
and `--seed` with it runs it again.
Run: PYTHONPATH=tests/support python tests/soak/soak_gpu_chains.py --chains 2000 --minutes 5   (or make soak)
"""

from __future__ import annotations

import gc
import os
import sys
import time

os.environ["TRITON_INTERPRET"] = "1"  # it is read when kernels are defined

from gpu_chains import run
from soaking import arguments

OF_PROCESSES = 50  # one of so many


def main() -> None:
    options = arguments(__doc__, minutes=60.0, chains=2000)
    end, number = time.monotonic() + 60 * options.minutes, options.seed
    while number < options.seed + options.chains and time.monotonic() < end:
        try:
            run(number, "processes" if number % OF_PROCESSES == 0 else None)
        except BaseException:
            print(f"chain {number} failed", file=sys.stderr)
            raise
        if number == options.seed:
            gc.freeze()  # each run ends with gc.collect, which would visit all that torch and Triton have made
        number += 1
    print(f"{number - options.seed} chains: each gave the bits of the CPU, in order, and left nothing")


if __name__ == "__main__":
    main()
