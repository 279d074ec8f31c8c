// avx2.h: code for processors with AVX2 in a core that is built for all: DATAPIPES_AVX2 marks its functions, has_avx2() tells
// at run time whether they may be called. The macro is not defined where there can be none.
#pragma once

#if defined(__SSE2__) && defined(__x86_64__)
#include <immintrin.h>
#define DATAPIPES_AVX2 __attribute__((target("avx2,popcnt")))
#endif

namespace datapipes {

inline bool has_avx2() {
#if defined(DATAPIPES_AVX2)
  static const bool found = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
  return found;
#else
  return false;
#endif
}

}  // namespace datapipes
