#include "sampling/sample_neighbors.h"

#include <algorithm>
#include <string>
#include <utility>

#include "sampling/draw_hop.h"
#include "sampling/hop_room.h"

namespace datapipes {
namespace {

void write_edge_ids(std::span<const std::int64_t> edge_ids, std::span<const std::int64_t> positions, std::int64_t* out) {
  if (edge_ids.empty()) {
    std::copy(positions.begin(), positions.end(), out);
    return;
  }
  for (const std::int64_t position : positions) __builtin_prefetch(&edge_ids[static_cast<std::size_t>(position)]);
  for (const std::int64_t position : positions) *out++ = edge_ids[static_cast<std::size_t>(position)];
}

// Draws the block of a relation.
template <class Id, class Nodes, class Chosen>
CompactedHop<Id> draw_block(Hops<Id, Nodes>& hops, const Relation<Id>& relation, const Chosen& policy,
                            const NeighborsRequest& request, std::size_t hop) {
  using Key = typename Nodes::Key;
  const std::string named_op = named(request.op, relation.name);
  const char* const op = named_op.c_str();
  const auto lay_out = [&] {
    const auto columns = hops.nodes().columns(hops.destinations(relation.dst));
    return plan_hop(op, relation.rows, columns, hops.columns(relation.dst), policy, request.threads);
  };
  const auto draw = [&](const auto& plan, auto& numbering, auto& map, const auto& picks) {
    Key* const found = picks.keys;
    Id* const indices = picks.local;
    std::int64_t* const edge_ids = picks.edge_ids;
    const auto on_block = [&](std::int64_t offset, std::span<const std::int64_t> positions) {
      if (request.want_edge_ids) write_edge_ids(relation.edge_ids, positions, edge_ids + offset);
    };
    if (request.threads > 1 && plan.num_picks() >= kParallelPicks) {
      draw_on_threads(
          op, relation.rows, plan, policy, request.threads, found,
          [&](std::int64_t offset, std::span<const Key>, std::span<const std::int64_t> positions) {
            on_block(offset, positions);
          },
          [&](std::int64_t begin, std::int64_t end) {
            numbering.number_ahead(map, std::span<const Key>(found + begin, static_cast<std::size_t>(end - begin)),
                                   indices + begin);
          });
    } else {  // prefetch the map entries of a block while it is drawn, then number it
      thread_drawer<Id, Chosen>().draw(
          op, relation.rows, plan, policy, plan.first, plan.num_dst(),
          found, [&](Key key) __attribute__((always_inline)) { map.prefetch(key); },
          [&](std::int64_t offset, std::span<const Key> picked, std::span<const std::int64_t> positions) {
            numbering.number(map, picked, indices + offset);
            on_block(offset, positions);
          });
    }
  };
  const auto draw_among = [&](const auto& plan, const Numbering<Key>& numbering, EdgesAmong<Id>& edges) {
    std::vector<EdgesAmong<Id>> of_ranges(static_cast<std::size_t>(plan.num_ranges()));
    const auto of = [&](std::int64_t range) -> EdgesAmong<Id>& { return of_ranges[static_cast<std::size_t>(range)]; };
    in_order(
        plan.num_ranges(), plan.num_picks() < kParallelPicks ? 1 : std::min(request.threads, kMostDrawers),
        [&](std::int64_t range) {
          const std::int64_t begin = plan.range_begin(range), end = plan.range_begin(range + 1);
          Buffer<Key> keys(plan.indptr[end] - plan.indptr[begin]);
          thread_drawer<Id, Chosen>().draw(
              op, relation.rows, plan, policy, begin, end, keys.data(), [](Key) {},
              [&](std::int64_t offset, std::span<const Key> picked, std::span<const std::int64_t> positions) {
                of(range).take(numbering, offset, picked, request.want_edge_ids ? positions.data() : nullptr);
              });
        },
        [&](std::int64_t range) { edges.append(std::exchange(of(range), {})); });
    if (!relation.edge_ids.empty())
      for (std::int64_t& id : edges.edge_ids) id = relation.edge_ids[static_cast<std::size_t>(id)];
  };
  const HopRoom room{op, static_cast<std::int64_t>(hop), policy.fanout, policy.replace};
  return hops.block(room, relation.src, relation.dst, lay_out, draw, draw_among);
}

template <class Id, class Nodes>
Neighborhood<Id> sample(const Topology<Id>& graph, std::span<const Seeds> seeds, const NeighborsRequest& request) {
  if (request.padding != nullptr)
    request.padding->check(graph.node_types.size(), request.hops.size(), request.sampled.size(), request.num_seeds.size());
  Hops<Id, Nodes> hops(graph.node_types, request);
  Neighborhood<Id> result;
  result.compacted_seeds = hops.start(seeds, [&](const NodeType& type) { return named(request.op, type.name); });
  for (std::size_t hop = 0; hop < request.hops.size(); ++hop) {
    const std::vector<Policy>& policies = request.hops[hop];
    hops.begin_hop();
    result.hops.push_back(hops.make_blocks(
        graph.relations, [&](std::size_t i) { return fanout_of(policies[i]); },
        [&](std::size_t i) {
          const Relation<Id>& relation = graph.relations[request.sampled[i]];
          return std::visit([&](const auto& chosen) { return draw_block(hops, relation, chosen, request, hop); }, policies[i]);
        }));
  }
  static_cast<FoundNodes<Id>&>(result) = hops.finish();
  if (hops.layers()) {
    std::vector<std::pair<std::size_t, std::size_t>> ends;
    for (const std::size_t i : request.sampled) ends.emplace_back(graph.relations[i].src, graph.relations[i].dst);
    result.bucket = pad_hops<Id>(result.hops, result, ends, *hops.layers(), request, request.threads);
  }
  return result;
}

}  // namespace

template <class Id>
Neighborhood<Id> sample_neighbors(const Topology<Id>& graph, std::span<const Seeds> seeds, const NeighborsRequest& request) {
  if (!request.groups) return sample<Id, PlainNodes<Id>>(graph, seeds, request);
  if (NodesOfGroups<Id>(graph.node_types, request.groups).has_short_keys())
    return sample<Id, NodesOfGroups<Id, std::int32_t>>(graph, seeds, request);
  return sample<Id, NodesOfGroups<Id>>(graph, seeds, request);
}

template Neighborhood<std::int32_t> sample_neighbors(const Topology<std::int32_t>&, std::span<const Seeds>,
                                                     const NeighborsRequest&);
template Neighborhood<std::int64_t> sample_neighbors(const Topology<std::int64_t>&, std::span<const Seeds>,
                                                     const NeighborsRequest&);

}  // namespace datapipes
