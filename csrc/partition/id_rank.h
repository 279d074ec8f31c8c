// id_rank.h: at which row an id stands among ascending ids; one line of memory is read for each id that is asked for.
//   IdRank(ids, num_ids): ids int64[num_rows], strictly ascending, each in [0, num_ids). They are not kept.
//   rows(wanted, out, num_threads): out int64[wanted.size()] becomes the row of each id, -1 where it is not there, also
//   outside [0, num_ids).
// A bit for each of num_ids, 384 of them in a line with the number of those before: 0.17 bytes for each of num_ids.
// Throws std::invalid_argument (ValueError) if ids do not ascend or are outside. O(num_ids / 384 + num_rows), then O(1) an
// id. Touches no Python object.
// Source: counts beside the bits, as in rank9 (Vigna, Broadword implementation of rank/select queries, WEA 2008).
#pragma once

#include <cstdint>
#include <span>

#include "common/buffer.h"

namespace datapipes {

class IdRank {
 public:
  IdRank(std::span<const std::int64_t> ids, std::int64_t num_ids);

  template <class Id>
  void rows(std::span<const Id> wanted, std::span<std::int64_t> out, int num_threads) const;

 private:
  static constexpr int kWords = 6;
  static constexpr std::int64_t kBits = kWords * 64;
  struct alignas(64) Line {
    std::int64_t before;         // ids in the lines before
    std::uint64_t before_words;  // 9 bits for each word: ids in the words of this line before it
    std::uint64_t words[kWords];
  };

  std::int64_t num_ids_;
  Buffer<Line> lines_;
};

}  // namespace datapipes
