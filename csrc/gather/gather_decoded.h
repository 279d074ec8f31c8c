// gather_decoded.h: copies chosen rows of a table that is stored with fewer bits, as float32 (decode.h).
//   table: as for gather_rows, with row_bytes = width * stored_bytes(stored); ids int32 or int64 [num_ids], repeats
//   allowed; scale float32 [width] for int8; out: num_ids rows of 4 * width bytes without gaps, overlapping none of the
//   others.
// Throws std::out_of_range (IndexError) on an id outside [0, num_rows), as gather_rows. Touches no Python object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "gather/decode.h"
#include "gather/gather_rows.h"

namespace datapipes {

template <class Id>
void gather_decoded(RowTable table, Stored stored, const float* scale, std::span<const Id> ids, std::byte* out, int threads = 1);

}  // namespace datapipes
