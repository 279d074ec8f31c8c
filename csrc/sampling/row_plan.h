// row_plan.h: the input and the output of a policy (policy.h): a row, and its plan.
#pragma once

#include <cstdint>

namespace datapipes {

// A row, as input of a policy.
struct Row {
  std::int64_t begin, degree;  // its in-edges: positions in `indices`
  std::int64_t number;
  std::uint64_t node;        // the node id of its random stream
  std::uint32_t stream = 0;  // the stream of its tree
  std::int64_t time = 0;     // the time of its tree's seed
  std::int64_t window = -1;  // the time window of its tree's seed; -1: it has none of its own
};

// The plan of a row: draw `picks` of the in-edges from `begin` on. A policy may narrow the row.
struct RowPlan {
  std::int64_t begin, degree, picks;
};

}  // namespace datapipes
