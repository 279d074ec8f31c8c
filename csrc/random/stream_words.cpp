#include "random/stream_words.h"

#include <cstddef>

#include "random/philox.h"
#include "random/philox_avx2.h"

namespace datapipes {
namespace {

void plain_words(std::uint64_t key, std::uint32_t first, std::span<std::uint32_t> out) {
  for (std::uint32_t& word : out) word = philox4x32({0, first++, 0, 0}, key)[0];
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

#endif

}  // namespace

void first_words_of_streams(std::uint64_t key, std::uint32_t first, std::span<std::uint32_t> out) {
#if defined(DATAPIPES_AVX2)
  if (has_avx2()) return words_by_avx2(key, first, out);
#endif
  plain_words(key, first, out);
}

}  // namespace datapipes
