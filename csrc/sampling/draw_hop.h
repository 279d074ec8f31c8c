// draw_hop.h: one hop of drawing over the rows of one relation, shared by sample_hop and sample_neighbors. It keeps no state
// and numbers nothing; which in-edges are drawn is the policy's choice (uniform.h).
//   Two passes: plan_hop() reads the degrees and lays out the columns; HopDrawer::draw() picks the in-edges of a range
//   of columns and reads their sources. Ranges are independent of each other, so each thread draws some of the ranges.
//   Both passes prefetch the memory lines of a block before they use them, so many cache misses are under way at once.
// Every offset is checked before `indices` is read, every neighbor id before it is handed on (row_view.h has the errors).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "common/buffer.h"
#include "common/thread_pool.h"
#include "sampling/row_view.h"

namespace datapipes {

// The layout of a hop: column d holds the picks of row nodes[d], at indptr[d] .. indptr[d + 1] of the hop's edges.
template <class NodeId>
struct HopPlan {
  struct Column {
    std::int64_t begin, degree;  // the in-edges of the row
  };
  std::span<const NodeId> nodes;
  std::int64_t first = 0;  // columns before this one are empty
  Buffer<std::int64_t> indptr;
  Buffer<Column> columns;                  // from `first` on
  std::span<const std::int64_t> ids = {};  // of `nodes`, where they are rows and the caller knows the ids; else empty
  std::int64_t num_dst() const { return std::ssize(nodes); }
  std::int64_t num_picks() const { return indptr[num_dst()]; }

  // Returns the first column whose picks begin at `pick` or later. Cuts the hop into ranges of about equal work.
  std::int64_t column_at(std::int64_t pick) const {
    const auto* const begin = indptr.data() + first;
    return first + (std::lower_bound(begin, indptr.data() + num_dst(), pick) - begin);
  }
};

inline constexpr std::int64_t kRangeColumns = 4096;  // columns that one thread lays out per turn
inline constexpr int kMostDrawers = 8;               // the thread that numbers keeps up with no more (docs/decisions/004)

template <class Id, class NodeId, class Policy>
HopPlan<NodeId> plan_hop(const char* op, const RowView<Id>& graph, std::span<const NodeId> nodes, std::int64_t first,
                         const Policy& policy, int threads = 1) {
  constexpr std::int64_t kDistance = 24;  // nodes to prefetch ahead; more than a core has miss buffers gains nothing
  const auto num_dst = std::ssize(nodes);
  const auto num_nodes = graph.num_rows();
  const auto num_edges = std::ssize(graph.indices);
  HopPlan<NodeId> plan{nodes, first, Buffer<std::int64_t>(num_dst + 1),
                       Buffer<typename HopPlan<NodeId>::Column>(num_dst - first)};
  std::fill_n(plan.indptr.data(), first + 1, std::int64_t{0});
  const auto prefetch = [&](std::int64_t node) {
    if (static_cast<std::uint64_t>(node) < static_cast<std::uint64_t>(num_nodes)) {
      __builtin_prefetch(&graph.indptr[static_cast<std::size_t>(node)]);
      __builtin_prefetch(&graph.indptr[static_cast<std::size_t>(node) + 1]);
    }
  };
  const std::int64_t num_ranges = (num_dst - first + kRangeColumns - 1) / kRangeColumns;
  const auto end_of = [&](std::int64_t range) { return std::min(first + (range + 1) * kRangeColumns, num_dst); };
  // The offsets of a range count from its begin; the loop below adds the picks of the ranges before it.
  parallel_for(num_ranges, std::min(threads, kMostDrawers), [&](std::int64_t range) {
    std::int64_t total = 0;
    const std::int64_t end = end_of(range);
    for (std::int64_t d = first + range * kRangeColumns; d < end; ++d) {
      if (d + kDistance < end) prefetch(nodes[static_cast<std::size_t>(d + kDistance)]);
      const std::int64_t node = nodes[static_cast<std::size_t>(d)];
      check_node(op, node, num_nodes);
      const std::int64_t from = graph.indptr[static_cast<std::size_t>(node)];
      const std::int64_t to = graph.indptr[static_cast<std::size_t>(node) + 1];
      if (from < 0 || from > to || to > num_edges) throw_bad_indptr(op, node, from, to, num_edges);
      plan.columns[d - first] = {from, to - from};
      if (__builtin_add_overflow(total, policy.count(to - from), &total)) throw_too_many(op, policy.fanout);
      plan.indptr[d + 1] = total;
    }
  });
  std::int64_t before = 0;
  for (std::int64_t range = 0; range < num_ranges; ++range) {
    const std::int64_t begin = first + range * kRangeColumns, end = end_of(range);
    const std::int64_t total = plan.indptr[end];
    std::int64_t after = 0;
    if (__builtin_add_overflow(before, total, &after)) throw_too_many(op, policy.fanout);
    if (range > 0) {
      for (std::int64_t d = begin; d < end; ++d) plan.indptr[d + 1] += before;
    }
    before = after;
  }
  return plan;
}

// Draws columns of a hop on one thread, with that thread's scratch memory.
template <class Id, class Policy>
class HopDrawer {
 public:
  // Draws columns [begin, end). Calls on_block(offset, neighbors, positions) for each block of picks: `offset` is the
  // index of the first pick among the hop's edges, `neighbors` are the checked global ids, already written to out +
  // offset, and `positions` their positions in `indices`. Calls prefetch(neighbor) for each neighbor of a block before
  // that.
  template <class NodeId, class Prefetch, class OnBlock>
  void draw(const char* op, const RowView<Id>& graph, const HopPlan<NodeId>& plan, const Policy& chosen, std::int64_t begin,
            std::int64_t end, Id* out, Prefetch&& prefetch, OnBlock&& on_block) {
    const RowView<Id> rows = graph;  // copies, which stores through pointers cannot change
    const Policy policy = chosen;
    const auto num_sources = static_cast<std::uint64_t>(rows.num_sources);
    const std::int64_t* const indptr = plan.indptr.data();
    while (begin < end) {
      const std::int64_t offset = indptr[begin];
      std::int64_t stop = begin + 1;
      while (stop < end && indptr[stop + 1] - offset <= kBlockEdges) ++stop;
      const auto count = static_cast<std::size_t>(indptr[stop] - offset);
      if (positions_.size() < count) positions_.resize(count);
      for (std::int64_t d = begin; d < stop; ++d) {
        const auto column = plan.columns[d - plan.first];
        const auto at = static_cast<std::size_t>(d);
        const auto node = plan.ids.empty() ? rows.node_of(plan.nodes[at]) : static_cast<std::uint64_t>(plan.ids[at]);
        scratch_.choose(policy, rows.indices.data(), column.begin, column.degree, node, indptr[d + 1] - indptr[d],
                        positions_.data() + (indptr[d] - offset));
      }
      Id* const neighbors = out + offset;
      for (std::size_t i = 0; i < count; ++i) {
        const Id neighbor = rows.indices[static_cast<std::size_t>(positions_[i])];
        if (static_cast<std::uint64_t>(neighbor) >= num_sources)
          throw_bad_neighbor(op, positions_[i], neighbor, rows.num_sources);
        prefetch(neighbor);
        neighbors[i] = neighbor;
      }
      on_block(offset, std::span<Id>(neighbors, count), std::span<const std::int64_t>(positions_.data(), count));
      begin = stop;
    }
    if (positions_.size() > kKeptPicks) *this = HopDrawer();  // free the scratch of a hub at once
  }

