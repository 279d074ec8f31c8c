#include "links/draw_negatives.h"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>

#include "common/load.h"
#include "random/philox.h"
#include "random/stream_words.h"
#include "sampling/sums_search.h"

namespace datapipes {
namespace {

// The first node whose sum is above x; the last drawable node if rounding makes x the whole sum.
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

// Sets out[2 j] to a uniform draw below `range` of slot j, for `number` slots. Usually one word of the stream suffices; draws
// that might be rejected are made anew, word by word.
void draw_by_one_word(std::uint64_t key, std::uint32_t range, std::int64_t* out, std::int64_t number) {
  std::array<std::uint32_t, 256> words;
  for (std::int64_t first = 0; first < number; first += std::ssize(words)) {
    const auto count = static_cast<std::size_t>(std::min(number - first, std::ssize(words)));
    first_words_of_streams(key, static_cast<std::uint32_t>(first), {words.data(), count});
    std::uint32_t doubtful = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t product = std::uint64_t{words[i]} * range;
      out[2 * (first + static_cast<std::int64_t>(i))] = static_cast<std::int64_t>(product >> 32);
      doubtful |= static_cast<std::uint32_t>(static_cast<std::uint32_t>(product) < range);
    }
    for (std::size_t i = 0; i < count && doubtful != 0; ++i) {
      if (words[i] * range >= range) continue;
      const std::int64_t slot = first + static_cast<std::int64_t>(i);
      out[2 * slot] = static_cast<std::int64_t>(Stream(key, 0, static_cast<std::uint32_t>(slot)).bounded(range));
    }
  }
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

Buffer<std::int64_t> corrupt_pairs(std::uint64_t key, std::span<const std::int64_t> positives, std::int64_t number,
                                   const DrawnEnd& source, const DrawnEnd& destination) {
  const std::int64_t num_positives = std::ssize(positives) / 2;
  if (number < 0 || number > std::int64_t{1} << 32 || (number > 0 && num_positives == 0))
    throw std::invalid_argument("corrupt_pairs: the number of negatives must be in [0, 2^32], and 0 without positives.");
  const DrawnEnd* const ends[2] = {&source, &destination};
  for (const DrawnEnd* end : ends)
    if (end->num_nodes != 0) check_end(*end);
  Buffer<std::int64_t> found(std::ssize(positives) + 2 * number);
  std::copy(positives.begin(), positives.end(), found.data());
  std::int64_t* const negatives = found.data() + positives.size();
  std::int64_t* pair = negatives;
  std::int64_t rest = 0;
  for (std::size_t row = 0; pair != negatives + 2 * number;) {  // slot j has the row j * num_positives / number
    const std::int64_t from = read_once(positives[2 * row]), to = read_once(positives[2 * row + 1]);
    for (; rest < number; rest += num_positives, pair += 2) pair[0] = from, pair[1] = to;
    for (; rest >= number; rest -= number) ++row;
  }
  const bool both = source.num_nodes != 0 && destination.num_nodes != 0;
  const DrawnEnd& drawn_end = source.num_nodes != 0 ? source : destination;
  if (!both && drawn_end.num_nodes > 0 && drawn_end.num_nodes <= 0xFFFFFFFF && drawn_end.weights == nullptr) {
    draw_by_one_word(key, static_cast<std::uint32_t>(drawn_end.num_nodes), negatives + (source.num_nodes != 0 ? 0 : 1), number);
    return found;
  }
  for (std::int64_t slot = 0; slot < number; ++slot) {
    Stream stream(key, 0, static_cast<std::uint32_t>(slot));
    for (std::size_t end = 0; end < 2; ++end)
      if (ends[end]->num_nodes != 0) negatives[2 * slot + static_cast<std::int64_t>(end)] = drawn(*ends[end], stream);
  }
  return found;
}

}  // namespace datapipes
