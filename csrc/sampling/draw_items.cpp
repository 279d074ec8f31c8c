#include "sampling/draw_items.h"

#include <stdexcept>

#include "random/philox.h"
#include "sampling/sums_search.h"
#include "sampling/weighted.h"

namespace datapipes {
namespace {

constexpr std::uint32_t kPlaces = 10, kOrder = 11;  // streams; the permutation has those below

// Returns the number of items that can be drawn.
std::int64_t checked(const RowSums& weights, std::int64_t num_items) {
  check_row_sums(weights, 1, num_items);
  return weights.drawable.empty() ? num_items : weights.drawable[0];
}

}  // namespace

void draw_items(std::uint64_t key, std::int64_t num_items, const RowSums* weights, std::int64_t first,
                std::span<std::int64_t> out) {
  if (num_items < 1 || first < 0) throw std::invalid_argument("draw_items: an item, and a place of 0 or more, are needed.");
  if (weights != nullptr && checked(*weights, num_items) < 1)
    throw std::invalid_argument("draw_items: all weights are 0, so no item can be drawn.");
  auto place = static_cast<std::uint64_t>(first);
  for (std::int64_t& item : out) {
    Stream stream(key, place++, kPlaces);
    if (weights == nullptr) {
      item = static_cast<std::int64_t>(stream.bounded(static_cast<std::uint64_t>(num_items)));
      continue;
    }
    const double* const sums = weights->sums.data();
    const std::uint32_t high = stream.word(), low = stream.word();
    const double x = place_of(high, low, sums[num_items - 1]);
    item = in_line(sums, 0, num_items, line_above(weights->coarse.data(), 0, num_items, x), x);
  }
}

void order_items(std::uint64_t key, std::int64_t num_items, const RowSums& weights, std::span<std::int64_t> out) {
  if (num_items < 1 || std::ssize(out) > checked(weights, num_items))
    throw std::invalid_argument("order_items: fewer items can be drawn than are asked for.");
  const Weighted policy{std::ssize(out), false, key, weights};
  Weighted::Scratch().draw_order(policy, {.begin = 0, .degree = num_items, .number = 0, .node = 0, .stream = kOrder}, out);
}

}  // namespace datapipes
