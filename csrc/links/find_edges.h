// find_edges.h: whether pairs of nodes are edges.
//   rows: int64[n], the row of the destination of each pair, in a graph or in a part of one. sources: int64[n]. Pairs may repeat.
//   counts: int64[n], the number of in-edges of the row from the source. firsts: int64[n], the position of the first; -1 if
//   there is none.
// A long row is read once for all its pairs, so many pairs with one hub cost no more than a single pair.
// Throws std::out_of_range (IndexError) on a row or source outside the graph, std::invalid_argument (ValueError) on a corrupt
// indptr. Touches no Python object.
#pragma once

#include <cstdint>
#include <span>

#include "common/buffer.h"
#include "graph/row_view.h"

namespace datapipes {

struct FoundEdges {
  Buffer<std::int64_t> counts, firsts;
};

template <class Id>
FoundEdges find_edges(const RowView<Id>& graph, std::span<const std::int64_t> rows, std::span<const std::int64_t> sources);

}  // namespace datapipes
