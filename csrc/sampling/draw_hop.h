// draw_hop.h: one hop of drawing over the rows of one relation, shared by sample_hop and sample_neighbors. It keeps no state
// and numbers nothing. The policy (policy.h) chooses the in-edges; the columns (columns.h) say for which nodes.
//   Two passes: plan_hop() reads the degrees and lays out the columns; HopDrawer::draw() picks the in-edges of a range
//   of columns and reads their sources. Ranges are independent of each other, so each thread draws some of the ranges.
//   Both passes prefetch the memory lines of a block before they use them, so many cache misses are under way at once.
// Every offset is checked before `indices` is read, every neighbor id before it is passed on (row_view.h has the errors). A hop
// of more than 2^63 - 1 picks throws std::length_error (ValueError).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/buffer.h"
#include "common/inside.h"
#include "common/thread_pool.h"
#include "graph/row_view.h"
#include "sampling/columns.h"
#include "sampling/range.h"
#include "sampling/row_plan.h"

namespace datapipes {

[[noreturn]] inline void throw_too_many(const char* op, std::int64_t fanout) {
  throw std::length_error(std::string(op) + ": a hop with fanout " + std::to_string(fanout) +
                          " would hold more than 2^63 - 1 in-edges, more than any memory holds. Use a smaller fanout.");
}

inline constexpr std::int64_t kRangePicks = 8192;  // picks that one thread draws per turn

// The layout of a hop: column d holds the picks of its row, at indptr[d] .. indptr[d + 1] of the hop's edges.
template <class Columns>
struct HopPlan {
  struct Span {
    std::int64_t begin, degree;  // the in-edges of the row, as the policy narrowed them
  };
  Columns columns;
  std::int64_t first = 0;  // columns before this one are empty
  Buffer<std::int64_t> indptr;
  Buffer<Span> spans;  // from `first` on
  std::int64_t num_dst() const { return columns.count(); }
  std::int64_t num_picks() const { return indptr[num_dst()]; }
  std::int64_t largest() const {  // the most picks of a column
    std::int64_t most = 0;
    for (std::int64_t d = first; d < num_dst(); ++d) most = std::max(most, indptr[d + 1] - indptr[d]);
    return most;
  }
  template <class Id>
  Row row(std::int64_t d, const RowView<Id>& rows) const {
    const Span span = spans[d - first];
    return columns.in_edges(d, span.begin, span.degree, rows);
  }

