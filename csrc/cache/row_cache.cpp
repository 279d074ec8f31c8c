#include "cache/row_cache.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "common/inside.h"
#include "common/load.h"
#include "common/thread_pool.h"
#include "gather/gather_rows.h"

namespace datapipes {
namespace {

constexpr std::int64_t kPerTurn = 256;  // ids of a turn of a thread; their entries are prefetched

template <class Id>
std::int64_t key_of(CachedTable table, const Id& given) {
  const auto id = static_cast<std::int64_t>(read_once(given));
  if (!is_inside(id, table.count)) [[unlikely]] {
    throw std::out_of_range("row_cache: ids must be in [0, " + std::to_string(table.count) + "), got " + std::to_string(id) +
                            ". Check the ids against the number of rows of the feature.");
  }
  return table.first + id;
}

std::size_t stride_of(std::int64_t row_bytes) { return rounded_up(static_cast<std::size_t>(row_bytes), 16); }

}  // namespace

std::int64_t RowCache::bytes_of_slot(std::int64_t row_bytes) {
  return static_cast<std::int64_t>(stride_of(row_bytes) + sizeof(Link) + sizeof(std::int64_t) + sizeof(std::uint32_t));
}

RowCache::RowCache(std::int64_t slots, std::int64_t row_bytes, Eviction eviction, std::int64_t num_ids)
    : slots_(slots),
      row_bytes_(row_bytes),
      num_ids_(num_ids),
      stride_(0),
      eviction_(eviction),
      has_room_for_all_(slots >= num_ids) {
  if (slots < 1 || slots > std::numeric_limits<std::int32_t>::max() || row_bytes < 0 || num_ids < 0)
    throw std::invalid_argument("RowCache: slots must be in [1, 2^31), row_bytes and num_ids 0 or more, got " +
                                std::to_string(slots) + ", " + std::to_string(row_bytes) + " and " + std::to_string(num_ids) +
                                ".");
  stride_ = stride_of(row_bytes);
  if (stride_ > std::numeric_limits<std::size_t>::max() / static_cast<std::size_t>(slots)) throw std::bad_alloc();
  places_.resize(static_cast<std::size_t>(num_ids), kNowhere);
  rows_.resize(static_cast<std::size_t>(slots) * stride_);
  ids_.resize(static_cast<std::size_t>(slots));
  if (has_room_for_all_) return;
  if (eviction != Eviction::kNone) links_.resize(static_cast<std::size_t>(slots), Link{kEnd, kEnd});
  if (eviction == Eviction::kSieve) asked_.resize(static_cast<std::size_t>(num_ids));
}

std::int64_t RowCache::held() {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(used_) - std::ssize(free_);
}

template <class Id>
std::vector<std::int64_t> RowCache::take(CachedTable table, std::span<const Id> ids, std::byte* out, int threads) {
  const std::lock_guard lock(mutex_);
  check(table);
  const RowTable rows{rows_.data(), slots_, row_bytes_, static_cast<std::int64_t>(stride_)};
  if (has_room_for_all_ && used_ == num_ids_) {
    gather_rows<Id>({row(static_cast<std::uint32_t>(table.first)), table.count, rows.row_bytes, rows.row_stride}, ids, out,
                    threads);
    return {};
  }
  if (full_.exchange(false))
    for (std::uint8_t& asked : asked_) asked /= 2;
  const std::int64_t count = std::ssize(ids), turns = (count + kPerTurn - 1) / kPerTurn;
  const bool counts = !asked_.empty();
  std::vector<std::int32_t> slots(ids.size());  // of each id; -1 if not cached
  std::atomic<std::int64_t> num_missing = 0;
  parallel_for(turns, threads, [&](std::int64_t turn) {
    const std::int64_t begin = turn * kPerTurn, end = std::min(begin + kPerTurn, count);
    std::size_t keys[kPerTurn];
    for (std::int64_t i = begin; i < end; ++i) {
      const auto key = keys[i - begin] = static_cast<std::size_t>(key_of(table, ids[static_cast<std::size_t>(i)]));
      __builtin_prefetch(&places_[key]);
      if (counts) __builtin_prefetch(&asked_[key]);
    }
    std::int64_t lacks = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::size_t key = keys[i - begin];
      if (counts) this->count(key);
      const std::atomic_ref place(places_[key]);
      const std::uint32_t found = place.load(std::memory_order_relaxed), slot = found & kNowhere;
      const bool is_there = slot != kNowhere;
      if (counts && is_there && found == slot) place.store(slot | kAsked, std::memory_order_relaxed);
      slots[static_cast<std::size_t>(i)] = is_there ? static_cast<std::int32_t>(slot) : -1;
      lacks += is_there ? 0 : 1;
    }
    num_missing.fetch_add(lacks, std::memory_order_relaxed);
  });
  std::vector<std::int64_t> missing;
  if (num_missing == 0) {
    gather_rows<std::int32_t>(rows, slots, out, threads);
  } else {
    std::vector<std::int64_t> places;  // in out, of the cached rows
    missing.reserve(static_cast<std::size_t>(num_missing));
    places.reserve(ids.size() - missing.capacity());
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (slots[i] >= 0) slots[places.size()] = slots[i];
      (slots[i] >= 0 ? places : missing).push_back(static_cast<std::int64_t>(i));
    }
    slots.resize(places.size());
    place_rows<std::int32_t>(rows, slots, places, out, count, threads);
  }
  if (eviction_ == Eviction::kLru && !links_.empty()) {
    for (const std::int32_t slot : slots) {
      unlink(static_cast<std::uint32_t>(slot));
      link_newest(static_cast<std::uint32_t>(slot));
    }
  }
  return missing;
}

