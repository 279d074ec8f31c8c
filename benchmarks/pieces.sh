# shellcheck shell=bash
# What gpu_all.sh and many_cores.sh share: they source this file, say what their pieces are, and call run_pieces "$@".
#
# A piece is one call of at most so many minutes, for machines that are lent for a few minutes at a time. Each needs no
# other: it builds the C++ core and makes its graph where they are not there from a call before. Its steps have limits,
# a step that fails or takes too long leaves the rows of the others, and the exit code is 1 then. KEPT has the figures of
# all pieces that have run; OUT gets them too (figures.json), with table.txt and log.txt. To go on with a table on
# another machine, put its figures.json into KEPT there.
#
# Needs Python with the packages of NEEDED, and a C++20 compiler. A package that is missing is taken from the folder
# WHEELS; if that has it not, the script says what to carry, and ends. Without a compiler, a core that was built for this
# Python does: datapipes/_core.cpython-*.so, carried along.
#
# Environment: PYTHON (python3), WHEELS (.whl), KEPT (build/pieces), OUT (KEPT), GRAPHS (a folder in /tmp),
#              BUILD (yes; no: take the core that is there)
#
# Of the script: a line "NUMBER NAME MINUTES min WHAT" for each piece among its first comments, which is the plan; NEEDED,
# packages; and a function piece_NAME for each piece, which calls `graph` and `step`. There, try and has_gpu are yes or no.
# shellcheck disable=SC2034 # has_gpu is for the script
set -uo pipefail
script=$(basename "$0")
PLAN=$(sed -n 's/^#   [0-9] //p' "$0")
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
PYTHON=${PYTHON:-python3}
WHEELS=${WHEELS:-.whl}
BUILD=${BUILD:-yes}
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
unset TRITON_INTERPRET

show_plan() {
    local number=0 name minutes what all=0
    while read -r name minutes _ what; do
        printf '%d %-9s %d min  %s\n' "$((++number))" "$name" "$minutes" "$what"
        all=$((all + minutes))
    done <<<"$PLAN"
    echo "all: $all min"
}

usage() {
    echo "Run: bash benchmarks/$script PIECE...          pieces by name or number; all: one after another"
    echo "     bash benchmarks/$script --try [PIECE...]  the same steps small, without a GPU; all pieces by default"
    echo "     bash benchmarks/$script --plan            the pieces, and how many minutes each takes at most"
    show_plan
}

# --- what has to be there

missing() {
    "$PYTHON" -c 'import sys
from importlib.util import find_spec
print(*(name for name in sys.argv[1:] if find_spec(name) is None))' "${NEEDED[@]}"
}