  // Ranges of columns of about equal work. Returns the first column of a range, for num_ranges() the end.
  std::int64_t num_ranges() const { return (num_picks() + kRangePicks - 1) / kRangePicks; }
  std::int64_t range_begin(std::int64_t range) const {
    if (range == num_ranges()) return num_dst();
    const auto* const begin = indptr.data() + first;
    return first + (std::lower_bound(begin, indptr.data() + num_dst(), range * kRangePicks) - begin);
  }
};

inline constexpr std::int64_t kTurnColumns = 4096;  // columns that one thread lays out per turn
inline constexpr int kMostDrawers = 8;              // more would outrun the thread that numbers (docs/decisions/004)

// Columns outside `ranges`, which ascend, are empty.
template <class Id, class Columns, class Policy>
HopPlan<Columns> plan_hop(const char* op, const RowView<Id>& graph, const Columns& columns, std::span<const Range> ranges,
                          const Policy& policy, int threads = 1) {
  constexpr std::int64_t kDistance = 24;  // nodes to prefetch ahead; more than a core's miss buffers gain nothing
  const auto num_dst = columns.count();
  const auto first = ranges.empty() ? num_dst : ranges.front().begin;
  const auto num_nodes = graph.num_rows();
  const auto num_edges = std::ssize(graph.indices);
  HopPlan<Columns> plan{columns, first, Buffer<std::int64_t>(num_dst + 1),
                        Buffer<typename HopPlan<Columns>::Span>(num_dst - first)};
  plan.indptr[0] = 0;
  // Inlined always: GCC may take a function that only prefetches for one without effect, and drop the calls.
  const auto prefetch = [&](std::int64_t node) __attribute__((always_inline)) {
    if (is_inside(node, num_nodes)) {
      __builtin_prefetch(&graph.indptr[static_cast<std::size_t>(node)]);
      __builtin_prefetch(&graph.indptr[static_cast<std::size_t>(node) + 1]);
      policy.prefetch(node);
    }
  };
  const auto turns_of = [](Range range) { return (range.end - range.begin + kTurnColumns - 1) / kTurnColumns; };
  const auto columns_of = [&](std::int64_t turn) {
    const Range* range = ranges.data();
    for (; turn >= turns_of(*range); ++range) turn -= turns_of(*range);
    const std::int64_t begin = range->begin + turn * kTurnColumns;
    return Range{begin, std::min(begin + kTurnColumns, range->end)};
  };
  std::int64_t num_turns = 0;
  for (const Range range : ranges) num_turns += turns_of(range);
  // The offsets of a turn count from its begin; the loop below adds the picks of the turns before it.
  parallel_for(num_turns, std::min(threads, kMostDrawers), [&](std::int64_t turn) {
    const Range of_turn = columns_of(turn);
    const std::int64_t begin = of_turn.begin, end = of_turn.end;
    std::int64_t total = 0;
    const auto row_of = [&](std::int64_t d) __attribute__((always_inline)) {
      if (d + kDistance < end) prefetch(columns.row(d + kDistance));
      const std::int64_t node = columns.row(d);
      check_node(op, node, num_nodes);
      const std::int64_t from = graph.indptr[static_cast<std::size_t>(node)];
      const std::int64_t to = graph.indptr[static_cast<std::size_t>(node) + 1];
      // This is is_range_inside, written out: with a call, GCC plans temporal hops 8 % slower.
      if (from < 0 || from > to || to > num_edges) throw_bad_indptr(op, node, from, to, num_edges);
      return columns.in_edges(d, from, to - from, graph);
    };
    const auto put = [&](std::int64_t d, const RowPlan& planned) __attribute__((always_inline)) {
      plan.spans[d - first] = {planned.begin, planned.degree};
      if (__builtin_add_overflow(total, planned.picks, &total)) throw_too_many(op, policy.fanout);
      plan.indptr[d + 1] = total;
    };
    if constexpr (requires(const Row* rows, RowPlan* plans) { policy.plan_block(rows, 1, plans); }) {
      constexpr int kTogether = Policy::kPlannedTogether;
      Row rows[2][kTogether];  // while one block is planned, the next is read and its in-edges are prefetched
      RowPlan plans[kTogether];
      const auto read = [&](std::int64_t d, Row* into) {
        const auto count = static_cast<int>(std::min<std::int64_t>(kTogether, end - d));
        for (int i = 0; i < count; ++i) {
          into[i] = row_of(d + i);
          policy.prefetch_in_edges(into[i]);
        }
        return count;
      };
      int count = read(begin, rows[0]);
      for (std::int64_t d = begin, block = 0; d < end; d += kTogether, ++block) {
        const int next = d + kTogether < end ? read(d + kTogether, rows[(block + 1) % 2]) : 0;
        policy.plan_block(rows[block % 2], count, plans);
        for (int i = 0; i < count; ++i) put(d + i, plans[i]);
        count = next;
      }
    } else {
      for (std::int64_t d = begin; d < end; ++d) put(d, policy.plan(row_of(d)));
    }
  });
  std::int64_t before = 0, reached = 0;
  const auto leave_empty_to = [&](std::int64_t end) {
    std::fill(plan.indptr.data() + reached + 1, plan.indptr.data() + end + 1, before);
    for (std::int64_t d = std::max(reached, first); d < end; ++d) plan.spans[d - first] = {0, 0};
  };
  for (std::int64_t turn = 0; turn < num_turns; ++turn) {
    const auto [begin, end] = columns_of(turn);
    leave_empty_to(begin);
    const std::int64_t total = plan.indptr[end];
    std::int64_t after = 0;
    if (__builtin_add_overflow(before, total, &after)) throw_too_many(op, policy.fanout);
    if (before > 0) {
      for (std::int64_t d = begin; d < end; ++d) plan.indptr[d + 1] += before;
    }
    before = after;
    reached = end;
  }
  leave_empty_to(num_dst);
  return plan;
}

// Draws columns of a hop on one thread, with that thread's scratch memory.
template <class Id, class Policy>
class HopDrawer {
 public:
  // Draws columns [begin, end). Calls on_block(offset, found, positions) for each block of picks: `offset` is the index
  // of the first pick among the hop's edges, `found` are the checked neighbors, already written to `out`, one block behind
  // the other, and `positions` their positions in `indices`. Calls prefetch(neighbor) for each neighbor of a block before.
  template <class Columns, class Prefetch, class OnBlock>
  void draw(const char* op, const RowView<Id>& graph, const HopPlan<Columns>& plan, const Policy& chosen, std::int64_t begin,
            std::int64_t end, typename Columns::template Found<Id>* out, Prefetch&& prefetch, OnBlock&& on_block) {
    using Found = typename Columns::template Found<Id>;
    const RowView<Id> rows = graph;  // copies, so that the compiler knows that no store changes them
    const Policy policy = chosen;
    const auto num_sources = static_cast<std::uint64_t>(rows.num_sources);
    const std::int64_t* const indptr = plan.indptr.data();
    const std::int64_t before = indptr[begin];
    while (begin < end) {
      const std::int64_t offset = indptr[begin];
      std::int64_t stop = begin + 1;
      while (stop < end && indptr[stop + 1] - offset <= kBlockEdges) ++stop;
      const auto count = static_cast<std::size_t>(indptr[stop] - offset);
      if (positions_.size() < count) positions_.resize(count);
      choose(policy, rows, plan, begin, stop);
      Found* const found = out + (offset - before);
      const auto checked = [&](std::size_t i) __attribute__((always_inline)) {
        const Id neighbor = rows.indices[static_cast<std::size_t>(positions_[i])];
        if (static_cast<std::uint64_t>(neighbor) >= num_sources)
          throw_bad_neighbor(op, positions_[i], neighbor, rows.num_sources);
        return neighbor;
      };
      if constexpr (Columns::kTrees) {
        for (std::int64_t d = begin; d < stop; ++d) {
          const Found first_key = plan.columns.first_key(d);
          const auto column_end = static_cast<std::size_t>(indptr[d + 1] - offset);
          for (auto i = static_cast<std::size_t>(indptr[d] - offset); i < column_end; ++i) {
            found[i] = first_key | static_cast<Found>(checked(i));
            prefetch(found[i]);
          }
        }
      } else {
        for (std::size_t i = 0; i < count; ++i) {
          const Id neighbor = checked(i);
          prefetch(neighbor);
          found[i] = neighbor;
        }
      }
      on_block(offset, std::span<Found>(found, count), std::span<const std::int64_t>(positions_.data(), count));
      begin = stop;
    }
    if (positions_.size() > kKeptPicks) *this = HopDrawer();  // free the scratch of a hub at once
  }

