#!/usr/bin/env bash
# Measure what more cores give, in pieces, on a machine of 16 cores or so; no GPU and no network are needed. See pieces.sh.
#
#   1 threads   3 min  cores.py: threads inside a minibatch, for sampling and gathering
#   2 workers   5 min  cores.py: workers of a DataLoader
#   3 parts     6 min  distributed.py: 1, 2, 4 and 8 parts, each with a rank and a server of its own (needs pyarrow)
#
# All on 1M nodes, 20M edges, 100 floats a node.
#
# Run: bash benchmarks/many_cores.sh PIECE...    a piece's name or number, or all
#      bash benchmarks/many_cores.sh --try       the same steps on a small graph, to try the script
#      bash benchmarks/many_cores.sh --plan
NEEDED=(torch numpy torchdata pybind11 setuptools)
# shellcheck source=benchmarks/pieces.sh
. "$(dirname "$0")/pieces.sh"

cores() { # cores NAME SECONDS
    local few=(--repeats 5)
    [ "$try" = yes ] && few=(--repeats 1 --round-s 0.1 --cores 2)
    graph 1000000 20000000 100
    step "$1" "$2" "$PYTHON" benchmarks/cores.py --parts "$1" --graph "$folder" --json "$steps/$1.json" "${few[@]}"
}

piece_threads() { cores threads 100; }

piece_workers() { cores workers 280; }

piece_parts() {
    local parts few=(--repeats 2)
    graph 1000000 20000000 100
    for parts in 1 2 4 8; do
        if [ "$try" = yes ]; then
            [ "$parts" = 2 ] || continue
            few=(--repeats 1 --round-s 0.2 --cache 1MB)
        fi
        # every rank and every server has one thread of torch: two cores for each part
        [ "$parts" -gt 2 ] && [ $((2 * parts)) -gt "$(nproc)" ] && continue
        step "parts_$parts" 100 "$PYTHON" benchmarks/distributed.py --parts "$parts" --method fennel \
            --graph "$folder" --json "$steps/parts_$parts.json" "${few[@]}"
    done
}

run_pieces "$@"
