"""Run chains at random that copy to a GPU on the fake device, and check each against the CPU: gpu_chains.py has how.

One in fifty has its minibatches made by worker processes. The first chain that fails ends the run; its number is shown,
and `--first` with it runs it again.
Run: PYTHONPATH=tests/support python tests/soak/soak_gpu_chains.py --chains 2000 --minutes 5   (or make soak)
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time

os.environ["TRITON_INTERPRET"] = "1"  # it is read when kernels are defined

from gpu_chains import run

OF_PROCESSES = 50  # one of so many


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so many")
    parser.add_argument("--first", type=int, default=1000, help="number of the first chain")
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    number = given.first
    while number < given.first + given.chains and time.monotonic() < end:
        try:
            run(number, "processes" if number % OF_PROCESSES == 0 else None)
        except BaseException:
            print(f"chain {number} failed", file=sys.stderr)
            raise
        if number == given.first:
            gc.freeze()  # each run ends with gc.collect, which would visit all that torch and Triton have made
        number += 1
    print(f"{number - given.first} chains: each gave the bits of the CPU, in order, and left nothing")
    return 0


if __name__ == "__main__":
    sys.exit(main())
