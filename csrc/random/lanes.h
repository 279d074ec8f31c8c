// lanes.h: Philox on two counters side by side, equal to philox.h bit by bit. A lane is a 64-bit word; only its lower half
// is used.
#pragma once

#include <cstddef>
#include <cstdint>

#include "random/philox.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace datapipes {

#if defined(__SSE2__)

// The upper halves may hold anything: the multiplication reads only the lower halves.
struct Lanes {
  __m128i value;
  static Lanes of(std::uint64_t first, std::uint64_t second) {
    return {_mm_set_epi64x(static_cast<std::int64_t>(second), static_cast<std::int64_t>(first))};
  }
  static Lanes both(std::uint64_t value) { return {_mm_set1_epi64x(static_cast<std::int64_t>(value))}; }
  static Lanes load(const std::uint64_t* from) { return {_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))}; }
  void store(std::uint64_t* to) const { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), value); }
  friend Lanes operator^(Lanes a, Lanes b) { return {_mm_xor_si128(a.value, b.value)}; }
  Lanes times(std::uint32_t factor) const { return {_mm_mul_epu32(value, _mm_set1_epi64x(factor))}; }
  Lanes upper() const { return {_mm_srli_epi64(value, 32)}; }
};

#else

struct Lanes {
  std::uint64_t first, second;
  static Lanes of(std::uint64_t first, std::uint64_t second) { return {first, second}; }
  static Lanes both(std::uint64_t value) { return {value, value}; }
  static Lanes load(const std::uint64_t* from) { return {from[0], from[1]}; }
  void store(std::uint64_t* to) const { to[0] = first, to[1] = second; }
  friend Lanes operator^(Lanes a, Lanes b) { return {a.first ^ b.first, a.second ^ b.second}; }
  Lanes times(std::uint32_t factor) const {
    return {std::uint64_t{static_cast<std::uint32_t>(first)} * factor,
            std::uint64_t{static_cast<std::uint32_t>(second)} * factor};
  }
  Lanes upper() const { return {first >> 32, second >> 32}; }
};

#endif

struct LaneCounter {
  Lanes x0, x1, x2, x3;
};

// philox4x32 of 2 * kPairs counters. Several pairs at once keep the multiplier busy while each pair waits for its last
// round.
template <std::size_t kPairs>
inline void philox_lanes(LaneCounter (&counters)[kPairs], std::uint64_t key) {
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    for (auto& c : counters) {
      const Lanes p0 = c.x0.times(kPhiloxMultipliers[0]), p1 = c.x2.times(kPhiloxMultipliers[1]);
      c = {p1.upper() ^ c.x1 ^ Lanes::both(k0), p1, p0.upper() ^ c.x3 ^ Lanes::both(k1), p0};
    }
    k0 += kPhiloxSteps[0];
    k1 += kPhiloxSteps[1];
  }
}

}  // namespace datapipes
