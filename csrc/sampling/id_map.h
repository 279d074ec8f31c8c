// id_map.h: global node id -> local id, numbered by first occurrence.
//   A node type of up to `direct_limit` nodes uses a table of 4 bytes per node. A larger type uses a hash table with at most 4
//   slots for each local id that the largest minibatch could have had (one per pick, or all nodes if these are fewer); a slot
//   has 8 bytes for int32 ids and 16 for int64. A slot holds base + local id. Each minibatch starts with a base above
//   every value written before, so older entries read as absent and nothing is cleared. The memory is kept for the next
//   minibatch.
// Ids must be in [0, num_nodes); the caller has checked them. At most 2^32 - 1 nodes can be numbered.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "common/huge_pages.h"
#include "sampling/range.h"

namespace datapipes {

inline constexpr std::int64_t kDirectMapLimit = std::int64_t{1} << 25;

// The base of the current minibatch, and the number of local ids given out.
class IdMapBase {
 public:
  explicit IdMapBase(std::uint32_t first_base = 1) : base_(first_base) {}

 protected:
  // Whether `more` local ids after the first `count` exceed 32 bits. The caller then clears the table and enters the nodes
  // found so far anew.
  bool exhausted(std::int64_t count, std::int64_t more) const {
    return static_cast<std::uint64_t>(base_) + static_cast<std::uint64_t>(count) + static_cast<std::uint64_t>(more) >
           std::uint64_t{std::numeric_limits<std::uint32_t>::max()} + 1;
  }
  // Moves the base above every written value. Returns false if the table must be cleared first.
  bool next_minibatch() {
    const bool fits = written_ <= std::numeric_limits<std::uint32_t>::max() - base_;
    base_ = fits ? base_ + written_ : 1;
    written_ = 0;
    return fits;
  }

  std::uint32_t base_;
  std::uint32_t written_ = 0;  // local ids given out since base_ was set
};

// Multiplicative hashing mixes the upper bits best.
template <class Id>
std::uint64_t mixed(Id id) {
  return static_cast<std::uint64_t>(id) * 0x9E3779B97F4A7C15u;
}

// A set of ids that also has about one in 100 of the other ids. It is small, and so faster to ask than a map. An id has two
// bits, in one word.
template <class Id>
class IdFilter {
 public:
  IdFilter() = default;
  explicit IdFilter(std::span<const Id> ids) : words_(std::max<std::size_t>(std::bit_ceil(ids.size()) / 4, 1)) {
    shift_ = 58 - std::countr_zero(words_.size());
    for (const Id id : ids) words_[place(id) / 64] |= std::uint64_t{1} << place(id) % 64 | std::uint64_t{1} << second(id);
  }
  bool may_have(Id id) const {
    const std::uint64_t word = words_[place(id) / 64];
    return (word >> place(id) % 64 & word >> second(id) & 1) != 0;
  }

 private:
  std::size_t place(Id id) const { return static_cast<std::size_t>(mixed(id) >> shift_); }
  static std::size_t second(Id id) { return mixed(id) >> 24 & 63; }

  std::vector<std::uint64_t> words_;
  int shift_ = 0;
};

template <class Id>
class DirectIdMap : public IdMapBase {
 public:
  using IdMapBase::IdMapBase;

  void start(std::int64_t num_nodes) {
    if (!next_minibatch()) std::fill(slots_.begin(), slots_.end(), 0);
    if (slots_.size() < static_cast<std::size_t>(num_nodes)) slots_.resize(static_cast<std::size_t>(num_nodes), 0);
  }
  std::size_t capacity() const { return slots_.size(); }
  [[gnu::always_inline]] void prefetch(Id id) const { __builtin_prefetch(&slots_[static_cast<std::size_t>(id)], 1); }

  // Makes room for `more` ids after the `nodes` found so far, which lie in `ranges`.
  void reserve(std::span<const Id> nodes, std::span<const Range> ranges, std::int64_t more) {
    if (!exhausted(std::ssize(nodes), more)) return;
    std::fill(slots_.begin(), slots_.end(), 0);
    base_ = 1;
    for_each_in(ranges, [&](std::size_t local) {
      slots_[static_cast<std::size_t>(nodes[local])] = base_ + static_cast<std::uint32_t>(local);
    });
  }

