// stream_words.h: the first words of many streams of one node, for draws that need few words of each.
//   first_words_of_streams(key, first, out): out[i] is the first word of Stream(key, 0, first + i).
//   first_blocks_of_streams(key, node, first, out): out[i] is block 0 of Stream(key, node, first + i), its first four words.
// Both make sixteen at a time if the processor has AVX2. The bits equal philox.h's; test_fast_paths.cpp compares them.
#pragma once

#include <cstdint>
#include <span>

#include "random/philox.h"

namespace datapipes {

void first_words_of_streams(std::uint64_t key, std::uint32_t first, std::span<std::uint32_t> out);
void first_blocks_of_streams(std::uint64_t key, std::uint64_t node, std::uint32_t first, std::span<Words> out);

}  // namespace datapipes
