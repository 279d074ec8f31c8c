// edges_among.h: the edges of a block whose sources are among the nodes of a closed numbering; docs/semantics.md section 4.9.
// Touches no Python object.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/buffer.h"
#include "sampling/numbering.h"

namespace datapipes {

template <class Id>
struct EdgesAmong {
  std::vector<std::int64_t> picks = {};  // of each edge: its number among all picks of the block; ascending
  std::vector<Id> sources = {};          // local ids
  std::vector<std::int64_t> edge_ids = {};

  // Takes the edges among the picks first, first + 1, ..., which have these keys and edge ids (null: not wanted).
  template <class Key>
  void take(const Numbering<Key>& numbering, std::int64_t first, std::span<const Key> keys, const std::int64_t* ids) {
    std::uint32_t places[kMostFound];
    Id local[kMostFound];
    for (std::size_t begin = 0; begin < keys.size(); begin += kMostFound) {
      const auto block = keys.subspan(begin, std::min(kMostFound, keys.size() - begin));
      const std::size_t count = numbering.find(block, places, local);
      const auto at = [&](std::size_t i) { return static_cast<std::int64_t>(begin + places[i]); };
      for (std::size_t i = 0; i < count; ++i) picks.push_back(first + at(i));
      sources.insert(sources.end(), local, local + count);
      for (std::size_t i = 0; ids != nullptr && i < count; ++i) edge_ids.push_back(ids[at(i)]);
    }
  }

  void append(const EdgesAmong& next) {
    picks.insert(picks.end(), next.picks.begin(), next.picks.end());
    sources.insert(sources.end(), next.sources.begin(), next.sources.end());
    edge_ids.insert(edge_ids.end(), next.edge_ids.begin(), next.edge_ids.end());
  }

  // Turns the offsets of all picks into those of the edges.
  Buffer<std::int64_t> offsets(Buffer<std::int64_t>&& indptr) const {
    std::size_t before = 0;
    for (std::int64_t& offset : std::span(indptr.data(), static_cast<std::size_t>(indptr.size()))) {
      while (before < picks.size() && picks[before] < offset) ++before;
      offset = static_cast<std::int64_t>(before);
    }
    return std::move(indptr);
  }
};

}  // namespace datapipes
