// test_ppr.cpp: the nodes and masses of PageRank are those of a plain push, over a whole graph and where rows come in pieces.
#include <algorithm>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "random/philox.h"
#include "sampling/ppr.h"
#include "tests/check.h"

namespace datapipes {
namespace {

using Ints = std::vector<std::int64_t>;
using Most = std::vector<std::pair<std::int64_t, std::uint64_t>>;  // (node, mass), `count` for each seed

constexpr std::uint64_t kWhole = std::uint64_t{1} << 62;
constexpr PprOptions kOptions{.keep = (std::uint64_t{1} << 32) / 7, .eps = kWhole / 200, .count = 6};

template <class Id>
struct Made {
  Ints indptr{0};
  std::vector<Id> indices;

  explicit Made(std::int64_t num_nodes) {
    Stream stream(3, 4);
    for (std::int64_t node = 0; node < num_nodes; ++node) {
      const std::uint64_t degree = node % 7 == 3 ? 0 : stream.bounded(node % 50 == 1 ? 300 : 6);
      for (std::uint64_t i = 0; i < degree; ++i)
        indices.push_back(static_cast<Id>(stream.bounded(static_cast<std::uint64_t>(num_nodes))));
      indptr.push_back(std::ssize(indices));
    }
  }
  RowView<Id> view() const { return {indptr, indices, std::ssize(indptr) - 1}; }
  std::span<const Id> row(std::int64_t node) const {
    const auto begin = indptr[static_cast<std::size_t>(node)], end = indptr[static_cast<std::size_t>(node) + 1];
    return std::span(indices).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  }
};

Ints some_seeds(std::int64_t count, std::int64_t num_nodes) {
  Ints seeds;
  for (std::int64_t i = 0; i < count; ++i) seeds.push_back(i * 7 % num_nodes);
  return seeds;
}

template <class Id>
Most plain_push(const Made<Id>& graph, std::int64_t seed) {
  std::map<std::int64_t, std::uint64_t> mass, residual{{seed, kWhole}};
  while (true) {
    std::map<std::int64_t, std::uint64_t> shares;
    bool is_done = true;
    for (auto& [node, rest] : residual) {
      const auto degree = static_cast<std::uint64_t>(std::ssize(graph.row(node)));
      if (rest < kOptions.eps * std::max<std::uint64_t>(degree, 1) && rest != kWhole) continue;
      is_done = false;
      const auto part = static_cast<std::uint64_t>(static_cast<unsigned __int128>(rest) * kOptions.keep >> 32);
      const std::uint64_t kept = degree > 0 ? part : rest, share = degree > 0 ? (rest - kept) / degree : 0;
      mass[node] += kept;
      rest -= kept + share * degree;
      for (const Id source : graph.row(node)) shares[source] += share;
    }
    if (is_done) break;
    for (const auto& [node, share] : shares) residual[node] += share;
  }
  Most most(mass.begin(), mass.end());
  std::ranges::stable_sort(most, [](const auto& one, const auto& other) { return one.second > other.second; });
  most.resize(kOptions.count, {-1, 0});
  return most;
}

template <class Id>
Most entries(const PprNodes<Id>& found) {
  Most most;
  for (std::int64_t i = 0; i < found.ids.size(); ++i) most.emplace_back(found.ids[i], found.masses[i]);
  return most;
}

template <class Id>
void masses_are_those_of_a_plain_push_for_any_threads() {
  const Made<Id> graph(300);
  const Ints seeds = some_seeds(200, 300);
  Most expected;
  for (const auto seed : seeds) std::ranges::copy(plain_push(graph, seed), std::back_inserter(expected));
  const auto found = [&](int threads) { return entries(ppr_of_graph<Id>("test", graph.view(), seeds, kOptions, threads)); };
  CHECK(found(1) == expected);
  Most first, second;
  std::thread one([&] { first = found(2); }), two([&] { second = found(3); });
  one.join();
  two.join();
  CHECK(first == expected);
  CHECK(second == expected);
}

void rows_that_come_in_pieces_give_the_same() {
  const Made<std::int64_t> graph(300);
  const Ints seeds = some_seeds(200, 300);  // more than are pushed at once
  PprOverParts pushes(seeds, 300, kOptions);
  while (true) {
    const auto [nodes, most] = pushes.wanted();
    if (nodes.size() == 0) break;
    Ints ids, degrees, sources;
    for (std::int64_t i = 0; i < nodes.size(); ++i) {
      const auto row = graph.row(nodes[i]);
      ids.push_back(nodes[i]);
      degrees.push_back(std::ssize(row));
      if (std::ssize(row) <= most[i]) sources.insert(sources.end(), row.begin(), row.end());
    }
    pushes.give(ids, degrees, sources);
  }
  CHECK(entries(pushes.largest()) == entries(ppr_of_graph<std::int64_t>("test", graph.view(), seeds, kOptions, 1)));
}

void what_does_not_fit_is_refused() {
  const Made<std::int64_t> graph(20);
  const auto ppr = [&](const Ints& seeds, PprOptions options = kOptions) {
    return ppr_of_graph<std::int64_t>("test", graph.view(), seeds, options, 1);
  };
  CHECK_THROWS(std::out_of_range, ppr({20}));
  CHECK_THROWS(std::out_of_range, ppr({-1}));
  CHECK_THROWS(std::invalid_argument, ppr({0}, {.keep = 0, .eps = kWhole, .count = 1}));
  CHECK_THROWS(std::invalid_argument, ppr({0}, {.keep = 1, .eps = 1, .count = 1}));
  Made<std::int64_t> broken(20);
  broken.indices.assign(broken.indices.size(), 20);
  CHECK_THROWS(std::invalid_argument, ppr_of_graph<std::int64_t>("test", broken.view(), some_seeds(20, 20), kOptions, 2));
  PprOverParts pushes(Ints{0}, 20, kOptions);
  pushes.wanted();
  CHECK_THROWS(std::invalid_argument, pushes.give(Ints{1}, Ints{0}, Ints{}));
  CHECK_THROWS(std::invalid_argument, pushes.give(Ints{0}, Ints{2}, Ints{1}));
  CHECK_THROWS(std::invalid_argument, pushes.give(Ints{0}, Ints{1}, Ints{20}));
}

}  // namespace

SUITE(test_ppr) {
  RUN_FOR_BOTH_IDS(masses_are_those_of_a_plain_push_for_any_threads);
  RUN(rows_that_come_in_pieces_give_the_same);
  RUN(what_does_not_fit_is_refused);
}

}  // namespace datapipes
