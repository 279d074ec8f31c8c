// id_map.h: global node id -> local id, numbered by first occurrence.
//   Up to `direct_limit` nodes a table of 8 bytes a node, larger graphs a hash table of at most 64 bytes a found node.
//   Both are tagged with a generation, so starting a minibatch clears nothing; the memory stays with the thread for the next one.
// An id must be in [0, num_nodes); the caller has checked it.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

namespace datapipes {

inline constexpr std::int64_t kDirectMapLimit = std::int64_t{1} << 25;

class DirectIdMap {
 public:
  void start(std::int64_t num_nodes) {
    if (slots_.size() < static_cast<std::size_t>(num_nodes)) slots_.resize(static_cast<std::size_t>(num_nodes), 0);
    if (++generation_ == 0) {  // after 2^32 minibatches old tags would look new
      slots_.assign(slots_.size(), 0);
      generation_ = 1;
    }
  }
  void prefetch(std::int64_t id) const { __builtin_prefetch(&slots_[static_cast<std::size_t>(id)], 1); }
  void reserve(std::int64_t) {}

  // Returns the local id of `id`, which is `next` when it is new.
  std::int64_t find_or_insert(std::int64_t id, std::int64_t next) {
    std::uint64_t& slot = slots_[static_cast<std::size_t>(id)];
    if (slot >> 32 != generation_) slot = std::uint64_t{generation_} << 32 | static_cast<std::uint64_t>(next);
    return static_cast<std::int64_t>(slot & 0xFFFFFFFFu);
  }

 private:
  std::vector<std::uint64_t> slots_;  // generation in the upper half, local id in the lower
  std::uint32_t generation_ = 0;
};

class HashIdMap {
 public:
  void start(std::int64_t) {
    used_ = 0;
    if (slots_.empty()) slots_.resize(1024);
    if (++generation_ == 0) {
      slots_.assign(slots_.size(), Slot{});
      generation_ = 1;
    }
  }
  void prefetch(std::int64_t id) const { __builtin_prefetch(&slots_[home(id)], 1); }

  // Makes room for `count` more ids, at most half full.
  void reserve(std::int64_t count) {
    const auto wanted = 2 * (used_ + static_cast<std::size_t>(count));
    if (wanted <= slots_.size()) return;
    std::vector<Slot> old(std::bit_ceil(wanted));
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.generation == generation_) slots_[place(slot.id)] = slot;
    }
  }

  std::int64_t find_or_insert(std::int64_t id, std::int64_t next) {
    Slot& slot = slots_[place(id)];
    if (slot.generation != generation_) {
      slot = {id, static_cast<std::uint32_t>(next), generation_};
      ++used_;
    }
    return slot.local;
  }

 private:
  struct Slot {
    std::int64_t id = 0;
    std::uint32_t local = 0;
    std::uint32_t generation = 0;
  };

  std::size_t home(std::int64_t id) const {  // multiplicative hashing: the upper bits are the mixed ones
    const std::uint64_t mixed = static_cast<std::uint64_t>(id) * 0x9E3779B97F4A7C15u;
    return static_cast<std::size_t>(mixed >> (64 - std::countr_zero(slots_.size())));
  }
  std::size_t place(std::int64_t id) const {
    std::size_t at = home(id);
    while (slots_[at].generation == generation_ && slots_[at].id != id) at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  std::vector<Slot> slots_;
  std::size_t used_ = 0;
  std::uint32_t generation_ = 0;
};

}  // namespace datapipes
