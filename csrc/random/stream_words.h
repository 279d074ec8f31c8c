// stream_words.h: the first word of many streams of one node, for draws that take one word of a stream of their own.
//   first_words_of_streams(key, first, out): out[i] is the first word of Stream(key, 0, first + i). Eight streams and more at a
//   time where the processor has AVX2, else two by two. The bits are those of philox.h; test_fast_paths.cpp compares all ways.
#pragma once

#include <cstdint>
#include <span>

namespace datapipes {

enum class WordsBy { kPlain, kPairs, kAvx2 };

void first_words_of_streams(std::uint64_t key, std::uint32_t first, std::span<std::uint32_t> out);

// As above, in a way of the caller's choice; returns false if this processor has no such way.
bool first_words_of_streams(std::uint64_t key, std::uint32_t first, std::span<std::uint32_t> out, WordsBy by);

}  // namespace datapipes
