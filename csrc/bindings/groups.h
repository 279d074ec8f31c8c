// groups.h: the groups of a minibatch's seeds (sampling/columns.h), for the bindings of all samplers.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <vector>

#include "bindings/numpy.h"
#include "sampling/columns.h"

namespace datapipes {

// The groups of a minibatch, as they come from Python.
struct GivenGroups {
  std::vector<Array<std::int64_t>> of_seeds;  // for each entry of the seeds: the group of each seed
  std::int64_t count;
  std::optional<Array<std::uint32_t>> streams;
  std::optional<Array<std::int64_t>> times;
};

inline Groups view_of(const GivenGroups& given, std::size_t num_entries) {
  if (given.of_seeds.size() != num_entries) throw std::invalid_argument("give groups for each entry of the seeds.");
  Groups groups{.count = given.count};
  if (given.streams) groups.streams = view(*given.streams, "streams");
  if (given.times) groups.times = view(*given.times, "times");
  return groups;
}

}  // namespace datapipes
