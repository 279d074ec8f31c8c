// sample_hop.h: draws in-edges of nodes for one hop; the ids stay global. It keeps no state and each row is drawn for itself,
// so whoever holds the rows can answer: the graph, a relation of it, a part.
//   HopRows: rows int64[n], numbers of rows, repeats allowed (a repeat gets the same picks). ids int64[n] or empty: their node
//   ids, for a caller who has them at hand; else they are looked up in the relation. streams uint32[n] and times int64[n], or
//   empty: of the trees that they are drawn for.
//   sample_hops(nodes, draws, places): each draw is of a relation, for one entry of `nodes`. Returns CSC over the rows of
//   draw 0, then of draw 1, ...: offsets int64[rows + 1], the picked neighbors, and where they stand: their positions in
//   `indices`, or edge ids, as `places` says; a relation without edge ids gives positions for them.
//   sample_hop(...) is one draw.
// Equal inputs give equal draws at any thread count: a random stream belongs to (key, node id, stream).
// Throws std::out_of_range (IndexError) on a row that is not there, std::invalid_argument (ValueError) on an
// inconsistent entry of the graph among those it reads, NoRoom (MemoryError, hop_room.h) where the hop does not fit into
// memory. Touches no Python object.
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
};

template <class Id>
struct HopDraw {
  std::size_t nodes;  // place of the HopRows that it draws for
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
