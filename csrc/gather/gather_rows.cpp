#include "gather/gather_rows.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "common/stream.h"
#include "gather/row_loop.h"

namespace datapipes {
namespace {

using namespace row_loop;

// With a row width known to the compiler, the copy of a short row is a few moves and no call.
template <std::size_t kBytes, class From, class To>
void copy_short_rows(RowTable table, From from, To to, std::int64_t count, std::byte* out) {
  table.row_bytes = kBytes;
  copy_rows(table, from, to, count, out, kBytes,
            [](std::byte* target, const std::byte* row) { std::memcpy(target, row, kBytes); });
}

template <class From, class To>
void copy_on_this_thread(RowTable table, From from, To to, std::int64_t count, std::byte* out, bool stream) {
  const auto row_bytes = static_cast<std::size_t>(table.row_bytes);
  if (stream) {
    copy_rows(table, from, to, count, out, table.row_bytes,
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
      copy_rows(table, from, to, count, out, table.row_bytes,
                [row_bytes](std::byte* target, const std::byte* row) { std::memcpy(target, row, row_bytes); });
  }
}

template <class From, class To>
void copy_on_threads(RowTable table, From from, To to, std::int64_t count, std::byte* out, int threads) {
  if (table.row_bytes == 0) return check_all(from, to, count);
  const bool stream = streams(count, table.row_bytes, out);
  in_row_turns(count, table.row_bytes, threads, [&](std::int64_t begin, std::int64_t rows) {
    copy_on_this_thread(table, from.from(begin), to.from(begin), rows, out, stream);
  });
}

void check_counts(std::int64_t rows, std::size_t places) {
  if (rows != static_cast<std::int64_t>(places))
    throw std::invalid_argument("place_rows: " + std::to_string(rows) + " rows for " + std::to_string(places) + " places.");
}

Named<std::int64_t> places_in(std::span<const std::int64_t> places, std::int64_t num_out) {
  return {places, num_out, "place_rows", "place"};
}

}  // namespace

template <class Id>
void gather_rows(RowTable table, std::span<const Id> ids, std::byte* out, int threads) {
  copy_on_threads(table, Named<Id>{ids, table.num_rows, "gather_rows", "row id"}, InOrder(), std::ssize(ids), out, threads);
}

template <class Id>
void place_rows(RowTable table, std::span<const Id> rows, std::span<const std::int64_t> places, std::byte* out,
                std::int64_t num_out, int threads) {
  check_counts(std::ssize(rows), places.size());
  const Named<Id> from{rows, table.num_rows, "place_rows", "row id"};
  copy_on_threads(table, from, places_in(places, num_out), std::ssize(places), out, threads);
}

void place_rows(RowTable table, std::span<const std::int64_t> places, std::byte* out, std::int64_t num_out, int threads) {
  check_counts(table.num_rows, places.size());
  copy_on_threads(table, InOrder(), places_in(places, num_out), std::ssize(places), out, threads);
}

template void gather_rows(RowTable, std::span<const std::int32_t>, std::byte*, int);
template void gather_rows(RowTable, std::span<const std::int64_t>, std::byte*, int);
template void place_rows(RowTable, std::span<const std::int32_t>, std::span<const std::int64_t>, std::byte*, std::int64_t, int);
template void place_rows(RowTable, std::span<const std::int64_t>, std::span<const std::int64_t>, std::byte*, std::int64_t, int);

}  // namespace datapipes
