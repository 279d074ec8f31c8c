#include "gather/gather_rows.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "common/stream.h"
#include "common/thread_pool.h"

namespace datapipes {
namespace {

constexpr std::int64_t kLine = kLineBytes;
constexpr std::int64_t kPrefetchBytes = 8192;    // to prefetch ahead: keeps a core's miss buffers full
constexpr std::int64_t kStreamBytes = 8 << 20;   // an output this large exceeds a core's share of the last cache anyway
constexpr std::int64_t kBytesPerTurn = 1 << 18;  // bytes that one thread copies per turn
constexpr std::int64_t kParallelBytes = 2 * kBytesPerTurn;  // for fewer bytes, waking a thread costs more than it saves

void prefetch_row(const std::byte* row, std::int64_t row_bytes) {
  // In long rows the hardware prefetcher takes over after the first lines.
  const std::int64_t end = std::min<std::int64_t>(row_bytes, 16 * kLine);
  for (std::int64_t at = 0; at < end; at += kLine) __builtin_prefetch(row + at, 0, 0);
  __builtin_prefetch(row + end - 1, 0, 0);
}

// copy_row(to, from) copies the bytes of a row.
template <class Id, class CopyRow>
void copy_rows(RowTable table, std::span<const Id> ids, std::byte* out, CopyRow&& copy_row) {
  const auto num_ids = std::ssize(ids);
  const auto row = [&](std::int64_t i) { return table.data + ids[static_cast<std::size_t>(i)] * table.row_stride; };
  const std::int64_t distance = std::clamp<std::int64_t>(kPrefetchBytes / std::max(table.row_bytes, kLine), 2, 64);
  for (std::int64_t i = 0; i < std::min(distance, num_ids); ++i) prefetch_row(row(i), table.row_bytes);
  for (std::int64_t i = 0; i < num_ids; ++i) {
    if (i + distance < num_ids) prefetch_row(row(i + distance), table.row_bytes);
    copy_row(out + i * table.row_bytes, row(i));
  }
}

// With a row width known to the compiler, the copy of a short row is a few moves and no call.
template <std::size_t kBytes, class Id>
void copy_short_rows(RowTable table, std::span<const Id> ids, std::byte* out) {
  table.row_bytes = kBytes;
  copy_rows(table, ids, out, [](std::byte* to, const std::byte* from) { std::memcpy(to, from, kBytes); });
}

template <class Id>
void copy_on_this_thread(RowTable table, std::span<const Id> ids, std::byte* out, bool stream) {
  const auto row_bytes = static_cast<std::size_t>(table.row_bytes);
  if (stream) {
    copy_rows(table, ids, out, [row_bytes](std::byte* to, const std::byte* from) { stream_bytes(to, from, row_bytes); });
    return stream_fence();
  }
  switch (row_bytes) {
    case 1:
      return copy_short_rows<1>(table, ids, out);
    case 2:
      return copy_short_rows<2>(table, ids, out);
    case 4:
      return copy_short_rows<4>(table, ids, out);
    case 8:
      return copy_short_rows<8>(table, ids, out);
    case 16:
      return copy_short_rows<16>(table, ids, out);
    case 32:
      return copy_short_rows<32>(table, ids, out);
    case 64:
      return copy_short_rows<64>(table, ids, out);
    default:
      copy_rows(table, ids, out, [row_bytes](std::byte* to, const std::byte* from) { std::memcpy(to, from, row_bytes); });
  }
}

}  // namespace

template <class Id>
void gather_rows(RowTable table, std::span<const Id> ids, std::byte* out, int threads) {
  for (const Id id : ids) {
    if (static_cast<std::uint64_t>(id) >= static_cast<std::uint64_t>(table.num_rows)) {
      throw std::out_of_range("gather_rows: row id must be in [0, " + std::to_string(table.num_rows) + "), got " +
                              std::to_string(id) + ". Check the ids against the number of rows of the feature.");
    }
  }
  const auto num_ids = std::ssize(ids);
  if (table.row_bytes == 0 || num_ids == 0) return;
  const std::int64_t num_bytes = num_ids * table.row_bytes;
  const bool stream = num_bytes >= kStreamBytes && table.row_bytes % 16 == 0 && reinterpret_cast<std::uintptr_t>(out) % 16 == 0;
  if (threads <= 1 || num_bytes < kParallelBytes) return copy_on_this_thread(table, ids, out, stream);
  const std::int64_t rows_per_turn = std::max<std::int64_t>(1, kBytesPerTurn / table.row_bytes);
  parallel_for((num_ids + rows_per_turn - 1) / rows_per_turn, threads, [&](std::int64_t turn) {
    const std::int64_t begin = turn * rows_per_turn, count = std::min(rows_per_turn, num_ids - begin);
    copy_on_this_thread(table, ids.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)),
                        out + begin * table.row_bytes, stream);
  });
}

template void gather_rows(RowTable, std::span<const std::int32_t>, std::byte*, int);
template void gather_rows(RowTable, std::span<const std::int64_t>, std::byte*, int);

}  // namespace datapipes
