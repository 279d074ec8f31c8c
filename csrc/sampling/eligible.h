// eligible.h: scans the times of a row whose in-edges are in no order, for temporal.h.
//   In-edge i is eligible if latest[i] <= most, and earliest[i] >= least where has_least.
//   count_eligible: how many of `count` in-edges are; it may stop, and return less, once it has found `enough`.
//   mark_eligible: also writes a bit for each, to words[0 .. num_words(count)), and to ends[w] how many are up to word w.
// Where the row has coarse times (graph/coarse_times.h), they are read, and the times themselves only where two coarse ones are
// equal. The result is the same, and the wide code, for processors that have it, gives the same as the plain one.
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
  const std::int16_t* coarse = nullptr;  // of latest, if earliest is the same; kCoarsePadding more of them can be read
  TimeScale scale = {};
};

struct Marks {
  std::uint64_t* words;
  std::int64_t* ends;
};

constexpr std::int64_t num_words(std::int64_t count) { return (count + 63) / 64; }

std::int64_t count_eligible(const RowTimes& row, const TimeBounds& bounds, std::int64_t enough);
std::int64_t mark_eligible(const RowTimes& row, const TimeBounds& bounds, const Marks& marks);

// The same without the wide code.
std::int64_t mark_eligible_plainly(const RowTimes& row, const TimeBounds& bounds, const Marks& marks);

}  // namespace datapipes
