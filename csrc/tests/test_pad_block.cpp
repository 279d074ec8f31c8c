// test_pad_block.cpp: padded blocks against a plain loop, with threads and without, for any number of layers.
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "graph/pad_block.h"
#include "random/philox.h"
#include "tests/check.h"

namespace datapipes {
namespace {

using Ints = std::vector<std::int64_t>;

struct Sizes {
  Ints nodes, rows;
  Layers view() const { return {nodes, rows}; }
  std::int64_t count() const { return std::accumulate(nodes.begin(), nodes.end(), std::int64_t{0}); }
  std::int64_t moved(std::int64_t node) const {
    std::int64_t begin = 0, row = 0;
    for (std::size_t layer = 0; layer < nodes.size(); ++layer) {
      if (node < begin + nodes[layer]) return row + node - begin;
      begin += nodes[layer];
      row += rows[layer];
    }
    return row;  // the number of all rows
  }
};

Sizes drawn(Stream& stream, std::size_t layers, std::uint64_t most) {
  Sizes sizes;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    sizes.nodes.push_back(static_cast<std::int64_t>(stream.bounded(most)) + (layer == 0));
    sizes.rows.push_back(sizes.nodes.back() + 1 + static_cast<std::int64_t>(stream.bounded(20)));
  }
  return sizes;
}

template <class Id>
void a_padded_block_is_that_of_a_plain_loop() {
  for (std::uint64_t i = 0; i < 24; ++i) {
    Stream stream(5, i);
    const std::uint64_t most = i < 20 ? 30 : 30'000;  // the large ones take more than one turn of a thread
    const Sizes from = drawn(stream, 1 + i % 8, most), to = drawn(stream, 1 + i % 3, most);
    Ints indptr{0}, ids;
    std::vector<Id> indices;
    for (std::int64_t row = 0; row < to.count(); ++row) {
      for (std::uint64_t degree = stream.bounded(6); degree > 0; --degree) {
        indices.push_back(static_cast<Id>(stream.bounded(static_cast<std::uint64_t>(from.count()))));
        ids.push_back(static_cast<std::int64_t>(stream.bounded(1000)));
      }
      indptr.push_back(std::ssize(indices));
    }
    const std::int64_t num_edges = std::ssize(indices) + static_cast<std::int64_t>(stream.bounded(9));
    const auto view = i % 2 == 0 ? std::optional<std::span<const std::int64_t>>(ids) : std::nullopt;
    const auto padded = pad_block<Id>(indptr, indices, view, to.view(), from.view(), num_edges, i % 4 == 0 ? 3 : 1);
    CHECK(padded.indptr.size() == to.moved(to.count()) + 1);
    CHECK(padded.indices.size() == num_edges);
    CHECK(padded.edge_ids.size() == (view ? num_edges : 0));
    for (std::int64_t edge = 0; edge < num_edges; ++edge) {
      const bool is_real = edge < std::ssize(indices);
      const auto at = static_cast<std::size_t>(edge);
      CHECK(padded.indices[edge] == (is_real ? from.moved(indices[at]) : from.moved(from.count()) - 1));
      if (view) CHECK(padded.edge_ids[edge] == (is_real ? ids[at] : -1));
    }
    std::int64_t reached = 0;
    for (std::int64_t row = 0, place = 0; row <= to.count(); ++row) {
      for (; place < to.moved(row); ++place)
        CHECK(padded.indptr[place + 1] == (place + 1 < to.moved(to.count()) ? reached : num_edges));
      if (row == to.count()) break;
      reached = indptr[static_cast<std::size_t>(row) + 1];
      CHECK(padded.indptr[++place] == reached);
    }
    const Buffer<Id> values = pad_values<Id>(std::vector<Id>(static_cast<std::size_t>(from.count()), 7), from.view(), Id{-1});
    std::int64_t real = 0;
    for (std::int64_t row = 0; row < values.size(); ++row) real += values[row] == 7;
    CHECK(real == from.count());
  }
}

void what_does_not_fit_is_refused() {
  const Ints indptr{0, 1, 2}, negative{0, -1}, outside{0, 3}, good{0, 2};
  const Sizes to{{2}, {3}}, from{{2, 1}, {3, 2}}, full{{2}, {2}};
  const auto pad = [&](const Ints& indices, const Sizes& rows, std::int64_t num_edges) {
    return pad_block<std::int64_t>(indptr, indices, {}, rows.view(), from.view(), num_edges).indptr.size();
  };
  CHECK(pad(good, to, 4) == 4);
  CHECK_THROWS(std::out_of_range, pad(negative, to, 4));
  CHECK_THROWS(std::out_of_range, pad(outside, to, 4));
  CHECK_THROWS(std::invalid_argument, pad(good, full, 4));
  CHECK_THROWS(std::invalid_argument, pad(good, to, 1));
  CHECK_THROWS(std::invalid_argument, pad_values<std::int64_t>(indptr, to.view(), -1));
}

}  // namespace

SUITE(test_pad_block) {
  RUN_FOR_BOTH_IDS(a_padded_block_is_that_of_a_plain_loop);
  RUN(what_does_not_fit_is_refused);
}

}  // namespace datapipes