 private:
  static constexpr std::size_t kKeptPicks = std::size_t{1} << 17;
  static constexpr std::int64_t kBlockEdges = 256;  // picks prefetched together; they fit L1 with the scratch

  // Writes the positions of the picks of columns [begin, stop), and prefetches their lines.
  template <class Columns>
  void choose(const Policy& policy, const RowView<Id>& rows, const HopPlan<Columns>& plan, std::int64_t begin,
              std::int64_t stop) {
    const std::int64_t* const indptr = plan.indptr.data();
    const auto row = [&](std::int64_t d) { return plan.row(d, rows); };
    if constexpr (requires { scratch_.choose_block(policy, rows.indices.data(), row, indptr, begin, stop, positions_.data()); }) {
      scratch_.choose_block(policy, rows.indices.data(), row, indptr, begin, stop, positions_.data());
    } else {
      for (std::int64_t d = begin; d < stop; ++d)
        scratch_.choose(policy, rows.indices.data(), row(d), indptr[d + 1] - indptr[d],
                        positions_.data() + (indptr[d] - indptr[begin]));
    }
  }

  typename Policy::Scratch scratch_;
  std::vector<std::int64_t> positions_;
};

// The shares of threads in a hop.
inline constexpr std::int64_t kParallelPicks = 16384;  // for fewer picks, waking a thread costs more than it saves

template <class Id, class Policy>
HopDrawer<Id, Policy>& thread_drawer() {
  thread_local HopDrawer<Id, Policy> drawer;
  return drawer;
}

// Draws a whole plan into `out`, ranges of columns on all threads. Calls on_block as HopDrawer::draw does, on the
// thread that drew. Calls consume(begin, end) on this thread for each range of the hop's edges, in ascending order.
template <class Id, class Columns, class Policy, class OnBlock, class Consume>
void draw_on_threads(const char* op, const RowView<Id>& graph, const HopPlan<Columns>& plan, const Policy& policy, int threads,
                     typename Columns::template Found<Id>* out, OnBlock&& on_block, Consume&& consume) {
  in_order(
      plan.num_ranges(), std::min(threads, kMostDrawers),
      [&](std::int64_t range) {
        const std::int64_t begin = plan.range_begin(range), end = plan.range_begin(range + 1);
        thread_drawer<Id, Policy>().draw(op, graph, plan, policy, begin, end, out + plan.indptr[begin], [](auto) {}, on_block);
      },
      [&](std::int64_t range) { consume(plan.indptr[plan.range_begin(range)], plan.indptr[plan.range_begin(range + 1)]); });
}

}  // namespace datapipes
