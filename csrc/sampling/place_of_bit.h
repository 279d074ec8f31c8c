// place_of_bit.h: place_of_bit(word, n): the place of set bit number n (counted from the lowest, from 0) in a word of 64 bits.
// Requires more than n set bits. No branch depends on the bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace datapipes {

// kPlacesInByte[n][byte]: the same for a byte.
inline constexpr auto kPlacesInByte = [] {
  std::array<std::array<std::uint8_t, 256>, 8> places{};
  for (std::size_t byte = 0; byte < 256; ++byte) {
    std::size_t n = 0;
    for (std::uint8_t bit = 0; bit < 8; ++bit) {
      if ((byte >> bit & 1) != 0) places[n++][byte] = bit;
    }
  }
  return places;
}();

inline int place_of_bit(std::uint64_t word, int n) {
  constexpr std::uint64_t kOnes = 0x0101010101010101, kHigh = 0x8080808080808080;
  std::uint64_t counts = word - (word >> 1 & 0x5555555555555555);
  counts = (counts & 0x3333333333333333) + (counts >> 2 & 0x3333333333333333);
  counts = ((counts + (counts >> 4)) & 0x0F0F0F0F0F0F0F0F) * kOnes;  // byte b: the bits that are set in bytes 0 to b
  const auto wanted = static_cast<std::uint64_t>(n);
  const int shift = __builtin_ctzll(((counts | kHigh) - (wanted + 1) * kOnes) & kHigh) - 7;  // 8 * the byte of the bit
  const std::uint64_t before = counts << 8 >> shift & 0xFF;
  return shift + kPlacesInByte[wanted - before][word >> shift & 0xFF];
}

}  // namespace datapipes
