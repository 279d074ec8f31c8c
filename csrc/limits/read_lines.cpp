#include "limits/read_lines.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>

#include "common/load.h"
#include "common/thread_pool.h"

namespace datapipes {
namespace {

constexpr std::int64_t kLine = 64;
constexpr std::int64_t kDistance = 32;           // lines to prefetch ahead: more than a core has miss buffers
constexpr std::int64_t kLinesPerTurn = 1 << 14;  // lines that one thread reads per turn

std::uint64_t read_some(const std::uint8_t* memory, std::span<const std::uint32_t> lines) {
  const auto count = std::ssize(lines);
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    __builtin_prefetch(memory + kLine * lines[static_cast<std::size_t>(std::min(i + kDistance, count - 1))]);
    sum += load<std::uint64_t>(memory + kLine * lines[static_cast<std::size_t>(i)]);
  }
  return sum;
}

}  // namespace

std::uint64_t read_lines(std::span<const std::uint8_t> memory, std::span<const std::uint32_t> lines, int threads) {
  const std::size_t num_lines = memory.size() / kLine;
  for (const std::uint32_t line : lines) {
    if (line >= num_lines) {
      throw std::out_of_range("read_lines: line must be in [0, " + std::to_string(num_lines) + "), got " + std::to_string(line) +
                              ". Draw the lines for this memory.");
    }
  }
  std::atomic<std::uint64_t> sum{0};
  in_turns(std::ssize(lines), kLinesPerTurn, threads, [&](std::int64_t begin, std::int64_t end) {
    sum += read_some(memory.data(), lines.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
  });
  return sum;
}

}  // namespace datapipes
