// policy.h: the ways to choose in-edges. A policy is one header, its section of docs/semantics.md and its twin.
//   It is row-local: the picks follow from the policy and the Row (row_plan.h) alone, so a part of a graph can answer.
//     fanout, replace                 for errors
//     RowPlan plan(row)               the in-edges that can be drawn, and the number of picks
//     void plan_block(rows, count, plans)
//                                     instead of plan(): the same for up to kPlannedTogether rows
//     void prefetch(row number)       prefetches the memory that plan() reads for the row
//     void prefetch_in_edges(row)
//                                     with plan_block(): prefetches the memory that it reads for the row's in-edges
//     Scratch::choose(policy, indices, row, picks, out)
//                                     writes the positions of the picks of a row as plan() narrowed it, and prefetches
//                                     their lines in `indices`
//     Scratch::choose_block(policy, indices, row_of, indptr, begin, stop, out)
//                                     instead of choose(): the same for columns [begin, stop). Column d has the row
//                                     row_of(d) and the picks indptr[d] .. indptr[d + 1]; column `begin` goes to out[0]
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
