#include "tfrecord/framing.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace datapipes::tfrecord {
namespace {

constexpr std::uint64_t kLongest = std::uint64_t{1} << 62;  // so that sums of two lengths stay within 64 bits

void check_crc(const char* name, Bytes of, const std::uint8_t* at) {
  std::uint32_t stored;
  std::memcpy(&stored, at, sizeof stored);
  const std::uint32_t computed = masked(crc32c(of));
  if (stored == computed) return;
  char text[128];
  std::snprintf(text, sizeof text, "the CRC of its %s is wrong: 0x%08" PRIx32 " is stored, 0x%08" PRIx32 " computed", name,
                stored, computed);
  throw Problem(text);
}

}  // namespace

std::uint64_t record_length(Bytes data) {
  if (data.size() < kHeaderBytes) return 0;
  check_crc("length", data.first(8), data.data() + 8);
  std::uint64_t length;
  std::memcpy(&length, data.data(), sizeof length);
  if (length >= kLongest) throw Problem("its length of " + std::to_string(length) + " bytes is not possible");
  return length + kFramingBytes;
}

void check_data_crc(Bytes data, std::uint64_t length) { check_crc("data", data_of(data, length), data.data() + length - 4); }

Extent scan_records(Bytes data, bool check_data) {
  Extent extent;
  try {
    for (;;) {
      const std::uint64_t length = record_length(data);
      if (length == 0 || length > data.size()) return extent;
      if (check_data) check_data_crc(data, length);
      ++extent.records;
      extent.bytes += static_cast<std::int64_t>(length);
      data = data.subspan(length);
    }
  } catch (const Problem& problem) {
    extent.problem = problem.what();
  }
  return extent;
}

}  // namespace datapipes::tfrecord
