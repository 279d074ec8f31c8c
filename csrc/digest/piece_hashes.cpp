#include "digest/piece_hashes.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

#include "common/load.h"
#include "common/thread_pool.h"

namespace datapipes {
namespace {

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87u, kPrime2 = 0xC2B2AE3D27D4EB4Fu, kPrime3 = 0x165667B19E3779F9u,
                        kPrime4 = 0x85EBCA77C2B2AE63u, kPrime5 = 0x27D4EB2F165667C5u;

static_assert(std::endian::native == std::endian::little, "words are read as they lie in memory");

constexpr std::uint64_t round_of(std::uint64_t sum, std::uint64_t word) { return std::rotl(sum + word * kPrime2, 31) * kPrime1; }

// The sum over all whole words of 8 bytes, given by word(i). Up to 7 further bytes of `num_bytes` are added later.
template <class WordAt>
std::uint64_t sum_of_words(std::size_t num_bytes, std::uint64_t seed, const WordAt& word) {
  const std::size_t num_words = num_bytes / 8;
  std::uint64_t hash = seed + kPrime5;
  std::size_t i = 0;
  if (num_bytes >= 32) {
    std::uint64_t a = seed + kPrime1 + kPrime2, b = seed + kPrime2, c = seed, d = seed - kPrime1;
    for (; i + 4 <= num_words; i += 4) {
      a = round_of(a, word(i));
      b = round_of(b, word(i + 1));
      c = round_of(c, word(i + 2));
      d = round_of(d, word(i + 3));
    }
    hash = std::rotl(a, 1) + std::rotl(b, 7) + std::rotl(c, 12) + std::rotl(d, 18);
    for (const std::uint64_t lane : {a, b, c, d}) hash = (hash ^ round_of(0, lane)) * kPrime1 + kPrime4;
  }
  hash += num_bytes;
  for (; i < num_words; ++i) hash = std::rotl(hash ^ round_of(0, word(i)), 27) * kPrime1 + kPrime4;
  return hash;
}

std::uint64_t avalanche(std::uint64_t hash) {
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

template <class T, class Hash>
Buffer<std::uint64_t> of_pieces(std::span<const T> values, std::int64_t piece, int threads, const Hash& hash) {
  if (piece < 1)
    throw std::invalid_argument("piece_hashes: a piece must have 1 byte or more, got " + std::to_string(piece) + ".");
  const std::int64_t count = std::ssize(values) / piece + (std::ssize(values) % piece > 0);
  Buffer<std::uint64_t> hashes(count);
  parallel_for(count, threads, [&](std::int64_t number) {
    const auto begin = static_cast<std::size_t>(number * piece);
    const std::size_t size = std::min(static_cast<std::size_t>(piece), values.size() - begin);
    hashes[number] = hash(values.subspan(begin, size));
  });
  return hashes;
}

}  // namespace

std::uint64_t xxh64(std::span<const std::byte> bytes, std::uint64_t seed) {
  const std::byte* at = bytes.data();
  std::uint64_t hash = sum_of_words(bytes.size(), seed, [at](std::size_t i) { return load<std::uint64_t>(at + 8 * i); });
  std::size_t i = bytes.size() / 8 * 8;
  if (i + 4 <= bytes.size()) {
    hash = std::rotl(hash ^ load<std::uint32_t>(at + i) * kPrime1, 23) * kPrime2 + kPrime3;
    i += 4;
  }
  for (; i < bytes.size(); ++i) hash = std::rotl(hash ^ std::to_integer<std::uint64_t>(at[i]) * kPrime5, 11) * kPrime1;
  return avalanche(hash);
}

Buffer<std::uint64_t> piece_hashes(std::span<const std::byte> bytes, std::int64_t piece_bytes, int threads) {
  return of_pieces(bytes, piece_bytes, threads, [](std::span<const std::byte> piece) { return xxh64(piece, 0); });
}

Buffer<std::uint64_t> widened_piece_hashes(std::span<const std::int32_t> values, std::int64_t piece_values, int threads) {
  return of_pieces(values, piece_values, threads, [](std::span<const std::int32_t> piece) {
    return avalanche(sum_of_words(
        piece.size() * 8, 0, [piece](std::size_t i) { return static_cast<std::uint64_t>(static_cast<std::int64_t>(piece[i])); }));
  });
}

}  // namespace datapipes
