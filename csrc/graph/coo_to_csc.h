// coo_to_csc.h: groups edges by destination, stably: the in-edges of a node keep the order in which they were given.
//   dst Id[num_edges] in [0, num_nodes), src Id[num_edges] in [0, num_sources). Returns indptr int64[num_nodes + 1],
//   indices Id[num_edges] and order int64[num_edges]: indices[i] == src[order[i]]. O(num_nodes + num_edges), a counting sort.
// Graphs of partition_from edges or more are first split into parts that fit the cache; the result is the same.
// Memory besides the result: without the split none. With the split 8 bytes per 512 nodes, and 16 bytes per edge of the
// largest part; if that exceeds spare_bytes, half a byte per edge (from 2^32 edges on always 16); at least 1 MiB.
//   spare_bytes by default half of the memory that is left
// Throws std::out_of_range (IndexError) on an id outside the graph, std::invalid_argument on unequal lengths.
// Touches no Python object.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "common/buffer.h"

namespace datapipes {

inline constexpr std::int64_t kPartitionFrom = std::int64_t{1} << 20;  // for more edges the split pays, unless nodes are few

template <class Id>
struct Csc {
  Buffer<std::int64_t> indptr;
  Buffer<Id> indices;
  Buffer<std::int64_t> order;
};

template <class Id>
Csc<Id> coo_to_csc(std::span<const Id> src, std::span<const Id> dst, std::int64_t num_nodes, std::int64_t num_sources,
                   std::int64_t partition_from = kPartitionFrom, std::optional<std::uint64_t> spare_bytes = {});

}  // namespace datapipes
