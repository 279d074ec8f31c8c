// check.h: the macros of the kernel tests. test_kernels.cpp has main() and calls the suites of the other files.
#pragma once

#include <cstdio>

namespace datapipes {

inline int failed_checks = 0;

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      ++failed_checks;                                                     \
      std::printf("  FAILED %s:%d: %s\n", __FILE__, __LINE__, #condition); \
    }                                                                      \
  } while (false)

#define CHECK_THROWS(error, expression)                                                          \
  do {                                                                                           \
    bool thrown = false;                                                                         \
    try {                                                                                        \
      (void)(expression);                                                                        \
    } catch (const error&) {                                                                     \
      thrown = true;                                                                             \
    }                                                                                            \
    if (!thrown) {                                                                               \
      ++failed_checks;                                                                           \
      std::printf("  FAILED %s:%d: %s throws no %s\n", __FILE__, __LINE__, #expression, #error); \
    }                                                                                            \
  } while (false)

#define RUN(...)                       \
  do {                                 \
    std::printf("%s\n", #__VA_ARGS__); \
    std::fflush(stdout);               \
    __VA_ARGS__();                     \
  } while (false)

#define RUN_FOR_BOTH_IDS(test) \
  do {                         \
    RUN(test<std::int32_t>);   \
    RUN(test<std::int64_t>);   \
  } while (false)

void test_digest();          // test_digest.cpp
void test_distributed();     // test_distributed.cpp
void test_fast_paths();      // test_fast_paths.cpp
void test_gather();          // test_gather.cpp
void test_gather_decoded();  // test_gather_decoded.cpp
void test_labor();           // test_labor.cpp
void test_memory();          // test_memory.cpp
void test_partition();       // test_partition.cpp
void test_shm();             // test_shm.cpp
void test_shm_processes();   // test_shm_processes.cpp: forks, so it runs before any suite that starts a thread
void test_shm_garbage();     // test_shm_garbage.cpp: forks too
void test_temporal();        // test_temporal.cpp
void test_tfrecord();        // test_tfrecord.cpp
void test_threads();         // test_threads.cpp
void test_weighted();        // test_weighted.cpp

}  // namespace datapipes
