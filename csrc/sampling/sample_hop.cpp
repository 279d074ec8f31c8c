#include "sampling/sample_hop.h"

#include <algorithm>

#include "sampling/draw_hop.h"
#include "sampling/hop_room.h"

namespace datapipes {

template <class Id>
SampledHop<Id> sample_hop(const RowView<Id>& rows, std::span<const std::int64_t> seeds, const Uniform& policy, int threads) {
  constexpr const char* kOp = "sample_hop";
  auto plan = plan_hop(kOp, rows, seeds, 0, policy, threads);
  const std::int64_t num_picks = plan.num_picks();
  check_hop_room(HopRoom{kOp, 0, policy.fanout, policy.replace}, plan, sizeof(Id) + sizeof(std::int64_t));
  SampledHop<Id> hop{.indptr = {}, .neighbors = Buffer<Id>(num_picks), .positions = Buffer<std::int64_t>(num_picks)};
  draw_on_threads(
      kOp, rows, plan, policy, num_picks < kParallelPicks ? 1 : threads, hop.neighbors.data(),
      [&](std::int64_t offset, std::span<const Id>, std::span<const std::int64_t> positions) {
        std::copy(positions.begin(), positions.end(), hop.positions.data() + offset);
      },
      [](std::int64_t, std::int64_t) {});
  hop.indptr = std::move(plan.indptr);
  return hop;
}

template SampledHop<std::int32_t> sample_hop(const RowView<std::int32_t>&, std::span<const std::int64_t>, const Uniform&, int);
template SampledHop<std::int64_t> sample_hop(const RowView<std::int64_t>&, std::span<const std::int64_t>, const Uniform&, int);

}  // namespace datapipes
