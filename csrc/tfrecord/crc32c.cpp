#include "tfrecord/crc32c.h"

#include <array>
#include <bit>
#include <cstddef>

#include "common/load.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <nmmintrin.h>
#endif

namespace datapipes::tfrecord {
namespace {

static_assert(std::endian::native == std::endian::little, "the formats are little-endian, and read as they lie");

constexpr std::uint32_t kPolynomial = 0x82f63b78;

// kTables[k][b]: the CRC register, starting from 0, after byte b and k zero bytes.
constexpr auto kTables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t byte = 0; byte < 256; ++byte)
      tables[k][byte] = tables[k - 1][byte] >> 8 ^ tables[0][tables[k - 1][byte] & 0xff];
  return tables;
}();

}  // namespace

std::uint32_t crc32c_by_table(Bytes data, std::uint32_t crc) {
  const std::uint8_t *at = data.data(), *const end = at + data.size();
  crc = ~crc;
  for (; end - at >= 8; at += 8) {
    const std::uint64_t word = load<std::uint64_t>(at) ^ crc;
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][word >> 8 * k & 0xff];
  }
  for (; at < end; ++at) crc = crc >> 8 ^ kTables[0][(crc ^ *at) & 0xff];
  return ~crc;
}

#if defined(__x86_64__)

// Asks the processor, since __builtin_cpu_supports always says no with some runtimes of clang.
bool has_crc_instruction() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_SSE4_2) != 0;
  }();
  return has;
}

#if defined(__clang__)
#define DATAPIPES_WITH_CRC32 __attribute__((target("sse4.2,crc32")))  // newer compilers have a target for the instruction alone
#else
#define DATAPIPES_WITH_CRC32 __attribute__((target("sse4.2")))
#endif

DATAPIPES_WITH_CRC32 std::uint32_t crc32c_by_instruction(Bytes data, std::uint32_t crc) {
  const std::uint8_t *at = data.data(), *const end = at + data.size();
  std::uint64_t wide = ~crc;
  for (; end - at >= 8; at += 8) wide = _mm_crc32_u64(wide, load<std::uint64_t>(at));
  auto narrow = static_cast<std::uint32_t>(wide);
  for (; at < end; ++at) narrow = _mm_crc32_u8(narrow, *at);
  return ~narrow;
}

#else

bool has_crc_instruction() { return false; }
std::uint32_t crc32c_by_instruction(Bytes data, std::uint32_t crc) { return crc32c_by_table(data, crc); }

#endif

std::uint32_t crc32c(Bytes data, std::uint32_t crc) {
  return has_crc_instruction() ? crc32c_by_instruction(data, crc) : crc32c_by_table(data, crc);
}

}  // namespace datapipes::tfrecord
