// read_lines.h: the physical limit of random access on this machine, for benchmarks to stand beside.
//   Reads 8 bytes of each of the lines `lines` (numbers in [0, memory.size() / 64)), many of them under way at once and nothing
//   else done with them: the time a kernel needs at least for as many cache misses. Returns the sum of what was read.
// Throws std::out_of_range (IndexError) on a line outside the memory. Touches no Python object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace datapipes {

std::uint64_t read_lines(std::span<const std::uint8_t> memory, std::span<const std::uint32_t> lines, int threads = 1);

}  // namespace datapipes
