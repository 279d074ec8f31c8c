// exclude_edges.h: takes edges out of the hops of a minibatch, by the original ids of their ends or by their own ids.
//   ExcludedEdges: the edges to take out; made once for a minibatch and an edge type. Pairs may repeat, and need not be edges.
//   without: a hop over local ids without these edges: indptr int64[num_dst + 1], indices Id[num_edges] and edge_ids
//   int64[num_edges] or none; src_nodes and dst_nodes have the original id of each local id. Returns none if no edge is taken
//   out. Other edges keep their order. With pairs, only columns whose destination is in a pair are read, so it costs little more
//   than a copy of the hop.
// Throws std::invalid_argument (ValueError) on a hop that is not consistent. Touches no Python object.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/buffer.h"

namespace datapipes {

template <class Id>
struct LocalHop {
  std::span<const std::int64_t> indptr;
  std::span<const Id> indices;
  std::optional<std::span<const std::int64_t>> edge_ids;
  std::span<const Id> src_nodes, dst_nodes;
};

template <class Id>
struct KeptEdges {
  Buffer<std::int64_t> indptr;
  Buffer<Id> indices;
  Buffer<std::int64_t> edge_ids;
};

// A set of pairs of numbers, with open addressing; a number alone is a pair with 0.
class PairSet {
 public:
  PairSet() = default;
  explicit PairSet(std::size_t most);
  void add(std::int64_t one, std::int64_t other);
  bool has(std::int64_t one, std::int64_t other) const;

 private:
  struct Entry {
    std::int64_t one, other;
    bool used = false;
  };
  std::size_t place_of(std::uint64_t hash, std::int64_t one, std::int64_t other) const;

  std::vector<Entry> entries_;         // a power of two
  std::vector<std::uint64_t> filter_;  // bits of the hashes; rules out most numbers that are not in the set
};

class ExcludedEdges {
 public:
  // Both of equal length: the ends of pairs.
  ExcludedEdges(std::span<const std::int64_t> sources, std::span<const std::int64_t> destinations);
  explicit ExcludedEdges(std::span<const std::int64_t> ids);

  template <class Id>
  std::optional<KeptEdges<Id>> without(const LocalHop<Id>& hop) const;

 private:
  template <class Id>
  std::vector<std::int64_t> excluded_positions(const LocalHop<Id>& hop) const;

  bool by_id_;
  PairSet destinations_, edges_;  // edges: (destination, source), or (id, 0)
};

}  // namespace datapipes
