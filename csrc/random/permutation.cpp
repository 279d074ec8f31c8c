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
#include "random/philox_avx2.h"

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

// A network that permutes all numbers with as many bits as num_items - 1.
class Feistel {
 public:
  static constexpr std::size_t kBatch = 6;  // three pairs and their constants fit the registers and hide the latency

  Feistel(std::uint64_t num_items, std::uint64_t key) : key_(key) {
    const int bits = std::bit_width(num_items - 1);
    right_bits_ = bits / 2;
    left_mask_ = (std::uint64_t{1} << (bits - right_bits_)) - 1;
    right_mask_ = (std::uint64_t{1} << right_bits_) - 1;
  }

  void operator()(std::uint64_t (&values)[kBatch]) const {
    std::uint64_t left[kBatch], right[kBatch];
    for (std::size_t i = 0; i < kBatch; ++i) left[i] = values[i] >> right_bits_, right[i] = values[i] & right_mask_;
    for (std::uint32_t round = 0; round < kFeistelRounds; round += 2) {
      mix_into(left, right, round, left_mask_);
      mix_into(right, left, round + 1, right_mask_);
    }
    for (std::size_t i = 0; i < kBatch; ++i) values[i] = (left[i] << right_bits_) | right[i];
  }

 private:
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

 protected:
  std::uint64_t key_, left_mask_, right_mask_;
  int right_bits_;
};

#if defined(DATAPIPES_AVX2)

// The same network, four numbers a vector.
class FeistelAvx2 : Feistel {
 public:
  static constexpr std::size_t kVectors = 4, kBatch = 4 * kVectors;

  using Feistel::Feistel;

  DATAPIPES_AVX2 void operator()(std::uint64_t (&values)[kBatch]) const {
    const __m256i left_mask = lanes(left_mask_), right_mask = lanes(right_mask_);
    const __m128i shift = _mm_cvtsi32_si128(right_bits_);
    __m256i left[kVectors], right[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) {
      const __m256i value = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + 4 * v));
      left[v] = _mm256_srl_epi64(value, shift);
      right[v] = _mm256_and_si256(value, right_mask);
    }
    for (std::uint32_t round = 0; round < kFeistelRounds; round += 2) {
      mix_into(left, right, round, left_mask);
      mix_into(right, left, round + 1, right_mask);
    }
    for (std::size_t v = 0; v < kVectors; ++v) {
      const __m256i value = _mm256_or_si256(_mm256_sll_epi64(left[v], shift), right[v]);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(values + 4 * v), value);
    }
  }

 private:
  DATAPIPES_AVX2 static __m256i lanes(std::uint64_t value) { return _mm256_set1_epi64x(static_cast<std::int64_t>(value)); }

  // As Feistel's. The counter is {other, round, 0, 1}: Philox's first round needs one product, the second round one that is
  // equal for all values, and the last round only word 0.
  DATAPIPES_AVX2 void mix_into(__m256i (&half)[kVectors], const __m256i (&other)[kVectors], std::uint32_t round,
                               __m256i mask) const {
    const __m256i m0 = lanes(kPhiloxMultipliers[0]), m1 = lanes(kPhiloxMultipliers[1]);
    auto k0 = static_cast<std::uint32_t>(key_), k1 = static_cast<std::uint32_t>(key_ >> 32);
    const std::uint64_t same = std::uint64_t{kPhiloxMultipliers[0]} * (round ^ k0);
    __m256i x0[kVectors], x1[kVectors], x2[kVectors], x3[kVectors];
    const __m256i first = lanes(1u ^ k1), second0 = lanes(k0 + kPhiloxSteps[0]),
                  second1 = lanes((same >> 32) ^ (k1 + kPhiloxSteps[1])), second3 = lanes(same);
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) {
      const __m256i p0 = _mm256_mul_epu32(other[v], m0);
      const __m256i p1 = _mm256_mul_epu32(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), first), m1);
      x0[v] = _mm256_xor_si256(_mm256_srli_epi64(p1, 32), second0);
      x1[v] = p1;
      x2[v] = _mm256_xor_si256(p0, second1);
      x3[v] = second3;
    }
    k0 += 2 * kPhiloxSteps[0], k1 += 2 * kPhiloxSteps[1];
    for (int i = 2; i + 1 < kPhiloxRounds; ++i, k0 += kPhiloxSteps[0], k1 += kPhiloxSteps[1]) {
      philox_round(x0, x1, x2, x3, k0, k1);
    }
    const __m256i key0 = lanes(k0);
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) {
      const __m256i p1 = _mm256_mul_epu32(x2[v], m1);
      const __m256i word = _mm256_xor_si256(_mm256_srli_epi64(p1, 32), _mm256_xor_si256(x1[v], key0));
      half[v] = _mm256_xor_si256(half[v], _mm256_and_si256(word, mask));
    }
  }
};

#endif

// Replaces each of `values` by its image in [0, num_items). One pass of the network may map a value outside. Values outside
// pass the network again, in batches, until none is outside.
template <typename Network>
void permute(std::span<std::int64_t> values, std::uint64_t num_items, const Network& network) {
  std::vector<std::size_t> places(values.size());
  std::iota(places.begin(), places.end(), std::size_t{0});
  std::uint64_t batch[Network::kBatch] = {};
  while (!places.empty()) {
    std::size_t left = 0;
    for (std::size_t begin = 0; begin < places.size(); begin += Network::kBatch) {
      const std::size_t count = std::min(Network::kBatch, places.size() - begin);
      for (std::size_t i = 0; i < count; ++i) batch[i] = static_cast<std::uint64_t>(values[places[begin + i]]);
      network(batch);
      for (std::size_t i = 0; i < count; ++i) {
        values[places[begin + i]] = static_cast<std::int64_t>(batch[i]);
        if (batch[i] >= num_items) places[left++] = places[begin + i];
      }
    }
    places.resize(left);
  }
}

}  // namespace

void permutation_at(std::int64_t num_items, std::uint64_t key, std::int64_t first, std::span<std::int64_t> out) {
  const auto count = static_cast<std::int64_t>(out.size());
  if (num_items < 0 || first < 0 || first > num_items || count > num_items - first) {
    throw std::out_of_range("permutation: " + std::to_string(count) + " positions from " + std::to_string(first) +
                            " on were asked for, of " + std::to_string(num_items) + " items. Ask for positions of these.");
  }
  if (count == 0) return;
  if (static_cast<std::uint64_t>(num_items) <= kShuffleLimit) {
    const auto order = fisher_yates(num_items, key);
    std::copy_n(order.begin() + first, count, out.begin());
    return;
  }
  const auto size = static_cast<std::uint64_t>(num_items);
  std::iota(out.begin(), out.end(), first);
#if defined(DATAPIPES_AVX2)
  if (has_avx2()) return permute(out, size, FeistelAvx2(size, key));
#endif
  permute(out, size, Feistel(size, key));
}

}  // namespace datapipes
