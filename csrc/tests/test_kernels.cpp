// test_kernels.cpp: every kernel once without Python, for the sanitizers; run.sh builds and runs it.
//   Prints each case and the number of failed checks; exits 1 if there are any. The expected values come from
//   tests/support/twin.py. tests/ compares kernels with that twin on many inputs; these tests look for errors of memory
//   and of threads.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <new>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include "gather/gather_rows.h"
#include "graph/coo_to_csc.h"
#include "graph/csc_to_coo.h"
#include "graph/validate.h"
#include "random/permutation.h"
#include "random/philox.h"
#include "sampling/compact.h"
#include "sampling/hop_room.h"
#include "sampling/numbering.h"
#include "sampling/sample_hop.h"
#include "sampling/sample_neighbors.h"
#include "tests/check.h"

namespace datapipes {
namespace {

using Ints = std::vector<std::int64_t>;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMapLimits[] = {0, kDirectMapLimit};  // the hash map, the direct map

template <class T>
Ints ints(const Buffer<T>& buffer) {
  return Ints(buffer.data(), buffer.data() + buffer.size());
}

// Vectors of the exact size, so that AddressSanitizer catches a read of the first byte past either end.
template <class Id>
struct Graph {
  Ints indptr;
  std::vector<Id> indices;
  RowView<Id> view() const { return {indptr, indices, std::ssize(indptr) - 1}; }
};

template <class Id>
Graph<Id> small_graph() {
  return {{0, 5, 6, 6, 9}, {0, 1, 1, 2, 3, 3, 0, 1, 3}};
}

// Node v has (v * v) % 97 in-edges, node 0 has `hub`.
template <class Id>
Graph<Id> uneven_graph(std::int64_t num_nodes, std::int64_t hub) {
  Graph<Id> graph{{0}, {}};
  for (std::int64_t v = 0; v < num_nodes; ++v) {
    const std::int64_t degree = v == 0 ? hub : v * v % 97;
    for (std::int64_t i = 0; i < degree; ++i) graph.indices.push_back(static_cast<Id>((v * 31 + i * 7) % num_nodes));
    graph.indptr.push_back(std::ssize(graph.indices));
  }
  return graph;
}

template <class Id>
SampledHop<Id> hop_of(const Graph<Id>& graph, const Ints& seeds, std::int64_t fanout, bool replace, std::uint64_t key = 42) {
  return sample_hop(graph.view(), seeds, Uniform{fanout, replace, key});
}

template <class Id>
Neighborhood<Id> neighborhood(const Graph<Id>& graph, const Ints& edge_ids, const Ints& seeds, const Ints& fanouts, bool replace,
                              bool only_new, std::int64_t direct_limit = kDirectMapLimit) {
  NeighborsRequest request{{.sampled = {0}, .only_new = only_new, .want_edge_ids = true, .direct_limit = direct_limit}};
  for (std::size_t h = 0; h < fanouts.size(); ++h) request.hops.push_back({Uniform{fanouts[h], replace, 42 + h}});
  const RowView<Id> rows = graph.view();
  const Topology<Id> topology{{{"", rows.num_rows()}}, {{"", 0, 0, rows, edge_ids}}};
  const Seeds of_type{0, seeds};
  return sample_neighbors(topology, std::span(&of_type, 1), request);
}

// A hash of everything in the minibatch.
template <class Id>
std::uint64_t fingerprint(const Neighborhood<Id>& found) {
  std::uint64_t state = 0;
  const auto mix = [&state](const Ints& values) {
    state = state * 31 + values.size();
    for (const std::int64_t value : values) state = (state ^ static_cast<std::uint64_t>(value)) * 0x100000001B3u;
  };
  for (const auto& nodes : found.nodes) mix(ints(nodes));
  for (const auto& seeds : found.compacted_seeds) mix(ints(seeds));
  for (const auto& hop : found.hops) {
    for (const auto& block : hop) {
      mix(ints(block.indptr));
      mix(ints(block.indices));
      mix(ints(block.edge_ids));
      mix({block.num_src});
    }
  }
  return state;
}

template <class Id>
void a_hop_is_the_one_of_the_page() {
  const auto graph = small_graph<Id>();
  const auto plain = hop_of(graph, {3, 0, 2}, 2, false);
  CHECK((ints(plain.indptr) == Ints{0, 2, 4, 4}));
  CHECK((ints(plain.neighbors) == Ints{1, 3, 1, 3}));
  CHECK((ints(plain.positions) == Ints{7, 8, 2, 4}));
  const auto replaced = hop_of(graph, {3, 0, 2}, 2, true);
  CHECK((ints(replaced.neighbors) == Ints{0, 1, 2, 1}));
  CHECK((ints(replaced.positions) == Ints{6, 7, 3, 2}));
  CHECK((ints(hop_of(graph, {}, 2, false).indptr) == Ints{0}));
  const Ints rows{3, 0, 2}, edge_ids{10, 11, 12, 13, 14, 15, 16, 17, 18};
  RowView<Id> part = graph.view();
  const Uniform policy{2, false, 42};
  const auto drawn = [&](const HopRows& of, Places places, const Ints& ids = {}) {
    return sample_hop<Id>(of, {0, part, policy, ids}, places);
  };
  CHECK((ints(drawn({rows}, Places::kEdgeIds, edge_ids).positions) == Ints{17, 18, 12, 14}));
  CHECK((ints(drawn({rows}, Places::kEdgeIds).positions) == ints(plain.positions)));  // the ids of edges without others
  const auto bare = drawn({rows, rows}, Places::kNone, edge_ids);
  CHECK(bare.positions.size() == 0 && ints(bare.neighbors) == ints(plain.neighbors));
  const Ints others{30, 7, 2};  // ids of the seeds, at hand or by row, draw the same
  const Ints by_row{7, 1, 2, 30};
  const auto at_hand = drawn({rows, others}, Places::kPositions);
  part.node_ids = by_row;
  CHECK(ints(at_hand.positions) == ints(sample_hop(part, std::span<const std::int64_t>(rows), policy).positions));
  CHECK_THROWS(std::invalid_argument, drawn({rows, std::span(others).first(2)}, Places::kPositions));
  CHECK_THROWS(std::invalid_argument, drawn({rows}, Places::kEdgeIds, others));
  CHECK((ints(hop_of(graph, {1, 0}, -1, true).positions) == Ints{5, 0, 1, 2, 3, 4}));
}

template <class Id>
void a_hop_stays_within_its_graph_at_every_degree_and_fanout() {
  for (const std::int64_t hub : {63, 64, 65, 1'500, 5'000}) {
    const auto graph = uneven_graph<Id>(200, hub);
    Ints seeds(200);
    std::iota(seeds.begin(), seeds.end(), 0);
    for (const std::int64_t fanout : {-1, 0, 1, 5, 32, 33, 64, 65, 512, 513, 700, 750, 1'400, 2'500, 4'999, 6'000}) {
      const auto hop = hop_of(graph, seeds, fanout, false);
      for (std::int64_t v = 0; v < 200; ++v) {
        const std::int64_t degree = graph.indptr[v + 1] - graph.indptr[v];
        CHECK(hop.indptr[v + 1] - hop.indptr[v] == (fanout < 0 ? degree : std::min(degree, fanout)));
        std::int64_t last = graph.indptr[v] - 1;
        for (std::int64_t i = hop.indptr[v]; i < hop.indptr[v + 1]; last = hop.positions[i++]) {
          CHECK(last < hop.positions[i] && hop.positions[i] < graph.indptr[v + 1]);
          CHECK(hop.neighbors[i] == graph.indices[static_cast<std::size_t>(hop.positions[i])]);
        }
      }
      const auto replaced = hop_of(graph, {0, 199}, fanout, true);
      CHECK(replaced.indptr[1] == (fanout < 0 ? hub : fanout));
      for (const std::int64_t position : ints(replaced.positions)) CHECK(0 <= position && position < std::ssize(graph.indices));
    }
  }
}

void more_nodes_than_the_ids_can_count_are_refused() {
  std::int64_t direct_left = 0;
  Numbering<std::int64_t> pairs(std::int64_t{1} << 40);
  CHECK_THROWS(std::length_error, pairs.make_room(std::int64_t{1} << 31, direct_left, kMostLocalIds<std::int32_t>));
  CHECK_THROWS(std::length_error, pairs.make_room(std::int64_t{1} << 32, direct_left, kMostLocalIds<std::int64_t>));
}

template <class Id>
void ids_are_compacted_by_first_occurrence() {
  std::vector<Id> ids(20'000);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<Id>(i * i % 9'973 * 1'000);
  for (const std::int64_t direct_limit : kMapLimits) {
    const auto few = compact<Id>(std::vector<Id>{7, 3, 7, 0}, 8, direct_limit);
    CHECK((ints(few.unique) == Ints{7, 3, 0}));
    CHECK((ints(few.local) == Ints{0, 1, 0, 2}));
    const auto many = compact<Id>(ids, 10'000'000, direct_limit);
    CHECK(many.local.size() == std::ssize(ids));
    for (std::int64_t i = 0; i < many.local.size(); ++i) CHECK(many.unique[many.local[i]] == ids[static_cast<std::size_t>(i)]);
    CHECK(compact<Id>({}, 0, direct_limit).unique.size() == 0);
    CHECK_THROWS(std::out_of_range, compact<Id>(std::vector<Id>{0, 8}, 8, direct_limit));
    CHECK_THROWS(std::out_of_range, compact<Id>(std::vector<Id>{-1}, 8, direct_limit));
    CHECK_THROWS(std::out_of_range, compact<Id>(std::vector<Id>{0}, 0, direct_limit));
  }
}

template <class Id>
void a_minibatch_is_the_one_of_the_page() {
  const auto graph = small_graph<Id>();
  for (const std::int64_t direct_limit : kMapLimits) {
    const auto all = neighborhood(graph, {}, {3, 0, 3}, {2, 2}, false, false, direct_limit);
    CHECK((ints(all.nodes[0]) == Ints{3, 0, 1}));
    CHECK((ints(all.compacted_seeds[0]) == Ints{0, 1, 0}));
    CHECK((ints(all.hops[0][0].indptr) == Ints{0, 2, 4}));
    CHECK((ints(all.hops[0][0].indices) == Ints{2, 0, 2, 0}));
    CHECK((ints(all.hops[0][0].edge_ids) == Ints{7, 8, 2, 4}));
    CHECK((ints(all.hops[1][0].indices) == Ints{2, 0, 1, 2, 0}));
    CHECK((ints(all.hops[1][0].edge_ids) == Ints{7, 8, 0, 1, 5}));
    CHECK(all.hops[0][0].num_src == 3 && all.hops[1][0].num_src == 3);
    const auto fresh = neighborhood(graph, {10, 11, 12, 13, 14, 15, 16, 17, 18}, {3, 0, 3}, {2, 2}, false, true, direct_limit);
    CHECK((ints(fresh.hops[1][0].indptr) == Ints{0, 0, 0, 1}));
    CHECK((ints(fresh.hops[1][0].indices) == Ints{0}));
    CHECK((ints(fresh.hops[0][0].edge_ids) == Ints{17, 18, 12, 14}));
    CHECK((ints(fresh.hops[1][0].edge_ids) == Ints{15}));
    const auto none = neighborhood(graph, {}, {}, {2, -1}, false, false, direct_limit);
    CHECK(none.nodes[0].size() == 0 && none.hops[1][0].num_src == 0);
    CHECK((ints(none.hops[1][0].indptr) == Ints{0}));
    CHECK(neighborhood(graph, {}, {2}, {}, false, false, direct_limit).nodes[0].size() == 1);
  }
}

template <class Id>
void both_maps_give_the_same_minibatch() {
  const auto graph = uneven_graph<Id>(3'000, 2'000);
  for (const bool replace : {false, true}) {
    for (const bool only_new : {false, true}) {
      for (const Ints& fanouts : {Ints{700, 3}, Ints{5, 5, 5}, Ints{-1, 0, 2}}) {
        const auto direct = neighborhood(graph, {}, {0, 17, 17, 2'999}, fanouts, replace, only_new);
        const auto hashed = neighborhood(graph, {}, {0, 17, 17, 2'999}, fanouts, replace, only_new, 0);
        CHECK(fingerprint(direct) == fingerprint(hashed));
      }
    }
  }
}

template <class Id>
void graphs_and_seeds_that_are_wrong_are_refused() {
  const Graph<Id> sound{{0, 1, 2, 3}, {1, 0, 2}};
  for (const std::int64_t seed : {std::int64_t{-1}, std::int64_t{3}, kMax, kMin}) {
    CHECK_THROWS(std::out_of_range, hop_of(sound, {0, seed}, 1, false));
    for (const std::int64_t limit : kMapLimits) {
      CHECK_THROWS(std::out_of_range, neighborhood(sound, {}, {0, seed}, {1}, false, false, limit));
      CHECK_THROWS(std::out_of_range, neighborhood(sound, {}, {0, seed}, {}, false, false, limit));
    }
  }
  const Graph<Id> corrupt[] = {
      {{0, 1, 3, 2}, {1, 0, 2}},    {{0, 1, 2, 4}, {1, 0, 2}},    {{0, 1, -2, 3}, {1, 0, 2}}, {{-1, 1, 2, 3}, {1, 0, 2}},
      {{0, 1, kMax, 3}, {1, 0, 2}}, {{kMin, 1, 2, 3}, {1, 0, 2}}, {{0, 1, 2, 3}, {1, 0, -1}}, {{0, 1, 2, 3}, {1, 3, 2}},
  };
  for (const auto& graph : corrupt) {
    CHECK_THROWS(std::invalid_argument, validate_csc(graph.view()));
    CHECK_THROWS(std::invalid_argument, hop_of(graph, {0, 1, 2}, 1, false));
    for (const std::int64_t limit : kMapLimits)
      CHECK_THROWS(std::invalid_argument, neighborhood(graph, {}, {0, 1, 2}, {1}, true, false, limit));
  }
  validate_csc(sound.view());
  validate_csc(Graph<Id>{{0}, {}}.view());
  CHECK_THROWS(std::invalid_argument, validate_csc(Graph<Id>{{}, {}}.view()));
  CHECK_THROWS(std::invalid_argument, validate_csc(Graph<Id>{{1, 3}, {0, 0, 0}}.view()));
  CHECK_THROWS(std::invalid_argument, validate_csc(Graph<Id>{{0, 2}, {0, 0, 0}}.view()));
}

template <class Id>
void edges_are_grouped_stably() {
  const auto csc = coo_to_csc<Id>(std::vector<Id>{5, 4, 3, 2, 1, 0}, std::vector<Id>{2, 0, 2, 5, 0, 2}, 6, 6);
  CHECK((ints(csc.indptr) == Ints{0, 2, 2, 5, 5, 5, 6}));
  CHECK((ints(csc.indices) == Ints{4, 1, 5, 3, 0, 2}));
  CHECK((ints(csc.order) == Ints{1, 4, 0, 2, 5, 3}));
  CHECK((ints(coo_to_csc<Id>({}, {}, 0, 0).indptr) == Ints{0}));
  CHECK_THROWS(std::out_of_range, coo_to_csc<Id>(std::vector<Id>{6}, std::vector<Id>{0}, 6, 6));
  CHECK_THROWS(std::out_of_range, coo_to_csc<Id>(std::vector<Id>{0}, std::vector<Id>{-1}, 6, 6));
  CHECK_THROWS(std::invalid_argument, coo_to_csc<Id>(std::vector<Id>{0, 1}, std::vector<Id>{0}, 6, 6));
  CHECK_THROWS(std::invalid_argument, coo_to_csc<Id>({}, {}, -1, 0));
}

template <class Id>
void hops_become_two_rows() {
  using Hops = std::vector<RowView<Id>>;
  using Ids = std::vector<std::span<const std::int64_t>>;
  const Ints inner{0, 2, 2, 3}, outer{0, 1, 1, 1, 3}, inner_ids{7, 8, 9}, outer_ids{4, 5, 6}, none, two{1, 2};
  const std::vector<Id> of_inner{3, 1, 0}, of_outer{9, 4, 2};
  const RowView<Id> first{inner, of_inner, 0}, second{outer, of_outer, 0};
  const Coo coo = csc_to_coo<Id>(Hops{first, second}, Ids{inner_ids, outer_ids});
  CHECK((ints(coo.edges) == Ints{3, 1, 0, 4, 2, 0, 0, 2, 3, 3}));
  CHECK((ints(coo.ids) == Ints{7, 8, 9, 5, 6}));
  CHECK(ints(csc_to_coo<Id>(Hops{first, second}, {}).ids).empty());
  CHECK(ints(csc_to_coo<Id>({}, {}).edges).empty());
  const auto refuses = [&](const Hops& hops, const Ids& ids) { CHECK_THROWS(std::invalid_argument, csc_to_coo<Id>(hops, ids)); };
  refuses({second, first}, {});
  refuses({RowView<Id>{none, of_outer, 0}}, {});
  for (const Ints& wrong : {Ints{0, 4}, Ints{0, 2, 1, 3}, Ints{-1, 3}, Ints{2, 1}})
    refuses({RowView<Id>{wrong, of_outer, 0}}, {});
  refuses({first}, {two});
  refuses({first}, {inner_ids, outer_ids});
}

// Whatever values hops have, the sanitizers see no access outside of them.
void random_hops_become_two_rows_or_are_refused() {
  int refused = 0, read = 0;
  for (std::uint64_t key = 0; key < 4000; ++key) {
    Stream stream(key, 97);
    const auto any = [&](std::int64_t most) {
      return static_cast<std::int64_t>(stream.bounded(static_cast<std::uint64_t>(most)));
    };
    std::vector<Ints> indptrs, indices, ids;
    for (std::int64_t i = 0; i < 2; ++i) {
      indices.emplace_back(static_cast<std::size_t>(any(9)), i);
      ids.emplace_back(indices.back().size() + (any(12) == 0), i);
      indptrs.emplace_back(static_cast<std::size_t>(any(6) + 2 * i));
      for (auto& offset : indptrs.back()) offset = any(std::ssize(indices.back()) + 1) - (any(12) == 0);
      if (any(4) != 0) std::sort(indptrs.back().begin(), indptrs.back().end());
    }
    std::vector<RowView<std::int64_t>> hops;
    std::vector<std::span<const std::int64_t>> of_edges;
    for (std::size_t i = 0; i < 2; ++i) {
      hops.push_back({indptrs[i], indices[i], 0});
      of_edges.push_back(ids[i]);
    }
    try {
      const Coo coo = csc_to_coo<std::int64_t>(hops, of_edges);
      ++read;
      const auto count =
          hops[0].indptr.back() - hops[0].indptr[0] + hops[1].indptr.back() - hops[1].indptr[indptrs[0].size() - 1];
      CHECK(coo.edges.size() == 2 * count && coo.ids.size() == count);
    } catch (const std::invalid_argument&) {
      ++refused;
    }
  }
  CHECK(refused > 500 && read > 500);
}

// One in eight edges goes to node 0, so that parts differ in size; without spare bytes large ones are sorted in place.
template <class Id>
void edges_split_into_parts_are_those_sorted_at_once() {
  for (const std::int64_t num_nodes : {1, 2, 5, 511, 512, 1'023, 1'024, 1'025, 5'000, 300'000}) {
    for (const std::int64_t num_edges : {0, 1, 7, 8, 9, 15, 16, 17, 1'000, 1'024, 1'025, 40'000}) {
      std::vector<Id> src, dst;
      for (std::int64_t i = 0; i < num_edges; ++i) {
        src.push_back(static_cast<Id>(i * 7'919 % num_nodes));
        dst.push_back(static_cast<Id>(i % 8 == 0 ? 0 : i * i * 31 % num_nodes));
      }
      const auto once = coo_to_csc<Id>(src, dst, num_nodes, num_nodes, kMax);
      for (const std::uint64_t spare_bytes : {kMax, std::int64_t{0}}) {
        const auto split = coo_to_csc<Id>(src, dst, num_nodes, num_nodes, 0, spare_bytes);
        CHECK(ints(once.indptr) == ints(split.indptr));
        CHECK(ints(once.indices) == ints(split.indices));
        CHECK(ints(once.order) == ints(split.order));
      }
      if (num_edges == 0) continue;
      auto wrong = dst;
      for (const Id outside :
           {Id{-1}, static_cast<Id>(num_nodes), std::numeric_limits<Id>::max(), std::numeric_limits<Id>::min()}) {
        wrong.back() = outside;
        CHECK_THROWS(std::out_of_range, coo_to_csc<Id>(src, wrong, num_nodes, num_nodes, 0));
        CHECK_THROWS(std::out_of_range, coo_to_csc<Id>(wrong, dst, num_nodes, num_nodes, 0));
      }
    }
  }
  CHECK((ints(coo_to_csc<Id>({}, {}, 0, 0, 0).indptr) == Ints{0}));
  CHECK_THROWS(std::out_of_range, coo_to_csc<Id>(std::vector<Id>{0}, std::vector<Id>{0}, 0, 0, 0));
}

void two_threads_get_what_one_gets() {
  const auto graph = uneven_graph<std::int64_t>(2'000, 1'500);
  constexpr int kMinibatches = 20;
  const auto work = [&graph](std::vector<std::uint64_t>& found) {
    for (int i = 0; i < kMinibatches; ++i) {
      Ints seeds(40);
      permutation_at(2'000, 3, i * 40, seeds);
      for (const std::int64_t limit : kMapLimits) {
        found.push_back(fingerprint(neighborhood(graph, {}, seeds, {10, 5}, i % 2 == 1, i % 3 == 0, limit)));
      }
      found.push_back(static_cast<std::uint64_t>(compact<std::int64_t>(seeds, 2'000, 0).unique.size()));
      std::vector<std::byte> rows(seeds.size() * 8);
      gather_rows<std::int64_t>({reinterpret_cast<const std::byte*>(graph.indptr.data()), 2'001, 8, 8}, seeds, rows.data());
      validate_csc(graph.view());
      try {
        hop_of(graph, {2'000}, 1, false);
        found.push_back(0);
      } catch (const std::out_of_range&) {
        found.push_back(1);
      }
    }
  };
  std::vector<std::uint64_t> alone, first, second;
  work(alone);
  {
    std::thread one([&] { work(first); }), two([&] { work(second); });
    one.join();
    two.join();
  }
  CHECK(alone.size() == 4 * kMinibatches);
  CHECK(first == alone);
  CHECK(second == alone);
}

void more_picks_than_an_array_can_hold_are_refused() {
  const auto graph = small_graph<std::int64_t>();
  for (const std::int64_t fanout : {std::int64_t{1} << 62, kMax}) {
    CHECK((hop_of(graph, {0, 1, 2}, fanout, false).positions.size() == 6));
    CHECK_THROWS(std::exception, hop_of(graph, {0, 1, 0, 1}, fanout, true));
    CHECK_THROWS(std::exception, neighborhood(graph, {}, {0, 1, 3}, {fanout}, true, false));
  }
}

template <class Id>
void a_hop_beyond_the_memory_names_what_it_needs() {
  const auto graph = small_graph<Id>();
  const std::string bytes = std::to_string((std::int64_t{1} << 40) * static_cast<std::int64_t>(sizeof(Id) + 8 + 8));
  std::string said;
  try {
    neighborhood(graph, {}, {0}, {2, std::int64_t{1} << 40}, true, false);
  } catch (const NoRoom& refused) {
    said = refused.what();
  }
  CHECK(said.find("hop 1 (0 is next to the seeds) with fanout 1099511627776") != std::string::npos);
  CHECK_THROWS(NoRoom, neighborhood(graph, {}, {0}, {kMax}, true, false));
  const std::uint64_t three_picks = 3 * (sizeof(Id) + 8);  // each of these hops has two or more
  CHECK((limit_hops(three_picks) == kNoLimit));
  neighborhood(graph, {}, {0}, {2}, true, false);
  CHECK_THROWS(NoRoom, neighborhood(graph, {}, {0}, {2, 2}, true, false));
  CHECK((limit_hops(kNoLimit) == three_picks));
  neighborhood(graph, {}, {0}, {2, 2}, true, false);
  try {
    hop_of(graph, {0}, std::int64_t{1} << 40, true);
  } catch (const NoRoom& refused) {
    said = refused.what();
  }
  CHECK(said.find("at least " + bytes + " bytes; ") != std::string::npos);
}

}  // namespace

SUITE(test_kernels) {
  RUN_FOR_BOTH_IDS(a_hop_is_the_one_of_the_page);
  RUN_FOR_BOTH_IDS(a_hop_stays_within_its_graph_at_every_degree_and_fanout);
  RUN(more_nodes_than_the_ids_can_count_are_refused);
  RUN_FOR_BOTH_IDS(ids_are_compacted_by_first_occurrence);
  RUN_FOR_BOTH_IDS(a_minibatch_is_the_one_of_the_page);
  RUN_FOR_BOTH_IDS(both_maps_give_the_same_minibatch);
  RUN_FOR_BOTH_IDS(graphs_and_seeds_that_are_wrong_are_refused);
  RUN_FOR_BOTH_IDS(edges_are_grouped_stably);
  RUN_FOR_BOTH_IDS(hops_become_two_rows);
  RUN(random_hops_become_two_rows_or_are_refused);
  RUN_FOR_BOTH_IDS(edges_split_into_parts_are_those_sorted_at_once);
  RUN(two_threads_get_what_one_gets);
  RUN(more_picks_than_an_array_can_hold_are_refused);
  RUN_FOR_BOTH_IDS(a_hop_beyond_the_memory_names_what_it_needs);
}

}  // namespace datapipes

// Runs all suites, or those whose file has one of the arguments in its name.
int main(int argc, char** argv) {
  using namespace datapipes;
  const std::vector<std::string_view> names(argv + 1, argv + argc);
  const auto is_wanted = [&](std::string_view file) {
    return names.empty() || std::ranges::any_of(names, [&](auto name) { return file.find(name) != file.npos; });
  };
  std::sort(suites().begin(), suites().end(), [](const Suite& one, const Suite& other) {
    return std::tuple(!one.forks, std::string_view(one.file)) < std::tuple(!other.forks, std::string_view(other.file));
  });
  for (const Suite& suite : suites()) {
    if (is_wanted(suite.file)) suite.run();
  }
  std::printf("%d failed checks\n", failed_checks);
  return failed_checks == 0 ? 0 : 1;
}
