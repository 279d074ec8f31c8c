// sample_neighbors.h: samples and compacts all hops and edge types of a minibatch in one call; docs/semantics.md sections 3
// and 4.
//   Draws (draw_hop.h) for each relation in turn, and numbers the neighbors found: the assembly of hops.h, with draws from the
//   rows of a graph.
//   Seeds: ids int64[num_seeds] of a node type, repeats allowed; numbered in the order of the list.
//   With groups (trees) a node is a pair (group, node id): each group has nodes of its own; all pairs are numbered together by
//   first occurrence. Each seed has a group; the neighbors of a node are in the node's group. Its draws take the group's stream
//   and time.
//   Hop h of a relation: indptr int64[num_dst + 1], indices Id[num_picks] as local ids, edge_ids int64[num_picks] when asked
//   for, num_src. Without groups the result equals sample_hop and compact applied hop by hop and relation by relation.
// Throws std::out_of_range (IndexError) on a seed outside the graph, std::invalid_argument (ValueError) if an entry of the graph
// that it reads is inconsistent, std::length_error (ValueError) past 2^32 - 1 nodes or 2^63 pairs of group and node, NoRoom
// (MemoryError, hop_room.h) if a hop does not fit into memory. Touches no Python object.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/buffer.h"
#include "graph/topology.h"
#include "sampling/hops.h"
#include "sampling/numbered_nodes.h"
#include "sampling/pad_hops.h"
#include "sampling/policy.h"

namespace datapipes {

struct NeighborsRequest : HopsRequest {
  std::string op = "sample_neighbor";          // the stage, for errors
  std::vector<std::vector<Policy>> hops = {};  // hop 0 (next to the seeds) first; the policy of each sampled relation
  int threads = 1;                             // the result does not depend on it
};

template <class Id>
struct Neighborhood : FoundNodes<Id> {
  std::vector<Buffer<Id>> compacted_seeds;          // of each entry of the seeds: their local ids
  std::vector<std::vector<CompactedHop<Id>>> hops;  // of each hop: the sampled relations
  std::optional<std::size_t> bucket = {};           // its number, if the request has padding and a bucket fits
};

template <class Id>
Neighborhood<Id> sample_neighbors(const Topology<Id>& graph, std::span<const Seeds> seeds, const NeighborsRequest& request);

}  // namespace datapipes
