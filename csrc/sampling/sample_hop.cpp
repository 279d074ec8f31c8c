#include "sampling/sample_hop.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "common/load.h"
#include "sampling/draw_hop.h"
#include "sampling/hop_room.h"

namespace datapipes {
namespace {

// Puts edge ids in the place of checked positions. A pass of its own keeps more cache misses under way than a look-up block
// by block does, since no block waits for its last miss.
void look_up_edge_ids(std::span<const std::int64_t> edge_ids, std::span<std::int64_t> positions, int threads) {
  constexpr std::int64_t kAhead = 48, kAtOnce = 1 << 14;
  in_turns(std::ssize(positions), kAtOnce, std::min(threads, kMostDrawers), [&](std::int64_t begin, std::int64_t end) {
    std::int64_t* const at = positions.data();
    for (std::int64_t i = begin; i < end; ++i) {
      if (i + kAhead < end) __builtin_prefetch(&edge_ids[static_cast<std::size_t>(at[i + kAhead])]);
      at[i] = edge_ids[static_cast<std::size_t>(at[i])];
    }
  });
}

void check_lengths(std::size_t num_seeds, std::size_t found, const char* name) {
  if (found != 0 && found != num_seeds)
    throw std::invalid_argument(std::string("sample_hop: give one of ") + name + " for each seed.");
}

template <class Id, class Chosen>
SampledHop<Id> draw_with(const Chosen& policy, const RowView<Id>& rows, const SeedColumns& columns, const HopPlaces& places,
                         int threads) {
  constexpr const char* kOp = "sample_hop";
  auto plan = plan_hop(kOp, rows, columns, 0, policy, threads);
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
  } else {
    draw([&](std::int64_t offset, Ids, Positions positions) { std::copy(positions.begin(), positions.end(), out + offset); });
  }
  if (places.wanted == Places::kEdgeIds) look_up_edge_ids(places.edge_ids, {out, static_cast<std::size_t>(num_places)}, threads);
  hop.indptr = std::move(plan.indptr);
  return hop;
}

}  // namespace

template <class Id>
SampledHop<Id> sample_hop(const RowView<Id>& rows, const HopRows& of, const Policy& policy, const HopPlaces& places,
                          int threads) {
  check_lengths(of.seeds.size(), of.seed_ids.size(), "seed_ids");
  check_lengths(of.seeds.size(), of.streams.size(), "streams");
  check_lengths(of.seeds.size(), of.times.size(), "times");
  if (places.wanted == Places::kEdgeIds && places.edge_ids.size() != rows.indices.size())
    throw std::invalid_argument("sample_hop: give one of edge_ids for each edge.");
  // The plan and the draw look at the same rows, whoever overwrites the given ones; the others only choose among in-edges.
  Buffer<std::int64_t> seeds(std::ssize(of.seeds));
  std::transform(of.seeds.begin(), of.seeds.end(), seeds.data(), read_once<std::int64_t>);
  const SeedColumns columns{{seeds.data(), of.seeds.size()}, of.seed_ids, of.streams, of.times};
  return std::visit([&](const auto& chosen) { return draw_with(chosen, rows, columns, places, threads); }, policy);
}

template SampledHop<std::int32_t> sample_hop(const RowView<std::int32_t>&, const HopRows&, const Policy&, const HopPlaces&, int);
template SampledHop<std::int64_t> sample_hop(const RowView<std::int64_t>&, const HopRows&, const Policy&, const HopPlaces&, int);

}  // namespace datapipes
