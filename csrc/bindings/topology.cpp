#include "bindings/topology.h"

#include <string>
#include <utility>

namespace datapipes {
namespace {

template <class T>
Array<T> as_array(py::handle given, const char* name) {
  return exact<T>(given, std::string("Topology: ") + name, "all relations need contiguous arrays of one dtype.");
}

std::size_t type_number(py::handle given, std::size_t count) {
  const auto number = given.cast<std::int64_t>();
  if (number < 0 || static_cast<std::size_t>(number) >= count)
    throw py::value_error("Topology: node type number " + std::to_string(number) + " of " + std::to_string(count) + ".");
  return static_cast<std::size_t>(number);
}

}  // namespace

ArrayTopology::ArrayTopology(const py::list& node_types, const py::list& relations) {
  const bool narrow =
      !relations.empty() && py::isinstance<Array<std::int32_t>>(relations[0].cast<py::tuple>()[3]);  // the dtype of indices
  if (narrow) {
    fill<std::int32_t>(node_types, relations);
  } else {
    fill<std::int64_t>(node_types, relations);
  }
}

template <class Id>
void ArrayTopology::fill(const py::list& node_types, const py::list& relations) {
  Topology<Id> graph;
  std::vector<std::int64_t> num_rows;
  for (const auto& given : node_types) {
    const auto type = given.cast<py::tuple>();
    const auto num_nodes = type[1].cast<std::int64_t>();
    if (num_nodes < 0) throw py::value_error("Topology: num_nodes must be 0 or more, got " + std::to_string(num_nodes) + ".");
    graph.node_types.push_back({type[0].cast<std::string>(), num_nodes});
    num_rows.push_back(type.size() > 2 ? type[2].cast<std::int64_t>() : num_nodes);
  }
  for (const auto& given : relations) {
    const auto relation = given.cast<py::tuple>();
    const std::size_t src = type_number(relation[0], graph.node_types.size());
    const std::size_t dst = type_number(relation[1], graph.node_types.size());
    const auto indptr = as_array<std::int64_t>(relation[2], "indptr");
    const auto indices = as_array<Id>(relation[3], "indices");
    const RowView<Id> rows{view(indptr, "indptr"), view(indices, "indices"), graph.node_types[src].num_nodes};
    if (rows.num_rows() != num_rows[dst]) {
      throw py::value_error("Topology: indptr has " + std::to_string(indptr.size()) +
                            " entries; it needs one more than there are rows of destinations, " + std::to_string(num_rows[dst]) +
                            ".");
    }
    std::span<const std::int64_t> ids;
    if (!relation[4].is_none()) {
      const auto edge_ids = as_array<std::int64_t>(relation[4], "edge_ids");
      ids = view(edge_ids, "edge_ids");
      if (ids.size() != rows.indices.size()) throw py::value_error("Topology: edge_ids and indices must be equally long.");
      arrays_.push_back(edge_ids);
    }
    arrays_.push_back(indptr);
    arrays_.push_back(indices);
    graph.relations.push_back({relation[5].cast<std::string>(), src, dst, rows, ids});
  }
  graph_ = std::move(graph);
}

}  // namespace datapipes
