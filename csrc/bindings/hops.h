// hops.h: arguments and results of samplers, over a whole graph and over parts: relations, fanouts, seeds, groups, blocks.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/numpy.h"
#include "sampling/hops.h"

namespace datapipes {

using Numbers = std::vector<std::vector<std::int64_t>>;                        // of each hop and relation
using GivenSeeds = std::vector<std::pair<std::int64_t, Array<std::int64_t>>>;  // number of a node type, ids

// The groups of the seeds of a minibatch (sampling/columns.h).
struct GivenGroups {
  std::vector<Array<std::int64_t>> of_seeds;  // for each entry of the seeds: the group of each seed
  std::int64_t count;
  std::optional<Array<std::uint32_t>> streams;
  std::optional<Array<std::int64_t>> times, windows;
};

// Time windows, each 0 or more.
inline std::span<const std::int64_t> checked_windows(const std::optional<Array<std::int64_t>>& given) {
  const auto windows = view(given, "windows");
  for (const std::int64_t window : windows)
    if (window < 0) throw std::invalid_argument("windows must be 0 or more, got " + std::to_string(window) + ".");
  return windows;
}

inline Groups view_of(const GivenGroups& given) {
  return {.count = given.count,
          .streams = view(given.streams, "streams"),
          .times = view(given.times, "times"),
          .windows = checked_windows(given.windows)};
}

inline std::vector<Seeds> seeds_of(const GivenSeeds& given, const std::optional<GivenGroups>& groups, std::size_t num_types) {
  if (groups && groups->of_seeds.size() != given.size()) throw std::invalid_argument("give groups for each entry of the seeds.");
  std::vector<Seeds> seeds;
  for (const auto& [type, ids] : given) {
    if (type < 0 || static_cast<std::size_t>(type) >= num_types)
      throw std::invalid_argument("no node type has the number " + std::to_string(type) + ".");
    Seeds of_type{static_cast<std::size_t>(type), view(ids, "seeds")};
    if (groups) of_type.groups = view(groups->of_seeds[seeds.size()], "of_seeds");
    seeds.push_back(of_type);
  }
  return seeds;
}

// The numbers of the sampled relations, checked against `count`.
inline std::vector<std::size_t> sampled_of(const std::vector<std::int64_t>& given, std::size_t count) {
  std::vector<std::size_t> sampled;
  for (const std::int64_t number : given) {
    if (number < 0 || static_cast<std::size_t>(number) >= count)
      throw std::invalid_argument("no relation has the number " + std::to_string(number) + "; there are " +
                                  std::to_string(count) + ".");
    if (!sampled.empty() && static_cast<std::size_t>(number) <= sampled.back())
      throw std::invalid_argument("sampled relations must ascend, each once.");
    sampled.push_back(static_cast<std::size_t>(number));
  }
  return sampled;
}

inline std::int64_t checked_fanout(std::int64_t fanout) {
  if (fanout < -1) throw std::invalid_argument("fanout must be -1 (all in-edges) or more, got " + std::to_string(fanout) + ".");
  return fanout;
}

template <class T>
py::list to_python(std::vector<Buffer<T>>&& arrays) {
  py::list list;
  for (auto& each : arrays) list.append(to_numpy(std::move(each)));
  return list;
}

template <class Id>
py::list to_python(std::vector<CompactedHop<Id>>&& blocks, bool want_edge_ids) {
  py::list hop;
  for (auto& block : blocks) {
    hop.append(py::make_tuple(to_numpy(std::move(block.indptr)), to_numpy(std::move(block.indices)),
                              to_numpy_if(want_edge_ids, std::move(block.edge_ids)), block.num_src));
  }
  return hop;
}

inline void bind_groups(py::module_& m) {
  py::class_<GivenGroups>(m, "Groups")
      .def(py::init([](std::vector<Array<std::int64_t>> of_seeds, std::int64_t count, std::optional<Array<std::uint32_t>> streams,
                       std::optional<Array<std::int64_t>> times, std::optional<Array<std::int64_t>> windows) {
             if (count < 0) throw std::invalid_argument("count must be 0 or more, got " + std::to_string(count) + ".");
             return GivenGroups{std::move(of_seeds), count, std::move(streams), std::move(times), std::move(windows)};
           }),
           py::arg("of_seeds").noconvert(), py::kw_only(), py::arg("count"), py::arg("streams").noconvert() = py::none(),
           py::arg("times").noconvert() = py::none(), py::arg("windows").noconvert() = py::none());
}

}  // namespace datapipes
