// numbered_nodes.h: the keys that a minibatch numbers: ids of nodes (PlainNodes), or pairs of a group and an id, if each group
// of seeds has nodes of its own (NodesOfGroups; columns.h). Shared by sample_neighbors and hops_over_parts.
//   Key                    the type that a Numbering numbers
//   num_keys(num_nodes)    the number of keys of a node type
//   seed(id, seeds, i)     the key of the i-th seed, whose id has been checked
//   id(key)                the node of a key
//   columns(keys)          the keys as the columns of a hop
//   found(key, neighbor)   with groups: the key of a neighbor drawn for the node of `key`
// NodesOfGroups throws std::length_error (ValueError) if there are too many groups, std::out_of_range (IndexError) on a seed
// of no group.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/buffer.h"
#include "common/inside.h"
#include "common/load.h"
#include "graph/topology.h"
#include "sampling/columns.h"

namespace datapipes {

struct Seeds {
  std::size_t type;
  std::span<const std::int64_t> ids;
  std::span<const std::int64_t> groups = {};  // [num_seeds], if the request has groups
};

template <class Id>
struct PlainNodes {
  using Key = Id;
  using Columns = NodeColumns<Id>;
  static constexpr bool kGroups = false;
  PlainNodes(const std::vector<NodeType>&, const std::optional<Groups>&) {}
  std::int64_t num_keys(std::int64_t num_nodes) const { return num_nodes; }
  Key seed(std::int64_t id, const Seeds&, std::size_t) const { return static_cast<Id>(id); }
  Id id(Key key) const { return key; }
  Columns columns(std::span<const Key> nodes) const { return {nodes}; }
};

// Keys of 32 bits, where they fit (KeyForm::fits_32_bits), take half the memory in the id map.
template <class Id, class Number = std::int64_t>
struct NodesOfGroups {
  using Key = Number;
  using Columns = KeyColumns<Key>;
  static constexpr bool kGroups = true;
  NodesOfGroups(const std::vector<NodeType>& node_types, const std::optional<Groups>& of) : groups(*of), form{0} {
    std::int64_t most = 0;
    for (const NodeType& type : node_types) most = std::max(most, type.num_nodes);
    form = KeyForm::of(groups.count, most);
  }
  std::int64_t num_keys(std::int64_t) const { return form.groups(groups.count); }
  bool has_short_keys() const { return form.fits_32_bits(groups.count); }
  Key seed(std::int64_t id, const Seeds& seeds, std::size_t i) const {
    const std::int64_t group = read_once(seeds.groups[i]);
    if (!is_inside(group, groups.count)) throw std::out_of_range("no group has the number " + std::to_string(group) + ".");
    return static_cast<Key>(form.key(group, id));
  }
  Id id(Key key) const { return static_cast<Id>(form.node(key)); }
  std::int64_t group(Key key) const { return form.group(key); }
  Key found(Key key, Id neighbor) const { return static_cast<Key>(form.key(form.group(key), neighbor)); }
  Columns columns(std::span<const Key> keys) const { return {keys, form, groups}; }

  Groups groups;
  KeyForm form;
};

// The ids and the groups of keys.
template <class Id, class Key>
std::pair<Buffer<Id>, Buffer<std::int64_t>> split_keys(const NodesOfGroups<Id, Key>& nodes, const Buffer<Key>& keys) {
  const auto count = std::ssize(keys);
  std::pair<Buffer<Id>, Buffer<std::int64_t>> found{Buffer<Id>(count), Buffer<std::int64_t>(count)};
  for (std::int64_t i = 0; i < count; ++i) {
    found.first[i] = nodes.id(keys[i]);
    found.second[i] = nodes.group(keys[i]);
  }
  return found;
}

// Throws std::invalid_argument (ValueError) unless each seed has a group, and each group a stream, a time and a window, if any
// have.
inline void check_groups(const std::optional<Groups>& groups, std::span<const Seeds> seeds) {
  if (!groups) return;
  for (const Seeds& of_type : seeds)
    if (of_type.groups.size() != of_type.ids.size()) throw std::invalid_argument("give one group for each seed.");
  for (const std::int64_t found : {std::ssize(groups->streams), std::ssize(groups->times), std::ssize(groups->windows)})
    if (found != 0 && found != groups->count)
      throw std::invalid_argument("give one stream, one time and one window for each group.");
}

}  // namespace datapipes
