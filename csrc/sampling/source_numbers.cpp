#include "sampling/source_numbers.h"

#include <algorithm>
#include <cstddef>

#include "common/avx2.h"
#include "random/lanes.h"
#include "random/philox.h"

namespace datapipes {
namespace {

template <class Id>
std::uint64_t id_of(const SourceKeys& keys, Id id) {
  if constexpr (sizeof(Id) == 4) return static_cast<std::uint32_t>(id);
  return keys.wide ? static_cast<std::uint64_t>(id) : static_cast<std::uint32_t>(id);
}

template <class Id>
void plain_numbers(const SourceKeys& keys, std::span<const Id> ids, std::uint32_t* out) {
  for (const Id id : ids) *out++ = source_number(keys, id_of(keys, id));
}

// Four sources at a time, in two pairs of lanes.
template <class Id>
void numbers_in_pairs(const SourceKeys& keys, std::span<const Id> ids, std::uint32_t* out) {
  std::size_t i = 0;
  if (keys.dependency == 1) {
    for (; i + 4 <= ids.size(); i += 4) {
      LaneCounter counters[2];
      for (std::size_t pair = 0; pair < 2; ++pair) {
        const std::uint64_t first = id_of(keys, ids[i + 2 * pair]), second = id_of(keys, ids[i + 2 * pair + 1]);
        counters[pair] = {Lanes::both(0), Lanes::both(0), Lanes::of(first, second), Lanes::of(first >> 32, second >> 32)};
      }
      philox_lanes(counters, keys.key);
      for (std::size_t pair = 0; pair < 2; ++pair) {
        std::uint64_t words[2];
        counters[pair].x0.store(words);
        out[i + 2 * pair] = static_cast<std::uint32_t>(words[0]);
        out[i + 2 * pair + 1] = static_cast<std::uint32_t>(words[1]);
      }
    }
  }
  plain_numbers(keys, ids.subspan(i), out + i);
}

#if defined(DATAPIPES_AVX2)

// Several vectors of four sources are computed at once, since each waits for its last multiplication: four vectors, or two if
// fewer sources are left.
constexpr int kMany = 4, kFew = 2;

template <int kVectors>
constexpr std::size_t kSources = 4 * kVectors;

// Keys of four lanes: one key for all, or one for each source. As in lanes.h a lane is the lower half of 64 bits.
struct LaneKeys {
  __m256i k0, k1;
};

DATAPIPES_AVX2 inline LaneKeys equal_keys(std::uint64_t key) {
  return {_mm256_set1_epi64x(static_cast<std::uint32_t>(key)), _mm256_set1_epi64x(static_cast<std::int64_t>(key >> 32))};
}

// Writes the first words of the streams (key, id, stream) to the lower halves of `ids`. In the first round the words 0
// and 1 of the counter are 0 and the stream; of ids below 2^32 word 3 is 0 too, so two rounds have one product each.
template <bool kWide, bool kOwnKeys, int kVectors>
DATAPIPES_AVX2 inline void first_words(__m256i (&ids)[kVectors], std::uint32_t stream, const LaneKeys* keys) {
  const __m256i m0 = _mm256_set1_epi64x(kPhiloxMultipliers[0]), m1 = _mm256_set1_epi64x(kPhiloxMultipliers[1]);
  const __m256i step0 = _mm256_set1_epi64x(kPhiloxSteps[0]), step1 = _mm256_set1_epi64x(kPhiloxSteps[1]);
  const __m256i stream_word = _mm256_set1_epi64x(stream);
  constexpr int kKeys = kOwnKeys ? kVectors : 1;
  __m256i x0[kVectors], x1[kVectors], x2[kVectors], x3[kVectors], k0[kKeys], k1[kKeys];
#pragma GCC unroll 4
  for (int v = 0; v < kKeys; ++v) k0[v] = keys[v].k0, k1[v] = keys[v].k1;
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const int k = kOwnKeys ? v : 0;
    const __m256i p1 = _mm256_mul_epu32(ids[v], m1);
    x0[v] = _mm256_xor_si256(_mm256_srli_epi64(p1, 32), _mm256_xor_si256(k0[k], stream_word));
    x1[v] = p1;
    x2[v] = kWide ? _mm256_xor_si256(_mm256_srli_epi64(ids[v], 32), k1[k]) : k1[k];
  }
#pragma GCC unroll 16
  for (int round = 1; round < kPhiloxRounds; ++round) {
#pragma GCC unroll 4
    for (int v = 0; v < kKeys; ++v) k0[v] = _mm256_add_epi32(k0[v], step0), k1[v] = _mm256_add_epi32(k1[v], step1);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int k = kOwnKeys ? v : 0;
      const __m256i p0 = _mm256_mul_epu32(x0[v], m0), p1 = _mm256_mul_epu32(x2[v], m1);
      x0[v] = _mm256_xor_si256(_mm256_srli_epi64(p1, 32), _mm256_xor_si256(x1[v], k0[k]));
      x1[v] = p1;
      const __m256i low = round == 1 ? k1[k] : _mm256_xor_si256(x3[v], k1[k]);
      x2[v] = _mm256_xor_si256(_mm256_srli_epi64(p0, 32), low);
      x3[v] = p0;
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) ids[v] = x0[v];
}

// Two vectors hold eight sources: int64 in order; int32 first the even places, then the odd places.
template <int kVectors>
DATAPIPES_AVX2 inline void load(const std::int64_t* ids, __m256i (&to)[kVectors]) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) to[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ids + 4 * v));
}

