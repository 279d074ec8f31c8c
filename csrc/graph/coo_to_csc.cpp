#include "graph/coo_to_csc.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/inside.h"
#include "common/stream.h"
#include "shm/memory_left.h"

namespace datapipes {
namespace {

constexpr std::int64_t kMaxNodes = std::int64_t{1} << 48;           // so that the size of num_nodes + 1 offsets cannot overflow
constexpr int kPartBits = 10;                                       // at most 2^10 parts: their open lines fit half an L2 cache
constexpr std::int64_t kSortedAtOnce = 1 << 12, kSortedShare = 32;  // edges, and share of all, of a part that is small
constexpr std::int64_t kCheckedAtOnce = 1024;  // edges checked before they are counted, while they are in the cache

template <class Id>
void check_ids(const char* row, std::span<const Id> ids, std::int64_t num_nodes) {
  for (std::int64_t i = 0; i < std::ssize(ids); ++i) {
    if (!is_inside(ids[i], num_nodes)) {
      throw std::out_of_range(std::string("coo_to_csc: ") + row + "[" + std::to_string(i) + "] is " + std::to_string(ids[i]) +
                              ", which must be in [0, " + std::to_string(num_nodes) + "). Raise num_nodes or drop the edge.");
    }
  }
}

// Whether all ids are in [0, num_nodes). The loop has no branch, so that the compiler vectorises it.
template <class Id>
bool all_inside(std::span<const Id> ids, std::int64_t num_nodes) {
  using Unsigned = std::make_unsigned_t<Id>;
  const auto last = static_cast<Unsigned>(std::min<std::int64_t>(num_nodes - 1, std::numeric_limits<Id>::max()));
  Unsigned signs = 0;  // the top bit is set if any id is negative or above `last`
  for (const Id id : ids) signs |= static_cast<Unsigned>(id) | (last - static_cast<Unsigned>(id));
  return static_cast<Id>(signs) >= 0;
}

template <class Id>
Csc<Id> allocate_csc(std::int64_t num_edges, std::int64_t num_nodes) {
  return {
      .indptr = Buffer<std::int64_t>(num_nodes + 1), .indices = Buffer<Id>(num_edges), .order = Buffer<std::int64_t>(num_edges)};
}

template <class Id>
Csc<Id> sort_at_once(std::span<const Id> src, std::span<const Id> dst, std::int64_t num_nodes, std::int64_t num_sources) {
  check_ids("src", src, num_sources);
  check_ids("dst", dst, num_nodes);
  const auto num_edges = std::ssize(src);
  auto csc = allocate_csc<Id>(num_edges, num_nodes);
  std::fill_n(csc.indptr.data(), num_nodes + 1, std::int64_t{0});
  for (const Id node : dst) ++csc.indptr[node + 1];
  for (std::int64_t v = 0; v < num_nodes; ++v) csc.indptr[v + 1] += csc.indptr[v];
  // During the loop indptr[v] is the next place of node v, at the end the place where v + 1 begins. This saves a copy of 8
  // bytes a node.
  for (std::int64_t edge = 0; edge < num_edges; ++edge) {
    const std::int64_t place = csc.indptr[dst[edge]]++;
    csc.indices[place] = src[edge];
    csc.order[place] = edge;
  }
  std::copy_backward(csc.indptr.data(), csc.indptr.data() + num_nodes, csc.indptr.data() + num_nodes + 1);
  csc.indptr[0] = 0;
  return csc;
}

// Scattering edges straight into the result misses the cache and the TLB at every edge. So the edges are first moved,
// stably, into parts. A part holds the edges of 2^shift_ successive nodes and is one stretch of the result. Then each
// part is sorted within the cache. Between the two steps the arrays of the result hold the edges, which saves a second
// copy: `indices` holds the source; `order` holds the edge in its low edge_bits_ and, above them, the index of the node
// within the part.
template <class Id>
class PartSort {
 public:
  PartSort(std::span<const Id> src, std::span<const Id> dst, std::int64_t num_nodes, std::int64_t num_sources,
           std::optional<std::uint64_t> spare_bytes)
      : src_(src),
        dst_(dst),
        num_nodes_(num_nodes),
        num_sources_(num_sources),
        num_edges_(std::ssize(src)),
        spare_bytes_(spare_bytes),
        shift_(std::max(0, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(num_nodes))) - kPartBits)),
        edge_bits_(static_cast<int>(std::bit_width(static_cast<std::uint64_t>(num_edges_)))) {}

