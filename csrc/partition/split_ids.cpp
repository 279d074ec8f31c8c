#include "partition/split_ids.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "common/inside.h"
#include "common/load.h"
#include "common/thread_pool.h"

namespace datapipes {
namespace {

constexpr std::int64_t kAhead = 16;        // ids between a prefetch and its use
constexpr std::int64_t kAtOnce = 1 << 14;  // ids that a thread splits at a time
constexpr PartNumber kOwn = 0, kHot = 1, kAway = 2;

// Copies ids, each checked, since another process may overwrite the given ids before they are used.
template <class Id>
void copy_checked(const char* op, std::span<const Id> ids, std::int64_t num_ids, Id* out) {
  for (const Id& given : ids) {
    const Id id = read_once(given);
    if (!is_inside(id, num_ids)) {
      throw std::out_of_range(std::string(op) + ": the id " + std::to_string(id) + " is outside the graph; ids must be in [0, " +
                              std::to_string(num_ids) + "). Check the ids.");
    }
    *out++ = id;
  }
}

// Turns the part of each id into its group, and the id into its row if the row is in this process.
template <class Id>
void find_rows(const char* op, std::span<Id> ids, OwnRows own, const IdRank* hot, PartNumber* groups) {
  const std::int64_t count = std::ssize(ids);
  const auto is_own = [&](std::int64_t i) { return groups[i] == own.part; };
  for (std::int64_t i = 0; i < count; ++i) {
    if (const std::int64_t next = i + kAhead; next < count) {
      const IdRank* const rank = is_own(next) ? own.rank : hot;  // groups after i still are parts
      if (rank != nullptr && rank->inside(ids[next])) rank->prefetch(ids[next]);
    }
    const Id id = ids[i];
    if (is_own(i)) {
      const std::int64_t row = own.rank == nullptr ? id - own.first : own.rank->inside(id) ? own.rank->row(id) : -1;
      if (row < 0) {
        throw std::invalid_argument(std::string(op) + ": the partition book gives the id " + std::to_string(id) + " to part " +
                                    std::to_string(own.part) + ", which does not have it. Open the part with verify=True.");
      }
      groups[i] = kOwn;
      ids[i] = static_cast<Id>(row);
      continue;
    }
    const std::int64_t row = hot != nullptr && hot->inside(id) ? hot->row(id) : -1;
    groups[i] = row >= 0 ? kHot : static_cast<PartNumber>(groups[i] + kAway);
    if (row >= 0) ids[i] = static_cast<Id>(row);
  }
}

}  // namespace

template <class Id>
IdSplit<Id> split_ids(const char* op, const PartMap& owners, std::span<const Id> ids, OwnRows own, const IdRank* hot,
                      int threads) {
  const std::int64_t count = std::ssize(ids);
  const auto num_groups = static_cast<std::size_t>(owners.num_parts() + kAway);
  Buffer<PartNumber> groups(count);
  Buffer<Id> rows(count);
  const auto num_turns = static_cast<std::size_t>((count + kAtOnce - 1) / kAtOnce);
  std::vector<std::vector<std::int64_t>> next(num_turns);  // first counts, then positions
  in_turns(count, kAtOnce, threads, [&](std::int64_t begin, std::int64_t end) {
    const std::span<Id> some(rows.data() + begin, static_cast<std::size_t>(end - begin));
    PartNumber* const of = groups.data() + begin;
    copy_checked(op, ids.subspan(static_cast<std::size_t>(begin), some.size()), owners.num_ids(), some.data());
    owners.owners(op, std::span<const Id>(some), of);
    find_rows(op, some, own, hot, of);
    auto& counts = next[static_cast<std::size_t>(begin / kAtOnce)];
    counts.assign(num_groups, 0);
    for (std::size_t i = 0; i < some.size(); ++i) ++counts[of[i]];
  });
  IdSplit<Id> split{Buffer<std::int64_t>(count), Buffer<Id>(count), {}};
  split.bounds.reserve(num_groups + 1);
  std::int64_t total = 0;
  for (std::size_t group = 0; group < num_groups; ++group) {
    split.bounds.push_back(total);
    for (auto& counts : next) {
      const std::int64_t in_turn = counts[group];
      counts[group] = total;
      total += in_turn;
    }
  }
  split.bounds.push_back(total);
  in_turns(count, kAtOnce, threads, [&](std::int64_t begin, std::int64_t end) {
    auto& at = next[static_cast<std::size_t>(begin / kAtOnce)];
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t to = at[groups[i]]++;
      split.places[to] = i;
      split.rows[to] = rows[i];
    }
  });
  return split;
}

template IdSplit<std::int32_t> split_ids(const char*, const PartMap&, std::span<const std::int32_t>, OwnRows, const IdRank*, int);
template IdSplit<std::int64_t> split_ids(const char*, const PartMap&, std::span<const std::int64_t>, OwnRows, const IdRank*, int);

}  // namespace datapipes
