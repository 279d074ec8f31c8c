// row_sums.h: the running sums of the weights of each row, from which weighted picks are drawn (weighted.h);
// docs/semantics.md section 3.1.
//   RowSums: views of what make_row_sums made once for a graph, 9 bytes an edge, and 8 a row if some in-edge is never drawn.
//     sums     double[num_edges, rounded up to a multiple of 8]: at each position the sum of the row up to there. What is
//              behind the last edge is 0.
//     coarse   double[num_edges / 8]: sums[8 g + 7] at g. The search of a long row begins here, in few lines of memory; the
//              line of 8 sums that it leads to is one line of `sums`, where these begin at a line.
//     drawable int64[num_rows], how many in-edges of each row have a sum above the one before; empty where all have.
//   make_row_sums: values has a weight for each edge, of the given type; node_ids int64[num_rows] names the nodes of the rows in
//   errors, or is empty where these are their numbers. O(num_edges). The sums do not depend on `threads`.
// Throws std::invalid_argument (ValueError) on a weight that is negative, infinite or no number, on a row whose sum is
// infinite, and on rows that do not fit the values. `what` names the weights in it. Touches no Python object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/buffer.h"

namespace datapipes {

inline constexpr std::int64_t kLineSums = 8;  // of one line of memory

struct RowSums {
  std::span<const double> sums;
  std::span<const double> coarse;
  std::span<const std::int64_t> drawable;
};

struct OwnedRowSums {
  Buffer<double> sums, coarse;
  Buffer<std::int64_t> drawable;
};

enum class WeightType { kBool, kFloat16, kBfloat16, kFloat32, kFloat64 };

OwnedRowSums make_row_sums(const std::string& what, std::span<const std::int64_t> indptr, std::span<const std::byte> values,
                           WeightType type, std::span<const std::int64_t> node_ids = {}, int threads = 1);

// Throws std::invalid_argument if the sums are not as long as the rows ask for.
void check_row_sums(const RowSums& sums, std::int64_t num_rows, std::int64_t num_edges);

}  // namespace datapipes