  // Whether an edge and its node fit one entry of `order`. A graph for which they do not fit exceeds any memory.
  bool fits() const { return edge_bits_ + shift_ <= 64; }

  Csc<Id> sort() {
    count_parts();
    auto csc = allocate_csc<Id>(num_edges_, num_nodes_);
    move_to_parts(csc);
    sort_parts(csc);
    return csc;
  }

 private:
  // The lines of a part that are being filled: one line of sources, and the lines of `order` for the same edges.
  static constexpr std::int64_t kOpen = kLineBytes / sizeof(Id);
  struct alignas(kLineBytes) OpenLines {
    std::int64_t order[kOpen];
    Id src[kOpen];
  };
  struct Edge {
    std::int64_t order;
    Id src;
  };

  // Sets begin_: the edges of part p belong at [begin_[p], begin_[p + 1]).
  void count_parts() {
    begin_.assign((num_nodes_ >> shift_) + 2, 0);
    for (std::int64_t begin = 0; begin < num_edges_; begin += kCheckedAtOnce) {
      const auto count = std::min(kCheckedAtOnce, num_edges_ - begin);
      const auto sources = src_.subspan(begin, count), destinations = dst_.subspan(begin, count);
      if (!all_inside(sources, num_sources_) || !all_inside(destinations, num_nodes_)) {
        check_ids("src", src_, num_sources_);  // checks all sources first, as sort_at_once does
        check_ids("dst", dst_, num_nodes_);
      }
      for (const Id node : destinations) ++begin_[(node >> shift_) + 1];
    }
    for (std::size_t part = 1; part < begin_.size(); ++part) begin_[part] += begin_[part - 1];
  }

  // Moves each edge to its part. Collects a whole line of the result, then writes it with stores that bypass the cache.
  void move_to_parts(Csc<Id>& csc) const {
    const std::int64_t num_parts = std::ssize(begin_) - 1, node_mask = (std::int64_t{1} << shift_) - 1;
    Buffer<OpenLines> open(num_parts);
    std::fill_n(open.data(), num_parts, OpenLines{});
    std::vector<std::int64_t> next(begin_.begin(), begin_.end() - 1);
    for (std::int64_t edge = 0; edge < num_edges_; ++edge) {
      const std::int64_t node = dst_[edge], part = node >> shift_;
      const std::int64_t place = next[part]++, slot = place % kOpen;
      OpenLines& lines = open[part];
      lines.order[slot] = static_cast<std::int64_t>(static_cast<std::uint64_t>(node & node_mask) << edge_bits_) | edge;
      lines.src[slot] = src_[edge];
      if (slot == kOpen - 1) {
        stream_lines<sizeof(lines.order)>(csc.order.data() + place - slot, lines.order);
        stream_lines<sizeof(lines.src)>(csc.indices.data() + place - slot, lines.src);
      }
    }
    stream_fence();
    // Write the lines that are not full last. If parts share a line, the last of them wrote the whole line and so
    // overwrote the ends of the parts before it. Those ends are still in `open`, since none of those parts could fill
    // that line.
    for (std::int64_t part = 0; part < num_parts; ++part) {
      const std::int64_t end = begin_[part + 1];
      for (std::int64_t place = std::max(begin_[part], end - end % kOpen); place < end; ++place) {
        csc.order[place] = open[part].order[place % kOpen];
        csc.indices[place] = open[part].src[place % kOpen];
      }
    }
  }

  // The most edges of a part that is sorted through a copy: any number if memory allows, else only a small share of all
  // edges. A larger part is sorted in place, which takes up to ten times as long.
  std::int64_t most_sorted_at_once(std::int64_t largest) const {
    const std::int64_t small = std::max(kSortedAtOnce, num_edges_ / kSortedShare);
    if (largest <= small || 2 * edge_bits_ > 64) return largest;
    const std::uint64_t needed = sizeof(Edge) * static_cast<std::uint64_t>(largest) + sizeof(std::int64_t) * num_nodes_;
    return needed <= (spare_bytes_ ? *spare_bytes_ : shm::memory_left().bytes / 2) ? largest : small;
  }

