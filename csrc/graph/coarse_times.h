// coarse_times.h: the times of in-edges in 16 bits each, so that a scan of a row reads a quarter of the bytes
// (sampling/eligible.h).
//   TimeScale: at(t) never descends as t grows, so two different values order their times; equal values do not, unless the
//   value is_exact(). It counts steps of 2^shift from `low` on; all times below the steps have one value, all above another.
//   find_time_scale: the scale that spreads `times` well; steps reach a little beyond all but about 1 in 500 of them.
//   fill_coarse_times: coarse[i] = scale.at(times[i]). coarse int16[times + kCoarsePadding]; the padding is not written, it
//   lets a scan read whole words. The threads share the work.
// Throws std::invalid_argument (ValueError) on spans of the wrong length. Touches no Python object.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

namespace datapipes {

inline constexpr std::int64_t kCoarsePadding = 64;

struct TimeScale {
  static constexpr std::int16_t kBelow = std::numeric_limits<std::int16_t>::min();
  static constexpr std::int16_t kAbove = std::numeric_limits<std::int16_t>::max();
  static constexpr std::uint64_t kSteps = 65534;

  std::int64_t low = 0;
  int shift = 0;

  std::int16_t at(std::int64_t time) const {
    if (time < low) return kBelow;
    const std::uint64_t step = (static_cast<std::uint64_t>(time) - static_cast<std::uint64_t>(low)) >> shift;
    return step < kSteps ? static_cast<std::int16_t>(static_cast<std::int64_t>(step) + kBelow + 1) : kAbove;
  }
  // Whether all times with this value are equal.
  bool is_exact(std::int16_t value) const { return shift == 0 && value != kBelow && value != kAbove; }
};

TimeScale find_time_scale(std::span<const std::int64_t> times);

void fill_coarse_times(std::span<const std::int64_t> times, const TimeScale& scale, std::span<std::int16_t> coarse, int threads);

}  // namespace datapipes
