// hops.h: assembles the hops of a minibatch; docs/semantics.md section 4. The draws come from its caller: sample_neighbors draws
// from the rows of a graph, hops_over_parts takes the answers of the parts of a graph.
//   start(seeds, name_of) numbers the seeds and returns their local ids. Then for each hop: begin_hop() makes the nodes found
//   so far the destinations; make_blocks(...) returns the blocks of the sampled relations, each made by one call of block(), or
//   without picks if nothing is drawn. finish() returns the nodes of each type.
//   A hop draws for destinations [first(type), num_dst(type)). Frontier "all": all destinations. Frontier "new" (only_new): the
//   destinations that no earlier hop had; the columns of the others are empty.
//   With padding, each layer of nodes leaves the rows of padding as a gap (padded_layers.h), so that the local ids are those of
//   the padded minibatch if the guess of its bucket holds; pad_hops() does the rest. Columns in gaps are empty.
// Throws std::out_of_range (IndexError) on a seed outside the graph, std::invalid_argument (ValueError) on seeds without
// groups, std::length_error (ValueError) past 2^32 - 1 nodes or 2^63 pairs of group and node, NoRoom (MemoryError, hop_room.h)
// if a hop does not fit into memory. After an error the object must not be used again. Touches no Python object.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/buffer.h"
#include "common/load.h"
#include "graph/row_view.h"
#include "graph/topology.h"
#include "sampling/edges_among.h"
#include "sampling/hop_room.h"
#include "sampling/numbered_nodes.h"
#include "sampling/numbering.h"
#include "sampling/padded_layers.h"
#include "sampling/range.h"

namespace datapipes {

// The options of the hops of a minibatch.
struct HopsRequest {
  std::vector<std::size_t> sampled = {};  // the sampled relations, ascending
  std::optional<Groups> groups = {};
  bool only_new = false;    // frontier "new": each node is sampled once, in the hop after its first occurrence
  bool only_among = false;  // leave out edges whose sources are no seeds (with groups: no seeds of the same group)
  bool want_edge_ids = false;
  std::int64_t direct_limit = kDirectMapLimit;  // nodes of all types that may have direct maps
  const Padding* padding = nullptr;             // null: no padding
  std::vector<std::int64_t> num_seeds = {};     // of each type of seeds, with padding
};

template <class Id>
struct CompactedHop {
  Buffer<std::int64_t> indptr;
  Buffer<Id> indices;
  Buffer<std::int64_t> edge_ids;
  std::int64_t num_src = 0;
};

template <class Id>
struct FoundNodes {
  std::vector<Buffer<Id>> nodes;             // of each type: distinct ids by first occurrence, seeds first
  std::vector<Buffer<std::int64_t>> groups;  // of each type: the group of each node; empty without groups
};

// `Nodes` is PlainNodes<Id>, or NodesOfGroups<Id, ...> if the request has groups.
template <class Id, class Nodes>
class Hops {
 public:
  using Key = typename Nodes::Key;

  // The output for the picks of a block. Each pick is numbered from its key; keys and local ids may share memory.
  struct Picks {
    Key* keys;
    Id* local;
    std::int64_t* edge_ids;  // null if not wanted
  };

  // `node_types` and `request` must stay where they are.
  Hops(const std::vector<NodeType>& node_types, const HopsRequest& request)
      : node_types_(node_types),
        request_(request),
        nodes_(node_types, request.groups),
        num_dst_(node_types.size(), 0),
        drawn_(node_types.size(), 0),
        columns_(node_types.size()),
        direct_left_(request.direct_limit) {
    for (const NodeType& type : node_types) numberings_.emplace_back(nodes_.num_keys(type.num_nodes));
    if (request.padding != nullptr) layers_.emplace(*request.padding, request.num_seeds, node_types.size());
  }

