#!/usr/bin/env bash
# Feeds the TFRecord kernels with bytes that libFuzzer makes from tests/corpus/tfrecord/, under AddressSanitizer and
# UndefinedBehaviorSanitizer. Without clang's fuzzer it says so and does nothing. A failing input is kept in build/fuzz/; once
# the fault is corrected, add the input to the corpus as `found-...`.
# Run: csrc/tests/fuzz.sh SECONDS   (FUZZ_CXX chooses the compiler; no Python is needed)
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=$1
compiler=${FUZZ_CXX:-clang++}
flags=(-std=c++20 -O1 -g -Icsrc -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if ! command -v "$compiler" > "$work/found"; then
  echo "fuzzing skipped: there is no $compiler. Install clang, or name it in FUZZ_CXX."
  exit 0
fi
echo '#include <cstddef>
extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, std::size_t) { return 0; }' > "$work/empty.cpp"
if ! "$compiler" "${flags[@]}" "$work/empty.cpp" -o "$work/empty" 2> "$work/why"; then
  echo "fuzzing skipped: $compiler builds no fuzzer: $(grep -m 1 -iE "error|cannot|unsupported" "$work/why")"
  exit 0
fi

mkdir -p build/fuzz "$work/corpus"
"$compiler" "${flags[@]}" csrc/tests/fuzz_tfrecord.cpp csrc/tfrecord/*.cpp -o "$work/fuzz_tfrecord"
cp tests/corpus/tfrecord/* "$work/corpus/"
echo "== fuzzing TFRecords for $seconds s"
"$work/fuzz_tfrecord" -max_total_time="$seconds" -max_len=2048 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
  -artifact_prefix=build/fuzz/ "$work/corpus" > "$work/log" 2>&1 || { tail -n 60 "$work/log"; exit 1; }
grep -E "DONE|stat::number_of_executed_units|stat::peak_rss" "$work/log"
