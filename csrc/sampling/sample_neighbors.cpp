#include "sampling/sample_neighbors.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "sampling/draw_hop.h"
#include "sampling/hop_room.h"
#include "sampling/numbered_nodes.h"
#include "sampling/numbering.h"

namespace datapipes {
namespace {

// Puts the nodes that were found into the result.
template <class Id>
void put(const PlainNodes<Id>&, Buffer<Id> ids, Neighborhood<Id>& result) {
  result.nodes.push_back(std::move(ids));
}

template <class Id, class Key>
void put(const NodesOfGroups<Id, Key>& nodes, const Buffer<Key>& keys, Neighborhood<Id>& result) {
  auto [ids, groups] = split_keys(nodes, keys);
  result.nodes.push_back(std::move(ids));
  result.groups.push_back(std::move(groups));
}

template <class Id, class Nodes>
class Sampling {
 public:
  Sampling(const Topology<Id>& graph, const NeighborsRequest& request)
      : graph_(graph), request_(request), nodes_(graph.node_types, request.groups), direct_left_(request.direct_limit) {
    for (const NodeType& type : graph.node_types) numberings_.emplace_back(nodes_.num_keys(type.num_nodes));
  }

  Neighborhood<Id> run(std::span<const Seeds> seeds) {
    Neighborhood<Id> result;
    for (const Seeds& of_type : seeds) result.compacted_seeds.push_back(number_seeds(of_type));
    std::vector<std::int64_t> sampled(numberings_.size(), 0);  // nodes whose in-edges an earlier hop has drawn
    for (std::size_t hop = 0; hop < request_.hops.size(); ++hop) {
      const std::vector<std::int64_t> num_dst = counts();
      result.hops.push_back(run_hop(hop, num_dst, request_.only_new ? sampled : std::vector<std::int64_t>(num_dst.size(), 0)));
      sampled = num_dst;
    }
    for (auto& numbering : numberings_) put(nodes_, numbering.finish(), result);
    return result;
  }

 private:
  using Key = typename Nodes::Key;
  using Columns = typename Nodes::Columns;

  Buffer<Id> number_seeds(const Seeds& seeds) {
    const NodeType& type = graph_.node_types[seeds.type];
    const std::string op = named(request_.op, type.name);
    auto& numbering = numberings_[seeds.type];
    numbering.make_room(std::ssize(seeds.ids), direct_left_, kMostLocalIds<Id>);
    Buffer<Id> local(std::ssize(seeds.ids));
    std::vector<Key> keys(seeds.ids.size());
    numbering.visit([&](auto& map) {
      for (std::size_t i = 0; i < keys.size(); ++i) {
        check_node(op.c_str(), seeds.ids[i], type.num_nodes);
        keys[i] = nodes_.seed(seeds, i);
        map.prefetch(keys[i]);
      }
      numbering.number(map, std::span<const Key>(keys), local.data());
    });
    return local;
  }

  // `first`: of each type, the nodes before it are not drawn for.
  std::vector<CompactedHop<Id>> run_hop(std::size_t hop, const std::vector<std::int64_t>& num_dst,
                                        const std::vector<std::int64_t>& first) {
    std::vector<CompactedHop<Id>> blocks;
    for (std::size_t i = 0; i < request_.sampled.size(); ++i) {
      const Relation<Id>& relation = graph_.relations[request_.sampled[i]];
      const std::size_t dst = relation.dst;
      const Policy& policy = request_.hops[hop][i];
      const auto columns = nodes_.columns(numberings_[dst].nodes().first(static_cast<std::size_t>(num_dst[dst])));
      if (fanout_of(policy) == 0 || first[dst] == num_dst[dst]) {
        blocks.push_back(nothing(num_dst[dst]));
      } else {
        blocks.push_back(
            std::visit([&](const auto& chosen) { return draw(relation, chosen, columns, first[dst], hop); }, policy));
      }
    }
    for (std::size_t i = 0; i < blocks.size(); ++i)  // only now: later relations find nodes of the same type
      blocks[i].num_src = numberings_[graph_.relations[request_.sampled[i]].src].count();
    return blocks;
  }

  static CompactedHop<Id> nothing(std::int64_t num_dst) {
    CompactedHop<Id> block{.indptr = Buffer<std::int64_t>(num_dst + 1), .indices = {}, .edge_ids = {}};
    std::fill_n(block.indptr.data(), num_dst + 1, std::int64_t{0});
    return block;
  }

