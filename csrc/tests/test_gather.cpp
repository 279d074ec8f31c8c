// test_gather.cpp: rows of bytes gathered, and put in their places, at every width, for the sanitizers.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "gather/gather_rows.h"
#include "tests/check.h"

namespace datapipes {
namespace {

using Ints = std::vector<std::int64_t>;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();

template <class Id>
void rows_are_gathered_at_every_width() {
  for (const std::int64_t width : {0, 1, 2, 3, 4, 7, 8, 16, 31, 32, 64, 100, 400, 4096}) {
    for (const std::int64_t gap : {0, 5}) {
      constexpr std::int64_t kRows = 37;
      const std::int64_t stride = width + gap;
      std::vector<std::byte> table(static_cast<std::size_t>(kRows * stride - gap));
      for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::byte>(i * 37 + i / 251);
      std::vector<Id> ids;
      for (std::int64_t i = 0; i < 101; ++i) ids.push_back(static_cast<Id>(i * i % kRows));
      ids.push_back(kRows - 1);
      std::vector<std::byte> out(static_cast<std::size_t>(std::ssize(ids) * width));
      const RowTable rows{table.data(), kRows, width, stride};
      gather_rows<Id>(rows, ids, out.data());
      for (std::int64_t i = 0; i < std::ssize(ids); ++i) {
        const auto* const row = table.data() + ids[static_cast<std::size_t>(i)] * stride;
        CHECK(equal_bytes(out.data() + i * width, row, static_cast<std::size_t>(width)));
      }
      gather_rows<Id>(rows, {}, out.data());
      for (const Id outside : {Id{-1}, Id{kRows}, std::numeric_limits<Id>::max(), std::numeric_limits<Id>::min()}) {
        ids.back() = outside;
        CHECK_THROWS(std::out_of_range, (gather_rows<Id>(rows, ids, out.data()), 0));
      }
    }
  }
}

template <class Id>
void rows_are_put_in_their_places() {
  for (const std::int64_t width : {0, 1, 3, 4, 8, 16, 31, 64, 100, 400, 4096}) {
    for (const int threads : {1, 3}) {
      constexpr std::int64_t kRows = 37, kOut = 2'501;
      const std::int64_t stride = width + 5;
      std::vector<std::byte> table(static_cast<std::size_t>(kRows * stride - 5)),
          expected(static_cast<std::size_t>(kOut * width));
      for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::byte>(i * 37 + i / 251);
      auto out = expected;
      Ints places;
      std::vector<Id> ids;
      for (std::int64_t i = 0; i < kOut; i += 1 + i % 3) {
        places.push_back(i);
        ids.push_back(static_cast<Id>(i * i % kRows));
        std::copy_n(table.begin() + ids.back() * stride, width, expected.begin() + i * width);
      }
      const RowTable rows{table.data(), kRows, width, stride};
      place_rows<Id>(rows, ids, places, out.data(), kOut, threads);
      CHECK(out == expected);
      const Ints first(places.begin(), places.begin() + kRows);
      place_rows(rows, first, out.data(), kOut, threads);
      for (std::int64_t i = 0; i < kRows; ++i)
        CHECK(std::equal(table.begin() + i * stride, table.begin() + i * stride + width,
                         out.begin() + first[static_cast<std::size_t>(i)] * width));
      place_rows<Id>(rows, {}, {}, out.data(), kOut, threads);
      CHECK_THROWS(std::invalid_argument, (place_rows(rows, places, out.data(), kOut, threads), 0));
      for (const std::int64_t outside : {std::int64_t{-1}, kOut, kMax, kMin}) {
        auto wrong = places;
        wrong.back() = outside;
        CHECK_THROWS(std::out_of_range, (place_rows<Id>(rows, ids, wrong, out.data(), kOut, threads), 0));
      }
      ids.back() = Id{kRows};
      CHECK_THROWS(std::out_of_range, (place_rows<Id>(rows, ids, places, out.data(), kOut, threads), 0));
      ids.pop_back();
      CHECK_THROWS(std::invalid_argument, (place_rows<Id>(rows, ids, places, out.data(), kOut, threads), 0));
    }
  }
}

}  // namespace

SUITE(test_gather) {
  RUN_FOR_BOTH_IDS(rows_are_gathered_at_every_width);
  RUN_FOR_BOTH_IDS(rows_are_put_in_their_places);
}

}  // namespace datapipes
