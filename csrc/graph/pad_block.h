// pad_block.h: a block with rows and edges of padding, so that blocks of other minibatches can have the same shapes.
//   Local ids lie in layers: the seeds first, then the nodes that each hop found. `nodes[l]` of them are in layer l, which takes
//   `places[l]` local ids: as many as nodes, or more if no block refers to the last ones. Padded, the layer has `rows[l]` rows,
//   at least as many as nodes, which are the first; the last layer has more, if there are edges of padding. So node v of layer l
//   moves to v + the sum of rows[i] - places[i] over the layers i before l. pad_block: a block with a row for each node of the
//   layers `to`, and sources in the layers `from`. Returns indptr int64 [rows of `to` + 1], indices [num_edges], and edge_ids
//   int64 [num_edges] if the block has ids. Rows of padding have no edges, except the last row, which has the edges of padding.
//   These come last, from the last row of `from`, with the id -1. pad_values: values, one for each place of the layers, with the
//   value `padding` for the rows of padding.
// Throws std::invalid_argument (ValueError) on sizes that do not fit, and std::out_of_range (IndexError) on an index that is
// no node of `from`. Touches no Python object.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "common/buffer.h"
#include "graph/row_view.h"

namespace datapipes {

struct Layers {
  std::span<const std::int64_t> places, nodes, rows;
};

template <class Id>
struct PaddedBlock {
  Buffer<std::int64_t> indptr;
  Buffer<Id> indices;
  Buffer<std::int64_t> edge_ids;
};

template <class Id>
PaddedBlock<Id> pad_block(std::span<const std::int64_t> indptr, std::span<const Id> indices,
                          std::optional<std::span<const std::int64_t>> edge_ids, const Layers& to, const Layers& from,
                          std::int64_t num_edges, int threads = 1);

template <class Value>
Buffer<Value> pad_values(std::span<const Value> values, const Layers& layers, Value padding);

}  // namespace datapipes
