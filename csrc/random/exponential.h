// exponential.h: the exponential number of a word, -log(1 - u) for u = (word + 1/2) / 2^32. It is computed by + - * / alone, so
// its bits are the same on every machine; docs/semantics.md section 3.2 is its specification.
#pragma once

#include <bit>
#include <cstdint>

namespace datapipes {

inline double exponential(std::uint32_t word) {
  constexpr double kLog2 = 0.6931471805599453;
  constexpr double kTerms[] = {1.0,        1.0 / 3.0,  1.0 / 5.0,  1.0 / 7.0,  1.0 / 9.0,  1.0 / 11.0, 1.0 / 13.0, 1.0 / 15.0,
                               1.0 / 17.0, 1.0 / 19.0, 1.0 / 21.0, 1.0 / 23.0, 1.0 / 25.0, 1.0 / 27.0, 1.0 / 29.0, 1.0 / 31.0};
  const auto rest = static_cast<double>((std::int64_t{1} << 33) - 1 - 2 * std::int64_t{word});  // (1 - u) * 2^33
  const auto bits = std::bit_cast<std::uint64_t>(rest);
  const double halvings = 1055.0 - static_cast<double>(static_cast<std::int32_t>(bits >> 52));  // 33 minus the bit length
  const double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFF) | 0x3FE0000000000000);     // in [1/2, 1)
  const double s = (1.0 - m) / (1.0 + m), square = s * s;
  double sum = 0.0;
  for (int i = 15; i >= 0; --i) sum = sum * square + kTerms[i];
  return halvings * kLog2 + 2.0 * s * sum;
}

}  // namespace datapipes