  // Sorts each part by node: a counting sort into `sorted`, then a copy back.
  void sort_parts(Csc<Id>& csc) const {
    const std::int64_t nodes_per_part = std::int64_t{1} << shift_, edge_mask = (std::int64_t{1} << edge_bits_) - 1;
    const auto node_of = [bits = edge_bits_](std::int64_t order) { return static_cast<std::uint64_t>(order) >> bits; };
    std::int64_t largest = 0;
    for (std::size_t part = 1; part < begin_.size(); ++part) largest = std::max(largest, begin_[part] - begin_[part - 1]);
    const std::int64_t most = most_sorted_at_once(largest);
    Buffer<Edge> sorted(shift_ == 0 ? 0 : std::min(largest, most));
    std::vector<std::int64_t> next(nodes_per_part);
    for (std::int64_t part = 0; part < std::ssize(begin_) - 1; ++part) {
      const std::int64_t begin = begin_[part], count = begin_[part + 1] - begin;
      std::int64_t* const order = csc.order.data() + begin;
      Id* const indices = csc.indices.data() + begin;
      std::fill(next.begin(), next.end(), 0);
      for (std::int64_t i = 0; i < count; ++i) ++next[node_of(order[i])];
      const std::int64_t first_node = part * nodes_per_part, last_node = std::min(first_node + nodes_per_part, num_nodes_);
      for (std::int64_t v = first_node, place = 0; v < last_node; ++v) {
        csc.indptr[v] = begin + place;
        place += std::exchange(next[v - first_node], place);
      }
      if (shift_ == 0) continue;  // a part is a node
      if (count > most) {
        for (std::int64_t i = 0; i < count; ++i) {
          order[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(next[node_of(order[i])]++) << edge_bits_) |
                     (order[i] & edge_mask);
        }
        move_in_place(order, indices, count);
        continue;
      }
      for (std::int64_t i = 0; i < count; ++i) sorted[next[node_of(order[i])]++] = {order[i] & edge_mask, indices[i]};
      for (std::int64_t i = 0; i < count; ++i) {
        order[i] = sorted[i].order;
        indices[i] = sorted[i].src;
      }
    }
    csc.indptr[num_nodes_] = num_edges_;
  }

  // Moves each edge to its place, cycle after cycle; the place is above the low edge_bits_ of its entry of `order`.
  void move_in_place(std::int64_t* order, Id* indices, std::int64_t count) const {
    const std::int64_t edge_mask = (std::int64_t{1} << edge_bits_) - 1;
    for (std::int64_t i = 0; i < count; ++i) {
      auto moved = std::pair(order[i], indices[i]);
      for (;;) {
        const auto place = static_cast<std::int64_t>(static_cast<std::uint64_t>(moved.first) >> edge_bits_);
        if (place == i) break;
        std::swap(moved.first, order[place]);
        std::swap(moved.second, indices[place]);
      }
      order[i] = moved.first;
      indices[i] = moved.second;
    }
    for (std::int64_t i = 0; i < count; ++i) order[i] &= edge_mask;
  }

  std::span<const Id> src_, dst_;
  std::int64_t num_nodes_, num_sources_, num_edges_;
  std::optional<std::uint64_t> spare_bytes_;
  int shift_, edge_bits_;
  std::vector<std::int64_t> begin_;
};

void check_count(const char* name, std::int64_t count) {
  if (count < 0) {
    throw std::invalid_argument(std::string("coo_to_csc: ") + name + " must be 0 or more, got " + std::to_string(count) + ".");
  }
  if (count > kMaxNodes) {
    throw std::invalid_argument(std::string("coo_to_csc: ") + name + " must be at most 2^48, got " + std::to_string(count) + ".");
  }
}

}  // namespace

template <class Id>
Csc<Id> coo_to_csc(std::span<const Id> src, std::span<const Id> dst, std::int64_t num_nodes, std::int64_t num_sources,
                   std::int64_t partition_from, std::optional<std::uint64_t> spare_bytes) {
  if (src.size() != dst.size()) {
    throw std::invalid_argument("coo_to_csc: " + std::to_string(src.size()) + " sources but " + std::to_string(dst.size()) +
                                " destinations; give one of each for every edge.");
  }
  check_count("num_nodes", num_nodes);
  check_count("num_sources", num_sources);
  if (PartSort<Id> parts(src, dst, num_nodes, num_sources, spare_bytes); std::ssize(src) >= partition_from && parts.fits())
    return parts.sort();
  return sort_at_once(src, dst, num_nodes, num_sources);
}

template Csc<std::int32_t> coo_to_csc(std::span<const std::int32_t>, std::span<const std::int32_t>, std::int64_t, std::int64_t,
                                      std::int64_t, std::optional<std::uint64_t>);
template Csc<std::int64_t> coo_to_csc(std::span<const std::int64_t>, std::span<const std::int64_t>, std::int64_t, std::int64_t,
                                      std::int64_t, std::optional<std::uint64_t>);

}  // namespace datapipes
