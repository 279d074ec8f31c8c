// layers.h: what LABOR (sampling/labor.h) needs besides fanouts and keys, as it comes from Python.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bindings/topology.h"
#include "sampling/sample_neighbors.h"

namespace datapipes {

namespace py = pybind11;

struct Layers {
  std::uint32_t dependency, until_next;
  std::vector<std::vector<std::uint64_t>> next_keys, offset_keys;  // as `keys`; empty where the dependency is 1
};

// The policy of LABOR for the draw `i` of hop `h`, of sources in [0, num_sources).
inline Labor labor(const Layers& layers, const Uniform& of, std::size_t h, std::size_t i, std::int64_t num_sources) {
  SourceKeys keys{.key = of.key, .dependency = layers.dependency, .until_next = layers.until_next};
  if (layers.dependency > 1) keys.next_key = layers.next_keys[h][i], keys.offset_key = layers.offset_keys[h][i];
  keys.wide = num_sources > std::int64_t{1} << 32;
  return {of.fanout, keys};
}

// The policy of LABOR for the one draw of a hop.
inline Labor labor_of_hop(const Layers& layers, const Uniform& of, std::int64_t num_sources) {
  if (of.replace) throw std::invalid_argument("layers are not drawn with replacement.");
  for (const auto* const keys : {&layers.next_keys, &layers.offset_keys})
    if (layers.dependency > 1 && (keys->size() != 1 || keys->front().size() != 1))
      throw std::invalid_argument("give one of next_keys and of offset_keys.");
  return labor(layers, of, 0, 0, num_sources);
}

// Makes the policies of a request, which has fanouts and keys, those of LABOR.
inline void use_layers(NeighborsRequest& request, const Layers& layers, const ArrayTopology& graph) {
  const auto num_sources = [&](std::size_t relation) {
    return graph.visit([&](const auto& topology) { return topology.relations[relation].rows.num_sources; });
  };
  const bool lasting = layers.dependency > 1;
  for (std::size_t h = 0; h < request.hops.size(); ++h) {
    auto& hop = request.hops[h];
    for (const auto* const keys : {&layers.next_keys, &layers.offset_keys})
      if (lasting && (keys->size() != request.hops.size() || (*keys)[h].size() != hop.size()))
        throw std::invalid_argument("give next_keys and offset_keys for each sampled relation of each hop.");
    for (std::size_t i = 0; i < hop.size(); ++i) {
      if (!std::holds_alternative<Uniform>(hop[i])) throw std::invalid_argument("layers go with no other choice of in-edges.");
      hop[i] = labor(layers, std::get<Uniform>(hop[i]), h, i, num_sources(request.sampled[i]));
    }
  }
}

inline void bind_layers(py::module_& m) {
  py::class_<Layers>(m, "Layers")
      .def(py::init([](std::uint32_t dependency, std::uint32_t until_next, std::vector<std::vector<std::uint64_t>> next_keys,
                       std::vector<std::vector<std::uint64_t>> offset_keys) {
             if (dependency < 1 || dependency >= std::uint32_t{1} << 31 || until_next < 1 || until_next > dependency)
               throw std::invalid_argument("dependency must be in [1, 2^31 - 1], and until_next in [1, dependency].");
             return Layers{dependency, until_next, std::move(next_keys), std::move(offset_keys)};
           }),
           py::kw_only(), py::arg("dependency"), py::arg("until_next"), py::arg("next_keys"), py::arg("offset_keys"));
}

}  // namespace datapipes
