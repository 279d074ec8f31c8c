// crc32c.h: the checksum of TFRecords: CRC-32 with Castagnoli's polynomial, bit-reflected (as in iSCSI, RFC 3720).
#pragma once

#include <cstdint>
#include <span>

namespace datapipes::tfrecord {

using Bytes = std::span<const std::uint8_t>;

// Continues a CRC: returns the CRC of earlier bytes, whose CRC is `crc`, followed by `data`. Uses the processor's instruction
// if present.
std::uint32_t crc32c(Bytes data, std::uint32_t crc = 0);

// The two ways, for tests: the instruction (only where has_crc_instruction()), and tables.
bool has_crc_instruction();
std::uint32_t crc32c_by_instruction(Bytes data, std::uint32_t crc);
std::uint32_t crc32c_by_table(Bytes data, std::uint32_t crc);

// Returns the CRC as records store it: rotated right by 15 bits, plus a constant.
constexpr std::uint32_t masked(std::uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8U; }

}  // namespace datapipes::tfrecord
