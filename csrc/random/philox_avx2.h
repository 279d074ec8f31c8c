// philox_avx2.h: a round of philox.h by AVX2, on 4 * kVectors counters; the bits are equal. A word is the lower half of a lane
// of 64 bits; the upper halves may hold anything. Several vectors at once hide the latency of the multiplication.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/avx2.h"
#include "random/philox.h"

namespace datapipes {

#if defined(DATAPIPES_AVX2)

template <std::size_t kVectors>
DATAPIPES_AVX2 [[gnu::always_inline]] inline void philox_round(__m256i (&x0)[kVectors], __m256i (&x1)[kVectors],
                                                               __m256i (&x2)[kVectors], __m256i (&x3)[kVectors], std::uint32_t k0,
                                                               std::uint32_t k1) {
  const __m256i m0 = _mm256_set1_epi64x(kPhiloxMultipliers[0]), m1 = _mm256_set1_epi64x(kPhiloxMultipliers[1]);
  const __m256i key0 = _mm256_set1_epi64x(k0), key1 = _mm256_set1_epi64x(k1);
#pragma GCC unroll 4
  for (std::size_t v = 0; v < kVectors; ++v) {
    const __m256i p0 = _mm256_mul_epu32(x0[v], m0), p1 = _mm256_mul_epu32(x2[v], m1);
    x0[v] = _mm256_xor_si256(_mm256_srli_epi64(p1, 32), _mm256_xor_si256(x1[v], key0));
    x2[v] = _mm256_xor_si256(_mm256_srli_epi64(p0, 32), _mm256_xor_si256(x3[v], key1));
    x1[v] = p1;
    x3[v] = p0;
  }
}

#endif

}  // namespace datapipes
