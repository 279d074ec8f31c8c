// draw_negatives.h: the tries of the slots of negatives; docs/semantics.md section 4.7.
//   slots: the stream of each slot. A try draws each of `ends` in turn: a node of a type, uniformly or by weights. The result
//   has, for each end, int64[num slots, num_tries]: the tries from `first_try` on. A try takes a varying number of words, so
//   earlier tries are drawn again.
// Throws std::invalid_argument (ValueError) on an end without nodes, or with weights that are all 0 or too few or many.
// Touches no Python object.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/buffer.h"
#include "sampling/row_sums.h"

namespace datapipes {

struct DrawnEnd {
  std::int64_t num_nodes;
  const RowSums* weights = nullptr;  // one row with an entry for each node; null: uniform
};

// corrupt_pairs: the positives, int64[num_positives, 2], source and destination, then the first try of each slot 0 .. number - 1.
//   Slot j belongs to positive j * num_positives / number. ends: source and destination; an end with num_nodes 0 keeps the
//   positive's. Throws as above.
Buffer<std::int64_t> corrupt_pairs(std::uint64_t key, std::span<const std::int64_t> positives, std::int64_t number,
                                   const DrawnEnd& source, const DrawnEnd& destination);

std::vector<Buffer<std::int64_t>> draw_negatives(std::uint64_t key, std::span<const std::int64_t> slots, std::int64_t first_try,
                                                 std::int64_t num_tries, std::span<const DrawnEnd> ends);

}  // namespace datapipes
