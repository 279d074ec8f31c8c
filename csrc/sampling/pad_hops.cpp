#include "sampling/pad_hops.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>

#include "graph/pad_block.h"

namespace datapipes {
namespace {

std::span<const std::int64_t> view(const Buffer<std::int64_t>& values) { return values.first(values.size()); }

template <class Id>
bool have_room(const std::vector<std::vector<CompactedHop<Id>>>& hops, const PadBucket& bucket) {
  for (std::size_t hop = 0; hop < hops.size(); ++hop)
    for (std::size_t i = 0; i < hops[hop].size(); ++i)
      if (hops[hop][i].indices.size() > bucket.edges[hop][i]) return false;
  return true;
}

template <class Id>
std::optional<std::size_t> bucket_of(const std::vector<std::vector<CompactedHop<Id>>>& hops, const PaddedLayers& layers,
                                     const Padding& padding) {
  for (std::size_t bucket = layers.guessed(); bucket < padding.buckets.size(); ++bucket)
    if (layers.fits(bucket) && have_room(hops, padding.buckets[bucket])) return bucket;
  return std::nullopt;
}

// Adds the edges of padding to a block whose rows of padding exist.
template <class Id>
void add_edges(CompactedHop<Id>& block, std::int64_t num_edges, bool has_ids) {
  const std::int64_t count = block.indices.size();
  if (block.indices.capacity() < num_edges) {  // nothing was drawn, or the guess at this hop had fewer edges
    Buffer<Id> indices(num_edges);
    std::copy_n(block.indices.data(), count, indices.data());
    block.indices = std::move(indices);
    if (has_ids) {
      Buffer<std::int64_t> ids(num_edges);
      std::copy_n(block.edge_ids.data(), count, ids.data());
      block.edge_ids = std::move(ids);
    }
  }
  block.indices.resize(num_edges);
  std::fill_n(block.indices.data() + count, num_edges - count, static_cast<Id>(block.num_src - 1));
  if (has_ids) {
    block.edge_ids.resize(num_edges);
    std::fill_n(block.edge_ids.data() + count, num_edges - count, std::int64_t{-1});
  }
  block.indptr[block.indptr.size() - 1] = num_edges;
}

template <class Id>
void copy(CompactedHop<Id>& block, const Layers& to, const Layers& from, std::int64_t num_edges, bool has_ids, int threads) {
  std::optional<std::span<const std::int64_t>> ids;
  if (has_ids) ids = view(block.edge_ids);
  auto padded = pad_block<Id>(view(block.indptr), block.indices.first(block.indices.size()), ids, to, from, num_edges, threads);
  block.indptr = std::move(padded.indptr);
  block.indices = std::move(padded.indices);
  block.edge_ids = std::move(padded.edge_ids);
}

}  // namespace

template <class Id>
std::optional<std::size_t> pad_hops(std::vector<std::vector<CompactedHop<Id>>>& hops, FoundNodes<Id>& found,
                                    const std::vector<std::pair<std::size_t, std::size_t>>& ends, const PaddedLayers& layers,
                                    const HopsRequest& request, int threads) {
  const auto bucket = bucket_of(hops, layers, *request.padding);
  const PadBucket* const sizes = bucket ? &request.padding->buckets[*bucket] : nullptr;
  const auto layers_of = [&](std::size_t type, std::size_t count) {
    count = std::min(count, layers.nodes(type).size());
    const auto rows = sizes == nullptr ? layers.nodes(type) : std::span<const std::int64_t>(sizes->rows[type]);
    return Layers{layers.places(type).first(count), layers.nodes(type).first(count), rows.first(count)};
  };
  bool is_in_place = true;
  for (std::size_t type = 0; type < found.nodes.size(); ++type) {
    const Layers of = layers_of(type, hops.size() + 1);
    is_in_place &= std::equal(of.places.begin(), of.places.end(), of.rows.begin());
  }
  for (std::size_t hop = 0; hop < hops.size(); ++hop) {
    for (std::size_t i = 0; i < ends.size(); ++i) {
      CompactedHop<Id>& block = hops[hop][i];
      const std::int64_t num_edges = sizes == nullptr ? block.indices.size() : sizes->edges[hop][i];
      const Layers to = layers_of(ends[i].second, hop + 1), from = layers_of(ends[i].first, hop + 2);
      block.num_src = std::accumulate(from.rows.begin(), from.rows.end(), std::int64_t{0});
      if (is_in_place)
        add_edges(block, num_edges, request.want_edge_ids);
      else
        copy(block, to, from, num_edges, request.want_edge_ids, threads);
    }
  }
  for (std::size_t type = 0; type < found.nodes.size(); ++type) {
    const Layers of = layers_of(type, hops.size() + 1);
    if (is_in_place) {  // the groups of gaps are 0 already, as their keys are
      Id* row = found.nodes[type].data();
      for (std::size_t layer = 0; layer < of.nodes.size(); row += of.rows[layer++])
        std::fill(row + of.nodes[layer], row + of.rows[layer], Id{-1});
      continue;
    }
    found.nodes[type] = pad_values<Id>(found.nodes[type].first(found.nodes[type].size()), of, Id{-1});
    if (!found.groups.empty()) found.groups[type] = pad_values<std::int64_t>(view(found.groups[type]), of, std::int64_t{0});
  }
  return bucket;
}

template std::optional<std::size_t> pad_hops(std::vector<std::vector<CompactedHop<std::int32_t>>>&, FoundNodes<std::int32_t>&,
                                             const std::vector<std::pair<std::size_t, std::size_t>>&, const PaddedLayers&,
                                             const HopsRequest&, int);
template std::optional<std::size_t> pad_hops(std::vector<std::vector<CompactedHop<std::int64_t>>>&, FoundNodes<std::int64_t>&,
                                             const std::vector<std::pair<std::size_t, std::size_t>>&, const PaddedLayers&,
                                             const HopsRequest&, int);

}  // namespace datapipes
