#!/usr/bin/env bash
# Builds and runs the kernel tests three times: with AddressSanitizer and UndefinedBehaviorSanitizer, again without the
# SSE2 code, as on other processors, and with ThreadSanitizer. Compiling takes nearly all of the time: so the first two
# do not optimise, the second compiles only what has SSE2 code, and the two largest units come first.
# Run: csrc/tests/run.sh   (CXX chooses the compiler; no Python is needed)
# For another processor: CXX=aarch64-linux-gnu-g++ EMULATOR=qemu-aarch64-static csrc/tests/run.sh runs the tests once, without
# sanitizers and without the tests of shared memory: an emulator has no robust futexes and killed processes.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

compile() {  # FILE FLAGS: compiles one file into $build
  # shellcheck disable=SC2086  # flags are several words
  "${CXX:-g++}" -std=c++20 -g1 -Icsrc -Wall -Wextra -Werror -pthread -DDATAPIPES_SHM_STEPS \
    $2 -fno-sanitize-recover=all -c "$1" -o "$build/${1//\//_}.o"
}
export -f compile
export build

build_and_run() {  # FLAGS: compiles the files named on stdin, links them, runs the tests
  echo "== $1"
  tr '\n' '\0' | xargs --null --max-procs="$(nproc)" --replace bash -c 'compile "$@"' _ {} "$1"
  # shellcheck disable=SC2086
  "${CXX:-g++}" -pthread $1 "$build"/*.o -o "$build/test_kernels"
  ${EMULATOR:-} "$build/test_kernels"
}

has_sse2() {  # FILE: whether the file compiles differently without SSE2
  "${CXX:-g++}" -std=c++20 -Icsrc -DDATAPIPES_SHM_STEPS -MM "$1" | sed 's/^[^:]*://' | tr -d '\\' | xargs grep -q __SSE2__
}

files=$(ls csrc/sampling/sample_{neighbors,hop}.cpp
  ls csrc/tests/*.cpp csrc/{cache,common,random,digest,disk,sampling,gather,graph,limits,links,partition,distributed,tfrecord,shm}/*.cpp |
    grep -vE 'sampling/sample_(neighbors|hop).cpp')
if [ -n "${EMULATOR:-}" ]; then
  build_and_run "-O1 -static" <<< "$(grep -v tests/test_shm <<< "$files")"
  exit
fi

sse2=$(for file in $files; do if has_sse2 "$file"; then echo "$file"; fi; done)

build_and_run "-O0 -fsanitize=address,undefined" <<< "$files"
build_and_run "-O0 -fsanitize=address,undefined -U__SSE2__" <<< "$sse2"
rm -f "$build"/*.o
build_and_run "-O1 -fsanitize=thread" <<< "$files"
