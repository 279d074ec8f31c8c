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

#include "bindings/groups.h"
#include "bindings/numpy.h"
#include "bindings/part_map.h"
#include "distributed/hops_over_parts.h"

namespace datapipes {
namespace {

// A GraphInParts over the arrays of a partition book, which it keeps.
class ArrayGraphInParts {
 public:
  // node_types: (name, num_nodes, map) each, the map of parts as the book stores it; relations: (src, dst, name) each, src and
  // dst being numbers of node types. A homogeneous graph gives the name "". `op` is the stage, for errors.
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
  std::vector<py::object> arrays_;  // which the maps view
};

// HopsOverParts with ids of the graph's dtype, and with groups or without. Calls of several threads wait for each other.
class AnyHopsOverParts {
 public:
  AnyHopsOverParts(py::object graph, PartedRequest request, std::optional<GivenGroups> groups, bool narrow)
      : graph_(std::move(graph)), groups_(std::move(groups)), want_edge_ids_(request.want_edge_ids) {
    if (groups_) request.groups = view_of(*groups_, groups_->of_seeds.size());
    if (narrow) {
      make<std::int32_t>(std::move(request));
    } else {
      make<std::int64_t>(std::move(request));
    }
  }

  // Returns the local ids of the seeds, and what the first hop asks.
  py::tuple start(const std::vector<std::pair<std::int64_t, Array<std::int64_t>>>& seeds) {
    std::vector<Seeds> wanted;
    const auto num_types = graph_.cast<const ArrayGraphInParts&>().graph().node_types.size();
    for (const auto& [type, ids] : seeds) {
      if (type < 0 || static_cast<std::size_t>(type) >= num_types)
        throw std::invalid_argument("no node type has the number " + std::to_string(type) + ".");
      wanted.push_back({static_cast<std::size_t>(type), view(ids, "seeds")});
      if (groups_ && wanted.size() <= groups_->of_seeds.size())
        wanted.back().groups = view(groups_->of_seeds[wanted.size() - 1], "of_seeds");
    }
    return std::visit(
        [&]<class Id, class Nodes>(std::unique_ptr<HopsOverParts<Id, Nodes>>& hops) {
          std::vector<Buffer<Id>> local;
          std::vector<PartAsk<Id>> asks;
          {
            const GilRelease nogil;
            const std::lock_guard lock(mutex_);
            local = hops->start(wanted);
            asks = hops->ask();
          }
          py::list ids;
          for (auto& each : local) ids.append(to_numpy(std::move(each)));
          return py::make_tuple(ids, to_python(std::move(asks)));
        },
        hops_);
  }

  // Returns the blocks of a hop, and what the next one asks; None after the last hop.
  py::tuple advance(const py::list& answers) {
    return std::visit(
        [&]<class Id, class Nodes>(std::unique_ptr<HopsOverParts<Id, Nodes>>& hops) {
          std::vector<std::vector<PartAnswer<Id>>> given;
          for (const auto& answer : answers) given.push_back(part_answers<Id>(answer));
          std::vector<CompactedHop<Id>> blocks;
          std::vector<PartAsk<Id>> asks;
          bool more = false;
          {
            const GilRelease nogil;
            const std::lock_guard lock(mutex_);
            blocks = hops->take(given);
            more = hops->has_hop();
            if (more) asks = hops->ask();
          }
          py::list hop;
          for (auto& block : blocks) {
            py::object edge_ids = py::none();
            if (want_edge_ids_) edge_ids = to_numpy(std::move(block.edge_ids));
            hop.append(
                py::make_tuple(to_numpy(std::move(block.indptr)), to_numpy(std::move(block.indices)), edge_ids, block.num_src));
          }
          py::object next = py::none();
          if (more) next = to_python(std::move(asks));
          return py::make_tuple(hop, next);
        },
        hops_);
  }

