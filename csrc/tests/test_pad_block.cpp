// test_pad_block.cpp: padded blocks against a plain loop, with threads and without, for any number of layers; the places of
// layers while a minibatch is sampled.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "graph/pad_block.h"
#include "random/philox.h"
#include "sampling/padded_layers.h"
#include "tests/check.h"

namespace datapipes {
namespace {

using Ints = std::vector<std::int64_t>;

struct Sizes {
  Ints nodes, rows, places = nodes;
  Layers view() const { return {places, nodes, rows}; }
  std::int64_t count() const { return std::accumulate(nodes.begin(), nodes.end(), std::int64_t{0}); }
  // Of the node with a number among the nodes of all layers: its row, or its place. If there is none, how many there are.
  std::int64_t moved(std::int64_t node) const { return moved(node, rows); }
  std::int64_t place(std::int64_t node) const { return moved(node, places); }
  std::int64_t moved(std::int64_t node, const Ints& sizes) const {
    std::int64_t begin = 0, row = 0;
    for (std::size_t layer = 0; layer < nodes.size(); ++layer) {
      if (node < begin + nodes[layer]) return row + node - begin;
      begin += nodes[layer];
      row += sizes[layer];
    }
    return row;
  }
};

Sizes drawn(Stream& stream, std::size_t layers, std::uint64_t most, bool has_gaps) {
  Sizes sizes;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    sizes.nodes.push_back(static_cast<std::int64_t>(stream.bounded(most)) + (layer == 0));
    sizes.rows.push_back(sizes.nodes.back() + 1 + static_cast<std::int64_t>(stream.bounded(20)));
    sizes.places.push_back(sizes.nodes.back() + (has_gaps ? static_cast<std::int64_t>(stream.bounded(20)) : 0));
  }
  return sizes;
}

template <class Id>
void a_padded_block_is_that_of_a_plain_loop() {
  for (std::uint64_t i = 0; i < 24; ++i) {
    Stream stream(5, i);
    const std::uint64_t most = i < 20 ? 30 : 30'000;  // the large ones take more than one turn of a thread
    const Sizes from = drawn(stream, 1 + i % 8, most, i % 2 == 1), to = drawn(stream, 1 + i % 3, most, i % 4 == 3);
    Ints indptr{0}, ids, sources;
    std::vector<Id> indices;
    for (std::int64_t row = 0; row < to.count(); ++row) {
      indptr.resize(static_cast<std::size_t>(to.place(row)) + 1, std::ssize(indices));  // rows of gaps are empty
      for (std::uint64_t degree = stream.bounded(6); degree > 0; --degree) {
        sources.push_back(static_cast<std::int64_t>(stream.bounded(static_cast<std::uint64_t>(from.count()))));
        indices.push_back(static_cast<Id>(from.place(sources.back())));
        ids.push_back(static_cast<std::int64_t>(stream.bounded(1000)));
      }
      indptr.push_back(std::ssize(indices));
    }
    indptr.resize(static_cast<std::size_t>(to.place(to.count())) + 1, std::ssize(indices));
    const std::int64_t num_edges = std::ssize(indices) + static_cast<std::int64_t>(stream.bounded(9));
    const auto view = i % 2 == 0 ? std::optional<std::span<const std::int64_t>>(ids) : std::nullopt;
    const auto padded = pad_block<Id>(indptr, indices, view, to.view(), from.view(), num_edges, i % 4 == 0 ? 3 : 1);
    CHECK(padded.indptr.size() == to.moved(to.count()) + 1);
    CHECK(padded.indices.size() == num_edges);
    CHECK(padded.edge_ids.size() == (view ? num_edges : 0));
    for (std::int64_t edge = 0; edge < num_edges; ++edge) {
      const bool is_real = edge < std::ssize(indices);
      const auto at = static_cast<std::size_t>(edge);
      CHECK(padded.indices[edge] == (is_real ? from.moved(sources[at]) : from.moved(from.count()) - 1));
      if (view) CHECK(padded.edge_ids[edge] == (is_real ? ids[at] : -1));
    }
    std::int64_t reached = 0;
    for (std::int64_t row = 0, place = 0; row <= to.count(); ++row) {
      for (; place < to.moved(row); ++place)
        CHECK(padded.indptr[place + 1] == (place + 1 < to.moved(to.count()) ? reached : num_edges));
      if (row == to.count()) break;
      reached = indptr[static_cast<std::size_t>(to.place(row)) + 1];
      CHECK(padded.indptr[++place] == reached);
    }
    std::vector<Id> given(static_cast<std::size_t>(from.place(from.count())), 7);
    for (std::int64_t node = 0; node < from.count(); ++node) given[static_cast<std::size_t>(from.place(node))] = 8;
    const Buffer<Id> values = pad_values<Id>(given, from.view(), Id{-1});
    for (std::int64_t row = 0, node = 0; row < values.size(); ++row) {
      const bool is_real = node < from.count() && from.moved(node) == row;
      CHECK(values[row] == (is_real ? 8 : -1));
      node += is_real;
    }
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

void layers_leave_the_rows_of_the_bucket_that_fits_so_far() {
  const Padding padding({{{3}, {{3, 5, 7}, {4}}, {{9}, {9}}}, {{3}, {{4, 9, 9}, {5}}, {{20}, {20}}}});
  const Ints num_seeds{2};
  PaddedLayers layers(padding, num_seeds, 2);
  const auto end = [&](std::int64_t first, std::int64_t second) { return layers.end_layer(Ints{first, second}); };
  CHECK(end(2, 1) == Ints({3, 4}));
  CHECK(layers.num_edges(0, 0) == 9);
  CHECK(end(3 + 5, 4) == Ints({3 + 9, 4}));  // only the second bucket has a row more than 5
  CHECK(layers.guessed() == 1);
  CHECK(layers.num_edges(1, 0) == 20);
  CHECK(layers.fits(1));
  CHECK(end(12 + 10, 4) == Ints({12 + 10, 4}));  // no bucket fits
  CHECK(!layers.fits(1));
  CHECK(std::ranges::equal(layers.nodes(0), Ints({2, 5, 10})));
  CHECK(std::ranges::equal(layers.places(0), Ints({3, 9, 10})));
  CHECK(std::ranges::equal(layers.places(1), Ints({4})));
}

void padding_of_another_form_is_refused() {
  const PadBucket good{{3}, {{3, 5}}, {{9}}};
  CHECK_THROWS(std::invalid_argument, Padding({}));
  CHECK_THROWS(std::invalid_argument, Padding({good, {{3}, {{3}}, {{9}}}}));
  CHECK_THROWS(std::invalid_argument, Padding({good, {{3}, {{3, 5}}, {{9}, {9}}}}));
  CHECK_THROWS(std::invalid_argument, Padding({{{3}, {{}}, {{9}}}}));
  CHECK_THROWS(std::invalid_argument, Padding({{{0}, {{3, 5}}, {{9}}}}));
  CHECK_THROWS(std::invalid_argument, Padding({{{3}, {{3, std::int64_t{1} << 41}}, {{9}}}}));
  const Padding padding({good});
  padding.check(1, 1, 1, 1);
  CHECK_THROWS(std::invalid_argument, padding.check(2, 1, 1, 1));
  CHECK_THROWS(std::invalid_argument, padding.check(1, 2, 1, 1));
  CHECK_THROWS(std::invalid_argument, padding.check(1, 1, 2, 1));
  CHECK_THROWS(std::invalid_argument, padding.check(1, 1, 1, 2));
}

}  // namespace

SUITE(test_pad_block) {
  RUN_FOR_BOTH_IDS(a_padded_block_is_that_of_a_plain_loop);
  RUN(what_does_not_fit_is_refused);
  RUN(layers_leave_the_rows_of_the_bucket_that_fits_so_far);
  RUN(padding_of_another_form_is_refused);
}

}  // namespace datapipes
