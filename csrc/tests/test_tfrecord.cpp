// test_tfrecord.cpp: TFRecords without Python, in memory of the exact size for AddressSanitizer;
// tests/datasets/tfrecord/test_example_parser.py compares with a twin.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/check.h"
#include "tfrecord/any_example.h"
#include "tfrecord/example.h"
#include "tfrecord/usual_example.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);  // fuzz_tfrecord.cpp

namespace datapipes {
namespace {

using namespace tfrecord;

// --- A writer

using Made = std::vector<std::uint8_t>;

Made operator+(Made one, const Made& other) {
  one.insert(one.end(), other.begin(), other.end());
  return one;
}

Made text(std::string_view chars) { return {chars.begin(), chars.end()}; }

Made varint(std::uint64_t number) {
  Made made;
  for (; number >= 0x80; number >>= 7) made.push_back(static_cast<std::uint8_t>(number | 0x80));
  made.push_back(static_cast<std::uint8_t>(number));
  return made;
}

Made field(std::uint64_t number, const Made& content) { return varint(number << 3 | 2) + varint(content.size()) + content; }

template <class T>
Made bytes_of(const T& value) {
  Made made(sizeof value);
  std::memcpy(made.data(), &value, sizeof value);
  return made;
}

Made floats(const std::vector<float>& values) {
  Made packed;
  for (const float value : values) packed = packed + bytes_of(value);
  return field(2, field(1, packed));
}

Made ints(const std::vector<std::int64_t>& values) {
  Made packed;
  for (const std::int64_t value : values) packed = packed + varint(static_cast<std::uint64_t>(value));
  return field(3, field(1, packed));
}

Made entry(std::string_view key, const Made& feature) { return field(1, field(1, text(key)) + field(2, feature)); }
Made example(const Made& entries) { return field(1, entries); }
Made record(const Made& data) {
  const Made length = bytes_of(std::uint64_t{data.size()});
  return length + bytes_of(masked(crc32c(length))) + data + bytes_of(masked(crc32c(data)));
}

// --- Columns "id" (one int64) and "f" (three floats), and rows for them

std::vector<Column> two_columns() {
  return {{.key = "id", .kind = Kind::kInt64, .width = 1}, {.key = "f", .kind = Kind::kFloat32, .width = 3}};
}

Made usual_record() { return example(entry("id", ints({-5})) + entry("f", floats({1, 2, 3}))); }

struct Rows {
  explicit Rows(std::size_t count) : ids(count), values(3 * count) {}
  std::vector<std::int64_t> ids;
  std::vector<float> values;
  std::vector<Target> targets() {
    const auto count = static_cast<std::int64_t>(ids.size());
    return {{reinterpret_cast<std::byte*>(ids.data()), count, 8, DType::kInt64},
            {reinterpret_cast<std::byte*>(values.data()), count, 12, DType::kFloat32}};
  }
  bool operator==(const Rows&) const = default;
};

std::vector<Store> stores_for(const Columns& columns, const std::vector<Target>& targets) {
  std::vector<Store> stores;
  for (std::size_t i = 0; i < columns.size(); ++i) stores.push_back(store_of(columns[i].kind, targets[i].dtype));
  return stores;
}

// --- Tests

void crc32c_gives_the_published_answers() {
  Made zeros(32, 0), ones(32, 0xff), up(32), down(32);
  for (std::uint8_t i = 0; i < 32; ++i) up[i] = i, down[i] = static_cast<std::uint8_t>(31 - i);
  const std::pair<Made, std::uint32_t> known[] = {{{}, 0},  // the others are those of RFC 3720, B.4, and the usual check value
                                                  {text("123456789"), 0xe3069283},
                                                  {zeros, 0x8a9136aa},
                                                  {ones, 0x62a8ab43},
                                                  {up, 0x46dd794e},
                                                  {down, 0x113fdb5c}};
  for (const auto& [data, crc] : known) {
    CHECK(crc32c(data) == crc);
    CHECK(crc32c_by_table(data, 0) == crc);
  }
  CHECK(masked(0) == 0xa282ead8);
}

void both_ways_to_a_crc_agree() {
  Made data(400);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::uint8_t>(i * i * 7 >> 3);
  for (std::size_t from = 0; from < 9; ++from) {
    for (std::size_t count = 0; count < 300; ++count) {
      const Made piece(data.begin() + static_cast<std::ptrdiff_t>(from),
                       data.begin() + static_cast<std::ptrdiff_t>(from + count));
      const std::uint32_t crc = crc32c_by_table(piece, 0);
      if (has_crc_instruction()) CHECK(crc32c_by_instruction(piece, 0) == crc);
      const auto cut = count * 2 / 3;
      CHECK(crc32c(Bytes(piece).subspan(cut), crc32c_by_table(Bytes(piece).first(cut), 0)) == crc);
    }
  }
}

void a_file_ends_at_every_byte() {
  const Made first = record(usual_record()), whole = first + record({}) + record(usual_record());
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    const Made data(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    const std::int64_t records = size < first.size() ? 0 : size < first.size() + 16 ? 1 : size < whole.size() ? 2 : 3;
    const auto extent = scan_records(data, true);
    CHECK(extent.records == records && extent.problem.empty());
    CHECK(record_length(data) == (size < 12 ? 0 : first.size()));
  }
}

void every_wrong_bit_of_a_file_is_seen() {
  const Made good = record(usual_record()) + record(usual_record());
  const ExampleParser parser(two_columns());
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    Made data = good;
    data[bit / 8] = static_cast<std::uint8_t>(data[bit / 8] ^ 1U << bit % 8);
    const auto extent = scan_records(data, true);
    CHECK(extent.records == (bit / 8 < good.size() / 2 ? 0 : 1) && !extent.problem.empty());
    Rows rows(2);
    const auto parsed = parser.parse(data, rows.targets(), 0);
    CHECK(parsed.records == extent.records && parsed.bytes == extent.bytes && parsed.problem == extent.problem);
  }
}

void a_length_that_cannot_be_is_refused() {
  for (const std::uint64_t length : {std::uint64_t{1} << 62, std::numeric_limits<std::uint64_t>::max()}) {
    const Made said = bytes_of(length), data = said + bytes_of(masked(crc32c(said))) + Made(4);
    CHECK_THROWS(Problem, record_length(data));
    CHECK(!scan_records(data, false).problem.empty());
  }
  const Made said = bytes_of((std::uint64_t{1} << 62) - 1), data = said + bytes_of(masked(crc32c(said)));
  CHECK(scan_records(data, true).problem.empty());
}

// The slow reader reads equal values from every record that the quick reader accepts; usual records take the quick reader.
bool check_both_ways(const Made& data) {
  const Columns columns(two_columns());
  Rows quick(1), slow(1);
  const auto quick_targets = quick.targets(), slow_targets = slow.targets();
  const auto stores = stores_for(columns, quick_targets);
  UsualExample usual(columns, quick_targets, stores, data.data() + data.size());
  AnyExample any(columns, slow_targets, stores);
  bool accepted = true;
  try {
    any.read(data, 0);
  } catch (const Problem&) {
    accepted = false;
  }
  const bool is_usual = usual.read(data, 0);
  CHECK(!is_usual || (accepted && quick == slow));
  return is_usual;
}

void usual_records_take_the_quick_way() {
  CHECK(check_both_ways(usual_record()));
  CHECK(check_both_ways(example(entry("f", floats({1, 2, 3})) + entry("x", {}) + entry("id", ints({1 << 20})))));
  CHECK(!check_both_ways(example(entry("id", ints({1})))));
  CHECK(!check_both_ways(example(entry("id", ints({1})) + entry("id", ints({1})))));
  CHECK(!check_both_ways(usual_record() + usual_record()));
}

void both_ways_agree_on_records_with_any_wrong_byte() {
  const Made good = usual_record();
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int byte = 0; byte < 256; ++byte) {
      Made data = good;
      data[at] = static_cast<std::uint8_t>(byte);
      check_both_ways(data);
    }
    Made shorter = good;
    shorter.erase(shorter.begin() + static_cast<std::ptrdiff_t>(at));
    check_both_ways(shorter);
    check_both_ways(Made(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(at)));
  }
}

