// source_numbers.h: the numbers of sources by which LABOR chooses; docs/semantics.md section 3.2 is their specification.
//   source_number(keys, id): of one source, word by word.
//   source_numbers(keys, ids, out): of many at once, eight by eight where the processor has AVX2, else two by two. The bits
//   are the same; csrc/tests/test_labor.cpp compares all ways. Any bit pattern is allowed as an id: nothing is looked up.
#pragma once

#include <cstdint>
#include <span>

namespace datapipes {

struct SourceKeys {
  std::uint64_t key;             // hop_key(...) of the generation (b div d), b being the batch index, d the dependency
  std::uint64_t next_key = 0;    // of the generation after it
  std::uint64_t offset_key = 0;  // of batch 0
  std::uint32_t dependency = 1;  // d, below 2^31; if it is 1, `key` is all that is used
  std::uint32_t until_next = 1;  // d - b mod d: from this offset on, a source is in the generation after
  bool wide = true;              // false: of each id only the lower 32 bits count. Faster; for types of up to 2^32 nodes
};

enum class NumbersBy { kPlain, kPairs, kAvx2 };

std::uint32_t source_number(const SourceKeys& keys, std::uint64_t id);

template <class Id>
void source_numbers(const SourceKeys& keys, std::span<const Id> ids, std::uint32_t* out);

// As above, in a way of the caller's choice; returns false if this processor has no such way.
template <class Id>
bool source_numbers(const SourceKeys& keys, std::span<const Id> ids, std::uint32_t* out, NumbersBy by);

}  // namespace datapipes
