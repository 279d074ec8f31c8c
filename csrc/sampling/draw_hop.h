// draw_hop.h: one hop of drawing, shared by sample_hop and sample_neighbors.
//   Two passes: plan() reads the degrees and lays out the columns, draw() picks in-edges and reads their sources.
//   Both work on blocks whose memory lines are requested before they are used, so many cache misses are under way at once.
// Every offset is checked before `indices` is read and every neighbor id before it is handed on (see csc.h for the errors).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "common/buffer.h"
#include "random/philox.h"
#include "sampling/choose.h"
#include "sampling/choose_few.h"
#include "sampling/csc.h"

namespace datapipes {

struct HopRequest {
  std::int64_t fanout;  // -1: all in-edges
  bool replace;
  std::uint64_t key;  // hop_key(...)
};

template <class Id, class NodeId>
class HopDrawer {
 public:
  HopDrawer(const char* op, CscView<Id> graph) : op_(op), graph_(graph) {}

  // Lays out one column for each of `nodes`; those before `first` stay empty. Returns int64[len(nodes) + 1].
  Buffer<std::int64_t> plan(std::span<const NodeId> nodes, std::int64_t first, const HopRequest& request) {
    const auto num_dst = std::ssize(nodes);
    const auto num_nodes = graph_.num_nodes();
    const auto num_edges = std::ssize(graph_.indices);
    Buffer<std::int64_t> indptr(num_dst + 1);
    std::fill_n(indptr.data(), first + 1, std::int64_t{0});
    columns_.resize(static_cast<std::size_t>(num_dst - first));
    std::int64_t total = 0;
    for (std::int64_t d = first; d < num_dst; ++d) {
      if (d + kPlanDistance < num_dst) prefetch_offsets(nodes[d + kPlanDistance]);
      const std::int64_t node = nodes[d];
      check_node(op_, node, num_nodes);
      const std::int64_t begin = graph_.indptr[node];
      const std::int64_t end = graph_.indptr[node + 1];
      if (begin < 0 || begin > end || end > num_edges) throw_bad_indptr(op_, node, begin, end, num_edges);
      columns_[d - first] = {begin, end - begin};
      if (__builtin_add_overflow(total, pick_count(end - begin, request.fanout, request.replace), &total)) throw_too_many(op_);
      indptr[d + 1] = total;
    }
    return indptr;
  }

  // Draws what plan() laid out. For each block of picks calls on_block(offset, neighbors, positions): `neighbors` are checked
  // global ids, `positions` their places in `indices`, `offset` the first one's place among the hop's edges.
  template <class Prefetch, class OnBlock>
  void draw(std::span<const NodeId> nodes, std::int64_t first, const HopRequest& request, const Buffer<std::int64_t>& indptr,
            Prefetch&& prefetch, OnBlock&& on_block) {
    const auto num_dst = std::ssize(nodes);
    const auto num_nodes = static_cast<std::uint64_t>(graph_.num_nodes());
    for (std::int64_t begin = first; begin < num_dst;) {
      const std::int64_t offset = indptr[begin];
      std::int64_t end = begin + 1;
      while (end < num_dst && indptr[end + 1] - offset <= kBlockEdges) ++end;
      const auto count = static_cast<std::size_t>(indptr[end] - offset);
      if (positions_.size() < count) {
        positions_.resize(count);
        neighbors_.resize(count);
      }
      for (std::int64_t d = begin; d < end; ++d) {
        choose_column(columns_[d - first], request, static_cast<std::uint64_t>(nodes[d]), indptr[d + 1] - indptr[d],
                      positions_.data() + (indptr[d] - offset));
      }
      for (std::size_t i = 0; i < count; ++i) {
        const Id neighbor = graph_.indices[positions_[i]];
        if (static_cast<std::uint64_t>(neighbor) >= num_nodes)
          throw_bad_neighbor(op_, positions_[i], neighbor, graph_.num_nodes());
        prefetch(neighbor);
        neighbors_[i] = neighbor;
      }
      on_block(offset, std::span<const Id>(neighbors_.data(), count), std::span<const std::int64_t>(positions_.data(), count));
      begin = end;
    }
  }

 private:
  struct Column {
    std::int64_t begin, degree;
  };
  static constexpr std::int64_t kPlanDistance = 24;  // nodes ahead; deeper than the miss buffers of a core pays nothing
  static constexpr std::int64_t kIdsPerLine = 64 / sizeof(Id);
  static constexpr std::int64_t kBlockEdges = 256;  // picks whose lines are requested together; fits L1 with its scratch

  void prefetch_offsets(std::int64_t node) const {
    if (static_cast<std::uint64_t>(node) < static_cast<std::uint64_t>(graph_.num_nodes())) {
      __builtin_prefetch(&graph_.indptr[node]);
      __builtin_prefetch(&graph_.indptr[node + 1]);
    }
  }

  // Writes the positions of a column's picks, and asks for the lines they lie in.
  void choose_column(Column column, const HopRequest& request, std::uint64_t node, std::int64_t picks, std::int64_t* out) {
    const Id* const neighbors = graph_.indices.data() + column.begin;
    if (picks == column.degree && !(request.replace && request.fanout >= 0)) {
      for (std::int64_t i = 0; i < picks; i += kIdsPerLine) __builtin_prefetch(neighbors + i);
      if (picks > 0) __builtin_prefetch(neighbors + picks - 1);
      for (std::int64_t i = 0; i < picks; ++i) out[i] = column.begin + i;
      return;
    }
    if (request.replace || !few_.choose(column.degree, request.fanout, request.key, node, out))
      chooser_.choose(column.degree, request.fanout, request.replace, Stream(request.key, node), out);
    for (std::int64_t i = 0; i < picks; ++i) {
      __builtin_prefetch(neighbors + out[i]);
      out[i] += column.begin;
    }
  }

  const char* op_;
  CscView<Id> graph_;
  FewChooser few_;
  Chooser chooser_;
  std::vector<Column> columns_;
  std::vector<std::int64_t> positions_;
  std::vector<Id> neighbors_;
};

}  // namespace datapipes
