// whole_graph.h: the rows of a whole graph for the kernels of partitioning: the nodes of all types in one numbering, type
// after type in sorted order, and checks before any offset or id is used.
//   first_nodes(graph): the number of the first node of each type, and at the end the number of all nodes.
//   relations_into(graph): for each node type, the numbers of the relations into it.
//   check_training(graph, masks): checks that each type has a mask of training nodes, empty or with an entry for each node.
//   op_of(relation): names the relation in errors.
//   check_row(relation, row): the in-edges [begin, end) of a row.
//   source_at(relation, position): the source of an edge.
// O(1) except the first three. Mapped files may change meanwhile, so the value that was checked is the value that is used.
// check_training throws std::invalid_argument (ValueError) on wrong masks; the last two if the row does not lie in
// `indices`, or the source is no node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
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
std::vector<std::vector<std::size_t>> relations_into(const Topology<Id>& graph) {
  std::vector<std::vector<std::size_t>> into(graph.node_types.size());
  for (std::size_t i = 0; i < graph.relations.size(); ++i) into[graph.relations[i].dst].push_back(i);
  return into;
}

using TrainingMasks = std::vector<std::span<const std::uint8_t>>;  // of each node type: [num_nodes], not 0: training; or empty

template <class Id>
void check_training(const Topology<Id>& graph, const TrainingMasks& masks) {
  if (masks.size() != graph.node_types.size())
    throw std::invalid_argument("Partitioner: give a mask of training nodes, or an empty one, for each node type.");
  for (std::size_t type = 0; type < masks.size(); ++type)
    if (!masks[type].empty() && std::ssize(masks[type]) != graph.node_types[type].num_nodes)
      throw std::invalid_argument("Partitioner: a mask of training nodes must have an entry for each node of its type.");
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
