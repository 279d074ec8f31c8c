#include "random/stream_words.h"

#include <cstddef>

#include "random/philox.h"
#include "random/philox_avx2.h"

namespace datapipes {
namespace {

void plain_words(std::uint64_t key, std::uint32_t first, std::span<std::uint32_t> out) {
  for (std::uint32_t& word : out) word = philox4x32({0, first++, 0, 0}, key)[0];
}

void plain_blocks(std::uint64_t key, std::uint64_t node, std::uint32_t first, std::span<Words> out) {
  for (Words& words : out)
    words = philox4x32({0, first++, static_cast<std::uint32_t>(node), static_cast<std::uint32_t>(node >> 32)}, key);
}

#if defined(DATAPIPES_AVX2)

constexpr std::size_t kVectors = 4;  // of four streams each: while one waits for its multiplication, the others go on
constexpr std::size_t kStreams = 4 * kVectors;

// All words of the counter except the stream are 0, so the first round has no product; the last round needs word 0 only.
DATAPIPES_AVX2 void words_by_avx2(std::uint64_t key, std::uint32_t first, std::span<std::uint32_t> out) {
  const __m256i m1 = _mm256_set1_epi64x(kPhiloxMultipliers[1]);
  const auto low = static_cast<std::uint32_t>(key), high = static_cast<std::uint32_t>(key >> 32);
  std::size_t i = 0;
  for (; i + kStreams <= out.size(); i += kStreams, first += kStreams) {
    __m256i x0[kVectors], x1[kVectors], x2[kVectors], x3[kVectors];
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) {
      const auto stream = static_cast<std::uint32_t>(first + 4 * v);
      x0[v] = _mm256_set_epi64x((stream + 3) ^ low, (stream + 2) ^ low, (stream + 1) ^ low, stream ^ low);
      x1[v] = x3[v] = _mm256_setzero_si256();
      x2[v] = _mm256_set1_epi64x(high);
    }
    std::uint32_t k0 = low + kPhiloxSteps[0], k1 = high + kPhiloxSteps[1];
    for (int round = 1; round + 1 < kPhiloxRounds; ++round, k0 += kPhiloxSteps[0], k1 += kPhiloxSteps[1]) {
      philox_round(x0, x1, x2, x3, k0, k1);
    }
    const __m256i key0 = _mm256_set1_epi64x(k0), take = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) {
      const __m256i p1 = _mm256_mul_epu32(x2[v], m1);
      const __m256i words = _mm256_xor_si256(_mm256_srli_epi64(p1, 32), _mm256_xor_si256(x1[v], key0));
      const __m128i packed = _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(words, take));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out.data() + i + 4 * v), packed);
    }
  }
  plain_words(key, first, out.subspan(i));
}

DATAPIPES_AVX2 void blocks_by_avx2(std::uint64_t key, std::uint64_t node, std::uint32_t first, std::span<Words> out) {
  std::size_t i = 0;
  for (; i + kStreams <= out.size(); i += kStreams, first += kStreams) {
    __m256i x0[kVectors], x1[kVectors], x2[kVectors], x3[kVectors];
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) {
      const auto stream = static_cast<std::uint32_t>(first + 4 * v);
      x0[v] = _mm256_setzero_si256();
      x1[v] = _mm256_set_epi64x(stream + 3, stream + 2, stream + 1, stream);
      x2[v] = _mm256_set1_epi64x(static_cast<std::int64_t>(node));
      x3[v] = _mm256_set1_epi64x(static_cast<std::int64_t>(node >> 32));
    }
    auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < kPhiloxRounds; ++round, k0 += kPhiloxSteps[0], k1 += kPhiloxSteps[1])
      philox_round(x0, x1, x2, x3, k0, k1);
    const __m256i lower = _mm256_set1_epi64x(0xFFFFFFFF);
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) {  // lane j has the words of stream 4 v + j
      const __m256i early = _mm256_or_si256(_mm256_and_si256(x0[v], lower), _mm256_slli_epi64(x1[v], 32));
      const __m256i late = _mm256_or_si256(_mm256_and_si256(x2[v], lower), _mm256_slli_epi64(x3[v], 32));
      const __m256i even = _mm256_unpacklo_epi64(early, late), odd = _mm256_unpackhi_epi64(early, late);
      auto* const to = reinterpret_cast<__m256i*>(out.data() + i + 4 * v);
      _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
      _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
    }
  }
  plain_blocks(key, node, first, out.subspan(i));
}

#endif

}  // namespace

void first_words_of_streams(std::uint64_t key, std::uint32_t first, std::span<std::uint32_t> out) {
#if defined(DATAPIPES_AVX2)
  if (has_avx2()) return words_by_avx2(key, first, out);
#endif
  plain_words(key, first, out);
}

void first_blocks_of_streams(std::uint64_t key, std::uint64_t node, std::uint32_t first, std::span<Words> out) {
#if defined(DATAPIPES_AVX2)
  if (has_avx2()) return blocks_by_avx2(key, node, first, out);
#endif
  plain_blocks(key, node, first, out);
}

}  // namespace datapipes
