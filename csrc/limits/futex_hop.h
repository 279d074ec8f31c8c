// futex_hop.h: the limit of handing something to a sleeping process: seconds of one hop, there by a futex wake and back by
// another.
//   words: two 32-bit words in memory that both processes share, zero before both begin
//   first: one process passes true, the other false, with the same `hops`; returns the seconds of each round trip of the first
//   one, halved
// Throws std::invalid_argument where the words do not lie there, and std::runtime_error when the other does not answer within 10
// s. Linux.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace datapipes {

std::vector<double> futex_hops(std::span<std::byte> words, std::int64_t hops, bool first);

}  // namespace datapipes
