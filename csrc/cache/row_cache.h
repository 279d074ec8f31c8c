// row_cache.h: a bounded number of rows of a table in memory, by their ids. When the cache is full, SIEVE or LRU chooses the
// row that leaves for a new row, or (kNone) no row leaves. SIEVE (NSDI 2024) keeps a queue in the order of arrival; its hand
// skips rows that were asked for since it last passed. A minibatch may ask for more rows than fit, which would push out each
// other. So with SIEVE a new row is kept only if it was asked for more often than the row that would leave: each id has a
// count, up to kMostAsked; once a count is full, all counts are halved.
//   take(ids, out): copies the cached rows to their places in out, and returns the places of the others, ascending.
//   put(ids, rows): keeps rows[i] as the row of ids[i]; an id that is cached keeps its row. With kNone rows are kept while
//   there is room. forget(ids): drops their rows.
// Several tables may share a cache: a Table has ids in [0, count), which are kept as `first` + id, below `num_ids`, the number
// of ids of all tables. take throws std::out_of_range (IndexError) on any other id; some rows may have been copied by then.
// If there is room for all ids, the slot of a row is its id; once all rows are cached, take is a plain gather.
// The content follows from the calls alone, not from threads. A call holds a lock; `threads` share the work of take.
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

  // Memory of a cached row, with its bookkeeping; and of the bookkeeping of each id, cached or not.
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
  Memory<std::uint32_t> places_;  // of each id: its slot or kNowhere; kAsked is set if asked for since the hand passed
  Memory<std::byte> rows_;
  std::vector<Link> links_;          // in the order of arrival, or of use; empty if no row leaves
  std::vector<std::int64_t> ids_;    // of each slot
  std::vector<std::uint32_t> free_;  // slots that were freed
  Memory<std::uint8_t> asked_;       // with kSieve, the count of each id; empty if there is room for all
  std::atomic<bool> full_ = false;   // whether a count is full
  std::uint32_t used_ = 0;           // slots ever used; with room for all rows, slots in use
  std::uint32_t newest_ = kEnd, oldest_ = kEnd, hand_ = kEnd;
};

}  // namespace datapipes
