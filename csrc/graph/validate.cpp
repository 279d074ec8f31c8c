#include "graph/validate.h"

#include <cstdint>
#include <stdexcept>
#include <string>

#include "common/inside.h"

namespace datapipes {

template <class Id>
void validate_csc(const RowView<Id>& graph) {
  const auto num_nodes = graph.num_rows();
  const auto num_edges = std::ssize(graph.indices);
  if (num_nodes < 0) throw std::invalid_argument("graph: indptr is empty; it needs num_nodes + 1 entries, the first of them 0.");
  if (graph.indptr[0] != 0) {
    throw std::invalid_argument("graph: indptr[0] is " + std::to_string(graph.indptr[0]) +
                                ", which must be 0. Rebuild the offsets.");
  }
  for (std::int64_t v = 0; v < num_nodes; ++v) {
    if (graph.indptr[v + 1] < graph.indptr[v]) {
      throw std::invalid_argument("graph: indptr[" + std::to_string(v + 1) + "] is " + std::to_string(graph.indptr[v + 1]) +
                                  ", below indptr[" + std::to_string(v) + "] = " + std::to_string(graph.indptr[v]) +
                                  "; offsets must not descend. Rebuild them.");
    }
  }
  if (graph.indptr[num_nodes] != num_edges) {
    throw std::invalid_argument("graph: indptr ends at " + std::to_string(graph.indptr[num_nodes]) + ", but indices has " +
                                std::to_string(num_edges) + " entries; they must be equal. Rebuild the offsets.");
  }
  for (std::int64_t i = 0; i < num_edges; ++i) {
    const Id neighbor = graph.indices[i];
    if (!is_inside(neighbor, graph.num_sources)) {
      throw std::invalid_argument("graph: indices[" + std::to_string(i) + "] is " + std::to_string(neighbor) +
                                  ", which must be in [0, " + std::to_string(graph.num_sources) +
                                  "). Drop the edge or add the node.");
    }
  }
}

template void validate_csc(const RowView<std::int32_t>&);
template void validate_csc(const RowView<std::int64_t>&);

}  // namespace datapipes
