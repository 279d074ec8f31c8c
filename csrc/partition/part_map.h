// part_map.h: the part that owns each id: one value for each id, or contiguous ranges of ids.
//   Three kinds: uint8 or int16 [num_ids], the part of each id; int64 [num_parts + 1], from 0, not descending: part p has the
//   ids in [bounds[p], bounds[p + 1]).
//   A kernel visits the map once and then looks up many ids: prefetch(id) some ids ahead, then part(id). Both take only ids
//   in [0, num_ids()). part(id) is in [0, num_parts), or negative if the values are corrupt; a caller must check that.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>

namespace datapipes {

template <class Part>
struct DenseParts {
  std::span<const Part> parts;
  std::int64_t num_parts;

  std::int64_t num_ids() const { return std::ssize(parts); }
  void prefetch(std::int64_t id) const { __builtin_prefetch(parts.data() + id); }
  std::int64_t part(std::int64_t id) const {
    const auto found = static_cast<std::int64_t>(parts[static_cast<std::size_t>(id)]);
    return found < num_parts ? found : -1;
  }
};

struct RangeParts {
  std::span<const std::int64_t> bounds;  // at least 2

  std::int64_t num_ids() const { return bounds.back(); }
  void prefetch(std::int64_t) const {}  // the bounds are few, and stay in the cache
  std::int64_t part(std::int64_t id) const {
    const auto inner = bounds.subspan(1, bounds.size() - 2);
    return std::upper_bound(inner.begin(), inner.end(), id) - inner.begin();
  }
};

using PartMap = std::variant<DenseParts<std::uint8_t>, DenseParts<std::int16_t>, RangeParts>;

}  // namespace datapipes
