// test_disk.cpp: rows of a file, at every width and depth, equal to the rows in memory; files that are cut off.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "disk/read_rows.h"
#include "tests/check.h"

namespace datapipes {
namespace {

// A file with these bytes, already unlinked.
class File {
 public:
  explicit File(const std::vector<std::byte>& bytes) {
    std::string name = std::string(std::getenv("TMPDIR") != nullptr ? std::getenv("TMPDIR") : "/tmp") + "/datapipes-XXXXXX";
    descriptor_ = ::mkstemp(name.data());
    CHECK(descriptor_ >= 0);
    direct_ = ::open(name.c_str(), O_RDONLY | O_DIRECT);  // some disks have none
    ::unlink(name.c_str());
    CHECK(::write(descriptor_, bytes.data(), bytes.size()) == std::ssize(bytes));
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    ::close(descriptor_);
    if (direct_ >= 0) ::close(direct_);
  }
  int descriptor(bool direct) const { return direct ? direct_ : descriptor_; }
  bool has_direct() const { return direct_ >= 0; }
  void cut(std::int64_t bytes) const { CHECK(::ftruncate(descriptor_, bytes) == 0); }

 private:
  int descriptor_ = -1, direct_ = -1;
};

template <class Id>
void rows_of_a_file_are_those_in_memory() {
  for (const std::int64_t width : {0, 1, 3, 400, 512, 4096, 5000, 70'000}) {
    for (const std::int64_t begin : {0, 128, 4096}) {
      constexpr std::int64_t kRows = 53;
      std::vector<std::byte> bytes(static_cast<std::size_t>(begin + kRows * width));
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 + i / 251);
      const File written(bytes);
      std::vector<Id> ids;
      for (std::int64_t i = 0; i < 101; ++i) ids.push_back(static_cast<Id>(i * i * 7 % kRows));
      for (const bool direct : {false, true}) {
        if (direct && !written.has_direct()) continue;
        for (const int depth : {1, 2, 64}) {
          const RowFile file{written.descriptor(direct), begin, kRows, width, 4096, direct};
          std::vector<std::byte> out(static_cast<std::size_t>(std::ssize(ids) * width));
          const auto counts = read_rows<Id>(file, ids, out.data(), depth);
          CHECK(counts.bytes_read % 4096 == 0);
          CHECK((counts.reads > 0) == (width > 0));
          for (std::size_t i = 0; i < ids.size(); ++i) {
            const auto* const row = bytes.data() + begin + static_cast<std::int64_t>(ids[i]) * width;
            CHECK(equal_bytes(out.data() + static_cast<std::int64_t>(i) * width, row, static_cast<std::size_t>(width)));
          }
          CHECK(read_rows<Id>(file, {}, nullptr, depth).reads == 0);
        }
      }
    }
  }
}

template <class Id>
void ids_without_a_row_and_short_files_are_errors() {
  const std::vector<std::byte> bytes(10 * 4096);
  const File written(bytes);
  std::vector<std::byte> out(std::size_t{3} * 4096);
  const RowFile whole{written.descriptor(false), 0, 10, 4096, 4096, false};
  for (const Id outside : {Id{-1}, Id{10}, std::numeric_limits<Id>::max(), std::numeric_limits<Id>::min()}) {
    CHECK_THROWS(std::out_of_range, read_rows<Id>(whole, std::vector<Id>{0, outside, 1}, out.data(), 4));
  }
  const RowFile closed{-1, 0, 10, 4096, 4096, false};
  CHECK_THROWS(std::system_error, read_rows<Id>(closed, std::vector<Id>{0, 5, 9}, out.data(), 4));
  written.cut(9 * 4096 + 7);
  for (const bool direct : {false, true}) {
    if (direct && !written.has_direct()) continue;
    const RowFile file{written.descriptor(direct), 0, 10, 4096, 4096, direct};
    CHECK(read_rows<Id>(file, std::vector<Id>{0, 5, 8}, out.data(), 4).reads == 3);
    CHECK_THROWS(ShortFile, read_rows<Id>(file, std::vector<Id>{0, 5, 9}, out.data(), 4));
  }
}

// Rows whose blocks touch are one read; distant rows are not.
void rows_that_touch_are_read_at_once() {
  const std::vector<std::byte> bytes(100 * 512);
  const File written(bytes);
  std::vector<std::byte> out(std::size_t{64} * 512);
  const RowFile file{written.descriptor(false), 0, 100, 512, 4096, false};
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < 24; ++i) ids.push_back(23 - i);
  auto counts = read_rows<std::int64_t>(file, ids, out.data(), 4);
  CHECK(counts.reads == 1);
  CHECK(counts.bytes_read == 3 * 4096);
  counts = read_rows<std::int64_t>(file, std::vector<std::int64_t>{0, 99, 1, 98}, out.data(), 4);
  CHECK(counts.reads == 2);
  CHECK(counts.bytes_read == 2 * 4096);
}

}  // namespace

SUITE(disk) {
  RUN_FOR_BOTH_IDS(rows_of_a_file_are_those_in_memory);
  RUN_FOR_BOTH_IDS(ids_without_a_row_and_short_files_are_errors);
  RUN(rows_that_touch_are_read_at_once);
}

}  // namespace datapipes
