#include "tfrecord/framing.h"

#include <cinttypes>
#include <cstdio>

#include "common/load.h"

namespace datapipes::tfrecord {
namespace {

constexpr std::uint64_t kLongest = std::uint64_t{1} << 62;  // so that sums of two lengths stay within 64 bits

void check_crc(const char* name, Bytes of, const std::uint8_t* at) {
  const auto stored = load<std::uint32_t>(at);
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
  const auto length = load<std::uint64_t>(data.data());
  if (length >= kLongest) throw Problem("its length of " + std::to_string(length) + " bytes is not possible");
  return length + kFramingBytes;
}

void check_data_crc(Bytes data, std::uint64_t length) { check_crc("data", data_of(data, length), data.data() + length - 4); }

Extent scan_records(Bytes data, bool check_data) {
  return each_record(data, [&](Bytes record, std::int64_t) {
    if (check_data) check_data_crc(record, record.size());
  });
}

}  // namespace datapipes::tfrecord