  template <class Chosen>
  CompactedHop<Id> draw(const Relation<Id>& relation, const Chosen& policy, const Columns& columns, std::int64_t first,
                        std::size_t hop) {
    const std::string op = named(request_.op, relation.name);
    const HopRoom room{op.c_str(), static_cast<std::int64_t>(hop), policy.fanout, policy.replace};
    std::int64_t num_picks = 0;
    try {
      auto plan = plan_hop(op.c_str(), relation.rows, columns, first, policy, request_.threads);
      num_picks = plan.num_picks();
      constexpr std::int64_t kKeys = kInPlace ? 0 : sizeof(Key);
      check_hop_room(room, plan, sizeof(Id) + kKeys + (request_.want_edge_ids ? sizeof(std::int64_t) : 0), held_);
      held_ += num_picks + plan.num_dst();
      return draw_plan(op.c_str(), relation, plan, policy);
    } catch (const NoRoom&) {
      throw;
    } catch (const std::bad_alloc&) {
      room.refuse_allocation(num_picks, columns.count());
    }
  }

  template <class Chosen>
  CompactedHop<Id> draw_plan(const char* op, const Relation<Id>& relation, HopPlan<Columns>& plan, const Chosen& policy) {
    const std::int64_t num_picks = plan.num_picks();
    CompactedHop<Id> block{.indptr = {}, .indices = Buffer<Id>(num_picks), .edge_ids = {}};
    if (request_.want_edge_ids) block.edge_ids = Buffer<std::int64_t>(num_picks);
    Id* const indices = block.indices.data();
    Buffer<Key> keys;  // of the picks; where they are ids, they stand in `indices` until they are numbered
    if constexpr (!kInPlace) keys = Buffer<Key>(num_picks);
    Key* found = nullptr;
    if constexpr (kInPlace) {
      found = indices;
    } else {
      found = keys.data();
    }
    auto& numbering = numberings_[relation.src];
    const Buffer<Key> before = numbering.make_room(num_picks, direct_left_,
                                                   kMostLocalIds<Id>);  // the plan still reads it where src and dst are one type
    const auto on_block = [&](std::int64_t offset, std::span<const std::int64_t> positions) {
      if (request_.want_edge_ids) write_edge_ids(relation.edge_ids, positions, block.edge_ids.data() + offset);
    };
    numbering.visit([&](auto& map) {
      if (request_.threads > 1 && num_picks >= kParallelPicks) {
        draw_on_threads(
            op, relation.rows, plan, policy, request_.threads, found,
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
    });
    block.indptr = std::move(plan.indptr);
    return block;
  }

  static void write_edge_ids(std::span<const std::int64_t> edge_ids, std::span<const std::int64_t> positions, std::int64_t* out) {
    if (edge_ids.empty()) {
      std::copy(positions.begin(), positions.end(), out);
      return;
    }
    for (const std::int64_t position : positions) __builtin_prefetch(&edge_ids[static_cast<std::size_t>(position)]);
    for (const std::int64_t position : positions) *out++ = edge_ids[static_cast<std::size_t>(position)];
  }

  std::vector<std::int64_t> counts() const {
    std::vector<std::int64_t> found;
    for (const auto& numbering : numberings_) found.push_back(numbering.count());
    return found;
  }

  static constexpr bool kInPlace = std::is_same_v<Key, Id>;

  const Topology<Id>& graph_;
  const NeighborsRequest& request_;
  const Nodes nodes_;
  std::vector<Numbering<Key>> numberings_;  // of each node type
  std::int64_t direct_left_;                // nodes that may still have a direct map
  std::int64_t held_ = 0;                   // picks and columns of the blocks made so far
};

}  // namespace

template <class Id>
Neighborhood<Id> sample_neighbors(const Topology<Id>& graph, std::span<const Seeds> seeds, const NeighborsRequest& request) {
  if (!request.groups) return Sampling<Id, PlainNodes<Id>>(graph, request).run(seeds);
  check_groups(request.groups, seeds);
  if (NodesOfGroups<Id>(graph.node_types, request.groups).has_short_keys())
    return Sampling<Id, NodesOfGroups<Id, std::int32_t>>(graph, request).run(seeds);
  return Sampling<Id, NodesOfGroups<Id>>(graph, request).run(seeds);
}

template Neighborhood<std::int32_t> sample_neighbors(const Topology<std::int32_t>&, std::span<const Seeds>,
                                                     const NeighborsRequest&);
template Neighborhood<std::int64_t> sample_neighbors(const Topology<std::int64_t>&, std::span<const Seeds>,
                                                     const NeighborsRequest&);

}  // namespace datapipes
