// test_random.cpp: words, keys and permutations are those that are published, or on the page.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "random/permutation.h"
#include "random/philox.h"
#include "tests/check.h"

namespace datapipes {
namespace {

using Ints = std::vector<std::int64_t>;

Ints permutation(std::int64_t num_items, std::uint64_t key, std::int64_t first, std::int64_t count) {
  Ints out(static_cast<std::size_t>(count));
  permutation_at(num_items, key, first, out);
  return out;
}

void philox_gives_the_published_answers() {
  CHECK((philox4x32({0, 0, 0, 0}, 0) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  CHECK((philox4x32({kOnes, kOnes, kOnes, kOnes}, ~std::uint64_t{0}) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  CHECK((philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822) ==
         Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

void hop_keys_and_draws_are_those_of_the_page() {
  CHECK(hop_key(1, 2, 3, 4, 5, 6) == 0x7e53e4828449e5edu);
  CHECK_THROWS(std::invalid_argument, hop_key(0, std::uint64_t{1} << 32, 0, 0, 0, 0));
  CHECK_THROWS(std::invalid_argument, hop_key(0, 0, std::uint64_t{1} << 48, 0, 0, 0));
  CHECK_THROWS(std::invalid_argument, hop_key(0, 0, 0, 1 << 16, 0, 0));
  CHECK_THROWS(std::invalid_argument, hop_key(0, 0, 0, 0, 1 << 8, 0));
  CHECK_THROWS(std::invalid_argument, hop_key(0, 0, 0, 0, 0, 1 << 16));
  Stream words(1, 2, 3);
  CHECK(words.bounded(1) == 0);
  CHECK(words.bounded(10) == 4);
  CHECK(words.bounded((std::uint64_t{1} << 31) + 1) == 786127360);
  CHECK(words.bounded((std::uint64_t{1} << 40) + 7) == 559280664115);
  CHECK(words.bounded((std::uint64_t{1} << 62) + 1) == 1086951381183208984);
}

void a_permutation_visits_every_item_once() {
  CHECK((permutation(5, 1, 0, 5) == Ints{0, 2, 1, 3, 4}));
  CHECK((permutation(70'001, 1, 0, 2) == Ints{17989, 19059}));
  CHECK((permutation(70'001, 1, 70'000, 1) == Ints{40393}));
  std::uint64_t folded = 0;  // numbers of 33 bits, more than one batch of them
  for (const auto item : permutation((std::int64_t{1} << 33) + 5, 7, 1'000, 40))
    folded = folded * 31 + static_cast<std::uint64_t>(item);
  CHECK(folded == 8756058655768709496u);
  for (const std::int64_t n : {0, 1, 2, 3, 65'536, 65'537, 70'001}) {
    Ints order = permutation(n, 7, 0, n), identity(static_cast<std::size_t>(n));
    std::sort(order.begin(), order.end());
    std::iota(identity.begin(), identity.end(), 0);
    CHECK(order == identity);
    CHECK(permutation(n, 7, n, 0).empty());
    CHECK_THROWS(std::out_of_range, permutation(n, 7, n, 1));
    CHECK_THROWS(std::out_of_range, permutation(n, 7, -1, 1));
    CHECK_THROWS(std::out_of_range, permutation(n, 7, std::numeric_limits<std::int64_t>::max(), 1));
  }
  CHECK_THROWS(std::out_of_range, permutation(-1, 7, 0, 0));
}

}  // namespace

SUITE(test_random) {
  RUN(philox_gives_the_published_answers);
  RUN(hop_keys_and_draws_are_those_of_the_page);
  RUN(a_permutation_visits_every_item_once);
}

}  // namespace datapipes
