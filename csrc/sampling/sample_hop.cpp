#include "sampling/sample_hop.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "sampling/draw_hop.h"
#include "sampling/hop_room.h"

namespace datapipes {

template <class Id>
SampledHop<Id> sample_hop(const RowView<Id>& rows, const HopRows& of, const Uniform& policy, const HopPlaces& places,
                          int threads) {
  constexpr const char* kOp = "sample_hop";
  if (!of.seed_ids.empty() && of.seed_ids.size() != of.seeds.size())
    throw std::invalid_argument("sample_hop: give one of seed_ids for each seed.");
  if (places.wanted == Places::kEdgeIds && places.edge_ids.size() != rows.indices.size())
    throw std::invalid_argument("sample_hop: give one of edge_ids for each edge.");
  auto plan = plan_hop(kOp, rows, of.seeds, 0, policy, threads);
  plan.ids = of.seed_ids;
  const std::int64_t num_picks = plan.num_picks(), num_places = places.wanted == Places::kNone ? 0 : num_picks;
  check_hop_room(HopRoom{kOp, 0, policy.fanout, policy.replace}, plan, sizeof(Id) + (num_places > 0 ? sizeof(std::int64_t) : 0));
  SampledHop<Id> hop{.indptr = {}, .neighbors = Buffer<Id>(num_picks), .positions = Buffer<std::int64_t>(num_places)};
  std::int64_t* const out = hop.positions.data();
  const auto draw = [&](auto&& on_block) {
    draw_on_threads(kOp, rows, plan, policy, num_picks < kParallelPicks ? 1 : threads, hop.neighbors.data(), on_block,
                    [](std::int64_t, std::int64_t) {});
  };
  using Ids = std::span<const Id>;
  using Positions = std::span<const std::int64_t>;
  if (places.wanted == Places::kNone) {
    draw([](std::int64_t, Ids, Positions) {});
  } else if (places.wanted == Places::kPositions) {
    draw([&](std::int64_t offset, Ids, Positions positions) { std::copy(positions.begin(), positions.end(), out + offset); });
  } else {
    draw([&](std::int64_t offset, Ids, Positions positions) { copy_edge_ids(places.edge_ids, positions, out + offset); });
  }
  hop.indptr = std::move(plan.indptr);
  return hop;
}

template SampledHop<std::int32_t> sample_hop(const RowView<std::int32_t>&, const HopRows&, const Uniform&, const HopPlaces&, int);
template SampledHop<std::int64_t> sample_hop(const RowView<std::int64_t>&, const HopRows&, const Uniform&, const HopPlaces&, int);

}  // namespace datapipes
