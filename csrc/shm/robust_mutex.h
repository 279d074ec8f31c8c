// robust_mutex.h: a mutex in shared memory that survives the death of its owner. The kernel marks such a mutex; the
// next lock() returns kOwnerDied, and its caller repairs the guarded state. glibc trusts every byte of a mutex: a process
// that overwrites a mutex can make glibc crash the others. So lock() first checks the kind of the mutex, and owner() lets a
// waiter check that the owner is possible. An overwrite while the mutex is held goes unnoticed.
#pragma once

#include <linux/futex.h>
#include <pthread.h>
#include <time.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <optional>
#include <system_error>

#include "common/load.h"
#include "shm/futex.h"

#if defined(__GLIBC__)
// From glibc 2.30 on. Weak, so that a core linked against an older one (`make wheel`) has it wherever the system does.
extern "C" [[gnu::weak]] int pthread_mutex_clocklock(pthread_mutex_t*, clockid_t, const timespec*) noexcept;
#endif

namespace datapipes::shm {

class RobustMutex {
 public:
  enum class Locked { kYes, kOwnerDied, kTimedOut, kLost };  // kLost: no process can ever lock it again

  // Called once, by the creator of the segment.
  void make() {
    pthread_mutexattr_t attributes;
    check(pthread_mutexattr_init(&attributes));
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    const int error = pthread_mutex_init(&mutex_, &attributes);
    pthread_mutexattr_destroy(&attributes);
    check(error);
  }

  // Waits at most `at_most`, since the owner may be stopped, for example by a debugger. After kOwnerDied the caller
  // holds the mutex; it calls repaired() before it unlocks, or nobody could lock it again.
  Locked lock(Clock::duration at_most) {
    if (!has_its_kind()) return Locked::kLost;
    int error = pthread_mutex_trylock(&mutex_);
    if (error == EBUSY) {
      timespec until{};
      clock_gettime(clock(), &until);
      const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(at_most).count() + until.tv_nsec;
      until.tv_sec += static_cast<time_t>(ns / 1'000'000'000);
      until.tv_nsec = static_cast<long>(ns % 1'000'000'000);
      error = lock_until(until);
    }
    if (error == ETIMEDOUT) return Locked::kTimedOut;
    if (error == EOWNERDEAD) return Locked::kOwnerDied;
    // Any other error: the guarded state could not be repaired (ENOTRECOVERABLE), or the mutex was overwritten.
    return error == 0 ? Locked::kYes : Locked::kLost;
  }
  void repaired() { pthread_mutex_consistent(&mutex_); }
  void unlock() { pthread_mutex_unlock(&mutex_); }

#if defined(__GLIBC__)
  // The thread that holds it; none if it is free, or if its owner died.
  std::optional<std::int32_t> owner() const {
    const auto word = static_cast<std::uint32_t>(read_once(mutex_.__data.__lock));
    if (word == 0 || (word & FUTEX_OWNER_DIED) != 0) return std::nullopt;
    return static_cast<std::int32_t>(word & FUTEX_TID_MASK);
  }

 private:
  // glibc aborts, or waits for ever, in a mutex whose kind makes no sense.
  bool has_its_kind() const {
    static const int made = [] {
      RobustMutex other;
      other.make();
      return other.mutex_.__data.__kind;
    }();
    return read_once(mutex_.__data.__kind) == made;
  }
#else
  std::optional<std::int32_t> owner() const { return std::nullopt; }

 private:
  bool has_its_kind() const { return true; }
#endif
  // timedlock has only the clock that may be set back; clocklock is better, but ThreadSanitizer does not see it.
#if defined(__GLIBC__) && !defined(__SANITIZE_THREAD__)
  static bool has_clocklock() { return pthread_mutex_clocklock != nullptr; }
  static clockid_t clock() { return has_clocklock() ? CLOCK_MONOTONIC : CLOCK_REALTIME; }
  int lock_until(const timespec& until) {
    return has_clocklock() ? pthread_mutex_clocklock(&mutex_, clock(), &until) : pthread_mutex_timedlock(&mutex_, &until);
  }
#else
  static clockid_t clock() { return CLOCK_REALTIME; }
  int lock_until(const timespec& until) { return pthread_mutex_timedlock(&mutex_, &until); }
#endif
  static void check(int error) {
    if (error != 0) throw std::system_error(error, std::generic_category(), "ShmChannel: locking the shared memory failed");
  }
  pthread_mutex_t mutex_;
};

}  // namespace datapipes::shm
