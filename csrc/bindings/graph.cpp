// graph.cpp: names, shapes and ownership of the graph kernels.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

#include "bindings/numpy.h"
#include "graph/coo_to_csc.h"
#include "graph/validate.h"

namespace datapipes {
namespace {

template <class Id>
void bind_graph_for(py::module_& m) {
  m.def(
      "coo_to_csc",
      [](const Array<Id>& src, const Array<Id>& dst, std::int64_t num_nodes, std::int64_t partition_from) {
        const auto sources = view(src, "src"), destinations = view(dst, "dst");
        Csc<Id> csc;
        {
          const GilRelease nogil;
          csc = coo_to_csc(sources, destinations, num_nodes, partition_from);
        }
        return py::make_tuple(to_numpy(std::move(csc.indptr)), to_numpy(std::move(csc.indices)), to_numpy(std::move(csc.order)));
      },
      py::arg("src").noconvert(), py::arg("dst").noconvert(), py::arg("num_nodes"), py::kw_only(),
      py::arg("partition_from") = kPartitionFrom);
  m.def(
      "validate_csc",
      [](const Array<std::int64_t>& indptr, const Array<Id>& indices, std::optional<std::int64_t> num_sources) {
        const auto offsets = view(indptr, "indptr");
        const RowView<Id> rows{offsets, view(indices, "indices"), num_sources.value_or(std::ssize(offsets) - 1)};
        const GilRelease nogil;
        validate_csc(rows);
      },
      py::arg("indptr").noconvert(), py::arg("indices").noconvert(), py::kw_only(), py::arg("num_sources") = py::none());
}

}  // namespace

void bind_graph(py::module_& m) {
  bind_graph_for<std::int32_t>(m);
  bind_graph_for<std::int64_t>(m);
}

}  // namespace datapipes
