// split_ids.h: splits ids by the place of their rows: this process's part, its cache of rows of other parts, or another part.
// The ids of each group keep their order.
//   owners: the part of each id. ids int32 or int64 [n], any order, repeats allowed.
//   own: the part of this process (-1: none) and the rows of its ids: id - first, or by rank.
//   hot: the rows of cached ids of other parts; nullptr: no cache.
//   Result: group 0 is own, 1 is hot, 2 + p is part p. Group g has the entries [bounds[g], bounds[g + 1]) of `places`, which
//   are positions in ids, and of `rows`: rows in groups 0 and 1, ids in the others.
// Throws std::out_of_range (IndexError) on an id outside [0, owners.num_ids()), and std::invalid_argument (ValueError) if the
// owners are damaged, or give this part an id without a row; `op` begins the message. The result does not depend on `threads`.
// Touches no Python object.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/buffer.h"
#include "partition/id_rank.h"
#include "partition/part_map.h"

namespace datapipes {

struct OwnRows {
  std::int64_t part = -1;
  const IdRank* rank = nullptr;
  std::int64_t first = 0;  // of contiguous ids, which need no rank
};

template <class Id>
struct IdSplit {
  Buffer<std::int64_t> places;
  Buffer<Id> rows;
  std::vector<std::int64_t> bounds;  // [num_parts + 3]
};

template <class Id>
IdSplit<Id> split_ids(const char* op, const PartMap& owners, std::span<const Id> ids, OwnRows own, const IdRank* hot,
                      int threads);

}  // namespace datapipes
