#include "sampling/smallest.h"

#include <array>

#include "common/avx2.h"

namespace datapipes {
namespace {

constexpr std::int64_t kRanked = 64;  // for up to this many numbers, comparing each with each is fastest

#if defined(DATAPIPES_AVX2)

// For each mask of 8 bits: the numbers of its set bits, ascending, in the bytes of a word.
constexpr std::array<std::uint64_t, 256> bits_of_masks() {
  std::array<std::uint64_t, 256> found{};
  for (std::size_t mask = 0; mask < found.size(); ++mask) {
    int shift = 0;
    for (std::uint64_t bit = 0; bit < 8; ++bit) {
      if ((mask >> bit & 1) == 0) continue;
      found[mask] |= bit << shift;
      shift += 8;
    }
  }
  return found;
}

constexpr auto kBitsOfMasks = bits_of_masks();

DATAPIPES_AVX2 inline __m128i bits_of(unsigned mask) { return _mm_cvtsi64_si128(static_cast<std::int64_t>(kBitsOfMasks[mask])); }

DATAPIPES_AVX2 inline unsigned mask_of(__m256i lanes) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(lanes)));
}

// A mask of the eight lanes from `begin` on that are before `end`.
inline unsigned lanes_before(std::int64_t begin, std::int64_t end) { return end - begin < 8 ? (1u << (end - begin)) - 1 : 255u; }

DATAPIPES_AVX2 std::int64_t keep_by_vectors(const std::uint32_t* from, std::int64_t count, std::int64_t first,
                                            std::uint32_t bound, std::uint32_t* numbers, std::int64_t* places) {
  const __m256i most = _mm256_set1_epi32(static_cast<std::int32_t>(bound));
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; i += 8) {
    const __m256i value = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    const unsigned mask = mask_of(_mm256_cmpeq_epi32(_mm256_min_epu32(value, most), value)) & lanes_before(i, count);
    const __m128i bits = bits_of(mask);
    const __m256i base = _mm256_set1_epi64x(first + i);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(numbers + found),
                        _mm256_permutevar8x32_epi32(value, _mm256_cvtepu8_epi32(bits)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(places + found), _mm256_add_epi64(base, _mm256_cvtepu8_epi64(bits)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(places + found + 4),
                        _mm256_add_epi64(base, _mm256_cvtepu8_epi64(_mm_srli_si128(bits, 4))));
    found += _mm_popcnt_u32(mask);
  }
  return found;
}

// Writes, for each eight of the first 8 * kEights numbers, a mask of the numbers with fewer than `picks` smaller ones.
template <int kEights>
DATAPIPES_AVX2 void ranks_below(const std::uint32_t* numbers, std::int64_t found, std::int64_t picks, unsigned* masks) {
  const __m256i sign = _mm256_set1_epi32(std::numeric_limits<std::int32_t>::min());  // compares are signed
  __m256i value[kEights], smaller[kEights];                                          // minus the number of smaller ones
#pragma GCC unroll 8
  for (int e = 0; e < kEights; ++e) {
    value[e] = _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(numbers + 8 * e)), sign);
    smaller[e] = _mm256_setzero_si256();
  }
  for (std::int64_t i = 0; i < found; ++i) {
    const __m256i other = _mm256_xor_si256(_mm256_set1_epi32(static_cast<std::int32_t>(numbers[i])), sign);
#pragma GCC unroll 8
    for (int e = 0; e < kEights; ++e) smaller[e] = _mm256_add_epi32(smaller[e], _mm256_cmpgt_epi32(value[e], other));
  }
  const __m256i most = _mm256_set1_epi32(-static_cast<std::int32_t>(picks));
#pragma GCC unroll 8
  for (int e = 0; e < kEights; ++e) masks[e] = mask_of(_mm256_cmpgt_epi32(smaller[e], most)) & lanes_before(8 * e, found);
}

// Writes the places of the picks. Returns false, and writes nothing, if equal numbers give more than `picks` places.
DATAPIPES_AVX2 bool pick_by_vectors(const std::uint32_t* numbers, const std::int64_t* places, std::int64_t found,
                                    std::int64_t picks, std::int64_t* out) {
  using Ranks = void (*)(const std::uint32_t*, std::int64_t, std::int64_t, unsigned*);
  static constexpr Ranks kRanks[] = {ranks_below<1>, ranks_below<2>, ranks_below<3>, ranks_below<4>,
                                     ranks_below<5>, ranks_below<6>, ranks_below<7>, ranks_below<8>};
  const std::int64_t eights = (found + 7) / 8;
  unsigned masks[8];
  kRanks[eights - 1](numbers, found, picks, masks);
  int below = 0;
  for (std::int64_t e = 0; e < eights; ++e) below += _mm_popcnt_u32(masks[e]);
  if (below != picks) return false;
  for (std::int64_t e = 0; e < eights; ++e)
    for (unsigned mask = masks[e]; mask != 0; mask &= mask - 1) *out++ = places[8 * e + __builtin_ctz(mask)];
  return true;
}

#endif

}  // namespace

bool SmallestChooser::has_vectors() { return has_avx2(); }

void SmallestChooser::keep(const std::uint32_t* from, std::int64_t count, std::int64_t first, std::uint32_t bound) {
  std::uint32_t* const numbers = numbers_.data() + found_;
  std::int64_t* const places = places_.data() + found_;
#if defined(DATAPIPES_AVX2)
  if (vectors_) {
    found_ += keep_by_vectors(from, count, first, bound, numbers, places);
    return;
  }
#endif
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    numbers[found] = from[i];
    places[found] = first + i;
    found += static_cast<std::int64_t>(from[i] <= bound);
  }
  found_ += found;
}

void SmallestChooser::pick(std::int64_t picks, std::int64_t* out) {
  if (found_ == picks) {
    std::copy_n(places_.data(), picks, out);
    return;
  }
#if defined(DATAPIPES_AVX2)
  if (vectors_ && found_ <= kRanked && pick_by_vectors(numbers_.data(), places_.data(), found_, picks, out)) return;
#endif
  const std::uint32_t last = last_pick(picks);
  const auto* const numbers = numbers_.data();
  std::int64_t equal = picks;  // how many of the numbers equal to the last pick are picked
  for (std::int64_t i = 0; i < found_; ++i) equal -= static_cast<std::int64_t>(numbers[i] < last);
  std::int64_t written = 0;
  for (std::int64_t i = 0; written < picks; ++i) {
    const bool tied = numbers[i] == last && equal > 0;
    equal -= static_cast<std::int64_t>(tied);
    out[written] = places_[static_cast<std::size_t>(i)];
    written += static_cast<std::int64_t>(numbers[i] < last || tied);
  }
}

// Returns the number of the last pick: the largest of the `picks` smallest.
std::uint32_t SmallestChooser::last_pick(std::int64_t picks) {
  order_.assign(numbers_.begin(), numbers_.begin() + found_);
  std::nth_element(order_.begin(), order_.begin() + (picks - 1), order_.end());
  return order_[static_cast<std::size_t>(picks - 1)];
}

}  // namespace datapipes
