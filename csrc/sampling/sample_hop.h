// sample_hop.h: draws in-edges of each seed for one hop; the ids stay global.
//   indptr int64[num_nodes + 1], indices Id[num_edges], seeds int64[num_seeds], repeats allowed (a repeat gets the same picks).
//   Returns CSC over the seeds: offsets int64[num_seeds + 1], the picked neighbors and their positions in `indices`.
// Equal inputs give equal draws at any thread count: a random stream belongs to (key, node).
// Throws std::out_of_range (IndexError) on a seed outside the graph, std::invalid_argument (ValueError) on an
// inconsistent entry of the graph among those it reads, NoRoom (MemoryError, hop_room.h) where the hop does not fit into
// memory. Touches no Python object.
#pragma once

#include <cstdint>
#include <span>

#include "common/buffer.h"
#include "sampling/csc.h"
#include "sampling/draw_hop.h"

namespace datapipes {

template <class Id>
struct SampledHop {
  Buffer<std::int64_t> indptr;
  Buffer<Id> neighbors;
  Buffer<std::int64_t> positions;
};

template <class Id>
SampledHop<Id> sample_hop(CscView<Id> graph, std::span<const std::int64_t> seeds, const HopRequest& request, int threads = 1);

}  // namespace datapipes
