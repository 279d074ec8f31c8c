#include "random/permutation.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "random/lanes.h"
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

  // Replaces each of `values` by its image. One pass of the network may map a value outside [0, num_items). All such
  // values go through it again, in batches, until none is outside.
  void operator()(std::span<std::int64_t> values) const {
    std::vector<std::size_t> places(values.size());
    std::iota(places.begin(), places.end(), std::size_t{0});
    std::uint64_t batch[kBatch] = {};
    while (!places.empty()) {
      std::size_t left = 0;
      for (std::size_t begin = 0; begin < places.size(); begin += kBatch) {
        const std::size_t count = std::min(kBatch, places.size() - begin);
        for (std::size_t i = 0; i < count; ++i) batch[i] = static_cast<std::uint64_t>(values[places[begin + i]]);
        pass(batch);
        for (std::size_t i = 0; i < count; ++i) {
          values[places[begin + i]] = static_cast<std::int64_t>(batch[i]);
          if (batch[i] >= num_items_) places[left++] = places[begin + i];
        }
      }
      places.resize(left);
    }
  }

 private:
  static constexpr std::size_t kBatch = 6;  // three pairs and their constants fit the registers and hide the latency

  void pass(std::uint64_t (&values)[kBatch]) const {
    std::uint64_t left[kBatch], right[kBatch];
    for (std::size_t i = 0; i < kBatch; ++i) left[i] = values[i] >> right_bits_, right[i] = values[i] & right_mask_;
    for (std::uint32_t round = 0; round < kFeistelRounds; round += 2) {
      mix_into(left, right, round, left_mask_);
      mix_into(right, left, round + 1, right_mask_);
    }
    for (std::size_t i = 0; i < kBatch; ++i) values[i] = (left[i] << right_bits_) | right[i];
  }

  // half ^= philox4x32({other, round, 0, 1}, key)[0] & mask, for each value of the batch.
  void mix_into(std::uint64_t (&half)[kBatch], const std::uint64_t (&other)[kBatch], std::uint32_t round,
                std::uint64_t mask) const {
    LaneCounter counters[kBatch / 2];
    for (std::size_t i = 0; i < kBatch / 2; ++i)
      counters[i] = {Lanes::load(other + 2 * i), Lanes::both(round), Lanes::both(0), Lanes::both(1)};
    philox_lanes(counters, key_);
    std::uint64_t mixed[kBatch];
    for (std::size_t i = 0; i < kBatch / 2; ++i) counters[i].x0.store(mixed + 2 * i);
    for (std::size_t i = 0; i < kBatch; ++i) half[i] ^= mixed[i] & mask;
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
  std::iota(out.begin(), out.end(), first);
  permute(out);
}

}  // namespace datapipes
