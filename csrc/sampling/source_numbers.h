// source_numbers.h: the numbers of sources by which LABOR chooses; docs/semantics.md section 3.2 is their specification.
//   source_number(keys, id): of one source, word by word.
//   source_numbers(keys, ids, out): of many sources, eight at a time with AVX2, else two at a time. The bits are equal;
//   csrc/tests/test_labor.cpp compares all ways. Any bit pattern is allowed as an id: nothing is looked up.
#pragma once

#include <cstdint>
#include <span>

namespace datapipes {

struct SourceKeys {
  std::uint64_t key;             // hop_key(...) of the generation (b div d), b being the batch index, d the dependency
  std::uint64_t next_key = 0;    // of the generation after it
  std::uint64_t offset_key = 0;  // of batch 0
  std::uint32_t dependency = 1;  // d, below 2^31; if 1, only `key` is used
  std::uint32_t until_next = 1;  // d - b mod d: sources with offset >= until_next are in the next generation
  bool wide = true;              // false: only the lower 32 bits of an id count; faster, for types of up to 2^32 nodes
};

enum class NumbersBy { kPlain, kPairs, kAvx2 };

std::uint32_t source_number(const SourceKeys& keys, std::uint64_t id);

template <class Id>
void source_numbers(const SourceKeys& keys, std::span<const Id> ids, std::uint32_t* out);

// The same, by a given code path; returns false if this processor does not have it.
template <class Id>
bool source_numbers(const SourceKeys& keys, std::span<const Id> ids, std::uint32_t* out, NumbersBy by);

}  // namespace datapipes
