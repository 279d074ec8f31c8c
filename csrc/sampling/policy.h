// policy.h: the ways to choose in-edges. A policy is one header, its section of docs/semantics.md and its twin.
//   It is row-local: the picks follow from the policy and the Row (row_plan.h) alone, so a part of a graph can answer.
//     fanout, replace                 as the errors name them
//     RowPlan plan(row)               which in-edges can be drawn, and how many are
//     void plan_block(rows, count, plans)
//                                     in its place: the same for up to kPlannedTogether rows
//     void prefetch(row number)       the memory that plan() reads of the row
//     void prefetch_in_edges(row)
//                                     beside plan_block(): the memory that it reads of the row's in-edges
//     Scratch::choose(policy, indices, row, picks, out)
//                                     writes the positions of the picks of a row as plan() narrowed it, and prefetches
//                                     their lines in `indices`
//     Scratch::choose_block(policy, indices, row_of, indptr, begin, stop, out)
//                                     in its place: the same for columns [begin, stop), of which row_of(d) is the row and
//                                     indptr[d] .. indptr[d + 1] the picks; those of column `begin` go to out[0]
#pragma once

#include <variant>

#include "sampling/labor.h"
#include "sampling/temporal.h"
#include "sampling/uniform.h"
#include "sampling/weighted.h"

namespace datapipes {

using Policy = std::variant<Uniform, Temporal, Labor, Weighted>;

inline std::int64_t fanout_of(const Policy& policy) {
  return std::visit([](const auto& each) { return each.fanout; }, policy);
}

}  // namespace datapipes
