#!/usr/bin/env bash
# Run the tests that need a GPU, and measure what is wanted of one: one run, no network, at most 8 minutes.
#
# It builds the C++ core in place, makes a graph (1M nodes, 20M edges, 128 floats a node), runs uva.py,
# gpu_end_to_end.py, gpu_copy.py and the tests marked gpu, several at once, and prints one table last: what is asked, what
# was seen, whether it is met. A part that fails or takes too long leaves the rows of the others. OUT gets table.txt,
# figures.json, log.txt and the traces. Needs Python with torch, numpy, torchdata, triton, pybind11, setuptools, pytest
# and hypothesis, and a C++20 compiler. A package that is missing is taken from the folder WHEELS; if that has it not,
# the script says what to carry, and ends. Without a compiler, a core that was built for this Python does:
# datapipes/_core.cpython-*.so, carried along.
#
# Run: bash benchmarks/gpu_all.sh          with a GPU
#      bash benchmarks/gpu_all.sh --try    without: the same steps on a small graph, to try the script
# Environment: PYTHON (python3), WHEELS (.whl), OUT (build/gpu_all), GRAPH (a folder in /tmp), SECONDS_IN_ALL (470),
#              BUILD (yes; no: take the core that is there)
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
WHEELS=${WHEELS:-.whl}
OUT=${OUT:-$PWD/build/gpu_all}
GRAPH=${GRAPH:-/tmp/datapipes_gpu_graph.$(id -u)}
SECONDS_IN_ALL=${SECONDS_IN_ALL:-470}
try=no
[ "${1:-}" = --try ] && try=yes
BUILD=${BUILD:-yes}
mkdir -p "$OUT" "$GRAPH"
rm -f "$OUT"/log.txt "$OUT"/table.txt "$OUT"/figures.json "$OUT"/copy_trace*.json
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
unset TRITON_INTERPRET
began=$SECONDS

# --- what has to be there

