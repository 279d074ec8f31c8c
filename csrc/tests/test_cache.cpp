// test_cache.cpp: after any takes, puts and forgets a RowCache holds the same rows as a plain twin.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <list>
#include <map>
#include <mutex>
#include <new>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "cache/row_cache.h"
#include "tests/check.h"

namespace datapipes {
namespace {

constexpr std::int64_t kWidth = 5;  // bytes of a row

// The row of an id: bytes that no other id has.
std::vector<std::byte> row_of(std::int64_t key, std::int64_t width = kWidth) {
  std::vector<std::byte> row(static_cast<std::size_t>(width));
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<std::byte>((key * 2654435761 + 7) >> (8 * (i % 4)));
  return row;
}

std::vector<std::byte> rows_of(const std::vector<std::int64_t>& keys, std::int64_t width = kWidth) {
  std::vector<std::byte> rows;
  for (const std::int64_t key : keys) {
    const auto row = row_of(key, width);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

// The slow and obvious cache: a list of keys, the oldest first.
class Twin {
 public:
  Twin(std::size_t slots, Eviction eviction) : slots_(slots), eviction_(eviction), hand_(queue_.end()) {}

  // Begins a take of these keys.
  void ask(const std::vector<std::int64_t>& keys) {
    const bool is_full = std::any_of(asked_.begin(), asked_.end(), [](const auto& each) { return each.second == 255; });
    for (auto& each : asked_) each.second /= is_full ? 2 : 1;
    for (const std::int64_t key : keys) asked_[key] = std::min(asked_[key] + 1, 255);
  }

  bool has(std::int64_t key) const { return find(key) != queue_.end(); }
  std::int64_t held() const { return static_cast<std::int64_t>(queue_.size()); }

  void hit(std::int64_t key) {
    const auto at = find(key);
    if (eviction_ == Eviction::kSieve) at->second = true;
    if (eviction_ == Eviction::kLru) queue_.splice(queue_.end(), queue_, at);
  }

  void put(std::int64_t key) {
    if (has(key)) return;
    if (queue_.size() == slots_) {
      if (eviction_ == Eviction::kNone) return;
      auto out = queue_.begin();
      if (eviction_ == Eviction::kSieve) {
        for (out = hand_ == queue_.end() ? queue_.begin() : hand_; out->second;) {
          out->second = false;
          if (++out == queue_.end()) out = queue_.begin();
        }
        hand_ = out;
        if (asked_[out->first] >= asked_[key]) {
          ++hand_;
          return;
        }
      }
      take_out(out);
    }
    queue_.emplace_back(key, false);
    // A hand at the end begins at the oldest again: it does not stop at the row that comes now.
  }

  void forget(std::int64_t key) {
    if (has(key)) take_out(find(key));
  }

 private:
  using Queue = std::list<std::pair<std::int64_t, bool>>;  // key, asked for since the hand passed
  Queue::iterator find(std::int64_t key) {
    return std::find_if(queue_.begin(), queue_.end(), [&](const auto& each) { return each.first == key; });
  }
  Queue::const_iterator find(std::int64_t key) const {
    return std::find_if(queue_.begin(), queue_.end(), [&](const auto& each) { return each.first == key; });
  }
  void take_out(Queue::iterator at) {
    const auto next = std::next(at);
    if (hand_ == at) hand_ = next;
    queue_.erase(at);
  }

  std::size_t slots_;
  Eviction eviction_;
  Queue queue_;
  Queue::iterator hand_;
  std::map<std::int64_t, int> asked_;
};

// Takes ids, and compares the cached ids, their places and their bytes with the twin. Returns the ids that are not cached.
template <class Id>
std::vector<Id> taken(RowCache& cache, Twin& twin, CachedTable table, const std::vector<Id>& ids, int threads) {
  std::vector<std::byte> out(ids.size() * kWidth, std::byte{0xEE});
  const auto missing = cache.take<Id>(table, ids, out.data(), threads);
  std::vector<std::int64_t> expected, keys;
  std::vector<Id> lacking;
  for (const Id id : ids) keys.push_back(table.first + id);
  twin.ask(keys);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::int64_t key = table.first + ids[i];
    const bool there = twin.has(key);
    const auto row = there ? row_of(key) : std::vector<std::byte>(kWidth, std::byte{0xEE});
    CHECK(std::equal(row.begin(), row.end(), out.begin() + static_cast<std::int64_t>(i) * kWidth));
    if (there) continue;
    expected.push_back(static_cast<std::int64_t>(i));
    lacking.push_back(ids[i]);
  }
  for (const Id id : ids) {
    if (twin.has(table.first + id)) twin.hit(table.first + id);
  }
  CHECK(missing == expected);
  return lacking;
}

template <class Id>
void put(RowCache& cache, Twin& twin, CachedTable table, const std::vector<Id>& ids) {
  std::vector<std::int64_t> keys;
  for (const Id id : ids) keys.push_back(table.first + id);
  const auto rows = rows_of(keys);
  cache.put<Id>(table, ids, rows.data());
  for (const std::int64_t key : keys) twin.put(key);
}

// Two tables share a cache; a few ids are asked for often, some of them twice in a call.
template <class Id>
void what_is_there_is_what_the_twin_has() {
  std::mt19937 random(5);
  const auto below = [&](std::int64_t count) { return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(count)); };
  for (const Eviction eviction : {Eviction::kSieve, Eviction::kLru, Eviction::kNone}) {
    for (const std::int64_t slots : {1, 2, 7, 64, 200}) {
      RowCache cache(slots, kWidth, eviction, 150);
      Twin twin(static_cast<std::size_t>(slots), eviction);
      for (int turn = 0; turn < 120; ++turn) {
        const CachedTable table = below(2) == 0 ? CachedTable{90} : CachedTable{60, 90};
        std::vector<Id> ids(static_cast<std::size_t>(below(30)));
        for (Id& id : ids) id = static_cast<Id>(below(below(3) == 0 ? table.count : 9));
        const auto lacking = taken(cache, twin, table, ids, 1 + turn % 3);
        put(cache, twin, table, lacking);
        if (below(4) == 0) {
          ids.resize(static_cast<std::size_t>(below(1 + std::ssize(ids))));  // also ids that are not cached
          cache.forget<Id>(table, ids);
          for (const Id id : ids) twin.forget(table.first + id);
        }
        CHECK(cache.held() == twin.held());
      }
    }
  }
}

// A cached row keeps its bytes; a full static cache takes no row, and SIEVE takes no row that is asked for less often.
template <class Id>
void a_row_that_is_there_stays_and_a_full_static_cache_too() {
  for (const Eviction eviction : {Eviction::kSieve, Eviction::kLru, Eviction::kNone}) {
    RowCache cache(3, kWidth, eviction, 100);
    const CachedTable table{100};
    const auto rows = rows_of({1, 2, 3}), others = rows_of({4, 5, 6});
    cache.put<Id>(table, std::vector<Id>{1, 2, 3}, rows.data());
    cache.put<Id>(table, std::vector<Id>{1, 2, 3}, others.data());
    std::vector<std::byte> out(3 * kWidth);
    CHECK(cache.take<Id>(table, std::vector<Id>{1, 2, 3}, out.data()).empty());
    CHECK(out == rows);
    const std::size_t lacking = eviction == Eviction::kLru ? 0 : 3;  // SIEVE keeps rows that were asked for more often
    cache.put<Id>(table, std::vector<Id>{4, 5, 6}, others.data());
    CHECK(cache.take<Id>(table, std::vector<Id>{4, 5, 6}, out.data()).size() == lacking);
    cache.forget<Id>(table, std::vector<Id>{1, 2, 3, 4, 5, 6, 7});
    CHECK(cache.held() == 0);
    cache.put<Id>(table, std::vector<Id>{4, 5, 6}, others.data());
    CHECK(cache.take<Id>(table, std::vector<Id>{4, 5, 6}, out.data()).empty());
    CHECK(out == others);
  }
}

// More ids than a turn of a thread, by one thread and by several: the same rows, and the same cache afterwards.
template <class Id>
void threads_of_take_change_nothing() {
  constexpr std::int64_t kCount = 6000;
  for (const Eviction eviction : {Eviction::kSieve, Eviction::kLru, Eviction::kNone}) {
    RowCache one(700, kWidth, eviction, kCount), several(700, kWidth, eviction, kCount);
    const CachedTable table{kCount};
    for (std::int64_t turn = 0; turn < 4; ++turn) {
      std::vector<Id> ids(5000);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        ids[i] = static_cast<Id>((static_cast<std::int64_t>(i * i) * 7 + turn * 31) % (i % 3 == 0 ? kCount : 300));
      }
      std::vector<std::byte> out(ids.size() * kWidth), also(ids.size() * kWidth);
      const auto missing = one.take<Id>(table, ids, out.data(), 1);
      CHECK(missing == several.take<Id>(table, ids, also.data(), 4));
      CHECK(out == also);
      CHECK(std::is_sorted(missing.begin(), missing.end()));
      std::vector<Id> lacking;
      std::vector<std::int64_t> keys;
      for (const std::int64_t place : missing) {
        lacking.push_back(ids[static_cast<std::size_t>(place)]);
        keys.push_back(lacking.back());
      }
      const auto rows = rows_of(keys);
      for (RowCache* cache : {&one, &several}) cache->put<Id>(table, lacking, rows.data());
      CHECK(one.held() == several.held());
    }
  }
}

// Threads take, put and forget at once: every cached row has its bytes. For ThreadSanitizer.
void threads_may_call_at_once() {
  for (const Eviction eviction : {Eviction::kSieve, Eviction::kLru, Eviction::kNone}) {
    RowCache cache(50, kWidth, eviction, 200);
    const CachedTable table{200};
    std::vector<int> wrong(4, 0);
    std::vector<std::thread> threads;
    for (std::size_t number = 0; number < wrong.size(); ++number) {
      threads.emplace_back([&, number] {
        std::mt19937 random(static_cast<unsigned>(number));
        for (int turn = 0; turn < 60; ++turn) {
          std::vector<std::int64_t> ids(40);
          for (std::int64_t& id : ids) id = static_cast<std::int64_t>(random() % 200);
          std::vector<std::byte> out(ids.size() * kWidth);
          const auto missing = cache.take<std::int64_t>(table, ids, out.data(), number == 0 ? 2 : 1);
          const std::set<std::int64_t> lacks(missing.begin(), missing.end());
          for (std::size_t i = 0; i < ids.size(); ++i) {
            const auto row = row_of(ids[i]);
            if (lacks.count(static_cast<std::int64_t>(i)) == 0 && std::memcmp(row.data(), &out[i * kWidth], kWidth) != 0)
              ++wrong[number];
          }
          const auto rows = rows_of(ids);
          cache.put<std::int64_t>(table, ids, rows.data());
          if (turn % 5 == 0) cache.forget<std::int64_t>(table, std::vector<std::int64_t>(ids.begin(), ids.begin() + 5));
        }
      });
    }
    for (std::thread& each : threads) each.join();
    CHECK(wrong == std::vector<int>(4, 0));
    CHECK(cache.held() <= 50);
  }
}

template <class Id>
void ids_without_a_row_are_errors_and_change_nothing() {
  RowCache cache(10, kWidth, Eviction::kLru, 27);
  const CachedTable table{20, 7};
  std::vector<std::byte> out(3 * kWidth);
  const auto rows = rows_of({8, 9, 10});
  cache.put<Id>(table, std::vector<Id>{1, 2, 3}, rows.data());
  for (const Id outside : {Id{-1}, Id{20}, std::numeric_limits<Id>::max(), std::numeric_limits<Id>::min()}) {
    const std::vector<Id> ids{1, outside, 2};
    for (const int threads : {1, 2}) CHECK_THROWS(std::out_of_range, cache.take<Id>(table, ids, out.data(), threads));
    CHECK_THROWS(std::out_of_range, (cache.put<Id>(table, ids, rows.data()), 0));
    CHECK_THROWS(std::out_of_range, (cache.forget<Id>(table, std::vector<Id>{outside}), 0));
  }
  CHECK(cache.held() == 3);
  CHECK(cache.take<Id>(table, std::vector<Id>{1, 2, 3}, out.data()).empty());
  CHECK(out == rows);
}

// With room for all ids no row leaves; once all rows are cached, a take is a gather.
template <class Id>
void a_cache_of_all_rows_has_them() {
  for (const Eviction eviction : {Eviction::kSieve, Eviction::kLru, Eviction::kNone}) {
    RowCache cache(12, kWidth, eviction, 10);
    const CachedTable tables[] = {{6}, {4, 6}};
    for (int turn = 0; turn < 2; ++turn) {
      for (const CachedTable& table : tables) {
        for (std::int64_t id = table.count; id-- > 0;) {
          const std::vector<Id> ids{static_cast<Id>(id), 0};
          const auto rows = rows_of({table.first + id, table.first});
          std::vector<std::byte> out(rows.size());
          if (turn == 0) cache.put<Id>(table, ids, rows.data());
          CHECK(cache.take<Id>(table, ids, out.data(), 2).empty());
          CHECK(out == rows);
          CHECK_THROWS(std::out_of_range, cache.take<Id>(table, std::vector<Id>{0, static_cast<Id>(table.count)}, out.data()));
        }
      }
      CHECK(cache.held() == 10);
    }
    cache.forget<Id>(tables[1], std::vector<Id>{2, 2});
    CHECK(cache.held() == 9);
    std::vector<std::byte> out(3 * kWidth);
    CHECK(cache.take<Id>(tables[1], std::vector<Id>{1, 2, 3}, out.data()) == std::vector<std::int64_t>{1});
    cache.put<Id>(tables[1], std::vector<Id>{2}, rows_of({8}).data());
    CHECK(cache.take<Id>(tables[1], std::vector<Id>{1, 2, 3}, out.data()).empty());
    CHECK(out == rows_of({7, 8, 9}));
  }
}

void rows_of_any_width_and_sizes_that_are_none() {
  for (const std::int64_t width : {0, 1, 15, 16, 17, 64, 4097}) {
    RowCache cache(4, width, Eviction::kSieve, 5);
    const auto rows = rows_of({3, 0}, width);
    const std::vector<std::int64_t> ids{3, 0};
    std::vector<std::byte> out(rows.size());
    CHECK(cache.take<std::int64_t>({5}, ids, out.data()).size() == 2);
    cache.put<std::int64_t>({5}, ids, rows.data());
    CHECK(cache.take<std::int64_t>({5}, ids, out.data()).empty());
    CHECK(out == rows);
    CHECK(RowCache::bytes_of_slot(width) > width);
  }
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  for (const auto& [slots, width] : {std::pair<std::int64_t, std::int64_t>{0, 8}, {-1, 8}, {std::int64_t{1} << 31, 8}, {8, -1}}) {
    CHECK_THROWS(std::invalid_argument, RowCache(slots, width, Eviction::kLru, 9));
  }
  CHECK_THROWS(std::invalid_argument, RowCache(8, 8, Eviction::kLru, -1));
  CHECK_THROWS(std::bad_alloc, RowCache(1 << 20, kLargest - 100, Eviction::kLru, 9));
  RowCache small(4, 8, Eviction::kSieve, 9);
  std::vector<std::byte> out(8);
  for (const CachedTable table :
       {CachedTable{10}, CachedTable{9, 1}, CachedTable{-1}, CachedTable{1, -1}, CachedTable{1, kLargest}})
    CHECK_THROWS(std::invalid_argument, small.take<std::int64_t>(table, std::vector<std::int64_t>{0}, out.data()));
}

}  // namespace

SUITE(cache) {
  RUN_FOR_BOTH_IDS(what_is_there_is_what_the_twin_has);
  RUN_FOR_BOTH_IDS(a_row_that_is_there_stays_and_a_full_static_cache_too);
  RUN_FOR_BOTH_IDS(threads_of_take_change_nothing);
  RUN(threads_may_call_at_once);
  RUN_FOR_BOTH_IDS(ids_without_a_row_are_errors_and_change_nothing);
  RUN_FOR_BOTH_IDS(a_cache_of_all_rows_has_them);
  RUN(rows_of_any_width_and_sizes_that_are_none);
}

}  // namespace datapipes
