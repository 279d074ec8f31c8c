// test_labor.cpp: all code paths for numbers of sources agree with the streams, and the picks agree with a sort.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "random/exponential.h"
#include "random/philox.h"
#include "sampling/labor.h"
#include "sampling/row_sums.h"
#include "sampling/sample_hop.h"
#include "sampling/smallest.h"
#include "sampling/source_numbers.h"
#include "tests/check.h"

namespace datapipes {
namespace {

using Ints = std::vector<std::int64_t>;
using Words = std::vector<std::uint32_t>;

template <class Id>
std::vector<Id> some_ids(std::int64_t count, bool wide) {
  std::vector<Id> ids;
  Stream stream(5, static_cast<std::uint64_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t id = stream.bounded(wide ? std::uint64_t{1} << 62 : std::uint64_t{1} << 31);
    ids.push_back(static_cast<Id>(id));
  }
  return ids;
}

std::uint32_t by_the_page(const SourceKeys& keys, std::uint64_t id) {
  Stream offsets(keys.offset_key, id, 1);
  const bool moved = offsets.bounded(keys.dependency) >= keys.until_next;
  return Stream(moved ? keys.next_key : keys.key, id).word();
}

template <class Id>
void every_way_gives_the_numbers_of_the_streams() {
  int ways = 0;
  for (const bool wide : {false, true}) {
    if (wide && sizeof(Id) == 4) continue;
    for (const auto& [dependency, until_next] :
         {std::pair{1u, 1u}, std::pair{2u, 1u}, std::pair{7u, 5u}, std::pair{7u, 7u}, std::pair{(1u << 31) - 1, 1u << 30}}) {
      const SourceKeys keys{0x0123456789ABCDEF, 0xFEDCBA9876543210, 77, dependency, until_next, wide};
      for (const std::int64_t count : {0, 1, 3, 7, 8, 9, 15, 16, 17, 100, 1003}) {
        const auto ids = some_ids<Id>(count, wide);
        Words wanted;
        for (const Id id : ids) {
          wanted.push_back(by_the_page(keys, static_cast<std::uint64_t>(id)));
          CHECK(source_number(keys, static_cast<std::uint64_t>(id)) == wanted.back());
        }
        for (const NumbersBy by : {NumbersBy::kPlain, NumbersBy::kPairs, NumbersBy::kAvx2}) {
          Words found(static_cast<std::size_t>(count) + 1, 42);
          if (!source_numbers<Id>(keys, ids, found.data(), by)) continue;
          CHECK(found.back() == 42);  // no write behind the end
          found.pop_back();
          CHECK(found == wanted);
          ++ways;
        }
        Words found(static_cast<std::size_t>(count));
        source_numbers<Id>(keys, ids, found.data());
        CHECK(found == wanted);
      }
    }
  }
  CHECK(ways >= 110);
}

void a_rejected_offset_is_drawn_again() {
  constexpr std::uint32_t kDependency = (1u << 31) - 1;  // two in 2^32 draws are rejected: look for a source with one
  SourceKeys keys{1, 2, 3, kDependency, 1u << 30, false};
  // Of a dependency that is no divisor of 2^32, the first words below are those with a small lower half of the product.
  std::vector<std::int32_t> ids;
  for (std::uint32_t dependency : {3'000'000u, 2'147'483'646u, 1'431'655'766u}) {
    keys.dependency = dependency;
    keys.until_next = dependency / 2;
    for (std::int32_t id = 0; id < 30'000; ++id) {
      const std::uint64_t product = std::uint64_t{Stream(keys.offset_key, static_cast<std::uint64_t>(id), 1).word()} * dependency;
      if (static_cast<std::uint32_t>(product) < dependency) ids.push_back(id);
    }
    CHECK(!ids.empty());
    Words found(ids.size()), wanted;
    for (const std::int32_t id : ids) wanted.push_back(by_the_page(keys, static_cast<std::uint64_t>(id)));
    source_numbers<std::int32_t>(keys, ids, found.data());
    CHECK(found == wanted);
    ids.clear();
  }
}

Ints smallest_by_sort(const Words& numbers, std::int64_t picks) {
  Ints places(numbers.size());
  std::iota(places.begin(), places.end(), 0);
  std::stable_sort(places.begin(), places.end(), [&](std::int64_t a, std::int64_t b) {
    return numbers[static_cast<std::size_t>(a)] < numbers[static_cast<std::size_t>(b)];
  });
  places.resize(static_cast<std::size_t>(picks));
  std::sort(places.begin(), places.end());
  return places;
}

void the_smallest_are_those_of_a_sort() {
  SmallestChooser with_vectors(true), without(false);
  for (const std::int64_t count : {2, 3, 9, 30, 64, 65, 100, 1023, 1024, 1025, 5000}) {
    for (const std::int64_t picks : {1, 2, 5, 15, 40, 63, 64, 100, 1000, 4999}) {
      if (picks >= count) continue;
      for (const std::uint32_t kinds : {0u, 1u, 2u, 30u}) {  // how many different numbers exist; 0: all 2^32
        for (const std::uint32_t least : {0u, 0xFFFFFF00u}) {
          Stream stream(static_cast<std::uint64_t>(count), static_cast<std::uint64_t>(picks), kinds);
          Words numbers;
          for (std::int64_t i = 0; i < count; ++i) {
            const auto word = stream.word();
            numbers.push_back(kinds == 0 ? std::max(word, least) : least + word % kinds);
          }
          Words padded = numbers;
          padded.resize(numbers.size() + 7);
          const auto numbers_of = [&](std::int64_t begin, std::int64_t end) {
            CHECK(0 <= begin && begin < end && end <= count && end - begin <= SmallestChooser::kChunk);
            return padded.data() + begin;
          };
          for (SmallestChooser* const chooser : {&with_vectors, &without}) {
            Ints found(static_cast<std::size_t>(picks), -1);
            chooser->choose(count, picks, numbers_of, found.data());
            CHECK(found == smallest_by_sort(numbers, picks));
          }
        }
      }
    }
  }
}

template <class Id>
void a_hop_takes_the_in_edges_of_the_smallest_numbers() {
  Ints indptr{0};
  std::vector<Id> indices;
  Stream stream(8, 8);
  for (const std::int64_t degree : {0, 1, 4, 5, 6, 20, 300, 5000, 5, 0, 40, 70'000, 7}) {
    for (std::int64_t i = 0; i < degree; ++i) indices.push_back(static_cast<Id>(stream.bounded(3'000)));
    indptr.push_back(std::ssize(indices));
  }
  const RowView<Id> rows{indptr, indices, 3'000};
  Ints seeds(indptr.size() - 1);
  std::iota(seeds.begin(), seeds.end(), 0);
  for (const std::uint32_t dependency : {1u, 7u}) {
    const SourceKeys keys{11, 12, 13, dependency, dependency == 1 ? 1u : 3u, false};
    Words numbers;
    for (const Id id : indices) numbers.push_back(by_the_page(keys, static_cast<std::uint64_t>(id)));
    for (const std::int64_t fanout : {-1, 0, 1, 5, 100, 6000}) {
      Ints wanted;
      for (std::size_t row = 0; row < seeds.size(); ++row) {
        const Words of_row(numbers.begin() + indptr[row], numbers.begin() + indptr[row + 1]);
        const std::int64_t degree = std::ssize(of_row);
        for (const auto place : smallest_by_sort(of_row, fanout < 0 ? degree : std::min(degree, fanout)))
          wanted.push_back(indptr[row] + place);
      }
      for (const int threads : {1, 2, 7}) {
        const auto found = sample_hop<Id>(rows, seeds, Labor{fanout, keys}, threads);
        CHECK(wanted == Ints(found.positions.data(), found.positions.data() + found.positions.size()));
      }
    }
  }
  auto corrupt = indices;
  for (auto& id : corrupt) id = static_cast<Id>(-1);
  CHECK_THROWS(std::invalid_argument,
               sample_hop<Id>(RowView<Id>{indptr, corrupt, 3'000}, seeds, Labor{5, {11, 12, 13, 1, 1, false}}));
}

void the_exponential_numbers_are_logarithms_and_grow() {
  Stream stream(3, 4);
  Words words{0, 1, 2, 3, 0xFFFFFFFF, 0xFFFFFFFE};
  for (int bit = 1; bit < 32; ++bit)
    for (const std::uint32_t near : {0u, 1u, 2u}) words.push_back((1u << bit) - near), words.push_back(near - (1u << bit));
  for (int i = 0; i < 20'000; ++i) words.push_back(stream.word());
  for (const std::uint32_t word : words) {
    const double wanted = -std::log1p(-(word + 0.5) / 4294967296.0);
    CHECK(std::abs(exponential(word) - wanted) <= 1e-14 * wanted);
    CHECK(word == 0 || exponential(word - 1) < exponential(word));
  }
}

template <class Id>
void by_weight_a_hop_takes_the_in_edges_of_the_smallest_keys() {
  Ints indptr{0};
  std::vector<Id> indices;
  std::vector<float> weights;
  Stream stream(8, 9);
  for (const std::int64_t degree : {0, 1, 5, 20, 63, 64, 65, 300, 5000, 0, 40}) {
    for (std::int64_t i = 0; i < degree; ++i) {
      indices.push_back(static_cast<Id>(stream.bounded(3'000)));
      const auto weight = static_cast<float>(stream.bounded(8));
      weights.push_back(degree == 40 ? 0.0f : weight * weight);
    }
    indptr.push_back(std::ssize(indices));
  }
  const auto sums = make_row_sums("weights", indptr, std::as_bytes(std::span(weights)), WeightType::kFloat32);
  const RowSums view{{sums.sums.data(), static_cast<std::size_t>(sums.sums.size())},
                     {sums.coarse.data(), static_cast<std::size_t>(sums.coarse.size())},
                     {sums.drawable.data(), static_cast<std::size_t>(sums.drawable.size())}};
  Ints seeds(indptr.size() - 1);
  std::iota(seeds.begin(), seeds.end(), 0);
  const SourceKeys keys{11, 12, 13, 1, 1, false};
  for (const std::int64_t fanout : {-1, 0, 1, 5, 100, 4000}) {
    Ints wanted;
    for (std::size_t row = 0; row < seeds.size(); ++row) {
      std::vector<std::pair<double, std::int64_t>> found;
      for (std::int64_t at = indptr[row]; at < indptr[row + 1]; ++at) {
        const auto i = static_cast<std::size_t>(at);
        const double e = exponential(source_number(keys, static_cast<std::uint64_t>(indices[i])));
        if (weights[i] > 0) found.emplace_back(e / weights[i], at);  // sums of small integers are exact
      }
      std::sort(found.begin(), found.end());
      if (fanout >= 0 && fanout < std::ssize(found)) found.resize(static_cast<std::size_t>(fanout));
      Ints of_row;
      for (const auto& each : found) of_row.push_back(each.second);
      std::sort(of_row.begin(), of_row.end());
      wanted.insert(wanted.end(), of_row.begin(), of_row.end());
    }
    for (const int threads : {1, 7}) {
      const auto found = sample_hop<Id>(RowView<Id>{indptr, indices, 3'000}, seeds, Labor{fanout, keys, view}, threads);
      CHECK(wanted == Ints(found.positions.data(), found.positions.data() + found.positions.size()));
    }
  }
  auto fallen = std::vector<double>(view.sums.begin(), view.sums.end());
  std::fill(fallen.begin(), fallen.end(), 1.0);
  CHECK_THROWS(std::invalid_argument,
               sample_hop<Id>(RowView<Id>{indptr, indices, 3'000}, seeds, Labor{5, keys, {fallen, view.coarse, view.drawable}}));
}

}  // namespace

SUITE(test_labor) {
  RUN_FOR_BOTH_IDS(every_way_gives_the_numbers_of_the_streams);
  RUN(a_rejected_offset_is_drawn_again);
  RUN(the_smallest_are_those_of_a_sort);
  RUN_FOR_BOTH_IDS(a_hop_takes_the_in_edges_of_the_smallest_numbers);
  RUN(the_exponential_numbers_are_logarithms_and_grow);
  RUN_FOR_BOTH_IDS(by_weight_a_hop_takes_the_in_edges_of_the_smallest_keys);
}

}  // namespace datapipes
