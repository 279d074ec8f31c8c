#!/usr/bin/env bash
# Builds and runs the kernel tests three times: with AddressSanitizer and UndefinedBehaviorSanitizer, with
# ThreadSanitizer, and without the SSE2 code, as on other processors.
# Run: csrc/tests/run.sh   (CXX chooses the compiler; no Python is needed)
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

compile() {  # FILE FLAGS: compiles one file into $build
  # shellcheck disable=SC2086  # flags are several words
  "${CXX:-g++}" -std=c++20 -O1 -g -Icsrc -Wall -Wextra -Werror -pthread -DDATAPIPES_SHM_STEPS \
    $2 -fno-sanitize-recover=all -c "$1" -o "$build/${1//\//_}.o"
}
export -f compile
export build

for flags in "-fsanitize=address,undefined" "-fsanitize=thread" "-fsanitize=undefined -U__SSE2__"; do
  echo "== $flags"
  printf '%s\0' csrc/tests/*.cpp csrc/{common,random,digest,sampling,gather,graph,limits,partition,distributed,tfrecord,shm}/*.cpp |
    xargs --null --max-procs="$(nproc)" --replace bash -c 'compile "$@"' _ {} "$flags"
  # shellcheck disable=SC2086
  "${CXX:-g++}" -pthread $flags "$build"/*.o -o "$build/test_kernels"
  "$build/test_kernels"
  rm -f "$build"/*.o
done
