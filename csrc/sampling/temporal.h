// temporal.h: the choice policy of temporal sampling: up to `fanout` of the in-edges of a node that are eligible at the time
// of the tree it is drawn for, each equally likely, or the latest of them; docs/semantics.md sections 3.3 and 4.6.
//   Eligible is an in-edge whose `latest` is below the time (or equal, `inclusive`) and whose `earliest` is at least the time
//   minus the window. In a row that is sorted these are a range: plan() narrows the row to it by binary search. Another row
//   is scanned, by plan() to count and by choose() to pick; its degree is then given as -1 - degree. The picks are the same.
// The caller has checked that the times are as many as the in-edges, and the flags as many as the rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "sampling/choose.h"
#include "sampling/row_view.h"
#include "sampling/uniform.h"

namespace datapipes {

// The times of the in-edges of a relation (graph/edge_times.h). Without `latest` all in-edges are eligible always.
struct InEdgeTimes {
  const std::int64_t* latest = nullptr;
  const std::int64_t* earliest = nullptr;  // `latest` where an in-edge has one time only
  const std::uint8_t* sorted = nullptr;    // of each row: whether neither descends
};

struct TimeRule {
  bool last = false;  // take the latest ones; then nothing is drawn
  bool inclusive = false;
  std::int64_t window = -1;  // -1: none
};

struct Temporal {
  std::int64_t fanout;  // -1: all eligible ones
  bool replace;         // not with rule.last
  std::uint64_t key;    // hop_key(...)
  InEdgeTimes times = {};
  TimeRule rule = {};

  RowPlan plan(const Row& row) const {
    if (times.latest == nullptr) return narrowed(row.begin, row.degree);
    const Bounds bounds = bounds_at(row.time);
    const std::int64_t* const latest = times.latest + row.begin;
    const std::int64_t* const earliest = times.earliest + row.begin;
    if (times.sorted[row.number] != 0) {
      const std::int64_t end = count_until(latest, row.degree, bounds.most);
      const std::int64_t begin = bounds.has_least ? count_until(earliest, row.degree, bounds.least - 1) : 0;
      return narrowed(row.begin + begin, std::max<std::int64_t>(end - begin, 0));
    }
    std::int64_t count = 0;
    if (bounds.has_least) {
      for (std::int64_t i = 0; i < row.degree; ++i) count += (latest[i] <= bounds.most) & (earliest[i] >= bounds.least);
    } else {
      for (std::int64_t i = 0; i < row.degree; ++i) count += latest[i] <= bounds.most;
    }
    return {row.begin, -1 - row.degree, pick_count(count, fanout, replace)};
  }

  void prefetch(std::int64_t row) const {
    if (times.sorted != nullptr) __builtin_prefetch(&times.sorted[row]);
  }
  // The memory that plan() reads of the times of these in-edges.
  void prefetch_in_edges(std::int64_t begin, std::int64_t degree) const {
    if (times.latest == nullptr || degree <= 0) return;
    prefetch_times(times.latest + begin, degree);
    if (rule.window >= 0 && times.earliest != times.latest) prefetch_times(times.earliest + begin, degree);
  }

  class Scratch {
   public:
    template <class Id>
    void choose(const Temporal& policy, const Id* indices, const Row& row, std::int64_t picks, std::int64_t* out) {
      if (row.degree >= 0) {
        uniform_.choose(Uniform{policy.fanout, policy.replace, policy.key}, indices, row, picks, out);
        return;
      }
      find_eligible(policy, row.begin, -1 - row.degree, row.time);
      const std::int64_t count = std::ssize(eligible_);
      if (policy.rule.last) {
        choose_last(policy, picks);
        std::copy_n(eligible_.begin(), picks, out);
      } else {
        uniform_.offsets(Uniform{policy.fanout, policy.replace, policy.key}, count, row, picks, out);
        for (std::int64_t i = 0; i < picks; ++i) out[i] = eligible_[static_cast<std::size_t>(out[i])];
      }
      for (std::int64_t i = 0; i < picks; ++i) __builtin_prefetch(indices + out[i]);
      if (eligible_.size() > kKept) eligible_ = {};  // free the scratch of a hub at once
    }

