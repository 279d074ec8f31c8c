// temporal.h: the choice policy of temporal sampling: up to `fanout` in-edges of a node that are eligible at the time of its
// tree, each equally likely, by their weights, or the latest of them; docs/semantics.md sections 3.3 and 4.6.
//   An in-edge is eligible if its `latest` is below the time (or equal, with `inclusive`) and its `earliest` is at least the time
//   minus the window. In a sorted row the eligible in-edges are a range: plan_block() narrows the row to it by binary search. An
//   unsorted row is scanned, by plan_block() to count and by choose() to pick; its degree is marked as -1 - degree. The picks do
//   not depend on the way. With weights, the eligible in-edges of a row are listed, their weights are added up anew, and they
//   are drawn as a row of weighted.h.
// The caller has checked that there is one time and one weight for each in-edge, and one flag for each row.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "sampling/choose.h"
#include "sampling/eligible.h"
#include "sampling/place_of_bit.h"
#include "sampling/row_plan.h"
#include "sampling/uniform.h"
#include "sampling/weighted.h"

namespace datapipes {

// The times of the in-edges of a relation (graph/edge_times.h). Without `latest` all in-edges are eligible always.
struct InEdgeTimes {
  const std::int64_t* latest = nullptr;
  const std::int64_t* earliest = nullptr;  // equals `latest` if an in-edge has only one time
  const std::uint8_t* sorted = nullptr;    // of each row: whether neither times descend
  const std::int16_t* coarse = nullptr;    // of `latest` (graph/coarse_times.h); null: none
  TimeScale scale = {};
};

struct TimeRule {
  bool last = false;  // take the latest in-edges, without a random draw
  bool inclusive = false;
  std::int64_t window = -1;  // of rows that have none of their own; -1: none
};

struct Temporal {
  std::int64_t fanout;  // -1: all eligible in-edges
  bool replace;         // not with rule.last, nor are weights
  std::uint64_t key;    // hop_key(...)
  InEdgeTimes times = {};
  TimeRule rule = {};
  const double* weights = nullptr;  // of the in-edges of the relation; null: all are equally likely

  static constexpr int kPlannedTogether = 16;

  // Rows are searched together, so that their cache misses overlap.
  void plan_block(const Row* rows, int count, RowPlan* plans) const {
    Searches until, before;  // the number of in-edges up to the last eligible one, and before the first
    for (int i = 0; i < count; ++i) {
      const Row& row = rows[i];
      if (times.latest == nullptr) {
        plans[i] = narrowed(row.begin, row.degree);
      } else if (times.sorted[row.number] == 0) {
        plans[i] = {row.begin, -1 - row.degree, pick_count(count_scanned(row), fanout, replace)};
      } else {
        const TimeBounds bounds = bounds_of(row);
        until.add(i, times.latest + row.begin, row.degree, bounds.most);
        if (bounds.has_least) before.add(i, times.earliest + row.begin, row.degree, bounds.least - 1);
      }
    }
    until.run();
    before.run();
    std::int64_t first[kPlannedTogether] = {};
    for (int s = 0; s < before.size; ++s) first[before.of[s]] = before.found(s);
    for (int s = 0; s < until.size; ++s) {
      const int i = until.of[s];
      plans[i] = narrowed(rows[i].begin + first[i], std::max<std::int64_t>(until.found(s) - first[i], 0));
    }
  }

  [[gnu::always_inline]] void prefetch(std::int64_t row) const {
    if (times.sorted != nullptr) __builtin_prefetch(&times.sorted[row]);
  }
  // Prefetches the times of a row that plan_block() reads.
  [[gnu::always_inline]] void prefetch_in_edges(const Row& row) const {
    if (row.degree <= 0) return;
    if (weights != nullptr) __builtin_prefetch(weights + row.begin);
    if (times.latest == nullptr) return;
    if (times.sorted[row.number] == 0 && scans_coarsely(row)) {
      prefetch_coarse(row.begin, row.degree);
      return;
    }
    prefetch_times(times.latest + row.begin, row.degree);
    if (window_of(row) >= 0 && times.earliest != times.latest) prefetch_times(times.earliest + row.begin, row.degree);
  }

