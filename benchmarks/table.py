"""Keep the figures of the pieces of gpu_all.sh and many_cores.sh, and print those of all pieces as one table.

A piece leaves in its folder STEP.json, the figures of each step, steps.txt (name, seconds and exit code of each) and
what gpu_tests.py writes. All of it replaces what KEPT/figures.json has of the piece; figures.json and table.txt, of all
pieces that have run so far, go to OUT. What is asked of a figure stands beside it, and whether it is met; the other
pieces show every figure.
Usage: table.py PIECE --work FOLDER --kept KEPT --out OUT [--device DEVICE] [--sources CHECKSUM] [--tried]
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Piece = dict[str, Any]  # device, sources, tried, steps: {name: {seconds, code, figures}}, tests: {name: outcome}
Row = tuple[str, str, str, str]  # what, asked, is it met, seen
OF_COPY = "ratio to a pinned copy"
OUTCOME = re.compile(r"^(tests/.+?::.+) (PASSED|FAILED|ERROR|SKIPPED)", re.MULTILINE)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("piece")
    for name in ("work", "kept", "out"):
        options.add_argument(f"--{name}", type=Path, required=True)
    options.add_argument("--device", default="cpu")
    options.add_argument("--sources", default="")
    options.add_argument("--tried", action="store_true", help="the figures mean nothing")
    args = options.parse_args()
    file = args.kept / "figures.json"
    pieces: dict[str, Piece] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    about = {"device": args.device, "sources": args.sources, "tried": args.tried}
    pieces[args.piece] = {**about, "steps": steps_of(args.work), "tests": tests_of(args.work)}
    texts = {name: "\n".join(table(name, piece)) + "\n" for name, piece in pieces.items()}
    for folder in {args.kept, args.out}:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "figures.json").write_text(json.dumps(pieces, indent=1) + "\n", encoding="utf-8")
        (folder / "table.txt").write_text("\n".join(texts.values()), encoding="utf-8")
    print(f"\n{texts[args.piece]}")


def steps_of(work: Path) -> dict[str, Any]:
    """Return what the steps of a piece left; a step that did not come to its first figure has none."""
    found = {}
    for line in read(work / "steps.txt").splitlines():
        name, seconds, code = line.split()
        figures = json.loads(read(work / f"{name}.json", "{}"))
        found[name] = {"seconds": int(seconds), "code": int(code), "figures": figures}
    return found


def tests_of(work: Path) -> dict[str, str]:
    """Return the outcome of each test that was collected."""
    outcomes: dict[str, str] = {}
    for path in sorted(work.glob("tests_*.log")):
        for name, outcome in OUTCOME.findall(read(path)):
            if outcome != "PASSED" or name not in outcomes:  # an error may follow a pass
                outcomes[name] = outcome
    return {name: outcomes.get(name, "not run") for name in read(work / "tests.txt").splitlines()}


def read(path: Path, otherwise: str = "") -> str:
    return path.read_text(encoding="utf-8") if path.exists() else otherwise


def table(name: str, piece: Piece) -> Iterator[str]:
    """Yield the lines of a piece."""
    steps = ", ".join(f"{step} {of['seconds']} s{failure(of)}" for step, of in piece["steps"].items())
    yield f"{name}: {piece['device']}, sources {piece['sources']}; {steps or 'no step was run'}"
    if piece["tried"]:
        yield "tried only: these figures mean nothing"
    rows: list[Row] = [("what", "asked", "", "seen"), *rows_of(name, piece)]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, [*widths, 0], strict=True)).rstrip()
    yield from (f"  {outcome}: {test}" for test, outcome in piece["tests"].items() if outcome in ("FAILED", "ERROR"))


def failure(step: dict[str, Any]) -> str:
    return {0: "", 124: " (no time left)", 137: " (no time left)"}.get(step["code"], f" (exit code {step['code']})")


def rows_of(name: str, piece: Piece) -> Iterator[Row]:
    asked = {"tests": tests_rows, "copies": copies_rows, "captured": captured_rows, "parts": parts_rows}
    if name in asked:
        yield from asked[name](piece)
    if name in ("tests", "parts"):
        return
    for step, of in piece["steps"].items():
        prefix = f"{step}: " if len(piece["steps"]) > 1 else ""
        yield from ((prefix + what, *row) for what, *row in figure_rows(of["figures"] or {step: "not measured"}))
    if not piece["steps"]:
        yield name, "", "", "not measured"


def tests_rows(piece: Piece) -> Iterator[Row]:
    for what, pattern in (
        ("10,000 small minibatches by pinned channel and side stream: no growth", "::test_10_000_small_minibatches"),
        ("200 full minibatches: digests equal to the CPU's", "::test_200_full_minibatches"),
        ("all tests marked gpu", ""),
    ):
        found = [outcome for name, outcome in piece["tests"].items() if re.search(pattern, name)]
        count = {kind: found.count(kind) for kind in ("PASSED", "FAILED", "ERROR", "SKIPPED", "not run")}
        seen = ", ".join(f"{number} {kind.lower()}" for kind, number in count.items() if number)
        passed = count["PASSED"] > 0 and count["not run"] == 0
        failed = count["FAILED"] + count["ERROR"] > 0
        yield what, "pass", met(piece, False if failed else passed or None), seen or "no such test"


def asked_of(piece: Piece) -> Callable[..., Row]:
    """Return a function that makes the row of a ratio, with what is asked of it."""
    figures = {key: value for step in piece["steps"].values() for key, value in step["figures"].items()}

    def ratio(what: str, key: str, *, least: float | None = None, most: float = 0.0) -> Row:
        value = figures.get(key)
        asked = f"<= {most:.2f} x" if least is None else f">= {least:.2f} x"
        if not isinstance(value, float):
            return what, asked, met(piece, None), "not measured"
        return what, asked, met(piece, value <= most if least is None else value >= least), f"{value:.3f}"

    return ratio


def captured_rows(piece: Piece) -> Iterator[Row]:
    ratio = asked_of(piece)
    for way in ("features on the GPU", "float16 by UVA"):
        for most, what in ((1.1, "ratio to alone"), (1.0, "ratio to the eager model alone")):
            key = f"256 wide: {way}: captured step, {what}"
            yield ratio(key, key, most=most)


def copies_rows(piece: Piece) -> Iterator[Row]:
    ratio = asked_of(piece)
    yield ratio(
        "UVA, rows of 512 B, 8 SMs' worth of threads (16,384)",
        f"UVA, rows of 512 B, 16384 threads: {OF_COPY}",
        least=0.85,
    )
    yield ratio(
        "UVA, rows of 512 B, default threads (10,240)", f"UVA, rows of 512 B, 10240 threads: {OF_COPY}", least=0.95
    )
    yield ratio(
        "gather from device memory, rows of 512 B", "device memory, rows of 512 B: ratio to a device copy", least=0.7
    )
    for stored in ("float32", "float16"):
        for way in ("UVA", "features on the GPU", "CPU fetch and copy"):
            key = f"{way}, {stored}: time of a step, ratio to on the GPU already"
            yield ratio(f"training step with overlap: {way}, {stored}", key, most=1.1)
    for chain in ("copy", "ids and UVA"):
        for how in ("hidden share, of what can be hidden", "hidden share in the trace"):
            yield ratio(f"copy of minibatch i + 1 while i trains: {chain}, {how}", f"{chain}: {how}", least=0.5)


def parts_rows(piece: Piece) -> Iterator[Row]:
    found = {step.removeprefix("parts_"): of["figures"] for step, of in piece["steps"].items()}
    for count, figures in found.items():
        if not figures:
            yield f"{count} parts", "", "", "not measured"
        for key, rate in figures.items():
            if not key.endswith(" (minibatches/s)"):
                continue
            side = key.removesuffix(" (minibatches/s)")
            seen = [f"{rate:.4g} minibatches/s"]
            if key in found.get("1", {}):
                seen.append(f"ratio to 1 part {rate / found['1'][key]:.3g}")
            if f"{side}, ratio to undivided" in figures:
                seen.append(f"ratio to undivided {figures[f'{side}, ratio to undivided']:.3g}")
            yield f"{count} parts: {side}", "", "", "; ".join(seen)


def figure_rows(figures: dict[str, float | str]) -> Iterator[Row]:
    """Yield a row for all figures that begin alike, up to a colon or a unit: "sampling, 2 threads: ratio to 1"."""
    rows: dict[str, list[str]] = {}
    for key, value in figures.items():
        label, colon, rest = key.partition(": ")
        if not colon:
            label, bracket, rest = key.partition(" (")
            rest = bracket.strip() + rest
        what, _, unit = rest.removesuffix(")").rpartition("(") if rest.endswith(")") else (rest, "", "")
        shown = f"{value:.4g}" if isinstance(value, float) else str(value)
        rows.setdefault(label, []).append(" ".join(f"{what} {shown} {unit}".split()))
    return ((label, "", "", "; ".join(seen)) for label, seen in rows.items())


def met(piece: Piece, is_met: bool | None) -> str:
    """Return whether what is asked is met; what was only tried, or not measured, is owed."""
    return {True: "met", False: "NOT MET", None: "owed"}[None if piece["tried"] else is_met]


if __name__ == "__main__":
    main()