template <int kVectors>
DATAPIPES_AVX2 inline void load(const std::int32_t* ids, __m256i (&to)[kVectors]) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; v += 2) {
    to[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(ids + 4 * v));
    to[v + 1] = _mm256_srli_epi64(to[v], 32);
  }
}

template <int kVectors>
DATAPIPES_AVX2 inline void store(const __m256i (&from)[kVectors], std::uint32_t* out, std::int64_t) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; v += 2) {
    const auto low = _mm256_shuffle_ps(_mm256_castsi256_ps(from[v]), _mm256_castsi256_ps(from[v + 1]), 0x88);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 4 * v), _mm256_permute4x64_epi64(_mm256_castps_si256(low), 0xD8));
  }
}

template <int kVectors>
DATAPIPES_AVX2 inline void store(const __m256i (&from)[kVectors], std::uint32_t* out, std::int32_t) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; v += 2) {
    const __m256i odd = _mm256_slli_epi64(from[v + 1], 32);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 4 * v), _mm256_blend_epi32(from[v], odd, 0xAA));
  }
}

template <class Id, bool kWide, int kVectors>
DATAPIPES_AVX2 void fresh_numbers(const SourceKeys& keys, const Id* ids, std::uint32_t* out) {
  const LaneKeys of[1] = {equal_keys(keys.key)};
  __m256i lanes[kVectors];
  load(ids, lanes);
  first_words<kWide, false>(lanes, 0, of);
  store(lanes, out, Id{});
}

// With a dependency: first the offset of each source, then its number by the key of its generation.
template <class Id, bool kWide, int kVectors>
DATAPIPES_AVX2 void lasting_numbers(const SourceKeys& keys, const Id* ids, std::uint32_t* out) {
  const __m256i range = _mm256_set1_epi64x(keys.dependency), lower = _mm256_set1_epi64x(0xFFFFFFFF);
  const __m256i last = _mm256_set1_epi64x(std::int64_t{keys.until_next} - 1);
  const LaneKeys at_batch_0[1] = {equal_keys(keys.offset_key)};
  const LaneKeys now = equal_keys(keys.key), next = equal_keys(keys.next_key);
  __m256i lanes[kVectors], doubtful = _mm256_setzero_si256();
  LaneKeys own[kVectors];
  load(ids, lanes);
  first_words<kWide, false>(lanes, 1, at_batch_0);
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const __m256i product = _mm256_mul_epu32(lanes[v], range);  // bounded(dependency), unless it is rejected
    doubtful = _mm256_or_si256(doubtful, _mm256_cmpgt_epi64(range, _mm256_and_si256(product, lower)));
    const __m256i moved = _mm256_cmpgt_epi64(_mm256_srli_epi64(product, 32), last);
    own[v] = {_mm256_blendv_epi8(now.k0, next.k0, moved), _mm256_blendv_epi8(now.k1, next.k1, moved)};
  }
  if (!_mm256_testz_si256(doubtful, doubtful)) {
    for (std::size_t i = 0; i < kSources<kVectors>; ++i) out[i] = source_number(keys, id_of(keys, ids[i]));
    return;
  }
  load(ids, lanes);
  first_words<kWide, true>(lanes, 0, own);
  store(lanes, out, Id{});
}

