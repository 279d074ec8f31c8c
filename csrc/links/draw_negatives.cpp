#include "links/draw_negatives.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "common/load.h"
#include "random/philox.h"
#include "sampling/sums_search.h"

namespace datapipes {
namespace {

// The first node whose sum is above x; the last that can be drawn where rounding makes x the whole sum.
std::int64_t first_node_above(const RowSums& weights, std::int64_t num_nodes, double x) {
  const double* const sums = weights.sums.data();
  const double* const coarse = weights.coarse.data();  // sums[8 g + 7] at g
  const std::int64_t lines = num_nodes / kLineSums;    // whole ones
  const std::int64_t line = std::upper_bound(coarse, coarse + lines, x) - coarse;
  const std::int64_t begin = line * kLineSums, end = std::min(begin + kLineSums, num_nodes);
  const std::int64_t found = std::upper_bound(sums + begin, sums + end, x) - sums;
  if (found < num_nodes) return found;
  std::int64_t last = num_nodes - 1;
  while (last > 0 && !(sums[last] > sums[last - 1])) --last;
  return last;
}

void check_end(const DrawnEnd& end) {
  if (end.num_nodes < 1) throw std::invalid_argument("draw_negatives: a node type has no nodes, so none can be drawn.");
  if (end.weights == nullptr) return;
  const RowSums& weights = *end.weights;
  if (std::ssize(weights.sums) < end.num_nodes || std::ssize(weights.coarse) < end.num_nodes / kLineSums)
    throw std::invalid_argument("draw_negatives: give one weight for each node.");
  if (!(weights.sums[static_cast<std::size_t>(end.num_nodes) - 1] > 0))
    throw std::invalid_argument("draw_negatives: all weights are 0, so no node can be drawn.");
}

std::int64_t drawn(const DrawnEnd& end, Stream& stream) {
  if (end.weights == nullptr) return static_cast<std::int64_t>(stream.bounded(static_cast<std::uint64_t>(end.num_nodes)));
  const std::uint32_t high = stream.word(), low = stream.word();
  const double total = end.weights->sums[static_cast<std::size_t>(end.num_nodes) - 1];
  return first_node_above(*end.weights, end.num_nodes, place_of(high, low, total));
}

}  // namespace

std::vector<Buffer<std::int64_t>> draw_negatives(std::uint64_t key, std::span<const std::int64_t> slots, std::int64_t first_try,
                                                 std::int64_t num_tries, std::span<const DrawnEnd> ends) {
  if (first_try < 0 || num_tries < 0 ||
      num_tries > std::numeric_limits<std::int64_t>::max() / std::max<std::int64_t>(std::ssize(slots), 1))
    throw std::invalid_argument("draw_negatives: the numbers of tries must be 0 or more.");
  std::vector<Buffer<std::int64_t>> found;
  for (const DrawnEnd& end : ends) {
    check_end(end);
    found.emplace_back(std::ssize(slots) * num_tries);
  }
  for (std::int64_t i = 0; i < std::ssize(slots); ++i) {
    const std::int64_t slot = read_once(slots[static_cast<std::size_t>(i)]);
    if (slot < 0 || slot > std::numeric_limits<std::uint32_t>::max())
      throw std::invalid_argument("draw_negatives: a slot is a stream, in [0, 2^32).");
    Stream stream(key, 0, static_cast<std::uint32_t>(slot));
    for (std::int64_t at = 0; at < first_try; ++at)
      for (const DrawnEnd& end : ends) drawn(end, stream);
    for (std::int64_t at = 0; at < num_tries; ++at)
      for (std::size_t e = 0; e < ends.size(); ++e) found[e][i * num_tries + at] = drawn(ends[e], stream);
  }
  return found;
}

}  // namespace datapipes
