// inside.h: is_inside(id, count): whether `id` is in [0, count), by one comparison.
//   is_range_inside(begin, end, count): whether [begin, end) ascends within [0, count].
#pragma once

#include <cstdint>

namespace datapipes {

constexpr bool is_inside(std::int64_t id, std::int64_t count) {
  return static_cast<std::uint64_t>(id) < static_cast<std::uint64_t>(count);
}

constexpr bool is_range_inside(std::int64_t begin, std::int64_t end, std::int64_t count) {
  return begin >= 0 && begin <= end && end <= count;
}

}  // namespace datapipes
