// test_links.cpp: the kernels of links under sanitizers: many random cases, and inconsistent input.
#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "links/draw_negatives.h"
#include "links/exclude_edges.h"
#include "links/find_edges.h"
#include "random/philox.h"
#include "tests/check.h"

namespace datapipes {
namespace {

using Ints = std::vector<std::int64_t>;

struct Graph {
  Ints indptr{0}, indices;
};

// Nodes of degrees up to 40, and node 0 with as many in-edges as `hub` says.
Graph random_graph(std::int64_t num_nodes, std::int64_t hub, std::uint64_t key) {
  Graph graph;
  for (std::int64_t v = 0; v < num_nodes; ++v) {
    Stream stream(key, static_cast<std::uint64_t>(v));
    const std::int64_t degree = v == 0 ? hub : static_cast<std::int64_t>(stream.bounded(40));
    for (std::int64_t i = 0; i < degree; ++i)
      graph.indices.push_back(static_cast<std::int64_t>(stream.bounded(static_cast<std::uint64_t>(num_nodes))));
    graph.indptr.push_back(std::ssize(graph.indices));
  }
  return graph;
}

void finds_what_a_plain_search_finds() {
  for (const std::int64_t hub : {0, 255, 256, 257, 5000}) {
    const std::int64_t num_nodes = 300;
    const Graph graph = random_graph(num_nodes, hub, static_cast<std::uint64_t>(hub));
    Ints rows, sources;
    Stream stream(7, 1);
    for (int i = 0; i < 1000; ++i) {
      rows.push_back(i % 3 == 0 ? 0 : static_cast<std::int64_t>(stream.bounded(num_nodes)));
      sources.push_back(static_cast<std::int64_t>(stream.bounded(num_nodes)));
    }
    const FoundEdges found = find_edges(RowView<std::int64_t>{graph.indptr, graph.indices, num_nodes}, rows, sources);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto row = static_cast<std::size_t>(rows[i]);
      const auto begin = graph.indices.begin() + graph.indptr[row], end = graph.indices.begin() + graph.indptr[row + 1];
      const auto first = std::find(begin, end, sources[i]);
      CHECK(found.counts[static_cast<std::int64_t>(i)] == std::count(begin, end, sources[i]));
      CHECK(found.firsts[static_cast<std::int64_t>(i)] == (first == end ? -1 : first - graph.indices.begin()));
    }
  }
}

void refuses_pairs_outside_and_corrupt_rows() {
  const Graph graph = random_graph(10, 3, 1);
  const RowView<std::int64_t> view{graph.indptr, graph.indices, 10};
  for (const std::int64_t wrong : {std::int64_t{-1}, std::int64_t{10}, std::int64_t{1} << 62}) {
    CHECK_THROWS(std::out_of_range, find_edges(view, Ints{0, wrong}, Ints{0, 0}));
    CHECK_THROWS(std::out_of_range, find_edges(view, Ints{0, 1}, Ints{0, wrong}));
  }
  CHECK_THROWS(std::invalid_argument, find_edges(view, Ints{0, 1}, Ints{0}));
  const Ints corrupt{0, std::int64_t{1} << 60, 2};
  CHECK_THROWS(std::invalid_argument, find_edges(RowView<std::int64_t>{corrupt, graph.indices, 10}, Ints{0}, Ints{0}));
  CHECK_THROWS(std::invalid_argument, find_edges(RowView<std::int64_t>{corrupt, graph.indices, 10}, Ints{1}, Ints{0}));
}

void keeps_what_a_plain_search_keeps() {
  for (std::uint64_t key = 0; key < 30; ++key) {
    const std::int64_t num_nodes = 60;
    const Graph graph = random_graph(num_nodes, 20, key);
    Ints nodes(num_nodes), ids(graph.indices.size()), from, to;
    Stream stream(key, 99);
    for (auto& node : nodes) node = static_cast<std::int64_t>(stream.bounded(50)) + (std::int64_t{1} << 40);
    for (std::size_t p = 0; p < ids.size(); ++p) ids[p] = static_cast<std::int64_t>(p) * 3;
    for (int i = 0; i < 40; ++i) {
      from.push_back(nodes[stream.bounded(num_nodes)]);
      to.push_back(nodes[stream.bounded(num_nodes)]);
    }
    const LocalHop<std::int64_t> hop{graph.indptr, graph.indices, ids, nodes, nodes};
    const ExcludedEdges excluded(from, to);
    const auto kept = excluded.without(hop);
    Ints indptr{0}, indices, edge_ids;
    for (std::size_t v = 0; v < nodes.size(); ++v) {
      for (std::int64_t p = graph.indptr[v]; p < graph.indptr[v + 1]; ++p) {
        const std::int64_t u = graph.indices[static_cast<std::size_t>(p)];
        bool out = false;
        for (std::size_t i = 0; i < from.size(); ++i) out |= from[i] == nodes[static_cast<std::size_t>(u)] && to[i] == nodes[v];
        if (out) continue;
        indices.push_back(u);
        edge_ids.push_back(p * 3);
      }
      indptr.push_back(std::ssize(indices));
    }
    CHECK(kept.has_value() == (indices.size() < graph.indices.size()));
    if (!kept) continue;
    CHECK(std::equal(indptr.begin(), indptr.end(), kept->indptr.data()) && kept->indptr.size() == std::ssize(indptr));
    CHECK(std::equal(indices.begin(), indices.end(), kept->indices.data()) && kept->indices.size() == std::ssize(indices));
    CHECK(std::equal(edge_ids.begin(), edge_ids.end(), kept->edge_ids.data()));
    CHECK(!ExcludedEdges(Ints{-1, 1}).without(hop));
    CHECK(ExcludedEdges(Ints{0, 3, 3}).without(hop)->indices.size() == std::ssize(graph.indices) - 2);
  }
}

void refuses_hops_that_are_not_consistent() {
  const Ints nodes{5, 6, 7};
  const ExcludedEdges excluded(Ints{6, 6}, Ints{5, 7});
  const auto refuses = [&](const Ints& indptr, const Ints& indices) {
    CHECK_THROWS(std::invalid_argument, excluded.without(LocalHop<std::int64_t>{indptr, indices, {}, nodes, nodes}));
  };
  refuses({}, {});
  refuses({0, 1, 1, 1, 1}, {0});
  refuses({0, 2, 0, 2}, {1, 1});  // descends in a column that no pair names
  refuses({0, 3}, {0});
  refuses({-1, 1}, {0});
  refuses({0, 1}, {3});
  refuses({0, 1}, {-1});
  const Ints indptr{0, 1}, indices{1}, two{1, 2}, none;
  const ExcludedEdges by_id(Ints{1});
  CHECK_THROWS(std::invalid_argument, by_id.without(LocalHop<std::int64_t>{indptr, indices, {}, nodes, nodes}));
  for (const Ints* ids : {&two, &none})
    for (const ExcludedEdges* each : {&excluded, &by_id})
      CHECK_THROWS(std::invalid_argument, each->without(LocalHop<std::int64_t>{indptr, indices, *ids, nodes, nodes}));
  CHECK_THROWS(std::invalid_argument, ExcludedEdges(Ints{1}, Ints{}));
}

// Whatever values a hop has, the sanitizers see no access outside of it.
void random_hops_are_refused_or_read() {
  int refused = 0, read = 0;
  for (std::uint64_t key = 0; key < 4000; ++key) {
    Stream stream(key, 98);
    const auto any = [&](std::int64_t most) {
      return static_cast<std::int64_t>(stream.bounded(static_cast<std::uint64_t>(most)));
    };
    const Ints nodes{5, 6, 7, 8}, from{5, 6, 7, 8, 5}, to{5, 5, 6, 7, 8};
    Ints indptr(static_cast<std::size_t>(any(6))), indices(static_cast<std::size_t>(any(9))), ids(indices.size() + (any(4) == 0));
    for (auto& offset : indptr) offset = any(std::ssize(indices) + 1) - (any(12) == 0);
    if (any(2) == 0) std::sort(indptr.begin(), indptr.end());
    for (auto& local : indices) local = any(4 + (any(8) == 0));
    for (auto& id : ids) id = any(4);
    LocalHop<std::int64_t> hop{indptr, indices, {}, nodes, nodes};
    if (any(2) == 0) hop.edge_ids = ids;
    try {
      const auto kept = any(2) == 0 ? ExcludedEdges(from, to).without(hop) : ExcludedEdges(Ints{1, 2}).without(hop);
      ++read;
      if (kept) CHECK(kept->indices.size() < std::ssize(indices));
    } catch (const std::invalid_argument&) {
      ++refused;
    }
  }
  CHECK(refused > 500 && read > 500);
}

void later_tries_go_on_where_earlier_ones_ended() {
  const Ints slots{0, 5, 4'294'967'295};
  const std::vector<DrawnEnd> ends{{3'000'000'019, nullptr}, {7, nullptr}};
  const auto all = draw_negatives(9, slots, 0, 12, ends);
  for (const std::int64_t first : {1, 5, 11}) {
    const auto later = draw_negatives(9, slots, first, 12 - first, ends);
    for (std::size_t e = 0; e < 2; ++e)
      for (std::int64_t i = 0; i < 3; ++i)
        CHECK(std::equal(later[e].data() + i * (12 - first), later[e].data() + (i + 1) * (12 - first),
                         all[e].data() + i * 12 + first));
  }
  CHECK_THROWS(std::invalid_argument, draw_negatives(9, Ints{-1}, 0, 1, ends));
  CHECK_THROWS(std::invalid_argument, draw_negatives(9, Ints{1LL << 32}, 0, 1, ends));
  CHECK_THROWS(std::invalid_argument, draw_negatives(9, slots, 0, 1, std::vector<DrawnEnd>{{0, nullptr}}));
  CHECK_THROWS(std::invalid_argument, draw_negatives(9, slots, -1, 1, ends));
  const std::vector<double> sums{0, 0, 0}, positive{1, 1, 2, 2, 2, 2, 2, 2, 2};
  const RowSums zero{sums, {}, {}}, few{positive, {}, {}};
  CHECK_THROWS(std::invalid_argument, draw_negatives(9, slots, 0, 1, std::vector<DrawnEnd>{{3, &zero}}));
  CHECK_THROWS(std::invalid_argument, draw_negatives(9, slots, 0, 1, std::vector<DrawnEnd>{{10, &few}}));
}

}  // namespace

SUITE(test_links) {
  RUN(finds_what_a_plain_search_finds);
  RUN(refuses_pairs_outside_and_corrupt_rows);
  RUN(keeps_what_a_plain_search_keeps);
  RUN(refuses_hops_that_are_not_consistent);
  RUN(random_hops_are_refused_or_read);
  RUN(later_tries_go_on_where_earlier_ones_ended);
}

}  // namespace datapipes
