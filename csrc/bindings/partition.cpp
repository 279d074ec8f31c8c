// partition.cpp: names, shapes and ownership of the kernels of partitioning.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/numpy.h"
#include "bindings/part_map.h"
#include "bindings/topology.h"
#include "partition/even_parts.h"
#include "partition/fennel.h"
#include "partition/id_rank.h"
#include "partition/split_ids.h"
#include "partition/symmetrise.h"

namespace datapipes {
namespace {

template <class Index>
void bind_symmetrise_for(py::module_& m) {
  m.def(
      "count_neighbors",
      [](const ArrayTopology& graph, Array<Index>& xadj) {
        const auto offsets = writable(xadj, "xadj");
        GilRelease nogil;
        return graph.visit(
            [&](const auto& topology) { return count_neighbors(topology, offsets, [&] { nogil.look_at_signals(); }); });
      },
      py::arg("graph"), py::arg("xadj").noconvert());
  m.def(
      "fill_neighbors",
      [](const ArrayTopology& graph, Array<Index>& xadj, Array<Index>& adjncy) {
        const auto offsets = writable(xadj, "xadj"), neighbors = writable(adjncy, "adjncy");
        GilRelease nogil;
        return graph.visit(
            [&](const auto& topology) { return fill_neighbors(topology, offsets, neighbors, [&] { nogil.look_at_signals(); }); });
      },
      py::arg("graph"), py::arg("xadj").noconvert(), py::arg("adjncy").noconvert());
}

// Keeps the masks of training nodes of all node types; an empty view for None.
class Masks {
 public:
  explicit Masks(const py::list& training) {
    for (const auto& given : training) {
      if (!given.is_none())
        kept_.push_back(exact<std::uint8_t>(given, "Partitioner: a mask of training nodes", "it must be uint8."));
      views_.push_back(given.is_none() ? std::span<const std::uint8_t>() : view(kept_.back(), "training"));
    }
  }
  const TrainingMasks& views() const { return views_; }

 private:
  std::vector<Array<std::uint8_t>> kept_;
  TrainingMasks views_;
};

// A Fennel over NumPy arrays, which it keeps; its parts are uint8 if they fit.
class ArrayFennel {
 public:
  ArrayFennel(py::object graph, std::int64_t num_parts, std::uint64_t key, std::int64_t base, std::int64_t per_edge,
              std::int64_t extra, const py::list& training)
      : graph_(std::move(graph)), masks_(training) {
    FennelRequest request{num_parts, key, base, per_edge, extra, masks_.views()};
    graph_.cast<const ArrayTopology&>().visit([&]<class Id>(const Topology<Id>& topology) {
      if (num_parts < 256) {
        fennel_ = std::make_unique<Fennel<Id, std::uint8_t>>(topology, std::move(request));
      } else {
        fennel_ = std::make_unique<Fennel<Id, std::uint16_t>>(topology, std::move(request));
      }
    });
  }

  template <class Use>
  auto with(Use&& use) {
    return std::visit([&](auto& fennel) { return use(*fennel); }, fennel_);
  }

  py::object parts() {
    return with([this]<class Id, class Part>(const Fennel<Id, Part>& fennel) -> py::object {
      Buffer<Part> out(num_nodes());
      without_gil([&] { fennel.parts({out.data(), static_cast<std::size_t>(out.size())}); });
      return to_numpy(std::move(out));
    });
  }

 private:
  std::int64_t num_nodes() const {
    return graph_.cast<const ArrayTopology&>().visit([](const auto& topology) {
      std::int64_t total = 0;
      for (const auto& type : topology.node_types) total += type.num_nodes;
      return total;
    });
  }

