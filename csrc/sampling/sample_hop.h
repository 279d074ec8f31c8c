// sample_hop.h: draws in-edges of nodes for one hop; the ids stay global. It keeps no state, and the draws of rows are
// independent, so any holder of the rows can answer: the graph, a relation of it, a part.
//   HopRows: rows int64[n], numbers of rows, repeats allowed (a repeat gets the same picks). ids int64[n], their node ids;
//   empty: looked up in the relation. streams uint32[n] and times int64[n], of the trees of the rows; empty: 0. windows int64[n],
//   their time windows; empty: none.
//   sample_hops(nodes, draws, places): each draw is of a relation, for one entry of `nodes`. Returns CSC over the rows of
//   draw 0, then of draw 1, ...: offsets int64[rows + 1], the picked neighbors, and their places. `places` chooses positions in
//   `indices` or edge ids; a relation without edge ids gives positions.
//   sample_hop(...) is one draw.
// Equal inputs give equal draws at any thread count: a random stream belongs to (key, node id, stream).
// Throws std::out_of_range (IndexError) on a row outside the graph, std::invalid_argument (ValueError) if an entry of the graph
// that it reads is inconsistent, NoRoom (MemoryError, hop_room.h) if the hop does not fit into memory. Touches no Python object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/buffer.h"
#include "graph/row_view.h"
#include "sampling/policy.h"

namespace datapipes {

enum class Places { kPositions, kEdgeIds, kNone };

template <class Id>
struct SampledHop {
  Buffer<std::int64_t> indptr;
  Buffer<Id> neighbors;
  Buffer<std::int64_t> positions;
};

struct HopRows {
  std::span<const std::int64_t> rows;
  std::span<const std::int64_t> ids = {};
  std::span<const std::uint32_t> streams = {};
  std::span<const std::int64_t> times = {};
  std::span<const std::int64_t> windows = {};
};

template <class Id>
struct HopDraw {
  std::size_t nodes;  // the HopRows to draw for, a place in `nodes`
  RowView<Id> relation;
  Policy policy;
  std::span<const std::int64_t> edge_ids = {};  // [num_edges], or empty
};

template <class Id>
SampledHop<Id> sample_hops(std::span<const HopRows> nodes, std::span<const HopDraw<Id>> draws, Places places, int threads = 1);

template <class Id>
SampledHop<Id> sample_hop(const HopRows& nodes, const HopDraw<Id>& draw, Places places, int threads = 1) {
  return sample_hops<Id>({&nodes, 1}, {&draw, 1}, places, threads);
}

template <class Id>
SampledHop<Id> sample_hop(const RowView<Id>& relation, std::span<const std::int64_t> rows, const Policy& policy,
                          int threads = 1) {
  return sample_hop<Id>(HopRows{rows}, {0, relation, policy}, Places::kPositions, threads);
}

}  // namespace datapipes
