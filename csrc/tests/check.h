// check.h: the macros of the kernel tests. test_kernels.cpp has main(), which runs the suites of all files.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <vector>

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

// std::equal compares a std::byte at a time, which takes most of a test's time where the compiler does not optimise.
inline bool equal_bytes(const std::byte* one, const std::byte* other, std::size_t size) {
  return size == 0 || std::memcmp(one, other, size) == 0;
}

// Runs `work` in a child process. Returns whether it ended within a minute, without a crash or a failed check.
inline bool survives(const std::function<void()>& work) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    try {
      work();
    } catch (const std::exception& error) {
      std::printf("  threw %s\n", error.what());
      std::fflush(stdout);
      _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) std::printf("  ended by signal %d\n", WTERMSIG(status));
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

struct Suite {
  const char* file;
  bool forks;  // such suites run before one that starts a thread
  void (*run)();
};

inline std::vector<Suite>& suites() {
  static std::vector<Suite> all;
  return all;
}

// SUITE(name) { RUN(...); ... } joins the suites that main() runs, in the order of their files; FORKING_SUITE forks.
#define JOINED_SUITE(name, forks)                                                        \
  static void name();                                                                    \
  static const bool name##_joined = (suites().push_back({__FILE__, forks, name}), true); \
  static void name()
#define SUITE(name) JOINED_SUITE(name, false)
#define FORKING_SUITE(name) JOINED_SUITE(name, true)

}  // namespace datapipes