  // Returns the nodes of each type, and with groups the group of each node.
  py::tuple finish() {
    return std::visit(
        [&](auto& hops) {
          const std::lock_guard lock(mutex_);
          py::list nodes, groups;
          auto found = hops->finish();
          for (auto& ids : found.nodes) nodes.append(to_numpy(std::move(ids)));
          for (auto& of : found.groups) groups.append(to_numpy(std::move(of)));
          return py::make_tuple(nodes, groups);
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
  static py::list to_python(std::vector<PartAsk<Id>>&& asks) {
    py::list asked;
    for (auto& ask : asks) {
      py::list rows;
      for (auto& of : ask.rows) {
        const auto some = [](auto&& values) -> py::object {
          return values.size() == 0 ? py::none() : py::object(to_numpy(std::move(values)));
        };
        py::object ids = to_numpy(std::move(of.ids));
        rows.append(py::make_tuple(of.type, ids, some(std::move(of.streams)), some(std::move(of.times))));
      }
      asked.append(py::make_tuple(ask.part, rows, ask.draws));
    }
    return asked;
  }

  // The caller keeps the arrays; it has checked that they are what it hands over.
  template <class Id>
  static std::vector<PartAnswer<Id>> part_answers(py::handle answer) {
    std::vector<PartAnswer<Id>> given;
    for (const auto& draw : answer.cast<py::list>()) {
      const auto arrays = draw.cast<py::tuple>();
      PartAnswer<Id> one{answer_view<std::int64_t>(arrays[0], "indptr"), answer_view<Id>(arrays[1], "neighbors"), {}};
      if (!arrays[2].is_none()) one.edge_ids = answer_view<std::int64_t>(arrays[2], "edge_ids");
      given.push_back(one);
    }
    return given;
  }
  template <class T>
  static std::span<const T> answer_view(py::handle given, const char* name) {
    return view(exact<T>(given, std::string("of an answer, ") + name), name);
  }

  template <class Id>
  using Plain = std::unique_ptr<HopsOverParts<Id>>;
  template <class Id>
  using Grouped = std::unique_ptr<HopsOverParts<Id, NodesOfGroups<Id>>>;

  py::object graph_;
  const std::optional<GivenGroups> groups_;  // whose arrays the hops view
  bool want_edge_ids_;
  std::mutex mutex_;
  std::variant<Plain<std::int32_t>, Plain<std::int64_t>, Grouped<std::int32_t>, Grouped<std::int64_t>> hops_;
};

PartedRequest parted_request(const GraphInParts& graph, const std::vector<std::int64_t>& sampled,
                             const std::vector<std::vector<std::int64_t>>& fanouts) {
  PartedRequest request;
  for (const std::int64_t number : sampled) {
    if (number < 0 || number >= std::ssize(graph.relations) ||
        (!request.sampled.empty() && static_cast<std::size_t>(number) <= request.sampled.back()))
      throw std::invalid_argument("sampled relations must ascend, each once, and be in the graph.");
    request.sampled.push_back(static_cast<std::size_t>(number));
  }
  for (const auto& hop : fanouts) {
    if (hop.size() != sampled.size()) throw std::invalid_argument("give one fanout for each sampled relation of a hop.");
    for (const std::int64_t fanout : hop)
      if (fanout < -1)
        throw std::invalid_argument("fanout must be -1 (all in-edges) or more, got " + std::to_string(fanout) + ".");
  }
  if (fanouts.empty()) throw std::invalid_argument("give fanouts for 1 hop or more.");
  request.fanouts = fanouts;
  return request;
}

}  // namespace

void bind_distributed(py::module_& m) {
  py::class_<ArrayGraphInParts>(m, "GraphInParts")
      .def(py::init<std::int64_t, const py::list&, const py::list&, const std::string&>(), py::arg("num_parts"),
           py::arg("node_types"), py::arg("relations"), py::arg("op"));
  py::class_<AnyHopsOverParts>(m, "HopsOverParts")
      .def(py::init([](py::object graph, const std::vector<std::int64_t>& sampled,
                       const std::vector<std::vector<std::int64_t>>& fanouts, bool replace, bool only_new, bool want_edge_ids,
                       bool narrow, std::optional<GivenGroups> groups) {
             PartedRequest request = parted_request(graph.cast<const ArrayGraphInParts&>().graph(), sampled, fanouts);
             request.replace = replace;
             request.only_new = only_new;
             request.want_edge_ids = want_edge_ids;
             return std::make_unique<AnyHopsOverParts>(std::move(graph), std::move(request), std::move(groups), narrow);
           }),
           py::arg("graph"), py::kw_only(), py::arg("sampled"), py::arg("fanouts"), py::arg("replace"), py::arg("only_new"),
           py::arg("want_edge_ids"), py::arg("narrow"), py::arg("groups") = py::none())
      .def("start", &AnyHopsOverParts::start, py::arg("seeds").noconvert())
      .def("advance", &AnyHopsOverParts::advance, py::arg("answers"))
      .def("finish", &AnyHopsOverParts::finish);
}

}  // namespace datapipes
