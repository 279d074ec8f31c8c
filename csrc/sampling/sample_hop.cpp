#include "sampling/sample_hop.h"

#include <algorithm>

namespace datapipes {

template <class Id>
SampledHop<Id> sample_hop(CscView<Id> graph, std::span<const std::int64_t> seeds, const HopRequest& request) {
  HopDrawer<Id, std::int64_t> drawer("sample_hop", graph);
  SampledHop<Id> hop{.indptr = drawer.plan(seeds, 0, request), .neighbors = {}, .positions = {}};
  const std::int64_t num_picks = hop.indptr[std::ssize(seeds)];
  hop.neighbors = Buffer<Id>(num_picks);
  hop.positions = Buffer<std::int64_t>(num_picks);
  drawer.draw(
      seeds, 0, request, hop.indptr, [](Id) {},
      [&](std::int64_t offset, std::span<const Id> neighbors, std::span<const std::int64_t> positions) {
        std::copy(neighbors.begin(), neighbors.end(), hop.neighbors.data() + offset);
        std::copy(positions.begin(), positions.end(), hop.positions.data() + offset);
      });
  return hop;
}

template SampledHop<std::int32_t> sample_hop(CscView<std::int32_t>, std::span<const std::int64_t>, const HopRequest&);
template SampledHop<std::int64_t> sample_hop(CscView<std::int64_t>, std::span<const std::int64_t>, const HopRequest&);

}  // namespace datapipes