void keys_are_found_in_any_order() {
  Made data;
  for (std::int64_t i = 0; i < 60; ++i) {
    Made entries;
    for (std::int64_t k = 0; k < 50; ++k) entries = entries + entry("other" + std::to_string((k + i) % 50), ints({k}));
    const Made id = entry("id", ints({i << i})), f = entry("f", floats({static_cast<float>(i), 1, 2}));
    data = data + record(example(i % 3 == 0 ? entries + id + f : i % 3 == 1 ? f + entries + id : id + f + entries));
  }
  Rows rows(60);
  const auto extent = ExampleParser(two_columns()).parse(data, rows.targets(), 0);
  CHECK(extent.records == 60 && extent.problem.empty() && extent.bytes == std::ssize(data));
  for (std::int64_t i = 0; i < 60; ++i) {
    const auto row = static_cast<std::size_t>(i);
    CHECK(rows.ids[row] == i << i && rows.values[3 * row] == static_cast<float>(i) && rows.values[3 * row + 2] == 2);
  }
}

void rows_beyond_the_targets_are_not_written() {
  const Made data = record(usual_record()) + record(usual_record()) + record(usual_record());
  const ExampleParser parser(two_columns());
  for (std::size_t count = 0; count <= 3; ++count) {
    Rows rows(count);
    const auto extent = parser.parse(data, rows.targets(), 0);
    CHECK(extent.records == static_cast<std::int64_t>(count) && extent.problem.empty() == (count == 3));
    CHECK(parser.parse(data, rows.targets(), std::ssize(rows.ids)).records == 0);
    CHECK_THROWS(std::invalid_argument, parser.parse(data, rows.targets(), std::ssize(rows.ids) + 1));
    CHECK_THROWS(std::invalid_argument, parser.parse(data, rows.targets(), -1));
  }
}

