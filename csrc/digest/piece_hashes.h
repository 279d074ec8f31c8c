// piece_hashes.h: the hash of each piece of an array, from which base/array_digest.py makes the digest of the array.
//   A piece is `piece_bytes` long, the last may be shorter; an array without bytes has no piece. The hash of a piece is XXH64
//   with seed 0 of its bytes (specification: xxHash, doc/xxhash_spec.md, with published test vectors). It detects changed
//   values, but does not protect against values made to collide. widened_piece_hashes hashes int32 values as int64; a piece has
//   `piece_values` of them.
// O(bytes); the result does not depend on `threads`. Throws std::invalid_argument (ValueError) for pieces of no bytes. Touches no
// Python object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/buffer.h"

namespace datapipes {

std::uint64_t xxh64(std::span<const std::byte> bytes, std::uint64_t seed);

Buffer<std::uint64_t> piece_hashes(std::span<const std::byte> bytes, std::int64_t piece_bytes, int threads = 1);

Buffer<std::uint64_t> widened_piece_hashes(std::span<const std::int32_t> values, std::int64_t piece_values, int threads = 1);

}  // namespace datapipes
