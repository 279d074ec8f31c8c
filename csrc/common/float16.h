// float16.h: converts float16 and bfloat16 to float32. The conversion is exact, for subnormal numbers too. A NaN stays a NaN of
// the same sign and payload; a NaN of float16 becomes quiet. No mode of the processor (flushing subnormals) changes the bits.
#pragma once

#include <bit>
#include <cstdint>

namespace datapipes {

inline float float16_value(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16, rest = bits & 0x7fffu;
  const std::uint32_t normal = (rest << 13) + (112u << 23);  // the exponents differ by 112
  const std::uint32_t special = (rest << 13) | 0x7f800000u | (rest > 0x7c00u ? 0x00400000u : 0u);
  const auto subnormal = std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(rest)) * 0x1p-24f);
  return std::bit_cast<float>(sign | (rest >= 0x7c00u ? special : rest >= 0x0400u ? normal : subnormal));
}

inline float bfloat16_value(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

}  // namespace datapipes
