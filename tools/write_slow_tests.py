"""Write tests/slow.txt: the tests that `make test` leaves to `make test-all`, since each takes more than a second.

They are 3 in 100 tests, and take half of the time: most start several processes and kill some.
Run: make slow-tests   (runs all tests of `make test` and these, which takes seven minutes)
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

SLOW_S = 1.0
LIST = Path(__file__).parents[1] / "tests" / "slow.txt"


def main() -> None:
    (report,) = sys.argv[1:]
    slow = sorted(
        f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}"
        for case in ElementTree.parse(report).getroot().iter("testcase")
        if float(case.attrib["time"]) > SLOW_S
    )
    LIST.write_text("".join(f"{name}\n" for name in slow), encoding="utf-8")
    print(f"{LIST}: {len(slow)} tests")


if __name__ == "__main__":
    main()
