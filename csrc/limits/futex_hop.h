// futex_hop.h: measures the least time to hand something to a sleeping process: one futex wake and nothing else.
//   memory: shared by both processes, 4 aligned bytes, zero before both begin; `had`: hops made before this call.
//   The sender is busy for `pace_s` before each hop, so that the receiver sleeps. The sender returns the times at which it
//   sent the hops, the receiver the times at which it was awake (std::chrono::steady_clock, seconds). The difference is the
//   time of a hop.
// Throws std::invalid_argument if `memory` holds no aligned word, std::runtime_error if no hop arrives for 10 s. Linux
// only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace datapipes {

std::vector<double> send_futex_hops(std::span<std::byte> word, std::int64_t hops, double pace_s);
std::vector<double> receive_futex_hops(std::span<std::byte> word, std::int64_t hops, std::uint32_t had = 0);

}  // namespace datapipes
