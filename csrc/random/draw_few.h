// draw_few.h: the first few bounded draws of a stream, all at once: no branch a draw, several Philox blocks side by side.
//   draw_few(stream key and node, first, step, count, out): out[i] = what Stream::bounded(first + i * step) would give next,
//   i < count <= kFewDraws, ranges in [1, 2^31). `out` has room for count rounded up to 8.
//   Returns false where a draw might be rejected (about once in 2^32 / range draws): the words of the stream then shift, so
//   the caller draws one by one. The bits are those of philox.h; test_kernels.cpp holds the two against each other.
#pragma once

#include <cstdint>

#include "random/philox.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace datapipes {

inline constexpr std::int64_t kFewDraws = 32;

// The words of blocks `block` and `block + 1` of a stream, eight in all.
inline void philox_two_blocks(std::uint64_t key, std::uint64_t node, std::uint32_t block, std::uint32_t* words) {
#if defined(__SSE2__)
  // Two lanes of 64 bits, one a block; the multiplication reads the lower halves, so the upper ones may hold anything.
  const __m128i m0 = _mm_set1_epi64x(0xD2511F53), m1 = _mm_set1_epi64x(0xCD9E8D57);
  __m128i x0 = _mm_set_epi64x(block + 1, block), x1 = _mm_setzero_si128();
  __m128i x2 = _mm_set1_epi64x(static_cast<std::int64_t>(node)), x3 = _mm_srli_epi64(x2, 32);
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const __m128i p0 = _mm_mul_epu32(x0, m0), p1 = _mm_mul_epu32(x2, m1);
    x0 = _mm_xor_si128(_mm_srli_epi64(p1, 32), _mm_xor_si128(x1, _mm_set1_epi32(static_cast<int>(k0))));
    x2 = _mm_xor_si128(_mm_srli_epi64(p0, 32), _mm_xor_si128(x3, _mm_set1_epi32(static_cast<int>(k1))));
    x1 = p1;
    x3 = p0;
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  auto* const out = reinterpret_cast<__m128i*>(words);
  _mm_storeu_si128(out, _mm_unpacklo_epi64(_mm_unpacklo_epi32(x0, x1), _mm_unpacklo_epi32(x2, x3)));
  _mm_storeu_si128(out + 1, _mm_unpacklo_epi64(_mm_unpackhi_epi32(x0, x1), _mm_unpackhi_epi32(x2, x3)));
#else
  for (std::uint32_t b = 0; b < 2; ++b) {
    const Words four = philox4x32({block + b, 0, static_cast<std::uint32_t>(node), static_cast<std::uint32_t>(node >> 32)}, key);
    for (std::uint32_t i = 0; i < 4; ++i) words[4 * b + i] = four[i];
  }
#endif
}

inline bool draw_few(std::uint64_t key, std::uint64_t node, std::uint32_t first, std::uint32_t step, std::int64_t count,
                     std::uint32_t* out) {
  for (std::int64_t i = 0; i < count; i += 8) philox_two_blocks(key, node, static_cast<std::uint32_t>(i / 4), out + i);
  std::uint32_t doubtful = 0;
  std::uint32_t range = first;
  for (std::int64_t i = 0; i < count; ++i, range += step) {
    const std::uint64_t product = std::uint64_t{out[i]} * range;
    out[i] = static_cast<std::uint32_t>(product >> 32);
    doubtful |= static_cast<std::uint32_t>(static_cast<std::uint32_t>(product) < range);
  }
  return doubtful == 0;
}

}  // namespace datapipes
