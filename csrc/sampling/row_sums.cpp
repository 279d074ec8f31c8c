#include "sampling/row_sums.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "common/float16.h"
#include "common/inside.h"
#include "common/load.h"
#include "common/thread_pool.h"

namespace datapipes {
namespace {

constexpr std::int64_t kRowsAtOnce = 4096, kLinesAtOnce = 1 << 15;

std::int64_t whole_lines(std::int64_t num_edges) { return (num_edges + kLineSums - 1) / kLineSums * kLineSums; }

// Each of these converts the bits of a weight to a number.
struct Bool {
  using Bits = std::uint8_t;
  static double value(Bits bits) { return bits != 0 ? 1.0 : 0.0; }
};
struct Float16 {
  using Bits = std::uint16_t;
  static double value(Bits bits) { return float16_value(bits); }
};
struct Bfloat16 {
  using Bits = std::uint16_t;
  static double value(Bits bits) { return bfloat16_value(bits); }
};
struct Float32 {
  using Bits = std::uint32_t;
  static double value(Bits bits) { return std::bit_cast<float>(bits); }
};
struct Float64 {
  using Bits = std::uint64_t;
  static double value(Bits bits) { return std::bit_cast<double>(bits); }
};

[[noreturn]] void throw_bad_weight(const std::string& what, std::int64_t position, std::int64_t node, double found) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", found);
  throw std::invalid_argument(what + " is " + text + " at position " + std::to_string(position) + ", an in-edge of node " +
                              std::to_string(node) +
                              "; weights must be 0 or more and finite. Correct it; a weight of 0 is never "
                              "drawn.");
}

template <class Type>
OwnedRowSums sums_of(const std::string& what, std::span<const std::int64_t> indptr, std::span<const std::byte> values,
                     std::span<const std::int64_t> node_ids, int threads) {
  using Bits = typename Type::Bits;
  const std::int64_t num_rows = std::ssize(indptr) - 1;
  const std::int64_t num_edges = std::ssize(values) / static_cast<std::int64_t>(sizeof(Bits));
  OwnedRowSums made{Buffer<double>(whole_lines(num_edges)), Buffer<double>(num_edges / kLineSums),
                    Buffer<std::int64_t>(num_rows)};
  const auto node_of = [&](std::int64_t row) { return node_ids.empty() ? row : node_ids[static_cast<std::size_t>(row)]; };
  std::fill(made.sums.data() + num_edges, made.sums.data() + made.sums.size(), 0.0);
  std::atomic<bool> zeros{false};
  in_turns(num_rows, kRowsAtOnce, threads, [&](std::int64_t first, std::int64_t last) {
    bool some_zero = false;
    for (std::int64_t row = first; row < last; ++row) {
      const auto at = static_cast<std::size_t>(row);
      const std::int64_t begin = indptr[at], end = indptr[at + 1];
      if (!is_range_inside(begin, end, num_edges)) {
        throw std::invalid_argument(what + ": row " + std::to_string(row) + ": its in-edges begin at " + std::to_string(begin) +
                                    " and end at " + std::to_string(end) + "; 0 <= begin <= end <= " + std::to_string(num_edges) +
                                    " is needed. The graph is corrupt: graph.validate() checks all of it. Make it anew.");
      }
      double sum = 0;
      std::int64_t drawable = 0;
      for (std::int64_t i = begin; i < end; ++i) {
        const auto bits = load<Bits>(values.data() + static_cast<std::size_t>(i) * sizeof(Bits));
        const double weight = Type::value(bits), before = sum;
        if (!(weight >= 0 && weight <= std::numeric_limits<double>::max())) throw_bad_weight(what, i, node_of(row), weight);
        sum += weight;
        drawable += static_cast<std::int64_t>(sum > before);
        made.sums[i] = sum;
      }
      if (!(sum <= std::numeric_limits<double>::max())) {
        throw std::invalid_argument(what + ": the weights of the in-edges of node " + std::to_string(node_of(row)) +
                                    " add up to more than a double holds. Scale them down; only their proportions count.");
      }
      made.drawable[row] = drawable;
      some_zero |= drawable < end - begin;
    }
    if (some_zero) zeros.store(true, std::memory_order_relaxed);
  });
  in_turns(made.coarse.size(), kLinesAtOnce, threads, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t line = first; line < last; ++line) made.coarse[line] = made.sums[line * kLineSums + kLineSums - 1];
  });
  if (!zeros.load()) made.drawable = {};
  return made;
}

}  // namespace

OwnedRowSums make_row_sums(const std::string& what, std::span<const std::int64_t> indptr, std::span<const std::byte> values,
                           WeightType type, std::span<const std::int64_t> node_ids, int threads) {
  if (indptr.empty()) throw std::invalid_argument(what + ": indptr is empty; it needs one entry more than there are rows.");
  if (!node_ids.empty() && node_ids.size() + 1 != indptr.size())
    throw std::invalid_argument(what + ": give one of node_ids for each row.");
  switch (type) {
    case WeightType::kBool:
      return sums_of<Bool>(what, indptr, values, node_ids, threads);
    case WeightType::kFloat16:
      return sums_of<Float16>(what, indptr, values, node_ids, threads);
    case WeightType::kBfloat16:
      return sums_of<Bfloat16>(what, indptr, values, node_ids, threads);
    case WeightType::kFloat32:
      return sums_of<Float32>(what, indptr, values, node_ids, threads);
    default:
      return sums_of<Float64>(what, indptr, values, node_ids, threads);
  }
}

void check_row_sums(const RowSums& sums, std::int64_t num_rows, std::int64_t num_edges) {
  const std::int64_t drawable = std::ssize(sums.drawable);
  if (std::ssize(sums.sums) == whole_lines(num_edges) && std::ssize(sums.coarse) == num_edges / kLineSums &&
      (drawable == 0 || drawable == num_rows))
    return;
  throw std::invalid_argument("weights: " + std::to_string(sums.sums.size()) + " sums, " + std::to_string(sums.coarse.size()) +
                              " coarse sums and " + std::to_string(drawable) + " counts do not fit " + std::to_string(num_rows) +
                              " rows of " + std::to_string(num_edges) + " edges. Make them anew, of the weights of this graph.");
}

}  // namespace datapipes
