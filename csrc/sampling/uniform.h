// uniform.h: the choice policy of plain neighbor sampling: up to `fanout` in-edges of a node, each equally likely;
// docs/semantics.md section 3.
//   A policy tells draw_hop.h how many in-edges it draws of a row (`count`) and which (`Scratch::choose`). It is row-local:
//   the picks follow from the policy, the row and the node id alone. Another policy is another header like this one.
#pragma once

#include <cstdint>

#include "sampling/choose.h"
#include "sampling/choose_few.h"

namespace datapipes {

struct Uniform {
  std::int64_t fanout;  // -1: all in-edges
  bool replace;
  std::uint64_t key;  // hop_key(...)

  std::int64_t count(std::int64_t degree) const { return pick_count(degree, fanout, replace); }

  class Scratch {
   public:
    // Writes the positions in `indices` of the `picks` in-edges that are chosen among the `degree` from `begin` on, and
    // prefetches their lines.
    template <class Id>
    void choose(const Uniform& policy, const Id* indices, std::int64_t begin, std::int64_t degree, std::uint64_t node,
                std::int64_t picks, std::int64_t* out) {
      constexpr std::int64_t kIdsPerLine = 64 / sizeof(Id);
      const Id* const neighbors = indices + begin;
      if (picks == degree && !(policy.replace && policy.fanout >= 0)) {
        for (std::int64_t i = 0; i < picks; i += kIdsPerLine) __builtin_prefetch(neighbors + i);
        if (picks > 0) __builtin_prefetch(neighbors + picks - 1);
        for (std::int64_t i = 0; i < picks; ++i) out[i] = begin + i;
        return;
      }
      if (policy.replace || !few_.choose(degree, policy.fanout, policy.key, node, out))
        chooser_.choose(degree, policy.fanout, policy.replace, Stream(policy.key, node), out);
      for (std::int64_t i = 0; i < picks; ++i) {
        __builtin_prefetch(neighbors + out[i]);
        out[i] += begin;
      }
    }

   private:
    FewChooser few_;
    Chooser chooser_;
  };
};

}  // namespace datapipes
