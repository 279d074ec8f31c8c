#include "partition/symmetrise.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string>

#include "common/buffer.h"
#include "common/inside.h"
#include "partition/whole_graph.h"

namespace datapipes {
namespace {

constexpr std::int64_t kAhead = 16;  // edges between a prefetch and its use

template <class Index>
[[noreturn]] void throw_too_large() {
  throw std::length_error("Partitioner: METIS was built for graphs of fewer than 2^" + std::to_string(8 * sizeof(Index) - 1) +
                          " nodes and neighbors, and this one has more. Use method='fennel', which streams the graph.");
}

template <class Index>
void check_nodes(std::span<Index> xadj, std::int64_t num_nodes) {
  if (num_nodes > std::numeric_limits<Index>::max()) throw_too_large<Index>();
  if (std::ssize(xadj) != num_nodes + 1) {
    throw std::invalid_argument("Partitioner: xadj has " + std::to_string(xadj.size()) + " entries; it needs " +
                                std::to_string(num_nodes + 1) + ", one more than there are nodes.");
  }
}

[[noreturn]] void throw_changed(const std::string& op, std::int64_t node) {
  throw std::invalid_argument(
      op + ": the edges of node " + std::to_string(node) +
      " are not those that were counted before. The graph changed while it was read; let nothing write to "
      "its files.");
}

template <class Id>
void prefetch_at(const std::int64_t* numbers, const RowView<Id>& rows, std::int64_t position) {
  if (position >= std::ssize(rows.indices)) return;
  const std::int64_t source = rows.indices[static_cast<std::size_t>(position)];
  if (is_inside(source, rows.num_sources)) __builtin_prefetch(numbers + source, 1);
}

}  // namespace

template <class Id, class Index>
std::int64_t count_neighbors(const Topology<Id>& graph, std::span<Index> xadj, const Pulse& pulse) {
  const auto first = first_nodes(graph);
  check_nodes(xadj, first.back());
  std::fill(xadj.begin(), xadj.end(), Index{0});
  Index* const count = xadj.data() + 1;
  std::int64_t entries = 0;
  Pace pace(pulse);
  for (const auto& relation : graph.relations) {
    const std::int64_t from = first[relation.src], to = first[relation.dst];
    for (std::int64_t row = 0; row < relation.rows.num_rows(); ++row) {
      const auto [begin, end] = check_row(relation, row);
      if (end - begin > (std::numeric_limits<Index>::max() - entries) / 2) throw_too_large<Index>();
      std::int64_t kept = 0;
      for (std::int64_t at = begin; at < end; ++at) {
        const std::int64_t source = from + source_at(relation, at);
        if (source == to + row) continue;
        ++count[source];
        ++kept;
      }
      count[to + row] += static_cast<Index>(kept);
      entries += 2 * kept;
      pace.add(end - begin);
    }
  }
  for (std::size_t v = 1; v < xadj.size(); ++v) xadj[v] += xadj[v - 1];
  return entries;
}

template <class Id, class Index>
std::int64_t fill_neighbors(const Topology<Id>& graph, std::span<Index> xadj, std::span<Index> adjncy, const Pulse& pulse) {
  const auto first = first_nodes(graph);
  const std::int64_t num_nodes = first.back();
  check_nodes(xadj, num_nodes);
  if (xadj[0] != 0 || !std::is_sorted(xadj.begin(), xadj.end()) || xadj.back() > std::ssize(adjncy))
    throw std::invalid_argument("Partitioner: xadj must ascend from 0 to at most the size of adjncy. Pass what was counted.");
  Buffer<std::int64_t> next(num_nodes);  // where the next neighbor of each node belongs
  std::copy_n(xadj.begin(), num_nodes, next.data());
  Pace pace(pulse);
  for (const auto& relation : graph.relations) {
    const std::int64_t from = first[relation.src], to = first[relation.dst];
    const std::string op = op_of(relation);
    const auto put = [&](std::int64_t node, std::int64_t neighbor) {
      if (next[node] >= xadj[static_cast<std::size_t>(node) + 1]) throw_changed(op, node);
      adjncy[static_cast<std::size_t>(next[node]++)] = static_cast<Index>(neighbor);
    };
    for (std::int64_t row = 0; row < relation.rows.num_rows(); ++row) {
      const auto [begin, end] = check_row(relation, row);
      for (std::int64_t at = begin; at < end; ++at) {
        prefetch_at(next.data() + from, relation.rows, at + kAhead);
        const std::int64_t source = from + source_at(relation, at);
        if (source == to + row) continue;
        put(to + row, source);
        put(source, to + row);
      }
      pace.add(end - begin);
    }
  }
  Index* const rows = adjncy.data();
  Index* kept = rows;
  for (std::int64_t v = 0; v < num_nodes; ++v) {
    Index* const begin = rows + xadj[static_cast<std::size_t>(v)];
    Index* const end = rows + next[v];
    xadj[static_cast<std::size_t>(v)] = static_cast<Index>(kept - rows);
    std::sort(begin, end);
    Index* const unique = std::unique(begin, end);
    kept = kept == begin ? unique : std::copy(begin, unique, kept);
    pace.add(end - begin);
  }
  xadj.back() = static_cast<Index>(kept - rows);
  return kept - rows;
}

template std::int64_t count_neighbors(const Topology<std::int32_t>&, std::span<std::int32_t>, const Pulse&);
template std::int64_t count_neighbors(const Topology<std::int32_t>&, std::span<std::int64_t>, const Pulse&);
template std::int64_t count_neighbors(const Topology<std::int64_t>&, std::span<std::int32_t>, const Pulse&);
template std::int64_t count_neighbors(const Topology<std::int64_t>&, std::span<std::int64_t>, const Pulse&);
template std::int64_t fill_neighbors(const Topology<std::int32_t>&, std::span<std::int32_t>, std::span<std::int32_t>,
                                     const Pulse&);
template std::int64_t fill_neighbors(const Topology<std::int32_t>&, std::span<std::int64_t>, std::span<std::int64_t>,
                                     const Pulse&);
template std::int64_t fill_neighbors(const Topology<std::int64_t>&, std::span<std::int32_t>, std::span<std::int32_t>,
                                     const Pulse&);
template std::int64_t fill_neighbors(const Topology<std::int64_t>&, std::span<std::int64_t>, std::span<std::int64_t>,
                                     const Pulse&);

}  // namespace datapipes