  // Writes the local id of each of `ids`. New ids are appended to nodes[count], nodes[count + 1] ...; `nodes` has one
  // spare entry at the end. Returns the new count. The loop has no branch, since no predictor can guess whether an id
  // is new.
  template <class Local>
  std::int64_t number(std::span<const Id> ids, std::int64_t count, Id* nodes, Local* local) {
    std::uint32_t* const slots = slots_.data();
    const std::uint32_t base = base_;
    auto next = static_cast<std::uint32_t>(base + static_cast<std::uint64_t>(count));
    Id* new_node = nodes + count;
    for (const Id id : ids) {
      std::uint32_t& slot = slots[static_cast<std::size_t>(id)];
      const bool absent = slot < base;
      const std::uint32_t value = absent ? next : slot;
      slot = value;
      *local++ = static_cast<Local>(value - base);
      *new_node = id;
      new_node += absent;
      next += absent;
    }
    count = new_node - nodes;
    written_ = static_cast<std::uint32_t>(count);
    return count;
  }

  // Returns the local id of a node; -1 if it has none.
  std::int64_t find(Id id) const {
    const std::uint32_t value = slots_[static_cast<std::size_t>(id)];
    return value < base_ ? -1 : std::int64_t{value - base_};
  }

 private:
  std::vector<std::uint32_t, HugePageAllocator<std::uint32_t>> slots_;
};

template <class Id>
class HashIdMap : public IdMapBase {
 public:
  using IdMapBase::IdMapBase;

  void start(std::int64_t) {
    if (!next_minibatch()) slots_.assign(slots_.size(), Slot{});
    if (slots_.empty()) slots_.resize(1024);
  }
  std::size_t capacity() const { return slots_.size(); }
  [[gnu::always_inline]] void prefetch(Id id) const { __builtin_prefetch(&slots_[home(id)], 1); }

  // Makes room for `more` ids after the `nodes` found so far, which lie in `ranges`. The table is then at most half full.
  void reserve(std::span<const Id> nodes, std::span<const Range> ranges, std::int64_t more) {
    const auto wanted = 2 * (nodes.size() + static_cast<std::size_t>(more));
    const bool full = exhausted(std::ssize(nodes), more);
    if (wanted <= slots_.size() && !full) return;
    slots_.assign(std::max(slots_.size(), std::bit_ceil(wanted)), Slot{});
    if (full) base_ = 1;
    for_each_in(ranges, [&](std::size_t local) {
      slots_[place(nodes[local])] = {nodes[local], base_ + static_cast<std::uint32_t>(local)};
    });
  }

  template <class Local>
  std::int64_t number(std::span<const Id> ids, std::int64_t count, Id* nodes, Local* local) {
    Slot* const slots = slots_.data();  // copies, so that the compiler knows that no store changes them
    const std::uint32_t base = base_;
    const std::size_t last = slots_.size() - 1;
    const int shift = home_shift();
    for (const Id id : ids) {
      std::size_t at = static_cast<std::size_t>(mixed(id) >> shift);
      // The only branch, which is rarely taken: no predictor could guess whether an id is new.
      while ((slots[at].value >= base) & (slots[at].id != id)) at = (at + 1) & last;
      const bool absent = slots[at].value < base;
      const std::uint32_t value = absent ? static_cast<std::uint32_t>(base + static_cast<std::uint64_t>(count)) : slots[at].value;
      slots[at] = {id, value};
      *local++ = static_cast<Local>(value - base);
      nodes[count] = id;
      count += absent;
    }
    written_ = static_cast<std::uint32_t>(count);
    return count;
  }

  std::int64_t find(Id id) const {
    const std::uint32_t value = slots_[place(id)].value;
    return value < base_ ? -1 : std::int64_t{value - base_};
  }

 private:
  struct Slot {
    Id id = 0;
    std::uint32_t value = 0;
  };

  int home_shift() const { return 64 - std::countr_zero(slots_.size()); }
  std::size_t home(Id id) const { return static_cast<std::size_t>(mixed(id) >> home_shift()); }
  std::size_t place(Id id) const {
    std::size_t at = home(id);
    while (slots_[at].value >= base_ && slots_[at].id != id) at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  std::vector<Slot, HugePageAllocator<Slot>> slots_;
};

// map.number() of many ids. Prefetches the map entries of the next block while it numbers one. `local` may be
// ids.data().
template <class Map, class Id, class Local>
std::int64_t number_ahead(Map& map, std::span<const Id> ids, std::int64_t count, Id* nodes, Local* local) {
  constexpr std::size_t kBlock = 256;
  // Inlined always: GCC takes a function that only prefetches for one without effect, and drops the calls.
  const auto prefetch = [&](std::size_t begin) __attribute__((always_inline)) {
    for (std::size_t i = begin; i < std::min(begin + kBlock, ids.size()); ++i) map.prefetch(ids[i]);
  };
  prefetch(0);
  for (std::size_t begin = 0; begin < ids.size(); begin += kBlock) {
    prefetch(begin + kBlock);
    count = map.number(ids.subspan(begin, std::min(kBlock, ids.size() - begin)), count, nodes, local + begin);
  }
  return count;
}

}  // namespace datapipes
