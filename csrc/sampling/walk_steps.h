// walk_steps.h: the chances of node2vec, and one step of walks for rows of a part of a graph; docs/semantics.md section 4.11.
//   A part draws the in-edges that a walk may take, but does not know which sources are near: have an edge to the node before.
//   draw_steps: for walk i at rows[i], with the number walkers[i], that came from before[i] (-1: no such node), the in-edges in
//   the order in which they decide: those that are accepted if the source is near, or if it is far, then one that is accepted
//   for sure; or one of the kind kOpen, which stands for the whole row, if none of 64 draws is sure. Nothing: the walk ends.
//   whole_rows: all in-edges of each row; of a row with more than its `most`, if that is given, only their number.
//   chosen_in_rows: for each walk, given the row that it is at, the place of its in-edge.
// Throws std::out_of_range (IndexError) on a row that is not there, std::invalid_argument (ValueError) on lengths that do not
// fit, on a corrupt graph, and on in-edges that draw_steps does not give. Touches no Python object.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/buffer.h"
#include "graph/row_view.h"
#include "random/philox.h"
#include "sampling/row_sums.h"
#include "sampling/sums_search.h"

namespace datapipes {

inline constexpr int kMostRefusals = 64;  // of in-edges, by node2vec; then one draw decides

// The chances of in-edges: those from the node before (back), those whose source is near, and all others.
struct Acceptance {
  std::uint64_t back, near, far;  // the words that accept are below
  double back_weight, far_weight;
  bool is_plain;

  Acceptance(double p, double q) : back_weight(1 / p), far_weight(1 / q), is_plain(p == 1 && q == 1) {
    const double most = std::max({back_weight, 1.0, far_weight});
    const auto limit = [&](double weight) { return static_cast<std::uint64_t>(weight / most * 0x1p32); };
    back = limit(back_weight), near = limit(1.0), far = limit(far_weight);
  }
  double weight(bool is_back, bool is_near) const { return is_back ? back_weight : is_near ? 1.0 : far_weight; }
  bool knows_without_near() const { return near == far && far_weight == 1; }
};

// Throws std::invalid_argument unless the chances can be computed.
inline void check_chances(double p, double q, std::uint64_t end_below) {
  const auto is_allowed = [](double bias) { return bias >= 0x1p-64 && bias <= 0x1p64; };
  if (!is_allowed(p) || !is_allowed(q) || end_below > std::uint64_t{1} << 32)
    throw std::invalid_argument("p and q must be in [2^-64, 2^64], and end_below at most 2^32.");
}

// The weight of an in-edge of a row, given the running sums of the row; null: each has the weight 1.
inline double weight_at(const double* sums, std::int64_t i) {
  return sums == nullptr ? 1.0 : i == 0 ? sums[0] : sums[i] - sums[i - 1];
}

// Draws one of `degree` in-edges in proportion to weight_of(i); `sums` is scratch memory.
template <class WeightOf>
std::int64_t draw_by_weights(Stream& stream, std::int64_t degree, std::vector<double>& sums, WeightOf&& weight_of) {
  sums.resize(static_cast<std::size_t>(degree));
  double total = 0;
  for (std::int64_t i = 0; i < degree; ++i) sums[static_cast<std::size_t>(i)] = total += weight_of(i);
  if (!std::isfinite(total) || !(total > 0))
    throw std::invalid_argument("the weights of the in-edges of a node, times 1/p and 1/q, add up to " + std::to_string(total) +
                                "; a finite number above 0 is needed. Scale the weights.");
  const std::uint32_t high = stream.word(), low = stream.word();
  const auto found = std::upper_bound(sums.begin(), sums.end(), place_of(high, low, total)) - sums.begin();
  return found == degree ? last_drawable(sums.data(), 0, degree) : found;
}

// What the walks of a step have in common.
struct WalkStep {
  std::uint64_t key;
  std::uint64_t number;     // of the step
  std::uint64_t end_below;  // 0: no word is taken
  double p = 1, q = 1;
};

enum class StepKind : std::uint8_t { kSure, kIfNear, kIfFar, kOpen };

template <class Id>
struct DrawnSteps {
  Buffer<std::int64_t> counts;  // [walks], or [rows]
  Buffer<Id> sources;           // [sum of counts], as all below
  Buffer<std::int64_t> positions;
  Buffer<std::uint8_t> kinds;  // StepKind; empty for whole rows
  Buffer<double> sums;         // for whole rows with weights, else empty
};

template <class Id>
DrawnSteps<Id> draw_steps(const char* op, const RowView<Id>& graph, std::span<const std::int64_t> rows,
                          std::span<const std::int64_t> walkers, std::span<const std::int64_t> before, const WalkStep& step,
                          const std::optional<RowSums>& sums);

template <class Id>
DrawnSteps<Id> whole_rows(const char* op, const RowView<Id>& graph, std::span<const std::int64_t> rows,
                          std::span<const std::int64_t> most, const std::optional<RowSums>& sums);

// counts, sources and sums (empty without weights): of the row of each walk.
Buffer<std::int64_t> chosen_in_rows(std::span<const std::int64_t> counts, std::span<const std::int64_t> sources,
                                    std::span<const double> sums, std::span<const std::uint8_t> near,
                                    std::span<const std::int64_t> walkers, std::span<const std::int64_t> before,
                                    const WalkStep& step);

}  // namespace datapipes
