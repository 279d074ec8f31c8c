// edge_times.h: the times of in-edges for temporal sampling (docs/semantics.md section 4.6), made once per graph.
//   fill_source_times: out[p] = of_nodes[indices[p]].
//     indices [num_edges], sources of in-edges; of_nodes int64[num_sources]; out int64[num_edges].
//   find_sorted_rows: sorted[r] is 1 if within row r neither latest nor earliest (if given) descends; else 0.
// The threads share the work; the result does not depend on them.
// Throws std::invalid_argument (ValueError) on spans of the wrong length and on an inconsistent entry of the graph.
// Touches no Python object.
#pragma once

#include <cstdint>
#include <span>

namespace datapipes {

template <class Id>
void fill_source_times(std::span<const Id> indices, std::span<const std::int64_t> of_nodes, std::span<std::int64_t> out,
                       int threads);

void find_sorted_rows(std::span<const std::int64_t> indptr, std::span<const std::int64_t> latest,
                      std::span<const std::int64_t> earliest, std::span<std::uint8_t> sorted, int threads);

}  // namespace datapipes