template <class Id, bool kWide, int kVectors>
DATAPIPES_AVX2 inline void numbers_at_once(const SourceKeys& keys, const Id* ids, std::uint32_t* out) {
  if (keys.dependency == 1) {
    fresh_numbers<Id, kWide, kVectors>(keys, ids, out);
  } else {
    lasting_numbers<Id, kWide, kVectors>(keys, ids, out);
  }
}

template <class Id, bool kWide>
DATAPIPES_AVX2 void numbers_by_avx2(const SourceKeys& keys, std::span<const Id> ids, std::uint32_t* out) {
  constexpr std::size_t kLeast = kSources<kFew>;
  const Id* const from = ids.data();
  const std::size_t count = ids.size();
  if (count < kLeast) {
    Id padded[kLeast] = {};
    std::uint32_t numbers[kLeast];
    std::copy(ids.begin(), ids.end(), padded);
    numbers_at_once<Id, kWide, kFew>(keys, padded, numbers);
    std::copy_n(numbers, count, out);
    return;
  }
  std::size_t i = 0;
  for (; i + kSources<kMany> <= count; i += kSources<kMany>) numbers_at_once<Id, kWide, kMany>(keys, from + i, out + i);
  for (; i + kLeast <= count; i += kLeast) numbers_at_once<Id, kWide, kFew>(keys, from + i, out + i);
  if (i < count) numbers_at_once<Id, kWide, kFew>(keys, from + count - kLeast, out + count - kLeast);  // some a second time
}

#endif

}  // namespace

std::uint32_t source_number(const SourceKeys& keys, std::uint64_t id) {
  if (keys.dependency == 1) return Stream(keys.key, id).word();
  const bool moved = Stream(keys.offset_key, id, 1).bounded(keys.dependency) >= keys.until_next;
  return Stream(moved ? keys.next_key : keys.key, id).word();
}

template <class Id>
bool source_numbers(const SourceKeys& keys, std::span<const Id> ids, std::uint32_t* out, NumbersBy by) {
  switch (by) {
    case NumbersBy::kPlain:
      plain_numbers(keys, ids, out);
      return true;
    case NumbersBy::kPairs:
      numbers_in_pairs(keys, ids, out);
      return true;
    case NumbersBy::kAvx2:
#if defined(DATAPIPES_AVX2)
      if (!has_avx2()) return false;
      if (sizeof(Id) == 8 && keys.wide) {
        numbers_by_avx2<Id, sizeof(Id) == 8>(keys, ids, out);
      } else {
        numbers_by_avx2<Id, false>(keys, ids, out);
      }
      return true;
#else
      return false;
#endif
  }
  return false;
}

template <class Id>
void source_numbers(const SourceKeys& keys, std::span<const Id> ids, std::uint32_t* out) {
  if (!source_numbers(keys, ids, out, NumbersBy::kAvx2)) source_numbers(keys, ids, out, NumbersBy::kPairs);
}

template bool source_numbers(const SourceKeys&, std::span<const std::int32_t>, std::uint32_t*, NumbersBy);
template bool source_numbers(const SourceKeys&, std::span<const std::int64_t>, std::uint32_t*, NumbersBy);
template void source_numbers(const SourceKeys&, std::span<const std::int32_t>, std::uint32_t*);
template void source_numbers(const SourceKeys&, std::span<const std::int64_t>, std::uint32_t*);

}  // namespace datapipes
