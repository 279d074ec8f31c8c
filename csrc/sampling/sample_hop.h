// sample_hop.h: draws in-edges of each seed for one hop; the ids stay global. It keeps no state and each row is drawn for
// itself, so whoever holds the rows can answer: the graph, a relation of it, a part.
//   seeds int64[num_seeds], numbers of rows, repeats allowed (a repeat gets the same picks).
//   Returns CSC over the seeds: offsets int64[num_seeds + 1], the picked neighbors and their positions in `indices`.
// Equal inputs give equal draws at any thread count: a random stream belongs to (key, node id).
// Throws std::out_of_range (IndexError) on a seed that is no row, std::invalid_argument (ValueError) on an
// inconsistent entry of the graph among those it reads, NoRoom (MemoryError, hop_room.h) where the hop does not fit into
// memory. Touches no Python object.
#pragma once

#include <cstdint>
#include <span>

#include "common/buffer.h"
#include "sampling/row_view.h"
#include "sampling/uniform.h"

namespace datapipes {

template <class Id>
struct SampledHop {
  Buffer<std::int64_t> indptr;
  Buffer<Id> neighbors;
  Buffer<std::int64_t> positions;
};

template <class Id>
SampledHop<Id> sample_hop(const RowView<Id>& rows, std::span<const std::int64_t> seeds, const Uniform& policy, int threads = 1);

}  // namespace datapipes
