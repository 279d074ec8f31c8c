#include "cache/row_cache.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "common/inside.h"
#include "common/load.h"
#include "common/stream.h"
#include "common/thread_pool.h"

namespace datapipes {
namespace {

constexpr std::int64_t kPerTurn = 1024;  // ids of a turn of a thread
constexpr std::int64_t kAhead = 16;      // ids whose entries are prefetched before they are looked for
constexpr std::size_t kNear = 8;         // rows that are prefetched before they are copied

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
  // Up to 4 entries a slot, since their number is a power of 2.
  return static_cast<std::int64_t>(stride_of(row_bytes) + 4 * sizeof(Entry) + sizeof(Link) + sizeof(std::int64_t) + 4);
}

RowCache::RowCache(std::int64_t slots, std::int64_t row_bytes, Eviction eviction, std::int64_t num_ids)
    : slots_(slots), row_bytes_(row_bytes), num_ids_(num_ids), stride_(0), eviction_(eviction) {
  if (slots < 1 || slots > std::numeric_limits<std::int32_t>::max() || row_bytes < 0 || num_ids < 0)
    throw std::invalid_argument("RowCache: slots must be in [1, 2^31), row_bytes and num_ids 0 or more, got " +
                                std::to_string(slots) + ", " + std::to_string(row_bytes) + " and " + std::to_string(num_ids) +
                                ".");
  stride_ = stride_of(row_bytes);
  if (stride_ > std::numeric_limits<std::size_t>::max() / static_cast<std::size_t>(slots)) throw std::bad_alloc();
  const std::size_t size = std::bit_ceil(2 * static_cast<std::size_t>(slots));
  entries_.resize(size);
  mask_ = size - 1;
  shift_ = 64 - std::countr_zero(size);
  rows_.resize(static_cast<std::size_t>(slots) * stride_);
  ids_.resize(static_cast<std::size_t>(slots), kNobody);
  if (eviction != Eviction::kNone) links_.resize(static_cast<std::size_t>(slots), Link{kEnd, kEnd});
  asked_.resize(static_cast<std::size_t>(num_ids * bytes_of_id(eviction)));
}

std::int64_t RowCache::held() {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(used_) - std::ssize(free_);
}

template <class Id>
std::vector<std::int64_t> RowCache::take(CachedTable table, std::span<const Id> ids, std::byte* out, int threads) {
  const std::lock_guard lock(mutex_);
  check(table);
  if (full_.exchange(false))
    for (std::uint8_t& asked : asked_) asked /= 2;
  const std::int64_t count = std::ssize(ids), turns = (count + kPerTurn - 1) / kPerTurn;
  std::vector<std::vector<std::int64_t>> missing(static_cast<std::size_t>(turns));
  std::vector<std::vector<std::uint32_t>> hits(eviction_ == Eviction::kLru ? static_cast<std::size_t>(turns) : 0);
  const auto bytes = static_cast<std::size_t>(row_bytes_);
  const bool counts = eviction_ == Eviction::kSieve;
  parallel_for(turns, threads, [&](std::int64_t turn) {
    const std::int64_t begin = turn * kPerTurn, end = std::min(begin + kPerTurn, count);
    std::vector<std::int64_t>& lacks = missing[static_cast<std::size_t>(turn)];
    struct Hit {
      const std::byte* from;
      std::byte* to;
    } waiting[kNear];
    std::size_t found = 0;
    const auto copy = [&](const Hit& hit) {
      if (bytes > 0) std::memcpy(hit.to, hit.from, bytes);  // rows without bytes may have no address
    };
    std::int64_t keys[kPerTurn];
    for (std::int64_t i = begin; i < end; ++i) keys[i - begin] = key_of(table, ids[static_cast<std::size_t>(i)]);
    const auto expect = [&](std::int64_t key) {
      __builtin_prefetch(&entries_[home(key)]);
      if (counts) __builtin_prefetch(&asked_[static_cast<std::size_t>(key)]);
    };
    for (std::int64_t i = 0; i < std::min(kAhead, end - begin); ++i) expect(keys[i]);
    for (std::int64_t i = begin; i < end; ++i) {
      if (i + kAhead < end) expect(keys[i + kAhead - begin]);
      if (counts) this->count(keys[i - begin]);
      Entry& entry = entries_[find(keys[i - begin])];
      if (entry.id == kNobody) {
        lacks.push_back(i);
        continue;
      }
      if (eviction_ == Eviction::kSieve) {
        std::atomic_ref asked(entry.asked);
        if (asked.load(std::memory_order_relaxed) == 0) asked.store(1, std::memory_order_relaxed);
      } else if (eviction_ == Eviction::kLru) {
        hits[static_cast<std::size_t>(turn)].push_back(entry.slot);
      }
      const std::byte* const from = row(entry.slot);
      for (std::size_t line = 0; line < bytes; line += kLineBytes) __builtin_prefetch(from + line);
      Hit& place = waiting[found % kNear];
      if (found >= kNear) copy(place);
      place = {from, out + i * row_bytes_};
      ++found;
    }
    for (std::size_t i = found - std::min(found, kNear); i < found; ++i) copy(waiting[i % kNear]);
  });
  for (const auto& turn : hits) {
    for (const std::uint32_t slot : turn) {
      unlink(slot);
      link_newest(slot);
    }
  }
  std::vector<std::int64_t> all;
  for (const auto& turn : missing) all.insert(all.end(), turn.begin(), turn.end());
  return all;
}

template <class Id>
void RowCache::put(CachedTable table, std::span<const Id> ids, const std::byte* rows) {
  const std::lock_guard lock(mutex_);
  check(table);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::int64_t id = key_of(table, ids[i]);
    if (entries_[find(id)].id != kNobody) continue;
    std::uint32_t slot = kEnd;
    if (!free_.empty()) {
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
    entries_[find(id)] = {id, slot, 0};  // looked for again: an eviction moves entries
    ids_[slot] = id;
    if (eviction_ != Eviction::kNone) link_newest(slot);
    const auto bytes = static_cast<std::size_t>(row_bytes_);
    if (bytes > 0) std::memcpy(row(slot), rows + i * bytes, bytes);
  }
}

template <class Id>
void RowCache::forget(CachedTable table, std::span<const Id> ids) {
  const std::lock_guard lock(mutex_);
  check(table);
  for (const Id id : ids) {
    const std::size_t at = find(key_of(table, id));
    if (entries_[at].id == kNobody) continue;
    const std::uint32_t slot = entries_[at].slot;
    erase(at);
    if (eviction_ != Eviction::kNone) unlink(slot);
    ids_[slot] = kNobody;
    free_.push_back(slot);
  }
}

// Takes an entry out and moves back those after it that would not be found any more.
void RowCache::erase(std::size_t at) {
  std::size_t hole = at;
  for (std::size_t next = (hole + 1) & mask_; entries_[next].id != kNobody; next = (next + 1) & mask_) {
    const std::size_t wanted = home(entries_[next].id);
    if (((next - wanted) & mask_) >= ((next - hole) & mask_)) {
      entries_[hole] = entries_[next];
      hole = next;
    }
  }
  entries_[hole].id = kNobody;
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
void RowCache::count(std::int64_t id) {
  const std::atomic_ref asked(asked_[static_cast<std::size_t>(id)]);
  std::uint8_t before = asked.load(std::memory_order_relaxed);
  while (before < kMostAsked && !asked.compare_exchange_weak(before, before + 1, std::memory_order_relaxed)) {
  }
  if (before >= kMostAsked - 1) full_.store(true, std::memory_order_relaxed);
}

// Takes out the row that leaves for a new one, and returns its slot, or kEnd if the new one is not to be kept. There is a
// row.
std::uint32_t RowCache::evicted(std::int64_t newcomer) {
  std::uint32_t slot = oldest_;
  if (eviction_ == Eviction::kSieve) {
    slot = hand_ == kEnd ? oldest_ : hand_;
    for (std::size_t at = find(ids_[slot]); entries_[at].asked != 0; at = find(ids_[slot])) {
      entries_[at].asked = 0;
      slot = links_[slot].newer == kEnd ? oldest_ : links_[slot].newer;
    }
    hand_ = slot;  // and, when it is taken out, the next newer one
    if (asked_[static_cast<std::size_t>(ids_[slot])] >= asked_[static_cast<std::size_t>(newcomer)]) {
      hand_ = links_[slot].newer;
      return kEnd;
    }
  }
  erase(find(ids_[slot]));
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
