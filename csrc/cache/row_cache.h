// row_cache.h: rows of a table in memory, by their ids, as many as there is room for. What leaves for a new row is what SIEVE
// (NSDI 2024: a queue in the order of arrival, whose hand passes over what was asked for since it passed last) or LRU says,
// or nothing does. With SIEVE a new row is kept only if it was asked for more often than the row that would leave: a
// minibatch may ask for more rows than there is room for, and all would push out each other. So each id of the tables has
// a count, up to kMostAsked; once one is full, all are halved.
//   take(ids, out): copies the rows that are there to their places in out, and returns the places of the others, ascending.
//   put(ids, rows): keeps the rows, row i that of ids[i]; an id that is there keeps its row. With kNone rows are kept as
//   long as there is room. forget(ids): drops them.
// Several tables may share a cache: the ids of each are in its Table, [0, count), and are kept as `first` + id, below
// `num_ids`, that of all tables. take throws
// std::out_of_range (IndexError) on another id; some rows may have been copied by then.
// If there is room for all ids, the slot of a row is its id: once all are there, take is a plain gather.
// What is there follows from the calls alone, not from threads. A call holds a lock; `threads` share the work of take.
// Touches no Python object.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "common/huge_pages.h"

namespace datapipes {

enum class Eviction { kSieve, kLru, kNone };

struct CachedTable {
  std::int64_t count;
  std::int64_t first = 0;
};

class RowCache {
 public:
  // Throws std::invalid_argument unless slots is in [1, 2^31), and row_bytes and num_ids 0 or more; std::bad_alloc.
  RowCache(std::int64_t slots, std::int64_t row_bytes, Eviction eviction, std::int64_t num_ids);

  // Memory of a row, with all that belongs to it; and of what is known of each id, there or not.
  static std::int64_t bytes_of_slot(std::int64_t row_bytes);
  static std::int64_t bytes_of_id(Eviction eviction) { return eviction == Eviction::kSieve ? 5 : 4; }

  template <class Id>
  std::vector<std::int64_t> take(CachedTable table, std::span<const Id> ids, std::byte* out, int threads = 1);
  template <class Id>
  void put(CachedTable table, std::span<const Id> ids, const std::byte* rows);
  template <class Id>
  void forget(CachedTable table, std::span<const Id> ids);

  std::int64_t slots() const { return slots_; }
  std::int64_t row_bytes() const { return row_bytes_; }
  std::int64_t held();

 private:
  struct Link {
    std::uint32_t newer, older;
  };
  static constexpr std::uint32_t kEnd = 0xFFFFFFFF;
  static constexpr std::uint32_t kNowhere = 0x7FFFFFFF, kAsked = 0x80000000;
  static constexpr std::uint8_t kMostAsked = 255;

  std::uint32_t slot_of(std::int64_t id) const { return places_[static_cast<std::size_t>(id)] & kNowhere; }
  void link_newest(std::uint32_t slot);
  void unlink(std::uint32_t slot);
  void check(CachedTable table) const;
  void count(std::size_t id);
  std::uint32_t evicted(std::int64_t newcomer);
  std::byte* row(std::uint32_t slot) { return rows_.data() + static_cast<std::size_t>(slot) * stride_; }

  template <class T>
  using Memory = std::vector<T, HugePageAllocator<T>>;

  std::int64_t slots_, row_bytes_, num_ids_;
  std::size_t stride_;
  Eviction eviction_;
  bool has_room_for_all_;
  std::mutex mutex_;
  Memory<std::uint32_t> places_;  // of each id: its slot, or kNowhere; with kAsked, asked for since the hand passed
  Memory<std::byte> rows_;
  std::vector<Link> links_;          // in the order of arrival, or of use; none where nothing leaves
  std::vector<std::int64_t> ids_;    // of each slot
  std::vector<std::uint32_t> free_;  // slots that were given back
  Memory<std::uint8_t> asked_;       // with kSieve, how often each id was asked for; none if there is room for all
  std::atomic<bool> full_ = false;   // whether one of these is
  std::uint32_t used_ = 0;           // slots that were ever used; with room for all, that are
  std::uint32_t newest_ = kEnd, oldest_ = kEnd, hand_ = kEnd;
};

}  // namespace datapipes
