// smallest.h: chooses the places of the smallest numbers; among equal numbers, the first.
//   SmallestChooser::choose(count, picks, numbers_of, out): requires 0 < picks < count. numbers_of(begin, end) returns the
//   numbers of places [begin, end), at most kChunk, in memory that is readable up to a multiple of 8. It is called for
//   consecutive ranges, and perhaps for all of them again. Writes `picks` places, ascending.
// It expects numbers uniform over 32 bits, and guesses a bound that only a few more than `picks` numbers stay below; only these
// are compared with each other. Other distributions give the right result, more slowly.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace datapipes {

class SmallestChooser {
 public:
  static constexpr std::int64_t kChunk = 1024;

  // `vectors`: whether AVX2 may be used, if the processor has it. The places do not depend on it.
  explicit SmallestChooser(bool vectors = true) : vectors_(vectors && has_vectors()) {}

  template <class NumbersOf>
  void choose(std::int64_t count, std::int64_t picks, NumbersOf&& numbers_of, std::int64_t* out) {
    constexpr double kAll = 4294967296.0;
    const auto wanted = static_cast<double>(picks);
    // With this margin, about one row in 200 has too few numbers below the bound.
    double reach = (wanted + 2.0 + 2.5 * std::sqrt(wanted)) / static_cast<double>(count) * kAll;
    for (;; reach *= 2.0) {
      const auto bound = reach < kAll ? static_cast<std::uint32_t>(reach) : std::numeric_limits<std::uint32_t>::max();
      found_ = 0;
      for (std::int64_t begin = 0; begin < count; begin += kChunk) {
        const std::int64_t end = std::min(begin + kChunk, count);
        make_room(end - begin);
        keep(numbers_of(begin, end), end - begin, begin, bound);
      }
      if (found_ >= picks) return pick(picks, out);
    }
  }

 private:
  static bool has_vectors();

  void make_room(std::int64_t more) {
    const auto room = static_cast<std::size_t>(found_ + more + 8);
    if (numbers_.size() < room) numbers_.resize(2 * room), places_.resize(2 * room);
  }

  // Keeps the numbers up to `bound`, with their places from `first` on.
  void keep(const std::uint32_t* from, std::int64_t count, std::int64_t first, std::uint32_t bound);
  // Writes the places of the smallest kept numbers.
  void pick(std::int64_t picks, std::int64_t* out);
  std::uint32_t last_pick(std::int64_t picks);

  bool vectors_;
  std::int64_t found_ = 0;
  std::vector<std::uint32_t> numbers_, order_;
  std::vector<std::int64_t> places_;
};

}  // namespace datapipes
