// test_tables.cpp: numbers of ids, equal to those of a std::map; ids that look alike, empty ones, and columns that do not fit.
#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "tables/id_numbers.h"
#include "tests/check.h"

namespace datapipes {
namespace {

struct Texts {
  std::vector<std::int64_t> offsets{0};
  std::string bytes;
  std::vector<std::uint8_t> valid;
  void add(const std::string& text, bool is_valid = true) {
    bytes += text;
    offsets.push_back(std::ssize(bytes));
    valid.push_back(is_valid);
  }
  std::string at(std::size_t row) const { return bytes.substr(offsets[row], offsets[row + 1] - offsets[row]); }
  IdColumn column() const { return {offsets, bytes, {}, valid}; }
};

std::uint64_t drawn(std::uint64_t& state) { return (state = state * 6364136223846793005 + 1442695040888963407) >> 33; }

void texts_are_numbered_row_by_row() {
  constexpr std::int64_t kRows = 20'000;
  std::uint64_t state = 7;
  Texts columns[2];
  for (std::int64_t row = 0; row < kRows; ++row)
    for (Texts& column : columns) {
      std::string text(drawn(state) % 40, '\0');  // lengths of every branch of the hash; many texts are alike
      for (char& letter : text) letter = static_cast<char>(drawn(state) % 2);
      column.add(text, drawn(state) % 16 != 0);
    }
  IdNumbers numbers(IdNumbers::Kind::kTexts, 1), other(IdNumbers::Kind::kTexts, 2);
  std::map<std::string, std::int64_t> expected;
  std::vector<std::int64_t> out(2 * kRows), again(2 * kRows);
  const IdColumn viewed[] = {columns[0].column(), columns[1].column()};
  numbers.number(viewed, kRows, out);
  other.number(viewed, kRows, again);
  CHECK(out == again);
  bool equal = true;
  for (std::size_t row = 0; row < kRows; ++row)
    for (std::size_t column = 0; column < 2; ++column) {
      const std::int64_t number = out[column * kRows + row];
      if (!columns[column].valid[row]) {
        equal = equal && number == -1;
        continue;
      }
      const auto [entry, is_new] = expected.emplace(columns[column].at(row), std::ssize(expected));
      equal = equal && number == entry->second && numbers.text(number) == entry->first;
    }
  CHECK(equal);
  CHECK(numbers.count() == std::ssize(expected));
  numbers.find(viewed, kRows, again);
  CHECK(out == again);
}

void integers_are_numbered_in_parts() {
  std::vector<std::int64_t> ids, expected, out(50'000);
  std::map<std::int64_t, std::int64_t> numbered;
  std::uint64_t state = 3;
  for (std::size_t i = 0; i < out.size(); ++i) {
    ids.push_back(static_cast<std::int64_t>(drawn(state) % 20'000) * (i % 2 == 0 ? -(std::int64_t{1} << 48) : 1));
    expected.push_back(numbered.emplace(ids.back(), std::ssize(numbered)).first->second);
  }
  IdNumbers numbers(IdNumbers::Kind::kIntegers, 9);
  const std::span<const std::int64_t> all(ids);
  const std::span<std::int64_t> places(out);
  for (std::size_t begin = 0, size = 1; begin < ids.size(); begin += size, size = std::min(2 * size, ids.size() - begin)) {
    const IdColumn part{{}, {}, all.subspan(begin, size), {}};
    numbers.number({&part, 1}, std::ssize(part.integers), places.subspan(begin, size));
  }
  CHECK(out == expected);
  const std::int64_t unknown = 1 << 20;
  const IdColumn column{{}, {}, {&unknown, 1}, {}};
  numbers.find({&column, 1}, 1, places.first(1));
  CHECK(out[0] == -1);
  CHECK(numbers.count() == std::ssize(numbered));
}

void columns_that_do_not_fit_are_refused() {
  IdNumbers texts(IdNumbers::Kind::kTexts, 0), integers(IdNumbers::Kind::kIntegers, 0);
  std::int64_t place = 0;
  const std::int64_t id = 1, descends[] = {1, 0}, outside[] = {0, 2};
  const std::string one = "a";
  const IdColumn integer{{}, {}, {&id, 1}, {}}, first{descends, one, {}, {}}, second{outside, one, {}, {}};
  CHECK_THROWS(std::invalid_argument, (texts.number({&integer, 1}, 1, {&place, 1}), 0));
  CHECK_THROWS(std::invalid_argument, (texts.number({&first, 1}, 1, {&place, 1}), 0));
  CHECK_THROWS(std::invalid_argument, (texts.number({&second, 1}, 1, {&place, 1}), 0));
  CHECK_THROWS(std::invalid_argument, (integers.number({&integer, 1}, 2, {&place, 1}), 0));
  CHECK_THROWS(std::invalid_argument, (integers.number({}, 0, {}), 0));
  CHECK(texts.count() == 0);
}

}  // namespace

SUITE(test_tables) {
  RUN(texts_are_numbered_row_by_row);
  RUN(integers_are_numbered_in_parts);
  RUN(columns_that_do_not_fit_are_refused);
}

}  // namespace datapipes
