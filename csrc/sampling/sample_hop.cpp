#include "sampling/sample_hop.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/load.h"
#include "sampling/draw_hop.h"
#include "sampling/hop_room.h"

namespace datapipes {
namespace {

constexpr const char* kOp = "sample_hop";

// Replaces checked positions by edge ids. A separate pass keeps more cache misses under way than a look-up block by block,
// since no block waits for its last miss.
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

void check_lengths(std::size_t num_rows, std::size_t found, const char* name) {
  if (found != 0 && found != num_rows)
    throw std::invalid_argument(std::string("sample_hop: give one of ") + name + " for each row.");
}

// Draws with a policy; `held`: the picks and columns of earlier draws.
template <class Id, class Chosen>
SampledHop<Id> draw_with(const Chosen& policy, const HopDraw<Id>& from, const SeedColumns& columns, Places places,
                         const HopRoom& room, std::int64_t held, int threads) {
  const Range all{0, columns.count()};
  auto plan = plan_hop(kOp, from.relation, columns, {&all, 1}, policy, threads);
  const std::int64_t num_picks = plan.num_picks(), num_places = places == Places::kNone ? 0 : num_picks;
  const std::int64_t pick_bytes = sizeof(Id) + (places == Places::kNone ? 0 : sizeof(std::int64_t));
  check_hop_room(room, plan, pick_bytes, held);
  SampledHop<Id> hop{.indptr = {}, .neighbors = Buffer<Id>(num_picks), .positions = Buffer<std::int64_t>(num_places)};
  std::int64_t* const out = hop.positions.data();
  const auto draw = [&](auto&& on_block) {
    draw_on_threads(kOp, from.relation, plan, policy, num_picks < kParallelPicks ? 1 : threads, hop.neighbors.data(), on_block,
                    [](std::int64_t, std::int64_t) {});
  };
  using Ids = std::span<const Id>;
  using Positions = std::span<const std::int64_t>;
  if (places == Places::kNone) {
    draw([](std::int64_t, Ids, Positions) {});
  } else {
    draw([&](std::int64_t offset, Ids, Positions positions) { std::copy(positions.begin(), positions.end(), out + offset); });
  }
  if (places == Places::kEdgeIds && !from.edge_ids.empty())
    look_up_edge_ids(from.edge_ids, {out, static_cast<std::size_t>(num_places)}, threads);
  hop.indptr = std::move(plan.indptr);
  return hop;
}

template <class T>
void append(T* to, const Buffer<T>& values) {
  std::copy_n(values.data(), values.size(), to);
}

// Concatenates hops. A hop is held until it is copied, so there must be room for all picks twice.
template <class Id>
SampledHop<Id> joined(std::vector<SampledHop<Id>>&& hops, const HopRoom& room) {
  if (hops.size() == 1) return std::move(hops.front());
  std::int64_t num_rows = 0, num_picks = 0, num_places = 0;
  for (const auto& hop : hops) {
    num_rows += hop.indptr.size() - 1;
    num_picks += hop.neighbors.size();
    num_places += hop.positions.size();
  }
  if (num_picks >= kPicksUnchecked) room.check(num_picks, 0, sizeof(Id) + (num_places > 0 ? sizeof(std::int64_t) : 0));
  SampledHop<Id> all{.indptr = Buffer<std::int64_t>(num_rows + 1),
                     .neighbors = Buffer<Id>(num_picks),
                     .positions = Buffer<std::int64_t>(num_places)};
  std::int64_t row = 0, pick = 0, place = 0;
  all.indptr[0] = 0;
  for (auto& each : hops) {
    const SampledHop<Id> hop = std::move(each);  // freed as soon as it is copied
    for (std::int64_t i = 1; i < hop.indptr.size(); ++i) all.indptr[++row] = pick + hop.indptr[i];
    append(all.neighbors.data() + pick, hop.neighbors);
    append(all.positions.data() + place, hop.positions);
    pick += hop.neighbors.size();
    place += hop.positions.size();
  }
  return all;
}

}  // namespace

template <class Id>
SampledHop<Id> sample_hops(std::span<const HopRows> nodes, std::span<const HopDraw<Id>> draws, Places places, int threads) {
  std::vector<Buffer<std::int64_t>> rows;
  std::vector<SeedColumns> columns;
  for (const HopRows& of : nodes) {
    check_lengths(of.rows.size(), of.ids.size(), "ids");
    check_lengths(of.rows.size(), of.streams.size(), "streams");
    check_lengths(of.rows.size(), of.times.size(), "times");
    check_lengths(of.rows.size(), of.windows.size(), "windows");
    // The plan and the draw must see the same rows, so these are copied; the given rows may be overwritten. A change of the
    // other arrays only changes the choice of in-edges.
    auto& kept = rows.emplace_back(std::ssize(of.rows));
    std::transform(of.rows.begin(), of.rows.end(), kept.data(), read_once<std::int64_t>);
    columns.push_back({{kept.data(), of.rows.size()}, of.ids, of.streams, of.times, of.windows});
  }
  std::vector<SampledHop<Id>> hops;
  HopRoom room{kOp, 0, 0, false};  // of the last draw
  std::int64_t held = 0;
  for (const HopDraw<Id>& from : draws) {
    if (!from.edge_ids.empty() && from.edge_ids.size() != from.relation.indices.size())
      throw std::invalid_argument("sample_hop: give one of edge_ids for each edge.");
    const SeedColumns& of = columns[from.nodes];
    hops.push_back(std::visit(
        [&](const auto& chosen) {
          room = {kOp, 0, chosen.fanout, chosen.replace};
          return draw_with(chosen, from, of, places, room, held, threads);
        },
        from.policy));
    held += hops.back().neighbors.size() + of.count();
  }
  return joined(std::move(hops), room);
}

template SampledHop<std::int32_t> sample_hops(std::span<const HopRows>, std::span<const HopDraw<std::int32_t>>, Places, int);
template SampledHop<std::int64_t> sample_hops(std::span<const HopRows>, std::span<const HopDraw<std::int64_t>>, Places, int);

}  // namespace datapipes
