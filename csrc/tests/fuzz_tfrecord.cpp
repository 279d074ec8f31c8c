// fuzz_tfrecord.cpp: any bytes as TFRecords. csrc/tests/fuzz.sh builds it with libFuzzer; test_tfrecord.cpp runs the corpus.
//   An input is four bytes of choices, then data. The first byte chooses the columns. Its top bit frames the data, since no
//   fuzzer guesses a CRC: the data is cut in two and becomes three records, first, second, first. Otherwise the data is the
//   file. The second byte chooses the dtypes, the last two bytes are the place of the cut.
// It ends the process if the ways of reading disagree or memory around the rows has changed; sanitizers find other faults.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "tfrecord/any_example.h"
#include "tfrecord/example.h"
#include "tfrecord/usual_example.h"

namespace {

using namespace datapipes::tfrecord;

constexpr std::size_t kRows = 3;
constexpr std::byte kUntouched{0xa5};

Column ints(const char* key, std::int64_t width) { return {.key = key, .kind = Kind::kInt64, .width = width}; }
Column floats(const char* key, std::int64_t width) { return {.key = key, .kind = Kind::kFloat32, .width = width}; }

const std::vector<Column>& columns_for(unsigned choice) {
  static const std::array<std::vector<Column>, 4> sets = {{
      {ints("id", 1), floats("f", 3)},
      {ints("src", 1), ints("dst", 1)},
      {{.key = "id", .kind = Kind::kInt64, .width = 2, .has_default = true, .default_ints = {300, -1}},
       {.key = "f", .kind = Kind::kFloat32, .width = 1, .has_default = true, .default_floats = {1e6F}}},
      {floats("", 2), ints("id", 1), floats("f", 3), ints("id", 1), ints("the longest name of all", 1)},
  }};
  return sets[choice % sets.size()];
}

void require(bool condition) {
  if (!condition) std::abort();
}

// One block of memory for each column, of the exact size; rows lie a byte apart.
struct Rows {
  Rows(const std::vector<Column>& columns, unsigned choice) {
    for (const Column& column : columns) {
      const bool is_float = column.kind == Kind::kFloat32;
      const auto dtype = static_cast<DType>(choice % (is_float ? 3 : 11));
      const std::size_t row_bytes = store_of(column.kind, dtype).entry_bytes * static_cast<std::size_t>(column.width);
      memory.emplace_back(kRows * (row_bytes + 1) - 1, kUntouched);
      targets.push_back({memory.back().data(), kRows, static_cast<std::int64_t>(row_bytes + 1), dtype});
      widths.push_back(row_bytes);
      choice = choice * 5 + 3;
    }
  }
  bool same_row(const Rows& other, std::int64_t row) const {
    for (std::size_t i = 0; i < targets.size(); ++i)
      if (std::memcmp(targets[i].row(row), other.targets[i].row(row), widths[i]) != 0) return false;
    return true;
  }
  // Between the rows, and in rows from `first` on, nothing was written.
  void check_untouched(std::size_t first) const {
    for (std::size_t i = 0; i < targets.size(); ++i) {
      for (std::size_t at = 0; at < memory[i].size(); ++at) {
        const std::size_t row = at / (widths[i] + 1), inside = at % (widths[i] + 1);
        if (row >= first || inside == widths[i]) require(memory[i][at] == kUntouched);
      }
    }
  }
  std::vector<std::vector<std::byte>> memory;
  std::vector<Target> targets;
  std::vector<std::size_t> widths;
};

std::vector<std::uint8_t> framed(std::span<const Bytes> parts) {
  std::vector<std::uint8_t> file;
  const auto append = [&file](const auto& value) {
    const std::size_t end = file.size();
    file.resize(end + sizeof value);
    std::memcpy(file.data() + end, &value, sizeof value);
  };
  for (const Bytes part : parts) {
    const auto length = static_cast<std::uint64_t>(part.size());
    append(length);
    append(masked(crc32c(Bytes(file).last(sizeof length))));
    file.insert(file.end(), part.begin(), part.end());
    append(masked(crc32c(part)));
  }
  file.shrink_to_fit();
  return file;
}

void read_file(Bytes file, const std::vector<Column>& columns, unsigned dtypes) {
  const Extent scanned = scan_records(file, true), counted = scan_records(file, false);
  require(scanned.records <= counted.records && scanned.bytes <= counted.bytes);
  const ExampleParser parser(columns);
  Rows rows(columns, dtypes);
  const Extent parsed = parser.parse(file, rows.targets, 0);
  require(parsed.records <= scanned.records && parsed.bytes <= scanned.bytes);
  require(parsed.problem.size() < 4'000);
  rows.check_untouched(static_cast<std::size_t>(parsed.records) + (parsed.problem.empty() ? 0 : 1));

  // The slow reader alone gives the same rows and the same problem.
  Rows slow(columns, dtypes);
  std::vector<Store> stores;
  for (std::size_t i = 0; i < columns.size(); ++i) stores.push_back(store_of(columns[i].kind, slow.targets[i].dtype));
  AnyExample any(parser.columns(), slow.targets, stores);
  for (std::int64_t row = 0; row < static_cast<std::int64_t>(kRows) && row < scanned.records; ++row) {
    const std::uint64_t length = record_length(file);
    try {
      any.read(data_of(file, length), row);
      require(row < parsed.records && rows.same_row(slow, row));
    } catch (const Problem& problem) {
      require(row == parsed.records && parsed.problem == problem.what());
      break;
    }
    file = file.subspan(length);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kChoices = 4;
  if (size < kChoices) return 0;
  const Bytes rest(data + kChoices, size - kChoices);
  require(crc32c(rest) == crc32c_by_table(rest, 0));
  const auto& columns = columns_for(data[0]);
  if ((data[0] & 0x80) == 0) {
    read_file(rest, columns, data[1]);
    return 0;
  }
  const std::size_t cut = (data[2] + 256U * data[3]) % (rest.size() + 1);
  const Bytes first = rest.first(cut), parts[] = {first, rest.subspan(cut), first};
  read_file(framed(parts), columns, data[1]);
  return 0;
}