packages() {
    local lacking
    lacking=$(missing) || exit 2
    if [ -n "$lacking" ] && ls "$WHEELS"/*.whl >/dev/null 2>&1; then
        "$PYTHON" -m pip install --quiet --no-index --no-deps --no-compile --target "$work/site" "$WHEELS"/*.whl
        export PYTHONPATH="$PYTHONPATH:$work/site"
        lacking=$(missing)
    fi
    if [ -n "$lacking" ]; then
        echo "$script: $PYTHON lacks $lacking, and $WHEELS/ has no wheel of it. Where there is a network, run"
        echo "    python3 -m pip download --no-deps --only-binary=:all: -d .whl $lacking"
        echo "for the Python and the system of this machine, and carry .whl along."
        exit 2
    fi
}

contents_of() { # contents_of FILE_OR_FOLDER...
    find "$@" -type f ! -name '*.so' ! -name '*.pyc' -print0 | LC_ALL=C sort -z | xargs -0 cat
}

core() { # build the C++ core, unless it was built here from these files, for this Python
    local built
    built=build/core.$({ contents_of csrc setup.py && "$PYTHON" -VV; } | cksum | cut -d' ' -f1)
    if [ "$BUILD" = yes ] && ! { [ -e "$built" ] && compgen -G 'datapipes/_core.cpython*' >/dev/null; }; then
        if bounded build 240 env DATAPIPES_BUILD_JOBS=0 "$PYTHON" setup.py build_ext --inplace; then
            touch "$built"
        else
            echo "$script: the C++ core was not built here; a core that is there already is tried"
        fi
    fi
    if ! "$PYTHON" -c 'import datapipes'; then
        echo "$script: there is no C++ core for this Python. Where there is a compiler and the same Python (3.x), run"
        echo "    python3 setup.py build_ext --inplace"
        echo "and carry datapipes/_core.cpython-*.so along."
        exit 2
    fi
}

graph() { # graph NODES EDGES WIDTH: make a graph where it is not there, and set $folder to where it is; small in --try
    local size="$1 $2 $3"
    [ "$try" = yes ] && size="20000 200000 16"
    folder=$GRAPHS/${size// /_}
    # shellcheck disable=SC2086 # three words
    [ -e "$folder/made" ] || bounded graph 120 "$PYTHON" benchmarks/make_graph.py "$folder" $size
}

# --- the steps of a piece: each has a limit, and none goes beyond the minutes of the piece

bounded() { # bounded NAME SECONDS COMMAND...: its output goes to the log; where it fails the last lines are shown
    local name=$1 limit=$2 left code from=$SECONDS
    shift 2
    left=$((60 * minutes - 15 - (SECONDS - began)))
    [ "$limit" -gt "$left" ] && limit=$left
    if [ "$limit" -le 5 ]; then
        echo "== $name: no time is left"
        return 124
    fi
    timeout --signal=INT --kill-after=10 "$limit" "$@" >"$work/output" 2>&1 # on INT Python says where it was
    code=$?
    echo "== $name: $((SECONDS - from)) s, exit code $code" | tee -a "$OUT/log.txt"
    cat "$work/output" >>"$OUT/log.txt"
    [ "$code" = 0 ] || tail -n 40 "$work/output"
    return "$code"
}

step() { # step NAME SECONDS COMMAND...: a step of the piece, which writes its figures to $steps/NAME.json
    local from=$SECONDS code
    bounded "$@"
    code=$?
    echo "$1 $((SECONDS - from)) $code" >>"$steps/steps.txt"
    [ "$code" = 0 ] || failed=yes
    return "$code"
}

run_piece() { # run_piece NAME MINUTES
    local name=$1 about
    minutes=$2 began=$SECONDS steps=$work/$name
    [ "$try" = yes ] && minutes=9 # a build on two cores may take longer than a short piece
    mkdir -p "$steps"
    echo "--- $name: at most $minutes min"
    [ "$has_core" = yes ] || core
    has_core=yes
    "piece_$name" || failed=yes
    about=(--work "$steps" --kept "$KEPT" --out "$OUT" --device "$device" --sources "$sources")
    [ "$try" = yes ] && about+=(--tried)
    "$PYTHON" benchmarks/table.py "$name" "${about[@]}" || failed=yes
    echo "--- $name: $((SECONDS - began)) s of $minutes min"
}

run_pieces() {
    local name number=0 minutes_of wanted="" known=" all"
    declare -A plan=() numbers=()
    while read -r name minutes_of _; do
        plan[$name]=$minutes_of numbers[$((++number))]=$name known+=" $name"
    done <<<"$PLAN"
    try=no
    case "${1:-}" in
        --plan) show_plan && exit 0 ;;
        --try) try=yes && shift && set -- "${@:-all}" ;;
        "" | --help | -h) usage && exit 2 ;;
    esac
    for name in "$@"; do
        name=${numbers[$name]:-$name}
        if [[ "$known " != *" $name "* ]]; then
            echo "$script: no piece '$name'; there are$known" >&2
            exit 2
        fi
        [ "$name" = all ] && wanted+="${known# all} " || wanted+="$name "
    done
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    packages
    device=$("$PYTHON" -c 'import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else "")')
    has_gpu=no
    [ -n "$device" ] && has_gpu=yes
    device="${device:-no GPU}, $(nproc) cores$(sed -n 's/^model name.*: / of /p' /proc/cpuinfo | head -n 1)"
    sources=$(contents_of csrc datapipes setup.py | cksum | cut -d' ' -f1)
    KEPT=${KEPT:-$PWD/build/pieces}
    GRAPHS=${GRAPHS:-/tmp/datapipes_graphs.$(id -u)}
    if [ "$try" = yes ]; then # nothing of it is kept
        OUT=${OUT:-$PWD/build/pieces_tried} KEPT=$work/kept GRAPHS=$work/graphs
        export OMP_NUM_THREADS=1
    fi
    OUT=${OUT:-$KEPT}
    mkdir -p "$OUT" "$KEPT" "$GRAPHS" build
    rm -f "$OUT/log.txt"
    failed=no has_core=no
    if declare -F before_pieces >/dev/null; then before_pieces; fi
    for name in $wanted; do
        run_piece "$name" "${plan[$name]}"
    done
    echo "== in all $SECONDS s; table, figures and log are in $OUT"
    [ "$failed" = no ]
}
