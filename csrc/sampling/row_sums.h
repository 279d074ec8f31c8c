// row_sums.h: the running sums of the weights of each row, from which weighted picks are drawn (weighted.h);
// docs/semantics.md section 3.1.
//   RowSums: views of the arrays of make_row_sums, made once per graph; 9 bytes an edge, and 8 a row if some in-edge is never
//   drawn.
//     sums     double[num_edges, rounded up to a multiple of 8]: at each position the sum of the row up to there; 0 behind the
//              last edge.
//     coarse   double[num_edges / 8]: sums[8 g + 7] at g. The search of a long row begins here, in few lines of memory. It
//              leads to 8 sums, which are one line of memory if `sums` is aligned to lines.
//     drawable int64[num_rows], the number of in-edges of each row whose sum is above the sum before; empty if all are.
//   make_row_sums: values has a weight for each edge, of the given type; node_ids int64[num_rows] names the nodes of the rows in
//   errors; empty: the numbers of the rows. O(num_edges). The sums do not depend on `threads`.
// Throws std::invalid_argument (ValueError) on a weight that is negative, infinite or no number, on a row whose sum is
// infinite, and on rows that do not fit the values. `what` names the weights in the message. Touches no Python object.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "common/buffer.h"

namespace datapipes {

inline constexpr std::int64_t kLineSums = 8;  // of one line of memory

struct RowSums {
  std::span<const double> sums;
  std::span<const double> coarse;
  std::span<const std::int64_t> drawable;

  std::int64_t drawable_of(std::int64_t row, std::int64_t degree) const {
    return drawable.empty() ? degree : std::clamp<std::int64_t>(drawable[static_cast<std::size_t>(row)], 0, degree);
  }
  [[gnu::always_inline]] void prefetch_drawable(std::int64_t row) const {
    if (!drawable.empty()) __builtin_prefetch(&drawable[static_cast<std::size_t>(row)]);
  }
};

[[noreturn]] inline void throw_bad_sums() {
  throw std::invalid_argument("weights: the sums of a row changed while they were drawn from. Leave them as they are.");
}

struct OwnedRowSums {
  Buffer<double> sums, coarse;
  Buffer<std::int64_t> drawable;
};

enum class WeightType { kBool, kFloat16, kBfloat16, kFloat32, kFloat64 };

OwnedRowSums make_row_sums(const std::string& what, std::span<const std::int64_t> indptr, std::span<const std::byte> values,
                           WeightType type, std::span<const std::int64_t> node_ids = {}, int threads = 1);

// Throws std::invalid_argument if the lengths of the sums do not fit the rows.
void check_row_sums(const RowSums& sums, std::int64_t num_rows, std::int64_t num_edges);

}  // namespace datapipes