  class Scratch {
   public:
    template <class Id>
    void choose(const Temporal& policy, const Id* indices, const Row& row, std::int64_t picks, std::int64_t* out) {
      if (row.degree >= 0) {
        if (policy.weights == nullptr)
          return uniform_.choose(Uniform{policy.fanout, policy.replace, policy.key}, indices, row, picks, out);
        eligible_.resize(static_cast<std::size_t>(row.degree));
        std::iota(eligible_.begin(), eligible_.end(), row.begin);
        return choose_by_weight(policy, indices, row, picks, out);
      }
      const std::int64_t degree = -1 - row.degree;
      const auto words = static_cast<std::size_t>(num_words(degree));
      if (words_.size() < words) {
        words_.resize(words);
        ends_.resize(words);
      }
      const std::int64_t count =
          mark_eligible(policy.row_times(row, degree), policy.bounds_of(row), {words_.data(), ends_.data()});
      if (policy.weights != nullptr) {
        list_eligible(row.begin, words);
        return choose_by_weight(policy, indices, row, picks, out);
      }
      refuse_change(policy, count, picks);
      if (policy.rule.last && picks < count) {
        list_eligible(row.begin, words);
        choose_last(policy, picks, out);
      } else {
        uniform_.offsets(Uniform{policy.fanout, policy.replace, policy.key}, count, row, picks, out);
        put_positions(row.begin, picks, out);
      }
      for (std::int64_t i = 0; i < picks; ++i) __builtin_prefetch(indices + out[i]);
      if (words_.size() > kKeptWords) *this = Scratch();  // free the scratch of a hub at once
    }

    // Prefetches the times of scanned rows again: they have left the cache since they were counted.
    template <class Id, class RowOf>
    void choose_block(const Temporal& policy, const Id* indices, RowOf&& row_of, const std::int64_t* indptr, std::int64_t begin,
                      std::int64_t stop, std::int64_t* out) {
      constexpr std::int64_t kLinesAhead = 48;  // more than a core fetches at once
      std::int64_t ahead = begin, lines = 0;    // prefetched and not yet read
      for (std::int64_t d = begin; d < stop; ++d) {
        for (; ahead < stop && lines < kLinesAhead; ++ahead) lines += policy.prefetch_scan(row_of(ahead));
        const Row row = row_of(d);
        lines -= policy.lines_of_scan(row);
        choose(policy, indices, row, indptr[d + 1] - indptr[d], out + (indptr[d] - indptr[begin]));
      }
    }

   private:
    static constexpr std::size_t kKeptWords = std::size_t{1} << 13;

    // Otherwise `out` or the words would be overrun.
    static void refuse_change(const Temporal& policy, std::int64_t count, std::int64_t picks) {
      if (pick_count(count, policy.fanout, policy.replace) != picks)
        throw std::invalid_argument(
            "edge_times: the times or weights of a row changed while it was drawn from. Leave them as they are.");
    }

    // Replaces offsets among the eligible in-edges by positions. Offsets mostly ascend.
    void put_positions(std::int64_t begin, std::int64_t picks, std::int64_t* out) const {
      std::size_t w = 0;
      for (std::int64_t i = 0; i < picks; ++i) {
        const std::int64_t offset = out[i];
        if (w > 0 && ends_[w - 1] > offset) w = 0;
        while (ends_[w] <= offset) ++w;
        const std::int64_t before = w > 0 ? ends_[w - 1] : 0;
        out[i] = begin + static_cast<std::int64_t>(w * 64) + place_of_bit(words_[w], static_cast<int>(offset - before));
      }
    }

    void list_eligible(std::int64_t begin, std::size_t words) {
      eligible_.clear();
      for (std::size_t w = 0; w < words; ++w)
        for (std::uint64_t word = words_[w]; word != 0; word &= word - 1)
          eligible_.push_back(begin + static_cast<std::int64_t>(w * 64) + __builtin_ctzll(word));
    }

