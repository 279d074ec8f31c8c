// choice.h: the choice of in-edges as Python gives it: an object of EdgeTimes, Weights or Layers, which makes the policy of
// each draw, or None, which draws uniformly.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/numpy.h"
#include "sampling/policy.h"

namespace datapipes {

// The draw that a policy is made for: its hop, its relation (a place among the sampled relations), and their sizes.
struct DrawOf {
  std::size_t hop, relation;
  std::int64_t num_rows, num_edges, num_sources;

  template <class Id>
  static DrawOf rows(const RowView<Id>& rows, std::size_t hop = 0, std::size_t relation = 0) {
    return {hop, relation, rows.num_rows(), std::ssize(rows.indices), rows.num_sources};
  }
};

// The times of the in-edges of relations, the rule by which in-edges are eligible, and perhaps weights.
struct GivenEdgeTimes {
  struct OfRelation {
    Array<std::int64_t> latest;
    std::optional<Array<std::int64_t>> earliest;  // none: equal to `latest`
    Array<std::uint8_t> sorted_rows;
    std::optional<Array<std::int16_t>> coarse;  // of `latest`; they speed up the scan of unsorted rows
    TimeScale scale = {};
  };
  std::vector<std::optional<OfRelation>> relations;  // none: its in-edges have no times
  TimeRule rule;
  std::vector<Array<double>> weights;  // of each relation; empty: all in-edges are equally likely

  void check(std::size_t, std::size_t num_relations) const {
    if (relations.size() != num_relations) throw std::invalid_argument("give edge_times for each sampled relation.");
    if (!weights.empty() && weights.size() != num_relations)
      throw std::invalid_argument("give weights for each sampled relation, or for none.");
  }
  Policy policy(const DrawOf& draw, const Uniform& uniform) const {
    Temporal policy{uniform.fanout, uniform.replace, uniform.key, {}, rule};
    if (rule.last && uniform.replace) throw std::invalid_argument("last in-edges cannot be drawn with replacement.");
    if (!weights.empty()) {
      if (rule.last) throw std::invalid_argument("last in-edges cannot be drawn by weights.");
      const auto of_relation = view(weights[draw.relation], "weights");
      if (std::ssize(of_relation) != draw.num_edges) throw std::invalid_argument("give one weight for each in-edge.");
      policy.weights = of_relation.data();
    }
    const auto& of = relations[draw.relation];
    if (!of) return policy;
    const auto latest = view(of->latest, "latest"), earliest = view(of->earliest.value_or(of->latest), "earliest");
    const auto sorted = view(of->sorted_rows, "sorted_rows");
    if (std::ssize(latest) != draw.num_edges || earliest.size() != latest.size() || std::ssize(sorted) != draw.num_rows)
      throw std::invalid_argument("give one time for each in-edge, and one of sorted_rows for each row.");
    policy.times = {latest.data(), earliest.data(), sorted.data()};
    if (of->coarse) {
      const auto coarse = view(*of->coarse, "coarse");
      if (std::ssize(coarse) != std::ssize(latest) + kCoarsePadding)
        throw std::invalid_argument("give one coarse time for each in-edge, and the padding.");
      policy.times.coarse = coarse.data();
      policy.times.scale = of->scale;
    }
    return policy;
  }
};

// RowSums over NumPy arrays, kept for many calls of the samplers.
class ArrayRowSums {
 public:
  ArrayRowSums(Array<double> sums, Array<double> coarse, std::optional<Array<std::int64_t>> drawable)
      : sums_(std::move(sums)), coarse_(std::move(coarse)), drawable_(std::move(drawable)) {
    view_ = {datapipes::view(sums_, "sums"), datapipes::view(coarse_, "coarse"), {}};
    if (drawable_) view_.drawable = datapipes::view(*drawable_, "drawable");
  }
  const RowSums& sums() const { return view_; }

 private:
  Array<double> sums_, coarse_;
  std::optional<Array<std::int64_t>> drawable_;
  RowSums view_;
};

// The sums of the weights of relations.
struct GivenWeights {
  std::vector<std::shared_ptr<ArrayRowSums>> relations;  // null: drawn uniformly

  void check(std::size_t, std::size_t num_relations) const {
    if (relations.size() != num_relations) throw std::invalid_argument("give weights, or None, for each sampled relation.");
  }
  // Returns null for a relation that is drawn uniformly.
  const RowSums* sums(const DrawOf& draw) const {
    const auto& of = relations[draw.relation];
    if (!of) return nullptr;
    check_row_sums(of->sums(), draw.num_rows, draw.num_edges);
    return &of->sums();
  }
  Policy policy(const DrawOf& draw, const Uniform& uniform) const {
    const RowSums* const of = sums(draw);
    if (of == nullptr) return uniform;
    return Weighted{uniform.fanout, uniform.replace, uniform.key, *of};
  }
};

// The input of LABOR (sampling/labor.h) besides fanouts and keys.
struct GivenLayers {
  using Keys = std::vector<std::vector<std::uint64_t>>;
  std::uint32_t dependency, until_next;
  Keys next_keys, offset_keys;  // of each sampled relation of each hop; empty where the dependency is 1
  GivenWeights weights;         // of no relations: without weights

