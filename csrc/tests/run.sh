#!/usr/bin/env bash
# Builds the kernel tests twice, with AddressSanitizer and UndefinedBehaviorSanitizer and with ThreadSanitizer, and runs both.
# Run: csrc/tests/run.sh   (CXX chooses the compiler; no Python is needed)
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT

for sanitizers in address,undefined thread; do
  echo "== -fsanitize=$sanitizers"
  "${CXX:-g++}" -std=c++20 -O1 -g -Icsrc -Wall -Wextra -Werror -pthread \
    "-fsanitize=$sanitizers" -fno-sanitize-recover=all \
    csrc/tests/*.cpp csrc/{common,random,sampling,gather,graph,limits}/*.cpp -o "$build/test_kernels"
  "$build/test_kernels"
done