    // Draws among `eligible_`, as if these were all in-edges of the row.
    template <class Id>
    void choose_by_weight(const Temporal& policy, const Id* indices, const Row& row, std::int64_t picks, std::int64_t* out) {
      const std::int64_t count = std::ssize(eligible_);
      sums_.assign((eligible_.size() + kLineSums - 1) / kLineSums * kLineSums, 0.0);
      coarse_.clear();
      double sum = 0;
      std::int64_t drawable = 0;
      for (std::size_t i = 0; i < eligible_.size(); ++i) {
        const double before = sum;
        sum += policy.weights[eligible_[i]];
        drawable += static_cast<std::int64_t>(sum > before);
        sums_[i] = sum;
        if (i % kLineSums == kLineSums - 1) coarse_.push_back(sum);
      }
      refuse_change(policy, drawable, picks);
      const Weighted weighted{policy.fanout, policy.replace, policy.key, {sums_, coarse_, {&drawable, 1}}};
      const std::int64_t ends[] = {0, picks};
      const auto row_of = [&](std::int64_t) { return Row{0, count, 0, row.node, row.stream}; };
      weighted_.choose_block(weighted, indices, row_of, ends, 0, 1, out);
      for (std::int64_t i = 0; i < picks; ++i) {
        out[i] = eligible_[static_cast<std::size_t>(out[i])];
        __builtin_prefetch(indices + out[i]);
      }
      if (eligible_.size() > 64 * kKeptWords) *this = Scratch();  // free the scratch of a hub at once
    }

    void choose_last(const Temporal& policy, std::int64_t picks, std::int64_t* out) {
      const std::int64_t* const latest = policy.times.latest;
      const auto last = eligible_.begin() + picks;
      std::nth_element(eligible_.begin(), last, eligible_.end(),
                       [&](std::int64_t p, std::int64_t q) { return latest[p] != latest[q] ? latest[p] > latest[q] : p > q; });
      std::sort(eligible_.begin(), last);
      std::copy(eligible_.begin(), last, out);
    }

    Uniform::Scratch uniform_;
    std::vector<std::uint64_t> words_;  // of the scanned row (eligible.h)
    std::vector<std::int64_t> ends_;
    std::vector<std::int64_t> eligible_;  // positions in `indices`
    Weighted::Scratch weighted_;
    std::vector<double> sums_, coarse_;  // of the weights of `eligible_` (row_sums.h)
  };

 private:
  std::int64_t window_of(const Row& row) const { return row.window >= 0 ? row.window : rule.window; }

  TimeBounds bounds_of(const Row& row) const {
    const std::int64_t time = row.time, window = window_of(row);
    constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
    constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
    if (!rule.inclusive && time == kMin) return {kMin, kMax, true};  // nothing is earlier, and earliest <= latest
    TimeBounds bounds{rule.inclusive ? time : time - 1, kMin, false};
    if (window >= 0 && time > kMin + window) bounds = {bounds.most, time - window, true};
    return bounds;
  }

  // The plan of a row with these eligible in-edges.
  RowPlan narrowed(std::int64_t begin, std::int64_t degree) const {
    const auto all = [](std::int64_t) { return true; };
    const std::int64_t picks = pick_count(weights == nullptr ? degree : count_drawable(begin, degree, all), fanout, replace);
    if (rule.last) return {begin + degree - picks, picks, picks};
    return {begin, degree, picks};
  }

  // From this many in-edges on the number of picks is fixed.
  std::int64_t enough(std::int64_t degree) const { return fanout < 0 ? degree : replace ? 1 : fanout; }

  // The number of in-edges of an unsorted row that can be drawn, or less from `enough` on.
  std::int64_t count_scanned(const Row& row) const {
    const RowTimes of_row = row_times(row, row.degree);
    const TimeBounds bounds = bounds_of(row);
    if (weights == nullptr) return count_eligible(of_row, bounds, enough(row.degree));
    return count_drawable(row.begin, row.degree, [&](std::int64_t p) { return is_eligible(of_row, bounds, p - row.begin); });
  }

  // The same of positions [begin, begin + degree): the number of eligible in-edges whose weights raise their sum.
  template <class IsEligible>
  std::int64_t count_drawable(std::int64_t begin, std::int64_t degree, IsEligible&& eligible) const {
    double sum = 0;
    std::int64_t found = 0;
    for (std::int64_t p = begin; p < begin + degree && found < enough(degree); ++p) {
      const double before = sum;
      if (eligible(p)) sum += weights[p];
      found += static_cast<std::int64_t>(sum > before);
    }
    return found;
  }

