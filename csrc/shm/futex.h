// futex.h: sleeping on a word of shared memory, and waking the sleepers of all processes. Linux only.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <thread>

namespace datapipes::shm {

using Clock = std::chrono::steady_clock;
using Word = std::atomic<std::uint32_t>;
inline constexpr Clock::duration kBeforeSleep = std::chrono::microseconds(30);
static_assert(Word::is_always_lock_free && sizeof(Word) == 4, "the kernel reads the word as 32 bits");

// Sleeps while `word` equals `seen`, at most `at_most`. May end early for any reason, such as a signal, so the caller
// checks the state again. Returns true after a wake-up or if `word` had already changed, false after a signal or the
// timeout.
inline bool futex_wait(Word& word, std::uint32_t seen, Clock::duration at_most) {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(at_most).count();
  if (ns <= 0) return false;
  timespec wait{.tv_sec = static_cast<time_t>(ns / 1'000'000'000), .tv_nsec = static_cast<long>(ns % 1'000'000'000)};
  const long done = syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, seen, &wait, nullptr, 0);
  return done == 0 || errno == EAGAIN;
}

inline void futex_wake_all(Word& word) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// A word to wait on, and a flag that is set while a process may be waiting. PROTOCOL.md, section 3, explains the order of
// the steps.
// All accesses are sequentially consistent, except in changes_soon().
struct Event {
  Word word;
  Word awaited;

  // Called before the state is checked; returns the `seen` for futex_wait.
  std::uint32_t prepare() {
    const auto seen = word.load();
    awaited.store(1);
    return seen;
  }
  // Spins for kBeforeSleep and returns whether the word changed. Most answers arrive sooner than a wake-up from
  // futex_wait.
  bool changes_soon(std::uint32_t seen) const {
    static const bool alone = std::thread::hardware_concurrency() < 2;  // then no other thread runs meanwhile
    for (const auto until = Clock::now() + kBeforeSleep; !alone && Clock::now() < until;) {
      if (word.load(std::memory_order_acquire) != seen) return true;
    }
    return false;
  }
  // Called after the state was changed.
  void notify() {
    if (awaited.exchange(0) == 0) return;
    word.fetch_add(1);
    futex_wake_all(word);
  }
};

}  // namespace datapipes::shm