 private:
  static constexpr std::size_t kKeptPicks = std::size_t{1} << 17;
  static constexpr std::int64_t kBlockEdges = 256;  // picks prefetched together; they fit L1 with the scratch

  typename Policy::Scratch scratch_;
  std::vector<std::int64_t> positions_;
};

// How threads share a hop.
inline constexpr std::int64_t kRangePicks = 8192;      // picks that one thread draws per turn
inline constexpr std::int64_t kParallelPicks = 16384;  // for fewer picks, waking a thread costs more than it saves

template <class Id, class Policy>
HopDrawer<Id, Policy>& thread_drawer() {
  thread_local HopDrawer<Id, Policy> drawer;
  return drawer;
}

// Draws a whole plan into `out`, ranges of columns on all threads. Calls on_block as HopDrawer::draw does, on the
// thread that drew. Calls consume(begin, end) on this thread for each range of the hop's edges, in ascending order.
template <class Id, class NodeId, class Policy, class OnBlock, class Consume>
void draw_on_threads(const char* op, const RowView<Id>& graph, const HopPlan<NodeId>& plan, const Policy& policy, int threads,
                     Id* out, OnBlock&& on_block, Consume&& consume) {
  const std::int64_t num_ranges = (plan.num_picks() + kRangePicks - 1) / kRangePicks;
  const auto column = [&](std::int64_t range) {
    return range == num_ranges ? plan.num_dst() : plan.column_at(range * kRangePicks);
  };
  in_order(
      num_ranges, std::min(threads, kMostDrawers),
      [&](std::int64_t range) {
        thread_drawer<Id, Policy>().draw(op, graph, plan, policy, column(range), column(range + 1), out, [](Id) {}, on_block);
      },
      [&](std::int64_t range) { consume(plan.indptr[column(range)], plan.indptr[column(range + 1)]); });
}

}  // namespace datapipes
