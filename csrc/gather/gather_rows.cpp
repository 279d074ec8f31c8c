#include "gather/gather_rows.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "common/stream.h"
#include "common/thread_pool.h"

namespace datapipes {
namespace {

constexpr std::int64_t kLine = kLineBytes;
constexpr std::int64_t kPrefetchBytes = 8192;    // to prefetch ahead: keeps a core's miss buffers full
constexpr std::int64_t kStreamBytes = 8 << 20;   // an output this large exceeds a core's share of the last cache anyway
constexpr std::int64_t kBytesPerTurn = 1 << 18;  // bytes that one thread copies per turn
constexpr std::int64_t kParallelBytes = 2 * kBytesPerTurn;  // for fewer bytes, waking a thread costs more than it saves

// Inlined always: GCC takes a function that only prefetches for one without effect, and drops the calls.
template <int kWrite>
[[gnu::always_inline]] inline void prefetch_row(const std::byte* row, std::int64_t row_bytes) {
  // In long rows the hardware prefetcher takes over after the first lines.
  const std::int64_t end = std::min<std::int64_t>(row_bytes, 16 * kLine);
  for (std::int64_t at = 0; at < end; at += kLine) __builtin_prefetch(row + at, kWrite, 0);
  __builtin_prefetch(row + end - 1, kWrite, 0);
}

// Which row of a table is the i-th: one that an id names, or the i-th itself.
template <class Id>
struct Named {
  std::span<const Id> ids;
  std::int64_t operator[](std::int64_t i) const { return ids[static_cast<std::size_t>(i)]; }
  Named from(std::int64_t begin) const { return {ids.subspan(static_cast<std::size_t>(begin))}; }
};
struct InOrder {
  std::int64_t first = 0;
  std::int64_t operator[](std::int64_t i) const { return first + i; }
  InOrder from(std::int64_t begin) const { return {first + begin}; }
};

// Copies `count` rows, the i-th from row from[i] of the table to place to[i] of out. copy_row(to, from) copies the bytes of one.
template <class From, class To, class CopyRow>
void copy_rows(RowTable table, From from, To to, std::int64_t count, std::byte* out, CopyRow&& copy_row) {
  const auto row = [&](std::int64_t i) { return table.data + from[i] * table.row_stride; };
  const auto place = [&](std::int64_t i) { return out + to[i] * table.row_bytes; };
  const auto prefetch = [&](std::int64_t i) __attribute__((always_inline)) {
    prefetch_row<0>(row(i), table.row_bytes);
    if constexpr (!std::is_same_v<To, InOrder>) prefetch_row<1>(place(i), table.row_bytes);
  };
  const std::int64_t distance = std::clamp<std::int64_t>(kPrefetchBytes / std::max(table.row_bytes, kLine), 2, 64);
  for (std::int64_t i = 0; i < std::min(distance, count); ++i) prefetch(i);
  for (std::int64_t i = 0; i < count; ++i) {
    if (i + distance < count) prefetch(i + distance);
    copy_row(place(i), row(i));
  }
}

// With a row width known to the compiler, the copy of a short row is a few moves and no call.
template <std::size_t kBytes, class From, class To>
void copy_short_rows(RowTable table, From from, To to, std::int64_t count, std::byte* out) {
  table.row_bytes = kBytes;
  copy_rows(table, from, to, count, out, [](std::byte* target, const std::byte* row) { std::memcpy(target, row, kBytes); });
}

template <class From, class To>
void copy_on_this_thread(RowTable table, From from, To to, std::int64_t count, std::byte* out, bool stream) {
  const auto row_bytes = static_cast<std::size_t>(table.row_bytes);
  if (stream) {
    copy_rows(table, from, to, count, out,
              [row_bytes](std::byte* target, const std::byte* row) { stream_bytes(target, row, row_bytes); });
    return stream_fence();
  }
  switch (row_bytes) {
    case 1:
      return copy_short_rows<1>(table, from, to, count, out);
    case 2:
      return copy_short_rows<2>(table, from, to, count, out);
    case 4:
      return copy_short_rows<4>(table, from, to, count, out);
    case 8:
      return copy_short_rows<8>(table, from, to, count, out);
    case 16:
      return copy_short_rows<16>(table, from, to, count, out);
    case 32:
      return copy_short_rows<32>(table, from, to, count, out);
    case 64:
      return copy_short_rows<64>(table, from, to, count, out);
    default:
      copy_rows(table, from, to, count, out,
                [row_bytes](std::byte* target, const std::byte* row) { std::memcpy(target, row, row_bytes); });
  }
}

// Rows and places have been checked.
template <class From, class To>
void copy_on_threads(RowTable table, From from, To to, std::int64_t count, std::byte* out, int threads) {
  if (table.row_bytes == 0 || count == 0) return;
  const std::int64_t num_bytes = count * table.row_bytes;
  const bool stream = num_bytes >= kStreamBytes && table.row_bytes % 16 == 0 && reinterpret_cast<std::uintptr_t>(out) % 16 == 0;
  if (threads <= 1 || num_bytes < kParallelBytes) return copy_on_this_thread(table, from, to, count, out, stream);
  const std::int64_t rows_per_turn = std::max<std::int64_t>(1, kBytesPerTurn / table.row_bytes);
  parallel_for((count + rows_per_turn - 1) / rows_per_turn, threads, [&](std::int64_t turn) {
    const std::int64_t begin = turn * rows_per_turn;
    copy_on_this_thread(table, from.from(begin), to.from(begin), std::min(rows_per_turn, count - begin), out, stream);
  });
}

template <class Id>
void check_inside(const char* op, const char* what, std::span<const Id> ids, std::int64_t count) {
  for (const Id id : ids) {
    if (static_cast<std::uint64_t>(id) >= static_cast<std::uint64_t>(count)) {
      throw std::out_of_range(std::string(op) + ": " + what + " must be in [0, " + std::to_string(count) + "), got " +
                              std::to_string(id) + ". Check the ids against the number of rows of the feature.");
    }
  }
}

void check_counts(std::int64_t rows, std::size_t places) {
  if (rows != static_cast<std::int64_t>(places))
    throw std::invalid_argument("place_rows: " + std::to_string(rows) + " rows for " + std::to_string(places) + " places.");
}

}  // namespace

template <class Id>
void gather_rows(RowTable table, std::span<const Id> ids, std::byte* out, int threads) {
  check_inside("gather_rows", "row id", ids, table.num_rows);
  copy_on_threads(table, Named<Id>{ids}, InOrder(), std::ssize(ids), out, threads);
}

template <class Id>
void place_rows(RowTable table, std::span<const Id> rows, std::span<const std::int64_t> places, std::byte* out,
                std::int64_t num_out, int threads) {
  check_counts(std::ssize(rows), places.size());
  check_inside("place_rows", "row id", rows, table.num_rows);
  check_inside("place_rows", "place", places, num_out);
  copy_on_threads(table, Named<Id>{rows}, Named<std::int64_t>{places}, std::ssize(places), out, threads);
}

void place_rows(RowTable table, std::span<const std::int64_t> places, std::byte* out, std::int64_t num_out, int threads) {
  check_counts(table.num_rows, places.size());
  check_inside("place_rows", "place", places, num_out);
  copy_on_threads(table, InOrder(), Named<std::int64_t>{places}, std::ssize(places), out, threads);
}

template void gather_rows(RowTable, std::span<const std::int32_t>, std::byte*, int);
template void gather_rows(RowTable, std::span<const std::int64_t>, std::byte*, int);
template void place_rows(RowTable, std::span<const std::int32_t>, std::span<const std::int64_t>, std::byte*, std::int64_t, int);
template void place_rows(RowTable, std::span<const std::int64_t>, std::span<const std::int64_t>, std::byte*, std::int64_t, int);

}  // namespace datapipes
