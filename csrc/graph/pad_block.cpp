#include "graph/pad_block.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/avx2.h"
#include "common/thread_pool.h"

namespace datapipes {
namespace {

constexpr std::int64_t kEdgesPerTurn = 1 << 16;  // edges that one thread moves per turn

[[noreturn]] void refuse(const std::string& found) {
  throw std::invalid_argument("pad: a block has " + found + ". Correct the stage that made the block.");
}

std::int64_t sum(std::span<const std::int64_t> sizes) { return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}); }

// Checks that each layer has rows for its nodes. Returns the number of its rows.
std::int64_t checked_rows(const Layers& layers) {
  if (layers.places.size() != layers.rows.size() || layers.nodes.size() != layers.rows.size() || layers.nodes.empty())
    throw std::invalid_argument("pad: layers have " + std::to_string(layers.nodes.size()) + " numbers of nodes and " +
                                std::to_string(layers.rows.size()) + " of rows; both need one for each layer. Pass as many.");
  for (std::size_t i = 0; i < layers.nodes.size(); ++i)
    if (layers.nodes[i] < 0 || layers.places[i] < layers.nodes[i] || layers.rows[i] < layers.nodes[i])
      throw std::invalid_argument("pad: layer " + std::to_string(i) + " has " + std::to_string(layers.nodes[i]) + " nodes for " +
                                  std::to_string(layers.places[i]) + " places and " + std::to_string(layers.rows[i]) +
                                  " rows; it needs one of each. Use larger sizes.");
  return sum(layers.rows);
}

void check_last_row(const Layers& layers) {
  if (layers.rows.back() == layers.nodes.back())
    throw std::invalid_argument("pad: the last layer has " + std::to_string(layers.rows.back()) +
                                " nodes and as many rows; edges of padding need one more row. Use larger sizes.");
}

void fill_indptr(std::span<const std::int64_t> indptr, const Layers& to, std::int64_t num_edges, Buffer<std::int64_t>& out) {
  const std::int64_t* ends = indptr.data() + 1;
  std::int64_t* place = out.data();
  std::int64_t reached = *place++ = 0;
  for (std::size_t i = 0; i < to.nodes.size(); ++i) {
    place = std::copy_n(ends, to.nodes[i], place);
    ends += to.places[i];
    reached = place[-1];
    place = std::fill_n(place, to.rows[i] - to.nodes[i], reached);
  }
  place[-1] = num_edges;
}

// Where the nodes of a layer begin, and how much further they move than the nodes of the layer before.
template <class Id>
struct Step {
  Id begin, by;
};

template <class Id>
std::vector<Step<Id>> steps_of(const Layers& from) {
  std::vector<Step<Id>> steps;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i + 1 < from.nodes.size(); ++i) {
    begin += from.places[i];
    steps.push_back({static_cast<Id>(begin), static_cast<Id>(from.rows[i] - from.places[i])});
  }
  return steps;
}

// Writes the places of `count` nodes. Returns whether all are in [0, num_nodes). kSteps: the number of `steps`, which the
// compiler knows, so that it makes SIMD of the loop.
template <std::size_t kSteps, class Id>
[[gnu::always_inline]] inline bool move(const Id* nodes, std::int64_t count, const Step<Id>* steps, Id num_nodes, Id* out) {
  std::array<Step<Id>, kSteps> at;
  std::copy_n(steps, kSteps, at.begin());
  Id outside = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const Id node = nodes[i];
    Id place = node;
    for (const auto& step : at) place += node >= step.begin ? step.by : Id{0};
    outside |= static_cast<Id>(node < 0) | static_cast<Id>(node >= num_nodes);
    out[i] = place;
  }
  return outside == 0;
}

template <class Id>
[[gnu::always_inline]] inline bool move_all(const Id* nodes, std::int64_t count, std::span<const Step<Id>> steps, Id num_nodes,
                                            Id* out) {
  constexpr std::size_t kMost = 4;
  switch (steps.size()) {
    case 0:
      return move<0>(nodes, count, steps.data(), num_nodes, out);
    case 1:
      return move<1>(nodes, count, steps.data(), num_nodes, out);
    case 2:
      return move<2>(nodes, count, steps.data(), num_nodes, out);
    case 3:
      return move<3>(nodes, count, steps.data(), num_nodes, out);
    default:
      break;
  }
  bool all_inside = move<kMost>(nodes, count, steps.data(), num_nodes, out);
  for (const auto& step : steps.subspan(kMost))
    for (std::int64_t i = 0; i < count; ++i) out[i] += nodes[i] >= step.begin ? step.by : Id{0};
  return all_inside;
}

