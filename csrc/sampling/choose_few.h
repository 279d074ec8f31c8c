// choose_few.h: the choice of choose.h for a few draws, without a branch per draw.
//   A branch on a random number is mispredicted half of the time and then costs as much as a cache miss. So repeats are
//   found with a byte map or by equal ranks, and the order comes from counting smaller picks instead of moving larger
//   ones.
//   FewChooser::choose(...) writes the same picks as Chooser::choose. If it returns false, `out` is undefined and the
//   caller draws one by one.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "random/draw_few.h"

namespace datapipes {

template <class Narrow, std::int64_t kWidth>
inline bool in_order_of_width(const std::uint32_t* picks, std::int64_t count, std::int64_t* out) {
  Narrow value[kWidth];
  for (std::int64_t i = 0; i < kWidth; ++i) value[i] = static_cast<Narrow>(picks[i]);
  Narrow rank[kWidth] = {};  // minus the number of smaller picks; lanes >= count are unused
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t j = 0; j < kWidth; ++j) rank[j] = static_cast<Narrow>(rank[j] - (value[j] > value[i]));
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    sum += rank[i];
    out[-rank[i]] = picks[i];
  }
  return -sum == count * (count - 1) / 2;  // equal picks have equal ranks, so the sum is too small
}

// Writes the first `count` of kFewDraws picks in ascending order. Returns false if two of them are equal. `Narrow` holds all.
template <class Narrow>
inline bool in_order(const std::uint32_t* picks, std::int64_t count, std::int64_t* out) {
  return count <= kFewDraws / 2 ? in_order_of_width<Narrow, kFewDraws / 2>(picks, count, out)
                                : in_order_of_width<Narrow, kFewDraws>(picks, count, out);
}

class FewChooser {
 public:
  // Draws without replacement; requires 0 <= fanout < degree.
  bool choose(std::int64_t degree, std::int64_t fanout, std::uint64_t key, std::uint64_t node, std::uint32_t stream,
              std::int64_t* out) {
    const std::int64_t drawn = std::min(fanout, degree - fanout);
    if (drawn > kFewDraws || degree > std::numeric_limits<std::int32_t>::max()) return false;
    if (degree > 64 && drawn != fanout) return false;
    if (!draw_few(key, node, stream, static_cast<std::uint32_t>(degree - drawn + 1), drawn, picks_.data())) return false;
    if (degree <= 64) {
      in_word(degree, fanout, drawn, out);
      return true;
    }
    if (degree <= kSeenBytes) {
      settle_repeats(degree, fanout);
      return in_order<std::int16_t>(picks_.data(), fanout, out);
    }
    if (degree <= std::numeric_limits<std::int16_t>::max()) return in_order<std::int16_t>(picks_.data(), fanout, out);
    return in_order<std::int32_t>(picks_.data(), fanout, out);
  }

 private:
  static constexpr std::int64_t kSeenBytes = 4096;  // for larger degrees equal picks are rare: then draw one by one

  void in_word(std::int64_t degree, std::int64_t fanout, std::int64_t drawn, std::int64_t* out) const {
    std::uint64_t set = 0;
    for (std::int64_t i = 0; i < drawn; ++i) {
      const std::uint64_t bit = std::uint64_t{1} << picks_[i];
      const std::uint64_t last = std::uint64_t{1} << (degree - drawn + i);
      set |= (set & bit) != 0 ? last : bit;
    }
    if (drawn != fanout) set = ~set & (~std::uint64_t{0} >> (64 - degree));
    for (std::int64_t i = 0; i < fanout; ++i, set &= set - 1) out[i] = __builtin_ctzll(set);
  }

  // Floyd's algorithm: a repeated pick becomes the last position of its round.
  void settle_repeats(std::int64_t degree, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint32_t last = static_cast<std::uint32_t>(degree - count + i);
      const std::uint32_t pick = seen_[picks_[i]] != 0 ? last : picks_[i];
      seen_[pick] = 1;
      picks_[i] = pick;
    }
    for (std::int64_t i = 0; i < count; ++i) seen_[picks_[i]] = 0;
  }

  std::array<std::uint32_t, kFewDraws> picks_{};
  std::array<std::uint8_t, kSeenBytes> seen_{};
};

}  // namespace datapipes
