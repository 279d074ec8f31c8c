// random_walks.h: random walks along in-edges; docs/semantics.md section 4.11.
//   Walk w = place * walks_per_node + j starts at the seed in that place. Its step t takes an in-edge of its node, in the
//   relation of the step, and goes to the source; it draws from the stream (key of the step, node t, stream w).
//   nodes: Id[num_seeds * walks_per_node, steps + 1], -1 after the end of a walk; edge_ids: int64[.., steps] when asked for.
//   A walk ends at a node without in-edges that can be drawn, and before a step whose word is below its `end_below`.
//   With p or q other than 1 (node2vec) a drawn in-edge is refused by chance; it needs `sorted`, for each row of the relation
//   its sources in ascending order, at the places of its in-edges.
// Groups of walks take each step together, in passes, each of which prefetches the lines that the next pass reads.
// Throws std::out_of_range (IndexError) on a seed outside the graph, std::invalid_argument (ValueError) if an entry of the graph
// that it reads is inconsistent, std::length_error (ValueError) past 2^32 walks. Touches no Python object.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/buffer.h"
#include "graph/topology.h"
#include "sampling/row_sums.h"

namespace datapipes {

template <class Id>
struct WalkRequest {
  struct Step {
    std::size_t relation;
    std::uint64_t key;            // hop_key of the hop and the relation
    std::optional<RowSums> sums;  // of the weights of its in-edges; none: each is equally likely
    std::uint64_t end_below = 0;  // at most 2^32; 0: no word is taken
  };
  std::string op = "sample_random_walk";  // the stage, for errors
  std::vector<Step> steps = {};
  std::int64_t walks_per_node = 1;
  double p = 1, q = 1;
  std::span<const Id> sorted = {};
  bool want_edge_ids = false;
  int threads = 1;  // the result does not depend on it
};

template <class Id>
struct Walks {
  Buffer<Id> nodes;
  Buffer<std::int64_t> edge_ids;
};

template <class Id>
Walks<Id> random_walks(const Topology<Id>& graph, std::span<const std::int64_t> seeds, const WalkRequest<Id>& request);

// The sources of each row in ascending order. Throws std::invalid_argument on an inconsistent indptr.
template <class Id>
Buffer<Id> sorted_sources(const char* op, const RowView<Id>& rows, int threads);

}  // namespace datapipes
