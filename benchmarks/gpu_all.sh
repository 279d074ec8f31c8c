#!/usr/bin/env bash
# Run the tests that need a GPU, and measure what is wanted of one: one run, no network, at most 8 minutes.
#
# It builds the C++ core in place, makes a graph (1M nodes, 20M edges, 128 floats a node), runs `pytest -m gpu`, uva.py,
# copy.py and gpu_end_to_end.py, and prints one table last: what is wanted, what was seen. All logs and figures go to
# OUT. Needs Python with torch, numpy, torchdata, triton, pybind11, pytest and hypothesis, and a C++20 compiler. What is
# missing is taken from the folder WHEELS; if that has it not, the script says what to carry, and ends.
#
# Run: bash benchmarks/gpu_all.sh          with a GPU
#      bash benchmarks/gpu_all.sh --try    without: the same steps on a small graph, to try the script
# Environment: PYTHON (python3), WHEELS (.whl), OUT (build/gpu_all), GRAPH (a folder in /tmp), SECONDS_IN_ALL (470)
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
WHEELS=${WHEELS:-.whl}
OUT=${OUT:-$PWD/build/gpu_all}
GRAPH=${GRAPH:-/tmp/datapipes_gpu_graph.$(id -u)}
SECONDS_IN_ALL=${SECONDS_IN_ALL:-470}
try=no
[ "${1:-}" = --try ] && try=yes
mkdir -p "$OUT" "$GRAPH"
rm -f "$OUT"/*.log "$OUT"/*.json "$OUT"/*.xml "$OUT"/table.txt
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
    site=$(mktemp -d)
    "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$WHEELS"/*.whl
    export PYTHONPATH="$PYTHONPATH:$site"
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

step() { # step NAME SECONDS COMMAND...: its output goes to OUT/NAME.log; where it fails the last lines are shown
    local name=$1 limit=$2 left code from=$SECONDS
    shift 2
    left=$((SECONDS_IN_ALL - (SECONDS - began)))
    [ "$limit" -gt "$left" ] && limit=$left
    if [ "$limit" -le 5 ]; then
        echo "== $name: no time is left"
        return 124
    fi
    timeout --kill-after=10 "$limit" "$@" >"$OUT/$name.log" 2>&1
    code=$?
    echo "== $name: $((SECONDS - from)) s, exit code $code"
    [ "$code" = 0 ] || tail -n 40 "$OUT/$name.log"
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
make_graph $size >"$OUT/graph.log" 2>&1 &
graph_job=$!
step build 240 env DATAPIPES_BUILD_JOBS=0 "$PYTHON" setup.py build_ext --inplace || exit 1
wait "$graph_job" || {
    cat "$OUT/graph.log"
    exit 1
}
echo "== graph: there after $((SECONDS - began)) s"

# Only the files that have such tests: others may import what is not here.
mapfile -t files < <(grep -rlE 'mark\.gpu|: Place\b' tests --include='test_*.py' | sort)
step tests 200 "$PYTHON" -m pytest -m gpu -q -p no:cacheprovider -W default --junitxml "$OUT/tests.xml" "${files[@]}"
step uva 120 "$PYTHON" benchmarks/uva.py --tiles --json "$OUT/uva.json"
# shellcheck disable=SC2086
step copy 60 "$PYTHON" benchmarks/copy.py --device $device --graph "$GRAPH" --json "$OUT/copy.json" $few $trace
# shellcheck disable=SC2086
step gpu_end_to_end 120 "$PYTHON" benchmarks/gpu_end_to_end.py --device $device --graph "$GRAPH" \
    --json "$OUT/gpu_end_to_end.json" $few

# --- the table

"$PYTHON" - "$OUT" "$device" <<'EOF' | tee "$OUT/table.txt"
import json
import re
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

out, device = Path(sys.argv[1]), sys.argv[2]
rows = []


def figures(name):
    path = out / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def row(what, wanted, seen, is_met=None):
    rows.append((what, wanted, seen, {True: "met", False: "NOT MET", None: "owed"}[is_met]))


def ratio(what, found, key, at_least):
    value = found.get(key)
    row(what, f">= {at_least}", "not measured" if value is None else f"{value:.3f}", value and value >= at_least)


def met_on_a_gpu(is_met):
    return is_met if device == "cuda" else None


uva, copy, end_to_end = figures("uva"), figures("copy"), figures("gpu_end_to_end")
of_copy = "ratio to a pinned copy"
ratio("UVA, rows of 512 B, 8 SMs' worth of threads (16,384)", uva, f"UVA, rows of 512 B, 16384 threads: {of_copy}", 0.85)
ratio("UVA, rows of 512 B, default threads (10,240)", uva, f"UVA, rows of 512 B, 10240 threads: {of_copy}", 0.95)
ratio("gather from device memory, rows of 512 B", uva, "device memory, rows of 512 B: ratio to a device copy", 0.7)
steps = {key: value for key, value in end_to_end.items() if key.endswith("ratio to on the GPU already")}
for key, value in steps.items():
    row(f"training step, {key.split(': ')[0]}", "<= 1.10 x", f"{value:.3f}", met_on_a_gpu(value <= 1.1))
if not steps:
    row("training step with overlap", "<= 1.10 x", "not measured")
hidden = {key: value for key, value in copy.items() if "hidden" in key and isinstance(value, float)}
for key, value in hidden.items():
    row(key, "copies run beside", f"{value:.3f}", met_on_a_gpu(value > 0.5))
if not hidden:
    row("copy of minibatch i + 1 while i trains", "copies run beside", "not measured")

cases = [*xml.parse(out / "tests.xml").iter("testcase")] if (out / "tests.xml").exists() else []


def sorted_out(found):
    """Return what passed, failed and was skipped."""
    kinds = [{child.tag for child in case} & {"failure", "error", "skipped"} for case in found]
    passed = [case for case, kind in zip(found, kinds) if not kind]
    failed = [case for case, kind in zip(found, kinds) if kind & {"failure", "error"}]
    return passed, failed, len(found) - len(passed) - len(failed)


def tests(what, found):
    passed, failed, skipped = sorted_out(found)
    seen = f"{len(passed)} passed, {len(failed)} failed, {skipped} skipped" if found else "no such test ran"
    row(what, "pass", seen, not failed if passed or failed else None)


def named(pattern):
    return [case for case in cases if re.search(pattern, case.get("name", ""))]


tests("10,000 small minibatches by pinned channel and side stream: no growth", named("10_?000|thousand|growth|grows"))
tests("200 full minibatches: digests equal to the CPU's", named("200|two_hundred|full_minibatches|full_ones"))
tests("all tests marked gpu", cases)

name = uva.get("device") or end_to_end.get("device") or "no GPU"
print(f"\n{name}, {'measured' if device == 'cuda' else 'tried without a GPU: these ratios mean nothing'}\n")
widths = [max(len(line[i]) for line in rows) for i in range(4)]
for line in rows:
    print("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip())
print()
for key, value in [*uva.items(), *copy.items(), *end_to_end.items()]:
    print(f"  {key:90s} {value:.4g}" if isinstance(value, float) else f"  {key:90s} {value}")
for case in sorted_out(cases)[1]:
    print(f"  failed: {case.get('classname')}::{case.get('name')}")
EOF
echo "== in all $((SECONDS - began)) s; logs, figures and the table are in $OUT"
