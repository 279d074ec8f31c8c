#include "gather/gather_rows.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace datapipes {
namespace {

constexpr std::int64_t kLine = 64;
constexpr std::int64_t kPrefetchBytes = 8192;  // asked for ahead of the copy: enough lines to keep a core's miss buffers full

void prefetch_row(const std::byte* row, std::int64_t row_bytes) {
  // The adjacent-line and stream prefetchers take over in long rows, so the first lines suffice.
  const std::int64_t end = std::min<std::int64_t>(row_bytes, 16 * kLine);
  for (std::int64_t at = 0; at < end; at += kLine) __builtin_prefetch(row + at, 0, 0);
  __builtin_prefetch(row + end - 1, 0, 0);
}

// kBytes > 0: a row width known to the compiler, so that a short row is a few moves instead of a call.
template <std::int64_t kBytes, class Id>
void copy_rows(RowTable table, std::span<const Id> ids, std::byte* out) {
  const std::int64_t row_bytes = kBytes > 0 ? kBytes : table.row_bytes;
  const auto num_ids = std::ssize(ids);
  const std::int64_t distance = std::clamp<std::int64_t>(kPrefetchBytes / std::max(row_bytes, kLine), 2, 64);
  for (std::int64_t i = 0; i < std::min(distance, num_ids); ++i) prefetch_row(table.data + ids[i] * table.row_stride, row_bytes);
  for (std::int64_t i = 0; i < num_ids; ++i) {
    if (i + distance < num_ids) prefetch_row(table.data + ids[i + distance] * table.row_stride, row_bytes);
    std::memcpy(out + i * row_bytes, table.data + ids[i] * table.row_stride, static_cast<std::size_t>(row_bytes));
  }
}

}  // namespace

template <class Id>
void gather_rows(RowTable table, std::span<const Id> ids, std::byte* out) {
  for (const Id id : ids) {
    if (static_cast<std::uint64_t>(id) >= static_cast<std::uint64_t>(table.num_rows)) {
      throw std::out_of_range("gather_rows: row id must be in [0, " + std::to_string(table.num_rows) + "), got " +
                              std::to_string(id) + ". Check the ids against the number of rows of the feature.");
    }
  }
  switch (table.row_bytes) {
    case 0:
      return;
    case 1:
      return copy_rows<1>(table, ids, out);
    case 2:
      return copy_rows<2>(table, ids, out);
    case 4:
      return copy_rows<4>(table, ids, out);
    case 8:
      return copy_rows<8>(table, ids, out);
    case 16:
      return copy_rows<16>(table, ids, out);
    case 32:
      return copy_rows<32>(table, ids, out);
    case 64:
      return copy_rows<64>(table, ids, out);
    default:
      return copy_rows<0>(table, ids, out);
  }
}

template void gather_rows(RowTable, std::span<const std::int32_t>, std::byte*);
template void gather_rows(RowTable, std::span<const std::int64_t>, std::byte*);

}  // namespace datapipes