  const Nodes& nodes() const { return nodes_; }
  std::int64_t first(std::size_t type) const { return request_.only_new ? drawn_[type] : 0; }
  std::int64_t num_dst(std::size_t type) const { return num_dst_[type]; }
  bool has_rows(std::size_t type) const { return !columns_[type].empty(); }
  std::span<const Range> columns(std::size_t type) const { return columns_[type]; }  // of the nodes for which the hop draws
  const std::optional<PaddedLayers>& layers() const { return layers_; }              // if the request has padding
  std::span<const Key> destinations(std::size_t type) const {
    return numberings_[type].nodes().first(static_cast<std::size_t>(num_dst_[type]));
  }

  // name_of(node type) names its nodes in errors.
  template <class NameOf>
  std::vector<Buffer<Id>> start(std::span<const Seeds> seeds, NameOf&& name_of) {
    check_groups(request_.groups, seeds);
    std::vector<Buffer<Id>> local;
    for (const Seeds& of_type : seeds) {
      const NodeType& type = node_types_[of_type.type];
      const std::string name = name_of(type);
      std::vector<Key> keys(of_type.ids.size());
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const std::int64_t id = read_once(of_type.ids[i]);
        check_node(name.c_str(), id, type.num_nodes);
        keys[i] = nodes_.seed(id, of_type, i);
      }
      Buffer<Id>& numbers = local.emplace_back(std::ssize(keys));
      numberings_[of_type.type].number_all(keys, numbers.data(), direct_left_, kMostLocalIds<Id>);
    }
    if (request_.only_among)
      for (auto& numbering : numberings_) numbering.close();
    return local;
  }

  void begin_hop() {
    end_layer();
    for (std::size_t type = 0; type < numberings_.size(); ++type) {
      num_dst_[type] = numberings_[type].count();
      columns_[type].clear();
      for (const Range range : numberings_[type].ranges())
        if (const Range drawn{std::max(range.begin, first(type)), range.end}; drawn.begin < drawn.end)
          columns_[type].push_back(drawn);
    }
  }

  // Also ends the hop. fanout_of(i) and block_of(i) are for the relation sampled[i].
  template <class Relations, class FanoutOf, class BlockOf>
  std::vector<CompactedHop<Id>> make_blocks(const Relations& relations, FanoutOf&& fanout_of, BlockOf&& block_of) {
    std::vector<CompactedHop<Id>> blocks;
    for (std::size_t i = 0; i < request_.sampled.size(); ++i) {
      const std::size_t dst = relations[request_.sampled[i]].dst;
      room_ = layers_ ? layers_->num_edges(hop_, i) : 0;
      blocks.push_back(fanout_of(i) != 0 && has_rows(dst) ? block_of(i) : empty_block(num_dst_[dst]));
    }
    for (std::size_t i = 0; i < blocks.size(); ++i)  // only now: later relations find nodes of the same type
      blocks[i].num_src = numberings_[relations[request_.sampled[i]].src].count();
    drawn_ = num_dst_;
    ++hop_;
    return blocks;
  }

