// eligible.h: scans the times of a row whose in-edges are not sorted by time, for temporal.h.
//   In-edge i is eligible if latest[i] <= most and, with has_least, earliest[i] >= least.
//   is_eligible: of one in-edge.
//   count_eligible: the number of eligible in-edges among `count`; it may stop, and return less, once it has found `enough`.
//   mark_eligible: also writes a bit for each in-edge, to words[0 .. num_words(count)), and to ends[w] the number of eligible
//   in-edges up to word w.
// If the row has coarse times (graph/coarse_times.h), these are read, and the times themselves only where a coarse time equals
// a coarse bound. Neither coarse times nor wide code (AVX2) change the result.
#pragma once

#include <cstdint>

#include "graph/coarse_times.h"

namespace datapipes {

struct TimeBounds {
  std::int64_t most, least;
  bool has_least;
};

struct RowTimes {
  const std::int64_t* latest;
  const std::int64_t* earliest;
  std::int64_t count;
  const std::int16_t* coarse = nullptr;  // of latest, if earliest is the same; kCoarsePadding entries behind them are readable
  TimeScale scale = {};
};

struct Marks {
  std::uint64_t* words;
  std::int64_t* ends;
};

inline bool is_eligible(const RowTimes& row, const TimeBounds& bounds, std::int64_t i) {
  return (row.latest[i] <= bounds.most) & (!bounds.has_least | (row.earliest[i] >= bounds.least));
}

constexpr std::int64_t num_words(std::int64_t count) { return (count + 63) / 64; }

std::int64_t count_eligible(const RowTimes& row, const TimeBounds& bounds, std::int64_t enough);
std::int64_t mark_eligible(const RowTimes& row, const TimeBounds& bounds, const Marks& marks);

// The same without the wide code.
std::int64_t mark_eligible_plainly(const RowTimes& row, const TimeBounds& bounds, const Marks& marks);

}  // namespace datapipes
