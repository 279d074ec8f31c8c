// sums_search.h: the steps of a weighted draw in the running sums of a row: from two random words to a place x, and from x to
// the first sum above. Compares a few sums at a time, without a branch on the result.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sampling/row_sums.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace datapipes {

// The place x in [0, total) that two random words draw.
inline double place_of(std::uint32_t high, std::uint32_t low, double total) {
  const std::uint64_t bits = (std::uint64_t{high} << 32 | low) >> 11;
  return static_cast<double>(static_cast<std::int64_t>(bits)) * 0x1p-53 * total;
}

// Returns the lowest i in [first, stop) with line[i] > x, or -1; line[0 .. 8) are read, and 0 <= first < stop <= 8.
inline int first_above(const double* line, int first, int stop, double x) {
#if defined(__SSE2__)
  const __m128d at = _mm_set1_pd(x);
  const auto above = [&](int i) { return _mm_castpd_si128(_mm_cmpgt_pd(_mm_loadu_pd(line + i), at)); };
  const __m128i low = _mm_packs_epi32(above(0), above(2)), high = _mm_packs_epi32(above(4), above(6));
  auto found = static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(low, high)));  // two bits for each sum
  found &= 0xFFFFu >> (16 - 2 * stop) & 0xFFFFu << 2 * first;
  return found == 0 ? -1 : __builtin_ctz(found) / 2;
#else
  for (int i = first; i < stop; ++i)
    if (line[i] > x) return i;
  return -1;
#endif
}

// Returns how many of `count` ascending numbers are at most x.
inline std::int64_t count_up_to(const double* numbers, std::int64_t count, double x) {
  std::int64_t found = 0, i = 0;
#if defined(__SSE2__)
  const __m128d at = _mm_set1_pd(x);
  __m128i two = _mm_setzero_si128();
  for (; i + 2 <= count; i += 2) two = _mm_sub_epi64(two, _mm_castpd_si128(_mm_cmple_pd(_mm_loadu_pd(numbers + i), at)));
  std::int64_t halves[2];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(halves), two);
  found = halves[0] + halves[1];
#endif
  for (; i < count; ++i) found += static_cast<std::int64_t>(numbers[i] <= x);
  return found;
}

// Of a row of `degree` in-edges from position `begin` on, whose running sums are at sums[begin] and so on (row_sums.h):

// The last position whose sum is above the sum before.
inline std::int64_t last_drawable(const double* sums, std::int64_t begin, std::int64_t degree) {
  std::int64_t i = begin + degree - 1;
  while (i > begin && !(sums[i] > sums[i - 1])) --i;
  return i;
}

// The line of 8 sums with the first sum above x. The number of steps depends on the row only, so the processor goes on with
// other draws while one waits for memory.
inline std::int64_t line_above(const double* coarse, std::int64_t begin, std::int64_t degree, double x) {
  const double* from = coarse + begin / kLineSums;
  std::int64_t count = (begin + degree - 1) / kLineSums - begin / kLineSums;
  while (count > 16) {
    const std::int64_t half = count / 2;
    from += half & -static_cast<std::int64_t>(from[half - 1] <= x);
    count -= half;
  }
  return (from - coarse + count_up_to(from, count, x)) * kLineSums;
}

// The first position in the line at `line` whose sum is above x; where rounding leaves none, the last drawable one.
inline std::int64_t in_line(const double* sums, std::int64_t begin, std::int64_t degree, std::int64_t line, double x) {
  const int first = static_cast<int>(std::max<std::int64_t>(begin - line, 0));
  const int stop = static_cast<int>(std::min(begin + degree - line, kLineSums));
  const int found = first_above(sums + line, first, stop, x);
  return found < 0 ? last_drawable(sums, begin, degree) : line + found;
}

}  // namespace datapipes
