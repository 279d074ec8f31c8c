// labor.h: the choice policy of layer-neighbor sampling (LABOR-0): the in-edges whose sources have the smallest numbers;
// docs/semantics.md section 3.2.
//   A row is read in order, from beginning to end; several rows of a block are fetched from memory at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "sampling/choose.h"
#include "sampling/row_plan.h"
#include "sampling/smallest.h"
#include "sampling/source_numbers.h"

namespace datapipes {

struct Labor {
  static constexpr bool replace = false;
  std::int64_t fanout;  // -1: all in-edges
  SourceKeys keys;

  RowPlan plan(const Row& row) const { return {row.begin, row.degree, pick_count(row.degree, fanout, replace)}; }
  void prefetch(std::int64_t) const {}

  class Scratch {
   public:
    template <class Id, class RowOf>
    void choose_block(const Labor& policy, const Id* indices, RowOf&& row_of, const std::int64_t* indptr, std::int64_t begin,
                      std::int64_t stop, std::int64_t* out) {
      std::int64_t ahead = begin;
      std::int64_t lines = 0;  // prefetched and not read yet
      for (std::int64_t d = begin; d < stop; ++d) {
        for (; ahead < stop && lines < kLinesAhead; ++ahead) lines += prefetch_row(indices, row_of(ahead));
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
    [[gnu::always_inline]] static std::int64_t prefetch_row(const Id* indices, const Row& row) {
      const std::int64_t lines = lines_of<Id>(row);
      const char* const from = reinterpret_cast<const char*>(indices + row.begin);
      for (std::int64_t line = 0; line < lines; ++line) __builtin_prefetch(from + 64 * line);
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
      chooser_.choose(row.degree, picks, numbers_of, out);
      for (std::int64_t i = 0; i < picks; ++i) {
        __builtin_prefetch(sources + out[i]);
        out[i] += row.begin;
      }
    }

    SmallestChooser chooser_;
    std::uint32_t numbers_[SmallestChooser::kChunk];
  };
};

}  // namespace datapipes
