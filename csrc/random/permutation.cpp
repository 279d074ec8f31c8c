#include "random/permutation.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "random/philox.h"

namespace datapipes {
namespace {

constexpr std::uint32_t kFeistelRounds = 10;

std::vector<std::int64_t> fisher_yates(std::int64_t num_items, std::uint64_t key) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(num_items));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  Stream stream(key, 0);
  for (std::size_t i = order.size(); i-- > 1;) std::swap(order[i], order[stream.bounded(i + 1)]);
  return order;
}

class FeistelPermutation {
 public:
  FeistelPermutation(std::uint64_t num_items, std::uint64_t key) : num_items_(num_items), key_(key) {
    const int bits = std::bit_width(num_items - 1);
    right_bits_ = bits / 2;
    left_mask_ = (std::uint64_t{1} << (bits - right_bits_)) - 1;
    right_mask_ = (std::uint64_t{1} << right_bits_) - 1;
  }

  std::uint64_t operator()(std::uint64_t x) const {
    do {
      std::uint64_t left = x >> right_bits_;
      std::uint64_t right = x & right_mask_;
      for (std::uint32_t round = 0; round < kFeistelRounds; round += 2) {
        left ^= mix(right, round) & left_mask_;
        right ^= mix(left, round + 1) & right_mask_;
      }
      x = (left << right_bits_) | right;
    } while (x >= num_items_);
    return x;
  }

 private:
  std::uint64_t mix(std::uint64_t half, std::uint32_t round) const {
    return philox4x32({static_cast<std::uint32_t>(half), round, 0, 1}, key_)[0];
  }

  std::uint64_t num_items_, key_, left_mask_, right_mask_;
  int right_bits_;
};

}  // namespace

void permutation_at(std::int64_t num_items, std::uint64_t key, std::int64_t first, std::span<std::int64_t> out) {
  const auto count = static_cast<std::int64_t>(out.size());
  if (num_items < 0 || first < 0 || first > num_items || count > num_items - first) {
    throw std::out_of_range("permutation: positions [" + std::to_string(first) + ", " + std::to_string(first) + " + " +
                            std::to_string(count) + ") must lie in [0, " + std::to_string(num_items) + "). Ask for fewer.");
  }
  if (count == 0) return;
  if (static_cast<std::uint64_t>(num_items) <= kShuffleLimit) {
    const auto order = fisher_yates(num_items, key);
    std::copy_n(order.begin() + first, count, out.begin());
    return;
  }
  const FeistelPermutation permute(static_cast<std::uint64_t>(num_items), key);
  for (std::int64_t i = 0; i < count; ++i) {
    out[static_cast<std::size_t>(i)] = static_cast<std::int64_t>(permute(static_cast<std::uint64_t>(first + i)));
  }
}

}  // namespace datapipes
