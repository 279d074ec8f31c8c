#include "graph/rows_digest.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/inside.h"
#include "common/load.h"
#include "common/thread_pool.h"

namespace datapipes {
namespace {

constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15u;
constexpr std::int64_t kRowsAtOnce = 4096;

std::uint64_t mix(std::uint64_t z) {
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

void add(RowsDigest& sum, const RowsDigest& other) {
  sum.high += other.high + static_cast<std::uint64_t>(__builtin_add_overflow(sum.low, other.low, &sum.low));
}

template <class Bits>
RowsDigest digest_of(std::span<const std::int64_t> indptr, std::span<const std::byte> values,
                     std::span<const std::int64_t> node_ids, int threads) {
  const std::int64_t num_rows = std::ssize(indptr) - 1;
  const std::int64_t num_values = std::ssize(values) / static_cast<std::int64_t>(sizeof(Bits));
  std::vector<RowsDigest> sums(static_cast<std::size_t>((num_rows + kRowsAtOnce - 1) / kRowsAtOnce));  // of the turns
  in_turns(num_rows, kRowsAtOnce, threads, [&](std::int64_t first, std::int64_t last) {
    RowsDigest sum;
    for (std::int64_t row = first; row < last; ++row) {
      const auto at = static_cast<std::size_t>(row);
      const std::int64_t begin = indptr[at], end = indptr[at + 1];
      if (!is_range_inside(begin, end, num_values)) {
        throw std::invalid_argument("rows_digest: row " + std::to_string(row) + ": its values begin at " + std::to_string(begin) +
                                    " and end at " + std::to_string(end) + "; 0 <= begin <= end <= " +
                                    std::to_string(num_values) + " is needed. Give one value for each edge.");
      }
      const std::uint64_t node = mix(static_cast<std::uint64_t>(node_ids.empty() ? row : node_ids[at]) + kStep);
      std::uint64_t place = node;
      for (std::int64_t i = begin; i < end; ++i) {
        place += kStep;
        const auto bits = load<Bits>(values.data() + static_cast<std::size_t>(i) * sizeof(Bits));
        const std::uint64_t x = mix(place), low = mix(x ^ bits);
        add(sum, {mix(low + std::rotl(x, 32) + kStep), low});
      }
    }
    sums[static_cast<std::size_t>(first / kRowsAtOnce)] = sum;
  });
  RowsDigest total;
  for (const RowsDigest& sum : sums) add(total, sum);
  return total;
}

}  // namespace

RowsDigest rows_digest(std::span<const std::int64_t> indptr, std::span<const std::byte> values, int bytes_per_value,
                       std::span<const std::int64_t> node_ids, int threads) {
  if (indptr.empty()) throw std::invalid_argument("rows_digest: indptr is empty; it needs one entry more than there are rows.");
  if (!node_ids.empty() && node_ids.size() + 1 != indptr.size())
    throw std::invalid_argument("rows_digest: give one of node_ids for each row.");
  switch (bytes_per_value) {
    case 1:
      return digest_of<std::uint8_t>(indptr, values, node_ids, threads);
    case 2:
      return digest_of<std::uint16_t>(indptr, values, node_ids, threads);
    case 4:
      return digest_of<std::uint32_t>(indptr, values, node_ids, threads);
    case 8:
      return digest_of<std::uint64_t>(indptr, values, node_ids, threads);
    default:
      throw std::invalid_argument("rows_digest: a value must have 1, 2, 4 or 8 bytes, got " + std::to_string(bytes_per_value) +
                                  ".");
  }
}

}  // namespace datapipes
