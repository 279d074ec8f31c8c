// gather_rows.h: copies chosen rows of a table of fixed-width rows of any dtype.
//   table: num_rows rows of `row_bytes` bytes, `row_stride` bytes apart (row_stride >= row_bytes unless there is one row);
//   ids int32 or int64 [num_ids], repeats allowed; out: num_ids rows of row_bytes bytes without gaps. `out` overlaps
//   neither the table nor the ids.
// Throws std::out_of_range (IndexError) on the first id outside [0, num_rows), at any number of threads; rows may have been
// copied by then. An id is read once, so another process that overwrites it cannot lead a read outside the table.
// Touches no Python object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace datapipes {

struct RowTable {
  const std::byte* data;
  std::int64_t num_rows;
  std::int64_t row_bytes;
  std::int64_t row_stride;
};

template <class Id>
void gather_rows(RowTable table, std::span<const Id> ids, std::byte* out, int threads = 1);

// place_rows: copies chosen rows of a table to chosen places of an output that other calls fill too.
//   rows int32 or int64 [n]: row rows[i] goes to place places[i]; places int64 [n], distinct, best ascending.
//   Without `rows`, row i of the table goes to place places[i], one place for each row.
//   out: num_out rows of row_bytes bytes without gaps, overlapping none of the others.
// Throws std::out_of_range on a row or place outside, as gather_rows; std::invalid_argument, before any row is copied, unless
// there are as many rows as places. A place that is there twice gets one of its rows.
template <class Id>
void place_rows(RowTable table, std::span<const Id> rows, std::span<const std::int64_t> places, std::byte* out,
                std::int64_t num_out, int threads = 1);
void place_rows(RowTable table, std::span<const std::int64_t> places, std::byte* out, std::int64_t num_out, int threads = 1);

}  // namespace datapipes