template <class Id>
void RowCache::put(CachedTable table, std::span<const Id> ids, const std::byte* rows) {
  const std::lock_guard lock(mutex_);
  check(table);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::int64_t id = key_of(table, ids[i]);
    if (slot_of(id) != kNowhere) continue;
    std::uint32_t slot = kEnd;
    if (has_room_for_all_) {
      slot = static_cast<std::uint32_t>(id);
      ++used_;
    } else if (!free_.empty()) {
      slot = free_.back();
      free_.pop_back();
    } else if (used_ < static_cast<std::uint32_t>(slots_)) {
      slot = used_++;
    } else if (eviction_ == Eviction::kNone) {
      return;
    } else {
      slot = evicted(id);
      if (slot == kEnd) continue;
    }
    places_[static_cast<std::size_t>(id)] = slot;
    ids_[slot] = id;
    if (!links_.empty()) link_newest(slot);
    const auto bytes = static_cast<std::size_t>(row_bytes_);
    if (bytes > 0) std::memcpy(row(slot), rows + i * bytes, bytes);
  }
}

template <class Id>
void RowCache::forget(CachedTable table, std::span<const Id> ids) {
  const std::lock_guard lock(mutex_);
  check(table);
  for (const Id id : ids) {
    std::uint32_t& place = places_[static_cast<std::size_t>(key_of(table, id))];
    const std::uint32_t slot = place & kNowhere;
    if (slot == kNowhere) continue;
    place = kNowhere;
    if (has_room_for_all_) {
      --used_;
      continue;
    }
    if (!links_.empty()) unlink(slot);
    free_.push_back(slot);
  }
}

void RowCache::link_newest(std::uint32_t slot) {
  links_[slot] = {kEnd, newest_};
  if (newest_ != kEnd) links_[newest_].newer = slot;
  newest_ = slot;
  if (oldest_ == kEnd) oldest_ = slot;
}

void RowCache::unlink(std::uint32_t slot) {
  const Link link = links_[slot];
  (link.newer == kEnd ? newest_ : links_[link.newer].older) = link.older;
  (link.older == kEnd ? oldest_ : links_[link.older].newer) = link.newer;
  if (hand_ == slot) hand_ = link.newer;
}

// Throws unless the keys of a table are ids of the cache.
void RowCache::check(CachedTable table) const {
  if (table.count < 0 || table.first < 0 || table.first > num_ids_ - table.count)
    throw std::invalid_argument("row_cache: a table of " + std::to_string(table.count) + " rows from " +
                                std::to_string(table.first) + " on is not within the " + std::to_string(num_ids_) +
                                " ids of the cache.");
}

// Threads may count the same id.
void RowCache::count(std::size_t id) {
  const std::atomic_ref asked(asked_[id]);
  std::uint8_t before = asked.load(std::memory_order_relaxed);
  while (before < kMostAsked && !asked.compare_exchange_weak(before, before + 1, std::memory_order_relaxed)) {
  }
  if (before >= kMostAsked - 1) full_.store(true, std::memory_order_relaxed);
}

// Removes the row that leaves for a new row, and returns its slot; kEnd if the new row is not to be kept. Requires a cached
// row.
std::uint32_t RowCache::evicted(std::int64_t newcomer) {
  std::uint32_t slot = oldest_;
  if (eviction_ == Eviction::kSieve) {
    slot = hand_ == kEnd ? oldest_ : hand_;
    for (auto place = static_cast<std::size_t>(ids_[slot]); (places_[place] & kAsked) != 0;
         place = static_cast<std::size_t>(ids_[slot])) {
      places_[place] &= kNowhere;
      slot = links_[slot].newer == kEnd ? oldest_ : links_[slot].newer;
    }
    hand_ = slot;  // when this row is removed, the hand moves to the next newer row
    if (asked_[static_cast<std::size_t>(ids_[slot])] >= asked_[static_cast<std::size_t>(newcomer)]) {
      hand_ = links_[slot].newer;
      return kEnd;
    }
  }
  places_[static_cast<std::size_t>(ids_[slot])] = kNowhere;
  unlink(slot);
  return slot;
}

template std::vector<std::int64_t> RowCache::take(CachedTable, std::span<const std::int32_t>, std::byte*, int);
template std::vector<std::int64_t> RowCache::take(CachedTable, std::span<const std::int64_t>, std::byte*, int);
template void RowCache::put(CachedTable, std::span<const std::int32_t>, const std::byte*);
template void RowCache::put(CachedTable, std::span<const std::int64_t>, const std::byte*);
template void RowCache::forget(CachedTable, std::span<const std::int32_t>);
template void RowCache::forget(CachedTable, std::span<const std::int64_t>);

}  // namespace datapipes
