// uniform.h: the choice policy of plain neighbor sampling: up to `fanout` in-edges of a node, each equally likely;
// docs/semantics.md section 3.
#pragma once

#include <cstdint>

#include "sampling/choose.h"
#include "sampling/choose_few.h"
#include "sampling/row_plan.h"

namespace datapipes {

struct Uniform {
  std::int64_t fanout;  // -1: all in-edges
  bool replace;
  std::uint64_t key;  // hop_key(...)

  RowPlan plan(const Row& row) const { return {row.begin, row.degree, pick_count(row.degree, fanout, replace)}; }
  void prefetch(std::int64_t) const {}

  class Scratch {
   public:
    template <class Id>
    void choose(const Uniform& policy, const Id* indices, const Row& row, std::int64_t picks, std::int64_t* out) {
      constexpr std::int64_t kIdsPerLine = 64 / sizeof(Id);
      const std::int64_t begin = row.begin, degree = row.degree;
      const Id* const neighbors = indices + begin;
      if (picks == degree && !(policy.replace && policy.fanout >= 0)) {
        for (std::int64_t i = 0; i < picks; i += kIdsPerLine) __builtin_prefetch(neighbors + i);
        if (picks > 0) __builtin_prefetch(neighbors + picks - 1);
        for (std::int64_t i = 0; i < picks; ++i) out[i] = begin + i;
        return;
      }
      if (policy.replace || !few_.choose(degree, policy.fanout, policy.key, row.node, row.stream, out))
        chooser_.choose(degree, policy.fanout, policy.replace, Stream(policy.key, row.node, row.stream), out);
      for (std::int64_t i = 0; i < picks; ++i) {
        __builtin_prefetch(neighbors + out[i]);
        out[i] += begin;
      }
    }

    // Writes the picks among `degree` in-edges as offsets, which the calling policy turns into positions. Prefetches nothing.
    void offsets(const Uniform& policy, std::int64_t degree, const Row& row, std::int64_t picks, std::int64_t* out) {
      const bool all = picks == degree && !(policy.replace && policy.fanout >= 0);
      if (all || policy.replace || !few_.choose(degree, policy.fanout, policy.key, row.node, row.stream, out))
        chooser_.choose(degree, policy.fanout, policy.replace, Stream(policy.key, row.node, row.stream), out);
    }

   private:
    FewChooser few_;
    Chooser chooser_;
  };
};

}  // namespace datapipes
