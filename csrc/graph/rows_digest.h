// rows_digest.h: a digest of one value for each in-edge (weights, times), as a sum over rows in any order. So the digests of
// the parts of a graph add up to that of the whole graph.
//   indptr int64[num_rows + 1]; row r has the values at indptr[r] .. indptr[r + 1) and belongs to node_ids[r], or to node r if
//   node_ids is empty. values: num_values numbers of 1, 2, 4 or 8 bytes; their bits count.
//   The value with the bits w, the j-th of the row of node v (from 0), gives, mod 2^64 throughout,
//     x = mix(mix(v + G) + (j + 1) * G),  low = mix(x ^ w),  high = mix(low + (x rotated left by 32) + G),
//   with G = 0x9E3779B97F4A7C15 and mix(z): z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9, z = (z ^ z >> 27) * 0x94D049BB133111EB,
//   z ^ z >> 31 (Steele, Lea and Flood, OOPSLA 2014). The digest is the sum of high * 2^64 + low over all values, mod 2^128.
//   It detects changed values, but does not protect against values made to collide.
// O(num_values); the result does not depend on `threads`. Throws std::invalid_argument (ValueError) if indptr descends or
// leaves the values. Touches no Python object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace datapipes {

struct RowsDigest {
  std::uint64_t high = 0, low = 0;
};

RowsDigest rows_digest(std::span<const std::int64_t> indptr, std::span<const std::byte> values, int bytes_per_value,
                       std::span<const std::int64_t> node_ids, int threads = 1);

}  // namespace datapipes
