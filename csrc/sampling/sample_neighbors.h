// sample_neighbors.h: samples and compacts all hops of a minibatch in one call; docs/semantics.md sections 3 and 4.
//   indptr int64[num_nodes + 1], indices Id[num_edges], edge_ids int64[num_edges] or empty (then an edge's id is its position),
//   seeds int64[num_seeds], repeats allowed; one HopRequest per hop, hop 0 (next to the seeds) first.
//   Hop h: indptr int64[num_dst + 1], indices Id[num_picks] as local ids, edge_ids int64[num_picks] when asked for, num_src.
//   The result equals sample_hop and compact applied hop by hop.
// Throws std::out_of_range (IndexError) on a seed outside the graph, std::invalid_argument (ValueError) on an
// inconsistent entry of the graph among those it reads, std::length_error (ValueError) past 2^32 - 1 nodes, NoRoom
// (MemoryError, hop_room.h) where a hop does not fit into memory. Touches no Python object.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/buffer.h"
#include "sampling/csc.h"
#include "sampling/draw_hop.h"
#include "sampling/id_map.h"

namespace datapipes {

struct NeighborsRequest {
  std::vector<HopRequest> hops;
  bool only_new = false;  // frontier "new": each node is sampled once, in the hop after its first occurrence
  bool want_edge_ids = false;
  std::int64_t direct_limit = kDirectMapLimit;
  int threads = 1;  // the result does not depend on it
};

template <class Id>
struct CompactedHop {
  Buffer<std::int64_t> indptr;
  Buffer<Id> indices;
  Buffer<std::int64_t> edge_ids;
  std::int64_t num_src = 0;
};

template <class Id>
struct Neighborhood {
  Buffer<Id> nodes;            // distinct global ids by first occurrence, seeds first
  Buffer<Id> compacted_seeds;  // local id of each seed
  std::vector<CompactedHop<Id>> hops;
};

template <class Id>
Neighborhood<Id> sample_neighbors(CscView<Id> graph, std::span<const std::int64_t> edge_ids, std::span<const std::int64_t> seeds,
                                  const NeighborsRequest& request);

}  // namespace datapipes