missing() {
    "$PYTHON" - <<'EOF'
from importlib.util import find_spec

needed = ["torch", "numpy", "torchdata", "triton", "pybind11", "setuptools", "pytest", "hypothesis"]
print(*(name for name in needed if find_spec(name) is None))
EOF
}
lacking=$(missing) || exit 2
if [ -n "$lacking" ] && ls "$WHEELS"/*.whl >/dev/null 2>&1; then
    "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --target "$work/site" "$WHEELS"/*.whl
    export PYTHONPATH="$PYTHONPATH:$work/site"
    lacking=$(missing)
fi
if [ -n "$lacking" ]; then
    echo "gpu_all: $PYTHON lacks $lacking, and $WHEELS/ has no wheel of it. Where there is a network, run"
    echo "    python3 -m pip download --no-deps --only-binary=:all: -d .whl $lacking"
    echo "for the Python and the system of this machine, and carry .whl along."
    exit 2
fi
has_gpu=$("$PYTHON" -c 'import torch; print("yes" if torch.cuda.is_available() else "no")')
if [ "$has_gpu" = no ] && [ "$try" = no ]; then
    echo "gpu_all: there is no CUDA device here, so nothing is measured; --try tries the script"
    exit 0
fi

# --- the steps: each has a limit, and none goes beyond SECONDS_IN_ALL

step() { # step NAME SECONDS COMMAND...: its output goes to the log; where it fails the last lines are shown
    local name=$1 limit=$2 left code from=$SECONDS
    shift 2
    left=$((SECONDS_IN_ALL - (SECONDS - began)))
    [ "$limit" -gt "$left" ] && limit=$left
    if [ "$limit" -le 5 ]; then
        echo "== $name: no time is left"
        return 124
    fi
    timeout --signal=INT --kill-after=10 "$limit" "$@" >"$work/$name.log" 2>&1 # on INT Python says where it was
    code=$?
    echo "== $name: $((SECONDS - from)) s, exit code $code" | tee -a "$OUT/log.txt"
    cat "$work/$name.log" >>"$OUT/log.txt"
    [ "$code" = 0 ] || tail -n 40 "$work/$name.log"
    return "$code"
}

make_graph() {
    timeout 200 "$PYTHON" - "$GRAPH" "$1" "$2" <<'EOF'
"""A power-law graph: both ends of an edge are drawn by Pareto weights."""
import sys
from pathlib import Path

import numpy as np

folder, num_nodes, num_edges = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
made = folder / f"made_{num_nodes}_{num_edges}"
if not made.exists():
    for other in folder.glob("made_*"):
        other.unlink()
    rng = np.random.default_rng(0)
    weights = np.cumsum((rng.pareto(1.1, num_nodes) + 1).clip(max=num_nodes**0.5))
    src, dst = (np.searchsorted(weights, rng.random(num_edges) * weights[-1]).clip(max=num_nodes - 1) for _ in range(2))
    indptr = np.zeros(num_nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount(dst, minlength=num_nodes), out=indptr[1:])
    np.save(folder / "indptr.npy", indptr)
    np.save(folder / "indices.npy", src[np.argsort(dst, kind="stable")].astype(np.int64))
    np.save(folder / "feat.npy", rng.standard_normal((num_nodes, 128), dtype=np.float32))
    made.touch()
EOF
}

device=cuda size="1000000 20000000" few="" trace="--trace $OUT/copy_trace.json"
if [ "$has_gpu" = no ]; then
    device=cpu size="20000 200000" few="--repeats 1 --steps 4 --batch-size 64" trace=""
fi
# shellcheck disable=SC2086 # the words of these options are meant to be split
make_graph $size >"$work/graph.log" 2>&1 &
graph_job=$!
if [ "$BUILD" = yes ] && ! step build 200 env DATAPIPES_BUILD_JOBS=0 "$PYTHON" setup.py build_ext --inplace; then
    echo "gpu_all: the C++ core was not built here; a core that is there already is tried"
fi
if ! "$PYTHON" -c 'import datapipes'; then
    echo "gpu_all: there is no C++ core for this Python. Where there is a compiler and the same Python (3.x), run"
    echo "    python3 setup.py build_ext --inplace"
    echo "and carry datapipes/_core.cpython-*.so along."
    exit 2
fi
wait "$graph_job" || cat "$work/graph.log"
echo "== graph: there after $((SECONDS - began)) s"

step uva 100 "$PYTHON" benchmarks/uva.py --tiles --json "$work/uva.json"
# shellcheck disable=SC2086
step gpu_end_to_end 120 "$PYTHON" benchmarks/gpu_end_to_end.py --device $device --graph "$GRAPH" \
    --json "$work/gpu_end_to_end.json" $few
# shellcheck disable=SC2086
step gpu_copy 60 "$PYTHON" benchmarks/gpu_copy.py --device $device --graph "$GRAPH" --repeats 5 \
    --json "$work/gpu_copy.json" $few $trace

cat >"$work/run_tests.py" <<'EOF'
"""Run the tests marked gpu in several processes: most of their time the compiler of the kernels takes, on the CPU."""
import os
import subprocess
import sys
from pathlib import Path

work = Path(sys.argv[1])
PYTEST = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-W", "default"]
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
sys.exit(max(map(abs, codes), default=0))
EOF
step tests 240 "$PYTHON" "$work/run_tests.py" "$work"

# --- the table

"$PYTHON" - "$work" "$OUT" "$device" <<'EOF' | tee "$OUT/table.txt"
import json
import re
import sys
from pathlib import Path

work, out, device = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
rows = [("what", "asked", "seen", "")]


def figures(name):
    path = work / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def row(what, asked, seen, is_met=None):
    rows.append((what, asked, seen, {True: "met", False: "NOT MET", None: "owed"}[is_met if device == "cuda" else None]))


def ratio(what, found, key, least=None, most=None):
    value = found.get(key)
    asked = f"<= {most:.2f} x" if least is None else f">= {least:.2f} x"
    if not isinstance(value, float):
        row(what, asked, "not measured")
    else:
        row(what, asked, f"{value:.3f}", value <= most if least is None else value >= least)


uva, copy, end_to_end = figures("uva"), figures("gpu_copy"), figures("gpu_end_to_end")
of_copy = "ratio to a pinned copy"
ratio("UVA, rows of 512 B, 8 SMs' worth of threads (16,384)", uva, f"UVA, rows of 512 B, 16384 threads: {of_copy}", 0.85)
ratio("UVA, rows of 512 B, default threads (10,240)", uva, f"UVA, rows of 512 B, 10240 threads: {of_copy}", 0.95)
ratio("gather from device memory, rows of 512 B", uva, "device memory, rows of 512 B: ratio to a device copy", 0.7)
for stored in ("float32", "float16"):
    for way in ("UVA", "features on the GPU", "CPU fetch and copy"):
        key = f"{way}, {stored}: time of a step, ratio to on the GPU already"
        ratio(f"training step with overlap: {way}, {stored}", end_to_end, key, most=1.1)
for chain in ("copy", "ids and UVA"):
    for how in ("hidden share, of what can be hidden", "hidden share in the trace"):
        ratio(f"copy of minibatch i + 1 while i trains: {chain}, {how}", copy, f"{chain}: {how}", 0.5)

outcomes = {}
for path in sorted(work.glob("tests_*.log")):
    for name, outcome in re.findall(r"^(tests/.+?::.+) (PASSED|FAILED|ERROR|SKIPPED)", path.read_text(), re.MULTILINE):
        outcomes[name] = outcome if outcome != "PASSED" else outcomes.get(name, outcome)  # an error may follow a pass
collected = work / "tests.txt"
cases = {name: outcomes.get(name, "not run") for name in (collected.read_text().splitlines() if collected.exists() else [])}


def tests(what, pattern):
    found = [outcome for name, outcome in cases.items() if re.search(pattern, name)]
    count = {kind: found.count(kind) for kind in ("PASSED", "FAILED", "ERROR", "SKIPPED", "not run")}
    seen = ", ".join(f"{number} {kind.lower()}" for kind, number in count.items() if number)
    bad = count["FAILED"] + count["ERROR"]
    passed = count["PASSED"] > 0 and count["not run"] == 0
    row(what, "pass", seen or "no such test", False if bad else passed or None)


tests("10,000 small minibatches by pinned channel and side stream: no growth", "::test_10_000_small_minibatches")
tests("200 full minibatches: digests equal to the CPU's", "::test_200_full_minibatches")
tests("all tests marked gpu", "")

name = uva.get("device") or end_to_end.get("device") or "no GPU"
print(f"\n{name}, {'measured' if device == 'cuda' else 'tried without a GPU: these ratios mean nothing'}\n")
widths = [max(len(line[i]) for line in rows) for i in range(4)]
for line in rows:
    print("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip())
print()
every = {**uva, **copy, **end_to_end}
(out / "figures.json").write_text(json.dumps({"figures": every, "tests": cases}, indent=1) + "\n")
for key, value in every.items():
    print(f"  {key:90s} {value:.4g}" if isinstance(value, float) else f"  {key:90s} {value}")
for name, outcome in cases.items():
    if outcome not in ("PASSED", "SKIPPED"):
        print(f"  {outcome}: {name}")
EOF
echo "== in all $((SECONDS - began)) s; table, figures, log and traces are in $OUT"
