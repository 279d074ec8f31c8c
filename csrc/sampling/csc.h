// csc.h: the graph as the kernels see it, and the checks they make before they use its ids and offsets.
//   indptr int64[num_nodes + 1], indices int32 or int64 [num_edges]; the in-edges of v are indices[indptr[v] .. indptr[v + 1]).
// check_node throws std::out_of_range (IndexError); too many picks throw std::length_error (ValueError); an
// inconsistent graph throws std::invalid_argument (ValueError).
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

namespace datapipes {

template <class Id>
struct CscView {
  std::span<const std::int64_t> indptr;
  std::span<const Id> indices;
  std::int64_t num_nodes() const { return std::ssize(indptr) - 1; }
};

[[noreturn]] inline void throw_not_a_node(const char* op, std::int64_t found, std::int64_t num_nodes) {
  throw std::out_of_range(std::string(op) + ": node id must be in [0, " + std::to_string(num_nodes) + "), got " +
                          std::to_string(found) + ". Check the ids against the number of nodes.");
}

[[noreturn]] inline void throw_bad_indptr(const char* op, std::int64_t node, std::int64_t begin, std::int64_t end,
                                          std::int64_t num_edges) {
  throw std::invalid_argument(std::string(op) + ": the in-edges of node " + std::to_string(node) + " are [" +
                              std::to_string(begin) + ", " + std::to_string(end) + "), which must ascend within [0, " +
                              std::to_string(num_edges) + "]. The graph is corrupt: graph.validate() checks all of it.");
}

[[noreturn]] inline void throw_bad_neighbor(const char* op, std::int64_t position, std::int64_t found, std::int64_t num_nodes) {
  throw std::invalid_argument(std::string(op) + ": indices[" + std::to_string(position) + "] is " + std::to_string(found) +
                              ", which must be in [0, " + std::to_string(num_nodes) +
                              "). The graph is corrupt: graph.validate() checks all of it.");
}

[[noreturn]] inline void throw_too_many(const char* op, std::int64_t fanout) {
  throw std::length_error(std::string(op) + ": a hop with fanout " + std::to_string(fanout) +
                          " would hold more than 2^63 - 1 in-edges, more than any memory holds. Use a smaller fanout.");
}

inline void check_node(const char* op, std::int64_t node, std::int64_t num_nodes) {
  if (static_cast<std::uint64_t>(node) >= static_cast<std::uint64_t>(num_nodes)) throw_not_a_node(op, node, num_nodes);
}

}  // namespace datapipes
