// sample_neighbors.h: samples and compacts all hops and edge types of a minibatch in one call; docs/semantics.md sections 3
// and 4.
//   Draws (draw_hop.h) for each relation in turn, and numbers the neighbors it finds (numbering.h, one for each node type).
//   Seeds: ids int64[num_seeds] of a node type, repeats allowed; numbered in the order of the list.
//   Hop h of a relation: indptr int64[num_dst + 1], indices Id[num_picks] as local ids, edge_ids int64[num_picks] when asked
//   for, num_src. The result equals sample_hop and compact applied hop by hop and relation by relation.
// Throws std::out_of_range (IndexError) on a seed outside the graph, std::invalid_argument (ValueError) on an
// inconsistent entry of the graph among those it reads, std::length_error (ValueError) past 2^32 - 1 nodes, NoRoom
// (MemoryError, hop_room.h) where a hop does not fit into memory. Touches no Python object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/buffer.h"
#include "sampling/id_map.h"
#include "sampling/topology.h"
#include "sampling/uniform.h"

namespace datapipes {

struct Seeds {
  std::size_t type;
  std::span<const std::int64_t> ids;
};

struct NeighborsRequest {
  std::vector<std::size_t> sampled;        // the relations that are drawn from, ascending
  std::vector<std::vector<Uniform>> hops;  // hop 0 (next to the seeds) first; the policy of each sampled relation
  bool only_new = false;                   // frontier "new": each node is sampled once, in the hop after its first occurrence
  bool want_edge_ids = false;
  std::int64_t direct_limit = kDirectMapLimit;  // nodes of all types that may have direct maps
  int threads = 1;                              // the result does not depend on it
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
  std::vector<Buffer<Id>> nodes;                    // of each type: distinct ids by first occurrence, seeds first
  std::vector<Buffer<Id>> compacted_seeds;          // of each entry of the seeds: their local ids
  std::vector<std::vector<CompactedHop<Id>>> hops;  // of each hop: the sampled relations
};

template <class Id>
Neighborhood<Id> sample_neighbors(const Topology<Id>& graph, std::span<const Seeds> seeds, const NeighborsRequest& request);

}  // namespace datapipes
