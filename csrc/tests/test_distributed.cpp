// test_distributed.cpp: the hops of a minibatch over parts without Python; tests/distributed/ compares whole chains.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "distributed/hops_over_parts.h"
#include "sampling/sample_hop.h"
#include "sampling/sample_neighbors.h"
#include "tests/check.h"

namespace datapipes {
namespace {

using Ints = std::vector<std::int64_t>;

// Two node types and three relations, two of them into type 0; vectors of the exact size, for AddressSanitizer.
template <class Id>
struct Typed {
  struct Rows {
    std::size_t src, dst;
    Ints indptr, edge_ids;
    std::vector<Id> indices;
  };
  Ints num_nodes{700, 300};
  std::vector<Rows> relations;

  Typed() {
    for (const auto& [src, dst] : std::vector<std::pair<std::size_t, std::size_t>>{{0, 0}, {1, 0}, {0, 1}}) {
      Rows rows{src, dst, {0}, {}, {}};
      for (std::int64_t v = 0; v < num_nodes[dst]; ++v) {
        for (std::int64_t i = 0; i < v * v % 23; ++i)
          rows.indices.push_back(static_cast<Id>((v * 31 + i * 7 + std::ssize(relations)) % num_nodes[src]));
        rows.indptr.push_back(std::ssize(rows.indices));
      }
      for (std::int64_t i = 0; i < std::ssize(rows.indices); ++i) rows.edge_ids.push_back(std::ssize(rows.indices) - 1 - i);
      relations.push_back(std::move(rows));
    }
  }
  Topology<Id> topology() const {
    Topology<Id> made;
    for (const std::int64_t count : num_nodes) made.node_types.push_back({"sample_neighbor", count});
    for (const Rows& of : relations)
      made.relations.push_back({"sample_neighbor", of.src, of.dst, {of.indptr, of.indices, num_nodes[of.src]}, of.edge_ids});
    return made;
  }
};

struct Parts {
  std::int64_t num_parts;
  std::vector<std::uint8_t> dense;  // of type 0
  Ints bounds;                      // of type 1
  Parts(std::int64_t count, const Ints& num_nodes) : num_parts(count), bounds{0} {
    for (std::int64_t v = 0; v < num_nodes[0]; ++v) dense.push_back(static_cast<std::uint8_t>(v * 37 % 11 % count));
    for (std::int64_t part = 1; part <= count; ++part) bounds.push_back(num_nodes[1] * part * part / (count * count));
  }
  template <class Id>
  GraphInParts graph(const Typed<Id>& typed) const {
    GraphInParts made{num_parts, {}, {}, {}};
    for (const std::int64_t num_nodes : typed.num_nodes) made.node_types.push_back({"dist", num_nodes});
    made.owners.emplace_back(std::span<const std::uint8_t>(dense), num_parts, typed.num_nodes[0]);
    made.owners.emplace_back(std::span<const std::int64_t>(bounds), num_parts, typed.num_nodes[1]);
    for (const auto& of : typed.relations) made.relations.push_back({"dist", of.src, of.dst});
    return made;
  }
};

std::uint64_t key_of(std::size_t hop, std::size_t place) { return 1000 * hop + place; }

// The answers of the parts, in vectors of the exact size.
template <class Id>
struct Answers {
  struct One {
    Ints indptr, edge_ids;
    std::vector<Id> neighbors;
  };
  std::vector<One> parts;  // the parts that were asked

