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
  // node_types: (name, num_nodes) each; of a part (name, num_nodes, num_rows), where its own nodes have rows. relations: (src,
  // dst, indptr, indices, edge_ids or None, name) each, src and dst being numbers of node types. A homogeneous graph gives the
  // name "".
  ArrayTopology(const py::list& node_types, const py::list& relations);

  template <class Use>
  auto visit(Use&& use) const {
    return std::visit(use, graph_);
  }

 private:
  template <class Id>
  void fill(const py::list& node_types, const py::list& relations);

  std::variant<Topology<std::int64_t>, Topology<std::int32_t>> graph_;
  std::vector<py::object> arrays_;  // which the spans of graph_ view
};

}  // namespace datapipes
