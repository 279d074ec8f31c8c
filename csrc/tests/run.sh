#!/usr/bin/env bash
# Builds and runs the kernel tests three times: with ThreadSanitizer, with AddressSanitizer and UndefinedBehaviorSanitizer,
# and with these again without the SSE2 code, as on other processors. Compiling takes most of the time: so the last two do
# not optimise, the last compiles only what has SSE2 code, the two largest units come first, and the tests of one program
# run while the next is compiled.
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

build() {  # NAME FLAGS: compiles the files named on stdin, and links all that are compiled into the program $build/NAME
  tr '\n' '\0' | xargs --null --max-procs="$(nproc)" --replace bash -c 'compile "$@"' _ {} "$2"
  # shellcheck disable=SC2086
  "${CXX:-g++}" -pthread $2 "$build"/*.o -o "$build/$1"
}

end() {  # NAME PID: waits for the tests of a program that run in the background, and shows what they print
  local code=0
  wait "$2" || code=$?
  echo "== $1"
  cat "$build/$1.log"
  return "$code"
}

has_sse2() {  # FILE: whether the file compiles differently without SSE2
  "${CXX:-g++}" -std=c++20 -Icsrc -DDATAPIPES_SHM_STEPS -MM "$1" | sed 's/^[^:]*://' | tr -d '\\' | xargs grep -q __SSE2__
}

files=$(ls csrc/sampling/sample_{neighbors,hop}.cpp
  ls csrc/tests/*.cpp csrc/{cache,common,random,digest,disk,sampling,gather,graph,limits,links,partition,distributed,tables,tfrecord,shm}/*.cpp |
    grep -vE 'sampling/sample_(neighbors|hop).cpp')
if [ -n "${EMULATOR:-}" ]; then
  build tests "-O1 -static" <<< "$(grep -v tests/test_shm <<< "$files")"
  $EMULATOR "$build/tests"
  exit
fi

sse2=$(for file in $files; do if has_sse2 "$file"; then echo "$file"; fi; done)

build thread "-O1 -fsanitize=thread" <<< "$files"
"$build/thread" > "$build/thread.log" 2>&1 &
thread=$!
rm -f "$build"/*.o
build address "-O0 -fsanitize=address,undefined" <<< "$files"
end thread "$thread"
"$build/address" > "$build/address.log" 2>&1 &
address=$!
build address_without_sse2 "-O0 -fsanitize=address,undefined -U__SSE2__" <<< "$sse2"
end address "$address"
echo "== address_without_sse2"
"$build/address_without_sse2"
