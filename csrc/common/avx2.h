// avx2.h: code for processors with AVX2, F16C and POPCNT in a core that is built for all processors. DATAPIPES_AVX2 marks the
// functions; has_avx2() tells at run time whether they may be called. On other architectures the macro is not defined.
#pragma once

#if defined(__SSE2__) && defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#define DATAPIPES_AVX2 __attribute__((target("avx2,f16c,popcnt")))
#endif

namespace datapipes {

#if defined(DATAPIPES_AVX2)

// Asks the processor, since __builtin_cpu_supports always says no with some runtimes of clang. Not inlined: cpuid overwrites
// registers that the callers of has_avx2() would have to save at every call.
[[gnu::noinline, gnu::cold]] inline bool ask_for_avx2() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kNeeded = bit_OSXSAVE | bit_AVX | bit_F16C | bit_POPCNT;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kNeeded) != kNeeded) return false;
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & 6u) != 6u) return false;  // the system keeps the registers of SSE and AVX
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_AVX2) != 0;
}

#endif

inline bool has_avx2() {
#if defined(DATAPIPES_AVX2)
  static const bool found = ask_for_avx2();
  return found;
#else
  return false;
#endif
}

}  // namespace datapipes
