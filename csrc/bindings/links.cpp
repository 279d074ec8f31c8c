// links.cpp: names, shapes and ownership of the kernels of links.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/choice.h"
#include "bindings/numpy.h"
#include "links/draw_negatives.h"
#include "links/exclude_edges.h"
#include "links/find_edges.h"

namespace datapipes {
namespace {

template <class Id>
void bind_links_for(py::module_& m, py::class_<ExcludedEdges>& excluded) {
  m.def(
      "find_edges",
      [](const Array<std::int64_t>& indptr, const Array<Id>& indices, const Array<std::int64_t>& rows,
         const Array<std::int64_t>& sources, std::int64_t num_sources) {
        const auto offsets = view(indptr, "indptr");
        if (offsets.empty()) throw std::invalid_argument("has_edges: indptr is empty; it needs a row for each node and 1 more.");
        const RowView<Id> graph{offsets, view(indices, "indices"), num_sources};
        const auto of = view(rows, "rows"), from = view(sources, "sources");
        auto found = without_gil([&] { return find_edges(graph, of, from); });
        return py::make_tuple(to_numpy(std::move(found.counts)), to_numpy(std::move(found.firsts)));
      },
      py::arg("indptr").noconvert(), py::arg("indices").noconvert(), py::arg("rows").noconvert(), py::arg("sources").noconvert(),
      py::kw_only(), py::arg("num_sources"));
  excluded.def(
      "without",
      [](const ExcludedEdges& edges, const Array<std::int64_t>& indptr, const Array<Id>& indices,
         const std::optional<Array<std::int64_t>>& edge_ids, const Array<Id>& src_nodes,
         const Array<Id>& dst_nodes) -> py::object {
        LocalHop<Id> hop{
            view(indptr, "indptr"), view(indices, "indices"), {}, view(src_nodes, "src_nodes"), view(dst_nodes, "dst_nodes")};
        if (edge_ids) hop.edge_ids = view(*edge_ids, "edge_ids");
        auto kept = without_gil([&] { return edges.without(hop); });
        if (!kept) return py::none();
        return py::make_tuple(to_numpy(std::move(kept->indptr)), to_numpy(std::move(kept->indices)),
                              to_numpy_if(edge_ids.has_value(), std::move(kept->edge_ids)));
      },
      py::arg("indptr").noconvert(), py::arg("indices").noconvert(), py::arg("edge_ids").noconvert(),
      py::arg("src_nodes").noconvert(), py::arg("dst_nodes").noconvert());
}

}  // namespace

void bind_links(py::module_& m) {
  py::class_<ExcludedEdges> excluded(m, "ExcludedEdges");
  excluded
      .def(py::init([](const Array<std::int64_t>& sources, const Array<std::int64_t>& destinations) {
             const auto from = view(sources, "sources"), to = view(destinations, "destinations");
             return without_gil([&] { return std::make_unique<ExcludedEdges>(from, to); });
           }),
           py::arg("sources").noconvert(), py::arg("destinations").noconvert())
      .def(py::init([](const Array<std::int64_t>& ids) {
             const auto given = view(ids, "ids");
             return without_gil([&] { return std::make_unique<ExcludedEdges>(given); });
           }),
           py::arg("ids").noconvert());
  bind_links_for<std::int32_t>(m, excluded);
  bind_links_for<std::int64_t>(m, excluded);
  m.def(
      "corrupt_pairs",
      [](std::uint64_t key, const Array<std::int64_t>& positives, std::int64_t number,
         const std::vector<std::pair<std::int64_t, std::shared_ptr<ArrayRowSums>>>& ends) {
        if (positives.ndim() != 2 || positives.shape(1) != 2 || ends.size() != 2)
          throw std::invalid_argument("corrupt_pairs: positives must be [n, 2], with two ends.");
        const std::span<const std::int64_t> pairs(positives.data(), static_cast<std::size_t>(positives.size()));
        const auto end_of = [&](std::size_t i) {
          return DrawnEnd{ends[i].first, ends[i].second ? &ends[i].second->sums() : nullptr};
        };
        auto found = without_gil([&] { return corrupt_pairs(key, pairs, number, end_of(0), end_of(1)); });
        return to_numpy(std::move(found)).reshape({py::ssize_t{-1}, py::ssize_t{2}});
      },
      py::arg("key"), py::arg("positives").noconvert(), py::arg("number"), py::arg("ends"));
  m.def(
      "draw_negatives",
      [](std::uint64_t key, const Array<std::int64_t>& slots, std::int64_t first_try, std::int64_t num_tries,
         const std::vector<std::pair<std::int64_t, std::shared_ptr<ArrayRowSums>>>& ends) {
        const auto streams = view(slots, "slots");
        std::vector<DrawnEnd> drawn;
        for (const auto& [num_nodes, weights] : ends) drawn.push_back({num_nodes, weights ? &weights->sums() : nullptr});
        auto found = without_gil([&] { return draw_negatives(key, streams, first_try, num_tries, drawn); });
        py::list arrays;
        for (auto& each : found) arrays.append(to_numpy(std::move(each)));
        return arrays;
      },
      py::arg("key"), py::arg("slots").noconvert(), py::kw_only(), py::arg("first_try"), py::arg("num_tries"), py::arg("ends"));
}

}  // namespace datapipes
