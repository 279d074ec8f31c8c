#include "sampling/sample_hop.h"

#include <algorithm>

#include "sampling/hop_room.h"

namespace datapipes {

template <class Id>
SampledHop<Id> sample_hop(CscView<Id> graph, std::span<const std::int64_t> seeds, const HopRequest& request, int threads) {
  constexpr const char* kOp = "sample_hop";
  auto plan = plan_hop(kOp, graph, seeds, 0, request, threads);
  const std::int64_t num_picks = plan.num_picks();
  check_hop_room(HopRoom{kOp, 0, request.fanout, request.replace}, plan, sizeof(Id) + sizeof(std::int64_t));
  SampledHop<Id> hop{.indptr = {}, .neighbors = Buffer<Id>(num_picks), .positions = Buffer<std::int64_t>(num_picks)};
  draw_on_threads(
      kOp, graph, plan, request, num_picks < kParallelPicks ? 1 : threads, hop.neighbors.data(),
      [&](std::int64_t offset, std::span<const Id>, std::span<const std::int64_t> positions) {
        std::copy(positions.begin(), positions.end(), hop.positions.data() + offset);
      },
      [](std::int64_t, std::int64_t) {});
  hop.indptr = std::move(plan.indptr);
  return hop;
}

template SampledHop<std::int32_t> sample_hop(CscView<std::int32_t>, std::span<const std::int64_t>, const HopRequest&, int);
template SampledHop<std::int64_t> sample_hop(CscView<std::int64_t>, std::span<const std::int64_t>, const HopRequest&, int);

}  // namespace datapipes
