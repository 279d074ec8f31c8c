#include "sampling/eligible.h"

#include <algorithm>
#include <limits>

#include "sampling/avx2.h"

namespace datapipes {
namespace {

constexpr Marks kNone{nullptr, nullptr};
constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();

[[gnu::always_inline]] inline std::uint64_t plain_bits(const RowTimes& row, const TimeBounds& bounds, std::int64_t begin,
                                                       std::int64_t end) {
  std::uint64_t bits = 0;
  for (std::int64_t i = begin; i < end; ++i) {
    const bool is = (row.latest[i] <= bounds.most) & (!bounds.has_least | (row.earliest[i] >= bounds.least));
    bits |= std::uint64_t{is} << (i - begin);
  }
  return bits;
}

// What is done with the bits of word `w`, all scans alike.
[[gnu::always_inline]] inline void put(const Marks& marks, std::int64_t w, std::uint64_t bits, std::int64_t found) {
  if (marks.words == nullptr) return;
  marks.words[w] = bits;
  marks.ends[w] = found;
}

std::int64_t scan_plainly(const RowTimes& row, const TimeBounds& bounds, const Marks& marks, std::int64_t enough) {
  std::int64_t found = 0;
  for (std::int64_t begin = 0, w = 0; begin < row.count && found < enough; begin += 64, ++w) {
    const std::uint64_t bits = plain_bits(row, bounds, begin, std::min(begin + 64, row.count));
    found += __builtin_popcountll(bits);
    put(marks, w, bits, found);
  }
  return found;
}

#if defined(DATAPIPES_AVX2)

DATAPIPES_AVX2 inline __m256i four(const std::int64_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

DATAPIPES_AVX2 std::int64_t scan_widely(const RowTimes& row, const TimeBounds& bounds, const Marks& marks, std::int64_t enough) {
  const __m256i most = _mm256_set1_epi64x(bounds.most), least = _mm256_set1_epi64x(bounds.least);
  std::int64_t found = 0;
  for (std::int64_t begin = 0, w = 0; begin < row.count && found < enough; begin += 64, ++w) {
    const std::int64_t end = std::min(begin + 64, row.count);
    std::uint64_t bits = 0;
    std::int64_t i = begin;
    for (; i + 4 <= end; i += 4) {
      __m256i outside = _mm256_cmpgt_epi64(four(row.latest + i), most);
      if (bounds.has_least) outside = _mm256_or_si256(outside, _mm256_cmpgt_epi64(least, four(row.earliest + i)));
      bits |= static_cast<std::uint64_t>(~_mm256_movemask_pd(_mm256_castsi256_pd(outside)) & 15) << (i - begin);
    }
    if (i < end) bits |= plain_bits(row, bounds, i, end) << (i - begin);
    found += __builtin_popcountll(bits);
    put(marks, w, bits, found);
  }
  return found;
}

#endif

std::int64_t scan_fast(const RowTimes& row, const TimeBounds& bounds, const Marks& marks, std::int64_t enough) {
#if defined(DATAPIPES_AVX2)
  static const bool is_wide = has_avx2();
  if (is_wide) return scan_widely(row, bounds, marks, enough);
#endif
  return scan_plainly(row, bounds, marks, enough);
}

}  // namespace

std::int64_t count_eligible(const RowTimes& row, const TimeBounds& bounds, std::int64_t enough) {
  return scan_fast(row, bounds, kNone, enough);
}

std::int64_t mark_eligible(const RowTimes& row, const TimeBounds& bounds, const Marks& marks) {
  return scan_fast(row, bounds, marks, kAll);
}

std::int64_t mark_eligible_plainly(const RowTimes& row, const TimeBounds& bounds, const Marks& marks) {
  return scan_plainly(row, bounds, marks, kAll);
}

}  // namespace datapipes
