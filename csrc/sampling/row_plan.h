// row_plan.h: what a policy is asked, a row, and what it answers (policy.h).
#pragma once

#include <cstdint>

namespace datapipes {

// A row as a policy sees it.
struct Row {
  std::int64_t begin, degree;  // its in-edges: positions in `indices`
  std::int64_t number;
  std::uint64_t node;        // the id that its random stream belongs to
  std::uint32_t stream = 0;  // of the tree that it is drawn for
  std::int64_t time = 0;     // of that tree's seed
};

// What a policy draws of a row: `picks` of the in-edges from `begin` on. It may narrow the row.
struct RowPlan {
  std::int64_t begin, degree, picks;
};

}  // namespace datapipes