#if defined(DATAPIPES_AVX2)
template <class Id>
DATAPIPES_AVX2 bool move_all_avx2(const Id* nodes, std::int64_t count, std::span<const Step<Id>> steps, Id num_nodes, Id* out) {
  return move_all(nodes, count, steps, num_nodes, out);
}
#endif

template <class Id>
void move_indices(const Id* nodes, std::int64_t count, std::span<const Step<Id>> steps, Id num_nodes, Id* out) {
#if defined(DATAPIPES_AVX2)
  const bool all_inside = (has_avx2() ? move_all_avx2<Id> : move_all<Id>)(nodes, count, steps, num_nodes, out);
#else
  const bool all_inside = move_all(nodes, count, steps, num_nodes, out);
#endif
  if (all_inside) return;
  for (std::int64_t i = 0; i < count; ++i) check_node("pad", nodes[i], num_nodes);
  refuse("indices that change while it is padded");
}

}  // namespace

template <class Id>
PaddedBlock<Id> pad_block(std::span<const std::int64_t> indptr, std::span<const Id> indices,
                          std::optional<std::span<const std::int64_t>> edge_ids, const Layers& to, const Layers& from,
                          std::int64_t num_edges, int threads) {
  const std::int64_t num_rows = checked_rows(to), num_sources = checked_rows(from), found = std::ssize(indices);
  if (std::ssize(indptr) != sum(to.places) + 1)
    refuse(std::to_string(std::ssize(indptr) - 1) + " destinations; the layers have " + std::to_string(sum(to.places)) +
           " nodes");
  if (indptr.front() != 0 || indptr.back() != found)
    refuse("an indptr from " + std::to_string(indptr.front()) + " to " + std::to_string(indptr.back()) + " and " +
           std::to_string(found) + " edges");
  if (edge_ids && std::ssize(*edge_ids) != found)
    refuse(std::to_string(edge_ids->size()) + " edge ids for " + std::to_string(found) + " edges");
  if (found > num_edges)
    throw std::invalid_argument("pad: " + std::to_string(found) + " edges for " + std::to_string(num_edges) +
                                " places; there must be one for each. Use larger sizes.");
  if (found < num_edges) {
    check_last_row(to);
    check_last_row(from);
  }
  if (num_sources > std::numeric_limits<Id>::max())
    throw std::invalid_argument("pad: " + std::to_string(num_sources) +
                                " rows exceed the dtype of the indices of a block. Use int64.");
  const bool has_ids = edge_ids.has_value();
  PaddedBlock<Id> padded{Buffer<std::int64_t>(num_rows + 1), Buffer<Id>(num_edges),
                         Buffer<std::int64_t>(has_ids ? num_edges : 0)};
  fill_indptr(indptr, to, num_edges, padded.indptr);
  const auto steps = steps_of<Id>(from);
  const auto num_nodes = static_cast<Id>(sum(from.places));
  in_turns(found, kEdgesPerTurn, threads, [&](std::int64_t begin, std::int64_t end) {
    move_indices<Id>(indices.data() + begin, end - begin, steps, num_nodes, padded.indices.data() + begin);
    if (has_ids) std::copy_n(edge_ids->data() + begin, end - begin, padded.edge_ids.data() + begin);
  });
  std::fill_n(padded.indices.data() + found, num_edges - found, static_cast<Id>(num_sources - 1));
  if (has_ids) std::fill_n(padded.edge_ids.data() + found, num_edges - found, std::int64_t{-1});
  return padded;
}

template <class Value>
Buffer<Value> pad_values(std::span<const Value> values, const Layers& layers, Value padding) {
  Buffer<Value> padded(checked_rows(layers));
  if (std::ssize(values) != sum(layers.places))
    refuse(std::to_string(values.size()) + " values for " + std::to_string(sum(layers.places)) + " nodes");
  const Value* from = values.data();
  Value* place = padded.data();
  for (std::size_t i = 0; i < layers.nodes.size(); ++i) {
    place = std::copy_n(from, layers.nodes[i], place);
    from += layers.places[i];
    place = std::fill_n(place, layers.rows[i] - layers.nodes[i], padding);
  }
  return padded;
}

template Buffer<std::int32_t> pad_values(std::span<const std::int32_t>, const Layers&, std::int32_t);
template Buffer<std::int64_t> pad_values(std::span<const std::int64_t>, const Layers&, std::int64_t);
template PaddedBlock<std::int32_t> pad_block(std::span<const std::int64_t>, std::span<const std::int32_t>,
                                             std::optional<std::span<const std::int64_t>>, const Layers&, const Layers&,
                                             std::int64_t, int);
template PaddedBlock<std::int64_t> pad_block(std::span<const std::int64_t>, std::span<const std::int64_t>,
                                             std::optional<std::span<const std::int64_t>>, const Layers&, const Layers&,
                                             std::int64_t, int);

}  // namespace datapipes
