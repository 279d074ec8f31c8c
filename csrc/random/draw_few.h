// draw_few.h: the first few bounded draws of a stream at once, without a branch per draw and with several Philox blocks
// side by side.
//   draw_few(key, node, stream, first, count, out): out[i] equals the i-th draw of Stream(key, node, stream), made by
//   bounded(first + i), for i < count <= kFewDraws. The ranges first + i are in [1, 2^31). `out` has room for count, rounded up
//   to a multiple of 8. Returns false if a draw might be rejected (about once in 2^32 / range draws). A rejection shifts the
//   words of the stream, so the caller then draws one by one. The bits equal philox.h's; test_fast_paths.cpp compares the two.
#pragma once

#include <cstdint>

#include "random/lanes.h"

namespace datapipes {

inline constexpr std::int64_t kFewDraws = 32;

// The eight words of blocks `block` and `block + 1` of a stream.
inline void philox_two_blocks(std::uint64_t key, std::uint64_t node, std::uint32_t stream, std::uint32_t block,
                              std::uint32_t* words) {
  LaneCounter counter[1] = {{Lanes::of(block, block + 1), Lanes::both(stream), Lanes::both(node), Lanes::both(node >> 32)}};
  philox_lanes(counter, key);
  const auto [x0, x1, x2, x3] = counter[0];
#if defined(__SSE2__)
  auto* const out = reinterpret_cast<__m128i*>(words);
  const __m128i low01 = _mm_unpacklo_epi32(x0.value, x1.value), low23 = _mm_unpacklo_epi32(x2.value, x3.value);
  const __m128i high01 = _mm_unpackhi_epi32(x0.value, x1.value), high23 = _mm_unpackhi_epi32(x2.value, x3.value);
  _mm_storeu_si128(out, _mm_unpacklo_epi64(low01, low23));
  _mm_storeu_si128(out + 1, _mm_unpacklo_epi64(high01, high23));
#else
  const Lanes all[4] = {x0, x1, x2, x3};
  for (int i = 0; i < 4; ++i) {
    words[i] = static_cast<std::uint32_t>(all[i].first);
    words[4 + i] = static_cast<std::uint32_t>(all[i].second);
  }
#endif
}

inline bool draw_few(std::uint64_t key, std::uint64_t node, std::uint32_t stream, std::uint32_t first, std::int64_t count,
                     std::uint32_t* out) {
  for (std::int64_t i = 0; i < count; i += 8) philox_two_blocks(key, node, stream, static_cast<std::uint32_t>(i / 4), out + i);
  std::uint32_t doubtful = 0;
  std::uint32_t range = first;
  for (std::int64_t i = 0; i < count; ++i, ++range) {
    const std::uint64_t product = std::uint64_t{out[i]} * range;
    out[i] = static_cast<std::uint32_t>(product >> 32);
    doubtful |= static_cast<std::uint32_t>(static_cast<std::uint32_t>(product) < range);
  }
  return doubtful == 0;
}

}  // namespace datapipes
