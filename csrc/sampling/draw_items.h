// draw_items.h: the items of an epoch that are drawn with replacement or by weight; docs/semantics.md section 2.1.
//   draw_items(key, num_items, weights, first, out): out[i] is the item at place first + i of an epoch with replacement; weights
//   null: uniform. A place costs O(log num_items).
//   order_items(key, num_items, weights, out): the first out.size() items of the weighted order without replacement; O(num_items)
//   memory.
// `weights` are sums of one row with an entry for each item (row_sums.h).
// Throws std::invalid_argument (ValueError) on sums that do not fit the items, and if too few items can be drawn. Touches no
// Python object.
#pragma once

#include <cstdint>
#include <span>

#include "sampling/row_sums.h"

namespace datapipes {

void draw_items(std::uint64_t key, std::int64_t num_items, const RowSums* weights, std::int64_t first,
                std::span<std::int64_t> out);

void order_items(std::uint64_t key, std::int64_t num_items, const RowSums& weights, std::span<std::int64_t> out);

}  // namespace datapipes
