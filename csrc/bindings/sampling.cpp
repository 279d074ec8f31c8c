// sampling.cpp: names, shapes and ownership of the sampling kernels; arrays are viewed and wrapped under the GIL.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/choice.h"
#include "bindings/hops.h"
#include "bindings/numpy.h"
#include "bindings/topology.h"
#include "sampling/compact.h"
#include "sampling/draw_items.h"
#include "sampling/numbering.h"
#include "sampling/ppr.h"
#include "sampling/random_walks.h"
#include "sampling/sample_hop.h"
#include "sampling/sample_neighbors.h"
#include "sampling/temporal.h"
#include "sampling/walk_steps.h"

namespace datapipes {
namespace {

// The request of a minibatch; `fanouts` and `keys` have an entry for each sampled relation of each hop.
NeighborsRequest neighbors_request(const ArrayTopology& graph, const std::vector<std::int64_t>& sampled, const Numbers& fanouts,
                                   const std::vector<std::vector<std::uint64_t>>& keys, bool replace, const Choice& choice) {
  NeighborsRequest request;
  request.sampled = sampled_of(sampled, graph.visit([](const auto& topology) { return topology.relations.size(); }));
  if (fanouts.size() != keys.size()) throw std::invalid_argument("give one key for each fanout.");
  check_choice(choice, fanouts.size(), sampled.size());
  for (std::size_t h = 0; h < fanouts.size(); ++h) {
    if (fanouts[h].size() != sampled.size() || keys[h].size() != sampled.size())
      throw std::invalid_argument("give one fanout and one key for each sampled relation of a hop.");
    std::vector<Policy> hop;
    for (std::size_t i = 0; i < sampled.size(); ++i) {
      const DrawOf draw =
          graph.visit([&](const auto& topology) { return DrawOf::rows(topology.relations[request.sampled[i]].rows, h, i); });
      hop.push_back(policy_of(choice, draw, {checked_fanout(fanouts[h][i]), replace, keys[h][i]}));
    }
    request.hops.push_back(std::move(hop));
  }
  return request;
}

template <class Id>
py::tuple to_python(Neighborhood<Id>&& found, bool want_edge_ids) {
  py::list hops;
  for (auto& blocks : found.hops) hops.append(to_python(std::move(blocks), want_edge_ids));
  py::object bucket = py::none();
  if (found.bucket) bucket = py::int_(*found.bucket);
  return py::make_tuple(to_python(std::move(found.nodes)), to_python(std::move(found.compacted_seeds)), hops,
                        to_python(std::move(found.groups)), bucket);
}

// A Numbering that continues over several calls. Calls of several threads wait for each other.
template <class Id>
class ResumableNumbering {
 public:
  explicit ResumableNumbering(std::int64_t num_nodes, std::int64_t direct_limit)
      : numbering_(num_nodes), direct_left_(direct_limit) {}
  ResumableNumbering(const ResumableNumbering&) = delete;
  ResumableNumbering& operator=(const ResumableNumbering&) = delete;
  ~ResumableNumbering() {
    try {
      if (!broken_) numbering_.finish();
    } catch (const std::bad_alloc&) {  // no room on the shelf: the map is freed
    }
  }

  Buffer<Id> number(std::span<const Id> ids) {
    const std::lock_guard lock(mutex_);
    Buffer<Id> local = checked_ids(ids, numbering_.num_nodes());
    broken_ = true;  // until the call succeeds: after an error the content of the map is unknown
    numbering_.number_all({local.data(), ids.size()}, local.data(), direct_left_);
    broken_ = false;
    return local;
  }

  Buffer<Id> nodes() {
    const std::lock_guard lock(mutex_);
    const auto found = numbering_.nodes();
    Buffer<Id> copy(std::ssize(found));
    std::copy(found.begin(), found.end(), copy.data());
    return copy;
  }

