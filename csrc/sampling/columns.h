// columns.h: the input of the columns of a hop: for each column a row of in-edges, the id of its node, and its tree.
//   NodeColumns: nodes of a numbering; each node is a row.
//   SeedColumns: given rows with their node ids, and optionally the stream, the time and the time window of each row.
//   KeyColumns: nodes of trees. A key is group << shift | node; the nodes of a group share a stream, a time and a window.
// `Found<Id>` is the type of a drawn neighbor: its id, or its key in the group of the column.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "graph/row_view.h"
#include "sampling/row_plan.h"

namespace datapipes {

// For each group: the stream of its draws, the time and the time window of its seeds. Empty spans mean stream 0, time 0 and no
// window.
struct Groups {
  std::int64_t count = 0;
  std::span<const std::uint32_t> streams = {};
  std::span<const std::int64_t> times = {};
  std::span<const std::int64_t> windows = {};
};

template <class Id>
struct NodeColumns {
  template <class>
  using Found = Id;
  static constexpr bool kTrees = false;
  std::span<const Id> nodes;

  std::int64_t count() const { return std::ssize(nodes); }
  std::int64_t row(std::int64_t d) const { return nodes[static_cast<std::size_t>(d)]; }
  template <class Any>
  Row in_edges(std::int64_t d, std::int64_t begin, std::int64_t degree, const RowView<Any>& rows) const {
    return {begin, degree, row(d), rows.node_of(row(d))};
  }
};

struct SeedColumns {
  template <class Id>
  using Found = Id;
  static constexpr bool kTrees = false;
  std::span<const std::int64_t> rows_of;
  std::span<const std::int64_t> ids = {};       // empty: looked up from the rows
  std::span<const std::uint32_t> streams = {};  // empty: 0
  std::span<const std::int64_t> times = {};     // empty: 0
  std::span<const std::int64_t> windows = {};   // empty: none

  std::int64_t count() const { return std::ssize(rows_of); }
  std::int64_t row(std::int64_t d) const { return rows_of[static_cast<std::size_t>(d)]; }
  template <class Any>
  Row in_edges(std::int64_t d, std::int64_t begin, std::int64_t degree, const RowView<Any>& rows) const {
    const auto at = static_cast<std::size_t>(d);
    const auto node = ids.empty() ? rows.node_of(row(d)) : static_cast<std::uint64_t>(ids[at]);
    return {begin,
            degree,
            row(d),
            node,
            streams.empty() ? 0 : streams[at],
            times.empty() ? 0 : times[at],
            windows.empty() ? -1 : windows[at]};
  }
};

// The layout of a group and a node of any type in a key of 63 bits.
struct KeyForm {
  int shift;

  // Throws std::length_error (ValueError) if there are too many groups and nodes.
  static KeyForm of(std::int64_t groups, std::int64_t most_nodes) {
    const int shift = std::bit_width(static_cast<std::uint64_t>(most_nodes));
    if (groups > 0 && std::bit_width(static_cast<std::uint64_t>(groups)) + shift > 63)
      throw std::length_error(std::to_string(groups) + " trees over " + std::to_string(most_nodes) +
                              " nodes exceed 2^63 pairs. Use fewer seeds in a minibatch.");
    return {shift};
  }
  std::int64_t groups(std::int64_t count) const { return count << shift; }  // the number of keys of `count` groups
  bool fits_32_bits(std::int64_t count) const { return groups(count) <= std::int64_t{1} << 31; }
  std::int64_t key(std::int64_t group, std::int64_t node) const { return group << shift | node; }
  std::int64_t node(std::int64_t key) const { return key & ((std::int64_t{1} << shift) - 1); }
  std::int64_t group(std::int64_t key) const { return key >> shift; }
};

template <class Key>
struct KeyColumns {
  template <class>
  using Found = Key;
  static constexpr bool kTrees = true;
  std::span<const Key> keys;
  KeyForm form;
  Groups groups;

  std::int64_t count() const { return std::ssize(keys); }
  std::int64_t row(std::int64_t d) const { return form.node(keys[static_cast<std::size_t>(d)]); }
  Key first_key(std::int64_t d) const {  // of the group; the key of a neighbor is first_key(d) | neighbor
    return static_cast<Key>(form.key(form.group(keys[static_cast<std::size_t>(d)]), 0));
  }
  template <class Any>
  Row in_edges(std::int64_t d, std::int64_t begin, std::int64_t degree, const RowView<Any>& rows) const {
    const auto group = static_cast<std::size_t>(form.group(keys[static_cast<std::size_t>(d)]));
    return {begin,
            degree,
            row(d),
            rows.node_of(row(d)),
            groups.streams.empty() ? 0 : groups.streams[group],
            groups.times.empty() ? 0 : groups.times[group],
            groups.windows.empty() ? -1 : groups.windows[group]};
  }
};

}  // namespace datapipes
