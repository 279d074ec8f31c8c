// walk_steps.h: the chances of node2vec, and one step of walks for rows of a part of a graph; docs/semantics.md section 4.11.
//   A part draws the in-edges that a walk may take, but does not know which sources are near: have an edge to the node before.
//   draw_steps: for walk i at rows[i], with the number walkers[i], that came from before[i] (-1: no such node), the in-edges in
//   the order in which they decide: those that are accepted if the source is near, or if it is far, then one that is accepted
//   for sure. If no draw of 64 is sure: the whole row, and with weights its running sums. Nothing: the walk ends.
//   chosen_steps: for each walk the place of its in-edge among those of draw_steps, given which sources are near; -1: it ends.
// Throws std::out_of_range (IndexError) on a row that is not there, std::invalid_argument (ValueError) on lengths that do not
// fit, on a corrupt graph, and on in-edges that draw_steps does not give. Touches no Python object.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "common/buffer.h"
#include "graph/row_view.h"
#include "sampling/row_sums.h"

namespace datapipes {

inline constexpr int kMostRefusals = 64;  // of in-edges, by node2vec; then one draw decides

// The chances of node2vec, as the words that accept: those below a limit.
struct Acceptance {
  std::uint64_t back, near, far;  // in-edges from the node before, from a source of its in-edges, from any other
  double back_weight, far_weight;
  bool is_plain;

  Acceptance(double p, double q) : back_weight(1 / p), far_weight(1 / q), is_plain(p == 1 && q == 1) {
    const double most = std::max({back_weight, 1.0, far_weight});
    const auto limit = [&](double weight) { return static_cast<std::uint64_t>(weight / most * 0x1p32); };
    back = limit(back_weight), near = limit(1.0), far = limit(far_weight);
  }
};

// What the walks of a step have in common.
struct WalkStep {
  std::uint64_t key;
  std::uint64_t number;     // of the step
  std::uint64_t end_below;  // 0: no word is taken
  double p = 1, q = 1;
};

enum class StepKind : std::uint8_t { kSure, kIfNear, kIfFar, kRow };

template <class Id>
struct DrawnSteps {
  Buffer<std::int64_t> counts;  // [walks]
  Buffer<Id> sources;           // [sum of counts], as all below
  Buffer<std::int64_t> positions;
  Buffer<std::uint8_t> kinds;  // StepKind
  Buffer<double> sums;         // empty without weights; 0 but in whole rows
};

template <class Id>
DrawnSteps<Id> draw_steps(const char* op, const RowView<Id>& graph, std::span<const std::int64_t> rows,
                          std::span<const std::int64_t> walkers, std::span<const std::int64_t> before, const WalkStep& step,
                          const std::optional<RowSums>& sums);

template <class Id>
struct StepsGiven {
  std::span<const std::int64_t> counts;
  std::span<const Id> sources;
  std::span<const std::uint8_t> kinds;
  std::span<const double> sums;        // empty without weights
  std::span<const std::uint8_t> near;  // of each in-edge; read where it decides
};

template <class Id>
Buffer<std::int64_t> chosen_steps(const StepsGiven<Id>& given, std::span<const std::int64_t> walkers,
                                  std::span<const std::int64_t> before, const WalkStep& step);

}  // namespace datapipes