void columns_that_cannot_be_are_refused() {
  const auto parser_of = [](Column column) { return ExampleParser({std::move(column)}).columns().size(); };
  CHECK_THROWS(std::invalid_argument, ExampleParser({}).columns());
  CHECK_THROWS(std::invalid_argument, parser_of({.key = "id", .kind = Kind::kInt64, .width = 0}));
  CHECK_THROWS(std::invalid_argument,
               parser_of({.key = "id", .kind = Kind::kInt64, .width = 2, .has_default = true, .default_ints = {1}}));
  const ExampleParser parser(two_columns());
  Rows rows(1);
  auto targets = rows.targets();
  CHECK_THROWS(std::invalid_argument, parser.parse({}, std::span(targets).first(1), 0));
  targets[1].dtype = DType::kInt32;
  CHECK_THROWS(std::invalid_argument, parser.parse({}, targets, 0));
  targets[1] = rows.targets()[1];
  targets[1].num_rows = 0;
  CHECK_THROWS(std::invalid_argument, parser.parse({}, targets, 0));
}

float float_of(std::uint16_t half) {
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  return static_cast<float>(exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

void halves_are_rounded_to_nearest_and_ties_to_even() {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (std::uint16_t half = 0; half < 0x7c00; ++half) {
    const float here = float_of(half), next = half == 0x7bff ? 65536.0F : float_of(static_cast<std::uint16_t>(half + 1));
    const float middle = (here + next) / 2;
    const auto after = static_cast<std::uint16_t>(half + 1);
    CHECK(half_of(here).bits == half);
    CHECK(half_of(-here).bits == (half | 0x8000));
    CHECK(half_of(std::nextafter(middle, 0.0F)).bits == half);
    CHECK(half_of(middle).bits == (half % 2 == 0 ? half : after));
    CHECK(half_of(std::nextafter(middle, kInfinity)).bits == after);
    std::byte to[2];
    CHECK(store_float<Half>(std::nextafter(middle, 0.0F), to));
    CHECK(store_float<Half>(-std::nextafter(middle, kInfinity), to) == (half != 0x7bff));
  }
  CHECK(half_of(kInfinity).bits == 0x7c00 && half_of(-kInfinity).bits == 0xfc00);
  CHECK((half_of(std::numeric_limits<float>::quiet_NaN()).bits & 0x7e00) == 0x7e00);
  CHECK(half_of(std::numeric_limits<float>::denorm_min()).bits == 0);
  std::byte to[2];
  CHECK(store_float<Half>(kInfinity, to) && store_float<Half>(std::numeric_limits<float>::quiet_NaN(), to));
  CHECK(!store_float<Half>(65520.0F, to) && !store_float<Half>(std::numeric_limits<float>::max(), to));
}

template <class T>
bool stored_as(std::int64_t value) {
  std::byte to[sizeof(T)];
  return store_int<T>(value, to);
}

void ints_that_a_dtype_cannot_hold_are_refused() {
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max(), kMin = std::numeric_limits<std::int64_t>::min();
  CHECK(stored_as<std::int8_t>(127) && stored_as<std::int8_t>(-128) && !stored_as<std::int8_t>(128));
  CHECK(stored_as<std::uint8_t>(255) && !stored_as<std::uint8_t>(256) && !stored_as<std::uint8_t>(-1));
  CHECK(stored_as<std::uint64_t>(kMax) && !stored_as<std::uint64_t>(-1) && stored_as<std::int64_t>(kMin));
  CHECK(stored_as<float>(1 << 24) && !stored_as<float>((1 << 24) + 1) && stored_as<float>(kMin) && !stored_as<float>(kMax));
  CHECK(stored_as<double>(std::int64_t{1} << 53) && !stored_as<double>((std::int64_t{1} << 53) + 1) && !stored_as<double>(kMax));
  CHECK(stored_as<Half>(2048) && !stored_as<Half>(2049) && stored_as<Half>(-65504) && !stored_as<Half>(65505));
  CHECK(!stored_as<Half>(65536) && !stored_as<Half>(kMin) && !stored_as<Half>(kMax) && stored_as<Half>(0));
}

void two_threads_use_one_parser() {
  const ExampleParser parser(two_columns());
  Made data;
  for (std::int64_t i = 0; i < 500; ++i)
    data = data + record(example(entry("id", ints({i * i})) + entry("f", floats({1, static_cast<float>(i), 3}))));
  Rows alone(500), first(500), second(500);
  parser.parse(data, alone.targets(), 0);
  {
    std::thread one([&] { parser.parse(data, first.targets(), 0); }), two([&] { parser.parse(data, second.targets(), 0); });
    one.join();
    two.join();
  }
  CHECK(alone.ids[499] == 499 * 499);
  CHECK(first == alone);
  CHECK(second == alone);
}

// The inputs of the fuzzer, so that they also run without clang.
void the_corpus_is_read() {
  int files = 0;
  for (const auto& each : std::filesystem::directory_iterator("tests/corpus/tfrecord")) {
    std::ifstream file(each.path(), std::ios::binary);
    const Made data{std::istreambuf_iterator<char>(file), {}};
    CHECK(LLVMFuzzerTestOneInput(data.data(), data.size()) == 0);
    ++files;
  }
  CHECK(files > 0);
}

}  // namespace

SUITE(test_tfrecord) {
  RUN(crc32c_gives_the_published_answers);
  RUN(both_ways_to_a_crc_agree);
  RUN(a_file_ends_at_every_byte);
  RUN(every_wrong_bit_of_a_file_is_seen);
  RUN(a_length_that_cannot_be_is_refused);
  RUN(usual_records_take_the_quick_way);
  RUN(both_ways_agree_on_records_with_any_wrong_byte);
  RUN(keys_are_found_in_any_order);
  RUN(rows_beyond_the_targets_are_not_written);
  RUN(columns_that_cannot_be_are_refused);
  RUN(halves_are_rounded_to_nearest_and_ties_to_even);
  RUN(ints_that_a_dtype_cannot_hold_are_refused);
  RUN(two_threads_use_one_parser);
  RUN(the_corpus_is_read);
}

}  // namespace datapipes
