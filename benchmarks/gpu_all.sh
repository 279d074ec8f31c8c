#!/usr/bin/env bash
# Run the tests that need a GPU, and measure what is wanted of one, in pieces; no network is needed. See pieces.sh.
#
#   1 tests     6 min  the tests marked gpu, several at once
#   2 copies    9 min  uva.py, gpu_end_to_end.py and gpu_copy.py, on 1M nodes, 20M edges, 128 floats a node
#   3 training  6 min  training.py with the model on the GPU, on 1M nodes, 20M edges, 100 floats a node
#   4 captured  9 min  gpu_captured.py: steps of fixed shapes, on 1M nodes, 20M edges, 128 floats a node
#   5 products  5 min  products_size.py: epochs on 2.4M nodes, 124M edges, 100 floats a node
#
# Run: bash benchmarks/gpu_all.sh PIECE...    with a GPU; a piece's name or number, or all
#      bash benchmarks/gpu_all.sh --try       without: the same steps on a small graph, to try the script
#      bash benchmarks/gpu_all.sh --plan
NEEDED=(torch numpy torchdata triton pybind11 setuptools pytest hypothesis)
# shellcheck source=benchmarks/pieces.sh
. "$(dirname "$0")/pieces.sh"

before_pieces() {
    if [ "$has_gpu" = no ] && [ "$try" = no ]; then
        echo "gpu_all.sh: there is no CUDA device here, so nothing is measured; --try tries the script"
        exit 0
    fi
    on=cuda few=() trace=(--trace "$OUT/copy_trace.json")
    if [ "$try" = yes ]; then
        few=(--repeats 1 --steps 3 --batch-size 64 --hidden 16)
    fi
    if [ "$has_gpu" = no ]; then
        on=cpu trace=()
    fi
}

piece_tests() {
    step tests 300 "$PYTHON" benchmarks/gpu_tests.py "$steps"
}

piece_copies() {
    rm -f "$OUT"/copy_trace*.json
    step uva 150 "$PYTHON" benchmarks/uva.py --tiles --json "$steps/uva.json"
    graph 1000000 20000000 128
    step gpu_end_to_end 180 "$PYTHON" benchmarks/gpu_end_to_end.py --device "$on" --graph "$folder" \
        --json "$steps/gpu_end_to_end.json" "${few[@]}"
    step gpu_copy 90 "$PYTHON" benchmarks/gpu_copy.py --device "$on" --graph "$folder" --repeats 5 \
        --json "$steps/gpu_copy.json" "${few[@]}" "${trace[@]}"
}

piece_training() {
    local how=(--repeats 3 --steps 20 --workers 0 2 8)
    [ "$try" = yes ] && how=("${few[@]}" --workers 1)
    graph 1000000 20000000 100
    step training 340 "$PYTHON" benchmarks/training.py --device "$on" --graph "$folder" --parts steps,consumer \
        --json "$steps/training.json" "${how[@]}"
}

piece_captured() {
    graph 1000000 20000000 128
    step gpu_captured 360 "$PYTHON" benchmarks/gpu_captured.py --device "$on" --graph "$folder" \
        --json "$steps/gpu_captured.json" "${few[@]}"
}

piece_products() {
    graph 2400000 124000000 100
    step products_size 200 "$PYTHON" benchmarks/products_size.py --device "$on" --graph "$folder" \
        --json "$steps/products_size.json" "${few[@]}"
}

run_pieces "$@"
