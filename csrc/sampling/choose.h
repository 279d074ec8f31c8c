// choose.h: chooses which in-edges of a node are drawn; docs/semantics.md section 3 is its specification.
//   choose(degree, fanout, replace, stream, out): writes pick_count(...) positions in [0, degree) to `out`:
//   ascending without replacement, in draw order with it.
// The set of picks is a machine word, a sorted array or a bitmap, depending on its size; the picks do not depend on that.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "random/philox.h"

namespace datapipes {

inline std::int64_t pick_count(std::int64_t degree, std::int64_t fanout, bool replace) {
  if (degree == 0) return 0;
  if (fanout < 0) return degree;
  return replace ? fanout : std::min(degree, fanout);
}

class Chooser {
 public:
  void choose(std::int64_t degree, std::int64_t fanout, bool replace, Stream stream, std::int64_t* out) {
    if (fanout < 0 || (!replace && fanout >= degree)) {
      for (std::int64_t i = 0; i < degree; ++i) out[i] = i;
    } else if (replace) {
      if (degree == 0) return;
      for (std::int64_t i = 0; i < fanout; ++i)
        out[i] = static_cast<std::int64_t>(stream.bounded(static_cast<std::uint64_t>(degree)));
    } else {
      const std::int64_t drawn = std::min(fanout, degree - fanout);
      if (degree <= 64) {
        choose_in_word(degree, fanout, drawn, stream, out);
      } else if (drawn <= kSortedArrayLimit) {
        choose_in_array(degree, fanout, drawn, stream, out);
      } else {
        choose_in_bitmap(degree, fanout, drawn, stream, out);
      }
    }
  }

 private:
  static constexpr std::int64_t kSortedArrayLimit = 512;  // for more picks, insertions cost more than a bitmap

  static void choose_in_word(std::int64_t degree, std::int64_t fanout, std::int64_t drawn, Stream& stream, std::int64_t* out) {
    std::uint64_t set = 0;
    for (std::int64_t j = degree - drawn; j < degree; ++j) {
      const std::uint64_t bit = std::uint64_t{1} << stream.bounded(static_cast<std::uint64_t>(j) + 1);
      set |= (set & bit) != 0 ? std::uint64_t{1} << j : bit;
    }
    if (drawn != fanout) set = ~set & (~std::uint64_t{0} >> (64 - degree));
    for (; set != 0; set &= set - 1) *out++ = __builtin_ctzll(set);
  }

  void choose_in_array(std::int64_t degree, std::int64_t fanout, std::int64_t drawn, Stream& stream, std::int64_t* out) {
    const bool keep = drawn == fanout;
    if (!keep) array_.resize(kSortedArrayLimit);
    std::int64_t* const set = keep ? out : array_.data();
    std::int64_t size = 0;
    for (std::int64_t j = degree - drawn; j < degree; ++j, ++size) {
      const auto pick = static_cast<std::int64_t>(stream.bounded(static_cast<std::uint64_t>(j) + 1));
      std::int64_t place = size;
      while (place > 0 && set[place - 1] > pick) --place;
      if (place > 0 && set[place - 1] == pick) {
        set[size] = j;  // j is larger than all picks before it
      } else {
        std::copy_backward(set + place, set + size, set + size + 1);
        set[place] = pick;
      }
    }
    if (!keep) {
      std::int64_t next = 0;
      for (std::int64_t i = 0; i < size; ++i) {
        for (; next < set[i]; ++next) *out++ = next;
        ++next;
      }
      for (; next < degree; ++next) *out++ = next;
    }
  }

  void choose_in_bitmap(std::int64_t degree, std::int64_t fanout, std::int64_t drawn, Stream& stream, std::int64_t* out) {
    const auto num_words = static_cast<std::size_t>((degree + 63) / 64);
    bitmap_.assign(num_words, 0);
    for (std::int64_t j = degree - drawn; j < degree; ++j) {
      auto pick = stream.bounded(static_cast<std::uint64_t>(j) + 1);
      if ((bitmap_[pick / 64] >> (pick % 64) & 1) != 0) pick = static_cast<std::uint64_t>(j);
      bitmap_[pick / 64] |= std::uint64_t{1} << (pick % 64);
    }
    const std::uint64_t flip = drawn == fanout ? 0 : ~std::uint64_t{0};
    for (std::size_t w = 0; w < num_words; ++w) {
      std::uint64_t set = bitmap_[w] ^ flip;
      if (w + 1 == num_words && degree % 64 != 0) set &= (std::uint64_t{1} << (degree % 64)) - 1;
      for (; set != 0; set &= set - 1) *out++ = static_cast<std::int64_t>(w * 64) + __builtin_ctzll(set);
    }
  }

  std::vector<std::int64_t> array_;
  std::vector<std::uint64_t> bitmap_;
};

}  // namespace datapipes
