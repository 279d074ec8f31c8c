"""What was run where: tools that run tests elsewhere call `record`; docs/install.md shows the records (`make stubs`).

A record takes the place of an older one of the same kind of run, machine and versions of Python and torch.
"""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "tools" / "ran.json"
HEADER = ("what", "machine", "Python", "torch", "numpy", "result", "day", "commit")
_KEY = ("what", "machine", "Python", "torch")
_ASK = """
import json, platform, sys, numpy, torch
print(json.dumps([platform.machine(), *(".".join(each.split(".")[:2])
      for each in (platform.python_version(), torch.__version__, numpy.__version__))]))
"""


def record(what: str, python: Sequence[str], result: str, environment: dict[str, str] | None = None) -> None:
    """Keep the result of a run of `what`, such as "golden digests", by the command `python` in an environment."""
    versions = json.loads(subprocess.check_output([*python, "-c", _ASK], env=environment))
    if len(python) > 1:
        versions[0] += ", emulated"
    commit = subprocess.check_output(["git", "describe", "--always", "--dirty=+"], cwd=ROOT, text=True).strip()
    row = dict(zip(HEADER, (what, *versions, result, datetime.date.today().isoformat(), commit), strict=True))
    others = [each for each in records() if any(each[name] != row[name] for name in _KEY)]
    rows = sorted([*others, row], key=lambda each: [each[name] for name in _KEY])
    RECORDS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def records() -> list[dict[str, str]]:
    """Return all records, sorted."""
    return json.loads(RECORDS.read_text(encoding="utf-8")) if RECORDS.exists() else []
