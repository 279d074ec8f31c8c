// compact.h: relabels global node ids to 0 .. n-1 by first occurrence.
//   ids int32 or int64 [num_ids], each in [0, num_nodes). Returns the distinct ids in the order of their first
//   occurrence, and the local id of each id.
//   checked_ids: a copy of ids, each checked, since another process may overwrite them between the check and their use.
// Throws std::out_of_range (IndexError) on an id outside the graph. Touches no Python object.
#pragma once

#include <cstdint>
#include <span>

#include "common/buffer.h"
#include "sampling/id_map.h"

namespace datapipes {

template <class Id>
struct Compacted {
  Buffer<Id> unique;
  Buffer<Id> local;
};

template <class Id>
Buffer<Id> checked_ids(std::span<const Id> ids, std::int64_t num_nodes);

template <class Id>
Compacted<Id> compact(std::span<const Id> ids, std::int64_t num_nodes, std::int64_t direct_limit = kDirectMapLimit);

}  // namespace datapipes