    // The times of the rows that are scanned have left the cache since they were counted.
    template <class Id, class RowOf>
    void choose_block(const Temporal& policy, const Id* indices, RowOf&& row_of, const std::int64_t* indptr, std::int64_t begin,
                      std::int64_t stop, std::int64_t* out) {
      for (std::int64_t d = begin; d < stop; ++d) {
        const Row row = row_of(d);
        if (row.degree < 0) policy.prefetch_in_edges(row.begin, -1 - row.degree);
      }
      for (std::int64_t d = begin; d < stop; ++d)
        choose(policy, indices, row_of(d), indptr[d + 1] - indptr[d], out + (indptr[d] - indptr[begin]));
    }

   private:
    static constexpr std::size_t kKept = std::size_t{1} << 17;

    void find_eligible(const Temporal& policy, std::int64_t begin, std::int64_t degree, std::int64_t time) {
      const Bounds bounds = policy.bounds_at(time);
      const std::int64_t* const latest = policy.times.latest + begin;
      const std::int64_t* const earliest = policy.times.earliest + begin;
      eligible_.resize(static_cast<std::size_t>(degree) + 1);  // one spare entry, so that the loop needs no branch
      std::size_t count = 0;
      for (std::int64_t i = 0; i < degree; ++i) {
        eligible_[count] = begin + i;
        count += (latest[i] <= bounds.most) & (!bounds.has_least | (earliest[i] >= bounds.least));
      }
      eligible_.resize(count);
    }

    // Moves the `picks` latest of the eligible ones to the front, ascending.
    void choose_last(const Temporal& policy, std::int64_t picks) {
      const std::int64_t* const latest = policy.times.latest;
      const auto last = eligible_.begin() + picks;
      if (last != eligible_.end()) {
        std::nth_element(eligible_.begin(), last, eligible_.end(),
                         [&](std::int64_t p, std::int64_t q) { return latest[p] != latest[q] ? latest[p] > latest[q] : p > q; });
        std::sort(eligible_.begin(), last);
      }
    }

    Uniform::Scratch uniform_;
    std::vector<std::int64_t> eligible_;  // positions in `indices`
  };

 private:
  struct Bounds {  // eligible: latest <= most, and earliest >= least if that is asked for
    std::int64_t most, least;
    bool has_least;
  };

  Bounds bounds_at(std::int64_t time) const {
    constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
    constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
    if (!rule.inclusive && time == kMin) return {kMin, kMax, true};  // nothing is earlier, and earliest <= latest
    Bounds bounds{rule.inclusive ? time : time - 1, kMin, false};
    if (rule.window >= 0 && time > kMin + rule.window) bounds = {bounds.most, time - rule.window, true};
    return bounds;
  }

  // What is drawn of a row of which these in-edges are eligible.
  RowPlan narrowed(std::int64_t begin, std::int64_t degree) const {
    const std::int64_t picks = pick_count(degree, fanout, replace);
    if (rule.last) return {begin + degree - picks, picks, picks};
    return {begin, degree, picks};
  }

  // Returns how many of `count` times that do not descend are at most `most`.
  static std::int64_t count_until(const std::int64_t* times, std::int64_t count, std::int64_t most) {
    constexpr std::int64_t kScanned = 32;  // a scan of so few costs no branch that is mispredicted
    const std::int64_t* first = times;
    while (count > kScanned) {
      const std::int64_t half = count / 2;
      first += first[half - 1] <= most ? half : 0;
      count -= half;
    }
    std::int64_t below = 0;
    for (std::int64_t i = 0; i < count; ++i) below += first[i] <= most;
    return first - times + below;
  }

  static void prefetch_times(const std::int64_t* times, std::int64_t degree) {
    constexpr std::int64_t kPerLine = 8, kWhole = 40;
    if (degree > kWhole) {
      __builtin_prefetch(times + degree / 2);
      __builtin_prefetch(times + degree / 4);
      __builtin_prefetch(times + degree / 2 + degree / 4);
      return;
    }
    for (std::int64_t i = 0; i < degree; i += kPerLine) __builtin_prefetch(times + i);
    __builtin_prefetch(times + degree - 1);
  }
};

}  // namespace datapipes
