#include "graph/coarse_times.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/thread_pool.h"

namespace datapipes {

TimeScale find_time_scale(std::span<const std::int64_t> times) {
  constexpr std::int64_t kSample = 4096, kOutside = 512;
  if (times.empty()) return {};
  std::vector<std::int64_t> sample;
  const std::int64_t stride = std::ssize(times) / kSample + 1;
  for (std::int64_t i = 0; i < std::ssize(times); i += stride) sample.push_back(times[static_cast<std::size_t>(i)]);
  std::sort(sample.begin(), sample.end());
  const auto outside = static_cast<std::size_t>(std::ssize(sample) / kOutside);
  const std::int64_t first = sample[outside], last = sample[sample.size() - 1 - outside];
  // The sample need not hold the smallest and the largest time, so an eighth is added on both sides.
  const std::uint64_t range = static_cast<std::uint64_t>(last) - static_cast<std::uint64_t>(first), more = range / 8;
  const std::uint64_t room =
      static_cast<std::uint64_t>(first) - static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::min());
  TimeScale scale{static_cast<std::int64_t>(static_cast<std::uint64_t>(first) - std::min(more, room)), 0};
  const std::uint64_t wanted = range + std::min(2 * more, ~range);
  while (wanted >> scale.shift >= TimeScale::kSteps) ++scale.shift;
  return scale;
}

void fill_coarse_times(std::span<const std::int64_t> times, const TimeScale& scale, std::span<std::int16_t> coarse, int threads) {
  constexpr std::int64_t kAtOnce = 1 << 16;
  if (std::ssize(coarse) != std::ssize(times) + kCoarsePadding)
    throw std::invalid_argument("coarse_times: coarse has " + std::to_string(coarse.size()) + " entries; it needs " +
                                std::to_string(std::ssize(times) + kCoarsePadding) + ".");
  const TimeScale of = scale;  // a copy, so that the compiler knows that no store changes it
  in_turns(std::ssize(times), kAtOnce, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) coarse[static_cast<std::size_t>(i)] = of.at(times[static_cast<std::size_t>(i)]);
  });
}

}  // namespace datapipes
