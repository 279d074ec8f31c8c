#include "partition/id_rank.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "common/load.h"
#include "common/thread_pool.h"

namespace datapipes {
namespace {

constexpr std::int64_t kMostIds = std::int64_t{1} << 48;  // with more, the bits alone exceed any memory
constexpr std::int64_t kAhead = 16;                       // ids between a prefetch and its use
constexpr std::int64_t kAtOnce = 1 << 14;                 // ids that a thread looks up at a time

std::int64_t checked(std::int64_t num_ids) {
  if (num_ids < 0 || num_ids > kMostIds)
    throw std::invalid_argument("id_rank: num_ids must be in [0, 2^48], got " + std::to_string(num_ids) + ".");
  return num_ids;
}

}  // namespace

std::int64_t IdRank::size_bytes(std::int64_t num_ids) {
  return (checked(num_ids) + kBits - 1) / kBits * static_cast<std::int64_t>(sizeof(Line));
}

IdRank::IdRank(std::span<const std::int64_t> ids, std::int64_t num_ids, Order order) : num_ids_(checked(num_ids)) {
  const std::int64_t num_lines = (num_ids + kBits - 1) / kBits;
  own_ = Buffer<Line>(num_lines);
  lines_ = own_.data();
  std::fill_n(own_.data(), num_lines, Line{});
  std::int64_t last = -1;
  for (const std::int64_t id : ids) {
    if (!inside(id) || (order == Order::kAscending && id <= last)) {
      const bool ascending = order == Order::kAscending;
      throw std::invalid_argument("id_rank: the id " + std::to_string(id) + (ascending ? " after " + std::to_string(last) : "") +
                                  "; ids must " + (ascending ? "ascend within" : "be in") + " [0, " + std::to_string(num_ids) +
                                  ").");
    }
    last = id;
    own_[id / kBits].words[id % kBits / 64] |= std::uint64_t{1} << (id % 64);
  }
  for (std::int64_t i = 0; i < num_lines; ++i) {
    Line& line = own_[i];
    line.before = num_rows_;
    std::uint64_t within = 0;
    for (int word = 0; word < kWords; ++word) {
      line.before_words |= within << (9 * word);
      within += static_cast<std::uint64_t>(std::popcount(line.words[word]));
    }
    num_rows_ += static_cast<std::int64_t>(within);
  }
}

IdRank::IdRank(std::span<const std::byte> lines, std::int64_t num_ids)
    : num_ids_(checked(num_ids)), lines_(reinterpret_cast<const Line*>(lines.data())) {
  if (std::ssize(lines) != size_bytes(num_ids) || reinterpret_cast<std::uintptr_t>(lines.data()) % alignof(Line) != 0) {
    throw std::invalid_argument("id_rank: the lines of " + std::to_string(num_ids) + " ids are " +
                                std::to_string(size_bytes(num_ids)) + " bytes, aligned to 64, got " +
                                std::to_string(lines.size()) + ".");
  }
  if (num_ids == 0) return;
  const Line& last = lines_[(num_ids - 1) / kBits];
  num_rows_ = last.before;
  for (const std::uint64_t word : last.words) num_rows_ += std::popcount(word);
}

std::span<const std::byte> IdRank::lines() const {
  return {reinterpret_cast<const std::byte*>(lines_), static_cast<std::size_t>(size_bytes(num_ids_))};
}

template <class Id>
void IdRank::rows(std::span<const Id> wanted, std::span<std::int64_t> out, int num_threads) const {
  if (wanted.size() != out.size()) throw std::invalid_argument("id_rank: as many rows as ids are needed.");
  in_turns(std::ssize(wanted), kAtOnce, num_threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      if (i + kAhead < end && inside(wanted[i + kAhead])) prefetch(wanted[i + kAhead]);
      const std::int64_t id = read_once(wanted[i]);
      out[i] = inside(id) ? row(id) : -1;
    }
  });
}

template void IdRank::rows(std::span<const std::int32_t>, std::span<std::int64_t>, int) const;
template void IdRank::rows(std::span<const std::int64_t>, std::span<std::int64_t>, int) const;

}  // namespace datapipes
