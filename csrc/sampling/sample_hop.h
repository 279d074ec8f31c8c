// sample_hop.h: draws in-edges of each seed for one hop; the ids stay global. It keeps no state and each row is drawn for
// itself, so whoever holds the rows can answer: the graph, a relation of it, a part.
//   seeds int64[num_seeds], numbers of rows, repeats allowed (a repeat gets the same picks). seed_ids int64[num_seeds] or
//   empty: their node ids, for a caller who has them at hand; else they are looked up in `rows`. streams uint32[num_seeds]
//   and times int64[num_seeds], or empty: of the trees that they are drawn for.
//   Returns CSC over the seeds: offsets int64[num_seeds + 1], the picked neighbors, and where they stand: their positions in
//   `indices`, or edge_ids[position], or nothing, as `wanted` says.
// Equal inputs give equal draws at any thread count: a random stream belongs to (key, node id, stream).
// Throws std::out_of_range (IndexError) on a seed that is no row, std::invalid_argument (ValueError) on an
// inconsistent entry of the graph among those it reads, NoRoom (MemoryError, hop_room.h) where the hop does not fit into
// memory. Touches no Python object.
#pragma once

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
  std::span<const std::int64_t> seeds;
  std::span<const std::int64_t> seed_ids = {};
  std::span<const std::uint32_t> streams = {};
  std::span<const std::int64_t> times = {};
};

struct HopPlaces {
  Places wanted = Places::kPositions;
  std::span<const std::int64_t> edge_ids = {};  // [num_edges], for kEdgeIds
};

template <class Id>
SampledHop<Id> sample_hop(const RowView<Id>& rows, const HopRows& of, const Policy& policy, const HopPlaces& places,
                          int threads = 1);

template <class Id>
SampledHop<Id> sample_hop(const RowView<Id>& rows, std::span<const std::int64_t> seeds, const Policy& policy, int threads = 1) {
  return sample_hop(rows, HopRows{seeds}, policy, HopPlaces{}, threads);
}

}  // namespace datapipes
