// futex_hop.h: the limit of handing something to a process that sleeps: a futex wake there, and nothing else.
//   word: in memory that both processes share, aligned, zero before both begin; `had`: hops that it has had before
//   The sender works for `pace_s` before each hop, so that the receiver sleeps; both return the times (std::chrono::steady_clock,
//   seconds) of each hop: when it was sent, when the receiver was awake. Their difference is the time of a hop.
// Throws std::invalid_argument where there is no word, and std::runtime_error when nothing comes for 10 s. Linux.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace datapipes {

std::vector<double> send_futex_hops(std::span<std::byte> word, std::int64_t hops, double pace_s);
std::vector<double> receive_futex_hops(std::span<std::byte> word, std::int64_t hops, std::uint32_t had = 0);

}  // namespace datapipes
