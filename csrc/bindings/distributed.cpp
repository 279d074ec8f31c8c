// distributed.cpp: names, shapes and ownership of the kernels of sampling over parts.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/hops.h"
#include "bindings/numpy.h"
#include "bindings/part_map.h"
#include "distributed/hops_over_parts.h"

namespace datapipes {
namespace {

// A GraphInParts over the arrays of a partition book, which it keeps.
class ArrayGraphInParts {
 public:
  // node_types: (name, num_nodes, map) each, the map of parts as the book stores it; relations: (src, dst, name) each; src and
  // dst are numbers of node types. A homogeneous graph has the name "". `op` is the stage, for errors.
  ArrayGraphInParts(std::int64_t num_parts, const py::list& node_types, const py::list& relations, const std::string& op) {
    graph_.num_parts = num_parts;
    for (const auto& given : node_types) {
      const auto type = given.cast<py::tuple>();
      const auto num_nodes = type[1].cast<std::int64_t>();
      graph_.owners.push_back(part_map(type[2], num_parts, num_nodes));
      arrays_.push_back(py::reinterpret_borrow<py::object>(type[2]));
      graph_.node_types.push_back({named(op, type[0].cast<std::string>()), num_nodes});
    }
    const auto count = graph_.node_types.size();
    for (const auto& given : relations) {
      const auto relation = given.cast<py::tuple>();
      const auto src = relation[0].cast<std::size_t>(), dst = relation[1].cast<std::size_t>();
      if (src >= count || dst >= count) throw py::value_error("GraphInParts: a relation names a node type that is not there.");
      graph_.relations.push_back({named(op, relation[2].cast<std::string>()), src, dst});
    }
  }

  const GraphInParts& graph() const { return graph_; }

 private:
  GraphInParts graph_;
  std::vector<py::object> arrays_;  // viewed by the maps
};

template <class Id>
py::list to_python(std::vector<PartAsk<Id>>&& asks) {
  py::list asked;
  for (auto& ask : asks) {
    py::list rows;
    for (auto& of : ask.rows) {
      const bool has_streams = of.streams.size() > 0, has_times = of.times.size() > 0, has_windows = of.windows.size() > 0;
      rows.append(py::make_tuple(of.type, to_numpy(std::move(of.ids)), to_numpy_if(has_streams, std::move(of.streams)),
                                 to_numpy_if(has_times, std::move(of.times)), to_numpy_if(has_windows, std::move(of.windows))));
    }
    asked.append(py::make_tuple(ask.part, rows, ask.draws));
  }
  return asked;
}

template <class T>
std::span<const T> answer_view(py::handle given, const char* name) {
  return view(exact<T>(given, std::string(name) + " of an answer"), name);
}

// The caller keeps the arrays, and has checked their dtypes and shapes.
template <class Id>
PartAnswer<Id> part_answer(py::handle given) {
  const auto arrays = given.cast<py::tuple>();
  PartAnswer<Id> answer{answer_view<std::int64_t>(arrays[0], "indptr"), answer_view<Id>(arrays[1], "neighbors"), {}};
  if (!arrays[2].is_none()) answer.edge_ids = answer_view<std::int64_t>(arrays[2], "edge_ids");
  return answer;
}

// HopsOverParts with ids of the graph's dtype, with or without groups. Calls of several threads wait for each other.
class AnyHopsOverParts {
 public:
  AnyHopsOverParts(py::object graph, PartedRequest request, std::optional<GivenGroups> groups, bool narrow)
      : graph_(std::move(graph)), groups_(std::move(groups)), want_edge_ids_(request.want_edge_ids) {
    if (groups_) request.groups = view_of(*groups_);
    if (narrow) {
      make<std::int32_t>(std::move(request));
    } else {
      make<std::int64_t>(std::move(request));
    }
  }

  // Returns the local ids of the seeds, and the requests of the first hop.
  py::tuple start(const GivenSeeds& seeds) {
    const auto wanted = seeds_of(seeds, groups_, graph_.cast<const ArrayGraphInParts&>().graph().node_types.size());
    return std::visit(
        [&](auto& hops) {
          auto [local, asks] = without_gil([&] {
            const std::lock_guard lock(mutex_);
            auto ids = hops->start(wanted);
            return std::make_pair(std::move(ids), hops->has_hop() ? hops->ask() : decltype(hops->ask()){});
          });
          return py::make_tuple(to_python(std::move(local)), to_python(std::move(asks)));
        },
        hops_);
  }

