// test_walks.cpp: each step of a random walk is that of a plain loop over the words of its stream.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <vector>

#include "random/philox.h"
#include "sampling/random_walks.h"
#include "sampling/row_sums.h"
#include "tests/check.h"

namespace datapipes {
namespace {

using Ints = std::vector<std::int64_t>;

template <class Id>
struct Made {
  Ints indptr{0}, edge_ids;
  std::vector<Id> indices;
  std::vector<double> weights;
  OwnedRowSums sums;
  Topology<Id> graph;

  explicit Made(std::int64_t num_nodes) {
    Stream stream(1, 2);
    for (std::int64_t node = 0; node < num_nodes; ++node) {
      const std::uint64_t degree = node % 7 == 3 ? 0 : stream.bounded(node % 50 == 1 ? 300 : 12);
      for (std::uint64_t i = 0; i < degree; ++i) {
        indices.push_back(static_cast<Id>(stream.bounded(static_cast<std::uint64_t>(num_nodes))));
        weights.push_back(static_cast<double>(stream.bounded(5)));
        edge_ids.push_back(1'000'000 - std::ssize(indices));
      }
      indptr.push_back(std::ssize(indices));
    }
    sums = make_row_sums("weights", indptr, std::as_bytes(std::span(weights)), WeightType::kFloat64);
    graph.node_types.push_back({"", num_nodes});
    graph.relations.push_back({"", 0, 0, {indptr, indices, num_nodes}, edge_ids});
  }
  RowSums view() const {
    return {sums.sums.first(sums.sums.size()), sums.coarse.first(sums.coarse.size()), sums.drawable.first(sums.drawable.size())};
  }
};

template <class Id>
void steps_are_those_of_a_plain_loop() {
  const Made<Id> made(400);
  Ints seeds;
  for (std::int64_t i = 0; i < 700; ++i) seeds.push_back(i % 400);
  for (const bool weighted : {false, true}) {
    for (const std::uint64_t end_below : {std::uint64_t{0}, std::uint64_t{1} << 28}) {
      WalkRequest<Id> request{.walks_per_node = 2, .want_edge_ids = true};
      for (std::uint64_t t = 0; t < 9; ++t)
        request.steps.push_back({0, 77, weighted ? std::optional(made.view()) : std::nullopt, end_below});
      const auto walks = random_walks<Id>(made.graph, seeds, request);
      request.threads = 3;
      const auto again = random_walks<Id>(made.graph, seeds, request);
      CHECK(std::equal(walks.nodes.data(), walks.nodes.data() + walks.nodes.size(), again.nodes.data()));
      for (std::int64_t w = 0; w < 1400; ++w) {
        std::int64_t node = seeds[static_cast<std::size_t>(w / 2)];
        CHECK(walks.nodes[w * 10] == node);
        for (std::int64_t t = 0; t < 9; ++t) {
          std::int64_t position = -1;
          if (node >= 0) {
            const auto row = static_cast<std::size_t>(node);
            const std::int64_t begin = made.indptr[row], degree = made.indptr[row + 1] - begin;
            Stream stream(77, static_cast<std::uint64_t>(t), static_cast<std::uint32_t>(w));
            const bool ends = end_below > 0 && stream.word() < end_below;
            const double total = degree > 0 ? made.sums.sums[begin + degree - 1] : 0;
            if (!ends && degree > 0 && !weighted)
              position = begin + static_cast<std::int64_t>(stream.bounded(static_cast<std::uint64_t>(degree)));
            if (!ends && weighted && total > 0) {
              const std::uint64_t high = stream.word(), low = stream.word();
              const double x = static_cast<double>((high << 32 | low) >> 11) / 0x1p53 * total;
              for (position = begin; !(made.sums.sums[position] > x); ++position) continue;
            }
          }
          node = position < 0 ? -1 : made.indices[static_cast<std::size_t>(position)];
          CHECK(walks.nodes[w * 10 + t + 1] == node);
          CHECK(walks.edge_ids[w * 9 + t] == (position < 0 ? -1 : made.edge_ids[static_cast<std::size_t>(position)]));
        }
      }
    }
  }
}

template <class Id>
void steps_of_node2vec_follow_edges_and_do_not_depend_on_threads() {
  const Made<Id> made(300);
  const auto sorted = sorted_sources<Id>("test", made.graph.relations[0].rows, 3);
  Ints seeds(900);
  for (std::size_t i = 0; i < seeds.size(); ++i) seeds[i] = static_cast<std::int64_t>(i % 300);
  for (const double p : {0.25, 0x1p60}) {
    WalkRequest<Id> request{.p = p, .q = 1 / p, .sorted = sorted.first(sorted.size())};
    for (int t = 0; t < 7; ++t) request.steps.push_back({0, 5, made.view()});
    const auto walks = random_walks<Id>(made.graph, seeds, request);
    request.threads = 3;
    const auto again = random_walks<Id>(made.graph, seeds, request);
    CHECK(std::equal(walks.nodes.data(), walks.nodes.data() + walks.nodes.size(), again.nodes.data()));
    for (std::int64_t i = 0; i + 1 < walks.nodes.size(); ++i) {
      const Id node = walks.nodes[i], next = walks.nodes[i + 1];
      if ((i + 1) % 8 == 0 || next < 0) continue;
      const auto* const begin = sorted.data() + made.indptr[static_cast<std::size_t>(node)];
      CHECK(std::binary_search(begin, sorted.data() + made.indptr[static_cast<std::size_t>(node) + 1], next));
    }
  }
}

void what_does_not_fit_is_refused() {
  const Made<std::int32_t> made(20);
  const auto walk = [&](const Ints& seeds, const WalkRequest<std::int32_t>& request) {
    return random_walks<std::int32_t>(made.graph, seeds, request).nodes.size();
  };
  const std::vector<WalkRequest<std::int32_t>::Step> steps{{0, 5, std::nullopt}};
  CHECK(walk({0, 1}, {.steps = steps}) == 4);
  CHECK_THROWS(std::out_of_range, walk({20}, {.steps = steps}));
  CHECK_THROWS(std::out_of_range, walk({-1}, {.steps = steps}));
  CHECK_THROWS(std::length_error, walk({0}, {.steps = steps, .walks_per_node = std::int64_t{1} << 33}));
  CHECK_THROWS(std::invalid_argument, walk({0}, {.steps = {{1, 5, std::nullopt}}}));
  CHECK_THROWS(std::invalid_argument, walk({0}, {.steps = {steps[0], steps[0]}, .p = 2}));
  CHECK_THROWS(std::invalid_argument, walk({0}, {.steps = steps, .q = -1}));
}

}  // namespace

SUITE(test_walks) {
  RUN_FOR_BOTH_IDS(steps_are_those_of_a_plain_loop);
  RUN_FOR_BOTH_IDS(steps_of_node2vec_follow_edges_and_do_not_depend_on_threads);
  RUN(what_does_not_fit_is_refused);
}

}  // namespace datapipes
