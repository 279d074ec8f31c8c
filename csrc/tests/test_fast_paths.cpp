// test_fast_paths.cpp: compares every fast path with the slow path it replaces.
#include <cstdint>
#include <limits>
#include <unordered_map>
#include <vector>

#include "random/draw_few.h"
#include "random/philox.h"
#include "random/stream_words.h"
#include "sampling/choose.h"
#include "sampling/choose_few.h"
#include "sampling/id_map.h"
#include "tests/check.h"

namespace datapipes {
namespace {

using Ints = std::vector<std::int64_t>;

void a_few_draws_are_those_of_the_stream() {
  int refused = 0;
  for (std::uint64_t node = 0; node < 400; ++node) {
    for (const std::uint32_t first : {1u, 2u, 50u, 100'000u, (1u << 31) - 40}) {
      for (const std::int64_t count : {0, 1, 8, 15, 32}) {
        const std::uint64_t key = node * 0x9E3779B97F4A7C15u, id = node << 30 | node;
        std::uint32_t drawn[kFewDraws];
        const auto tree = static_cast<std::uint32_t>(node % 3);
        if (!draw_few(key, id, tree, first, count, drawn)) {
          ++refused;
          continue;
        }
        Stream stream(key, id, tree);
        bool equal = true;
        for (std::int64_t i = 0; i < count; ++i) equal &= stream.bounded(first + static_cast<std::uint64_t>(i)) == drawn[i];
        CHECK(equal);
      }
    }
  }
  CHECK(refused > 400);  // ranges near 2^31 may reject every other draw
}

void first_words_of_streams_are_those_of_each() {
  for (const std::uint64_t key : {std::uint64_t{0}, 0x9E3779B97F4A7C15u, ~std::uint64_t{0}}) {
    for (const std::uint32_t first : {0u, 7u, 4'294'967'200u}) {
      for (const std::size_t count : {0u, 1u, 3u, 4u, 15u, 16u, 17u, 90u}) {
        std::vector<std::uint32_t> wanted(count), found(count);
        for (std::size_t i = 0; i < count; ++i) wanted[i] = Stream(key, 0, static_cast<std::uint32_t>(first + i)).word();
        first_words_of_streams(key, first, found);
        CHECK(found == wanted);
        for (const std::uint64_t node : {std::uint64_t{0}, std::uint64_t{5}, (std::uint64_t{1} << 40) + 3}) {
          std::vector<Words> blocks(count);
          first_blocks_of_streams(key, node, first, blocks);
          for (std::size_t i = 0; i < count; ++i) {
            const auto number = static_cast<std::uint32_t>(first + i);
            Stream plain(key, node, number), preset(key, node, number, blocks[i]);
            for (int word = 0; word < 9; ++word) CHECK(plain.word() == preset.word());
          }
        }
      }
    }
  }
}

void a_few_picks_are_those_of_the_chooser() {
  FewChooser few;
  Chooser slow;
  std::int64_t chosen = 0, refused = 0;
  for (const std::int64_t degree : {1LL, 2LL, 11LL, 63LL, 64LL, 65LL, 66LL, 100LL, 4'095LL, 4'096LL, 4'097LL, 32'767LL, 32'768LL,
                                    70'000LL, 1LL << 30, (1LL << 31) - 1, 1LL << 31, 1LL << 40}) {
    const std::int64_t before = chosen;
    for (std::int64_t fanout = 0; fanout < std::min<std::int64_t>(degree, 40); ++fanout) {
      for (std::uint64_t node = 0; node < 20; ++node) {
        Ints got(static_cast<std::size_t>(fanout), -1), wanted = got;
        const auto tree = static_cast<std::uint32_t>(node % 3);
        if (!few.choose(degree, fanout, 77, node, tree, got.data())) {
          ++refused;
          continue;
        }
        slow.choose(degree, fanout, false, Stream(77, node, tree), wanted.data());
        CHECK(got == wanted);
        ++chosen;
      }
    }
    CHECK(chosen > before || degree > std::numeric_limits<std::int32_t>::max());  // each degree sometimes takes the fast path
  }
  CHECK(refused > 1'000);
}

template <class Id, template <class> class MapOf, class Map = MapOf<Id>>
void a_map_numbers_like_a_dictionary(std::uint32_t first_base) {
  constexpr std::int64_t kNodes = 500, kGaps = 200;
  Map map(first_base);
  for (std::uint64_t minibatch = 0; minibatch < 30; ++minibatch) {
    map.start(kNodes);
    std::unordered_map<std::int64_t, std::int64_t> wanted;
    std::vector<Id> nodes(kNodes + kGaps + 1), ids, local(40);
    std::vector<Range> found;
    std::int64_t count = 0;
    Stream stream(3, minibatch);
    for (int block = 0; block < 12; ++block) {
      ids.clear();
      for (int i = 0; i < 40; ++i) ids.push_back(static_cast<Id>(stream.bounded(kNodes)));
      const std::int64_t begin = count, left = kNodes - static_cast<std::int64_t>(wanted.size());
      map.reserve({nodes.data(), static_cast<std::size_t>(count)}, found, std::min<std::int64_t>(40, left));
      count = map.number(ids, count, nodes.data(), local.data());
      found.push_back({begin, count});
      bool equal = true;
      std::int64_t next = begin;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const auto [at, inserted] = wanted.try_emplace(ids[i], next);
        next += inserted;
        equal &= at->second == local[i] && nodes[static_cast<std::size_t>(local[i])] == ids[i];
      }
      CHECK(equal);
      CHECK(count == next);
      if (minibatch % 2 == 1) count += static_cast<std::int64_t>(stream.bounded(kGaps / 12));
    }
  }
}

template <class Id, template <class> class MapOf>
void a_map_outlives_the_end_of_its_bases() {
  for (const std::uint32_t left : {0u, 1u, 39u, 100u, 480u, 500u, 1'000u, 5'000u})
    a_map_numbers_like_a_dictionary<Id, MapOf>(std::numeric_limits<std::uint32_t>::max() - left);
  a_map_numbers_like_a_dictionary<Id, MapOf>(1);
}

}  // namespace

SUITE(test_fast_paths) {
  RUN(a_few_draws_are_those_of_the_stream);
  RUN(first_words_of_streams_are_those_of_each);
  RUN(a_few_picks_are_those_of_the_chooser);
  RUN(a_map_outlives_the_end_of_its_bases<std::int32_t, DirectIdMap>);
  RUN(a_map_outlives_the_end_of_its_bases<std::int64_t, DirectIdMap>);
  RUN(a_map_outlives_the_end_of_its_bases<std::int32_t, HashIdMap>);
  RUN(a_map_outlives_the_end_of_its_bases<std::int64_t, HashIdMap>);
}

}  // namespace datapipes
