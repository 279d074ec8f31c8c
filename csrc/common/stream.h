// stream.h: stores that bypass the cache, for memory that is written once and not read soon.
//   A cached store first reads the line that it overwrites. A streaming store saves that read and leaves the
//   cache to data that is read again. On processors without streaming stores, the copy is plain.
#pragma once

#include <cstddef>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace datapipes {

inline constexpr std::size_t kLineBytes = 64;

// Copies kBytes, a multiple of a line; `to` and `from` are aligned to a line.
template <std::size_t kBytes>
inline void stream_lines(void* to, const void* from) {
  static_assert(kBytes % kLineBytes == 0);
#if defined(__SSE2__)
  for (std::size_t i = 0; i < kBytes / sizeof(__m128i); ++i)
    _mm_stream_si128(static_cast<__m128i*>(to) + i, _mm_load_si128(static_cast<const __m128i*>(from) + i));
#else
  std::memcpy(to, from, kBytes);
#endif
}

// Copies `bytes`. `bytes` and the address `to` are multiples of 16; `from` may be any address.
inline void stream_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__SSE2__)
  for (std::size_t at = 0; at < bytes; at += sizeof(__m128i))
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + at), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
#else
  std::memcpy(to, from, bytes);
#endif
}

// Streaming stores are not ordered with other stores. Call this before other stores write to the memory, or another thread
// reads it.
inline void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace datapipes
