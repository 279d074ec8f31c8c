// range.h: places [begin, end) of the nodes of a minibatch. Padding leaves gaps between ranges (padded_layers.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace datapipes {

struct Range {
  std::int64_t begin, end;
};

template <class Use>
void for_each_in(std::span<const Range> ranges, Use&& use) {
  for (const Range range : ranges)
    for (std::int64_t place = range.begin; place < range.end; ++place) use(static_cast<std::size_t>(place));
}

}  // namespace datapipes
