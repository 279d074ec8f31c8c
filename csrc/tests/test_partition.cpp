// test_partition.cpp: the kernels of partitioning without Python; tests/partition/ compares them with their twins.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

#include "partition/even_parts.h"
#include "partition/fennel.h"
#include "partition/id_rank.h"
#include "partition/part_weights.h"
#include "partition/split_ids.h"
#include "partition/symmetrise.h"
#include "tests/check.h"

namespace datapipes {
namespace {

using Ints = std::vector<std::int64_t>;

const Pulse kNoPulse = [] {};

// The arrays of a graph with 3 nodes of type 0 and 2 of type 1; vectors of the exact size, for AddressSanitizer.
template <class Id>
struct TypedArrays {
  Ints plain{0, 2, 3, 5}, across{0, 2, 3};
  std::vector<Id> sources{0, 1, 0, 1, 1}, sources_across{2, 0, 0};
  Topology<Id> graph() const {
    Topology<Id> made;
    made.node_types = {{"sample_neighbor, a", 3}, {"sample_neighbor, b", 2}};
    made.relations = {{"sample_neighbor, a:r:a", 0, 0, {plain, sources, 3}, {}},
                      {"sample_neighbor, a:s:b", 0, 1, {across, sources_across, 3}, {}}};
    return made;
  }
};

template <class Id, class Index>
void symmetrise_as() {
  const TypedArrays<Id> arrays;
  const auto graph = arrays.graph();
  std::vector<Index> xadj(6);
  const std::int64_t room = count_neighbors<Id, Index>(graph, xadj, kNoPulse);
  CHECK(room == 14);  // 8 edges, one of them a self-loop
  std::vector<Index> adjncy(static_cast<std::size_t>(room));
  CHECK((fill_neighbors<Id, Index>(graph, xadj, adjncy, kNoPulse) == 10));
  adjncy.resize(10);
  CHECK((xadj == std::vector<Index>{0, 3, 5, 7, 9, 10}));
  CHECK((adjncy == std::vector<Index>{1, 3, 4, 0, 2, 1, 3, 0, 2, 0}));
}

template <class Id>
void relations_become_one_undirected_graph() {
  symmetrise_as<Id, std::int32_t>();
  symmetrise_as<Id, std::int64_t>();
}

template <class Id>
void graphs_that_do_not_fit_are_refused() {
  for (int which = 0; which < 3; ++which) {
    TypedArrays<Id> arrays;
    if (which == 0) arrays.sources[4] = 3;
    if (which == 1) arrays.sources_across[2] = -1;
    if (which == 2) arrays.plain[1] = 6;
    const auto graph = arrays.graph();
    Ints xadj(6), adjncy(14);
    CHECK_THROWS(std::invalid_argument, (count_neighbors<Id, std::int64_t>(graph, xadj, kNoPulse)));
    xadj = {0, 3, 6, 9, 12, 14};
    CHECK_THROWS(std::invalid_argument, (fill_neighbors<Id, std::int64_t>(graph, xadj, adjncy, kNoPulse)));
    std::vector<std::uint8_t> parts(5);
    CHECK_THROWS(std::invalid_argument,
                 (even_parts<Id, std::uint8_t>(graph, parts, {.num_parts = 2, .training = {{}, {}}}, kNoPulse)));
    Fennel<Id, std::uint8_t> fennel(graph, {.num_parts = 2, .key = 1, .training = {{}, {}}});
    CHECK_THROWS(std::invalid_argument, fennel.visit(0, fennel.num_blocks()));
  }
  const TypedArrays<Id> arrays;
  const auto graph = arrays.graph();
  Ints short_rows{0, 1, 2, 3, 4, 5}, adjncy(14);  // as if the graph had grown since it was counted
  CHECK_THROWS(std::invalid_argument, (fill_neighbors<Id, std::int64_t>(graph, short_rows, adjncy, kNoPulse)));
  Topology<Id> large = graph;
  large.node_types[0].num_nodes = std::int64_t{1} << 31;
  std::vector<std::int32_t> narrow(6);
  CHECK_THROWS(std::length_error, (count_neighbors<Id, std::int32_t>(large, narrow, kNoPulse)));
}

void what_a_pulse_throws_ends_the_call() {
  struct Stop {};
  constexpr std::size_t kEdges = std::size_t{1} << 22;
  const Ints indptr{0, 0, kEdges};
  const std::vector<std::int32_t> indices(kEdges);
  Topology<std::int32_t> graph;
  graph.node_types = {{"sample_neighbor", 2}};
  graph.relations = {{"sample_neighbor", 0, 0, {indptr, indices, 2}, {}}};
  const Pulse stop = [] { throw Stop(); };
  Ints xadj(3), adjncy(2 * kEdges);
  CHECK_THROWS(Stop, (count_neighbors<std::int32_t, std::int64_t>(graph, xadj, stop)));
  CHECK((count_neighbors<std::int32_t, std::int64_t>(graph, xadj, kNoPulse) == 2 * kEdges));
  CHECK_THROWS(Stop, (fill_neighbors<std::int32_t, std::int64_t>(graph, xadj, adjncy, stop)));
  std::vector<std::uint8_t> parts(2);
  CHECK_THROWS(Stop, (even_parts<std::int32_t, std::uint8_t>(graph, parts, {.num_parts = 2, .training = {{}}}, stop)));
}

// Nodes 0 to 4 are of type a (3) and b (2). All lie in part 0; a mask says that node 1 is for training.
template <class Id, class Part>
void what_one_part_has_is_spread() {
  const TypedArrays<Id> arrays;
  const auto graph = arrays.graph();
  const std::vector<std::uint8_t> training{0, 1, 0};
  std::vector<Part> parts(5);
  const EvenRequest request{.num_parts = 2, .training = {training, {}}};
  const auto evened = even_parts<Id, Part>(graph, parts, request, kNoPulse);
  CHECK(evened.cut_before == 0 && evened.cut_after == 0);  // 15 % of nothing
  CHECK(evened.before.nodes == 1.0 && evened.before.edges > 0.0 && evened.before.training == 0.0);
  parts = {0, 0, 0, 0, 1};
  const auto again = even_parts<Id, Part>(graph, parts, request, kNoPulse);
  CHECK(again.cut_before == 1 && again.cut_after <= 1);
  if constexpr (sizeof(Part) == 1) {
    const EvenRequest too_many{.num_parts = 257, .training = {training, {}}};
    CHECK_THROWS(std::invalid_argument, (even_parts<Id, Part>(graph, parts, too_many, kNoPulse)));
  }
  parts[4] = 2;
  CHECK_THROWS(std::invalid_argument, (even_parts<Id, Part>(graph, parts, request, kNoPulse)));
}

template <class Id>
void nodes_move_from_parts_that_have_too_much() {
  what_one_part_has_is_spread<Id, std::uint8_t>();
  what_one_part_has_is_spread<Id, std::int16_t>();
}

template <class Id, class Part>
void stream(std::int64_t num_parts) {
  const TypedArrays<Id> arrays;
  const auto graph = arrays.graph();
  const std::vector<std::uint8_t> training{0, 1, 0};
  Fennel<Id, Part> fennel(graph,
                          {.num_parts = num_parts, .key = 7, .base = 1, .per_edge = 1, .extra = 2, .training = {training, {}}});
  std::vector<Part> parts(5);
  for (int pass = 0; pass < 3; ++pass) {
    for (std::int64_t block = 0; block < fennel.num_blocks(); ++block) fennel.visit(block, 1);
    fennel.parts(parts);
    for (const Part part : parts) CHECK(part < num_parts);
    fennel.end_pass();
  }
  CHECK(fennel.end_pass() == 0);
  CHECK_THROWS(std::out_of_range, fennel.visit(0, fennel.num_blocks() + 1));
  CHECK_THROWS(std::invalid_argument, fennel.visit(0, -1));
  parts.pop_back();
  CHECK_THROWS(std::invalid_argument, fennel.parts(parts));
}

template <class Id>
void every_node_of_a_stream_gets_a_part() {
  stream<Id, std::uint8_t>(1);
  stream<Id, std::uint8_t>(2);
  stream<Id, std::uint8_t>(255);
  stream<Id, std::uint16_t>(3);
  stream<Id, std::uint16_t>(40'000);
  const TypedArrays<Id> arrays;
  const auto graph = arrays.graph();
  using Narrow = Fennel<Id, std::uint8_t>;
  for (const std::int64_t wrong :
       {std::int64_t{0}, std::int64_t{-1}, std::int64_t{256}, std::numeric_limits<std::int64_t>::max()})
    CHECK_THROWS(std::invalid_argument, Narrow(graph, {.num_parts = wrong, .key = 7, .training = {{}, {}}}));
}

void the_lightest_part_is_known_after_every_change() {
  for (const std::int64_t num_parts : {1, 2, 3, 8, 9}) {
    PartWeights weights(num_parts);
    Ints plain(static_cast<std::size_t>(num_parts));
    for (std::size_t i = 0; i < 200; ++i) {
      const std::size_t part = i * i % plain.size();
      weights.add(part, static_cast<std::int64_t>(i % 7));
      plain[part] += static_cast<std::int64_t>(i % 7);
      std::size_t lightest = 0;
      for (std::size_t p = 0; p < plain.size(); ++p) {
        CHECK(weights[p] == plain[p]);
        if (plain[p] < plain[lightest]) lightest = p;
      }
      CHECK(weights.lightest() == lightest);
    }
    weights.clear();
    CHECK(weights.lightest() == 0 && weights[0] == 0);
  }
}

template <class Id>
void rows_are_those_of_the_ids() {
  Ints ids;
  for (std::int64_t id = 0; id < 2000; ++id)
    if (id % 3 == 0 || (id >= 700 && id < 900)) ids.push_back(id);
  for (const std::int64_t num_ids : {ids.back() + 1, std::int64_t{2000}, std::int64_t{2304}}) {
    const IdRank rank(ids, num_ids);
    std::vector<Id> wanted;
    for (std::int64_t id = -3; id < 2400; ++id) wanted.push_back(static_cast<Id>(id));
    wanted.push_back(std::numeric_limits<Id>::max());
    wanted.push_back(std::numeric_limits<Id>::min());
    for (const int threads : {1, 3}) {
      Ints rows(wanted.size(), 7);
      rank.rows<Id>(wanted, rows, threads);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        const auto found = std::find(ids.begin(), ids.end(), static_cast<std::int64_t>(wanted[i]));
        CHECK(rows[i] == (found == ids.end() ? -1 : found - ids.begin()));
      }
    }
  }
  Ints none, no_rows;
  const std::vector<Id> nothing;
  IdRank(none, 0).rows<Id>(nothing, no_rows, 1);
}

void ids_that_do_not_ascend_have_no_rows() {
  for (const Ints& ids : {Ints{1, 1}, Ints{2, 1}, Ints{-1}, Ints{5}, Ints{0, 5}}) {
    CHECK_THROWS(std::invalid_argument, IdRank(ids, 5));
  }
  CHECK_THROWS(std::invalid_argument, IdRank(Ints(), -1));
}

template <class Id>
void ids_in_any_order_have_the_rows_of_the_sorted_ones() {
  const Ints any{700, 3, 3, 0, 5000, 383}, sorted{0, 3, 383, 700, 5000};
  const IdRank rank(any, 5001, IdRank::Order::kAny), plain(sorted, 5001);
  CHECK(rank.num_rows() == 5);
  CHECK_THROWS(std::invalid_argument, IdRank(any, 5000, IdRank::Order::kAny));
  const auto lines = plain.lines();
  CHECK(std::ssize(lines) == IdRank::size_bytes(5001));
  CHECK(std::equal(lines.begin(), lines.end(), rank.lines().begin()));
  const IdRank over(lines, 5001);
  CHECK(over.num_rows() == 5);
  std::vector<Id> wanted{0, 1, 3, 383, 384, 700, 5000};
  Ints rows(wanted.size()), same(wanted.size());
  rank.rows<Id>(wanted, rows, 1);
  over.rows<Id>(wanted, same, 1);
  CHECK((rows == Ints{0, -1, 1, 2, -1, 3, 4}));
  CHECK(same == rows);
  CHECK_THROWS(std::invalid_argument, IdRank(lines.first(lines.size() - 64), 5001));
  CHECK_THROWS(std::invalid_argument, IdRank(lines.subspan(8), 4000));
  IdRank(std::span<const std::byte>(), 0).template rows<Id>(std::vector<Id>{}, {}, 1);
}

// Splits the ids the slow way, and compares.
template <class Id>
void split_as(PartMap owners, const Ints& parts, OwnRows own, const Ints& own_ids, const Ints& hot_ids, int threads) {
  const std::int64_t num_ids = std::ssize(parts);
  const IdRank rank(own_ids, num_ids), hot(hot_ids, num_ids);
  if (own.part >= 0 && own.first < 0) own = {own.part, &rank, 0};
  std::vector<Id> ids;
  for (std::int64_t i = 0; i < 40'000; ++i) ids.push_back(static_cast<Id>(i * i % num_ids));
  const auto split = split_ids<Id>("x", owners, ids, own, &hot, threads);
  std::vector<Ints> places(static_cast<std::size_t>(owners.num_parts() + 2)), rows(places.size());
  for (std::int64_t i = 0; i < std::ssize(ids); ++i) {
    const std::int64_t id = ids[static_cast<std::size_t>(i)], part = parts[static_cast<std::size_t>(id)];
    const auto own_at = std::find(own_ids.begin(), own_ids.end(), id), hot_at = std::find(hot_ids.begin(), hot_ids.end(), id);
    const bool is_own = part == own.part, is_hot = !is_own && hot_at != hot_ids.end();
    const auto group = static_cast<std::size_t>(is_own ? 0 : is_hot ? 1 : 2 + part);
    places[group].push_back(i);
    rows[group].push_back(is_own ? own_at - own_ids.begin() : is_hot ? hot_at - hot_ids.begin() : id);
  }
  CHECK(split.bounds.size() == places.size() + 1 && split.bounds.front() == 0 && split.bounds.back() == std::ssize(ids));
  for (std::size_t group = 0; group < places.size(); ++group) {
    const std::int64_t begin = split.bounds[group], end = split.bounds[group + 1];
    CHECK((Ints(split.places.data() + begin, split.places.data() + end) == places[group]));
    CHECK((Ints(split.rows.data() + begin, split.rows.data() + end) == rows[group]));
  }
}

template <class Id>
void ids_are_split_by_where_their_rows_lie() {
  for (const int threads : {1, 3}) {
    Ints parts, own_ids, hot_ids;
    std::vector<std::uint8_t> narrow;
    std::vector<std::int16_t> wide;
    for (std::int64_t id = 0; id < 997; ++id) {
      parts.push_back(id * 7 % 11 % 3);
      if (parts.back() == 1) own_ids.push_back(id);
      if (parts.back() != 1 && id % 5 == 0) hot_ids.push_back(id);
      narrow.push_back(static_cast<std::uint8_t>(parts.back()));
      wide.push_back(static_cast<std::int16_t>(parts.back()));
    }
    split_as<Id>(PartMap(std::span<const std::uint8_t>(narrow), 3, 997), parts, {1, nullptr, -1}, own_ids, hot_ids, threads);
    split_as<Id>(PartMap(std::span<const std::int16_t>(wide), 400, 997), parts, {1, nullptr, -1}, own_ids, hot_ids, threads);
    const Ints bounds{0, 300, 300, 997};
    Ints ranges(997, 2), own_range;
    std::fill_n(ranges.begin(), 300, 0);
    for (std::int64_t id = 300; id < 997; ++id) own_range.push_back(id);
    const PartMap by_range(std::span<const std::int64_t>(bounds), 3, 997);
    split_as<Id>(by_range, ranges, {2, nullptr, 300}, own_range, {}, threads);
    split_as<Id>(by_range, ranges, {-1, nullptr, 0}, {}, {1, 2}, threads);
    for (const Id outside : {Id{-1}, Id{997}, std::numeric_limits<Id>::max(), std::numeric_limits<Id>::min()})
      CHECK_THROWS(std::out_of_range, split_ids<Id>("x", by_range, std::vector<Id>{0, outside}, {}, nullptr, threads));
    narrow[996] = 3;
    const PartMap damaged(std::span<const std::uint8_t>(narrow), 3, 997);
    CHECK_THROWS(std::invalid_argument, split_ids<Id>("x", damaged, std::vector<Id>{996}, {}, nullptr, threads));
    const IdRank too_few(Ints{1}, 997);
    narrow[996] = 2;
    CHECK_THROWS(std::invalid_argument, split_ids<Id>("x", PartMap(std::span<const std::uint8_t>(narrow), 3, 997),
                                                      std::vector<Id>{996}, {2, &too_few, 0}, nullptr, threads));
    CHECK((split_ids<Id>("x", by_range, {}, {}, nullptr, threads).bounds == Ints{0, 0, 0, 0, 0, 0}));
  }
}

void maps_of_parts_that_do_not_fit_are_refused() {
  const std::vector<std::uint8_t> dense{0, 1};
  CHECK_THROWS(std::invalid_argument, PartMap(std::span<const std::uint8_t>(dense), 2, 3));
  CHECK_THROWS(std::invalid_argument, PartMap(std::span<const std::uint8_t>(dense), 0, 2));
  for (const Ints& bounds : {Ints{}, Ints{0, 2}, Ints{1, 2, 2}, Ints{0, 3, 2}, Ints{0, 1, 3}})
    CHECK_THROWS(std::invalid_argument, PartMap(std::span<const std::int64_t>(bounds), 2, 2));
}

}  // namespace

SUITE(test_partition) {
  RUN_FOR_BOTH_IDS(ids_in_any_order_have_the_rows_of_the_sorted_ones);
  RUN_FOR_BOTH_IDS(ids_are_split_by_where_their_rows_lie);
  RUN(maps_of_parts_that_do_not_fit_are_refused);
  RUN_FOR_BOTH_IDS(rows_are_those_of_the_ids);
  RUN(ids_that_do_not_ascend_have_no_rows);
  RUN_FOR_BOTH_IDS(relations_become_one_undirected_graph);
  RUN_FOR_BOTH_IDS(graphs_that_do_not_fit_are_refused);
  RUN(what_a_pulse_throws_ends_the_call);
  RUN_FOR_BOTH_IDS(nodes_move_from_parts_that_have_too_much);
  RUN_FOR_BOTH_IDS(every_node_of_a_stream_gets_a_part);
  RUN(the_lightest_part_is_known_after_every_change);
}

}  // namespace datapipes
