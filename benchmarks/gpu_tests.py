"""Run the tests marked gpu in several processes: most of their time the compiler of the kernels takes, on the CPU.

Usage: gpu_tests.py FOLDER: it gets the names of the tests, tests.txt, and what pytest says, tests_0.log, tests_1.log...
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PYTEST = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-W", "default"]


def main() -> None:
    work = Path(sys.argv[1])
    # Only the files that have such tests: others may import what is not here.
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(Path("tests").rglob("test_*.py"))}
    files = [str(path) for path, text in texts.items() if "mark.gpu" in text or ": Place" in text]
    found = subprocess.run([*PYTEST, "--collect-only", "-q", *files], capture_output=True, text=True, check=False)
    names = [line for line in found.stdout.splitlines() if "::" in line]
    (work / "tests.txt").write_text("\n".join(names), encoding="utf-8")
    if found.returncode != 0:
        print(found.stdout, found.stderr)
    names.sort(key=lambda name: "on_a_gpu" not in name)  # the long ones first, each in a process of its own
    count = max(1, min(8, (os.cpu_count() or 2) // 2, len(names)))
    running = []
    for number in range(count):
        with (work / f"tests_{number}.log").open("w", encoding="utf-8") as log:
            command = [*PYTEST, "-v", "--tb=short", "-o", "console_output_style=classic", *names[number::count]]
            running.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
    try:
        codes = [each.wait() for each in running]
    except KeyboardInterrupt:
        codes = [each.wait() for each in running]  # it came to them, too
    for path in sorted(work.glob("tests_*.log")):
        print(path.read_text(encoding="utf-8"))
    sys.exit(max(map(abs, [found.returncode, *codes])))


if __name__ == "__main__":
    main()
