#include "sampling/eligible.h"

#include <algorithm>
#include <limits>

#include "common/avx2.h"

namespace datapipes {
namespace {

constexpr Marks kNone{nullptr, nullptr};
constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();

// In-edges with coarse times in [least, most] are eligible; at an open end, equality is decided by the times themselves.
struct CoarseBounds {
  std::int16_t least, most;
  bool least_is_open, most_is_open;

  CoarseBounds(const RowTimes& row, const TimeBounds& bounds)
      : least(bounds.has_least ? row.scale.at(bounds.least) : TimeScale::kBelow),
        most(row.scale.at(bounds.most)),
        least_is_open(bounds.has_least && !row.scale.is_exact(least)),
        most_is_open(!row.scale.is_exact(most)) {}
};

[[gnu::always_inline]] inline std::uint64_t plain_bits(const RowTimes& row, const TimeBounds& bounds, std::int64_t begin,
                                                       std::int64_t end) {
  std::uint64_t bits = 0;
  for (std::int64_t i = begin; i < end; ++i) bits |= std::uint64_t{is_eligible(row, bounds, i)} << (i - begin);
  return bits;
}

std::uint64_t coarse_bits(const RowTimes& row, const TimeBounds& bounds, const CoarseBounds& coarse, std::int64_t begin,
                          std::int64_t end) {
  std::uint64_t bits = 0;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int16_t time = row.coarse[i];
    bool is = (time >= coarse.least) & (time <= coarse.most);
    if ((coarse.least_is_open & (time == coarse.least)) | (coarse.most_is_open & (time == coarse.most)))
      is = is_eligible(row, bounds, i);
    bits |= std::uint64_t{is} << (i - begin);
  }
  return bits;
}

// The loop of all scans: calls bits_of(begin, end) for each word of the row.
template <class BitsOf>
[[gnu::always_inline]] inline std::int64_t scan(std::int64_t count, const Marks& marks, std::int64_t enough, BitsOf&& bits_of) {
  std::int64_t found = 0;
  for (std::int64_t begin = 0, w = 0; begin < count && found < enough; begin += 64, ++w) {
    const std::uint64_t bits = bits_of(begin, std::min(begin + 64, count));
    found += __builtin_popcountll(bits);
    if (marks.words == nullptr) continue;
    marks.words[w] = bits;
    marks.ends[w] = found;
  }
  return found;
}

std::int64_t scan_plainly(const RowTimes& row, const TimeBounds& bounds, const Marks& marks, std::int64_t enough) {
  if (row.coarse == nullptr)
    return scan(row.count, marks, enough,
                [&](std::int64_t begin, std::int64_t end) { return plain_bits(row, bounds, begin, end); });
  const CoarseBounds coarse(row, bounds);
  return scan(row.count, marks, enough,
              [&](std::int64_t begin, std::int64_t end) { return coarse_bits(row, bounds, coarse, begin, end); });
}

#if defined(DATAPIPES_AVX2)

DATAPIPES_AVX2 inline __m256i four(const std::int64_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

DATAPIPES_AVX2 inline std::uint64_t wide_bits(const RowTimes& row, const TimeBounds& bounds, std::int64_t begin,
                                              std::int64_t end) {
  const __m256i most = _mm256_set1_epi64x(bounds.most), least = _mm256_set1_epi64x(bounds.least);
  std::uint64_t bits = 0;
  std::int64_t i = begin;
  for (; i + 4 <= end; i += 4) {
    __m256i outside = _mm256_cmpgt_epi64(four(row.latest + i), most);
    if (bounds.has_least) outside = _mm256_or_si256(outside, _mm256_cmpgt_epi64(least, four(row.earliest + i)));
    bits |= static_cast<std::uint64_t>(~_mm256_movemask_pd(_mm256_castsi256_pd(outside)) & 15) << (i - begin);
  }
  if (i < end) bits |= plain_bits(row, bounds, i, end) << (i - begin);
  return bits;
}

// A bit for each of 32 numbers, 0 or -1, of which `a` has the first 16.
DATAPIPES_AVX2 inline std::uint64_t bits_of_32(__m256i a, __m256i b) {
  const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0b11011000);
  return static_cast<std::uint32_t>(_mm256_movemask_epi8(bytes));
}

DATAPIPES_AVX2 inline std::uint64_t wide_coarse_bits(const RowTimes& row, const TimeBounds& bounds, const CoarseBounds& coarse,
                                                     std::int64_t begin, std::int64_t end) {
  constexpr int kFew = 8;  // up to this many are checked one by one; for more, the times of the word are scanned
  const __m256i least = _mm256_set1_epi16(coarse.least), most = _mm256_set1_epi16(coarse.most);
  const __m256i open_least = _mm256_set1_epi16(coarse.least_is_open ? -1 : 0);
  const __m256i open_most = _mm256_set1_epi16(coarse.most_is_open ? -1 : 0);
  __m256i outside[4], open[4];
  for (int k = 0; k < 4; ++k) {
    const __m256i times = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row.coarse + begin + 16 * k));
    outside[k] = _mm256_or_si256(_mm256_cmpgt_epi16(times, most), _mm256_cmpgt_epi16(least, times));
    open[k] = _mm256_or_si256(_mm256_and_si256(open_most, _mm256_cmpeq_epi16(times, most)),
                              _mm256_and_si256(open_least, _mm256_cmpeq_epi16(times, least)));
  }
  const std::uint64_t valid = ~std::uint64_t{0} >> (64 - (end - begin));
  std::uint64_t bits = ~(bits_of_32(outside[0], outside[1]) | bits_of_32(outside[2], outside[3]) << 32) & valid;
  const __m256i any = _mm256_or_si256(_mm256_or_si256(open[0], open[1]), _mm256_or_si256(open[2], open[3]));
  if (_mm256_testz_si256(any, any) != 0) return bits;
  std::uint64_t left = (bits_of_32(open[0], open[1]) | bits_of_32(open[2], open[3]) << 32) & valid;
  if (__builtin_popcountll(left) > kFew) return wide_bits(row, bounds, begin, end);
  bits &= ~left;
  for (; left != 0; left &= left - 1) {
    const int i = __builtin_ctzll(left);
    bits |= std::uint64_t{is_eligible(row, bounds, begin + i)} << i;
  }
  return bits;
}

DATAPIPES_AVX2 std::int64_t scan_widely(const RowTimes& row, const TimeBounds& bounds, const Marks& marks, std::int64_t enough) {
  if (row.coarse == nullptr)
    return scan(row.count, marks, enough,
                [&](std::int64_t begin, std::int64_t end) DATAPIPES_AVX2 { return wide_bits(row, bounds, begin, end); });
  const CoarseBounds coarse(row, bounds);
  return scan(row.count, marks, enough, [&](std::int64_t begin, std::int64_t end) DATAPIPES_AVX2 {
    return wide_coarse_bits(row, bounds, coarse, begin, end);
  });
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
