// whole_graph.h: the rows of a whole graph as the kernels of partitioning read them: the nodes of all types in one
// numbering, type after type in sorted order, and checks before any offset or id is used.
//   first_nodes(graph): the number of the first node of each type, and last the number of all nodes.
//   op_of(relation): names the relation in errors.
//   check_row(relation, row): the in-edges [begin, end) of a row.
//   source_at(relation, position): the source of an edge.
// O(1) but for first_nodes. Mapped files may change meanwhile: what is checked is what is used.
// The last two throw std::invalid_argument (ValueError) if the row does not lie in `indices`, or the source is no node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/inside.h"
#include "graph/topology.h"

namespace datapipes {

template <class Id>
std::vector<std::int64_t> first_nodes(const Topology<Id>& graph) {
  std::vector<std::int64_t> first{0};
  for (const auto& type : graph.node_types) first.push_back(first.back() + type.num_nodes);
  return first;
}

template <class Id>
std::string op_of(const Relation<Id>& relation) {
  return named("Partitioner", relation.name);
}

using Positions = std::pair<std::int64_t, std::int64_t>;

template <class Id>
Positions check_row(const Relation<Id>& relation, std::int64_t row) {
  const auto& rows = relation.rows;
  const std::int64_t begin = rows.indptr[static_cast<std::size_t>(row)], end = rows.indptr[static_cast<std::size_t>(row) + 1];
  if (!is_range_inside(begin, end, std::ssize(rows.indices)))
    throw_bad_indptr(op_of(relation).c_str(), row, begin, end, std::ssize(rows.indices));
  return {begin, end};
}

template <class Id>
std::int64_t source_at(const Relation<Id>& relation, std::int64_t position) {
  const std::int64_t source = relation.rows.indices[static_cast<std::size_t>(position)];
  if (!is_inside(source, relation.rows.num_sources))
    throw_bad_neighbor(op_of(relation).c_str(), position, source, relation.rows.num_sources);
  return source;
}

}  // namespace datapipes