  py::object graph_;
  Masks masks_;
  std::variant<std::unique_ptr<Fennel<std::int32_t, std::uint8_t>>, std::unique_ptr<Fennel<std::int32_t, std::uint16_t>>,
               std::unique_ptr<Fennel<std::int64_t, std::uint8_t>>, std::unique_ptr<Fennel<std::int64_t, std::uint16_t>>>
      fennel_;
};

template <class Part>
void bind_even_for(py::module_& m) {
  m.def(
      "even_parts",
      [](const ArrayTopology& graph, Array<Part>& parts, std::int64_t num_parts, bool nodes, bool edges, std::int64_t more_cut,
         const py::list& training) {
        const auto changed = writable(parts, "parts");
        const Masks masks(training);
        const EvenRequest request{num_parts, nodes, edges, more_cut, masks.views()};
        const auto evened = [&] {
          GilRelease nogil;
          return graph.visit(
              [&](const auto& topology) { return even_parts(topology, changed, request, [&] { nogil.look_at_signals(); }); });
        }();
        const auto tuple_of = [](const Evened::Excess& each) { return py::make_tuple(each.nodes, each.edges, each.training); };
        return py::make_tuple(tuple_of(evened.before), tuple_of(evened.after), evened.cut_before, evened.cut_after);
      },
      py::arg("graph"), py::arg("parts").noconvert(), py::kw_only(), py::arg("num_parts"), py::arg("nodes"), py::arg("edges"),
      py::arg("more_cut"), py::arg("training"));
}

// An IdRank; over the lines of an array it keeps the array.
struct ArrayRank {
  IdRank rank;
  py::object lines;
};

template <class Id, class Class>
void bind_rows_for(Class& of) {
  of.def(
      "rows",
      [](const ArrayRank& of, const Array<Id>& ids, int num_threads) {
        const auto wanted = view(ids, "ids");
        check_threads(num_threads);
        Buffer<std::int64_t> out(std::ssize(wanted));
        without_gil([&] { of.rank.rows(wanted, {out.data(), wanted.size()}, num_threads); });
        return to_numpy(std::move(out));
      },
      py::arg("ids").noconvert(), py::kw_only(), py::arg("num_threads") = 1);
}

void bind_id_rank(py::module_& m) {
  py::class_<ArrayRank> rank(m, "IdRank");
  rank.def(py::init([](const Array<std::int64_t>& ids, std::int64_t num_ids, bool any_order) {
             const auto given = view(ids, "ids");
             const auto order = any_order ? IdRank::Order::kAny : IdRank::Order::kAscending;
             const GilRelease nogil;
             return std::make_unique<ArrayRank>(ArrayRank{IdRank(given, num_ids, order), {}});
           }),
           py::arg("ids").noconvert(), py::arg("num_ids"), py::kw_only(), py::arg("any_order") = false);
  rank.def_static(
      "over",
      [](const Array<std::uint8_t>& lines, std::int64_t num_ids) {
        return std::make_unique<ArrayRank>(ArrayRank{IdRank(std::as_bytes(view(lines, "lines")), num_ids), lines});
      },
      py::arg("lines").noconvert(), py::arg("num_ids"));
  rank.def_static("size_bytes", &IdRank::size_bytes, py::arg("num_ids"));
  rank.def_property_readonly("num_rows", [](const ArrayRank& of) { return of.rank.num_rows(); });
  rank.def(
      "copy_lines",
      [](const ArrayRank& of, Array<std::uint8_t>& out) {
        const auto to = writable(out, "out");
        const auto lines = of.rank.lines();
        if (to.size() != lines.size())
          throw std::invalid_argument("out must have " + std::to_string(lines.size()) + " bytes, got " +
                                      std::to_string(to.size()) + ".");
        if (!lines.empty()) std::memcpy(to.data(), lines.data(), lines.size());
      },
      py::arg("out").noconvert());
  bind_rows_for<std::int32_t>(rank);
  bind_rows_for<std::int64_t>(rank);
}

// A PartMap over an array of a partition book, which it keeps.
struct ArrayPartMap {
  PartMap map;
  py::object array;
};

template <class Id>
void bind_split_for(py::module_& m) {
  m.def(
      "split_ids",
      [](const std::string& op, const ArrayPartMap& owners, const Array<Id>& ids, std::int64_t part, const ArrayRank* rank,
         std::int64_t first, const ArrayRank* hot, int num_threads) {
        const auto wanted = view(ids, "ids");
        check_threads(num_threads);
        const OwnRows own{part, rank == nullptr ? nullptr : &rank->rank, first};
        auto split = without_gil(
            [&] { return split_ids(op.c_str(), owners.map, wanted, own, hot == nullptr ? nullptr : &hot->rank, num_threads); });
        return py::make_tuple(to_numpy(std::move(split.places)), to_numpy(std::move(split.rows)), split.bounds);
      },
      py::arg("op"), py::arg("owners"), py::arg("ids").noconvert(), py::kw_only(), py::arg("part") = -1,
      py::arg("rank") = py::none(), py::arg("first") = 0, py::arg("hot") = py::none(), py::arg("num_threads") = 1);
}

}  // namespace

void bind_partition(py::module_& m) {
  bind_id_rank(m);
  py::class_<ArrayPartMap>(m, "PartMap")
      .def(py::init([](py::object parts, std::int64_t num_parts, std::int64_t num_ids) {
             PartMap map = part_map(parts, num_parts, num_ids);
             return std::make_unique<ArrayPartMap>(ArrayPartMap{std::move(map), std::move(parts)});
           }),
           py::arg("parts"), py::arg("num_parts"), py::arg("num_ids"));
  bind_split_for<std::int32_t>(m);
  bind_split_for<std::int64_t>(m);
  bind_symmetrise_for<std::int32_t>(m);
  bind_symmetrise_for<std::int64_t>(m);
  bind_even_for<std::uint8_t>(m);
  bind_even_for<std::int16_t>(m);
  py::class_<ArrayFennel>(m, "Fennel")
      .def(py::init<py::object, std::int64_t, std::uint64_t, std::int64_t, std::int64_t, std::int64_t, const py::list&>(),
           py::arg("graph"), py::kw_only(), py::arg("num_parts"), py::arg("key"), py::arg("base"), py::arg("per_edge"),
           py::arg("extra"), py::arg("training"))
      .def_property_readonly("num_blocks",
                             [](ArrayFennel& of) { return of.with([](auto& fennel) { return fennel.num_blocks(); }); })
      .def_property_readonly("limit", [](ArrayFennel& of) { return of.with([](auto& fennel) { return fennel.limit(); }); })
      .def(
          "visit",
          [](ArrayFennel& of, std::int64_t first, std::int64_t count) {
            const GilRelease nogil;
            of.with([&](auto& fennel) { fennel.visit(first, count); });
          },
          py::arg("first"), py::arg("count"))
      .def("end_pass", [](ArrayFennel& of) { return of.with([](auto& fennel) { return fennel.end_pass(); }); })
      .def("parts", &ArrayFennel::parts);
}

}  // namespace datapipes
