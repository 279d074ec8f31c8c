#include "random/philox.h"

#include <stdexcept>
#include <string>

namespace datapipes {
namespace {

void check_bits(const char* name, std::uint64_t value, int bits) {
  if ((value >> bits) != 0) {
    throw std::invalid_argument(std::string("random key: ") + name + " must be in [0, 2^" + std::to_string(bits) + "), got " +
                                std::to_string(value) + ". Use a smaller one: the key layout has no room for it.");
  }
}

}  // namespace

std::uint64_t hop_key(std::uint64_t seed, std::uint64_t epoch, std::uint64_t batch, std::uint64_t stage, std::uint64_t hop,
                      std::uint64_t etype) {
  check_bits("epoch", epoch, 32);
  check_bits("minibatch index", batch, 48);
  check_bits("stage ordinal", stage, 16);
  check_bits("hop", hop, 8);
  check_bits("edge type ordinal", etype, 16);
  const Words counter{static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(batch),
                      static_cast<std::uint32_t>((batch >> 32) | (stage << 16)),
                      static_cast<std::uint32_t>(kStreamVersion | (hop << 8) | (etype << 16))};
  const Words words = philox4x32(counter, seed);
  return words[0] | (std::uint64_t{words[1]} << 32);
}

}  // namespace datapipes