  Answers(const Typed<Id>& typed, const PartedRequest& request, std::size_t hop, const std::vector<PartAsk<Id>>& asks) {
    const auto topology = typed.topology();
    for (const auto& ask : asks) {
      std::vector<Ints> ids;
      for (const auto& of : ask.rows) ids.emplace_back(of.ids.data(), of.ids.data() + of.ids.size());
      std::vector<HopRows> nodes;
      for (std::size_t i = 0; i < ids.size(); ++i)
        nodes.push_back({.rows = ids[i], .streams = ask.rows[i].streams.first(ask.rows[i].streams.size())});
      std::vector<HopDraw<Id>> draws;
      for (const std::size_t place : ask.draws) {
        const auto& relation = topology.relations[request.sampled[place]];
        const auto of =
            std::find_if(ask.rows.begin(), ask.rows.end(), [&](const auto& rows) { return rows.type == relation.dst; });
        const Uniform policy{request.fanouts[hop][place], request.replace, key_of(hop, place)};
        draws.push_back({static_cast<std::size_t>(of - ask.rows.begin()), relation.rows, policy, relation.edge_ids});
      }
      const auto drawn = sample_hops<Id>(nodes, draws, request.want_edge_ids ? Places::kEdgeIds : Places::kNone);
      One& one = parts.emplace_back();
      one.indptr.assign(drawn.indptr.data(), drawn.indptr.data() + drawn.indptr.size());
      one.neighbors.assign(drawn.neighbors.data(), drawn.neighbors.data() + drawn.neighbors.size());
      one.edge_ids.assign(drawn.positions.data(), drawn.positions.data() + drawn.positions.size());
    }
  }
  std::vector<PartAnswer<Id>> views() const {
    std::vector<PartAnswer<Id>> made;
    for (const One& one : parts) made.push_back({one.indptr, one.neighbors, one.edge_ids});
    return made;
  }
};

const Ints kSeeds{5, 600, 5, 17, 0, 699}, kOtherSeeds{299, 3};

PartedRequest request_of(bool replace, bool only_new, bool want_edge_ids) {
  return {
      {.sampled = {0, 1, 2}, .only_new = only_new, .want_edge_ids = want_edge_ids}, {{3, 2, -1}, {-1, 0, 5}, {7, 4, 2}}, replace};
}

const Ints kGroups{0, 1, 2, 2, 0, 1}, kOtherGroups{2, 0};
const std::vector<std::uint32_t> kStreams{0, 7, 1};

std::vector<Seeds> seeds_of(bool has_groups) {
  if (has_groups) return {{0, kSeeds, kGroups}, {1, kOtherSeeds, kOtherGroups}};
  return {{0, kSeeds}, {1, kOtherSeeds}};
}

template <class Id, class Nodes>
Neighborhood<Id> over_parts(const Typed<Id>& typed, const Parts& parts, const PartedRequest& request) {
  const GraphInParts graph = parts.graph(typed);
  const auto seeds = seeds_of(Nodes::kGroups);
  HopsOverParts<Id, Nodes> hops(graph, request);
  Neighborhood<Id> found;
  found.compacted_seeds = hops.start(seeds);
  for (std::size_t hop = 0; hops.has_hop(); ++hop) {
    const auto asks = hops.ask();
    const Answers<Id> answers(typed, request, hop, asks);
    found.hops.push_back(hops.take(answers.views()));
  }
  static_cast<FoundNodes<Id>&>(found) = hops.finish();
  return found;
}

template <class T>
bool same(const Buffer<T>& a, const Buffer<T>& b) {
  return a.size() == b.size() && std::equal(a.data(), a.data() + a.size(), b.data());
}

template <class Id, class Nodes>
void hops_of_nodes_are_those_of_the_whole_graph() {
  const Typed<Id> typed;
  const auto topology = typed.topology();
  const auto seeds = seeds_of(Nodes::kGroups);
  for (int options = 0; options < 16; ++options) {
    PartedRequest request = request_of((options & 1) != 0, (options & 2) != 0, (options & 4) != 0);
    request.only_among = (options & 8) != 0;
    if (Nodes::kGroups) request.groups = Groups{3, kStreams};
    NeighborsRequest whole{request};
    for (std::size_t hop = 0; hop < request.fanouts.size(); ++hop) {
      whole.hops.emplace_back();
      for (std::size_t i = 0; i < request.sampled.size(); ++i)
        whole.hops.back().push_back(Uniform{request.fanouts[hop][i], request.replace, key_of(hop, i)});
    }
    const auto expected = sample_neighbors(topology, seeds, whole);
    for (const std::int64_t num_parts : {1, 2, 3, 11}) {
      const auto found = over_parts<Id, Nodes>(typed, Parts(num_parts, typed.num_nodes), request);
      for (std::size_t i = 0; i < 2; ++i) {
        CHECK(same(found.nodes[i], expected.nodes[i]));
        CHECK(same(found.compacted_seeds[i], expected.compacted_seeds[i]));
        if (Nodes::kGroups) CHECK(same(found.groups[i], expected.groups[i]));
      }
      for (std::size_t hop = 0; hop < expected.hops.size(); ++hop) {
        for (std::size_t i = 0; i < expected.hops[hop].size(); ++i) {
          const auto &mine = found.hops[hop][i], &theirs = expected.hops[hop][i];
          CHECK(same(mine.indptr, theirs.indptr));
          CHECK(same(mine.indices, theirs.indices));
          CHECK(same(mine.edge_ids, theirs.edge_ids));
          CHECK(mine.num_src == theirs.num_src);
        }
      }
    }
  }
}

template <class Id>
void hops_over_parts_are_those_of_the_whole_graph() {
  hops_of_nodes_are_those_of_the_whole_graph<Id, PlainNodes<Id>>();
  hops_of_nodes_are_those_of_the_whole_graph<Id, NodesOfGroups<Id>>();
}

// Spoils the answers to hop 0 and expects an error; no read goes beyond them.
template <class Id>
void spoiled(const std::function<void(Answers<Id>&)>& spoil, bool replace = false) {
  const Typed<Id> typed;
  const Parts parts(3, typed.num_nodes);
  const GraphInParts graph = parts.graph(typed);
  const PartedRequest request = request_of(replace, false, true);
  const Seeds seeds[] = {{0, kSeeds}, {1, kOtherSeeds}};
  HopsOverParts<Id> hops(graph, request);
  hops.start(seeds);
  Answers<Id> answers(typed, request, 0, hops.ask());
  spoil(answers);
  CHECK_THROWS(std::invalid_argument, hops.take(answers.views()));
  CHECK_THROWS(std::logic_error, hops.take(answers.views()));  // it must not be used again
  CHECK_THROWS(std::logic_error, hops.ask());
  CHECK_THROWS(std::logic_error, hops.finish());
}

template <class Id>
void wrong_answers_of_parts_are_refused() {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max(), kLeast = std::numeric_limits<std::int64_t>::min();
  using All = Answers<Id>;
  spoiled<Id>([](All& all) { all.parts.pop_back(); });
  spoiled<Id>([](All& all) { all.parts.push_back(all.parts[0]); });
  spoiled<Id>([](All& all) { all.parts[0].indptr.clear(); });
  spoiled<Id>([](All& all) { all.parts[0].indptr.pop_back(); });
  spoiled<Id>([](All& all) { all.parts[0].indptr.push_back(all.parts[0].indptr.back()); });
  spoiled<Id>([](All& all) { all.parts[1].neighbors.pop_back(); });
  spoiled<Id>([](All& all) { all.parts[1].edge_ids.pop_back(); });
  spoiled<Id>([](All& all) { all.parts[1].edge_ids.clear(); });
  spoiled<Id>([](All& all) { all.parts[1].edge_ids.back() = kLeast; });
  for (const std::int64_t offset : {kLeast, std::int64_t{-1}, kMost, std::int64_t{4}})
    spoiled<Id>([&](All& all) { all.parts[0].indptr[1] = offset; });  // in the middle; 4 is above the fanout
  spoiled<Id>([](All& all) { all.parts[0].indptr[1] = 2; }, true);    // with replacement it is 0 or the fanout
  for (const std::int64_t neighbor : {std::int64_t{-1}, std::int64_t{700}, std::int64_t{std::numeric_limits<Id>::max()},
                                      std::int64_t{std::numeric_limits<Id>::min()}})
    spoiled<Id>([&](All& all) { all.parts[0].neighbors.back() = static_cast<Id>(neighbor); });
}

template <class Id>
void seeds_and_books_that_are_wrong_are_refused() {
  const Typed<Id> typed;
  Parts parts(3, typed.num_nodes);
  const GraphInParts graph = parts.graph(typed);
  for (const std::int64_t seed : {std::int64_t{-1}, std::int64_t{700}, std::int64_t{1} << 40}) {
    HopsOverParts<Id> hops(graph, request_of(false, false, false));
    const Ints ids{1, seed};
    const Seeds seeds[] = {{0, ids}};
    CHECK_THROWS(std::out_of_range, hops.start(seeds));
    CHECK_THROWS(std::logic_error, hops.ask());
  }
  HopsOverParts<Id> hops(graph, request_of(false, false, false));
  const Seeds seeds[] = {{0, kSeeds}};
  hops.start(seeds);
  CHECK_THROWS(std::logic_error, hops.take({}));  // take() before ask()
  parts.dense[600] = 3;
  CHECK_THROWS(std::invalid_argument, hops.ask());
  const std::span<const std::uint8_t> dense(parts.dense);
  CHECK_THROWS(std::invalid_argument, PartMap(dense, 3, 699));
  CHECK_THROWS(std::invalid_argument, PartMap(dense, 0, 700));
  for (const Ints& bounds : {Ints{0, 300}, Ints{1, 100, 200, 300}, Ints{0, 200, 100, 300}, Ints{0, 100, 200, 299}, Ints{}})
    CHECK_THROWS(std::invalid_argument, PartMap(std::span<const std::int64_t>(bounds), 3, 300));
}

}  // namespace

SUITE(test_distributed) {
  RUN_FOR_BOTH_IDS(hops_over_parts_are_those_of_the_whole_graph);
  RUN_FOR_BOTH_IDS(wrong_answers_of_parts_are_refused);
  RUN_FOR_BOTH_IDS(seeds_and_books_that_are_wrong_are_refused);
}

}  // namespace datapipes