 private:
  std::mutex mutex_;
  Numbering<Id> numbering_;
  std::int64_t direct_left_;
  bool broken_ = false;
};

std::int64_t checked_number(const std::string& what, std::int64_t number) {
  if (number < 0) throw std::invalid_argument(what + " must be 0 or more, got " + std::to_string(number) + ".");
  return number;
}

std::int64_t checked_count(std::int64_t num_nodes) { return checked_number("num_nodes", num_nodes); }

void check_times(const Choice& choice, bool has_times) {
  if (std::holds_alternative<const GivenEdgeTimes*>(choice) && !has_times)
    throw std::invalid_argument("give the times of the seeds with edge_times.");
}

template <class Id>
py::tuple to_python(SampledHop<Id>&& hop, bool want_places) {
  return py::make_tuple(to_numpy(std::move(hop.indptr)), to_numpy(std::move(hop.neighbors)),
                        to_numpy_if(want_places, std::move(hop.positions)));
}

// Number of a node type; rows, ids, streams, times and time windows of its nodes.
using GivenRows = std::tuple<std::size_t, Array<std::int64_t>, Array<std::int64_t>, std::optional<Array<std::uint32_t>>,
                             std::optional<Array<std::int64_t>>, std::optional<Array<std::int64_t>>>;
using GivenDraw = std::tuple<std::size_t, std::int64_t, std::uint64_t>;  // number of a relation, fanout, key

// Draws from relations of a graph, each for the nodes of its destination type.
py::tuple sample_hops_of(const ArrayTopology& graph, const std::vector<GivenRows>& given, const std::vector<GivenDraw>& wanted,
                         bool replace, bool want_edge_ids, const Choice& choice, int num_threads) {
  check_threads(num_threads);
  check_choice(choice, 1, wanted.size());
  std::vector<HopRows> nodes;
  std::vector<std::size_t> types;
  for (const auto& [type, rows, ids, streams, times, windows] : given) {
    check_times(choice, times.has_value());
    types.push_back(type);
    nodes.push_back(
        {view(rows, "rows"), view(ids, "ids"), view(streams, "streams"), view(times, "times"), checked_windows(windows)});
  }
  return graph.visit([&]<class Id>(const Topology<Id>& topology) {
    std::vector<HopDraw<Id>> draws;
    for (const auto& [number, fanout, key] : wanted) {
      if (number >= topology.relations.size())
        throw std::invalid_argument("no relation has the number " + std::to_string(number) + ".");
      const auto& relation = topology.relations[number];
      const auto of = std::find(types.begin(), types.end(), relation.dst);
      if (of == types.end()) throw std::invalid_argument("give rows for the destinations of each draw.");
      const Uniform uniform{checked_fanout(fanout), replace, key};
      draws.push_back({static_cast<std::size_t>(of - types.begin()), relation.rows,
                       policy_of(choice, DrawOf::rows(relation.rows, 0, draws.size()), uniform), relation.edge_ids});
    }
    const Places places = want_edge_ids ? Places::kEdgeIds : Places::kNone;
    return to_python(without_gil([&] { return sample_hops<Id>(nodes, draws, places, num_threads); }), want_edge_ids);
  });
}

template <class Id>
void bind_sampling_for(py::module_& m, const char* numbering_name) {
  m.def(
      "sample_hop",
      [](const Array<std::int64_t>& indptr, const Array<Id>& indices, const Array<std::int64_t>& seeds, std::int64_t fanout,
         bool replace, std::uint64_t key, const std::optional<Array<std::int64_t>>& node_ids,
         std::optional<std::int64_t> num_sources, const std::optional<Array<std::int64_t>>& seed_ids,
         const std::optional<Array<std::int64_t>>& edge_ids, bool want_places, int num_threads,
         const std::optional<Array<std::uint32_t>>& streams, const std::optional<Array<std::int64_t>>& times,
         const Choice& choice) {
        check_threads(num_threads);
        const auto offsets = view(indptr, "indptr");
        if (offsets.empty())
          throw std::invalid_argument("indptr is empty; it needs a row for each node and one entry more, the first of them 0.");
        RowView<Id> rows{offsets, view(indices, "indices"), checked_count(num_sources.value_or(std::ssize(offsets) - 1))};
        if (node_ids) {
          rows.node_ids = view(*node_ids, "node_ids");
          if (std::ssize(rows.node_ids) != rows.num_rows()) throw std::invalid_argument("give one of node_ids for each row.");
        }
        const HopRows of{view(seeds, "seeds"), view(seed_ids, "seed_ids"), view(streams, "streams"), view(times, "times")};
        const auto ids = view(edge_ids, "edge_ids");
        if (edge_ids && ids.size() != rows.indices.size()) throw std::invalid_argument("give one of edge_ids for each edge.");
        const Places places = !want_places ? Places::kNone : edge_ids ? Places::kEdgeIds : Places::kPositions;
        check_choice(choice, 1, 1);
        check_times(choice, times.has_value());
        const Policy policy = policy_of(choice, DrawOf::rows(rows), {checked_fanout(fanout), replace, key});
        return to_python(without_gil([&] { return sample_hop<Id>(of, {0, rows, policy, ids}, places, num_threads); }),
                         want_places);
      },
      py::arg("indptr").noconvert(), py::arg("indices").noconvert(), py::arg("seeds").noconvert(), py::kw_only(),
      py::arg("fanout"), py::arg("replace"), py::arg("key"), py::arg("node_ids").noconvert() = py::none(),
      py::arg("num_sources") = py::none(), py::arg("seed_ids").noconvert() = py::none(),
      py::arg("edge_ids").noconvert() = py::none(), py::arg("want_places") = true, py::arg("num_threads") = 1,
      py::arg("streams").noconvert() = py::none(), py::arg("times").noconvert() = py::none(), py::arg("choice") = py::none());
  m.def(
      "compact",
      [](const Array<Id>& ids, std::int64_t num_nodes, std::int64_t direct_limit) {
        const auto given = view(ids, "ids");
        checked_count(num_nodes);
        auto compacted = without_gil([&] { return compact(given, num_nodes, direct_limit); });
        return py::make_tuple(to_numpy(std::move(compacted.unique)), to_numpy(std::move(compacted.local)));
      },
      py::arg("ids").noconvert(), py::kw_only(), py::arg("num_nodes"), py::arg("direct_limit") = kDirectMapLimit);
  py::class_<ResumableNumbering<Id>>(m, numbering_name)
      .def(py::init([](std::int64_t num_nodes, std::int64_t direct_limit) {
             return std::make_unique<ResumableNumbering<Id>>(checked_count(num_nodes), direct_limit);
           }),
           py::arg("num_nodes"), py::kw_only(), py::arg("direct_limit") = kDirectMapLimit)
      .def(
          "number",
          [](ResumableNumbering<Id>& numbering, const Array<Id>& ids) {
            const auto given = view(ids, "ids");
            return to_numpy(without_gil([&] { return numbering.number(given); }));
          },
          py::arg("ids").noconvert())
      .def("nodes", [](ResumableNumbering<Id>& numbering) { return to_numpy(numbering.nodes()); });
}

}  // namespace

WeightType weight_type(const std::string& dtype) {
  if (dtype == "bool") return WeightType::kBool;
  if (dtype == "float16") return WeightType::kFloat16;
  if (dtype == "bfloat16") return WeightType::kBfloat16;
  if (dtype == "float32") return WeightType::kFloat32;
  if (dtype == "float64") return WeightType::kFloat64;
  throw std::invalid_argument("weights must be bool, float16, bfloat16, float32 or float64, got " + dtype + ".");
}

void bind_row_sums(py::module_& m) {
  m.def(
      "row_sums",
      [](const Array<std::int64_t>& indptr, const Array<std::uint8_t>& values, const std::string& dtype, const std::string& what,
         const std::optional<Array<std::int64_t>>& node_ids, int num_threads) {
        check_threads(num_threads);
        const auto offsets = view(indptr, "indptr");
        const auto bytes = std::as_bytes(view(values, "values"));
        const auto ids = view(node_ids, "node_ids");
        const WeightType type = weight_type(dtype);
        auto made = without_gil([&] { return make_row_sums(what, offsets, bytes, type, ids, num_threads); });
        const bool has_drawable = made.drawable.size() > 0;
        return py::make_tuple(to_numpy(std::move(made.sums)), to_numpy(std::move(made.coarse)),
                              to_numpy_if(has_drawable, std::move(made.drawable)));
      },
      py::arg("indptr").noconvert(), py::arg("values").noconvert(), py::kw_only(), py::arg("dtype"), py::arg("what") = "weights",
      py::arg("node_ids").noconvert() = py::none(), py::arg("num_threads") = 1);
}

void bind_ppr(py::module_& m) {
  const auto to_python = []<class Id>(PprNodes<Id>&& found) {
    return py::make_tuple(to_numpy(std::move(found.ids)), to_numpy(std::move(found.masses)), found.num_edges);
  };
  m.def(
      "ppr",
      [to_python](const ArrayTopology& graph, const Array<std::int64_t>& seeds, std::uint64_t keep, std::uint64_t eps,
                  std::int64_t count, int num_threads, const std::string& op) {
        check_threads(num_threads);
        const auto nodes = view(seeds, "seeds");
        return graph.visit([&]<class Id>(const Topology<Id>& topology) -> py::tuple {
          if (topology.relations.size() != 1) throw std::invalid_argument(op + " knows no types.");
          const auto& rows = topology.relations.front().rows;
          return to_python(
              without_gil([&] { return ppr_of_graph<Id>(op.c_str(), rows, nodes, {keep, eps, count}, num_threads); }));
        });
      },
      py::arg("graph"), py::arg("seeds").noconvert(), py::kw_only(), py::arg("keep"), py::arg("eps"), py::arg("count"),
      py::arg("num_threads") = 1, py::arg("op") = "sample_ppr");
  py::class_<PprOverParts>(m, "PprOverParts")
      .def(py::init([](const Array<std::int64_t>& seeds, std::int64_t num_nodes, std::uint64_t keep, std::uint64_t eps,
                       std::int64_t count) {
             return std::make_unique<PprOverParts>(view(seeds, "seeds"), num_nodes, PprOptions{keep, eps, count});
           }),
           py::arg("seeds").noconvert(), py::kw_only(), py::arg("num_nodes"), py::arg("keep"), py::arg("eps"), py::arg("count"))
      .def("wanted",
           [](PprOverParts& ppr) {
             auto [nodes, most] = without_gil([&] { return ppr.wanted(); });
             return py::make_tuple(to_numpy(std::move(nodes)), to_numpy(std::move(most)));
           })
      .def(
          "give",
          [](PprOverParts& ppr, const Array<std::int64_t>& nodes, const Array<std::int64_t>& degrees,
             const Array<std::int64_t>& sources) {
            const auto ids = view(nodes, "nodes"), counts = view(degrees, "degrees"), rows = view(sources, "sources");
            without_gil([&] { ppr.give(ids, counts, rows); });
          },
          py::arg("nodes").noconvert(), py::arg("degrees").noconvert(), py::arg("sources").noconvert())
      .def("largest", [to_python](PprOverParts& ppr) { return to_python(ppr.largest()); });
}

void bind_items(py::module_& m) {
  m.def(
      "draw_items",
      [](std::uint64_t key, std::int64_t num_items, const std::shared_ptr<ArrayRowSums>& weights, std::int64_t first,
         std::int64_t count) {
        Buffer<std::int64_t> out(checked_number("count", count));
        const RowSums* const sums = weights ? &weights->sums() : nullptr;
        without_gil([&] { draw_items(key, num_items, sums, first, {out.data(), static_cast<std::size_t>(count)}); });
        return to_numpy(std::move(out));
      },
      py::arg("key"), py::arg("num_items"), py::arg("weights"), py::arg("first"), py::arg("count"));
  m.def(
      "order_items",
      [](std::uint64_t key, std::int64_t num_items, const ArrayRowSums& weights, std::int64_t count) {
        Buffer<std::int64_t> out(checked_number("count", count));
        without_gil([&] { order_items(key, num_items, weights.sums(), {out.data(), static_cast<std::size_t>(count)}); });
        return to_numpy(std::move(out));
      },
      py::arg("key"), py::arg("num_items"), py::arg("weights"), py::arg("count"));
}

void bind_sampling(py::module_& m) {
  m.def("limit_hops", &limit_hops, py::arg("bytes"));
  bind_choices(m);
  bind_row_sums(m);
  bind_items(m);
  bind_sampling_for<std::int32_t>(m, "NumberingInt32");
  bind_sampling_for<std::int64_t>(m, "NumberingInt64");
  bind_groups(m);
  m.def("sample_hops", &sample_hops_of, py::arg("graph"), py::kw_only(), py::arg("rows").noconvert(), py::arg("draws"),
        py::arg("replace"), py::arg("want_edge_ids"), py::arg("choice") = py::none(), py::arg("num_threads") = 1);
  py::class_<ArrayTopology>(m, "Topology")
      .def(py::init<const py::list&, const py::list&>(), py::arg("node_types"), py::arg("relations"));
  py::class_<Padding>(m, "Padding")
      .def(py::init([](const std::vector<std::tuple<std::vector<std::int64_t>, Numbers, Numbers>>& buckets) {
             std::vector<PadBucket> given;
             for (const auto& [seeds, rows, edges] : buckets) given.push_back({seeds, rows, edges});
             return Padding(std::move(given));
           }),
           py::arg("buckets"));
  m.def(
      "sample_neighbors",
      [](const ArrayTopology& graph, const GivenSeeds& seeds, const std::vector<std::int64_t>& sampled, const Numbers& fanouts,
         const std::vector<std::vector<std::uint64_t>>& keys, bool replace, bool only_new, bool want_edge_ids, bool only_among,
         std::int64_t direct_limit, int num_threads, const std::string& op, const std::optional<GivenGroups>& groups,
         const Choice& choice, const Padding* padding, const std::vector<std::int64_t>& num_seeds) {
        check_threads(num_threads);
        NeighborsRequest request = neighbors_request(graph, sampled, fanouts, keys, replace, choice);
        request.only_new = only_new;
        request.only_among = only_among;
        request.want_edge_ids = want_edge_ids;
        request.direct_limit = direct_limit;
        request.threads = num_threads;
        request.op = op;
        request.padding = padding;
        request.num_seeds = num_seeds;
        if (groups) request.groups = view_of(*groups);
        return graph.visit([&](const auto& topology) {
          const auto wanted = seeds_of(seeds, groups, topology.node_types.size());
          auto found = without_gil([&] { return sample_neighbors(topology, wanted, request); });
          return to_python(std::move(found), want_edge_ids);
        });
      },
      py::arg("graph"), py::arg("seeds").noconvert(), py::kw_only(), py::arg("sampled"), py::arg("fanouts"), py::arg("keys"),
      py::arg("replace"), py::arg("only_new"), py::arg("want_edge_ids"), py::arg("only_among") = false,
      py::arg("direct_limit") = kDirectMapLimit, py::arg("num_threads") = 1, py::arg("op") = "sample_neighbor",
      py::arg("groups") = py::none(), py::arg("choice") = py::none(), py::arg("padding") = py::none(),
      py::arg("num_seeds") = std::vector<std::int64_t>());
  m.def(
      "random_walks",
      [](const ArrayTopology& graph, const Array<std::int64_t>& seeds,
         const std::vector<std::tuple<std::size_t, std::uint64_t, std::uint64_t>>& steps,
         const std::optional<std::vector<std::shared_ptr<ArrayRowSums>>>& sums, std::int64_t walks_per_node, double p, double q,
         const py::object& sorted, bool want_edge_ids, int num_threads, const std::string& op) {
        check_threads(num_threads);
        const auto ids = view(seeds, "seeds");
        if (sums && sums->size() != steps.size()) throw std::invalid_argument("give sums for each step, or for none.");
        return graph.visit([&]<class Id>(const Topology<Id>& topology) -> py::tuple {
          WalkRequest<Id> request{.op = op};
          for (std::size_t t = 0; t < steps.size(); ++t) {
            const auto& [relation, key, end_below] = steps[t];
            request.steps.push_back({relation, key, std::nullopt, end_below});
            if (sums && (*sums)[t]) request.steps.back().sums = (*sums)[t]->sums();
          }
          request.walks_per_node = walks_per_node;
          request.p = p, request.q = q, request.want_edge_ids = want_edge_ids;
          request.threads = num_threads;
          std::optional<Array<Id>> ascending;
          if (!sorted.is_none()) ascending = exact<Id>(sorted, "sorted");
          if (ascending) request.sorted = view(*ascending, "sorted");
          auto found = without_gil([&] { return random_walks<Id>(topology, ids, request); });
          return py::make_tuple(to_numpy(std::move(found.nodes)), to_numpy_if(want_edge_ids, std::move(found.edge_ids)));
        });
      },
      py::arg("graph"), py::arg("seeds").noconvert(), py::kw_only(), py::arg("steps"), py::arg("sums") = py::none(),
      py::arg("walks_per_node") = 1, py::arg("p") = 1.0, py::arg("q") = 1.0, py::arg("sorted") = py::none(),
      py::arg("want_edge_ids") = false, py::arg("num_threads") = 1, py::arg("op") = "sample_random_walk");
  const auto bind_steps = [&]<class Id>(Id) {
    const auto to_python = [](DrawnSteps<Id>&& drawn, const std::optional<Array<std::int64_t>>& edge_ids) {
      if (edge_ids) {
        const auto ids = view(*edge_ids, "edge_ids");
        for (std::int64_t i = 0; i < drawn.positions.size(); ++i)
          drawn.positions[i] = ids[static_cast<std::size_t>(drawn.positions[i])];
      }
      return py::make_tuple(to_numpy(std::move(drawn.counts)), to_numpy(std::move(drawn.sources)),
                            to_numpy(std::move(drawn.positions)), to_numpy(std::move(drawn.kinds)),
                            to_numpy(std::move(drawn.sums)));
    };
    m.def(
        "draw_steps",
        [to_python](const Array<std::int64_t>& indptr, const Array<Id>& indices,
                    const std::optional<Array<std::int64_t>>& edge_ids, std::int64_t num_sources, const Array<std::int64_t>& rows,
                    const Array<std::int64_t>& walkers, const Array<std::int64_t>& before, const WalkStep& step,
                    const std::shared_ptr<ArrayRowSums>& sums, const std::string& op) {
          const RowView<Id> graph{view(indptr, "indptr"), view(indices, "indices"), num_sources};
          const auto at = view(rows, "rows"), numbers = view(walkers, "walkers"), nodes = view(before, "before");
          const auto of = sums ? std::optional(sums->sums()) : std::nullopt;
          return to_python(without_gil([&] { return draw_steps<Id>(op.c_str(), graph, at, numbers, nodes, step, of); }),
                           edge_ids);
        },
        py::arg("indptr").noconvert(), py::arg("indices").noconvert(), py::arg("edge_ids").noconvert(), py::arg("num_sources"),
        py::arg("rows").noconvert(), py::arg("walkers").noconvert(), py::arg("before").noconvert(), py::arg("step"),
        py::arg("sums") = py::none(), py::arg("op") = "sample_random_walk");
    m.def(
        "whole_rows",
        [to_python](const Array<std::int64_t>& indptr, const Array<Id>& indices,
                    const std::optional<Array<std::int64_t>>& edge_ids, std::int64_t num_sources, const Array<std::int64_t>& rows,
                    const std::shared_ptr<ArrayRowSums>& sums, const std::optional<Array<std::int64_t>>& most,
                    const std::string& op) {
          const RowView<Id> graph{view(indptr, "indptr"), view(indices, "indices"), num_sources};
          const auto at = view(rows, "rows"), limits = view(most, "most");
          const auto of = sums ? std::optional(sums->sums()) : std::nullopt;
          return to_python(without_gil([&] { return whole_rows<Id>(op.c_str(), graph, at, limits, of); }), edge_ids);
        },
        py::arg("indptr").noconvert(), py::arg("indices").noconvert(), py::arg("edge_ids").noconvert(), py::arg("num_sources"),
        py::arg("rows").noconvert(), py::arg("sums") = py::none(), py::arg("most").noconvert() = py::none(),
        py::arg("op") = "sample_random_walk");
    m.def(
        "sorted_sources",
        [](const Array<std::int64_t>& indptr, const Array<Id>& indices, int num_threads) {
          check_threads(num_threads);
          const RowView<Id> rows{view(indptr, "indptr"), view(indices, "indices"), 0};
          return to_numpy(without_gil([&] { return sorted_sources<Id>("sorted_sources", rows, num_threads); }));
        },
        py::arg("indptr").noconvert(), py::arg("indices").noconvert(), py::kw_only(), py::arg("num_threads") = 1);
  };
  py::class_<WalkStep>(m, "WalkStep")
      .def(py::init([](std::uint64_t key, std::uint64_t number, std::uint64_t end_below, double p, double q) {
             return WalkStep{key, number, end_below, p, q};
           }),
           py::arg("key"), py::arg("number"), py::arg("end_below") = 0, py::arg("p") = 1.0, py::arg("q") = 1.0);
  m.def(
      "chosen_in_rows",
      [](const Array<std::int64_t>& counts, const Array<std::int64_t>& sources, const Array<double>& sums,
         const Array<std::uint8_t>& near, const Array<std::int64_t>& walkers, const Array<std::int64_t>& before,
         const WalkStep& step) {
        const auto of = view(counts, "counts"), ids = view(sources, "sources");
        const auto numbers = view(walkers, "walkers"), nodes = view(before, "before");
        const auto weights = view(sums, "sums");
        const auto are_near = view(near, "near");
        return to_numpy(without_gil([&] { return chosen_in_rows(of, ids, weights, are_near, numbers, nodes, step); }));
      },
      py::arg("counts").noconvert(), py::arg("sources").noconvert(), py::arg("sums").noconvert(), py::arg("near").noconvert(),
      py::arg("walkers").noconvert(), py::arg("before").noconvert(), py::arg("step"));
  bind_steps(std::int32_t{});
  bind_steps(std::int64_t{});
  bind_ppr(m);
}

}  // namespace datapipes
