// row_view.h: rows of in-edges as the kernels see them, and the checks they make before they use ids and offsets.
//   indptr int64[num_rows + 1], indices int32 or int64 [num_edges]; row r holds the in-edges indices[indptr[r] .. indptr[r + 1])
//   of node `node_of(r)`: node r in a whole graph, node_ids[r] in a part of a graph. Sources are ids in [0, num_sources), of
//   the source type of the relation.
// check_node throws std::out_of_range (IndexError); an inconsistent graph throws std::invalid_argument (ValueError).
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "common/inside.h"

namespace datapipes {

template <class Id>
struct RowView {
  std::span<const std::int64_t> indptr;
  std::span<const Id> indices;
  std::int64_t num_sources;
  std::span<const std::int64_t> node_ids = {};  // [num_rows]; empty: the node of a row is its number
  std::int64_t num_rows() const { return std::ssize(indptr) - 1; }
  std::uint64_t node_of(std::int64_t row) const {
    return static_cast<std::uint64_t>(node_ids.empty() ? row : node_ids[static_cast<std::size_t>(row)]);
  }
};

[[noreturn]] inline void throw_not_a_node(const char* op, std::int64_t found, std::int64_t num_nodes) {
  throw std::out_of_range(std::string(op) + ": node id must be in [0, " + std::to_string(num_nodes) + "), got " +
                          std::to_string(found) + ". Check the ids against the number of nodes.");
}

[[noreturn]] inline void throw_bad_indptr(const char* op, std::int64_t node, std::int64_t begin, std::int64_t end,
                                          std::int64_t num_edges) {
  throw std::invalid_argument(std::string(op) + ": the in-edges of node " + std::to_string(node) + " begin at " +
                              std::to_string(begin) + " and end at " + std::to_string(end) +
                              "; 0 <= begin <= end <= " + std::to_string(num_edges) +
                              " is needed. The graph is corrupt: graph.validate() checks all of it. Make it anew.");
}

[[noreturn]] inline void throw_bad_neighbor(const char* op, std::int64_t position, std::int64_t found, std::int64_t num_nodes) {
  throw std::invalid_argument(std::string(op) + ": indices[" + std::to_string(position) + "] is " + std::to_string(found) +
                              ", which must be in [0, " + std::to_string(num_nodes) +
                              "). The graph is corrupt: graph.validate() checks all of it. Make it anew.");
}

// `node` may be the number of a row, too.
inline void check_node(const char* op, std::int64_t node, std::int64_t num_nodes) {
  if (!is_inside(node, num_nodes)) throw_not_a_node(op, node, num_nodes);
}

}  // namespace datapipes
