// philox.h: the counter-based generator behind every random choice; docs/semantics.md section 1 is its specification.
//   Philox 4x32-10 (Salmon et al., SC 2011). The words of a stream depend only on (hop key, node, stream), so equal
//   inputs give equal draws on any thread, process or machine.
// hop_key throws std::invalid_argument (ValueError) for a number outside its range.
#pragma once

#include <array>
#include <cstdint>

namespace datapipes {

inline constexpr std::uint32_t kStreamVersion = 1;

inline constexpr int kPhiloxRounds = 10;
inline constexpr std::uint32_t kPhiloxMultipliers[2] = {0xD2511F53, 0xCD9E8D57}, kPhiloxSteps[2] = {0x9E3779B9, 0xBB67AE85};

using Words = std::array<std::uint32_t, 4>;

inline Words philox4x32(Words counter, std::uint64_t key) {
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t p0 = std::uint64_t{kPhiloxMultipliers[0]} * counter[0];
    const std::uint64_t p1 = std::uint64_t{kPhiloxMultipliers[1]} * counter[2];
    counter = {static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<std::uint32_t>(p1),
               static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += kPhiloxSteps[0];
    k1 += kPhiloxSteps[1];
  }
  return counter;
}

// Returns the hop key: everything that selects a stream, except node and stream, folded into 64 bits.
std::uint64_t hop_key(std::uint64_t seed, std::uint64_t epoch, std::uint64_t batch, std::uint64_t stage, std::uint64_t hop,
                      std::uint64_t etype);

// The words of one stream, and unbiased bounded draws from them.
class Stream {
 public:
  Stream(std::uint64_t key, std::uint64_t node, std::uint32_t stream = 0)
      : key_(key), counter_{0, stream, static_cast<std::uint32_t>(node), static_cast<std::uint32_t>(node >> 32)} {}
  // `first` is block 0, made before.
  Stream(std::uint64_t key, std::uint64_t node, std::uint32_t stream, const Words& first) : Stream(key, node, stream) {
    counter_[0] = 1;
    words_ = first;
    used_ = 0;
  }

  std::uint32_t word() {
    if (used_ == 4) {
      words_ = philox4x32(counter_, key_);
      ++counter_[0];
      used_ = 0;
    }
    return words_[used_++];
  }

  // Uniform in [0, range), 1 <= range < 2^63: Lemire's multiplication with rejection.
  std::uint64_t bounded(std::uint64_t range) {
    if (range <= 0xFFFFFFFFu) {
      const auto narrow = static_cast<std::uint32_t>(range);
      std::uint64_t product = std::uint64_t{word()} * narrow;
      if (static_cast<std::uint32_t>(product) < narrow) {  // compute the remainder only if a rejection is possible
        const std::uint32_t threshold = (0u - narrow) % narrow;
        while (static_cast<std::uint32_t>(product) < threshold) product = std::uint64_t{word()} * narrow;
      }
      return product >> 32;
    }
    const std::uint64_t threshold = (std::uint64_t{0} - range) % range;
    for (;;) {
      const std::uint64_t high = word();
      const std::uint64_t low = word();
      const auto product = static_cast<unsigned __int128>((high << 32) | low) * range;
      if (static_cast<std::uint64_t>(product) >= threshold) return static_cast<std::uint64_t>(product >> 64);
    }
  }

 private:
  std::uint64_t key_;
  Words counter_;
  Words words_{};
  std::uint32_t used_ = 4;
};

}  // namespace datapipes