  // Binary searches in lockstep: the number of times of a row (which do not descend) that are at most `most`.
  struct Searches {
    static constexpr std::int64_t kScanned = 8;  // scanning this few costs no mispredicted branch
    int size = 0, num_active = 0;
    int of[kPlannedTogether], active[kPlannedTogether];
    const std::int64_t* times[kPlannedTogether];
    const std::int64_t* first[kPlannedTogether];  // the result is among the `left` times from here on
    std::int64_t left[kPlannedTogether], most[kPlannedTogether];

    void add(int row, const std::int64_t* of_row, std::int64_t count, std::int64_t at_most) {
      of[size] = row;
      times[size] = first[size] = of_row;
      left[size] = count;
      most[size] = at_most;
      active[num_active] = size++;
      num_active += count > kScanned;
    }
    void run() {
      while (num_active > 0) {
        int next = 0;
        for (int a = 0; a < num_active; ++a) {
          const int s = active[a];
          const std::int64_t half = left[s] / 2;
          first[s] += half & -static_cast<std::int64_t>(first[s][half - 1] <= most[s]);  // no branch on random data
          left[s] -= half;
          __builtin_prefetch(first[s] + left[s] / 2 - 1);
          active[next] = s;
          next += left[s] > kScanned;
        }
        num_active = next;
      }
    }
    std::int64_t found(int s) const {
      std::int64_t below = first[s] - times[s];
      for (std::int64_t i = 0; i < left[s]; ++i) below += first[s][i] <= most[s];
      return below;
    }
  };

  bool scans_coarsely(const Row& row) const {
    return times.coarse != nullptr && (window_of(row) < 0 || times.earliest == times.latest);
  }
  RowTimes row_times(const Row& row, std::int64_t degree) const {
    const std::int16_t* const coarse = scans_coarsely(row) ? times.coarse + row.begin : nullptr;
    return {times.latest + row.begin, times.earliest + row.begin, degree, coarse, times.scale};
  }

  // The number of lines to prefetch of a row that is scanned whole; 0 for any other row.
  std::int64_t lines_of_scan(const Row& row) const {
    constexpr std::int64_t kMost = 32;  // after these the hardware prefetcher takes over
    const std::int64_t per_line = scans_coarsely(row) ? 32 : 8;
    return row.degree < 0 ? std::min((-1 - row.degree) / per_line + 1, kMost) : 0;
  }
  [[gnu::always_inline]] std::int64_t prefetch_scan(const Row& row) const {
    const std::int64_t lines = lines_of_scan(row);
    const bool coarsely = scans_coarsely(row);
    for (std::int64_t i = 0; i < lines; ++i) {
      if (coarsely) {
        __builtin_prefetch(times.coarse + row.begin + 32 * i);
      } else {
        __builtin_prefetch(times.latest + row.begin + 8 * i);
      }
    }
    return lines;
  }

  // Prefetches the lines that usually suffice to count.
  [[gnu::always_inline]] void prefetch_coarse(std::int64_t begin, std::int64_t degree) const {
    constexpr std::int64_t kPerLine = 32, kMost = 8 * kPerLine;
    for (std::int64_t i = 0; i < std::min(degree, kMost); i += kPerLine) __builtin_prefetch(times.coarse + begin + i);
  }

  // Prefetches a row of few lines whole, and the first lines that a search or a scan of a longer row reads.
  [[gnu::always_inline]] static void prefetch_times(const std::int64_t* times, std::int64_t degree) {
    constexpr std::int64_t kPerLine = 8, kWhole = 24;
    if (degree > kWhole) {
      __builtin_prefetch(times + degree / 2 - 1);
      __builtin_prefetch(times);
      return;
    }
    for (std::int64_t i = 0; i < degree; i += kPerLine) __builtin_prefetch(times + i);
    __builtin_prefetch(times + degree - 1);
  }
};

}  // namespace datapipes