  // Makes the block of a relation of the types `src` and `dst`.
  //   lay_out() -> a layout: indptr int64[num_dst + 1], which the block takes; num_picks(); largest(), the most picks of a
  //   column, which sets the scratch memory.
  //   draw(layout, numbering, map, picks) writes the keys of all picks, numbers them in their order, and writes edge ids.
  //   draw_among(layout, numbering, edges) instead takes the edges among the seeds.
  template <class LayOut, class Draw, class DrawAmong>
  CompactedHop<Id> block(const HopRoom& room, std::size_t src, std::size_t dst, LayOut&& lay_out, Draw&& draw,
                         DrawAmong&& draw_among) {
    std::int64_t num_picks = 0;
    try {
      auto layout = lay_out();
      num_picks = layout.num_picks();
      constexpr std::int64_t kKeys = kInPlace ? 0 : sizeof(Key);
      check_hop_room(room, layout, sizeof(Id) + kKeys + (request_.want_edge_ids ? sizeof(std::int64_t) : 0), held_, kKeys);
      held_ += num_picks + num_dst_[dst];
      if (request_.only_among) {
        EdgesAmong<Id> edges;
        draw_among(layout, std::as_const(numberings_[src]), edges);
        return {edges.offsets(std::move(layout.indptr)), copied(edges.sources), copied(edges.edge_ids), 0};
      }
      const std::int64_t space = std::max(num_picks, room_);
      CompactedHop<Id> block{.indptr = {}, .indices = Buffer<Id>(space), .edge_ids = {}, .num_src = 0};
      block.indices.resize(num_picks);
      if (request_.want_edge_ids) {
        block.edge_ids = Buffer<std::int64_t>(space);
        block.edge_ids.resize(num_picks);
      }
      Buffer<Key> keys;
      Picks picks{nullptr, block.indices.data(), block.edge_ids.data()};
      if constexpr (kInPlace) {
        picks.keys = picks.local;
      } else {
        keys = Buffer<Key>(num_picks);
        picks.keys = keys.data();
      }
      auto& numbering = numberings_[src];
      // The layout still reads the old memory if src and dst are one type.
      const Buffer<Key> before = numbering.make_room(num_picks, direct_left_, kMostLocalIds<Id>);
      numbering.visit([&](auto& map) { draw(layout, numbering, map, picks); });
      block.indptr = std::move(layout.indptr);
      return block;
    } catch (const NoRoom&) {
      throw;
    } catch (const std::bad_alloc&) {
      room.refuse_allocation(num_picks, num_dst_[dst]);
    }
  }

  FoundNodes<Id> finish() {
    end_layer();
    FoundNodes<Id> found;
    for (auto& numbering : numberings_) {
      if constexpr (Nodes::kGroups) {
        auto [ids, groups] = split_keys(nodes_, numbering.finish());
        found.nodes.push_back(std::move(ids));
        found.groups.push_back(std::move(groups));
      } else {
        found.nodes.push_back(numbering.finish());
      }
    }
    return found;
  }

 private:
  static constexpr bool kInPlace = std::is_same_v<Key, Id>;

  // Leaves the rows of padding behind the nodes that the last hop found.
  void end_layer() {
    if (!layers_) return;
    std::vector<std::int64_t> counts;
    for (const auto& numbering : numberings_) counts.push_back(numbering.count());
    const auto begins = layers_->end_layer(counts);
    for (std::size_t type = 0; type < numberings_.size(); ++type) numberings_[type].skip_to(begins[type], kMostLocalIds<Id>);
  }

  static CompactedHop<Id> empty_block(std::int64_t num_dst) {
    CompactedHop<Id> block{.indptr = Buffer<std::int64_t>(num_dst + 1), .indices = {}, .edge_ids = {}, .num_src = 0};
    std::fill_n(block.indptr.data(), num_dst + 1, std::int64_t{0});
    return block;
  }

  template <class T>
  static Buffer<T> copied(const std::vector<T>& values) {
    Buffer<T> copy(std::ssize(values));
    std::copy(values.begin(), values.end(), copy.data());
    return copy;
  }

  const std::vector<NodeType>& node_types_;
  const HopsRequest& request_;
  const Nodes nodes_;
  std::vector<Numbering<Key>> numberings_;   // of each node type
  std::vector<std::int64_t> num_dst_;        // of each node type: local ids before the hop
  std::vector<std::int64_t> drawn_;          // of each node type: destinations of the hop before
  std::vector<std::vector<Range>> columns_;  // of each node type: see columns()
  std::optional<PaddedLayers> layers_;
  std::int64_t direct_left_;  // nodes that may still have a direct map
  std::size_t hop_ = 0;
  std::int64_t room_ = 0;  // edges for which the next block gets memory
  std::int64_t held_ = 0;  // picks and columns of the blocks made so far
};

}  // namespace datapipes
