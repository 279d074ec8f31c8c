// read_lines.h: measures the physical limit of random access on this machine; benchmarks compare kernels with it.
//   Reads 8 bytes of each of the cache lines `lines` (numbers in [0, memory.size() / 64)), with many reads under way at
//   once and no other work. No kernel can do as many cache misses in less time. Returns the sum of the values.
// Throws std::out_of_range (IndexError) on a line outside the memory. Touches no Python object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace datapipes {

std::uint64_t read_lines(std::span<const std::uint8_t> memory, std::span<const std::uint32_t> lines, int threads = 1);

}  // namespace datapipes
