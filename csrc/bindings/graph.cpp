// graph.cpp: names, shapes and ownership of the graph kernels.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "bindings/numpy.h"
#include "graph/coarse_times.h"
#include "graph/coo_to_csc.h"
#include "graph/csc_to_coo.h"
#include "graph/edge_times.h"
#include "graph/pad_block.h"
#include "graph/rows_digest.h"
#include "graph/validate.h"

namespace datapipes {
namespace {

using LayerSizes = std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>;  // nodes and rows of each layer

template <class Id>
void bind_graph_for(py::module_& m) {
  m.def(
      "coo_to_csc",
      [](const Array<Id>& src, const Array<Id>& dst, std::int64_t num_nodes, std::optional<std::int64_t> num_sources,
         std::int64_t partition_from, std::optional<std::uint64_t> spare_bytes) {
        const auto sources = view(src, "src"), destinations = view(dst, "dst");
        auto csc = without_gil([&] {
          return coo_to_csc(sources, destinations, num_nodes, num_sources.value_or(num_nodes), partition_from, spare_bytes);
        });
        return py::make_tuple(to_numpy(std::move(csc.indptr)), to_numpy(std::move(csc.indices)), to_numpy(std::move(csc.order)));
      },
      py::arg("src").noconvert(), py::arg("dst").noconvert(), py::arg("num_nodes"), py::kw_only(),
      py::arg("num_sources") = py::none(), py::arg("partition_from") = kPartitionFrom, py::arg("spare_bytes") = py::none());
  m.def(
      "csc_to_coo",
      [](const std::vector<std::pair<Array<std::int64_t>, Array<Id>>>& hops, const std::vector<Array<std::int64_t>>& edge_ids) {
        std::vector<RowView<Id>> views;
        for (const auto& [indptr, indices] : hops) views.push_back({view(indptr, "indptr"), view(indices, "indices"), 0});
        std::vector<std::span<const std::int64_t>> ids;
        for (const auto& each : edge_ids) ids.push_back(view(each, "edge_ids"));
        auto coo = without_gil([&] { return csc_to_coo<Id>(views, ids); });
        return py::make_tuple(to_numpy(std::move(coo.edges)).reshape({py::ssize_t{2}, py::ssize_t{-1}}),
                              to_numpy(std::move(coo.ids)));
      },
      py::arg("hops").noconvert(), py::arg("edge_ids").noconvert());
  m.def(
      "pad_block",
      [](const Array<std::int64_t>& indptr, const Array<Id>& indices, const std::optional<Array<std::int64_t>>& edge_ids,
         const LayerSizes& to, const LayerSizes& from, std::int64_t num_edges, int num_threads) {
        check_threads(num_threads);
        const auto offsets = view(indptr, "indptr");
        const auto sources = view(indices, "indices");
        std::optional<std::span<const std::int64_t>> ids;
        if (edge_ids) ids = view(*edge_ids, "edge_ids");
        const Layers into{to.first, to.first, to.second}, out_of{from.first, from.first, from.second};
        auto padded = without_gil([&] { return pad_block<Id>(offsets, sources, ids, into, out_of, num_edges, num_threads); });
        return py::make_tuple(to_numpy(std::move(padded.indptr)), to_numpy(std::move(padded.indices)),
                              to_numpy_if(edge_ids.has_value(), std::move(padded.edge_ids)));
      },
      py::arg("indptr").noconvert(), py::arg("indices").noconvert(), py::arg("edge_ids").noconvert(), py::arg("to"),
      py::arg("from_"), py::arg("num_edges"), py::kw_only(), py::arg("num_threads") = 1);
  m.def(
      "pad_values",
      [](const Array<Id>& values, const LayerSizes& layers, Id padding) {
        const auto from = view(values, "values");
        auto padded = without_gil([&] { return pad_values<Id>(from, {layers.first, layers.first, layers.second}, padding); });
        return to_numpy(std::move(padded));
      },
      py::arg("values").noconvert(), py::arg("layers"), py::arg("padding"));
  m.def(
      "validate_csc",
      [](const Array<std::int64_t>& indptr, const Array<Id>& indices, std::optional<std::int64_t> num_sources) {
        const auto offsets = view(indptr, "indptr");
        const RowView<Id> rows{offsets, view(indices, "indices"), num_sources.value_or(std::ssize(offsets) - 1)};
        const GilRelease nogil;
        validate_csc(rows);
      },
      py::arg("indptr").noconvert(), py::arg("indices").noconvert(), py::kw_only(), py::arg("num_sources") = py::none());
  m.def(
      "fill_source_times",
      [](const Array<Id>& indices, const Array<std::int64_t>& of_nodes, Array<std::int64_t>& out, int num_threads) {
        check_threads(num_threads);
        const auto sources = view(indices, "indices");
        const auto nodes = view(of_nodes, "of_nodes");
        const auto times = writable(out, "out");
        const GilRelease nogil;
        fill_source_times(sources, nodes, times, num_threads);
      },
      py::arg("indices").noconvert(), py::arg("of_nodes").noconvert(), py::arg("out").noconvert(), py::kw_only(),
      py::arg("num_threads") = 1);
}

}  // namespace

void bind_graph(py::module_& m) {
  bind_graph_for<std::int32_t>(m);
  bind_graph_for<std::int64_t>(m);
  m.def(
      "find_sorted_rows",
      [](const Array<std::int64_t>& indptr, const Array<std::int64_t>& latest, Array<std::uint8_t>& sorted,
         const std::optional<Array<std::int64_t>>& earliest, int num_threads) {
        check_threads(num_threads);
        const auto offsets = view(indptr, "indptr");
        const auto times = view(latest, "latest");
        const auto others = view(earliest, "earliest");
        const auto out = writable(sorted, "sorted");
        const GilRelease nogil;
        find_sorted_rows(offsets, times, others, out, num_threads);
      },
      py::arg("indptr").noconvert(), py::arg("latest").noconvert(), py::arg("sorted").noconvert(), py::kw_only(),
      py::arg("earliest").noconvert() = py::none(), py::arg("num_threads") = 1);
  m.attr("COARSE_PADDING") = kCoarsePadding;
  m.def(
      "fill_coarse_times",
      [](const Array<std::int64_t>& times, Array<std::int16_t>& coarse, int num_threads) {
        check_threads(num_threads);
        const auto given = view(times, "times");
        const auto out = writable(coarse, "coarse");
        const GilRelease nogil;
        const TimeScale scale = find_time_scale(given);
        fill_coarse_times(given, scale, out, num_threads);
        return std::make_pair(scale.low, scale.shift);
      },
      py::arg("times").noconvert(), py::arg("coarse").noconvert(), py::kw_only(), py::arg("num_threads") = 1);
  m.def(
      "rows_digest",
      [](const std::optional<Array<std::int64_t>>& indptr, const py::array& values,
         const std::optional<Array<std::int64_t>>& node_ids, int num_threads) {
        check_threads(num_threads);
        if (values.ndim() != 1 || (values.flags() & py::array::c_style) == 0)
          throw std::invalid_argument("rows_digest: values must be contiguous and have 1 dimension. Copy them.");
        std::vector<std::int64_t> one_each;  // without indptr each value is a row of its own
        if (!indptr) {
          one_each.resize(static_cast<std::size_t>(values.size()) + 1);
          std::iota(one_each.begin(), one_each.end(), std::int64_t{0});
        }
        const std::span<const std::int64_t> offsets = indptr ? view(*indptr, "indptr") : one_each;
        const auto ids = view(node_ids, "node_ids");
        const auto* const bytes = static_cast<const std::byte*>(values.data());
        const std::span<const std::byte> raw(bytes, static_cast<std::size_t>(values.nbytes()));
        const auto width = static_cast<int>(values.itemsize());
        const GilRelease nogil;
        const RowsDigest found = rows_digest(offsets, raw, width, ids, num_threads);
        return std::make_pair(found.high, found.low);
      },
      py::arg("indptr").noconvert(), py::arg("values").noconvert(), py::kw_only(), py::arg("node_ids").noconvert() = py::none(),
      py::arg("num_threads") = 1);
}

}  // namespace datapipes
