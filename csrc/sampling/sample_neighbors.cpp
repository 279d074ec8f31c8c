#include "sampling/sample_neighbors.h"

#include <algorithm>
#include <utility>

#include "sampling/hop_room.h"
#include "sampling/id_map_shelf.h"

namespace datapipes {
namespace {

constexpr const char* kOp = "sample_neighbor";

template <class Id, class Map>
class Sampling {
 public:
  Sampling(CscView<Id> graph, std::span<const std::int64_t> edge_ids, Map& map, const NeighborsRequest& request)
      : graph_(graph), edge_ids_(edge_ids), map_(map), request_(request) {}

  Neighborhood<Id> run(std::span<const std::int64_t> seeds) {
    Neighborhood<Id> result{.nodes = {}, .compacted_seeds = Buffer<Id>(std::ssize(seeds)), .hops = {}};
    make_room(std::ssize(seeds));
    std::vector<Id> ids(seeds.size());
    for (std::size_t i = 0; i < seeds.size(); ++i) {
      check_node(kOp, seeds[i], graph_.num_nodes());
      ids[i] = static_cast<Id>(seeds[i]);
      map_.prefetch(ids[i]);
    }
    number(ids, result.compacted_seeds.data());
    std::int64_t sampled = 0;  // nodes whose in-edges an earlier hop has drawn
    for (const HopRequest& hop : request_.hops) {
      const std::int64_t num_dst = count_;
      result.hops.push_back(run_hop(std::ssize(result.hops), hop, request_.only_new ? sampled : 0));
      sampled = num_dst;
    }
    nodes_.shrink(count_);
    result.nodes = std::move(nodes_);
    return result;
  }

 private:
  CompactedHop<Id> run_hop(std::int64_t hop_number, const HopRequest& request, std::int64_t first) {
    auto plan = plan_hop(kOp, graph_, nodes_.first(count_), first, request, request_.threads);
    const HopRoom room{kOp, hop_number, request.fanout, request.replace};
    check_hop_room(room, plan, sizeof(Id) + (request_.want_edge_ids ? sizeof(std::int64_t) : 0));
    try {
      return draw_plan(plan, request, first);
    } catch (const std::bad_alloc&) {
      room.refuse_allocation(plan.num_picks());
    }
  }

  CompactedHop<Id> draw_plan(HopPlan<Id>& plan, const HopRequest& request, std::int64_t first) {
    const std::int64_t num_dst = plan.num_dst(), num_picks = plan.num_picks();
    CompactedHop<Id> hop{.indptr = {}, .indices = Buffer<Id>(num_picks), .edge_ids = {}, .num_src = 0};
    if (request_.want_edge_ids) hop.edge_ids = Buffer<std::int64_t>(num_picks);
    Id* const indices = hop.indices.data();  // first the drawn global ids, then their local ids
    const Buffer<Id> before = make_room(num_picks);
    const auto on_block = [&](std::int64_t offset, std::span<const Id>, std::span<const std::int64_t> positions) {
      if (request_.want_edge_ids) write_edge_ids(positions, hop.edge_ids.data() + offset);
    };
    if (request_.threads > 1 && num_picks >= kParallelPicks) {
      draw_on_threads(kOp, graph_, plan, request, request_.threads, indices, on_block, [&](std::int64_t begin, std::int64_t end) {
        const std::span<const Id> range(indices + begin, static_cast<std::size_t>(end - begin));
        count_ = number_ahead(map_, range, count_, nodes_.data(), indices + begin);
      });
    } else {  // prefetch the map entries of a block while it is drawn, then number it
      thread_drawer<Id>().draw(
          kOp, graph_, plan, request, first, num_dst, indices, [this](Id id) { map_.prefetch(id); },
          [&](std::int64_t offset, std::span<Id> ids, std::span<const std::int64_t> positions) {
            number(ids, ids.data());
            on_block(offset, ids, positions);
          });
    }
    hop.indptr = std::move(plan.indptr);
    hop.num_src = count_;
    return hop;
  }

  void number(std::span<const Id> ids, Id* local) { count_ = map_.number(ids, count_, nodes_.data(), local); }

  void write_edge_ids(std::span<const std::int64_t> positions, std::int64_t* out) const {
    if (edge_ids_.empty()) {
      std::copy(positions.begin(), positions.end(), out);
      return;
    }
    for (const std::int64_t position : positions) __builtin_prefetch(&edge_ids_[static_cast<std::size_t>(position)]);
    for (const std::int64_t position : positions) *out++ = edge_ids_[static_cast<std::size_t>(position)];
  }

  // Makes room for `more` nodes. Returns the old memory of the nodes found so far: the plan of the hop still reads it.
  Buffer<Id> make_room(std::int64_t more) {
    const std::int64_t bound = count_ + std::min(more, graph_.num_nodes() - count_);  // the graph has no more nodes
    check_local_ids(bound);
    map_.reserve(nodes_.first(count_), bound - count_);
    Buffer<Id> larger(bound + 1);  // number() writes one entry past the last
    std::copy_n(nodes_.data(), count_, larger.data());
    return std::exchange(nodes_, std::move(larger));
  }

  CscView<Id> graph_;
  std::span<const std::int64_t> edge_ids_;
  Map& map_;
  const NeighborsRequest& request_;
  Buffer<Id> nodes_;
  std::int64_t count_ = 0;
};

}  // namespace

template <class Id>
Neighborhood<Id> sample_neighbors(CscView<Id> graph, std::span<const std::int64_t> edge_ids, std::span<const std::int64_t> seeds,
                                  const NeighborsRequest& request) {
  return with_id_map<Id>(graph.num_nodes(), request.direct_limit, [&](auto& map) {
    return Sampling<Id, std::remove_reference_t<decltype(map)>>(graph, edge_ids, map, request).run(seeds);
  });
}

template Neighborhood<std::int32_t> sample_neighbors(CscView<std::int32_t>, std::span<const std::int64_t>,
                                                     std::span<const std::int64_t>, const NeighborsRequest&);
template Neighborhood<std::int64_t> sample_neighbors(CscView<std::int64_t>, std::span<const std::int64_t>,
                                                     std::span<const std::int64_t>, const NeighborsRequest&);

}  // namespace datapipes
