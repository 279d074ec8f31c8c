// sampling.cpp: names, shapes and ownership of the sampling kernels; arrays are viewed and wrapped under the GIL.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <vector>

#include "bindings/numpy.h"
#include "sampling/compact.h"
#include "sampling/sample_hop.h"
#include "sampling/sample_neighbors.h"

namespace datapipes {
namespace {

template <class Id>
CscView<Id> csc_view(const Array<std::int64_t>& indptr, const Array<Id>& indices) {
  const auto offsets = view(indptr, "indptr");
  if (offsets.empty()) throw std::invalid_argument("indptr is empty; it needs num_nodes + 1 entries, the first of them 0.");
  return {offsets, view(indices, "indices")};
}

HopRequest hop_request(std::int64_t fanout, bool replace, std::uint64_t key) {
  if (fanout < -1) throw std::invalid_argument("fanout must be -1 (all in-edges) or more, got " + std::to_string(fanout) + ".");
  return {fanout, replace, key};
}

template <class Id>
void bind_sampling_for(py::module_& m) {
  m.def(
      "sample_hop",
      [](const Array<std::int64_t>& indptr, const Array<Id>& indices, const Array<std::int64_t>& seeds, std::int64_t fanout,
         bool replace, std::uint64_t key, int num_threads) {
        check_threads(num_threads);
        const auto graph = csc_view(indptr, indices);
        const auto wanted = view(seeds, "seeds");
        const HopRequest request = hop_request(fanout, replace, key);
        SampledHop<Id> hop;
        {
          const GilRelease nogil;
          hop = sample_hop(graph, wanted, request, num_threads);
        }
        return py::make_tuple(to_numpy(std::move(hop.indptr)), to_numpy(std::move(hop.neighbors)),
                              to_numpy(std::move(hop.positions)));
      },
      py::arg("indptr").noconvert(), py::arg("indices").noconvert(), py::arg("seeds").noconvert(), py::kw_only(),
      py::arg("fanout"), py::arg("replace"), py::arg("key"), py::arg("num_threads") = 1);
  m.def(
      "compact",
      [](const Array<Id>& ids, std::int64_t num_nodes, std::int64_t direct_limit) {
        const auto given = view(ids, "ids");
        if (num_nodes < 0) throw std::invalid_argument("num_nodes must be 0 or more, got " + std::to_string(num_nodes) + ".");
        Compacted<Id> compacted;
        {
          const GilRelease nogil;
          compacted = compact(given, num_nodes, direct_limit);
        }
        return py::make_tuple(to_numpy(std::move(compacted.unique)), to_numpy(std::move(compacted.local)));
      },
      py::arg("ids").noconvert(), py::kw_only(), py::arg("num_nodes"), py::arg("direct_limit") = kDirectMapLimit);
  m.def(
      "sample_neighbors",
      [](const Array<std::int64_t>& indptr, const Array<Id>& indices, const std::optional<Array<std::int64_t>>& edge_ids,
         const Array<std::int64_t>& seeds, const std::vector<std::int64_t>& fanouts, const std::vector<std::uint64_t>& keys,
         bool replace, bool only_new, bool want_edge_ids, std::int64_t direct_limit, int num_threads) {
        check_threads(num_threads);
        const auto graph = csc_view(indptr, indices);
        const auto wanted = view(seeds, "seeds");
        const auto ids = edge_ids ? view(*edge_ids, "edge_ids") : std::span<const std::int64_t>{};
        if (edge_ids && ids.size() != graph.indices.size())
          throw std::invalid_argument("edge_ids and indices must be equally long.");
        if (fanouts.size() != keys.size()) throw std::invalid_argument("give one key for each fanout.");
        NeighborsRequest request{.hops = {},
                                 .only_new = only_new,
                                 .want_edge_ids = want_edge_ids,
                                 .direct_limit = direct_limit,
                                 .threads = num_threads};
        for (std::size_t h = 0; h < fanouts.size(); ++h) request.hops.push_back(hop_request(fanouts[h], replace, keys[h]));
        Neighborhood<Id> found;
        {
          const GilRelease nogil;
          found = sample_neighbors(graph, ids, wanted, request);
        }
        py::list hops;
        for (auto& hop : found.hops) {
          py::object hop_edge_ids = py::none();
          if (want_edge_ids) hop_edge_ids = to_numpy(std::move(hop.edge_ids));
          hops.append(
              py::make_tuple(to_numpy(std::move(hop.indptr)), to_numpy(std::move(hop.indices)), hop_edge_ids, hop.num_src));
        }
        return py::make_tuple(to_numpy(std::move(found.nodes)), to_numpy(std::move(found.compacted_seeds)), hops);
      },
      py::arg("indptr").noconvert(), py::arg("indices").noconvert(), py::arg("edge_ids").noconvert(),
      py::arg("seeds").noconvert(), py::kw_only(), py::arg("fanouts"), py::arg("keys"), py::arg("replace"), py::arg("only_new"),
      py::arg("want_edge_ids"), py::arg("direct_limit") = kDirectMapLimit, py::arg("num_threads") = 1);
}

}  // namespace

void bind_sampling(py::module_& m) {
  bind_sampling_for<std::int32_t>(m);
  bind_sampling_for<std::int64_t>(m);
}

}  // namespace datapipes
