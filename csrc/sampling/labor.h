// labor.h: the choice policy of layer-neighbor sampling (LABOR-0): the in-edges whose sources have the smallest numbers, or by
// weight those with the smallest keys; docs/semantics.md section 3.2.
//   A row is read in order, from beginning to end; several rows of a block are fetched from memory at once.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "random/exponential.h"
#include "sampling/choose.h"
#include "sampling/row_plan.h"
#include "sampling/row_sums.h"
#include "sampling/smallest.h"
#include "sampling/source_numbers.h"

namespace datapipes {

struct Labor {
  static constexpr bool replace = false;
  std::int64_t fanout;  // -1: all in-edges
  SourceKeys keys;
  RowSums sums = {};  // empty: without weights

  RowPlan plan(const Row& row) const {
    return {row.begin, row.degree, pick_count(sums.drawable_of(row.number, row.degree), fanout, replace)};
  }
  [[gnu::always_inline]] void prefetch(std::int64_t row) const { sums.prefetch_drawable(row); }

  class Scratch {
   public:
    template <class Id, class RowOf>
    void choose_block(const Labor& policy, const Id* indices, RowOf&& row_of, const std::int64_t* indptr, std::int64_t begin,
                      std::int64_t stop, std::int64_t* out) {
      std::int64_t ahead = begin;
      std::int64_t lines = 0;  // prefetched and not read yet
      for (std::int64_t d = begin; d < stop; ++d) {
        for (; ahead < stop && lines < kLinesAhead; ++ahead) lines += prefetch_row(policy, indices, row_of(ahead));
        const Row row = row_of(d);
        lines -= lines_of<Id>(row);
        const std::int64_t picks = indptr[d + 1] - indptr[d];
        choose(policy, indices, row, picks, out);
        out += picks;
      }
    }

   private:
    static constexpr std::int64_t kLinesAhead = 48;  // more than a core fetches at once
    static constexpr std::int64_t kLinesOfRow = 32;  // after these the hardware prefetcher takes over

    template <class Id>
    static std::int64_t lines_of(const Row& row) {
      return std::min<std::int64_t>(row.degree * static_cast<std::int64_t>(sizeof(Id)) / 64 + 1, kLinesOfRow);
    }

    template <class Id>
    [[gnu::always_inline]] static std::int64_t prefetch_row(const Labor& policy, const Id* indices, const Row& row) {
      const std::int64_t lines = lines_of<Id>(row);
      const char* const from = reinterpret_cast<const char*>(indices + row.begin);
      for (std::int64_t line = 0; line < lines; ++line) __builtin_prefetch(from + 64 * line);
      if (policy.sums.sums.empty()) return lines;
      const double* const sums = policy.sums.sums.data() + row.begin;
      for (std::int64_t i = 0; i < row.degree && i < kLinesOfRow * kLineSums; i += kLineSums) __builtin_prefetch(sums + i);
      return lines;
    }

    template <class Id>
    void choose(const Labor& policy, const Id* indices, const Row& row, std::int64_t picks, std::int64_t* out) {
      if (picks == row.degree) {
        for (std::int64_t i = 0; i < picks; ++i) out[i] = row.begin + i;
        return;
      }
      if (picks == 0) return;
      const Id* const sources = indices + row.begin;
      const auto numbers_of = [&](std::int64_t first, std::int64_t last) {
        source_numbers(policy.keys, std::span<const Id>(sources + first, static_cast<std::size_t>(last - first)), numbers_);
        return numbers_;
      };
      if (policy.sums.sums.empty()) {
        chooser_.choose(row.degree, picks, numbers_of, out);
      } else {
        choose_by_key(policy.sums.sums.data() + row.begin, row.degree, picks, numbers_of, out);
      }
      for (std::int64_t i = 0; i < picks; ++i) {
        __builtin_prefetch(sources + out[i]);
        out[i] += row.begin;
      }
    }

    // Writes the offsets of the `picks` smallest keys of a row, ascending. As the number of a source, u, is below its exponential
    // number, only in-edges with u / weight up to a bound have their keys computed. The first bound is a guess from the mean
    // weight.
    template <class NumbersOf>
    void choose_by_key(const double* sums, std::int64_t degree, std::int64_t picks, NumbersOf&& numbers_of, std::int64_t* out) {
      const auto wanted = static_cast<double>(picks), all = static_cast<double>(degree);
      const double some = wanted + 2.0 + 2.5 * std::sqrt(wanted);
      double guess = 2.0 * some < all ? some / (all - some) * (all / sums[degree - 1]) : kInfinity;
      for (int tries = 0; !find_below(guess, sums, degree, picks, numbers_of); ++tries) {
        if (guess == kInfinity) throw_bad_sums();
        guess = tries < 3 ? 8.0 * guess : kInfinity;
      }
      for (std::int64_t i = 0; i < picks; ++i) out[i] = smallest_[static_cast<std::size_t>(i)].second;
      std::sort(out, out + picks);
    }

    // Sets `smallest_` to the `picks` smallest keys up to a bound; returns false if there are fewer.
    template <class NumbersOf>
    bool find_below(double bound, const double* sums, std::int64_t degree, std::int64_t picks, NumbersOf&& numbers_of) {
      constexpr double kWords = 4294967296.0 * (1.0 + 1e-9);  // with room for rounding
      const auto wanted = static_cast<std::size_t>(picks);
      const auto drop_larger = [&] {
        const auto last = smallest_.begin() + (picks - 1);
        std::nth_element(smallest_.begin(), last, smallest_.end());  // of equal keys the first offset is the smallest
        bound = last->first;
        smallest_.resize(wanted);
      };
      smallest_.clear();
      double before = 0.0;
      struct {
        double weight;
        std::int64_t place;
      } below[kKeysAtOnce];
      for (std::int64_t begin = 0; begin < degree; begin += kKeysAtOnce) {
        const std::int64_t count = std::min(kKeysAtOnce, degree - begin);
        const std::uint32_t* const numbers = numbers_of(begin, begin + count);
        const double limit = bound * kWords;
        std::size_t found = 0;
        for (std::int64_t i = 0; i < count; ++i) {
          const double sum = sums[begin + i], weight = sum - before;
          before = sum;
          below[found] = {weight, i};
          found += static_cast<std::size_t>(static_cast<double>(numbers[i]) + 0.5 <= limit * weight);  // false of weight 0
        }
        for (std::size_t i = 0; i < found; ++i) {
          const double key = exponential(numbers[below[i].place]) / below[i].weight;
          if (key <= bound) smallest_.emplace_back(key, begin + below[i].place);
        }
        if (smallest_.size() > 2 * wanted + kKeysAtOnce) drop_larger();
      }
      if (smallest_.size() > wanted) drop_larger();
      return smallest_.size() == wanted;
    }

    static constexpr double kInfinity = std::numeric_limits<double>::infinity();
    static constexpr std::int64_t kKeysAtOnce = 64;

    std::vector<std::pair<double, std::int64_t>> smallest_;  // keys and offsets
    SmallestChooser chooser_;
    std::uint32_t numbers_[SmallestChooser::kChunk];
  };
};

}  // namespace datapipes
