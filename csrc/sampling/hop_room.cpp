#include "sampling/hop_room.h"

#include <limits>
#include <utility>

#include "common/buffer_pool.h"
#include "shm/memory_left.h"

namespace datapipes {
namespace {

thread_local std::uint64_t hop_limit = kNoLimit;

constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();

std::uint64_t product(std::int64_t a, std::int64_t b) {
  std::uint64_t result = 0;
  const bool over = __builtin_mul_overflow(static_cast<std::uint64_t>(a), static_cast<std::uint64_t>(b), &result);
  return over ? kMost : result;
}

std::uint64_t sum(std::uint64_t a, std::uint64_t b) { return a > kMost - b ? kMost : a + b; }

std::string begin_of(const HopRoom& room, std::int64_t picks) {
  return std::string(room.op) + ": hop " + std::to_string(room.hop) + " (0 is next to the seeds) with fanout " +
         std::to_string(room.fanout) + (room.replace ? ", drawn with replacement," : "") + " would hold " +
         std::to_string(picks) + " in-edges";
}

constexpr const char* kRemedy = " Use a smaller fanout or fewer seeds in a minibatch.";

}  // namespace

void HopRoom::check(std::int64_t picks, std::int64_t largest, std::int64_t bytes_per_pick) const {
  const std::uint64_t wanted =
      sum(product(picks, bytes_per_pick), product(largest, static_cast<std::int64_t>(sizeof(std::int64_t))));
  const auto left = shm::memory_left();
  // The pool hands out its idle blocks again, or frees them when an allocation fails.
  if (wanted <= sum(left.bytes, BufferPool::instance().stats().idle_bytes)) return;
  throw NoRoom(begin_of(*this, picks) + ", which need at least " + std::to_string(wanted) + " bytes; " +
               std::to_string(left.bytes) + " are left by " + left.limit + "." + kRemedy);
}

void HopRoom::check_limit(std::int64_t picks, std::int64_t held, std::int64_t kept_per_pick) const {
  if (hop_limit == kNoLimit) return;
  const std::uint64_t wanted = sum(product(picks, kept_per_pick), product(held, kept_per_pick));
  if (wanted <= hop_limit) return;
  throw NoRoom(begin_of(*this, picks) + ", which with those of earlier hops take " + std::to_string(wanted) + " bytes; at most " +
               std::to_string(hop_limit) + " are allowed here." + kRemedy);
}

std::uint64_t limit_hops(std::uint64_t bytes) { return std::exchange(hop_limit, bytes); }

void HopRoom::refuse_allocation(std::int64_t picks, std::int64_t columns) const {
  throw NoRoom(begin_of(*this, picks) + " of " + std::to_string(columns) + " nodes, for which memory could not be allocated; " +
               std::to_string(shm::memory_left().bytes) + " bytes are left by " + shm::memory_left().limit + "." + kRemedy);
}

}  // namespace datapipes
