#include "partition/id_rank.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

#include "common/thread_pool.h"

namespace datapipes {
namespace {

constexpr std::int64_t kMostIds = std::int64_t{1} << 48;  // with more, the bits alone exceed any memory
constexpr std::int64_t kAhead = 16;                       // ids between a prefetch and its use
constexpr std::int64_t kAtOnce = 1 << 14;                 // ids that a thread looks up at a time

}  // namespace

IdRank::IdRank(std::span<const std::int64_t> ids, std::int64_t num_ids) : num_ids_(num_ids) {
  if (num_ids < 0 || num_ids > kMostIds)
    throw std::invalid_argument("id_rank: num_ids must be in [0, 2^48], got " + std::to_string(num_ids) + ".");
  const std::int64_t num_lines = (num_ids + kBits - 1) / kBits;
  lines_ = Buffer<Line>(num_lines);
  std::fill_n(lines_.data(), num_lines, Line{});
  std::int64_t last = -1;
  for (const std::int64_t id : ids) {
    if (id <= last || id >= num_ids) {
      throw std::invalid_argument("id_rank: the id " + std::to_string(id) + " after " + std::to_string(last) +
                                  "; ids must ascend within [0, " + std::to_string(num_ids) + ").");
    }
    last = id;
    lines_[id / kBits].words[id % kBits / 64] |= std::uint64_t{1} << (id % 64);
  }
  std::int64_t before = 0;
  for (std::int64_t i = 0; i < num_lines; ++i) {
    Line& line = lines_[i];
    line.before = before;
    std::uint64_t inside = 0;
    for (int word = 0; word < kWords; ++word) {
      line.before_words |= inside << (9 * word);
      inside += static_cast<std::uint64_t>(std::popcount(line.words[word]));
    }
    before += static_cast<std::int64_t>(inside);
  }
}

template <class Id>
void IdRank::rows(std::span<const Id> wanted, std::span<std::int64_t> out, int num_threads) const {
  if (wanted.size() != out.size()) throw std::invalid_argument("id_rank: as many rows as ids are needed.");
  const std::int64_t count = std::ssize(wanted);
  const auto inside = [&](Id id) { return static_cast<std::uint64_t>(id) < static_cast<std::uint64_t>(num_ids_); };
  parallel_for((count + kAtOnce - 1) / kAtOnce, num_threads, [&](std::int64_t part) {
    const std::int64_t begin = part * kAtOnce, end = std::min(begin + kAtOnce, count);
    for (std::int64_t i = begin; i < end; ++i) {
      if (i + kAhead < end && inside(wanted[i + kAhead])) __builtin_prefetch(lines_.data() + wanted[i + kAhead] / kBits);
      const Id id = wanted[i];
      std::int64_t row = -1;
      if (inside(id)) {
        const Line& line = lines_[id / kBits];
        const auto word = static_cast<int>(id % kBits / 64);
        const std::uint64_t bit = std::uint64_t{1} << (id % 64), found = line.words[word];
        if ((found & bit) != 0) {
          row = line.before + static_cast<std::int64_t>(line.before_words >> (9 * word) & 511) + std::popcount(found & (bit - 1));
        }
      }
      out[i] = row;
    }
  });
}

template void IdRank::rows(std::span<const std::int32_t>, std::span<std::int64_t>, int) const;
template void IdRank::rows(std::span<const std::int64_t>, std::span<std::int64_t>, int) const;

}  // namespace datapipes
