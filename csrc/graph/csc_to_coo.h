// csc_to_coo.h: the edges of the hops of a minibatch as two rows, sources and destinations.
//   edges int64[2 * E]: E sources, from `indices`, then E destinations, the numbers of their rows, hop after hop. A later hop
//   contributes only the rows that the hop before lacks. ids int64[E]: the edge ids, if edge_ids has a span for each hop; else
//   empty.
// Throws std::invalid_argument (ValueError) if an indptr does not ascend within its edges. Touches no Python object.
#pragma once

#include <cstdint>
#include <span>

#include "common/buffer.h"
#include "graph/row_view.h"

namespace datapipes {

struct Coo {
  Buffer<std::int64_t> edges, ids;
};

template <class Id>
Coo csc_to_coo(std::span<const RowView<Id>> hops, std::span<const std::span<const std::int64_t>> edge_ids);

}  // namespace datapipes
