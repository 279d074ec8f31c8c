// csc_to_coo.h: the edges of several hops, or of any in-edges by destination, as two rows: sources and destinations.
//   edges int64[2 * E]: E sources, as `indices` has them, and then E destinations, the numbers of their columns; E edges of the
//   first part, then those of the next. ids int64[E]: theirs, if each part has edge_ids. Of a part the columns from `first` on
//   are taken.
// Throws std::invalid_argument (ValueError) where an indptr does not ascend within its edges. Touches no Python object.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "common/buffer.h"

namespace datapipes {

template <class Id>
struct CscPart {
  std::span<const std::int64_t> indptr;
  std::span<const Id> indices;
  std::optional<std::span<const std::int64_t>> edge_ids;
  std::int64_t first = 0;
};

struct Coo {
  Buffer<std::int64_t> edges, ids;
};

template <class Id>
Coo csc_to_coo(std::span<const CscPart<Id>> parts);

}  // namespace datapipes
