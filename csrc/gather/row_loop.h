// row_loop.h: the loop that row gathers share: looking up and checking the i-th row, prefetches, turns of threads.
//   Internal to gather/.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "common/inside.h"
#include "common/load.h"
#include "common/stream.h"
#include "common/thread_pool.h"
#include "gather/gather_rows.h"

namespace datapipes::row_loop {

constexpr std::int64_t kLine = kLineBytes;
constexpr std::int64_t kPrefetchBytes = 8192;    // of output to prefetch ahead: keeps a core's miss buffers full
constexpr std::int64_t kStreamBytes = 8 << 20;   // an output this large exceeds a core's share of the last cache anyway
constexpr std::int64_t kBytesPerTurn = 1 << 18;  // bytes that one thread writes per turn
constexpr std::int64_t kParallelBytes = 2 * kBytesPerTurn;  // for fewer bytes, waking a thread costs more than it saves

// Inlined always: GCC takes a function that only prefetches for one without effect, and drops the calls.
template <int kWrite>
[[gnu::always_inline]] inline void prefetch_row(const std::byte* row, std::int64_t row_bytes) {
  // In long rows the hardware prefetcher takes over after the first lines. Prefetch into all caches: on Intel's newest
  // processors, with a distant last cache, a prefetch that skips the outer caches (locality 0) doubles the time of a short row.
  const std::int64_t end = std::min<std::int64_t>(row_bytes, 16 * kLine);
  for (std::int64_t at = 0; at < end; at += kLine) __builtin_prefetch(row + at, kWrite);
  __builtin_prefetch(row + end - 1, kWrite);
}

[[noreturn]] [[gnu::cold]] [[gnu::noinline]] inline void throw_outside(const char* op, const char* what, std::int64_t id,
                                                                       std::int64_t count) {
  throw std::out_of_range(std::string(op) + ": " + what + " must be in [0, " + std::to_string(count) + "), got " +
                          std::to_string(id) + ". Check the ids against the number of rows of the feature.");
}

// The number of the i-th row, in [0, count): ids[i], or i itself without ids. An id is read once, when it is checked.
template <class Id>
struct Named {
  std::span<const Id> ids;
  std::int64_t count;
  const char* op;
  const char* what;
  std::int64_t operator[](std::int64_t i) const {
    const std::int64_t id = read_once(ids[static_cast<std::size_t>(i)]);
    if (!is_inside(id, count)) [[unlikely]]
      throw_outside(op, what, id, count);
    return id;
  }
  Named from(std::int64_t begin) const { return {ids.subspan(static_cast<std::size_t>(begin)), count, op, what}; }
};
struct InOrder {
  std::int64_t first = 0;
  std::int64_t operator[](std::int64_t i) const { return first + i; }
  InOrder from(std::int64_t begin) const { return {first + begin}; }
};

// Writes `count` rows of `out_bytes` bytes, the i-th from row from[i] of the table to place to[i] of out.
// copy_row(to, from) writes one row. Some rows before a row is copied, its id is read and the row prefetched.
template <class From, class To, class CopyRow>
[[gnu::always_inline]] inline void copy_rows(RowTable table, From from, To to, std::int64_t count, std::byte* out,
                                             std::int64_t out_bytes, CopyRow&& copy_row) {
  constexpr std::size_t kMost = 64;
  constexpr bool kPlaced = !std::is_same_v<To, InOrder>;
  const std::byte* rows[kMost];
  [[maybe_unused]] std::byte* places[kMost];
  const auto read = [&](std::int64_t i) __attribute__((always_inline)) {
    const std::size_t at = static_cast<std::size_t>(i) % kMost;
    rows[at] = table.data + from[i] * table.row_stride;
    prefetch_row<0>(rows[at], table.row_bytes);
    if constexpr (kPlaced) {
      places[at] = out + to[i] * out_bytes;
      prefetch_row<1>(places[at], out_bytes);
    }
  };
  const std::int64_t distance = std::clamp<std::int64_t>(kPrefetchBytes / std::max(out_bytes, kLine), 2, std::int64_t{kMost});
  for (std::int64_t i = 0; i < std::min(distance, count); ++i) read(i);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::size_t at = static_cast<std::size_t>(i) % kMost;
    const std::byte* const row = rows[at];
    std::byte* place = nullptr;
    if constexpr (kPlaced) {
      place = places[at];
    } else {
      place = out + to[i] * out_bytes;
    }
    if (i + distance < count) read(i + distance);
    copy_row(place, row);
  }
}

// Checks the ids of rows without bytes.
template <class From, class To>
void check_all(From from, To to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) (void)from[i], (void)to[i];
}

// Returns whether rows of `out_bytes` bytes are written past the cache.
inline bool streams(std::int64_t count, std::int64_t out_bytes, const std::byte* out) {
  return count * out_bytes >= kStreamBytes && out_bytes % 16 == 0 && reinterpret_cast<std::uintptr_t>(out) % 16 == 0;
}

// Calls work(begin, count) for turns of rows of `out_bytes` bytes, on up to `threads` threads.
template <class Work>
void in_row_turns(std::int64_t count, std::int64_t out_bytes, int threads, Work&& work) {
  if (threads <= 1 || count * out_bytes < kParallelBytes) return work(std::int64_t{0}, count);
  const std::int64_t rows_per_turn = std::max<std::int64_t>(1, kBytesPerTurn / out_bytes);
  in_turns(count, rows_per_turn, threads, [&](std::int64_t begin, std::int64_t end) { work(begin, end - begin); });
}

}  // namespace datapipes::row_loop
