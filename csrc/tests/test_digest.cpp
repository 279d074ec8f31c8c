// test_digest.cpp: the hashes of arrays without Python: the published answers, pieces, and int32 values hashed as int64.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "digest/piece_hashes.h"
#include "tests/check.h"

namespace datapipes {
namespace {

using Bytes = std::vector<std::byte>;

// The bytes of the published answers (xxHash, tests of its command line tool). A vector of the exact size, so that
// AddressSanitizer catches a read past its end.
Bytes some_bytes(std::size_t count) {
  Bytes bytes;
  std::uint64_t state = 0x9E3779B1u;
  for (std::size_t i = 0; i < count; ++i) {
    bytes.push_back(static_cast<std::byte>(state >> 56));
    state *= 0x9E3779B185EBCA8Du;
  }
  return bytes;
}

std::vector<std::uint64_t> listed(const Buffer<std::uint64_t>& hashes) { return {hashes.data(), hashes.data() + hashes.size()}; }

void xxh64_gives_the_published_answers() {
  constexpr std::uint64_t kSeed = 0x9E3779B1u;
  CHECK(xxh64(some_bytes(0), 0) == 0xEF46DB3751D8E999u);
  CHECK(xxh64(some_bytes(0), kSeed) == 0xAC75FDA2929B17EFu);
  CHECK(xxh64(some_bytes(1), 0) == 0xE934A84ADB052768u);
  CHECK(xxh64(some_bytes(1), kSeed) == 0x5014607643A9B4C3u);
  CHECK(xxh64(some_bytes(4), 0) == 0x9136A0DCA57457EEu);
  CHECK(xxh64(some_bytes(14), 0) == 0x8282DCC4994E35C8u);
  CHECK(xxh64(some_bytes(14), kSeed) == 0xC3BD6BF63DEB6DF0u);
  CHECK(xxh64(some_bytes(222), 0) == 0xB641AE8CB691C174u);
  CHECK(xxh64(some_bytes(222), kSeed) == 0x20CB8AB7AE10C14Au);
}

void pieces_have_the_hashes_of_their_bytes_at_any_number_of_threads() {
  const Bytes bytes = some_bytes(1000);
  for (const std::int64_t piece : {1, 7, 32, 333, 999, 1000, 5000}) {
    std::vector<std::uint64_t> expected;
    for (std::size_t begin = 0; begin < bytes.size(); begin += static_cast<std::size_t>(piece))
      expected.push_back(
          xxh64(std::span(bytes).subspan(begin).first(std::min(static_cast<std::size_t>(piece), bytes.size() - begin)), 0));
    for (const int threads : {1, 2, 7}) CHECK(listed(piece_hashes(bytes, piece, threads)) == expected);
  }
  CHECK(piece_hashes({}, 8).size() == 0);
  CHECK_THROWS(std::invalid_argument, piece_hashes(bytes, 0));
}

void values_of_32_bits_have_the_hashes_of_equal_ones_of_64() {
  for (const std::size_t count : {0u, 1u, 3u, 4u, 5u, 100u}) {
    std::vector<std::int32_t> narrow;
    for (std::size_t i = 0; i < count; ++i) narrow.push_back(static_cast<std::int32_t>(i * 0x9E3779B1u));
    const std::vector<std::int64_t> wide(narrow.begin(), narrow.end());
    for (const std::int64_t piece : {1, 3, 64}) {
      const auto expected = listed(piece_hashes(std::as_bytes(std::span(wide)), 8 * piece));
      for (const int threads : {1, 3}) CHECK(listed(widened_piece_hashes(narrow, piece, threads)) == expected);
    }
  }
}

}  // namespace

SUITE(test_digest) {
  RUN(xxh64_gives_the_published_answers);
  RUN(pieces_have_the_hashes_of_their_bytes_at_any_number_of_threads);
  RUN(values_of_32_bits_have_the_hashes_of_equal_ones_of_64);
}

}  // namespace datapipes