  void check(std::size_t num_hops, std::size_t num_relations) const {
    if (!weights.relations.empty()) weights.check(num_hops, num_relations);
    if (dependency == 1) return;
    for (const Keys* const keys : {&next_keys, &offset_keys}) {
      const bool fits = std::all_of(keys->begin(), keys->end(), [&](const auto& hop) { return hop.size() == num_relations; });
      if (keys->size() != num_hops || !fits)
        throw std::invalid_argument("give one of next_keys and of offset_keys for each sampled relation of each hop.");
    }
  }
  Policy policy(const DrawOf& draw, const Uniform& uniform) const {
    if (uniform.replace) throw std::invalid_argument("layers are not drawn with replacement.");
    SourceKeys keys{.key = uniform.key, .dependency = dependency, .until_next = until_next};
    if (dependency > 1)
      keys.next_key = next_keys[draw.hop][draw.relation], keys.offset_key = offset_keys[draw.hop][draw.relation];
    keys.wide = draw.num_sources > std::int64_t{1} << 32;
    const RowSums* const sums = weights.relations.empty() ? nullptr : weights.sums(draw);
    return Labor{uniform.fanout, keys, sums == nullptr ? RowSums{} : *sums};
  }
};

using Choice = std::variant<std::monostate, const GivenEdgeTimes*, const GivenWeights*, const GivenLayers*>;

// Throws std::invalid_argument unless the choice fits num_hops hops and num_relations sampled relations.
inline void check_choice(const Choice& choice, std::size_t num_hops, std::size_t num_relations) {
  std::visit(
      [&]<class Given>(const Given& given) {
        if constexpr (!std::is_same_v<Given, std::monostate>) given->check(num_hops, num_relations);
      },
      choice);
}

// The policy of a draw; the choice must have passed check_choice.
inline Policy policy_of(const Choice& choice, const DrawOf& draw, const Uniform& uniform) {
  return std::visit(
      [&]<class Given>(const Given& given) -> Policy {
        if constexpr (std::is_same_v<Given, std::monostate>) {
          return uniform;
        } else {
          return given->policy(draw, uniform);
        }
      },
      choice);
}

inline void bind_choices(py::module_& m) {
  py::class_<GivenEdgeTimes>(m, "EdgeTimes")
      .def(py::init([](const py::list& relations, bool last, bool inclusive, std::optional<std::int64_t> window,
                       const py::list& weights) {
             if (window && *window < 0)
               throw std::invalid_argument("window must be 0 or more, got " + std::to_string(*window) + ".");
             GivenEdgeTimes given{{}, {last, inclusive, window.value_or(-1)}, {}};
             for (const auto& each : weights) given.weights.push_back(exact<double>(each, "weights"));
             for (const auto& each : relations) {
               given.relations.emplace_back();
               if (each.is_none()) continue;
               const auto parts = each.cast<py::tuple>();
               auto& of = given.relations.back();
               of = {exact<std::int64_t>(parts[0], "latest"), std::nullopt, exact<std::uint8_t>(parts[2], "sorted_rows"),
                     std::nullopt};
               if (!parts[1].is_none()) of->earliest = exact<std::int64_t>(parts[1], "earliest");
               if (parts[3].is_none()) continue;
               const auto coarse = parts[3].cast<py::tuple>();
               of->coarse = exact<std::int16_t>(coarse[0], "coarse");
               of->scale = {coarse[1].cast<std::int64_t>(), coarse[2].cast<int>()};
               if (of->scale.shift < 0 || of->scale.shift > 63) throw std::invalid_argument("shift must be in [0, 64).");
             }
             return given;
           }),
           py::arg("relations"), py::kw_only(), py::arg("last") = false, py::arg("inclusive") = false,
           py::arg("window") = py::none(), py::arg("weights") = py::list());
  py::class_<ArrayRowSums, std::shared_ptr<ArrayRowSums>>(m, "RowSums")
      .def(py::init<Array<double>, Array<double>, std::optional<Array<std::int64_t>>>(), py::arg("sums").noconvert(),
           py::arg("coarse").noconvert(), py::arg("drawable").noconvert() = py::none());
  py::class_<GivenWeights>(m, "Weights")
      .def(py::init([](std::vector<std::shared_ptr<ArrayRowSums>> relations) { return GivenWeights{std::move(relations)}; }),
           py::arg("relations"));
  py::class_<GivenLayers>(m, "Layers")
      .def(py::init([](std::uint32_t dependency, std::uint32_t until_next, GivenLayers::Keys next_keys,
                       GivenLayers::Keys offset_keys, std::vector<std::shared_ptr<ArrayRowSums>> weights) {
             if (dependency < 1 || dependency >= std::uint32_t{1} << 31 || until_next < 1 || until_next > dependency)
               throw std::invalid_argument("dependency must be in [1, 2^31 - 1], and until_next in [1, dependency].");
             return GivenLayers{dependency, until_next, std::move(next_keys), std::move(offset_keys), {std::move(weights)}};
           }),
           py::kw_only(), py::arg("dependency"), py::arg("until_next"), py::arg("next_keys"), py::arg("offset_keys"),
           py::arg("weights") = std::vector<std::shared_ptr<ArrayRowSums>>{});
}

}  // namespace datapipes
