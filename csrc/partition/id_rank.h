// id_rank.h: the row of an id among ascending ids; a look-up reads one line of memory.
//   IdRank(ids, num_ids, order): ids int64[num_rows], each in [0, num_ids), strictly ascending; with Order::kAny in any order
//   and with repeats, and rows are places among the sorted, distinct ids. The ids are not kept.
//   IdRank(lines, num_ids): views the lines() of another IdRank, so that processes share them; 64-byte aligned, of
//   size_bytes(num_ids) bytes. Whatever the lines hold, rows(...) reads no other memory.
//   rows(wanted, out, num_threads): out int64[wanted.size()] becomes the row of each id, -1 for an id that is missing or outside
//   [0, num_ids). row(id) is the row of one id, for kernels; call prefetch(id) some ids ahead. Both need ids in [0, num_ids).
// A line has the bits of 384 ids and the number of ids in the lines before: 0.17 bytes for each of num_ids.
// Throws std::invalid_argument (ValueError) if ids do not ascend or are outside. O(num_ids / 384 + num_rows), then O(1) an
// id. Touches no Python object.
// Source: counts beside the bits, as in rank9 (Vigna, Broadword implementation of rank/select queries, WEA 2008).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/buffer.h"
#include "common/inside.h"

namespace datapipes {

class IdRank {
 public:
  enum class Order { kAscending, kAny };

  IdRank(std::span<const std::int64_t> ids, std::int64_t num_ids, Order order = Order::kAscending);
  IdRank(std::span<const std::byte> lines, std::int64_t num_ids);

  static std::int64_t size_bytes(std::int64_t num_ids);
  std::span<const std::byte> lines() const;
  std::int64_t num_rows() const { return num_rows_; }

  template <class Id>
  void rows(std::span<const Id> wanted, std::span<std::int64_t> out, int num_threads) const;

  bool inside(std::int64_t id) const { return is_inside(id, num_ids_); }
  // Inlined always: GCC takes a function that only prefetches for one without effect, and drops the calls.
  [[gnu::always_inline]] void prefetch(std::int64_t id) const { __builtin_prefetch(lines_ + id / kBits); }
  std::int64_t row(std::int64_t id) const {
    const Line& line = lines_[id / kBits];
    const auto word = static_cast<int>(id % kBits / 64);
    const std::uint64_t bit = std::uint64_t{1} << (id % 64), found = line.words[word];
    if ((found & bit) == 0) return -1;
    return line.before + static_cast<std::int64_t>(line.before_words >> (9 * word) & 511) + std::popcount(found & (bit - 1));
  }

 private:
  static constexpr int kWords = 6;
  static constexpr std::int64_t kBits = kWords * 64;
  struct alignas(64) Line {
    std::int64_t before;         // ids in the lines before
    std::uint64_t before_words;  // 9 bits for each word: ids in the words of this line before it
    std::uint64_t words[kWords];
  };

  std::int64_t num_ids_, num_rows_ = 0;
  Buffer<Line> own_;  // empty over lines of others
  const Line* lines_;
};

}  // namespace datapipes
