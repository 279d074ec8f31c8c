// topology.h: a graph for the kernels: node types and the relations between them, by number.
//   Types and relations are in sorted order, so the number of a relation is its edge type ordinal (docs/semantics.md section
//   4.1). A homogeneous graph has one type and one relation. The caller owns the memory of all spans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "graph/row_view.h"

namespace datapipes {

struct NodeType {
  std::string name;  // in errors; empty in a graph without types
  std::int64_t num_nodes;
};

template <class Id>
struct Relation {
  std::string name;  // as above, with the edge type
  std::size_t src, dst;
  RowView<Id> rows;                        // a row for each `dst` node
  std::span<const std::int64_t> edge_ids;  // [num_edges]; empty: an edge's id is its position
};

// The name of the operation in errors: "sample_neighbor", or "sample_neighbor, paper".
inline std::string named(const std::string& op, const std::string& name) { return name.empty() ? op : op + ", " + name; }

template <class Id>
struct Topology {
  std::vector<NodeType> node_types;
  std::vector<Relation<Id>> relations;
};

}  // namespace datapipes
