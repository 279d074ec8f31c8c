#!/usr/bin/env bash
# Builds and runs the kernel tests three times: with AddressSanitizer and UndefinedBehaviorSanitizer, with
# ThreadSanitizer, and without the SSE2 code, as on other processors.
# Run: csrc/tests/run.sh   (CXX chooses the compiler; no Python is needed)
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

for flags in "-fsanitize=address,undefined" "-fsanitize=thread" "-fsanitize=undefined -U__SSE2__"; do
  echo "== $flags"
  # shellcheck disable=SC2086  # flags are several words
  "${CXX:-g++}" -std=c++20 -O1 -g -Icsrc -Wall -Wextra -Werror -pthread -DDATAPIPES_SHM_STEPS \
    $flags -fno-sanitize-recover=all \
    csrc/tests/*.cpp csrc/{common,random,sampling,gather,graph,limits,partition,distributed,tfrecord,shm}/*.cpp -o "$build/test_kernels"
  "$build/test_kernels"
done