  // Returns the blocks of a hop, and the requests of the next hop; None after the last hop.
  py::tuple advance(const py::list& answers) {
    return std::visit(
        [&]<class Id, class Nodes>(std::unique_ptr<HopsOverParts<Id, Nodes>>& hops) {
          std::vector<PartAnswer<Id>> given;
          for (const auto& answer : answers) given.push_back(part_answer<Id>(answer));
          std::optional<std::vector<PartAsk<Id>>> asks;
          auto blocks = without_gil([&] {
            const std::lock_guard lock(mutex_);
            auto made = hops->take(given);
            if (hops->has_hop()) asks = hops->ask();
            return made;
          });
          py::object next = py::none();
          if (asks) next = to_python(std::move(*asks));
          return py::make_tuple(to_python(std::move(blocks), want_edge_ids_), next);
        },
        hops_);
  }

  // Returns the nodes of each type, and with groups the group of each node.
  py::tuple finish() {
    return std::visit(
        [&](auto& hops) {
          auto found = without_gil([&] {  // who holds the lock must not wait for the GIL, as making Python objects would
            const std::lock_guard lock(mutex_);
            return hops->finish();
          });
          return py::make_tuple(to_python(std::move(found.nodes)), to_python(std::move(found.groups)));
        },
        hops_);
  }

 private:
  template <class Id>
  void make(PartedRequest&& request) {
    const GraphInParts& known = graph_.cast<const ArrayGraphInParts&>().graph();
    if (request.groups) {
      hops_ = std::make_unique<HopsOverParts<Id, NodesOfGroups<Id>>>(known, std::move(request));
    } else {
      hops_ = std::make_unique<HopsOverParts<Id>>(known, std::move(request));
    }
  }

  template <class Id>
  using Plain = std::unique_ptr<HopsOverParts<Id>>;
  template <class Id>
  using Grouped = std::unique_ptr<HopsOverParts<Id, NodesOfGroups<Id>>>;

  py::object graph_;
  const std::optional<GivenGroups> groups_;  // the hops view its arrays
  bool want_edge_ids_;
  std::mutex mutex_;
  std::variant<Plain<std::int32_t>, Plain<std::int64_t>, Grouped<std::int32_t>, Grouped<std::int64_t>> hops_;
};

PartedRequest parted_request(const GraphInParts& graph, const std::vector<std::int64_t>& sampled, const Numbers& fanouts) {
  PartedRequest request;
  request.sampled = sampled_of(sampled, graph.relations.size());
  for (const auto& hop : fanouts) {
    if (hop.size() != sampled.size()) throw std::invalid_argument("give one fanout for each sampled relation of a hop.");
    for (const std::int64_t fanout : hop) checked_fanout(fanout);
  }
  request.fanouts = fanouts;
  return request;
}

}  // namespace

void bind_distributed(py::module_& m) {
  py::class_<ArrayGraphInParts>(m, "GraphInParts")
      .def(py::init<std::int64_t, const py::list&, const py::list&, const std::string&>(), py::arg("num_parts"),
           py::arg("node_types"), py::arg("relations"), py::arg("op"));
  py::class_<AnyHopsOverParts>(m, "HopsOverParts")
      .def(py::init([](py::object graph, const std::vector<std::int64_t>& sampled, const Numbers& fanouts, bool replace,
                       bool only_new, bool want_edge_ids, bool narrow, bool only_among, std::optional<GivenGroups> groups) {
             PartedRequest request = parted_request(graph.cast<const ArrayGraphInParts&>().graph(), sampled, fanouts);
             request.replace = replace;
             request.only_new = only_new;
             request.only_among = only_among;
             request.want_edge_ids = want_edge_ids;
             return std::make_unique<AnyHopsOverParts>(std::move(graph), std::move(request), std::move(groups), narrow);
           }),
           py::arg("graph"), py::kw_only(), py::arg("sampled"), py::arg("fanouts"), py::arg("replace"), py::arg("only_new"),
           py::arg("want_edge_ids"), py::arg("narrow"), py::arg("only_among") = false, py::arg("groups") = py::none())
      .def("start", &AnyHopsOverParts::start, py::arg("seeds").noconvert())
      .def("advance", &AnyHopsOverParts::advance, py::arg("answers"))
      .def("finish", &AnyHopsOverParts::finish);
}

}  // namespace datapipes
