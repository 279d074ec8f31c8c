// topology.h: a Topology over NumPy arrays, checked once and kept for many calls of sample_neighbors.
#pragma once

#include <pybind11/pybind11.h>

#include <variant>
#include <vector>

#include "bindings/numpy.h"
#include "graph/topology.h"

namespace datapipes {

class ArrayTopology {
 public:
  // node_types: (name, num_nodes) each; for a part (name, num_nodes, num_rows), a row for each of its own nodes. relations: (src,
  // dst, indptr, indices, edge_ids or None, name) each; src and dst are numbers of node types. A homogeneous graph has the name
  // "".
  ArrayTopology(const py::list& node_types, const py::list& relations);

  template <class Use>
  auto visit(Use&& use) const {
    return std::visit(use, graph_);
  }

 private:
  template <class Id>
  void fill(const py::list& node_types, const py::list& relations);

  std::variant<Topology<std::int64_t>, Topology<std::int32_t>> graph_;
  std::vector<py::object> arrays_;  // viewed by the spans of graph_
};

}  // namespace datapipes
