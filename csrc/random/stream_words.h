// stream_words.h: the first words of many streams of one node, for draws that each need one word of a stream.
//   first_words_of_streams(key, first, out): out[i] is the first word of Stream(key, 0, first + i). Makes sixteen at a time if
//   the processor has AVX2. The bits equal philox.h's; test_fast_paths.cpp compares them.
#pragma once

#include <cstdint>
#include <span>

namespace datapipes {

void first_words_of_streams(std::uint64_t key, std::uint32_t first, std::span<std::uint32_t> out);

}  // namespace datapipes
