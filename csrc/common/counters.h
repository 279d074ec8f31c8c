// counters.h: counters in memory that several processes share.
//   add_to(counters, amounts): adds each amount to its counter. No addition is lost if many threads and processes add at
//   once. Each counter is updated atomically, but not all counters together.
// Throws std::invalid_argument unless there are as many amounts as counters. Touches no Python object.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

namespace datapipes {

inline void add_to(std::span<std::int64_t> counters, std::span<const std::int64_t> amounts) {
  if (counters.size() != amounts.size())
    throw std::invalid_argument("add_to: " + std::to_string(amounts.size()) + " amounts for " + std::to_string(counters.size()) +
                                " counters.");
  for (std::size_t i = 0; i < counters.size(); ++i)
    std::atomic_ref<std::int64_t>(counters[i]).fetch_add(amounts[i], std::memory_order_relaxed);
}

}  // namespace datapipes
